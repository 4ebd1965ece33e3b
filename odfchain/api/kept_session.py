"""The Spark session that stays between commands: what it is doing, and ending it (RFC-030)."""

from odfchain.spark.kept import log_file, status, stop

__all__ = ["log_file", "status", "stop"]
