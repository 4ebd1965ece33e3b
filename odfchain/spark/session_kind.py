"""What a session of Spark is: Spark Connect's, one in Java's reach, one whose Spark is all here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_remote(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, which gives nothing of Java away."""
    return not hasattr(session, "_jsparkSession")


def is_local(session: SparkSession) -> bool:
    """Whether all of a session's Spark is in one JVM, that of this process."""
    # PySpark has no public way to ask
    return not is_remote(session) and bool(session._jsparkSession.sparkContext().isLocal())  # noqa: SLF001
