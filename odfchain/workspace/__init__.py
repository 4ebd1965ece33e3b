"""A workspace: a folder of datasets, their keys and settings."""
