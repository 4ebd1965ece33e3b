"""Spark actions that can be ended: by Ctrl-C, by a deadline, or by the caller.

A command to the JVM that is interrupted while its answer is awaited leaves that answer in the connection for
the next command, PySpark's own clean-up first. So an action runs on a thread, which has a connection of its
own, and only the waiting for it is interrupted. Its jobs bear a tag that no others bear: what runs at the
same time in the same session is left alone, and progress is that of this action alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import re
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import BadInputError, EngineError, OdfchainError, StorageFullError, was_interrupted
from odfchain.lazy import pa
from odfchain.progress import Progress, WorkDone, on_a_thread, shows_work, time_left
from odfchain.spark.plans import is_local, is_remote, map_in_arrow
from odfchain.storage.fsio import storage_error
from odfchain.text import find_marker, message_of, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

# How long a cancelled action may take to stop writing.
_CANCEL_SECONDS = 10

# An action that is between two jobs is cancelled when it has begun the next one.
_AGAIN_SECONDS = 0.2


class Cancellation:
    """Ends an action from another thread; asked before it begins, the action ends at once."""

    def __init__(self) -> None:
        self._asked: Future[None] = Future()

    def cancel(self) -> None:
        """Ask for the end, which is soon; asking twice does no harm."""
        with contextlib.suppress(InvalidStateError):
            self._asked.set_result(None)


def run_job(
    session: SparkSession,
    action: Callable[[], T],
    *,
    deadline: float | None = None,
    cancellation: Cancellation | None = None,
) -> T:
    """Run `action`; Ctrl-C cancels its jobs and is raised at once."""
    on_main = threading.current_thread() is threading.main_thread()
    # only the main thread is interrupted by Ctrl-C: elsewhere an action that nothing can end simply runs
    here = not on_main and deadline is None and cancellation is None
    if here and _watch.get() is None:
        return action()
    tag = f"odfchain-{uuid.uuid4().hex}"
    with _following(session, tag):
        if not here:
            return _run_elsewhere(session, action, tag, deadline, cancellation)
        _tag(session, tag)
        try:
            return action()
        finally:
            with contextlib.suppress(Exception):  # Java has ended, and the action says so
                if is_remote(session):
                    session.removeTag(tag)
                else:
                    session.sparkContext.removeJobTag(tag)


def _run_elsewhere(
    session: SparkSession,
    action: Callable[[], T],
    tag: str,
    deadline: float | None,
    cancellation: Cancellation | None,
) -> T:
    def tagged() -> T:
        _tag(session, tag)
        return action()

    asked = (cancellation or Cancellation())._asked  # noqa: SLF001 - same module
    result = on_a_thread(tagged, "odfchain-job")
    try:
        either: tuple[Future[Any], ...] = (result, asked)
        wait(either, timeout=deadline, return_when=FIRST_COMPLETED)
    except KeyboardInterrupt:
        _cancel(session, tag, result)
        raise
    if result.done():
        return result.result()
    _cancel(session, tag, result)
    if asked.done():
        raise EngineError("the run was cancelled")
    hint = "allow more time: --timeout, or transform.timeoutSeconds in the settings"
    raise EngineError(f"took longer than {_shown(deadline)}", hint=hint)


def _tag(session: SparkSession, tag: str) -> None:
    if is_remote(session):
        session.addTag(tag)
    else:
        # a session's own tags are known to the thread alone that added them
        session.sparkContext.addJobTag(tag)


def _cancel(session: SparkSession, tag: str, result: Future[T]) -> None:
    end = time.monotonic() + _CANCEL_SECONDS
    with contextlib.suppress(Exception):
        # jobs that begin meanwhile have the same tag: asked again until the action has noticed
        while not result.done() and time.monotonic() < end:
            if is_remote(session):
                session.interruptTag(tag)
            else:
                session.sparkContext.cancelJobsWithTag(tag)
            wait((result,), timeout=_AGAIN_SECONDS)


def _shown(seconds: float | None) -> str:
    if seconds is None or seconds < 1:
        return f"{(seconds or 0) * 1_000:g} ms"
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


# Failures of tasks, as one line for the user.
#
# Our own stages fail with a marker in the message; it survives the way from a Python worker or an
# expression through the JVM to the driver, and is turned into the right error here.

_LONGEST = 500
# Py4J's first line, which names an object of Java's; the error itself comes after it.
_CALL = re.compile(r"An error occurred while calling \S+$")
_LOST = re.compile(r"ExecutorLostFailure \(.*?\) Reason: (.+)")
# Errors that workers raise and that are not Spark's own (`odfchain.spark.executor_files.translate_errors`).
_RAISED: dict[str, type[OdfchainError]] = {
    name: getattr(sys.modules[OdfchainError.__module__], name)
    for name in (
        "AccessError", "BadInputError", "ObjectCorruptedError", "ObjectNotFoundError", "OversizedInputError",
        "StorageFullError", "StoreError", "TransferError",
    )
}  # fmt: skip
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large", re.IGNORECASE)


def first_line(error: Exception) -> str:
    """The line of a Spark error that says what happened."""
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    for line in lines:
        if match := re.search(r"\[([A-Z_.]+)\] (.*)", line):
            return match.group(2)
    if len(lines) > 1 and _CALL.match(lines[0]):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def is_of_spark(error: BaseException) -> bool:
    """True if PySpark or the connection to its JVM raised it."""
    return _is_theirs(type(error).__module__) or _has_ended(error)


def _is_theirs(module: str) -> bool:
    return module.partition(".")[0] in ("pyspark", "py4j")


def _has_ended(error: BaseException) -> bool:
    if type(error).__name__ == "Py4JNetworkError":
        return True
    # Py4J lets some errors of its socket pass as they are
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, ConnectionError) and any(map(_is_theirs, frames))


def explain(error: Exception, *, file: str | None = None) -> OdfchainError:
    """The project's error for a failed Spark job."""
    if was_interrupted(error):
        raise KeyboardInterrupt from error
    if isinstance(error, OdfchainError):
        return error
    if _has_ended(error):
        return EngineError("the Java process that Spark runs in has ended", hint="run the command again")
    # an error without a number is one of the connection to Java, or of Spark
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return storage_error(error, error.filename or "a temporary file")
    text = message_of(error)
    fault = find_marker(text)
    if fault is not None and fault["kind"] == "raised":
        kind = _RAISED.get(str(fault["name"]), EngineError)
        return kind(str(fault["message"]), hint=str(fault["hint"]) or None)
    if fault is not None:
        return BadInputError(str(fault.get("message", fault["kind"])), file=file)
    if _FULL.search(text):
        hint = "free some space and run the command again"
        return StorageFullError("no space left on the device while writing", hint=hint)
    if lost := _LOST.search(text):
        hint = "run the command again; where memory was short, with more: spark.executor.memory"
        return EngineError(f"an executor of Spark's was lost: {one_line(lost[1], _LONGEST)}", hint=hint)
    if "Python worker exited unexpectedly" in text:
        hint = "run the command again; where memory was short, with a smaller merge.taskBytes"
        return EngineError("a worker of Spark's has ended: it was killed, or had no more memory", hint=hint)
    return EngineError(f"Spark failed: {one_line(first_line(error), _LONGEST)}")


