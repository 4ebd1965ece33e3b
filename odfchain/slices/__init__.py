"""Parquet slices: the bounded reader, the writer and its observers, conditions, and the one state."""
