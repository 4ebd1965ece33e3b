"""A pure function over the rows of intervals: called once in this process, or by Spark for parts of the keys.

Every comparison of two sides of a branch depends on the rows of one key at a time. So the function is
given all rows of some keys and cannot know which engine called it: what it decides is the same (RFC-036).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from odfchain.branches.intervals import (
    Interval,
    MergedColumns,
    PlacedSlice,
    earlier_slices,
    parquet_bytes,
    read_rows,
    rows_in_front,
    slice_batches,
)
from odfchain.errors import EngineError, ObjectCorruptedError, OdfchainError
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.row_hash import Numbers
from odfchain.slices.bounds import BATCH_ROWS
from odfchain.slices.reader import open_parquet
from odfchain.slices.runs import order_of
from odfchain.spark.executor_files import StoreFolder, copy_put, files_of, staged, worker_folder
from odfchain.spark.jobs import explain, run_job
from odfchain.workspace.read_slices import verified_slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Results per key, and of all keys in order.


@dataclass(frozen=True, slots=True)
class KeyResult:
    """Result of a function over all rows of some keys."""

    rows: pa.Table
    """In order of key."""
    notes: Any = None
    """The part that is held in memory; it can be pickled, and is small."""


Function = Callable[[Sequence[pa.Table]], KeyResult]
"""From a table for each interval (`read_rows`); it can be pickled and depends on nothing else."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The parts of a result, in order of key."""

    schema: pa.Schema
    notes: tuple[Any, ...]
    """Those of all parts that have any."""
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """The rows, a bounded number at a time."""

    @classmethod
    def of(cls, part: KeyResult) -> Computed:
        """A result of one part."""
        notes = () if part.notes is None else (part.notes,)
        return cls(part.rows.schema, notes, lambda: iter(part.rows.to_batches()))

    def rows(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches(), self.schema)


IN_PROCESS_BYTES = 256 << 20
"""So much Parquet is read in this process; more is for Spark."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The executor: this process, or Spark for inputs larger than `above` [bytes of Parquet]."""

    session: Callable[[], SparkSession]
    above: int = IN_PROCESS_BYTES


# Spark runs the same function as this process, on ranges of keys:
#
#     1. a sample of the keys gives the bounds of the ranges
#     2. tasks read row groups and send the rows of each range to one task
#     3. that task calls the function with all rows of the range and writes a file
#
# Rows travel as Arrow, so no type is converted to Spark's and back. The files are ordered by key, so they are
# concatenated without a sort. Executors without access to the driver's folder read and write through the
# store.

_RANGE_BYTES = 32 << 20
"""About so much Parquet is one range of keys."""
_MOST_RANGES = 2_000
_SAMPLE_ROWS = 500
"""Keys of each row group that the ranges are chosen by."""
_HELD_BYTES = 64 << 20
"""Rows that a task holds before it sends them on."""
_NOTES_BYTES = 256 << 20
"""Limit of the part that is held in memory (conflicts); more cannot be read by people."""

