"""Looking at Spark while it works, for whoever shows progress.

A thread of ours asks about twice a second, and only where somebody looks. Java never calls us: there is no
callback server, and nothing that could hold a job up. Jobs are found by the tag of their action
(`odfchain.spark.job`), so two commands in one session do not see each other's. What a worker of this machine
has written stands in a file of eight bytes. Over Spark Connect the server tells by itself.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from odfchain.progress import Progress, WorkDone, shows_work
from odfchain.spark.session_kind import is_local, is_remote
from odfchain.spark.status_store import JavaStatus
from odfchain.spark.tally import Stage, Steps, Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PERIOD = 0.5
"""Seconds between two looks: as fast as people read, and shorter actions are never looked at."""

_END_SECONDS = 0.5
"""How long the end of an action waits for the last look."""


class _Watch:
    """Who looks at the actions of a thread, and the file in which a worker counts what it writes."""

    def __init__(
        self, tell: Callable[[WorkDone], None], steps: Steps, resources: contextlib.ExitStack
    ) -> None:
        self.tell = tell
        self.steps = steps
        self._resources = resources
        self._counter: Path | None = None

    def counter(self) -> str:
        """The file for the rows of the action that comes, with none counted."""
        if self._counter is None:
            handle, name = tempfile.mkstemp(prefix="odfchain-rows-")
            os.close(handle)
            self._counter = Path(name)
            self._resources.callback(self._counter.unlink, missing_ok=True)
        self._counter.write_bytes(b"")
        return str(self._counter)

    def written(self) -> int:
        """Rows that a worker has taken to write."""
        return int.from_bytes(self._counter.read_bytes(), "little") if self._counter is not None else 0


_watch: ContextVar[_Watch | None] = ContextVar("odfchain-watch", default=None)


@contextlib.contextmanager
def watched(progress: Progress, steps: Steps) -> Iterator[None]:
    """Actions that `run_job` runs from this thread are told to `progress`, if it shows how far they are."""
    if not shows_work(progress):
        yield
        return
    with contextlib.ExitStack() as resources:
        token = _watch.set(_Watch(progress.work, steps, resources))
        resources.callback(_watch.reset, token)
        yield


def is_watched() -> bool:
    """Whether somebody looks at the actions of this thread."""
    return _watch.get() is not None


def row_counter(session: SparkSession) -> str | None:
    """The file in which a worker of this machine counts rows (`counted`); None where nobody looks."""
    watch = _watch.get()
    try:
        if watch is None or not is_local(session):
            return None
        return watch.counter()
    except Exception:  # noqa: BLE001 - progress never fails a command
        return None


def counted(batches: Iterator[pa.RecordBatch], counter: str | None) -> Iterator[pa.RecordBatch]:
    """The batches; how many rows passed stands in the file, if it can be written."""
    if counter is None:
        yield from batches
        return
    rows = 0
    with contextlib.ExitStack() as stack:
        file: int | None = None
        with contextlib.suppress(OSError):
            file = os.open(counter, os.O_WRONLY)
            stack.callback(os.close, file)
        for batch in batches:
            rows += batch.num_rows
            if file is not None:
                with contextlib.suppress(OSError):
                    os.pwrite(file, rows.to_bytes(8, "little"), 0)
            yield batch


@contextlib.contextmanager
def following(session: SparkSession, tag: str) -> Iterator[None]:
    """While jobs with this tag run, whoever looks at this thread's actions is told how far they are."""
    watch = _watch.get()
    if watch is None:
        yield
    elif not is_remote(session):
        looking = Looking(lambda: JavaStatus(session, tag), watch.steps, watch.written, watch.tell, _PERIOD)
        with looking:
            yield
    else:
        with _told_by_server(session, watch):
            yield


class Status(Protocol):
    """What can be asked of one action."""

    def stages(self) -> Sequence[Stage]:
        """The stages that have begun, and have not ended at the last look."""

    def bytes_read(self) -> int:
        """Bytes read since the beginning, counted by others than Spark; 0 where nobody does."""


class Looking:
    """A thread that looks at an action from time to time, between entering and leaving.

    Its errors end it, and nothing else. Once it is left, nothing more is told.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        steps: Steps,
        written: Callable[[], int],
        tell: Callable[[WorkDone], None],
        period: float,
    ) -> None:
        self._status, self._written, self._tell = status, written, tell
        self._tally = Tally(steps)
        self._period = period
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

    def _look(self, status: Status) -> None:
        stages = status.stages()
        done = self._tally.add(
            stages, now=time.monotonic(), read=status.bytes_read(), written=self._written()
        )
        with self._telling:
            if done is not None and not self._closed:
                self._tell(done)


@contextlib.contextmanager
def _told_by_server(session: Any, watch: _Watch) -> Iterator[None]:
    """A server of Spark Connect tells of the operations of a session by itself."""
    tally = Tally(watch.steps)

    def told(stages: Iterable[Any] | None, **_: Any) -> None:
        with contextlib.suppress(Exception):
            done = tally.add(map(_of_server, stages or ()), now=time.monotonic())
            if done is not None:
                watch.tell(done)

    session.registerProgressHandler(told)
    try:
        yield
    finally:
        session.removeProgressHandler(told)


def _of_server(stage: Any) -> Stage:
    return Stage(
        number=stage.stage_id, reads=stage.num_bytes_read > 0, ended=stage.done,
        tasks=stage.num_tasks, ended_tasks=stage.num_completed_tasks, read_bytes=stage.num_bytes_read,
    )  # fmt: skip
