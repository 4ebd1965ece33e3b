"""Verification: what is recorded against what is there."""
