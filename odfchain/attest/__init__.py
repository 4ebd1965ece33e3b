"""Signed statements about datasets: heads by their owners, verdicts by auditors."""
