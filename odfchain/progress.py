"""How long work reports what it is doing, which the edge shows or not; and a thread for it to run on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Progress(Protocol):
    """Receives phases and steps; must be cheap and may be called from worker threads."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins; `total` is the number of steps when it is known."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the present phase are done."""

    def note(self, text: str) -> None:
        """Something the user should know, whether progress is shown or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """How far Spark's workers are with a step, and how much there is to do, where that is known."""

    step: str
    """The activity: `Reading flights.csv`."""
    rows: int = 0
    """Rows that were read, taken from the step before, or written; of tasks that have ended at least."""
    total_rows: int | None = None
    read_bytes: int = 0
    """Bytes that the step has read."""
    total_bytes: int | None = None
    tasks: int = 0
    """Tasks of the step that have ended."""
    total_tasks: int = 0
    """Tasks of what Spark has begun of the step; there may be more."""
    fraction: float | None = None
    """The part of the step that is done, from 0 to 1."""
    seconds_left: float | None = None
    """Until the end of this step, not of what comes after it."""


class WorkProgress(Progress, Protocol):
    """A `Progress` that also receives how far Spark is, about twice a second while it works."""

    @property
    def shows_work(self) -> bool:
        """True if anybody looks; nothing is asked of Spark otherwise."""

    def work(self, done: WorkDone) -> None:
        """Spark is so far; called from another thread, and whatever it raises ends that alone."""


def shows_work(progress: Progress) -> TypeGuard[WorkProgress]:
    """True if Spark should be asked how far it is."""
    return bool(getattr(progress, "shows_work", False))


_LEAST_FRACTION = 0.05
_LEAST_SECONDS = 3.0


def time_left(fraction: float | None, took: float, ago: float) -> float | None:
    """How long a step goes on if the rest is as fast as what is done [s]; None where that says little.

    The `fraction` was reached `took` seconds after the step began, `ago` seconds before now. Between two
    looks that bring nothing new the estimate runs down; once it has, there is none. None too in the first
    3 s, before a twentieth is done, where the end is not known, and where there was more than was said.
    """
    if fraction is None or not _LEAST_FRACTION <= fraction <= 1 or took + ago < _LEAST_SECONDS:
        return None
    left = took * (1 - fraction) / fraction - ago
    return left if left >= 0 else None


_BETWEEN_REPORTS = 0.5


def reported(
    pieces: Iterable[T],
    progress: Progress,
    step: str,
    *,
    rows: Callable[[T], int] = lambda _: 1,
    total_rows: int | None = None,
    read: Callable[[], int] = lambda: 0,
    size: int | None = None,
) -> Iterator[T]:
    """The pieces; `progress` gets twice a second how many rows they had, and the bytes `read` of `size`."""
    if not shows_work(progress):
        yield from pieces
        return
    began = said = time.monotonic()
    count = 0
    for piece in pieces:
        yield piece
        count += rows(piece)
        now = time.monotonic()
        if now - said >= _BETWEEN_REPORTS:
            said, done = now, read()
            part = done / size if size else count / total_rows if total_rows else None
            progress.work(WorkDone(
                step=step, rows=count, total_rows=total_rows, read_bytes=done, total_bytes=size,
                fraction=part, seconds_left=time_left(part, now - began, 0),
            ))  # fmt: skip


class SideBySide:
    """Pieces of work that run at the same time, whose rows, bytes and tasks are reported as one sum."""

    def __init__(self, progress: Progress, step: str) -> None:
        self._progress, self._step = progress, step
        self._parts: dict[int, tuple[int, ...]] = {}  # rows, bytes, tasks, and tasks that have begun
        self._begun = 0
        self._lock = threading.Lock()

    def part(self) -> Progress:
        """The progress of one of them; its phases and notes are its own."""
        self._begun += 1
        return _Share(self, self._begun) if shows_work(self._progress) else SILENT

    def add(self, number: int, done: WorkDone) -> None:
        """One of them is so far; of what it did in an earlier step the most counts."""
        with self._lock:
            counts = done.rows, done.read_bytes, done.tasks, done.total_tasks
            self._parts[number] = tuple(map(max, counts, self._parts.get(number, counts)))
            rows, read, tasks, total = map(sum, zip(*self._parts.values(), strict=True))
            if shows_work(self._progress):
                self._progress.work(
                    WorkDone(step=self._step, rows=rows, read_bytes=read, tasks=tasks, total_tasks=total)
                )


class Silent:
    """Ignores everything."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Ignored."""

    def advance(self, steps: int = 1) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""


SILENT = Silent()


class _Share(Silent):
    shows_work = True

    def __init__(self, whole: SideBySide, number: int) -> None:
        self._whole, self._number = whole, number

    def work(self, done: WorkDone) -> None:
        self._whole.add(self._number, done)


class DeferredProgress:
    """Keeps reports until there is a `Progress` to show them, and interrupts work that is not needed."""

    def __init__(self, at_once: Progress | None = None) -> None:
        """With `at_once` phases and steps are shown there from the beginning, and notes alone are kept."""
        self._work = at_once
        self._shown: Progress | None = None
        """Where notes are shown."""
        self._phase: tuple[str, int | None] | None = None
        self._steps = 0
        self._notes: list[str] = []
        self._stopped = False
        self._lock = threading.Lock()

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins; the last one is kept."""
        self.check()
        with self._lock:
            self._phase, self._steps = (name, total), 0
            if self._work is not None:
                self._work.phase(name, total)

    def advance(self, steps: int = 1) -> None:
        """Some steps of the present phase are done."""
        self.check()
        with self._lock:
            self._steps += steps
            if self._work is not None:
                self._work.advance(steps)

    def note(self, text: str) -> None:
        """Something the user should know; all of them are kept."""
        self.check()
        with self._lock:
            if self._shown is None:
                self._notes.append(text)
            else:
                self._shown.note(text)

    def show_on(self, progress: Progress) -> None:
        """Show on `progress` what was reported and not shown so far, and all that follows."""
        with self._lock:
            if self._work is None and self._phase is not None:
                progress.phase(*self._phase)
                progress.advance(self._steps)
            notes, self._notes = self._notes, []
            self._work = self._shown = progress
            for text in notes:
                progress.note(text)

    def stop(self) -> None:
        """Interrupt the work at its next report."""
        self._stopped = True

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if it was stopped."""
        if self._stopped:
            raise KeyboardInterrupt


def on_a_thread(work: Callable[[], T], name: str) -> Future[T]:
    """The future result of `work`, on a thread that ends with the process at the latest."""
    from concurrent.futures import Future  # noqa: PLC0415 - not all commands load it

    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
