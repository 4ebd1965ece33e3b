"""Branches of a dataset: what lies between two points, merging it, changing it (RFC-035, RFC-036)."""