# A function of numbers, run by Spark's workers: its input and output are files.

_MOST_TASKS = 1_000
# Instead of the number of a call, where it raised an error.
_FAILED = -1


def task_results(
    session: SparkSession, function: Callable[[int], T], count: int, *, file: str | None = None
) -> list[T]:
    """The results of `function` for each number below `count`, called by workers."""
    numbers = session.range(0, count, 1, min(count, _MOST_TASKS))
    said = map_in_arrow(numbers, functools.partial(_call, function=function), "number long, said binary")
    try:
        rows = run_job(session, said.collect)
    except Exception as error:
        raise explain(error, file=file) from error
    results = {row["number"]: pickle.loads(row["said"]) for row in rows}  # noqa: S301 - by our own tasks
    if _FAILED in results:
        raise results[_FAILED]
    return [results[number] for number in range(count)]


def _call(batches: Iterator[pa.RecordBatch], function: Callable[[int], object]) -> Iterator[pa.RecordBatch]:
    def said(number: int, what: object) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": [number], "said": [pickle.dumps(what)]})

    try:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield said(number, function(number))
    except OdfchainError as error:
        yield said(_FAILED, error)


# Progress of Spark's jobs.
#
# A thread of ours asks about twice a second, and only where progress is shown. Java never calls us: there is
# no callback server, and nothing that could hold a job up. Jobs are found by the tag of their action, so two
# commands in one session do not see each other's. What a worker of this machine has written is counted in a
# file of eight bytes. Over Spark Connect the server reports by itself.


