"""Datasets carried between places that trust each other with nothing but hashes (RFC-021)."""
