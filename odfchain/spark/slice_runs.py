"""Rows to as many slices as their size asks for, written side by side: each from its part of sorted runs.

    each task puts its rows in order and leaves them as runs          no shuffle
    the driver looks up in the runs where slices are cut             a few rows
    each slice is put in order from its part of the runs, written    one task for each
    and hashed

Runs are files with rows of one partition in order, first what orders them, in small blocks, then the columns
of the slice, in large ones. Where a slice ends follows from the rows of all runs in their total order
(`odfchain.slices.ordering`), and from nothing else: not from how many runs there are, nor from which row is
in which. So what is recorded is the same for one task and for many. A run is read by ranges of bytes,
wherever it is. Source: RFC-049.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.odf.enums import CORRECT_TO
from odfchain.slices.ordering import Numbers, order_of, sort_value
from odfchain.slices.reader import BATCH_ROWS
from odfchain.slices.writer import SliceFacts, SliceSpec, write_slice
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, staged, translate_errors, worker_folder
from odfchain.spark.jobs import task_results
from odfchain.spark.stage import given_columns, write_into_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BATCH_BYTES = 64 << 20
"""Rows that are handed on together take no more than that, give or take one [bytes]."""

# Blocks of a run that stay in memory for who asks for them again [count].
_KEPT_BLOCKS = 4

KEY_ROWS = 4_096
"""Rows of one block of keys: what is read to look one up, about 100 KB of an append."""

# Most that a task sorts at a time, in memory.
_RUN_ROWS, _RUN_BYTES = 1 << 20, 128 << 20
# Of each row, that its offset and its system time take.
_SYSTEM_BYTES = 16

Rows: TypeAlias = tuple[int, ...]
"""How many rows of each run, its first ones."""
ReadBytes: TypeAlias = Callable[[int, int], pa.Buffer | bytes]
"""The bytes of a file from one up to, not with, another."""


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The columns of rows that become runs."""

    columns: int
    """The first ones are those of the slice, whose sizes count."""
    order: tuple[int, ...]
    """The numbers of those that the rows are ordered by."""
    operation: int
    """The number of the one that says which rows are of one correction."""


