"""Spark actions that can be ended: by Ctrl-C, by a deadline, or by the caller.

A command to the JVM that is interrupted while its answer is awaited leaves that answer in the connection for
the next command, PySpark's own clean-up first. So an action runs on a thread, which has a connection of its
own, and only the waiting for it is interrupted. Its jobs bear a tag that no others bear: what runs at the
same time in the same session is left alone, and progress is that of this action alone.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import (
    AccessError,
    BadInputError,
    EngineError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    OversizedInputError,
    StorageFullError,
    StoreError,
    TransferError,
    was_interrupted,
)
from odfchain.slices.marker import find_marker
from odfchain.spark.job_progress import following, is_watched
from odfchain.spark.plans import is_remote
from odfchain.text import message_of, one_line

if TYPE_CHECKING:
    import pyarrow as pa
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


def on_a_thread(work: Callable[[], T], name: str) -> Future[T]:
    """The future result of `work`, on a thread that ends with the process at the latest."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result


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
    if here and not is_watched():
        return action()
    tag = f"odfchain-{uuid.uuid4().hex}"
    with following(session, tag):
        if not here:
            return _run_elsewhere(session, action, tag, deadline, cancellation)
        with _tagged(session, tag):
            return action()


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
    raise EngineError(
        f"took longer than {_shown(deadline)}",
        hint="allow more time: --timeout, or transform.timeoutSeconds in the settings",
    )


@contextlib.contextmanager
def _tagged(session: SparkSession, tag: str) -> Iterator[None]:
    _tag(session, tag)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # Java has ended, and the action says so
            if is_remote(session):
                session.removeTag(tag)
            else:
                session.sparkContext.removeJobTag(tag)


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
# Errors that workers raise and that are not Spark's own (`odfchain.spark.executor_files.telling`).
_RAISED: dict[str, type[OdfchainError]] = {
    kind.__name__: kind
    for kind in (
        AccessError, BadInputError, ObjectCorruptedError, ObjectNotFoundError, OversizedInputError,
        StorageFullError, StoreError, TransferError,
    )
}  # fmt: skip
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large", re.IGNORECASE)


def first_line(error: Exception) -> str:
    """The line of a Spark error that says what happened."""
    text = message_of(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
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
    """The project's error for a failed Spark job.

    Raises:
        KeyboardInterrupt: the failure only hides that the user interrupted.
    """
    if was_interrupted(error):
        raise KeyboardInterrupt from error
    if isinstance(error, OdfchainError):
        return error
    if _has_ended(error):
        return EngineError("the Java process that Spark runs in has ended", hint="run the command again")
    text = message_of(error)
    fault = find_marker(text)
    if fault is not None and fault["kind"] == "raised":
        kind = _RAISED.get(str(fault["name"]), EngineError)
        return kind(str(fault["message"]), hint=str(fault["hint"]) or None)
    if fault is not None:
        return BadInputError(str(fault.get("message", fault["kind"])), file=file)
    if _FULL.search(text):
        return StorageFullError(
            "no space left on the device while writing", hint="free some space and run the command again"
        )
    if lost := _LOST.search(text):
        return EngineError(
            f"an executor of Spark's was lost: {one_line(lost[1], _LONGEST)}",
            hint="run the command again; where memory was short, with more: spark.executor.memory",
        )
    return EngineError(f"Spark failed: {one_line(first_line(error), _LONGEST)}")


# A function of numbers, run by Spark's workers: its input and output are files.

_MOST_TASKS = 1_000
# Instead of the number of a call, where it raised an error.
_FAILED = -1


def task_results(
    session: SparkSession, function: Callable[[int], T], count: int, *, file: str | None = None
) -> list[T]:
    """The results of `function` for each number below `count`, called by workers.

    Raises:
        BadInputError: what it marked as the fault of an input (`file`).
        EngineError: Spark failed. And what the function raises.
    """
    numbers = session.range(0, count, 1, min(count, _MOST_TASKS))
    said = numbers.mapInArrow(functools.partial(_call, function=function), "number long, said binary")
    try:
        rows = run_job(session, said.collect)
    except Exception as error:
        raise explain(error, file=file) from error
    results = {row["number"]: pickle.loads(row["said"]) for row in rows}  # noqa: S301 - by our own tasks
    if _FAILED in results:
        raise results[_FAILED]
    return [results[number] for number in range(count)]


def _call(batches: Iterator[pa.RecordBatch], function: Callable[[int], object]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    def said(number: int, what: object) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": [number], "said": [pickle.dumps(what)]})

    try:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield said(number, function(number))
    except OdfchainError as error:
        yield said(_FAILED, error)
