"""Exports to other formats, read back by the libraries of these formats."""
