"""A step that reads much as several that follow each other, computed side by side (RFC-049).

    pieces    blocks of the input with so many bytes                        footers are read
    rows      how many records come of each piece                           a query, side by side
    steps     pieces whose records fit into one slice
    execute   each step as it will be replayed, offsets known beforehand    side by side

Only a query that treats every row of one input by itself is cut: what its steps bring, one after the other,
is what one step would. A step ends at a block of its input, as blocks of the chain name it. Where that is
follows from the chain, the footers, the counts and the limit, and from nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from odfchain.engine.interface import CountingEngine, TransformEngine
from odfchain.errors import EngineError
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.progress import Progress, SideBySide, Silent
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.system_columns import SystemColumns
from odfchain.slices.reader import read_footer
from odfchain.slices.writer import notes_on_cut_times
from odfchain.transform.backlog import read_backlog
from odfchain.transform.execute import ExecutedStep, execute_step
from odfchain.transform.planner import PlannedStep, cut_after
from odfchain.transform.request import build_request

T = TypeVar("T")

_MOST_AT_ONCE = 64
"""Threads that wait for Spark [count]."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """What steps are executed with; nothing is committed."""

    dataset: DatasetFiles
    engine: TransformEngine
    folder: Path
    """An empty one, for what is staged."""
    system_time: Timestamp
    system_columns: SystemColumns
    progress: Progress


def executed_steps(run: StepRun, step: PlannedStep, max_bytes: int) -> list[tuple[PlannedStep, ExecutedStep]]:
    """The step, or several in its place whose slices have about `max_bytes` of values, executed."""
    steps = _cut(run, step, max_bytes) if max_bytes else [step]
    if len(steps) == 1:
        return [(step, _execute(run, step, run.folder, run.progress))]
    work = [functools.partial(_execute, run, each) for each in steps]
    done = _side_by_side(run, "Computing", work)
    known = step.prev_watermark
    settled = []
    for each, following, executed in zip(steps, [*steps[1:], None], done, strict=True):
        new = executed.slice
        if new is None or (following is not None and following.next_offset != new.offset_interval.end + 1):
            raise EngineError(
                f"{run.dataset.alias}: a step brought other records than were counted before it",
                hint="this is a fault of odfchain; please report it. Meanwhile `slice.maxBytes: 0` avoids it",
            )
        known = max((mark for mark in (known, executed.watermark) if mark is not None), default=None)
        settled.append((each, dataclasses.replace(executed, watermark=known)))
    finer: Counter[str] = Counter()
    for executed in done:
        finer += Counter(executed.facts.finer if executed.facts is not None else {})
    for note in notes_on_cut_times(finer):
        run.progress.note(note)
    return settled


def _execute(run: StepRun, step: PlannedStep, folder: Path, progress: Progress) -> ExecutedStep:
    return execute_step(
        step, run.dataset, run.engine, folder, run.system_time, progress, run.system_columns, to_commit=True
    )


# --- where a step is cut -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """Blocks of an input up to one with data."""

    end: Multihash
    rows: int
    size: int
    """Of its records, not compressed [bytes]."""


def _cut(run: StepRun, step: PlannedStep, max_bytes: int) -> list[PlannedStep]:
    """The steps that take the place of one, in order."""
    pieces = _pieces(step, max_bytes)
    if len(pieces) < 2 or not isinstance(run.engine, CountingEngine):
        return [step]
    planned = cut_after(run.dataset, step, [piece.end for piece in pieces[:-1]])
    work = [functools.partial(_count, run, run.engine, each) for each in planned]
    notes: dict[str, None] = {}
    counts = [rows for rows in _side_by_side(run, "Counting", work, notes) if rows is not None]
    for note in notes:
        run.progress.note(note)
    if len(counts) < len(pieces):
        return [step]
    ends, wanted = zip(*_fitting(pieces, counts, max_bytes), strict=True)
    if len(ends) == 1:
        return [step]
    offsets = itertools.accumulate(wanted, initial=step.next_offset)
    return [
        dataclasses.replace(each, prev_offset=offset - 1 if offset else None)
        for each, offset in zip(cut_after(run.dataset, step, ends[:-1]), offsets, strict=False)
    ]


def _fitting(pieces: Sequence[_Piece], counts: Sequence[int], max_bytes: int) -> list[tuple[Multihash, int]]:
    """(the last block, how many records come) of pieces whose records fit into one slice together.

    A record counts as much as a row that is read. Where nothing comes of a piece, it goes with another.
    """
    found: list[tuple[Multihash, int]] = []
    size = 0.0
    for piece, rows in zip(pieces, counts, strict=True):
        more = piece.size * rows / piece.rows
        if found and not (size and more and size + more > max_bytes):
            found[-1] = piece.end, found[-1][1] + rows
            size += more
        else:
            found.append((piece.end, rows))
            size = more
    return found


def _pieces(step: PlannedStep, max_bytes: int) -> list[_Piece]:
    """The blocks of the one input that a step reads, as many together as have at most so many bytes.

    None where the step cannot be cut.
    """
    if len(step.inputs) != 1 or step.output is not None or step.prev_checkpoint is not None:
        return []
    (item,) = step.inputs
    end = item.event.new_block_hash
    if len(item.slices) < 2 or end is None:
        return []
    backlog = read_backlog(item.dataset.chain, item.event.prev_block_hash, end)
    assert backlog is not None  # noqa: S101 - it was planned
    found: list[_Piece] = []
    for name, block in backlog.blocks:
        if (data := block.new_data) is None:
            continue
        footer, _ = read_footer(item.dataset.data.verified_path(data.physical_hash))
        size = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
        rows = data.offset_interval.count
        if found and found[-1].size + size <= max_bytes:
            rows, size = found[-1].rows + rows, found.pop().size + size
        found.append(_Piece(name, rows, size))
    return found


def _count(
    run: StepRun, engine: CountingEngine, step: PlannedStep, folder: Path, progress: Progress
) -> int | None:
    request = build_request(
        step, run.dataset, folder, system_time=run.system_time,
        new_data_path=folder / "data", new_checkpoint_path=folder / "checkpoint",
    )  # fmt: skip
    return engine.rows_of(request, progress=progress)


# --- side by side --------------------------------------------------------------------------------------


class JobThreads(ThreadPoolExecutor):
    """Threads that are waited for; but not after Ctrl-C, which closes the engine under them."""

    def __init__(self, jobs: int) -> None:
        """As many threads as `jobs`, one at least."""
        super().__init__(max(1, jobs), thread_name_prefix="odfchain-steps")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not interrupted, cancel_futures=kind is not None)


class _Noted(Silent):
    """Keeps notes, each once."""

    def __init__(self, notes: dict[str, None]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        self._notes[text] = None


def _side_by_side(
    run: StepRun,
    phase: str,
    work: Sequence[Callable[[Path, Progress], T]],
    notes: dict[str, None] | None = None,
) -> list[T]:
    """What each piece of work returns, in order; each has a new folder."""
    run.progress.phase(phase, len(work))
    together = SideBySide(run.progress, phase)
    tasks = run.engine.tasks() if isinstance(run.engine, CountingEngine) else 1
    with JobThreads(min(len(work), tasks, _MOST_AT_ONCE)) as threads:
        waiting = []
        for number, each in enumerate(work):
            folder = run.folder / f"{phase.lower()}-{number}"
            folder.mkdir()
            progress = together.part() if notes is None else _Noted(notes)
            waiting.append(threads.submit(each, folder, progress))
        found = []
        for future in waiting:
            found.append(future.result())
            run.progress.advance()
    return found
