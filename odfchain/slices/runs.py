"""Sorted runs of rows as files, where slices are cut in them, and the rows of a slice in their order.

Rows that become several slices are first left by each task as runs: files of Arrow batches with rows of one
partition in order. Where a slice ends follows from the rows of all runs in their total order, and from
nothing else: not from how many runs there are, nor from which row is in which. Source: RFC-049.

The order is that of the engine: ascending by one column after the other, nulls first, NaN as the largest
number, texts by their bytes.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.model.enums import CORRECT_TO
from odfchain.slices.bounds import BATCH_ROWS

BATCH_BYTES = 64 << 20
"""Rows that are handed on together take no more than that, give or take one [bytes]."""

_RUN_ROWS, _RUN_BYTES = 1 << 20, 128 << 20
"""What a task puts in order at a time, in memory."""
_SYSTEM_BYTES = 16
"""Of each row, that its offset and its system time take."""
_SIZES = "sizes"
"""The column of a run with the sizes of its rows so far."""

Numbers: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = tuple[int, ...]
"""How many rows of each run, its first ones."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a written run."""

    path: str
    rows: int
    size: int
    """Sum of the sizes of its rows [bytes]."""


def row_sizes(rows: pa.RecordBatch) -> Numbers:
    """What the values of each row take [bytes], with the system columns; it follows from the row alone."""
    return sum((_value_sizes(column) for column in rows.columns), np.full(rows.num_rows, _SYSTEM_BYTES))


