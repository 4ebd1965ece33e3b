"""An interval of a chain: the slices after a block, and their rows in common columns.

A changelog carries its own base: the first row of a key after a block says what the key was there. So what is
compared and merged is read from the intervals alone, and nothing before them is opened (RFC-036). Only where
that cannot be relied on are the touched keys looked up in the slices before (`odfchain.branches.intervals`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.branches.key_lookup import WantedKeys, key_schema, keys_of
from odfchain.branches.row_diff import either, take
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import DataEvent
from odfchain.chain.rules import canonical
from odfchain.errors import BadInputError, SchemaError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import nullable, slice_schema
from odfchain.odf.enums import OperationType
from odfchain.odf.events import AddPushSource, DatasetVocabulary, OffsetInterval, SetPollingSource, SetVocab
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import type_name
from odfchain.slices.reader import fitted, open_parquet
from odfchain.slices.state import takes_back
from odfchain.text import first_line, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.read_slices import unreadable, verified_slice

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
    _, first = np.unique(np.concatenate([wanted.numbers(keys) for keys in touched]), return_index=True)
    parts, last, count = [rows.schema.empty_table()], np.full(wanted.count, -1, np.int64), 0
    for batch in earlier:
        at, numbers = wanted.find([keys_of(batch, key, schema)])
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
class PlacedSlice:
    """A slice and the names that its system columns have."""

    ref: SliceRef
    names: DatasetVocabulary


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

    def slices(self) -> list[PlacedSlice]:
        """Their slices, oldest first."""
        names = DatasetState.read(self.dataset.chain, self.after).vocabulary
        found = []
        for name, block in self.blocks():
            event = block.event
            if isinstance(event, SetVocab):
                names = DatasetVocabulary.from_event(event)
            elif isinstance(event, DataEvent) and event.new_data is not None:
                found.append(PlacedSlice(SliceRef(name, block.sequence_number, event.new_data), names))
        return found


def parquet_bytes(intervals: Iterable[Interval]) -> int:
    """The size of all their slices, as their blocks say."""
    return sum(placed.ref.slice.size for interval in intervals for placed in interval.slices())


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
        """The columns of these heads, the one that is written to first.

        Raises:
            SchemaError: one column has two types.
        """
        names, merged = states[0].vocabulary, dict[str, ds.DataField]()
        first: ds.DataSchema | None = None
        for state in states:
            schema, renamed = state.schema, dict(zip(state.vocabulary.columns, names.columns, strict=True))
            for column in schema.fields if schema is not None else ():
                name = renamed.get(column.name, column.name)
                if name in names.columns and column.name not in renamed:
                    raise _cannot_merge(name, "is a system column on one side and data on the other")
                mine = merged.get(name)
                if mine is not None:
                    _check_types(mine, column)
                else:
                    kind = column.type if first is None else _optional(column.type)
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
    ours, other = canonical(mine.value_type), canonical(theirs.value_type)
    if (ours, ds.is_uuid(mine.value_type, mine.extra)) != (
        other,
        ds.is_uuid(theirs.value_type, theirs.extra),
    ):
        types = " and ".join(type_name(each.type, each.extra) for each in (mine, theirs))
        raise _cannot_merge(mine.name, f"has two types: {types}")


def _cannot_merge(name: str, problem: str) -> SchemaError:
    return SchemaError(
        f"column `{one_line(name)}` {problem}", hint="the two sides have to agree on what it is"
    )


def _optional(kind: ds.DataType) -> ds.DataType:
    return kind if isinstance(kind, ds.DataTypeOption) else ds.DataTypeOption(inner=kind)


def read_rows(interval: Interval, view: MergedColumns, key: Sequence[str] = ()) -> pa.Table:
    """All rows of an interval in order of offset, as `MergedColumns.rows` has them."""
    # where first rows are not trusted, each key gets a row in front that says what it was before
    rows = pa.Table.from_batches(interval_batches(interval, view), view.rows)
    if interval.believed or not key or not rows.num_rows:
        return rows
    earlier = (batch for each in earlier_slices(interval) for batch in _batches(interval, each, view))
    return pa.concat_tables([rows_in_front(rows, earlier, key), rows])


def interval_batches(interval: Interval, view: MergedColumns) -> Iterator[pa.RecordBatch]:
    """As `read_rows`, a bounded number of rows at a time, and without rows in front."""
    for placed in interval.slices():
        yield from _batches(interval, placed, view)


def _batches(interval: Interval, placed: PlacedSlice, view: MergedColumns) -> Iterator[pa.RecordBatch]:
    path = verified_slice(interval.dataset, placed.ref)
    yield from slice_batches(path, placed.names, placed.ref.slice.offset_interval, view.names, view.rows)


def earlier_slices(interval: Interval) -> list[PlacedSlice]:
    """The slices before an interval, oldest first."""
    state = DatasetState.read(interval.dataset.chain, interval.after)
    # the names of system columns stay as soon as there are records (append rules)
    return [PlacedSlice(ref, state.vocabulary) for ref in state.slices()]


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

    Raises:
        ObjectCorruptedError: it cannot be read, or its offsets are not what its block says.
    """
    renamed = dict(zip(own.columns, names.columns, strict=True))
    offset = interval.start if first is None else first
    try:
        with open_parquet(path) as file:
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
    except BadInputError as error:
        raise unreadable(path, error.message) from None
    except (pa.ArrowException, ValueError) as error:
        raise unreadable(path, f"it does not fit the declared schema: {first_line(error)}") from None
