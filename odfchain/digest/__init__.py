"""Hashes: SHA3-256 over bytes (physical) and over records (logical)."""
