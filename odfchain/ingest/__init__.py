"""Data into root datasets: fetch, prepare, read, fit the schema, merge, write; files without a manifest."""
