"""What Spark says of the stages of one action, added up for people: rows, bytes, tasks, time left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from odfchain.progress import WorkDone, time_left


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the steps of Spark's actions are called, and what is known of the reading before it begins."""

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
        """Steps that nobody tells apart."""
        return cls(reading=name, merging=name, writing=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What Spark says of a stage that has begun."""

    number: int
    reads: bool
    """Whether it takes no rows from other stages."""
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


_OVER = 1.05
"""Each task reads beyond the end of its part of a text, to the end of the line."""

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
        """How far the action is at a time [s]; None as long as nothing has begun.

        `read` are bytes and `written` rows that others than Spark have counted.
        """
        for stage in stages:
            older = self._stages.get(stage.number)
            self._stages[stage.number] = stage if older is None else stage.with_older(older)
        self._read = max(self._read, read, sum(s.read_bytes for s in self._stages.values()))
        self._written = max(self._written, written)
        if not self._stages:
            return None
        return self._timed(self._of_step(), now)

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
        """With the time that is left of the step."""
        if done.step != self._step:
            self._step, self._began, self._risen, self._fraction = done.step, now, now, None
        if done.fraction is not None and done.fraction > (self._fraction or 0):
            self._fraction, self._risen = done.fraction, now
        known = self._fraction if done.fraction is not None else None
        left = time_left(known, self._risen - self._began, now - self._risen)
        return dataclasses.replace(done, fraction=known, seconds_left=left)


def _at_least(total: int | None, done: int) -> int | None:
    """The total, where it is one: what is done is part of it."""
    return total if total is not None and done <= total else None


def _part(done: int, total: int | None) -> float | None:
    return done / total if total and done else None