def _value_sizes(values: pa.Array) -> Numbers:
    kind = values.type
    if pa.types.is_struct(kind):
        parts = (_value_sizes(part) for part in values.flatten())
        return sum(parts, np.zeros(len(values), np.int64))
    if pa.types.is_map(kind):
        kind = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        values = values.cast(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        within = np.append(0, np.cumsum(_value_sizes(values.flatten())))
        ends = np.cumsum(_lengths(pc.list_value_length(values)))
        return within[ends] - within[np.append(0, ends[:-1])] + 4 if len(ends) else ends
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        return _lengths(pc.binary_length(values)) + 4
    return np.full(len(values), 0 if pa.types.is_null(kind) else max(1, kind.bit_width // 8))


def _lengths(lengths: pa.Array) -> Numbers:
    found: Numbers = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def write_runs(
    batches: Iterable[pa.RecordBatch], columns: int, order: Sequence[int], folder: str
) -> Iterator[RunFacts]:
    """Put rows in order, so many at a time, and write them to new files in a folder.

    The first `columns` are those of the slice, whose sizes count; `order` are the numbers of those that the
    rows are ordered by.

    Raises:
        OSError: a file cannot be written; it is removed.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _RUN_ROWS or size >= _RUN_BYTES:
            yield _write_run(held, columns, order, folder)
            held, rows, size = [], 0, 0
    if rows:
        yield _write_run(held, columns, order, folder)


def _write_run(held: list[pa.RecordBatch], columns: int, order: Sequence[int], folder: str) -> RunFacts:
    table = pa.Table.from_batches(held)
    held.clear()
    indices = _sorted_indices(table.select(list(order)))
    if (np.diff(indices) == 1).all():
        pieces = iter(table.to_batches())
    else:
        table = table.combine_chunks()
        parts = (indices[first : first + BATCH_ROWS] for first in range(0, len(indices), BATCH_ROWS))
        pieces = (piece for part in parts for piece in table.take(pa.array(part)).to_batches())
    path, size = Path(folder) / f"run-{uuid.uuid4().hex}.arrow", 0
    sized = table.schema.append(pa.field(_SIZES, pa.int64()))
    try:
        with pa.ipc.new_file(str(path), sized) as sink:
            for piece in pieces:
                sizes = size + np.cumsum(row_sizes(piece.select(range(columns))))
                sink.write_batch(pa.record_batch([*piece.columns, pa.array(sizes)], schema=sized))
                size = int(sizes[-1])
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return RunFacts(str(path), table.num_rows, size)


class Run:
    """A run that was written, of which only what is asked for is read.

    Raises (at construction):
        OSError: the file cannot be read.
    """

    def __init__(self, path: str, order: Sequence[int]) -> None:
        """`order` are the numbers of the columns that the rows are ordered by."""
        self._file = pa.ipc.open_file(pa.memory_map(path))
        self._order = order
        self._batches = [self._file.get_batch(number) for number in range(self._file.num_record_batches)]
        self._starts = [0, *itertools.accumulate(batch.num_rows for batch in self._batches)]

    def __len__(self) -> int:
        rows: int = self._starts[-1]
        return rows

    def _at(self, row: int) -> tuple[pa.RecordBatch, int]:
        number = bisect.bisect_right(self._starts, row) - 1
        return self._batches[number], row - self._starts[number]

    def value(self, row: int, column: int) -> Any:
        """One value."""
        batch, within = self._at(row)
        return batch.column(column)[within].as_py()

    def key(self, row: int) -> tuple[Any, ...]:
        """What the row is ordered by; comparable with those of other rows."""
        batch, within = self._at(row)
        return tuple(_comparable(batch.column(column)[within]) for column in self._order)

    def size_of(self, rows: int) -> int:
        """Sum of the sizes of the first rows [bytes]."""
        if not rows:
            return 0
        batch, within = self._at(rows - 1)
        return int(batch.column(batch.num_columns - 1)[within].as_py())

    def rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows of an interval, with all columns."""
        for first, batch in zip(self._starts, self._batches, strict=False):
            low, high = max(start - first, 0), min(end - first, batch.num_rows)
            if low < high:
                yield batch.slice(low, high - low)


def _comparable(value: pa.Scalar) -> Any:
    """A value that Python orders as the engine does."""
    if not value.is_valid:
        return (False,)
    kind = value.type
    if pa.types.is_struct(kind):
        return (True, tuple(_comparable(part) for part in value.values()))
    if pa.types.is_list(kind):
        return (True, tuple(_comparable(item) for item in value.values))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return (True, value.as_buffer().to_pybytes())
    if pa.types.is_temporal(kind):
        return (True, value.value)
    plain = value.as_py()
    if pa.types.is_floating(kind):
        odd = math.isnan(plain)
        return (True, odd, 0 if odd else plain)
    return (True, plain)


# --- where slices are cut ------------------------------------------------------------------------------


def cuts(runs: Sequence[Run], operation: int, max_bytes: int) -> list[Rows]:
    """Where slices end: for each, how many rows of each run are in it and in those before it.

    Slices are of about the same size, at most `max_bytes` give or take one row. `operation` is the number of
    the operation's column: the two rows of a correction are in one slice.
    """
    everything = tuple(len(run) for run in runs)
    total = sum(run.size_of(len(run)) for run in runs)
    number = -(-total // max_bytes)
    found: list[Rows] = []
    for index in range(1, number):
        at = _whole_corrections(runs, _rows_within(runs, total * index // number), operation)
        if sum(at) > (sum(found[-1]) if found else 0):
            found.append(at)
    return [*found, everything]


def _rows_within(runs: Sequence[Run], size: int) -> Rows:
    """The first rows in the order of all that take no more than a size.

    In each run it is between `low` and `high`; each step compares with one row, which has at least a quarter
    of what is in question on either side, as the weighted median of the middles of runs.
    """
    low, high = [0] * len(runs), [len(run) for run in runs]
    while open_runs := [n for n in range(len(runs)) if low[n] < high[n]]:
        middles = sorted((runs[n].key((low[n] + high[n]) // 2), n) for n in open_runs)
        weights = list(itertools.accumulate(high[n] - low[n] for _, n in middles))
        pivot, own = middles[bisect.bisect_left(weights, weights[-1] / 2)]
        upto = [
            bisect.bisect_right(range(len(run)), pivot, low[n], high[n], key=run.key)
            for n, run in enumerate(runs)
        ]
        if sum(run.size_of(rows) for run, rows in zip(runs, upto, strict=True)) <= size:
            low = upto
        else:
            high = upto
            high[own] -= 1  # no two rows are ordered alike, and this is the last one
    return tuple(low)


def _whole_corrections(runs: Sequence[Run], at: Rows, operation: int) -> Rows:
    """The cut, one row earlier where it would part the old values of a correction from the new ones."""
    after = [
        (run.key(rows), run.value(rows, operation))
        for run, rows in zip(runs, at, strict=True)
        if rows < len(run)
    ]
    if not sum(at) or not after or min(after)[1] != CORRECT_TO:
        return at
    _, last = max((run.key(rows - 1), n) for n, (run, rows) in enumerate(zip(runs, at, strict=True)) if rows)
    return tuple(rows - (n == last) for n, rows in enumerate(at))


# --- the rows of a slice -------------------------------------------------------------------------------


def rows_between(runs: Sequence[Run], start: Rows, end: Rows, columns: int) -> Iterator[pa.RecordBatch]:
    """The rows between two cuts in their order, with the first `columns`.

    They come in batches of the same rows however many runs there are. In memory are what the rows are ordered
    by, and one batch.
    """
    parts = [part for part in map(_Part, runs, start, end) if part.rows]
    parts.sort(key=lambda part: part.first)
    if all(one.last < other.first for one, other in itertools.pairwise(parts)):
        order = None
    else:
        keys = pa.Table.from_batches([batch for part in parts for batch in part.ordered_by()])
        order = _sorted_indices(keys)
    firsts = np.cumsum([0, *(part.rows for part in parts)])
    for low, high in _windows(parts, order, int(firsts[-1])):
        yield _gathered(parts, firsts, np.arange(low, high) if order is None else order[low:high], columns)


class _Part:
    """The rows of one run that are in a slice."""

    def __init__(self, run: Run, start: int, end: int) -> None:
        self.run, self.start, self.rows = run, start, end - start

    @functools.cached_property
    def first(self) -> tuple[Any, ...]:
        return self.run.key(self.start)

    @functools.cached_property
    def last(self) -> tuple[Any, ...]:
        return self.run.key(self.start + self.rows - 1)

    def all(self) -> Iterator[pa.RecordBatch]:
        return self.run.rows(self.start, self.start + self.rows)

    def ordered_by(self) -> Iterator[pa.RecordBatch]:
        order = self.run._order  # noqa: SLF001 - of this module
        for batch in self.all():
            yield pa.RecordBatch.from_arrays(
                [batch.column(n) for n in order], names=[str(n) for n in range(len(order))]
            )

    def sizes(self) -> Iterator[Numbers]:
        before = self.run.size_of(self.start)
        for batch in self.all():
            upto = batch.column(batch.num_columns - 1).to_numpy()
            yield np.diff(upto, prepend=before)
            before = upto[-1]


def _sorted_indices(keys: pa.Table) -> Numbers:
    if any(_has_items(column.type) for column in keys.columns):
        rows = [tuple(map(_comparable, row)) for row in zip(*keys.columns, strict=True)]
        return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)
    columns = [flat for column in keys.columns for flat in _flat(column)]
    names = [str(number) for number in range(len(columns))]
    by = [(name, "ascending") for name in names]
    indices: Numbers = pc.sort_indices(pa.table(columns, names=names), sort_keys=by).to_numpy()
    return indices.astype(np.int64)


def _has_items(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_items(field.type) for field in kind)
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def _flat(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Columns without nulls that matter, without NaN and without parts, by which rows are ordered alike."""
    if column.null_count:
        yield column.is_valid()
    if pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from _flat(part)
    elif pa.types.is_floating(column.type):  # Arrow has NaN beside the nulls
        odd = pc.is_nan(column)
        yield from (odd, pc.if_else(odd, pa.scalar(0, column.type), column))
    else:
        yield column


def _windows(parts: Sequence[_Part], order: Numbers | None, rows: int) -> Iterator[tuple[int, int]]:
    """Which rows are handed on together: so many, or fewer where they are large."""
    sizes = np.concatenate([size for part in parts for size in part.sizes()])
    if int(sizes.max()) * BATCH_ROWS <= BATCH_BYTES:
        ends = list(range(BATCH_ROWS, rows, BATCH_ROWS))
    else:
        upto, ends = np.cumsum(sizes if order is None else sizes[order]), list[int]()
        before = 0
        while True:
            within = (int(upto[before - 1]) if before else 0) + BATCH_BYTES
            end = min(before + BATCH_ROWS, max(before + 1, int(np.searchsorted(upto, within, "right"))))
            if end >= rows:
                break
            ends.append(before := end)
    return itertools.pairwise([0, *ends, rows])


def _gathered(parts: Sequence[_Part], firsts: Numbers, wanted: Numbers, columns: int) -> pa.RecordBatch:
    """Rows by their numbers among those of all parts; of each part they follow each other."""
    of_part = np.searchsorted(firsts, wanted, "right") - 1
    pieces: list[pa.RecordBatch] = []
    local, before = np.empty(len(wanted), np.int64), 0
    for number in np.unique(of_part):
        part, those = parts[number], of_part == number
        within = wanted[those] - firsts[number]
        low, high = int(within[0]), int(within[-1]) + 1
        local[those] = within - low + before
        pieces += [
            piece.select(range(columns)) for piece in part.run.rows(part.start + low, part.start + high)
        ]
        before += high - low
    if len(pieces) == 1 and before == len(wanted):
        return pieces[0]
    table = pa.Table.from_batches(pieces).combine_chunks()
    (batch,) = table.take(pa.array(local)).combine_chunks().to_batches() or [None]
    return batch
