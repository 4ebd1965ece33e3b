"""Datasets for readers of other formats, beside the dataset: Lode, Delta Lake, Iceberg (RFC-045)."""
