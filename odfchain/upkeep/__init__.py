"""Keeping datasets in order: going back, clearing away, repairing, merging small slices."""
