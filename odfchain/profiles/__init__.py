"""The description of a dataset at a block: manifests, profiles, drift, exports (RFC-039 to RFC-046)."""
