"""Turning what was fetched into what a reader takes: unpacking, and commands that it is piped through."""
