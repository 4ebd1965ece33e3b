"""A session of the JVM that reads and resolves queries, and runs none: the judge beside Spark Connect.

A Connect server hands out neither its parser nor its plans. So the queries that it shall run are read by a
JVM on this machine, of the same Spark, over empty tables. PySpark has either a session of its own JVM or one
of Connect in a process; the bridge to Java has no such rule, and nothing else is needed here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from odfchain.errors import EngineError
from odfchain.spark.session import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlanSession:
    """What `jvm_of` and the gate need of a session; no frame can be made in it from Python."""

    def __init__(self, jvm: Any, java: Any) -> None:
        """`java` is a session of the JVM that nobody else uses."""
        self._jvm, self._jsparkSession = jvm, java

    def stop(self) -> None:
        """Nothing: whoever has started the JVM ends it, or leaves it."""


class PlanEngine(SparkEngine):
    """As a `SparkEngine` in local mode, with a `PlanSession`: beside a session of Spark Connect as well."""

    def _made(self, settings: dict[str, str]) -> SparkSession:
        from pyspark import SparkContext

        SparkContext._ensure_initialized()  # noqa: SLF001 - PySpark has no public way
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        known = sessions.getDefaultSession()
        if known.isDefined() and not known.get().sparkContext().isStopped():
            java = known.get().newSession()
        else:
            java = sessions.builder().getOrCreate().newSession()
        for key, value in settings.items():
            if key.startswith("spark.sql.") and java.conf().isModifiable(key):
                java.conf().set(key, value)
        return cast("SparkSession", PlanSession(jvm, java))

    def _entered_session(self, settings: dict[str, str]) -> SparkSession:
        return self._made(settings)


_judges: weakref.WeakKeyDictionary[SparkSession, Callable[[], SparkSession]] = weakref.WeakKeyDictionary()


def give_judge(session: SparkSession, judge: Callable[[], SparkSession]) -> None:
    """From now on queries for a session of Spark Connect are judged by what `judge` returns."""
    _judges[session] = judge


def judge_of(session: SparkSession) -> SparkSession:
    """Where queries for a session of Spark Connect are read and resolved; started at the first use.

    Raises:
        EngineError: it does not start, or the session was not opened by odfchain.
    """
    judge = _judges.get(session)
    if judge is None:
        raise EngineError(
            "queries over Spark Connect run in a session that odfchain has opened",
            hint="set spark.remote in the workspace's config.yaml",
        )
    return judge()
