"""A workspace published to the world, read only."""
