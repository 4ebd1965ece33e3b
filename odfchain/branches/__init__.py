"""Branches: intervals of a chain, differences, three-way merges, corrections (RFC-035, RFC-036)."""
