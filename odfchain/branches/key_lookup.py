"""Lookup of wanted keys in the rows of slices; nothing else is kept.

A key is compared as state is (`odfchain.slices.state.comparable`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.branches.row_diff import either, take
from odfchain.errors import BadInputError, ObjectNotFoundError, SliceNotFoundError
from odfchain.odf.arrow_schema import nullable
from odfchain.odf.row_hash import Numbers
from odfchain.slices.footers import quoted
from odfchain.slices.reader import ParquetSource, fitted, open_parquet
from odfchain.slices.skipping import Condition, may_hold, ordered, with_any_of
from odfchain.slices.state import SliceFile, comparable, takes_back
from odfchain.text import first_line, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import RecordedRows, unreadable

_UNKNOWN, _IN_FORCE, TAKEN_BACK = 0, 1, 2
_TOGETHER = 4
"""Batches of rows that are looked up at a time: each lookup begins with hashing the wanted keys."""
_NEAR = 1 << 22
"""Whole numbers that lie within such a range are looked up by their place in it, which is faster [count]."""
_AT_ONCE = 1 << 20
"""Keys that are gathered before only the distinct ones are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """The distinct values of a part of keys."""

    distinct: pa.Array
    least: int
    numbers: Numbers | None
    """Of whole numbers that lie near each other: the place of each value from the least on, or -1."""

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> _Values:
        distinct = pc.unique(column)
        if not t.is_integer(distinct.type) or not len(distinct) or distinct.null_count:
            return cls(distinct, 0, None)
        bounds = pc.min_max(distinct).as_py()
        if bounds["max"] - bounds["min"] >= _NEAR or bounds["max"] >= 1 << 62:
            return cls(distinct, 0, None)
        numbers = np.full(bounds["max"] - bounds["min"] + 1, -1, np.int32)
        numbers[np.asarray(distinct).astype(np.int64) - bounds["min"]] = np.arange(len(distinct))
        return cls(distinct, bounds["min"], numbers)

    def find(self, column: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
        """(the rows that have one of them, its place)."""
        if self.numbers is None or column.null_count:
            found = pc.index_in(column, value_set=self.distinct)
            hit = pc.indices_nonzero(found.is_valid())
            return np.asarray(hit).astype(np.int64), np.asarray(found.take(hit)).astype(np.int64)
        # what is below the least becomes a large number
        places = (np.asarray(column).astype(np.int64, copy=False) - self.least).view(np.uint64)
        near = np.flatnonzero(places < len(self.numbers))
        numbers = self.numbers[places[near]]
        return near[numbers >= 0], numbers[numbers >= 0].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class WantedKeys:
    """Distinct keys, each with a number."""

    schema: pa.Schema
    """The columns of a key, under any names, in the types in which they are compared."""
    count: int
    _values: tuple[_Values, ...] = field(repr=False)
    """Those of each part."""
    _pairs: tuple[Numbers, ...] = field(repr=False)
    """For each part after the first: the numbers of what comes before, joined with its own, ordered."""

    @property
    def texts(self) -> list[str]:
        """The keys in their order, where they are one text each."""
        return list(self._values[0].distinct.to_pylist()) if self.count else []

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, nulls: bool = False) -> WantedKeys:
        """The keys of rows that have the columns of `schema` in its order.

        With `nulls` a null is a value like others; else a key with a null part is none.
        """
        tables: list[pa.Table] = []
        gathered, limit = 0, _AT_ONCE
        for batch in batches:
            parts = _parts(batch)
            rows = pa.table(parts, [str(index) for index in range(len(parts))])
            tables.append(_distinct([rows if nulls else rows.filter(_whole(batch))]))
            gathered += len(tables[-1])
            if gathered > limit:
                tables = [_distinct(tables)]
                gathered = len(tables[0])
                limit = gathered + max(_AT_ONCE, gathered)
        rows = _distinct(tables) if tables else pa.table({})
        values = tuple(_Values.of(column) for column in rows.columns)
        codes: Numbers = np.zeros(0, np.int64)
        pairs: list[Numbers] = []
        for column, value in zip(rows.columns, values, strict=True):
            _, own = value.find(column)
            if not len(codes):
                codes = own
                continue
            joined = codes * len(value.distinct) + own
            pairs.append(np.unique(joined))
            codes = np.searchsorted(pairs[-1], joined)
        return cls(schema, rows.num_rows, values, tuple(pairs))

    def find(self, batches: Sequence[pa.RecordBatch]) -> tuple[Numbers, Numbers]:
        """(the rows whose key is wanted, in their order; its numbers); columns as those of `schema`."""
        at: Numbers = np.zeros(0, np.int64)
        codes: Numbers = at
        if not self.count or not batches:
            return at, codes
        pairs = iter(self._pairs)
        columns = (pa.chunked_array(list(parts)) for parts in zip(*map(_parts, batches), strict=True))
        for index, (column, value) in enumerate(zip(columns, self._values, strict=True)):
            # each part is looked up only where those before it were found
            kept, own = value.find(column.take(pa.array(at)) if index else column)
            if not index:
                at, codes = kept, own
                continue
            known, joined = next(pairs), codes[kept] * len(value.distinct) + own
            place = np.minimum(np.searchsorted(known, joined), len(known) - 1)
            same = known[place] == joined
            at, codes = at[kept][same], place[same]
        return at, codes

    def numbers(self, batch: pa.RecordBatch) -> Numbers:
        """The number of each row's key, -1 where it is not wanted; columns as those of `schema`."""
        numbers = np.full(batch.num_rows, -1, np.int64)
        at, codes = self.find([batch])
        numbers[at] = codes
        return numbers


