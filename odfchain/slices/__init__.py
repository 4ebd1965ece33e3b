"""Reading slices: Parquet files, which may come from others."""
