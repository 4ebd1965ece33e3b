"""Check 10: a retraction, or the old half of a correction, equals a row that is in force.

Rows are equal by all columns but offset, operation and system time. A row is in force from its +A or +C until
a -R or -C with the same values takes it back; where there is a primary key this is the row of that key. Where
sources have several keys, what one of them took back another may take back again, so the row must only have
been there. Only datasets with retractions pay for it: their slices are decoded once more, and what is kept
are hashes of the rows that are taken back and of the rows that look like them, so memory follows the number
of retractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.audit.checks import CORRECTIONS
from odfchain.audit.form import Form
from odfchain.audit.report import Report
from odfchain.audit.row_hash import Numbers, hash_rows
from odfchain.audit.slices import UNREADABLE, SliceJob, SliceOutcome
from odfchain.audit.walk import StoredChain
from odfchain.dataset.files import DatasetFiles
from odfchain.ingest.merge import primary_key
from odfchain.limits import AUDIT
from odfchain.metadata.events import AddPushSource, SetPollingSource

_BATCH_ROWS = 65_536
_PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])


@dataclass(frozen=True, slots=True)
class ReadableSlice:
    """A slice whose rows were found to be as its block says, and the operations in it."""

    job: SliceJob
    form: Form
    path: Path
    operations: tuple[int, ...]

    @property
    def takes_back(self) -> int:
        """How many rows of it take others back."""
        return self.operations[1] + self.operations[2]


def readable_slices(
    dataset: DatasetFiles, jobs: Sequence[SliceJob], outcomes: Mapping[int, SliceOutcome]
) -> list[ReadableSlice]:
    """The slices whose rows can be relied on, oldest first."""
    found = []
    for job in jobs:
        outcome = outcomes.get(job.number)
        if outcome is None or outcome.operations is None or outcome.faults or job.form is None:
            continue
        path = Path(dataset.data.locate(job.slice.physical_hash))
        found.append(ReadableSlice(job, job.form, path, outcome.operations))
    return found


def has_several_keys(chain: StoredChain) -> bool:
    """Whether the sources of a dataset tell its records apart by different keys."""
    events = (found.block.event for found in chain.blocks if found.sound)
    keys = {primary_key(e.merge) for e in events if isinstance(e, AddPushSource | SetPollingSource)}
    return len(keys) > 1


def check_corrections(
    slices: Sequence[ReadableSlice], report: Report, *, complete: bool, in_force: bool = True
) -> None:
    """Every row that takes another back finds it; `complete` when the slices are all that there are.

    Without `in_force` the row may have been taken back before.
    """
    asked = [item for item in slices if item.takes_back]
    if not asked:
        return
    if not complete:
        report.skip([CORRECTIONS], "not all slices could be read that may have the rows which are taken back")
        return
    count = sum(item.takes_back for item in asked)
    if count > AUDIT.retractions:
        report.skip(
            [CORRECTIONS], f"{count:,} rows are taken back; no more than {AUDIT.retractions:,} are compared"
        )
        return
    try:
        wrong = _without_partner(slices, in_force=in_force)
    except MemoryError:
        report.skip([CORRECTIONS], "there is not enough memory to compare the rows that are taken back")
        return
    except UNREADABLE as error:
        report.skip([CORRECTIONS], f"a slice changed while it was read: {str(error).partition(chr(10))[0]}")
        return
    for item in asked:
        interval = item.job.slice.offset_interval
        mine = wrong[(wrong >= interval.start) & (wrong <= interval.end)]
        if len(mine):
            where = "in force" if in_force else "before"
            message = (
                f"row at offset {int(mine[0]):,} takes back values that no row {where} has"
                f"{f' ({len(mine):,} such rows)' if len(mine) > 1 else ''}"
            )
            report.fault(CORRECTIONS, item.path, message, item.job.number)


def _without_partner(slices: Sequence[ReadableSlice], *, in_force: bool) -> Numbers:
    """Offsets of the rows that take back what is not in force, in order."""
    taken = [
        (offsets[back], hashes[back])
        for item in slices
        if item.takes_back
        for offsets, back, hashes in _rows(item)
    ]
    wanted = np.unique(_pairs(np.concatenate([hashes for _, hashes in taken])))
    events: list[tuple[Numbers, Numbers, Numbers]] = []
    last = max(int(offsets[-1]) for offsets, _ in taken if len(offsets))
    for item in slices:
        if item.job.slice.offset_interval.start > last:
            break
        for offsets, back, hashes in _rows(item):
            pairs = _pairs(hashes)
            # one half first: most rows are taken back by nothing
            like = np.isin(pairs["low"], wanted["low"])
            if like.any():
                like[like] = np.isin(pairs[like], wanted)
                events.append((offsets[like], np.where(back[like], -1, 1), pairs[like]))
    offsets = np.concatenate([item[0] for item in events])
    steps = np.concatenate([item[1] for item in events])
    _, group = np.unique(np.concatenate([item[2] for item in events]), return_inverse=True)
    order = np.lexsort((offsets, group))
    offsets, steps, group = offsets[order], steps[order], group[order]
    # within each group of equal rows the number in force, which one bad row must not lower for the others
    wrong = []
    level, now = 0, -1
    for offset, step, key in zip(offsets.tolist(), steps.tolist(), group.tolist(), strict=True):
        level, now = (0, key) if key != now else (level, now)
        if step < 0 and level == 0:
            wrong.append(offset)
        elif step > 0 or in_force:
            level += step
    return np.array(sorted(wrong), dtype=np.uint64)


def _pairs(hashes: Numbers) -> Numbers:
    return np.ascontiguousarray(hashes).view(_PAIR).reshape(-1)


def _rows(item: ReadableSlice) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """(offsets, whether each row takes another back, hashes), batch by batch."""
    for batch in data_batches(item.path):
        operations = batch.column(item.form.vocabulary.operation_type_column).to_numpy(zero_copy_only=False)
        offsets = batch.column(item.form.vocabulary.offset_column).to_numpy(zero_copy_only=False)
        back = (operations == 1) | (operations == 2)
        yield offsets.astype(np.uint64), back, hash_rows(batch, set(item.form.vocabulary.columns[:3]))


def data_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a bounded number at a time."""
    with pq.ParquetFile(path) as file:
        yield from (batch for batch in file.iter_batches(_BATCH_ROWS) if batch.num_rows)
