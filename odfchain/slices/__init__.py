"""Reading slices: the Parquet files of somebody else."""
