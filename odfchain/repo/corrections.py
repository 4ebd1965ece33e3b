"""What is taken back was there: a retraction, or the old half of a correction, equals a row that is in force.

Rows are equal by all columns but offset, operation and system time. A row is in force from its +A or +C until
a -R or -C with the same values takes it back. Commits of what an engine brought and check 10 of verification
use this one rule. Slices are decoded once more for it, and what is kept are hashes of the rows that are taken
back and of the rows that look like them, so memory follows the number of retractions.
Source: specification "Retractions and Corrections".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.digest.row_hash import Numbers, hash_rows
from odfchain.model.events import DatasetVocabulary, OffsetInterval
from odfchain.slices.reader import open_parquet

PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])
"""The hash of a row as one value."""


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A slice as a file that can be relied on."""

    path: Path
    vocabulary: DatasetVocabulary
    interval: OffsetInterval


def taken_back_in_vain(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], *, in_force: bool = True
) -> Numbers:
    """Offsets of the rows of `asked` that take back what is not in force, in order.

    `slices` are all of the dataset, oldest first, `asked` some of them. Without `in_force` the row that is
    taken back may have been taken back before.

    Raises:
        BadInputError: a slice cannot be read, or becomes more than the limits allow.
        pyarrow.ArrowException, KeyError: it lacks a column, or has it twice.
        MemoryError: there are too many of them.
    """
    taken = [(offsets[back], hashes[back]) for item in asked for offsets, back, hashes in rows_of(item)]
    taken = [found for found in taken if len(found[0])]
    if not taken:
        return np.zeros(0, dtype=np.uint64)
    wanted = np.unique(np.concatenate([hashes for _, hashes in taken]))
    events: list[tuple[Numbers, Numbers, Numbers]] = []
    last = max(int(offsets[-1]) for offsets, _ in taken)
    for item in slices:
        if item.interval.start > last:
            break
        for offsets, back, pairs in rows_of(item):
            # one half first: most rows are taken back by nothing
            like = np.isin(pairs["low"], wanted["low"])
            if like.any():
                like[like] = np.isin(pairs[like], wanted)
                events.append((offsets[like], np.where(back[like], -1, 1), pairs[like]))
    wrong = _in_vain(events, in_force=in_force)
    within = np.zeros(len(wrong), dtype=bool)
    for item in asked:
        within |= (wrong >= item.interval.start) & (wrong <= item.interval.end)
    found: Numbers = wrong[within]
    return found


def _in_vain(events: Sequence[tuple[Numbers, Numbers, Numbers]], *, in_force: bool) -> Numbers:
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


def rows_of(item: SliceFile) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """(offsets, whether each row takes another back, hashes as `PAIR`), batch by batch.

    Raises:
        pyarrow.ArrowException, OSError, ValueError, KeyError: it cannot be read.
    """
    names = item.vocabulary
    for batch in data_batches(item.path):
        operations = batch.column(names.operation_type_column).to_numpy(zero_copy_only=False)
        offsets = batch.column(names.offset_column).to_numpy(zero_copy_only=False)
        back = (operations == 1) | (operations == 2)
        hashes = np.ascontiguousarray(hash_rows(batch, set(names.columns[:3]))).view(PAIR).reshape(-1)
        yield offsets.astype(np.uint64), back, hashes


def data_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a bounded number at a time.

    Raises:
        BadInputError: it cannot be read, or becomes more than the limits allow.
    """
    with open_parquet(path) as file:
        yield from file.batches()
