"""Spark actions that can be ended: by Ctrl-C, by a deadline, or by whoever has lost interest.

A command to the JVM that is interrupted while its answer is awaited leaves that answer in the connection for
the next command, PySpark's own clean-up first. So an action runs on a thread, which has a connection of its
own, and only the waiting for it is interrupted. Its jobs bear a tag that no others bear: what runs at the
same time in the same session is left alone, and whoever shows progress sees this action alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import EngineError
from odfchain.spark.session_kind import is_remote
from odfchain.spark.watching import following, is_watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_CANCEL_SECONDS = 10
"""How long a cancelled action may take to stop writing."""

_AGAIN_SECONDS = 0.2
"""An action that is between two jobs is cancelled when it has begun the next one."""


class Cancellation:
    """Ends an action from another thread; asked before it begins, the action ends at once."""

    def __init__(self) -> None:
        self._asked: Future[None] = Future()

    def cancel(self) -> None:
        """Ask for the end, which is soon; asking twice does no harm."""
        with contextlib.suppress(InvalidStateError):
            self._asked.set_result(None)


def on_a_thread(work: Callable[[], T], name: str) -> Future[T]:
    """What `work` will return or raise, on a thread that ends with the process at the latest."""
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
    """What `action` returns or raises; Ctrl-C cancels its jobs and is raised at once.

    Only the main thread is ever interrupted, so on any other one an action that nothing else can end simply
    runs. What is still running 10 s after it was cancelled is left to itself.
    """
    on_main = threading.current_thread() is threading.main_thread()
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
    """As `run_job`, on a thread of its own."""

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
    """Mark the jobs that this thread begins meanwhile."""
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
    """Mark all jobs of this thread."""
    if is_remote(session):
        session.addTag(tag)
    else:
        # a session's own tags are known to the thread alone that added them
        session.sparkContext.addJobTag(tag)


def _cancel(session: SparkSession, tag: str, result: Future[T]) -> None:
    """End the jobs with this tag, and wait until the action has noticed."""
    end = time.monotonic() + _CANCEL_SECONDS
    with contextlib.suppress(Exception):
        while not result.done() and time.monotonic() < end:
            if is_remote(session):
                session.interruptTag(tag)
            else:
                session.sparkContext.cancelJobsWithTag(tag)
            wait((result,), timeout=_AGAIN_SECONDS)


def _shown(seconds: float | None) -> str:
    """A length of time as a user writes it."""
    if seconds is None or seconds < 1:
        return f"{(seconds or 0) * 1_000:g} ms"
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
