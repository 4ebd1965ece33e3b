"""Metadata chains: append rules, walking, comparing, the index; and what is signed about them."""
