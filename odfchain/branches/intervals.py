"""An interval of a chain: the slices after a block, their rows in common columns, and functions over them.

A changelog carries its own base: the first row of a key after a block says what the key was there. So what is
compared and merged is read from the intervals alone, and nothing before them is opened (RFC-036). Only where
that cannot be relied on are the touched keys looked up in the slices before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import pickle
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from odfchain.branches.key_lookup import WantedKeys, key_schema, keys_of
from odfchain.branches.row_diff import either, take
from odfchain.chain.chain import HashedBlock
from odfchain.chain.rules import canonical
from odfchain.errors import EngineError, ObjectCorruptedError, OdfchainError, SchemaError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import nullable, slice_schema
from odfchain.odf.enums import OperationType
from odfchain.odf.events import AddPushSource, DatasetVocabulary, OffsetInterval, SetPollingSource
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.row_hash import Numbers
from odfchain.odf.schema import type_name
from odfchain.slices.ordering import order_of
from odfchain.slices.reader import BATCH_ROWS, fitted, open_parquet
from odfchain.slices.state import takes_back
from odfchain.spark.executor_files import StoreFolder, copy_put, files_of, staged, worker_folder
from odfchain.spark.jobs import explain, run_job, task_results
from odfchain.spark.plans import map_in_arrow
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.read_slices import readable, unreadable, verified_slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The state of keys at a block, for changelogs that cannot be trusted (operations from the input, or blocks
# that were not verified here). A row is put in front of each touched key: `-C` with the state's values, or
# `+A` where the state has no such key, so that the first row of a key is always right (RFC-036).

_ABSENT, _PRESENT = OperationType.APPEND.code, OperationType.CORRECT_FROM.code


def rows_in_front(rows: pa.Table, earlier: Iterable[pa.RecordBatch], key: Sequence[str]) -> pa.Table:
    """A row for each key of `rows` that says what it was after the `earlier` ones, in order of offset.

    All have offset and operation first, and then the data (`MergedColumns.rows`).
    """
    schema = key_schema(rows.schema, key)
    touched = [keys_of(batch, key, schema) for batch in rows.to_batches()]
    wanted = WantedKeys.of(schema, touched, nulls=True)
    _, first = np.unique(wanted.numbers(*touched), return_index=True)
    parts, last, count = [rows.schema.empty_table()], np.full(wanted.count, -1, np.int64), 0
    for batch in earlier:
        at, numbers = wanted.find(keys_of(batch, key, schema))
        last[numbers] = count + np.arange(len(at))  # of equal numbers the last one counts
        parts.append(pa.Table.from_batches([batch.take(pa.array(at))]))
        count += len(at)
    known, order = pa.concat_tables(parts), np.argsort(first)
    first, last = first[order], last[order]
    there = last >= 0
    there[there] = ~takes_back(known.column(1).to_numpy()[last[there]])
    without = [
        rows.column(name) if name in key else pa.nulls(rows.num_rows, rows.schema.field(name).type)
        for name in rows.column_names[2:]
    ]
    nothing = pa.table(without, rows.column_names[2:])
    names = nothing.column_names
    values = either(there, take(known.select(names), np.where(there, last, -1)), take(nothing, first))
    operations = np.where(there, _PRESENT, _ABSENT).astype(np.uint8)
    system = [pa.array(np.zeros(len(first), np.uint64)), pa.array(operations)]
    return pa.table([*system, *values.columns], rows.schema)


@dataclass(frozen=True, slots=True)
class Interval:
    """The blocks of a chain after one of them, up to another."""

    dataset: DatasetFiles
    after: Multihash
    upto: Multihash
    believed: bool = True
    """True if the first row of a key says what the key was before; else that is looked up."""

    @classmethod
    def of(cls, dataset: DatasetFiles, after: Multihash, upto: Multihash, *, trusted: bool) -> Interval:
        """An interval, believed if its blocks are `trusted` and no source of it has operations of its own."""
        # blocks that were made or verified here are trusted
        interval = cls(dataset, after, upto)
        return dataclasses.replace(interval, believed=trusted and interval._is_consistent())

    def _is_consistent(self) -> bool:
        # every source in force must be one that looks up the rows it records
        state = DatasetState.read(self.dataset.chain, self.after)
        events = [state.polling_source, *state.push_sources.values(), *(b.block.event for b in self.blocks())]
        sources = [event for event in events if isinstance(event, SetPollingSource | AddPushSource)]
        return all(source.merge.LOOKS_BACK for source in sources)

    def blocks(self) -> list[HashedBlock]:
        """All of them, oldest first; none before is read."""
        return list(self.dataset.chain.walk(self.upto, tail=self.after))[::-1]

    @property
    def names(self) -> DatasetVocabulary:
        """The names of the system columns in all slices: they stay once there are records (append rules)."""
        return DatasetState.read(self.dataset.chain, self.upto).vocabulary

    def slices(self) -> list[SliceRef]:
        """Their slices, oldest first."""
        return [
            SliceRef(name, block.sequence_number, block.new_data)
            for name, block in self.blocks()
            if block.new_data is not None
        ]

    def earlier(self) -> list[SliceRef]:
        """The slices before them, oldest first."""
        return DatasetState.read(self.dataset.chain, self.after).slices()


def parquet_bytes(intervals: Iterable[Interval]) -> int:
    """The size of all their slices, as their blocks say."""
    return sum(ref.slice.size for interval in intervals for ref in interval.slices())


@dataclass(frozen=True, slots=True)
class MergedColumns:
    """The columns in which rows of several heads are compared: those of the first, then what others add.

    System columns are matched by their role, not by their name.
    """

    names: DatasetVocabulary
    """Those of the first head."""
    declared: ds.DataSchema | None
    """With the system columns; None where no head has data."""

    @classmethod
    def of(cls, *states: DatasetState) -> MergedColumns:
        """The columns of these heads, the one that is written to first."""
        names, merged = states[0].vocabulary, dict[str, ds.DataField]()
        first: ds.DataSchema | None = None
        for state in states:
            schema, renamed = state.schema, dict(zip(state.vocabulary.columns, names.columns, strict=True))
            for column in schema.fields if schema is not None else ():
                name = renamed.get(column.name, column.name)
                if name in names.columns and column.name not in renamed:
                    raise _cannot_merge(name, "is a system column on one side and data on the other")
                if (mine := merged.get(name)) is not None:
                    _check_types(mine, column)
                else:
                    kind = column.type if first is None else ds.optional(column.type)
                    merged[name] = dataclasses.replace(column, name=name, type=kind)
            first = first or schema
        extra = first.extra if first is not None else None
        return cls(names, ds.DataSchema(fields=tuple(merged.values()), extra=extra) if merged else None)

    @property
    def data(self) -> pa.Schema:
        """The columns of data, the event time among them; all may be null."""
        schema = slice_schema(self.declared) if self.declared is not None else pa.schema([])
        return nullable(pa.schema([f for f in schema if f.name not in self.names.columns[:3]]))

    @property
    def rows(self) -> pa.Schema:
        """Offset and operation, in this order, then the data."""
        numbers = [(self.names.offset_column, pa.uint64()), (self.names.operation_type_column, pa.uint8())]
        return pa.schema([*(pa.field(*number) for number in numbers), *self.data])


def _check_types(mine: ds.DataField, theirs: ds.DataField) -> None:
    kinds = [(canonical(f.value_type), ds.is_uuid(f.value_type, f.extra)) for f in (mine, theirs)]
    if kinds[0] != kinds[1]:
        types = " and ".join(type_name(each.type, each.extra) for each in (mine, theirs))
        raise _cannot_merge(mine.name, f"has two types: {types}")


def _cannot_merge(name: str, why: str) -> SchemaError:
    return SchemaError(f"column `{one_line(name)}` {why}", hint="the two sides have to agree on what it is")


def read_rows(interval: Interval, view: MergedColumns, key: Sequence[str] = ()) -> pa.Table:
    """All rows of an interval in order of offset, as `MergedColumns.rows` has them."""
    # where first rows are not trusted, each key gets a row in front that says what it was before
    rows = pa.Table.from_batches(interval_batches(interval, view), view.rows)
    if interval.believed or not key or not rows.num_rows:
        return rows
    earlier = _batches(interval, interval.earlier(), view)
    return pa.concat_tables([rows_in_front(rows, earlier, key), rows])


def interval_batches(interval: Interval, view: MergedColumns) -> Iterator[pa.RecordBatch]:
    """As `read_rows`, a bounded number of rows at a time, and without rows in front."""
    return _batches(interval, interval.slices(), view)


def _batches(interval: Interval, refs: Sequence[SliceRef], view: MergedColumns) -> Iterator[pa.RecordBatch]:
    own = interval.names
    for ref in refs:
        path = verified_slice(interval.dataset, ref)
        yield from slice_batches(path, own, ref.slice.offset_interval, view.names, view.rows)


def slice_batches(
    path: Path,
    own: DatasetVocabulary,
    interval: OffsetInterval,
    names: DatasetVocabulary,
    schema: pa.Schema,
    *,
    groups: list[int] | None = None,
    first: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, whose system columns have their `own` names, with those `names`, in a schema.

    Of some row groups where they are given, the first of whose rows has the offset `first`.
    """
    renamed = dict(zip(own.columns, names.columns, strict=True))
    offset = interval.start if first is None else first
    with readable(path), open_parquet(path) as file:
        present = file.schema_arrow.names
        taken = [name for name in present if renamed.get(name, name) in schema.names]
        if len(set(taken)) < len(taken):
            raise unreadable(path, "a column comes twice")
        if missing := {own.offset_column, own.operation_type_column}.difference(taken):
            raise unreadable(path, f"column `{one_line(missing.pop())}` is not there")
        for batch in file.batches(taken, groups=groups):
            own_names = [renamed.get(name, name) for name in batch.schema.names]
            rows = fitted(batch.rename_columns(own_names), schema)
            if rows.column(0) != pa.array(np.arange(offset, offset + rows.num_rows, dtype=np.uint64)):
                raise unreadable(path, "its offsets are not those that its block names")
            if rows.column(1).null_count:
                raise unreadable(path, "a row has no operation")
            offset += rows.num_rows
            yield rows
    if groups is None and offset != interval.end + 1:
        raise unreadable(path, f"it has no row with the offset {offset:,}, which its block promises")


