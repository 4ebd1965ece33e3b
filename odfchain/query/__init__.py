"""Questions: SQL over datasets at any point, by engines that only read (RFC-033)."""
