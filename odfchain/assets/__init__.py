"""Asset locks: where the files of STAC Items are, and what tells whether they changed (RFC-047)."""
