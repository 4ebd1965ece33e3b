"""Descriptions of a dataset at a block: profiles, manifests, drift, and exports (RFC-039 to RFC-046)."""
