"""Workspaces and datasets as Python sees them: what is behind the public names, and all that `cli` calls.

Each module is loaded on use: start-up time is part of what the command line promises.
"""