@dataclass(frozen=True, slots=True)
class RunBlocks:
    """Rows as blocks of Arrow's, all but the last with the same number, one after the other in a file."""

    schema: bytes
    rows: int
    """Of each block but the last."""
    bounds: tuple[int, ...]
    """Where in the file each begins, and the last one ends [bytes]."""

    def around(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the blocks that hold an interval of rows."""
        return self.bounds[start // self.rows], self.bounds[-(-end // self.rows)]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The description of a written run."""

    path: str
    rows: int
    size: int
    """Sum of the sizes of its rows [bytes]."""
    keys: RunBlocks
    """The sort key of each row, its operation, and the sum of the sizes so far."""
    values: RunBlocks
    index: bytes
    """The first row of each block of keys, by which most lookups need to read none."""


def row_sizes(rows: pa.RecordBatch) -> Numbers:
    """Size of the values of each row [bytes], with the system columns; it follows from the row alone."""
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


def write_runs(batches: Iterable[pa.RecordBatch], layout: RunLayout, folder: str) -> Iterator[RunFacts]:
    """Put rows in order, so many at a time, and write them to new files in a folder."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _RUN_ROWS or size >= _RUN_BYTES:
            yield _write_run(held, layout, folder)
            held, rows, size = [], 0, 0
    if rows:
        yield _write_run(held, layout, folder)


def _write_run(held: list[pa.RecordBatch], layout: RunLayout, folder: str) -> RunFacts:
    table = pa.Table.from_batches(held).combine_chunks()
    held.clear()
    indices = order_of(table, layout.order)
    in_order = bool((np.diff(indices) == 1).all())

    def pieces(part: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(indices), rows):
            some = part.slice(first, rows) if in_order else part.take(pa.array(indices[first : first + rows]))
            yield from some.combine_chunks().to_batches()

    values = table.select(range(layout.columns))
    sizes = np.concatenate([row_sizes(piece) for piece in values.to_batches()])
    sums = np.empty(len(indices), np.int64)
    sums[indices] = np.cumsum(sizes[indices])
    columns = [*(table.column(number) for number in layout.order), table.column(layout.operation)]
    keys = pa.table([*columns, pa.array(sums)], names=[str(number) for number in range(len(columns) + 1)])
    path = Path(folder) / f"run-{uuid.uuid4().hex}.arrow"
    try:
        with path.open("xb") as sink:
            of_keys = _write_blocks(sink, keys.schema, pieces(keys, KEY_ROWS), KEY_ROWS)
            of_values = _write_blocks(sink, values.schema, pieces(values, BATCH_ROWS), BATCH_ROWS)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    firsts = keys.take(pa.array(indices[::KEY_ROWS])).combine_chunks().to_batches()[0]
    size = int(sizes.sum())
    return RunFacts(str(path), len(indices), size, of_keys, of_values, firsts.serialize().to_pybytes())


def _write_blocks(sink: BinaryIO, schema: pa.Schema, parts: Iterator[pa.RecordBatch], rows: int) -> RunBlocks:
    bounds = [sink.tell()]
    for piece in parts:
        sink.write(piece.serialize())
        bounds.append(sink.tell())
    return RunBlocks(schema.serialize().to_pybytes(), rows, tuple(bounds))


def mapped(path: str | Path, start: int = 0) -> ReadBytes:
    """The bytes of a file on this machine, the first of which is byte `start` of the run."""
    whole = pa.memory_map(str(path)).read_buffer()
    return lambda begin, end: whole.slice(begin - start, end - begin)


class _Blocks:
    """The rows of blocks, of which only what is asked for is read."""

    def __init__(self, blocks: RunBlocks, count: int, read: ReadBytes) -> None:
        self._blocks, self._count, self._read = blocks, count, read
        self._schema = pa.ipc.read_schema(pa.py_buffer(blocks.schema))
        self._kept: OrderedDict[int, pa.RecordBatch] = OrderedDict()

    def _block(self, number: int) -> pa.RecordBatch:
        found = self._kept.pop(number, None)
        if found is None:
            data = self._read(*self._blocks.bounds[number : number + 2])
            found = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
        self._kept[number] = found
        while len(self._kept) > _KEPT_BLOCKS:
            self._kept.popitem(last=False)
        return found

    def at(self, row: int) -> tuple[pa.RecordBatch, int]:
        return self._block(row // self._blocks.rows), row % self._blocks.rows

    def rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        while start < end:
            batch, within = self.at(start)
            piece = batch.slice(within, end - start)
            yield piece
            start += piece.num_rows


class Run:
    """A run that was written, of which only what is asked for is read."""

    def __init__(self, facts: RunFacts, read_keys: ReadBytes, read_values: ReadBytes) -> None:
        """The bytes of the file are read by two functions, which may know other parts of it."""
        self._facts = facts
        self._keys = _Blocks(facts.keys, facts.rows, read_keys)
        self._values = _Blocks(facts.values, facts.rows, read_values)
        schema = pa.ipc.read_schema(pa.py_buffer(facts.keys.schema))
        self._ordered = range(len(schema) - 2)
        self._index = pa.ipc.read_record_batch(pa.py_buffer(facts.index), schema) if facts.index else None

    @classmethod
    def of_file(cls, facts: RunFacts) -> Run:
        """The run in a file on this machine."""
        read = mapped(facts.path)
        return cls(facts, read, read)

    def __len__(self) -> int:
        return self._facts.rows

    def _at(self, row: int) -> tuple[pa.RecordBatch, int]:
        if self._index is not None and row % self._facts.keys.rows == 0:
            return self._index, row // self._facts.keys.rows
        return self._keys.at(row)

    def operation(self, row: int) -> int:
        """The operation of a row."""
        batch, within = self._at(row)
        return int(batch.column(len(self._ordered))[within].as_py())

    def key(self, row: int) -> tuple[Any, ...]:
        """The sort key of a row; comparable with those of other runs."""
        batch, within = self._at(row)
        return tuple(sort_value(batch.column(column)[within]) for column in self._ordered)

    def size_of(self, rows: int) -> int:
        """Sum of the sizes of the first rows [bytes]."""
        if rows in (0, len(self)):
            return self._facts.size if rows else 0
        batch, within = self._at(rows - 1)
        return int(batch.column(len(self._ordered) + 1)[within].as_py())

    @functools.cached_property
    def firsts(self) -> list[tuple[Any, ...]]:
        """The keys of the first rows of all blocks of keys, where they are known without reading."""
        count = 0 if self._index is None else self._index.num_rows
        return [self.key(number * self._facts.keys.rows) for number in range(count)]

    def bounds(self, key: tuple[Any, ...]) -> tuple[int, int]:
        """At least and at most how many of its rows have this key or an earlier one, without reading."""
        blocks, rows = bisect.bisect_right(self.firsts, key), self._facts.keys.rows
        return ((blocks - 1) * rows + 1, min(blocks * rows, len(self))) if blocks else (0, 0)

    def most_size(self, rows: int) -> int:
        """At least the size of the first rows that end with a block of keys, without reading [bytes]."""
        return self.size_of(rows if rows in (0, len(self)) else rows + 1)

    def keys(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Sort keys of the rows of an interval, their operations, and the sums of their sizes."""
        return self._keys.rows(start, end)

    def values(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows of an interval, with the columns of the slice."""
        return self._values.rows(start, end)


# --- where slices are cut ------------------------------------------------------------------------------


def cuts(runs: Sequence[Run], max_bytes: int) -> list[Rows]:
    """Where slices end: for each, how many rows of each run are in it and in those before it.

    Slices are of about the same size, at most `max_bytes` give or take one row. The two rows of a correction
    are in one slice.
    """
    everything = tuple(len(run) for run in runs)
    total = sum(run.size_of(len(run)) for run in runs)
    number = -(-total // max_bytes)
    found: list[Rows] = []
    for index in range(1, number):
        # equal shares of the bytes, so that the last slice is not a small rest
        at = _whole_corrections(runs, _rows_within(runs, total * index // number))
        if sum(at) > (sum(found[-1]) if found else 0):
            found.append(at)
    return [*found, everything]


def _rows_within(runs: Sequence[Run], size: int) -> Rows:
    low, high = _around(runs, size)
    while open_runs := [n for n in range(len(runs)) if low[n] < high[n]]:
        # the weighted median of the middles has at least a quarter of all open rows on either side
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


def _around(runs: Sequence[Run], size: int) -> tuple[list[int], list[int]]:
    """Between which rows of each run the cut is, as far as that is known without reading."""
    keys = sorted(key for run in runs for key in run.firsts)
    inside = bisect.bisect_right(keys, size, key=lambda key: _sizes_upto(runs, key)[1])
    beyond = bisect.bisect_right(keys, size, key=lambda key: _sizes_upto(runs, key)[0])
    low = [run.bounds(keys[inside - 1])[0] if inside else 0 for run in runs]
    high = [run.bounds(keys[beyond])[1] if beyond < len(keys) else len(run) for run in runs]
    return low, high


def _sizes_upto(runs: Sequence[Run], key: tuple[Any, ...]) -> tuple[int, int]:
    """At least and at most what all rows up to a key take [bytes]."""
    bounds = [(run, *run.bounds(key)) for run in runs]
    return (
        sum(run.size_of(least) for run, least, _ in bounds),
        sum(run.most_size(most) for run, _, most in bounds),
    )


def _whole_corrections(runs: Sequence[Run], at: Rows) -> Rows:
    after = [
        (run.key(rows), run.operation(rows)) for run, rows in zip(runs, at, strict=True) if rows < len(run)
    ]
    if not sum(at) or not after or min(after)[1] != CORRECT_TO:
        return at
    # the cut would part the old values of a correction from the new ones: one row earlier
    _, last = max((run.key(rows - 1), n) for n, (run, rows) in enumerate(zip(runs, at, strict=True)) if rows)
    return tuple(rows - (n == last) for n, rows in enumerate(at))


# --- the rows of a slice -------------------------------------------------------------------------------


def rows_between(runs: Sequence[Run], start: Rows, end: Rows) -> Iterator[pa.RecordBatch]:
    """The rows between two cuts in their order, with the columns of the slice.

    They come in batches of the same rows however many runs there are. In memory are what the rows are ordered
    by, and one batch.
    """
    parts = [part for part in map(_RowRange, runs, start, end) if part.rows]
    parts.sort(key=lambda part: part.first)
    # runs that do not overlap are concatenated: no sorting
    if all(one.last < other.first for one, other in itertools.pairwise(parts)):
        order = None
    else:
        keys = pa.Table.from_batches([batch for part in parts for batch in part.ordered_by()])
        order = order_of(keys, range(keys.num_columns))
    firsts = np.cumsum([0, *(part.rows for part in parts)])
    sizes = np.concatenate([size for part in parts for size in part.sizes()])
    for low, high in windows(sizes if order is None else sizes[order]):
        yield _gathered(parts, firsts, np.arange(low, high) if order is None else order[low:high])


class _RowRange:
    def __init__(self, run: Run, start: int, end: int) -> None:
        self.run, self.start, self.rows = run, start, end - start

    @functools.cached_property
    def first(self) -> tuple[Any, ...]:
        return self.run.key(self.start)

    @functools.cached_property
    def last(self) -> tuple[Any, ...]:
        return self.run.key(self.start + self.rows - 1)

    def keys(self) -> Iterator[pa.RecordBatch]:
        return self.run.keys(self.start, self.start + self.rows)

    def ordered_by(self) -> Iterator[pa.RecordBatch]:
        for batch in self.keys():
            yield batch.select(range(batch.num_columns - 2))

    def sizes(self) -> Iterator[Numbers]:
        before = self.run.size_of(self.start)
        for batch in self.keys():
            upto = batch.column(batch.num_columns - 1).to_numpy()
            yield np.diff(upto, prepend=before)
            before = upto[-1]


def windows(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Which rows are handed on together, by the size of each row [bytes]."""
    rows = len(sizes)
    if int(sizes.max()) * BATCH_ROWS <= BATCH_BYTES:
        ends = list(range(BATCH_ROWS, rows, BATCH_ROWS))
    else:
        # rows are large: fewer of them at a time
        upto, ends = np.cumsum(sizes), list[int]()
        before = 0
        while True:
            within = (int(upto[before - 1]) if before else 0) + BATCH_BYTES
            end = min(before + BATCH_ROWS, max(before + 1, int(np.searchsorted(upto, within, "right"))))
            if end >= rows:
                break
            ends.append(before := end)
    return itertools.pairwise([0, *ends, rows])


def _gathered(parts: Sequence[_RowRange], firsts: Numbers, wanted: Numbers) -> pa.RecordBatch:
    """Rows by their numbers among those of all parts; of each part they follow each other."""
    of_part = np.searchsorted(firsts, wanted, "right") - 1
    pieces: list[pa.RecordBatch] = []
    local, before = np.empty(len(wanted), np.int64), 0
    for number in np.unique(of_part):
        part, those = parts[number], of_part == number
        within = wanted[those] - firsts[number]
        low, high = int(within[0]), int(within[-1]) + 1
        local[those] = within - low + before
        pieces += part.run.values(part.start + low, part.start + high)
        before += high - low
    if len(pieces) == 1 and before == len(wanted):
        return pieces[0]
    table = pa.Table.from_batches(pieces).combine_chunks()
    (batch,) = table.take(pa.array(local)).combine_chunks().to_batches() or [None]
    return batch


# --- in tasks of Spark ---------------------------------------------------------------------------------


def run_layout(spec: SliceSpec, order: Sequence[str]) -> tuple[list[str], RunLayout]:
    """(the columns of rows that become runs, where they are) for slices in an order."""
    names = given_columns(spec)
    columns = [*names, *(name for name in order if name not in names)]
    operation = names.index(spec.vocabulary.operation_type_column)
    return columns, RunLayout(len(names), tuple(columns.index(name) for name in order), operation)


def leave_runs(
    batches: Iterable[pa.RecordBatch], layout: RunLayout, into: str | StoreFolder
) -> Iterator[RunFacts]:
    """Leave rows as runs in a folder that driver and workers see, or in one of the store."""
    if isinstance(into, str):
        yield from write_runs(batches, layout, into)
        return
    with translate_errors(), worker_folder() as folder:
        for facts in write_runs(batches, layout, str(folder)):
            path = Path(facts.path)
            key = f"{into.key}/{path.name}"
            into.files.put(path, key)
            path.unlink()
            yield replace(facts, path=key)


def write_slices(
    session: SparkSession,
    leave: Callable[[str | StoreFolder], Sequence[RunFacts]],
    spec: SliceSpec,
    max_bytes: int,
    *,
    file: str | None = None,
    place: StoreFolder | None = None,
) -> tuple[SliceFacts, ...]:
    """Write the rows of runs in order, as slices of about the same size, and return their facts in order.

    `leave` makes the runs where it is told to. A slice has at most `max_bytes` of values, give or take a row.
    For the rest as `odfchain.spark.stage.write_frame`; `spec` is of the first. With a `place` the runs are in
    the store, too, for as long as this takes.
    """
    with contextlib.nullcontext("") if place is None else staged(place.files) as below:
        runs = leave(spec.folder if place is None else StoreFolder(place.files, below))
        try:
            if not runs:
                return ()
            ends = cuts([_opened(run, place) for run in runs], max_bytes)
            # what lookups need is not needed by who reads all
            lean = tuple(replace(run, index=b"") for run in runs)
            task = _WriteSlice(lean, tuple(given_columns(spec)), tuple(ends), spec, place)
            return tuple(task_results(session, task, len(ends), file=file))
        finally:
            for run in runs if place is None else ():
                Path(run.path).unlink(missing_ok=True)


def _opened(run: RunFacts, place: StoreFolder | None) -> Run:
    if place is None:
        return Run.of_file(run)
    read = functools.partial(place.files.read, run.path)
    return Run(run, read, read)


@dataclass(frozen=True, slots=True)
class _WriteSlice:
    """Writes the slice of a number; sent to the workers."""

    runs: tuple[RunFacts, ...]
    names: tuple[str, ...]
    ends: tuple[Rows, ...]
    spec: SliceSpec
    place: StoreFolder | None

    def __call__(self, number: int) -> SliceFacts:
        start, end = self.ends[number - 1] if number else (0,) * len(self.runs), self.ends[number]
        spec = replace(self.spec, start_offset=self.spec.start_offset + sum(start))
        with contextlib.nullcontext() if self.place is None else worker_folder() as folder:
            runs = [
                Run.of_file(run)
                if self.place is None or folder is None
                else _brought(self.place.files, run, first, last, folder / str(n))
                for n, (run, first, last) in enumerate(zip(self.runs, start, end, strict=True))
            ]
            batches = (batch.rename_columns(self.names) for batch in rows_between(runs, start, end))
            facts: SliceFacts | None = write_into_store(batches, write_slice, spec, self.place)
            assert facts is not None  # noqa: S101 - slices are not empty
            return facts


def _brought(files: ExecutorFiles, run: RunFacts, start: int, end: int, target: Path) -> Run:
    def ranged(blocks: RunBlocks, first: int, suffix: str) -> ReadBytes:
        low, high = blocks.around(first, end)
        path = target.with_suffix(suffix)
        files.copy(run.path, low, high, path)
        return mapped(path, low)

    if start == end:
        return Run(run, _nothing, _nothing)
    # the row before the interval, too: it has the sum of all sizes up to there
    return Run(run, ranged(run.keys, max(0, start - 1), ".keys"), ranged(run.values, start, ".values"))


def _nothing(_start: int, _end: int) -> bytes:
    raise AssertionError("no row of it is in the slice")
