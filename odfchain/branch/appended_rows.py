"""Merging where rows have no primary key: the rows that one side added are appended, in their order.

There are no conflicts. What was merged before is not appended again: of equal rows only so many are taken as
the source has more than the base. Source: RFC-036.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from odfchain.branch.intervals import Interval, MergedColumns, interval_batches
from odfchain.branch.merge_bases import MergedState, MergeInput
from odfchain.digest.row_hash import PAIR, Numbers, hash_rows
from odfchain.errors import IngestError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import OperationType
from odfchain.model.events import AddData
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import is_merge_state
from odfchain.slices.rows_in_force import takes_back
from odfchain.text import one_line


def appended_batches(
    asked: MergeInput, intervals: Sequence[Interval], columns: MergedColumns
) -> Iterator[pa.RecordBatch]:
    """The rows that a merge appends: operation and data columns, a bounded number at a time.

    Raises:
        IngestError: the source takes rows back, or both sides took in the same source.
    """
    _, place = asked.ways[asked.base.block, asked.source]
    if place is None:
        return
    _refuse_doubling(asked, intervals)
    taken = None
    if not _follows_base(asked):
        taken = taken_rows(asked, [_hashed(interval, columns) for interval in intervals])
    start = 0
    for batch in interval_batches(intervals[place], columns):
        if takes_back(batch.column(1).to_numpy()).any():
            raise IngestError(
                "the source takes rows back, and without a primary key nothing says which of ours they are",
                hint="declare a primary key, or record on the target what is to be taken back",
            )
        rows = batch if taken is None else batch.filter(pa.array(taken[start : start + batch.num_rows]))
        start += batch.num_rows
        added = pa.array(np.full(rows.num_rows, OperationType.APPEND.code, dtype=np.int32))
        yield pa.RecordBatch.from_arrays(
            [added, *rows.columns[2:]], [columns.names.operation_type_column, *rows.schema.names[2:]]
        )


def appended_rows(asked: MergeInput, intervals: Sequence[Interval], columns: MergedColumns) -> pa.Table:
    """The same as a table; errors as `appended_batches`."""
    operation = pa.field(columns.names.operation_type_column, pa.int32())
    return pa.Table.from_batches(
        appended_batches(asked, intervals, columns), pa.schema([operation, *columns.data])
    )


def _follows_base(asked: MergeInput) -> bool:
    """Whether the source's chain goes on from the base, so that all it added since is new."""
    return not asked.base.more and asked.ways[asked.base.block, asked.source][0] is None


def _refuse_doubling(asked: MergeInput, intervals: Sequence[Interval]) -> None:
    sides = [asked.ways[asked.base.block, block][1] for block in (asked.target, asked.source)]
    taken_in = [_sources(intervals[place]) if place is not None else set() for place in sides]
    if both := sorted(set.intersection(*taken_in)):
        raise IngestError(
            f"both sides took in rows of the source {one_line(both[0])!r}: merged, they would be there twice",
            hint="take a source in on one branch only, and merge that one into the others",
        )


def _sources(interval: Interval) -> set[str]:
    """The sources whose state moved on with rows."""
    before = DatasetState.read(interval.dataset.chain, interval.after).source_state
    found = set()
    for _, block in interval.blocks():
        event = block.event
        if isinstance(event, AddData) and not is_merge_state(event.new_source_state):
            state = event.new_source_state
            if event.new_data is not None and state is not None and state != before:
                found.add(state.source_name)
            before = state
    return found


def taken_rows(asked: MergeInput, rows: Sequence[tuple[Numbers, Numbers]]) -> Numbers:
    """Which rows of the source's interval are not in the base.

    `rows` are the hashes of each interval's rows, and whether a row is added (1) or taken back (-1).
    """
    _, place = asked.ways[asked.base.block, asked.source]
    hashes, signs = zip(*rows, strict=True)
    _, code = np.unique(np.concatenate(hashes), return_inverse=True)
    kinds = int(code.max()) + 1 if len(code) else 0
    ends = np.cumsum([len(part) for part in hashes])
    codes = np.split(code, ends[:-1])
    nets = [
        np.bincount(part, weights=sign, minlength=kinds).astype(np.int64)
        for part, sign in zip(codes, signs, strict=True)
    ]
    nothing = np.zeros(kinds, dtype=np.int64)

    def way(one: Multihash, other: Multihash) -> Numbers:
        back, on = (nothing if p is None else nets[p] for p in asked.ways[one, other])
        found: Numbers = on - back
        return found

    def state(base: MergedState) -> Numbers:
        """How many of each row a base has more than its first block."""
        more = nothing
        for block, inner in base.more:
            more = more + np.maximum(way(inner.block, block) - state(inner), 0)
        return more

    wanted = np.maximum(way(asked.base.block, asked.source) - state(asked.base), 0)
    mine = codes[place] if place is not None else np.zeros(0, dtype=np.int64)
    # of equal rows the last ones: those before came from what is merged already
    order = np.argsort(mine, kind="stable")
    count = np.bincount(mine, minlength=kinds)
    rank = np.empty(len(mine), dtype=np.int64)
    rank[order] = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count)
    found: Numbers = rank >= (count - wanted)[mine]
    return found


def _hashed(interval: Interval, columns: MergedColumns) -> tuple[Numbers, Numbers]:
    """The hash of each row, and whether it is added (1) or taken back (-1)."""
    found, signs = [np.zeros(0, PAIR)], [np.zeros(0, dtype=np.int64)]
    for batch in interval_batches(interval, columns):
        found.append(hash_rows(batch, set(batch.schema.names[:2])))
        signs.append(np.where(takes_back(batch.column(1).to_numpy()), -1, 1))
    return np.concatenate(found), np.concatenate(signs)
