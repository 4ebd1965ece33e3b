"""What the rows of a dataset look like at a block, as a function of their multiset (RFC-040)."""