def _parts(batch: pa.RecordBatch) -> list[pa.Array]:
    return [part for name in batch.schema.names for part in comparable(batch, name)]


def _whole(batch: pa.RecordBatch) -> pa.Array:
    # true if no part of a row's key is null
    found = pa.array(np.ones(batch.num_rows, bool))
    for column in batch.columns:
        found = pc.and_(found, column.is_valid())
    return found


def _distinct(tables: Sequence[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(tables)
    if rows.num_columns == 1:
        return pa.table([pc.unique(rows.column(0))], rows.schema.names)
    return rows.group_by(rows.schema.names).aggregate([])


def key_schema(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The columns of a key, numbered, so that those of two datasets are the same."""
    return pa.schema([(str(index), schema.field(name).type) for index, name in enumerate(columns)])


def keys_of(batch: pa.RecordBatch, columns: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The keys of rows by a `key_schema`; a column that they lack is null."""
    own = pa.schema([(name, field.type) for name, field in zip(columns, schema, strict=True)])
    return fitted(batch, own).rename_columns(schema.names)


@dataclass(frozen=True, slots=True, eq=False)
class KeyRows:
    """Some rows of a slice, and their keys."""

    item: SliceFile
    keys: pa.RecordBatch
    batch: pa.RecordBatch
    """The rows with all columns that were read."""

    @property
    def operations(self) -> Numbers:
        """The operation of each row."""
        return _whole_numbers(self.batch.column(self.item.vocabulary.operation_type_column))

    @property
    def offsets(self) -> Numbers:
        """Their offsets, where those were read."""
        return _whole_numbers(self.batch.column(self.item.vocabulary.offset_column))

    @property
    def back(self) -> Numbers:
        """A mask of the rows that take another row back."""
        return takes_back(self.operations)

    @property
    def said(self) -> pa.RecordBatch:
        """The keys of those that put a row in force."""
        return self.keys.filter(pa.array(~self.back))


def key_rows(
    item: SliceFile, columns: Sequence[str], schema: pa.Schema, others: Sequence[str] = ()
) -> Iterator[KeyRows]:
    """The keys of a slice's rows, and `others` of their columns, batch by batch in order of offset.

    Raises:
        BadInputError: it cannot be read.
    """
    # a column that an older slice lacks is null
    operation = item.vocabulary.operation_type_column
    with open_parquet(item.path) as file:
        present = file.schema_arrow.names
        if present.count(operation) != 1:
            raise BadInputError(f"no column `{one_line(operation)}`", file=str(item.path))
        wanted = [name for name in dict.fromkeys([operation, *columns, *others]) if name in present]
        for batch in file.batches(wanted):
            yield KeyRows(item, keys_of(batch, columns, schema), batch)


def in_force_of(wanted: WantedKeys, slices: Sequence[SliceFile], columns: Sequence[str]) -> Numbers:
    """A mask of the wanted keys that are in force after `slices` (oldest first)."""
    # the newest row of a key decides, so older slices are read only while a key was not seen
    state = np.zeros(wanted.count, np.uint8)
    for item in reversed(slices):
        if not (state == _UNKNOWN).any():
            break
        newest = newest_of(wanted, [item], columns)
        state = np.where(state == _UNKNOWN, newest, state)
    found: Numbers = state == _IN_FORCE
    return found


def newest_of(wanted: WantedKeys, slices: Sequence[SliceFile], columns: Sequence[str]) -> Numbers:
    """The state of each wanted key: 0 absent, 1 in force, 2 taken back."""
    state = np.zeros(wanted.count, np.uint8)
    for item in slices:
        operation = item.vocabulary.operation_type_column
        for group in _ahead(key_rows(item, columns, wanted.schema)):
            at, numbers = wanted.find([rows.keys for rows in group])
            operations = pa.chunked_array([rows.batch.column(operation) for rows in group])
            back = takes_back(_whole_numbers(operations.take(pa.array(at))))
            # of equal places the last one counts, and rows are in order of offset
            state[numbers] = np.where(back, TAKEN_BACK, _IN_FORCE)
    return state


def _ahead(rows: Iterator[KeyRows]) -> Iterator[list[KeyRows]]:
    def some() -> list[KeyRows]:
        return list(itertools.islice(rows, _TOGETHER))

    # the next pieces are decoded by another thread while these are processed
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(some)
        while found := waiting.result():
            waiting = pool.submit(some)
            yield found


def _whole_numbers(column: pa.Array | pa.ChunkedArray) -> Numbers:
    found: Numbers = np.asarray(column).astype(np.uint64)
    return found


def takes_any_back(item: SliceFile) -> bool:
    """True if a slice has rows that take others back, by its statistics where it has them."""
    operation = item.vocabulary.operation_type_column
    with open_parquet(item.path) as file:
        footer = file.metadata
        index = next(
            (i for i in range(footer.num_columns) if footer.schema.column(i).path == operation), None
        )
        if index is None:
            return False
        groups = (footer.row_group(g).column(index).statistics for g in range(footer.num_row_groups))
        if all(s is not None and s.has_min_max and s.max == 0 for s in groups):
            return False
        return any(
            takes_back(batch.column(0).to_numpy(zero_copy_only=False)).any()
            for batch in file.batches([operation])
        )


# Lookup of wanted keys, from the newest slice to the oldest or to a state checkpoint of this key.
# Only the key columns are read, then the other columns of row groups with a newest row; row groups are
# skipped by their statistics.


def rows_of_keys(
    dataset: DatasetFiles, state: DatasetState, asked: pa.Table, key: Sequence[str], schema: pa.Schema
) -> tuple[pa.Table, Numbers]:
    """(the row in force of each key, by a schema; whether there is one); nulls where there is none.

    `asked` has distinct keys, in the declared types.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
    """
    operation, count, loose = state.vocabulary.operation_type_column, asked.num_rows, nullable(schema)
    rows = pa.table([pa.nulls(count, field.type) for field in loose], schema=loose)
    there = np.zeros(count, dtype=bool)
    open_ = np.arange(count)
    first = asked.column(key[0])
    files = _newest_first(dataset, state, tuple(key), with_any_of(quoted(key[0]), first, first.type))
    while len(open_) and (path := next(files, None)) is not None:
        try:
            with open_parquet(path) as file:
                place, back = _newest_places(file, asked.take(pa.array(open_)), key, operation)
                found = _rows_at(file, place[(place >= 0) & ~back], loose)
        except BadInputError as error:
            raise unreadable(path, error.message) from None
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise unreadable(path, first_line(error)) from None
        decided = place >= 0
        kept = open_[decided & ~back]
        at = np.full(count, -1)
        at[kept] = np.arange(len(kept))
        there[kept] = True
        rows = either(at >= 0, take(found, at), rows)
        open_ = open_[~decided]
    return rows, there


def _newest_first(
    dataset: DatasetFiles, state: DatasetState, key: tuple[str, ...], condition: Condition
) -> Iterator[Path]:
    # files are verified only when they are asked for
    recorded, _ = RecordedRows.since_checkpoint(dataset, state, key)
    for piece in reversed(recorded.slices):
        if not piece.may_hold(condition):
            continue
        try:
            yield piece.locate()
        except ObjectNotFoundError:
            path = dataset.data.locate(piece.name) if piece.name is not None else dataset.folder
            raise SliceNotFoundError.of(dataset.alias, path) from None
    if recorded.checkpoint is not None and state.checkpoint is not None:
        yield dataset.checkpoints.verified_path(state.checkpoint.physical_hash)


def _newest_places(
    file: ParquetSource, asked: pa.Table, key: Sequence[str], operation: str
) -> tuple[Numbers, Numbers]:
    # (place of the last row of each key in the file, -1 if absent; whether it takes one back)
    schema = key_schema(asked.schema, key)
    given = [keys_of(batch, key, schema) for batch in asked.to_batches()]
    wanted = WantedKeys.of(schema, given, nulls=True)
    place, back = np.full(wanted.count, -1, np.int64), np.zeros(wanted.count, dtype=bool)
    column, values = asked.column(key[0]), dict[str, list[Any]]()
    if not column.null_count and (t.is_string(column.type) or t.is_integer(column.type)):
        values[key[0]] = ordered(column.unique().to_pylist())
    for group, first in groups_with(file, values):
        start = first
        for batch in file.batches([operation, *key], groups=[group]):
            at, numbers = wanted.find([keys_of(batch, key, schema)])
            codes = batch.column(operation).to_numpy(zero_copy_only=False)
            # of equal numbers the last one counts
            place[numbers], back[numbers] = start + at, takes_back(codes[at])
            start += batch.num_rows
    own = np.concatenate([wanted.numbers(batch) for batch in given])
    return place[own], back[own]


def _rows_at(file: ParquetSource, places: Numbers, schema: pa.Schema) -> pa.Table:
    order = np.argsort(places, kind="stable")
    wanted = places[order]
    present = [name for name in file.schema_arrow.names if name in schema.names]
    parts, end = [schema.empty_table()], 0
    for group in range(file.metadata.num_row_groups):
        start, end = end, end + file.metadata.row_group(group).num_rows
        if not ((wanted >= start) & (wanted < end)).any():
            continue
        for batch in file.batches(present, groups=[group]):
            low, high = np.searchsorted(wanted, [start, start + batch.num_rows])
            chosen = batch.take(pa.array(wanted[low:high] - start))
            parts.append(pa.Table.from_batches([fitted(chosen, schema)]))
            start += batch.num_rows
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_tables(parts).take(pa.array(back))


def groups_with(file: ParquetSource, values: Mapping[str, Sequence[Any]]) -> Iterator[tuple[int, int]]:
    """(a row group that may have one of the ordered values in each column, the place of its first row)."""
    start = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)] if values else []
        bounds = {
            chunk.path_in_schema: chunk.statistics for chunk in chunks if chunk.path_in_schema in values
        }
        if all(may_hold(bounds.get(name), some) for name, some in values.items()):
            yield number, start
        start += group.num_rows
