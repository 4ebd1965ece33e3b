"""Lookup of wanted keys in the rows of slices; nothing else is kept.

A key is compared as state is (`odfchain.odf.row_hash.comparable`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branches.row_diff import key_columns
from odfchain.odf.enums import OperationType
from odfchain.odf.row_hash import Numbers
from odfchain.slices.footers import footer_stats, quoted
from odfchain.slices.reader import ParquetSource, fitted, open_parquet
from odfchain.slices.skipping import ColumnTest, Condition, Group, Test, may_match
from odfchain.slices.state import SliceFile, codes_of, rows_of, takes_back

_UNKNOWN, _IN_FORCE, TAKEN_BACK = 0, 1, 2
_TOGETHER = 4
"""Batches of rows that are looked up at a time: each lookup begins with hashing the wanted keys."""
_AT_ONCE = 1 << 20
"""Keys that are gathered before only the distinct ones are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedKeys:
    """Distinct keys, each with a number."""

    schema: pa.Schema
    """The columns of a key, under any names, in the types in which they are compared."""
    keys: pa.Table
    """Their parts, as columns that are equal where they are."""

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.keys.num_rows)

    @property
    def texts(self) -> list[str]:
        """The keys in their order, where they are one text each."""
        return list(self.keys.column(0).to_pylist()) if self.count else []

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, nulls: bool = False) -> WantedKeys:
        """The keys of rows that have the columns of `schema` in its order.

        With `nulls` a null is a value like others; else a key with a null part is none.
        """
        tables: list[pa.Table] = []
        gathered, limit = 0, _AT_ONCE
        for batch in batches:
            tables.append(_distinct([_parts(batch if nulls else batch.drop_null())]))
            gathered += len(tables[-1])
            if gathered > limit:
                tables = [_distinct(tables)]
                gathered = len(tables[0])
                limit = gathered + max(_AT_ONCE, gathered)
        return cls(schema, _distinct(tables) if tables else pa.table({}))

    def find(self, *batches: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """(the rows whose key is wanted, in their order; its numbers); columns as those of `schema`."""
        at: Numbers = np.zeros(0, np.int64)
        if not self.count or not batches:
            return at, at
        rows = _parts(*batches)
        if rows.num_columns == 1:
            found = pc.index_in(rows.column(0), value_set=self.keys.column(0))
            hit = pc.indices_nonzero(found.is_valid())
            return np.asarray(hit).astype(np.int64), np.asarray(found.take(hit)).astype(np.int64)
        # few rows have parts that are all wanted
        near = functools.reduce(pc.and_, map(pc.is_in, rows.columns, self.keys.columns))
        at = np.flatnonzero(near)
        both = pa.concat_tables([self.keys, rows.filter(near)])
        codes, most = codes_of(both, both.column_names)
        number = np.full(most, -1, np.int64)
        number[codes[: self.count]] = np.arange(self.count)
        numbers = number[codes[self.count :]]
        return at[numbers >= 0], numbers[numbers >= 0]

    def numbers(self, *batches: pa.RecordBatch) -> Numbers:
        """The number of each row's key, -1 where it is not wanted; columns as those of `schema`."""
        numbers = np.full(sum(batch.num_rows for batch in batches), -1, np.int64)
        at, codes = self.find(*batches)
        numbers[at] = codes
        return numbers

    def newest(self, slices: Sequence[SliceFile], columns: Sequence[str]) -> Numbers:
        """The state of each after `slices` (oldest first): 0 absent, 1 in force, 2 taken back."""
        state = np.zeros(self.count, np.uint8)
        for item in slices:
            for group in _ahead(key_rows(item, columns, self.schema)):
                at, numbers = self.find(*(keys for keys, *_ in group))
                back = takes_back(np.concatenate([operations for *_, operations in group])[at])
                # of equal places the last one counts, and rows are in order of offset
                state[numbers] = np.where(back, TAKEN_BACK, _IN_FORCE)
        return state

    def in_force(self, slices: Sequence[SliceFile], columns: Sequence[str]) -> Numbers:
        """A mask of those that are in force after `slices` (oldest first)."""
        # the newest row of a key decides, so older slices are read only while a key was not seen
        state = np.zeros(self.count, np.uint8)
        for item in reversed(slices):
            if not (state == _UNKNOWN).any():
                break
            state = np.where(state == _UNKNOWN, self.newest([item], columns), state)
        found: Numbers = state == _IN_FORCE
        return found


def _parts(*batches: pa.RecordBatch) -> pa.Table:
    return key_columns(pa.Table.from_batches(batches), batches[0].schema.names)


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


KeyRows = tuple[pa.RecordBatch, pa.RecordBatch, Numbers, Numbers]
"""The keys of some rows, the rows with all columns that were read, their offsets and their operations."""


def key_rows(
    item: SliceFile, columns: Sequence[str], schema: pa.Schema, others: Sequence[str] = ()
) -> Iterator[KeyRows]:
    """The rows of a slice with their keys, and `others` of their columns, in batches in order of offset."""
    # a column that an older slice lacks is null
    for batch, offsets, operations in rows_of(item, (), None, also=list(dict.fromkeys([*columns, *others]))):
        yield keys_of(batch, columns, schema), batch, offsets, operations


def _ahead(rows: Iterator[KeyRows]) -> Iterator[list[KeyRows]]:
    def some() -> list[KeyRows]:
        return list(itertools.islice(rows, _TOGETHER))

    # the next pieces are decoded by another thread while these are processed
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(some)
        while found := waiting.result():
            waiting = pool.submit(some)
            yield found


def takes_any_back(item: SliceFile) -> bool:
    """True if a slice has rows that take others back, by its statistics where it has them."""
    operation = item.vocabulary.operation_type_column
    others = ColumnTest(quoted(operation), Test.NE, Group.WHOLE, OperationType.APPEND.code)
    with open_parquet(item.path) as file:
        groups = [group for group, _ in groups_with(file, others, [operation])]
        batches = file.batches([operation], groups=groups) if groups else ()
        return any(takes_back(batch.column(0).to_numpy(zero_copy_only=False)).any() for batch in batches)


def groups_with(
    file: ParquetSource, condition: Condition, columns: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """(a row group that may have a row as a condition on some columns says, the place of its first row)."""
    start, footer = 0, file.metadata
    for number in range(footer.num_row_groups):
        stats = footer_stats(footer, file.schema_arrow, group=number, columns=[*map(quoted, columns)])
        if may_match(stats, condition):
            yield number, start
        start += stats.row_count