_ERROR = -1
"""The range of what went wrong."""
_SENT = "range int, side int, first bigint, rows binary"
_SAID = "said binary"


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a slice of an interval, or of the slices before it."""

    side: int
    """The place of its interval; the slices before that are -1 - place."""
    path: Path
    """Its path in the driver."""
    key: str
    """Its key for executors that see no folder of the driver."""
    own: DatasetVocabulary
    interval: OffsetInterval
    group: int
    first: int
    """The offset of its first row."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Arguments of tasks."""

    groups: tuple[_Group, ...]
    names: DatasetVocabulary
    schema: pa.Schema
    key: tuple[str, ...]
    believed: tuple[bool, ...]
    """By interval."""
    function: Function
    folder: str
    place: StoreFolder | None
    """The place for executors' files, if they do not see the folder."""

    def batches(self, number: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        schema, at = self.schema, self.groups[number]
        if columns is not None:
            schema = pa.schema([*list(schema)[:2], *(schema.field(name) for name in columns)])
        path = at.path if self.place is None else self.place.files.bring(at.key)
        return slice_batches(path, at.own, at.interval, self.names, schema, groups=[at.group], first=at.first)


def compute(
    intervals: Sequence[Interval],
    view: MergedColumns,
    key: Sequence[str],
    function: Function,
    *,
    engine: Engine,
    folder: Path,
) -> Computed:
    """Apply a function to the rows of intervals; parts of the result may be files in a private `folder`."""
    size = parquet_bytes(intervals)
    if not key or size <= engine.above:
        return Computed.of(function([read_rows(interval, view, key) for interval in intervals]))
    session, groups = engine.session(), tuple(_groups(intervals))
    nothing = Computed.of(function([view.rows.empty_table() for _ in intervals]))
    if not groups:
        return nothing
    believed = tuple(interval.believed for interval in intervals)
    files, count = files_of(session), -(-size // _RANGE_BYTES)
    with contextlib.nullcontext("") if files is None else staged(files) as below:
        place = None if files is None else StoreFolder(files, below)
        work = _Work(groups, view.names, view.rows, tuple(key), believed, function, str(folder), place)
        try:
            made = run_job(session, lambda: _run(session, work, max(2, min(count, _MOST_RANGES))))
        except Exception as error:
            raise explain(error) from error
        for each in made:
            if place is not None and each.file is not None:
                copy_put(place, each.file, each.size, folder / each.file)
    return _computed(made, folder) if made else nothing


def _groups(intervals: Sequence[Interval]) -> Iterator[_Group]:
    for place, interval in enumerate(intervals):
        for placed in interval.slices():
            yield from _groups_of(interval, placed, place)
        for placed in () if interval.believed else earlier_slices(interval):
            yield from _groups_of(interval, placed, -1 - place)


def _groups_of(interval: Interval, placed: PlacedSlice, side: int) -> Iterator[_Group]:
    path, offsets = verified_slice(interval.dataset, placed.ref), placed.ref.slice.offset_interval
    first, key = offsets.start, interval.dataset.key("data", placed.ref.slice.physical_hash)
    with open_parquet(path) as file:
        for number in range(file.metadata.num_row_groups):
            yield _Group(side, path, key, placed.names, offsets, number, first)
            first += file.metadata.row_group(number).num_rows
    if first != offsets.end + 1:
        raise ObjectCorruptedError(
            f"{path}: it has {first - offsets.start:,} rows, its block says {offsets.count:,}"
        )


def _run(session: SparkSession, work: _Work, count: int) -> list[_Made]:
    groups = len(work.groups)
    tasks = session.range(0, groups, 1, groups)
    sampled = tasks.mapInArrow(functools.partial(_sample, work=work), _SAID).collect()
    bounds = _bounds([_taken(row) for row in sampled], work.key, count)
    sent = tasks.mapInArrow(functools.partial(_send, work=work, bounds=bounds), _SENT)
    ordered = sent.repartition(count, "range").sortWithinPartitions("range", "side", "first")
    made = [_taken(row) for row in ordered.mapInArrow(functools.partial(_make, work=work), _SAID).collect()]
    if sum(len(each.notes) for each in made) > _NOTES_BYTES:
        raise EngineError(
            "there is more in conflict than can be listed",
            hint="merge smaller parts, or let one side decide: --resolve ours, or theirs",
        )
    return sorted(made, key=lambda each: each.range)


def _taken(row: Any) -> Any:
    # errors of a task are raised again here
    value = pickle.loads(row["said"])  # noqa: S301 - by our own tasks
    if isinstance(value, BaseException):
        raise value
    return value


def _computed(made: list[_Made], folder: Path) -> Computed:
    notes = (pickle.loads(each.notes) for each in made)  # noqa: S301 - by our own tasks

    def batches() -> Iterator[pa.RecordBatch]:
        for each in made:
            if each.file is not None:
                with pa.memory_map(str(folder / each.file)) as source:
                    yield from pa.ipc.open_stream(source)

    # in pieces of one size, so that what is written does not depend on the number of ranges
    pieces = functools.partial(_even, batches)
    return Computed(made[0].schema, tuple(note for note in notes if note is not None), pieces)


def _even(batches: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    for batch in batches():
        rest = batch
        while (left := BATCH_ROWS - sum(each.num_rows for each in held)) <= rest.num_rows:
            yield from pa.Table.from_batches([*held, rest.slice(0, left)]).combine_chunks().to_batches()
            held, rest = [], rest.slice(left)
        held.append(rest)
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _bounds(samples: Sequence[pa.Table], key: Sequence[str], count: int) -> pa.Table:
    # the keys with which ranges begin, but for the first
    keys = pa.concat_tables(samples)
    at = order_of(keys, key)
    places = np.unique(np.arange(1, count) * len(at) // count)
    return keys.take(pa.array(at[places]))


def _ranges(keys: pa.Table, bounds: pa.Table) -> Numbers:
    # equal keys are in the same range
    first, count = bounds.num_rows, keys.num_rows
    is_key = pa.array(np.repeat([False, True], [first, count]))
    both = pa.concat_tables([bounds, keys])
    # by position: no column of a key has such a name
    named = both.rename_columns([str(place) for place in range(both.num_columns)])
    at = order_of(named.append_column("is key", is_key), [*named.column_names, "is key"])
    begun = np.cumsum(at < first)
    found = np.empty(first + count, dtype=np.int32)
    found[at] = begun
    return found[first:]


# --- what tasks do ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Made:
    """Result of the function for a range."""

    range: int
    file: str | None
    """Of the rows, if there are any."""
    schema: pa.Schema
    notes: bytes
    size: int = 0
    """Of the file [bytes], where it is in the store, under its hash."""


def _numbers(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def _saying(value: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"said": [pickle.dumps(value)]})


def _sample(batches: Iterable[pa.RecordBatch], work: _Work) -> Iterator[pa.RecordBatch]:
    try:
        for number in _numbers(batches):
            keys = pa.Table.from_batches(work.batches(number, work.key)).select(list(work.key))
            step = max(1, keys.num_rows // _SAMPLE_ROWS)
            yield _saying(keys.take(pa.array(range(0, keys.num_rows, step))).combine_chunks())
    except OdfchainError as error:
        yield _saying(error)


def _send(batches: Iterable[pa.RecordBatch], work: _Work, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
    try:
        for number in _numbers(batches):
            held: list[pa.RecordBatch] = []
            for batch in work.batches(number):
                held.append(batch)
                if sum(each.nbytes for each in held) > _HELD_BYTES:
                    yield _sent(pa.Table.from_batches(held), work, work.groups[number].side, bounds)
                    held = []
            if held:
                yield _sent(pa.Table.from_batches(held), work, work.groups[number].side, bounds)
    except OdfchainError as error:
        yield _packed([(_ERROR, 0, 0, pickle.dumps(error))])


def _sent(rows: pa.Table, work: _Work, side: int, bounds: pa.Table) -> pa.RecordBatch:
    ranges = _ranges(rows.select(list(work.key)), bounds)
    order = np.argsort(ranges, kind="stable")
    numbers, starts = np.unique(ranges[order], return_index=True)
    sorted_rows = rows.take(pa.array(order))
    found = []
    for number, start, end in zip(numbers, starts, [*starts[1:], len(order)], strict=True):
        part = sorted_rows.slice(int(start), int(end - start)).combine_chunks()
        found.append((int(number), side, part.column(0)[0].as_py(), _to_bytes(part)))
    return _packed(found)


def _packed(rows: Sequence[tuple[int, int, int, bytes]]) -> pa.RecordBatch:
    kinds = (pa.int32(), pa.int32(), pa.int64(), pa.binary())
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, ["range", "side", "first", "rows"])


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _make(batches: Iterable[pa.RecordBatch], work: _Work) -> Iterator[pa.RecordBatch]:
    pieces = (
        piece for batch in batches for piece in zip(*(c.to_pylist() for c in batch.columns), strict=True)
    )
    try:
        for number, found in itertools.groupby(pieces, key=operator.itemgetter(0)):
            sides: dict[int, list[pa.Table]] = {}
            for _, side, _, data in found:
                if number == _ERROR:
                    yield pa.RecordBatch.from_pydict({"said": [data]})
                    return
                sides.setdefault(side, []).append(pa.ipc.open_stream(data).read_all())
            tables = [_rows_of(place, sides, work) for place in range(len(work.believed))]
            if any(table.num_rows for table in tables):
                yield _saying(_made(number, tables, work))
    except OdfchainError as error:
        yield _saying(error)


def _rows_of(place: int, sides: Mapping[int, Sequence[pa.Table]], work: _Work) -> pa.Table:
    rows = pa.concat_tables([work.schema.empty_table(), *sides.get(place, ())])
    if work.believed[place] or not rows.num_rows:
        return rows
    earlier = (batch for part in sides.get(-1 - place, ()) for batch in part.to_batches())
    return pa.concat_tables([rows_in_front(rows, earlier, work.key), rows])


def _made(number: int, tables: Sequence[pa.Table], work: _Work) -> _Made:
    part, name, size = work.function(tables), None, 0
    if part.rows.num_rows and work.place is not None:
        with worker_folder() as folder:
            _write(part.rows, folder / "range")
            found, size = hash_file(folder / "range")
            name = str(found)
            work.place.files.put(folder / "range", f"{work.place.key}/{name}")
    elif part.rows.num_rows:
        name = f"range-{number:05}.arrow"
        made = Path(work.folder) / f"{name}.{uuid.uuid4().hex}"
        _write(part.rows, made)
        made.replace(Path(work.folder) / name)
    return _Made(number, name, part.rows.schema, pickle.dumps(part.notes), size)


def _write(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=BATCH_ROWS)