# A pure function over the rows of intervals, called once in this process, or by Spark for parts of the keys.
# Every comparison of two sides depends on the rows of one key at a time: the function is given all rows of
# some keys and cannot know which engine called it, so what it decides is the same (RFC-036).


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


def _no_session() -> SparkSession:
    raise AssertionError("no input is as large")  # pragma: no cover


IN_PROCESS = Engine(_no_session, above=sys.maxsize)
"""This process, whatever the size."""


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
    private: Callable[[], Path],
) -> Computed:
    """Apply a function to the rows of intervals; parts of the result may be files in a `private` folder."""
    size = parquet_bytes(intervals)
    if not key or size <= engine.above:
        return Computed.of(function([read_rows(interval, view, key) for interval in intervals]))
    session, groups, folder = engine.session(), tuple(_groups(intervals)), private()
    believed = tuple(interval.believed for interval in intervals)
    files, count = files_of(session), max(2, min(-(-size // _RANGE_BYTES), _MOST_RANGES))
    with contextlib.nullcontext("") if files is None else staged(files) as below:
        place = None if files is None else StoreFolder(files, below)
        work = _Work(groups, view.names, view.rows, tuple(key), believed, function, str(folder), place)
        samples = task_results(session, functools.partial(_sample, work=work), len(groups))
        bounds = _bounds(samples, work.key, count)
        try:
            made = run_job(session, lambda: _run(session, work, count, bounds))
        except Exception as error:
            raise explain(error) from error
        for each in made:
            if place is not None and each.file is not None:
                copy_put(place, each.file, each.size, folder / each.file)
    return _computed(made, folder)


def _groups(intervals: Sequence[Interval]) -> Iterator[_Group]:
    for place, interval in enumerate(intervals):
        yield from _groups_of(interval, interval.slices(), place)
        yield from _groups_of(interval, [] if interval.believed else interval.earlier(), -1 - place)


def _groups_of(interval: Interval, refs: Sequence[SliceRef], side: int) -> Iterator[_Group]:
    names = interval.names
    for ref in refs:
        path, offsets = verified_slice(interval.dataset, ref), ref.slice.offset_interval
        first, key = offsets.start, interval.dataset.key("data", ref.slice.physical_hash)
        with open_parquet(path) as file:
            for number in range(file.metadata.num_row_groups):
                yield _Group(side, path, key, names, offsets, number, first)
                first += file.metadata.row_group(number).num_rows
        if first != offsets.end + 1:
            raise ObjectCorruptedError(
                f"{path}: it has {first - offsets.start:,} rows, its block says {offsets.count:,}"
            )


def _run(session: SparkSession, work: _Work, count: int, bounds: pa.Table) -> list[_Made]:
    groups = len(work.groups)
    tasks = session.range(0, groups, 1, groups)
    sent = map_in_arrow(tasks, functools.partial(_send, work=work, bounds=bounds), _SENT)
    ranges = sent.repartition(count, "range").groupBy("range")
    said = [row["said"] for row in ranges.applyInArrow(lambda pieces: _make(pieces, work), _SAID).collect()]
    made = [pickle.loads(each) for each in said]  # noqa: S301 - by our own tasks
    for each in made:
        if isinstance(each, BaseException):
            raise each
    if sum(map(len, said)) > _NOTES_BYTES:
        raise EngineError(
            "there is more in conflict than can be listed",
            hint="merge smaller parts, or let one side decide: --resolve ours, or theirs",
        )
    return sorted(made, key=lambda each: each.range)


def _computed(made: list[_Made], folder: Path) -> Computed:
    def batches() -> Iterator[pa.RecordBatch]:
        for each in made:
            if each.file is not None:
                with pa.memory_map(str(folder / each.file)) as source:
                    yield from pa.ipc.open_stream(source)

    # in pieces of one size, so that what is written does not depend on the number of ranges
    pieces = functools.partial(_even, batches)
    return Computed(made[0].schema, tuple(each.notes for each in made if each.notes is not None), pieces)


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
    return keys.take(pa.array(at[np.unique(np.arange(1, count) * len(at) // count)]))


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
    notes: Any
    size: int = 0
    """Of the file [bytes], where it is in the store, under its hash."""


def _sample(number: int, work: _Work) -> pa.Table:
    keys = pa.Table.from_batches(work.batches(number, work.key)).select(list(work.key))
    step = max(1, keys.num_rows // _SAMPLE_ROWS)
    return keys.take(pa.array(range(0, keys.num_rows, step))).combine_chunks()


def _send(batches: Iterable[pa.RecordBatch], work: _Work, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
    try:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
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


def _make(sent: pa.Table, work: _Work) -> pa.Table:
    # all pieces of one range
    pieces = sorted(zip(*(c.to_pylist() for c in sent.columns), strict=True), key=operator.itemgetter(1, 2))
    number, _, _, said = pieces[0]
    if number != _ERROR:
        sides: dict[int, list[pa.Table]] = {}
        for _, side, _, data in pieces:
            sides.setdefault(side, []).append(pa.ipc.open_stream(data).read_all())
        try:
            tables = [_rows_of(place, sides, work) for place in range(len(work.believed))]
            said = pickle.dumps(_made(number, tables, work))
        except OdfchainError as error:
            said = pickle.dumps(error)
    return pa.table({"said": pa.array([said], pa.binary())})


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
        name = f"range-{number:05}-{uuid.uuid4().hex}.arrow"  # a second attempt writes another one
        _write(part.rows, Path(work.folder) / name)
    return _Made(number, name, part.rows.schema, part.notes, size)


def _write(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=BATCH_ROWS)
