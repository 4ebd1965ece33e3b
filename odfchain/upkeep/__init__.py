"""Keeping datasets in order: reset, garbage collection, repair, compaction."""
