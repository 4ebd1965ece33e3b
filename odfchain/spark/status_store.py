"""The stages of an action in the status store of the JVM that Spark runs in, asked for over Py4J.

The store is there also where Spark has no web page. Executors tell of tasks that run with each heartbeat. In
local mode Spark tells of a task at its end only; there Hadoop's count of what was read from files stands in,
as long as no other command works in the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odfchain.spark.tally import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ACTIVE, _ENDED = "ACTIVE", ("COMPLETE", "FAILED")


class JavaStatus:
    """The jobs with a tag, in the status store of the JVM that Spark runs in; made before they begin."""

    def __init__(self, session: SparkSession, tag: str) -> None:
        jvm, context = session._jvm, session._jsparkSession.sparkContext()  # noqa: SLF001
        assert jvm is not None  # noqa: S101 - not of Spark Connect
        self._tag, self._context, self._store = tag, context, context.statusStore()
        self._tracker, self._arrays = context.statusTracker(), jvm.java.util.Arrays
        self._jobs: set[str] = set()
        self._running: dict[int, bool] = {}
        """Stages that have not ended, and whether they read."""
        self._alone = bool(context.isLocal())
        self._counts = jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics()
        self._before = self._count() if self._alone else 0

    def stages(self) -> Sequence[Stage]:
        """As `Status.stages`."""
        active = self._store.activeStages().length() if self._alone else 0
        for job in _numbers(self._arrays.toString(self._tracker.getJobIdsForTag(self._tag))):
            if job not in self._jobs:
                self._jobs.add(job)
                self._add_stages(int(job))
        found = [stage for number in list(self._running) if (stage := self._stage(number)) is not None]
        # another command's bytes are in the same count: from here on nobody can tell them apart
        self._alone = self._alone and active <= len(found)
        return found

    def bytes_read(self) -> int:
        """As `Status.bytes_read`."""
        return self._count() - self._before if self._alone else 0

    def _count(self) -> int:
        of_files = self._counts.get("file")
        return 0 if of_files is None else int(of_files.getLong("bytesRead") or 0)

    def _add_stages(self, job: int) -> None:
        with contextlib.suppress(_java_error()):  # a job of long ago is forgotten
            numbers = _numbers(self._store.job(job).stageIds().mkString(","))
            # with adaptive plans each job ends with one new stage, and names those it takes rows from
            self._running |= {int(number): len(numbers) == 1 for number in numbers}

    def _stage(self, number: int) -> Stage | None:
        try:
            found = self._store.lastStageAttempt(number)
        except _java_error():
            return None
        status = found.status().toString()
        if status not in (_ACTIVE, *_ENDED):
            return None  # it waits, or what it gives is there already
        reads = self._running[number]
        if status in _ENDED:
            del self._running[number]
        return Stage(
            number=number, reads=reads, ended=status in _ENDED,
            tasks=found.numTasks(), ended_tasks=found.numCompleteTasks(),
            read_bytes=found.inputBytes(), read_rows=found.inputRecords(),
            taken_rows=found.shuffleReadRecords(), handed_rows=found.shuffleWriteRecords(),
        )  # fmt: skip


def _numbers(text: str) -> list[str]:
    return [number for number in text.strip("[]").replace(" ", "").split(",") if number]


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JJavaError

    error: type[Exception] = Py4JJavaError
    return error
