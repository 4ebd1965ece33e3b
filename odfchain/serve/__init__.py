"""A workspace published to the world, read only."""

HOST = "127.0.0.1"
PORT = 8080
"""Where, when nothing else is said."""
