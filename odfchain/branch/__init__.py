"""Branches of a dataset: what lies between two points, and merging it (RFC-035, RFC-036)."""