# The stages of one action, added up: rows, bytes, tasks, time left.


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Names of the steps of Spark's actions, and the known sizes of the reading before it begins."""

    reading: str
    merging: str
    """Where rows are taken from other stages."""
    writing: str
    rows: int | None = None
    """Rows that will be read."""
    size: int | None = None
    """Bytes that will be read."""

    @classmethod
    def all_called(cls, name: str) -> Steps:
        """The same name for all steps."""
        return cls(reading=name, merging=name, writing=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The status of a stage that has begun."""

    number: int
    reads: bool
    """True if it takes no rows from other stages."""
    tasks: int
    ended_tasks: int = 0
    ended: bool = False
    read_bytes: int = 0
    read_rows: int = 0
    taken_rows: int = 0
    """From other stages."""
    handed_rows: int = 0
    """To a stage after it."""

    def with_older(self, older: Stage) -> Stage:
        """This, with nothing less than was said of it before."""
        return dataclasses.replace(self, **{f: max(getattr(self, f), getattr(older, f)) for f in _GROWING})


# Each task reads beyond the end of its part of a text, to the end of the line.
_OVER = 1.05

_GROWING = ("tasks", "ended_tasks", "ended", "read_bytes", "read_rows", "taken_rows", "handed_rows")


class Tally:
    """Adds up what Spark says of one action; what it says later never takes anything back.

    The steps are reading (stages that take no rows from others), merging (those that do) and writing (once a
    worker has written rows). The part that is done is, in this order of trust: rows written of those that
    were handed over, bytes read of those of the file, rows read of those that the file has, tasks ended of
    at least two in the stages that run. What stages after them will take is in none of it.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._stages: dict[int, Stage] = {}
        self._read = self._written = 0
        self._step: str | None = None
        self._began = self._risen = 0.0
        self._fraction: float | None = None

    def add(self, stages: Iterable[Stage], *, now: float, read: int = 0, written: int = 0) -> WorkDone | None:
        """How far the action is at a time [s], None before it begins; others count `read` and `written`."""
        for stage in stages:
            older = self._stages.get(stage.number)
            self._stages[stage.number] = stage if older is None else stage.with_older(older)
        self._read = max(self._read, read, sum(s.read_bytes for s in self._stages.values()))
        self._written = max(self._written, written)
        return None if not self._stages else self._timed(self._of_step(), now)

    def _of_step(self) -> WorkDone:
        steps, read = self._steps, self._read
        begun = [s for s in self._stages.values() if not s.ended] or list(self._stages.values())[-1:]
        reads = any(s.reads for s in begun)
        handed = next((s.handed_rows for s in reversed(self._stages.values()) if s.handed_rows), None)
        if self._written:
            total_rows = _at_least(handed, self._written)
            return WorkDone(
                step=steps.writing, rows=self._written, total_rows=total_rows,
                read_bytes=read if reads else 0, fraction=_part(self._written, total_rows),
            )  # fmt: skip
        known = [s for s in self._stages.values() if s.reads is reads]
        tasks, total_tasks = sum(s.ended_tasks for s in known), sum(s.tasks for s in known)
        at_once = sum(s.tasks for s in begun)
        of_tasks = sum(s.ended_tasks for s in begun) / at_once if at_once > 1 else None
        if not reads:
            # rows may go through several such stages; each is one row all the same
            total = sum(s.handed_rows for s in self._stages.values() if s.reads)
            return WorkDone(
                step=steps.merging, rows=min(total, sum(s.taken_rows for s in known)),
                total_rows=total or None, tasks=tasks, total_tasks=total_tasks, fraction=of_tasks,
            )  # fmt: skip
        rows = sum(s.read_rows for s in known)
        total_rows, total_bytes = _at_least(steps.rows, rows), steps.size
        if total_bytes is not None and total_bytes < read <= total_bytes * _OVER:
            read = total_bytes
        total_bytes = _at_least(total_bytes, read)
        parts = (_part(read, total_bytes), _part(rows, total_rows), of_tasks)
        return WorkDone(
            step=steps.reading, rows=rows, total_rows=total_rows, read_bytes=read, total_bytes=total_bytes,
            tasks=tasks, total_tasks=total_tasks, fraction=next(filter(None, parts), None),
        )  # fmt: skip

    def _timed(self, done: WorkDone, now: float) -> WorkDone:
        if done.step != self._step:
            self._step, self._began, self._risen, self._fraction = done.step, now, now, None
        if done.fraction is not None and done.fraction > (self._fraction or 0):
            self._fraction, self._risen = done.fraction, now
        known = self._fraction if done.fraction is not None else None
        left = time_left(known, self._risen - self._began, now - self._risen)
        return dataclasses.replace(done, fraction=known, seconds_left=left)


def _at_least(total: int | None, done: int) -> int | None:
    # a total that is less than what is done already is wrong: then none is known
    return total if total is not None and done <= total else None


def _part(done: int, total: int | None) -> float | None:
    return done / total if total and done else None


# The stages of an action in the status store of the JVM that Spark runs in, asked for over Py4J.
#
# The store exists also where Spark has no web page. Executors report running tasks with each heartbeat.
# In local mode Spark reports a task at its end only; there Hadoop's count of bytes read from files
# is used, as long as no other command works in the session.

_ACTIVE, _ENDED = "ACTIVE", ("COMPLETE", "FAILED")


class JavaStatus:
    """The status of one action, from the store of the JVM that Spark runs in; made before the jobs begin."""

    def __init__(self, session: SparkSession, tag: str) -> None:
        jvm, context = session._jvm, session._jsparkSession.sparkContext()  # noqa: SLF001
        assert jvm is not None  # noqa: S101 - not of Spark Connect
        self._tag, self._context, self._store = tag, context, context.statusStore()
        self._tracker, self._arrays = context.statusTracker(), jvm.java.util.Arrays
        self._jobs: set[str] = set()
        # Stages that have not ended, and whether they read.
        self._running: dict[int, bool] = {}
        self._alone = bool(context.isLocal())
        self._counts = jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics()
        self._before = self._count() if self._alone else 0

    def stages(self) -> Sequence[Stage]:
        """The stages that have begun, and have not ended at the last look."""
        active = self._store.activeStages().length() if self._alone else 0
        for job in _numbers(self._arrays.toString(self._tracker.getJobIdsForTag(self._tag))):
            if job not in self._jobs:
                self._jobs.add(job)
                self._add_stages(int(job))
        found = [stage for number in list(self._running) if (stage := self._stage(number)) is not None]
        # another command's bytes are in the same count: from here on they cannot be separated
        self._alone = self._alone and active <= len(found)
        return found

    def bytes_read(self) -> int:
        """Bytes read since the beginning, counted by others than Spark; 0 without such a count."""
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


# Seconds between two looks: as fast as people read, and shorter actions are never looked at.
_PERIOD = 0.5

# How long the end of an action waits for the last look.
_END_SECONDS = 0.5


class Watch:
    """The observer of a thread's actions, and the file in which a worker counts what it writes."""

    def __init__(
        self, tell: Callable[[WorkDone], None], steps: Sequence[Steps], resources: contextlib.ExitStack
    ) -> None:
        self.tell = tell
        self.steps = steps
        """Of each input, where one job takes several."""
        self._resources = resources
        self._counter: Path | None = None

    def counter(self) -> str:
        """The file, with a count of none."""
        if self._counter is None:
            handle, name = tempfile.mkstemp(prefix="odfchain-rows-")
            os.close(handle)
            self._counter = Path(name)
            self._resources.callback(self._counter.unlink, missing_ok=True)
        self._counter.write_bytes(b"")
        return str(self._counter)

    def written(self) -> tuple[int, int]:
        """(the number of the input that is taken, its rows that are counted so far)."""
        counts = self._counter.read_bytes() if self._counter is not None else b""
        return int.from_bytes(counts[8:], "little"), int.from_bytes(counts[:8], "little")


_watch: ContextVar[Watch | None] = ContextVar("odfchain-watch", default=None)


@contextlib.contextmanager
def watched(progress: Progress, *steps: Steps) -> Iterator[None]:
    """Report actions of `run_job` on this thread to `progress`; `steps` are those of each input of a job."""
    if not shows_work(progress):
        yield
        return
    with contextlib.ExitStack() as resources:
        token = _watch.set(Watch(progress.work, steps, resources))
        resources.callback(_watch.reset, token)
        yield


@dataclass(frozen=True, slots=True)
class RowCounter:
    """Counts the rows that a worker writes in a file that the driver watches; nothing where none is shown."""

    file: str | None

    @classmethod
    def of(cls, session: SparkSession) -> RowCounter:
        """A counter for a worker of this machine, if progress is shown."""
        watch = _watch.get()
        try:
            return cls(None if watch is None or not is_local(session) else watch.counter())
        except Exception:  # noqa: BLE001 - progress never fails a command
            return cls(None)

    def begin(self, number: int) -> None:
        """The input with this number is taken, and nothing of it is written yet, if that can be told."""
        self._write(number, 0)

    def counted(self, batches: Iterator[pa.RecordBatch], number: int = 0) -> Iterator[pa.RecordBatch]:
        """The batches of an input; the number of rows that passed is written to the file, if possible."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            self._write(number, rows)
            yield batch

    def _write(self, number: int, rows: int) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError), open(self.file, "r+b", buffering=0) as file:  # noqa: PTH123
                file.write(rows.to_bytes(8, "little") + number.to_bytes(8, "little"))


@contextlib.contextmanager
def _following(session: SparkSession, tag: str) -> Iterator[None]:
    """While jobs with this tag run, report their progress to the observer of this thread."""
    watch = _watch.get()
    if watch is None:
        yield
    elif not is_remote(session):
        with Looking(lambda: JavaStatus(session, tag), watch, _PERIOD):
            yield
    else:
        with _reported_by_server(session, watch):
            yield


class Looking:
    """A thread that looks at an action from time to time, until it is left; its errors only end it."""

    def __init__(self, status: Callable[[], JavaStatus], watch: Watch, period: float) -> None:
        self._status, self._watch, self._period = status, watch, period
        self._number, self._tally = 0, Tally(watch.steps[0])
        self._ended = threading.Event()
        self._well = self._closed = False
        self._telling = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="odfchain-progress", daemon=True)

    def __enter__(self) -> Looking:
        with contextlib.suppress(RuntimeError):  # no more threads: nothing is shown
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._well = kind is None
        self._ended.set()
        if self._well and self._thread.ident is not None:
            self._thread.join(_END_SECONDS)
        with self._telling:
            self._closed = True

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # a Java that has died, a screen that is gone
            status, looked = self._status(), False
            while not self._ended.wait(self._period):
                self._look(status)
                looked = True
            if looked and self._well:
                self._look(status)

    def _look(self, status: JavaStatus) -> None:
        stages, (number, written) = status.stages(), self._watch.written()
        if number != self._number and number < len(self._watch.steps):
            self._number, self._tally = number, Tally(self._watch.steps[number])
        done = self._tally.add(stages, now=time.monotonic(), read=status.bytes_read(), written=written)
        with self._telling:
            if done is not None and not self._closed:
                self._watch.tell(done)


@contextlib.contextmanager
def _reported_by_server(session: Any, watch: Watch) -> Iterator[None]:
    tally = Tally(watch.steps[0])

    def report(stages: Iterable[Any] | None, **_: Any) -> None:
        with contextlib.suppress(Exception):
            done = tally.add(map(_of_server, stages or ()), now=time.monotonic())
            if done is not None:
                watch.tell(done)

    # the server of Spark Connect reports operations by itself, so none is asked
    session.registerProgressHandler(report)
    try:
        yield
    finally:
        session.removeProgressHandler(report)


def _of_server(stage: Any) -> Stage:
    return Stage(
        number=stage.stage_id, reads=stage.num_bytes_read > 0, ended=stage.done,
        tasks=stage.num_tasks, ended_tasks=stage.num_completed_tasks, read_bytes=stage.num_bytes_read,
    )  # fmt: skip
