"""Plans for few rows: one task from reading to writing, and nothing is compiled.

For a thousand rows Spark's own work is dear: a stage for each shuffle, a plan made anew between two stages,
and classes that are written, compiled and run once. The rows are the same either way. Source: RFC-031.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from odfchain.spark.executor_files import session_like
from odfchain.spark.session_kind import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_ROWS = 50_000
"""So many rows, old and new, take longer to compile for than to interpret."""

FEW_BYTES = 1 << 20
"""Size of a file of text that can hold few rows only."""

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings under which plans are not compiled."""

ONE_TASK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.maxPartitionBytes": str(1 << 60),
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""Settings under which files are read as one partition and stay one."""

FEW_SETTINGS = ONE_TASK | INTERPRETED | {"spark.sql.autoBroadcastJoinThreshold": "-1"}
"""Settings for few rows."""

_sessions: weakref.WeakKeyDictionary[SparkSession, SparkSession] = weakref.WeakKeyDictionary()


def session_for_few(session: SparkSession) -> SparkSession:
    """The session beside this one in which few rows are read and merged; a remote one itself."""
    if is_remote(session):
        return session
    if (made := _sessions.get(session)) is None:
        made = _sessions[session] = session_like(session)
        for key, value in FEW_SETTINGS.items():
            made.conf.set(key, value)
    return made
