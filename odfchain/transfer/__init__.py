"""Datasets between places: peers, pull and push, the node, stores that machines share (RFC-021)."""
