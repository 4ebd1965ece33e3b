"""Lookup of wanted keys in the rows of slices; nothing else is kept.

A key is compared as state is (`odfchain.slices.state.comparable`). A key with a null part is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.branches.row_diff import either, key_columns, key_hashes, take
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
        if not t.is_integer(distinct.type) or not len(distinct):
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
            found = pc.index_in(column, value_set=self.distinct, skip_nulls=True)
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
    """The columns of a key, under whatever names, in the types in which they are compared."""
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
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> WantedKeys:
        """The keys of rows that have the columns of `schema` in its order."""
        tables: list[pa.Table] = []
        gathered, limit = 0, _AT_ONCE
        for batch in batches:
            parts = _parts(batch)
            tables.append(_distinct([pa.table(parts, _numbered(parts)).filter(_whole(batch))]))
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


def _numbered(parts: Sequence[pa.Array]) -> list[str]:
    return [str(index) for index in range(len(parts))]


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
        own = pa.schema([(name, field.type) for name, field in zip(columns, schema, strict=True)])
        for batch in file.batches(wanted):
            yield KeyRows(item, fitted(batch, own).rename_columns(schema.names), batch)


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

_ASKED, _PLACE = "asked", "place"


def rows_of_keys(
    dataset: DatasetFiles, state: DatasetState, asked: pa.Table, key: Sequence[str], schema: pa.Schema
) -> tuple[pa.Table, Numbers]:
    """(the row in force of each key, by a schema; whether there is one); nulls where there is none.

    `asked` has distinct keys, in the declared types.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
    """
    names = state.vocabulary
    keys = key_columns(asked, key)
    loose = nullable(schema)
    rows = pa.table([pa.nulls(len(keys), field.type) for field in loose], schema=loose)
    there = np.zeros(len(keys), dtype=bool)
    open_ = np.arange(len(keys))
    first = asked.column(key[0])
    files = _newest_first(dataset, state, tuple(key), with_any_of(quoted(key[0]), first, first.type))
    while len(open_) and (path := next(files, None)) is not None:
        try:
            with open_parquet(path) as file:
                search = _Search(file, asked.take(pa.array(open_)), keys.take(pa.array(open_)), key)
                place, back = search.newest(names.operation_type_column)
                found = search.rows(place[(place >= 0) & ~back], loose)
        except BadInputError as error:
            raise unreadable(path, error.message) from None
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise unreadable(path, first_line(error)) from None
        decided = place >= 0
        kept = open_[decided & ~back]
        at = np.full(len(keys), -1)
        at[kept] = np.arange(len(kept))
        there[kept] = True
        rows = either(at >= 0, take(found, at), rows)
        open_ = open_[~decided]
    return rows, there


def _newest_first(
    dataset: DatasetFiles, state: DatasetState, key: tuple[str, ...], condition: Condition
) -> Iterator[Path]:
    # files are verified only when they are asked for
    recorded = RecordedRows.since_checkpoint(dataset, state, key).rows
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


class _Search:
    """Keys that are looked for in one file."""

    def __init__(self, file: ParquetSource, asked: pa.Table, keys: pa.Table, key: Sequence[str]) -> None:
        self._file, self._asked, self._keys, self._key = file, asked, keys, list(key)
        self._own = pa.schema([asked.schema.field(name).with_nullable(True) for name in key])
        self._values = [pc.unique(keys.column(name)) for name in keys.column_names]
        self._hashes = np.unique(key_hashes(keys))
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def newest(self, operation: str) -> tuple[Numbers, Numbers]:
        """(place of the last row of each key in the file, -1 if absent; whether it takes one back)."""
        tables, places, backs = [self._keys.slice(0, 0)], [np.zeros(0, np.int64)], [np.zeros(0, dtype=bool)]
        for group in self._groups():
            start = self._starts[group]
            for batch in self._file.batches([operation, *self._key], groups=[group]):
                keys = key_columns(pa.Table.from_batches([fitted(batch, self._own)]), self._key)
                hit = self._may_be(keys)
                tables.append(keys.take(pa.array(hit)))
                places.append(start + hit)
                codes = batch.column(operation).to_numpy(zero_copy_only=False)
                backs.append(takes_back(codes[hit]))
                start += batch.num_rows
        found = self._match(pa.concat_tables(tables), np.concatenate(places))
        order = np.concatenate(places)
        back = np.zeros(len(found), dtype=bool)
        if len(order):
            at = np.minimum(np.searchsorted(order, found), len(order) - 1)
            back = (found >= 0) & np.concatenate(backs)[at]
        return found, back

    def rows(self, places: Numbers, schema: pa.Schema) -> pa.Table:
        order = np.argsort(places, kind="stable")
        wanted = places[order]
        present = [name for name in self._file.schema_arrow.names if name in schema.names]
        parts = [schema.empty_table()]
        for group in np.unique(np.searchsorted(self._starts, wanted, side="right") - 1):
            start = self._starts[group]
            for batch in self._file.batches(present, groups=[int(group)]):
                low, high = np.searchsorted(wanted, [start, start + batch.num_rows])
                chosen = batch.take(pa.array(wanted[low:high] - start))
                parts.append(pa.Table.from_batches([fitted(chosen, schema)]))
                start += batch.num_rows
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(parts).take(pa.array(back))

    def _may_be(self, keys: pa.Table) -> Numbers:
        # positions of rows whose key may be wanted, with few false ones
        mask = np.ones(keys.num_rows, dtype=bool)
        for column, values in zip(keys.columns, self._values, strict=True):
            mask &= pc.is_in(column, value_set=values).to_numpy()
        at = np.flatnonzero(mask)
        if len(self._values) > 1:
            at = at[np.isin(key_hashes(keys.take(pa.array(at))), self._hashes)]
        found: Numbers = at
        return found

    def _match(self, found: pa.Table, places: Numbers) -> Numbers:
        # the last place of each wanted key; -1: not found
        count = self._keys.num_rows
        asked = self._keys.append_column(_ASKED, pa.array(np.arange(count)))
        asked = asked.append_column(_PLACE, pa.nulls(count, pa.int64()))
        found = found.append_column(_ASKED, pa.nulls(len(places), pa.int64()))
        found = found.append_column(_PLACE, pa.array(places))
        grouped = pa.concat_tables([asked, found]).group_by(self._keys.column_names, use_threads=False)
        joined = grouped.aggregate([(_ASKED, "max"), (_PLACE, "max")])
        joined = joined.filter(joined.column(f"{_ASKED}_max").is_valid())
        last = np.full(count, -1, dtype=np.int64)
        last[joined.column(f"{_ASKED}_max").to_numpy()] = (
            joined.column(f"{_PLACE}_max").fill_null(-1).to_numpy()
        )
        return last

    def _groups(self) -> list[int]:
        # row groups that may have a key, by the statistics of its first column
        footer, name = self._file.metadata, self._key[0]
        every = list(range(footer.num_row_groups))
        column = self._asked.column(name)
        place = next((i for i in range(footer.num_columns) if footer.schema.column(i).path == name), None)
        if place is None or column.null_count or not (t.is_string(column.type) or t.is_integer(column.type)):
            return every
        values = ordered(column.unique().to_pylist())
        return [
            group for group in every if may_hold(footer.row_group(group).column(place).statistics, values)
        ]
