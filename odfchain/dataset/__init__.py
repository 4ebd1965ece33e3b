"""One dataset: its chain, its objects, and what they say about its present state."""
