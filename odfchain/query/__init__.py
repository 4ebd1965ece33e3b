"""Questions in SQL over datasets at any point, by engines that only read; signed answers (RFC-033)."""
