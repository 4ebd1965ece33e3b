"""Which files and facts a dataset consists of at a block, for readers without our code (RFC-039)."""
