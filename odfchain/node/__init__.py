"""A workspace as a node: pages, queries, uploads and schedules beside its files (RFC-061)."""
