"""How far two profiles are apart, and whether that is too far (RFC-041)."""
