"""Signatures: signed heads, attestations, evidence, policy, and what was seen before."""
