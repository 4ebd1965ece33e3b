"""Queries over new rows only: operators, what they remember, and what they emit."""
