"""Metadata chains: append rules, walking, the derived index."""
