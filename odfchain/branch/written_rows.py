"""Changes as the rows that record them: `-R`, or `-C` and `+C`, or `+A`, in the order of a Snapshot.

`-R` and `-C` carry the recorded values, event time included, `+A` and `+C` the new ones. Rows are ordered by
key and then by operation, so that `-C` stands right before its `+C`. Keys are ordered as Spark orders them
(`odfchain.ingest.merge_strategies`): nulls first, NaN last, texts by their UTF-8 bytes; a property test holds
the two to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.branch.row_diff import RowDiff
from odfchain.digest.row_hash import Numbers
from odfchain.model.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from odfchain.model.events import DatasetVocabulary


def rows_of_changes(diff: RowDiff, names: DatasetVocabulary) -> pa.Table:
    """The rows that bring these changes about: operation and data columns, in the order they are written."""
    keys = diff.rows_of_keys()
    diff = diff.only(order_of(keys, keys.column_names))
    had, has = diff.had, diff.has
    old = np.stack([had, np.where(has, CORRECT_FROM, RETRACT)], axis=1)
    new = np.stack([has, np.where(had, CORRECT_TO, APPEND)], axis=1)
    # two places for each key: what was there before, then what is there after
    there, operations = np.stack([old, new], axis=1).reshape(-1, 2).T
    positions = np.arange(2 * len(diff)).reshape(2, -1).T.reshape(-1)
    written = there.astype(bool)
    rows = pa.concat_tables([diff.before, diff.after]).take(pa.array(positions[written]))
    codes = pa.array(operations[written].astype(np.int32))
    return rows.add_column(0, names.operation_type_column, codes)


def all_added(rows: pa.Table, names: DatasetVocabulary) -> pa.Table:
    """New rows as they come."""
    codes = pa.array(np.full(rows.num_rows, APPEND, dtype=np.int32))
    return rows.add_column(0, names.operation_type_column, codes)


def order_of(rows: pa.Table, columns: Sequence[str]) -> Numbers:
    """The positions of rows in the order of these columns, nulls first and NaN last."""
    parts: list[pa.Array | pa.ChunkedArray] = []
    for name in columns:
        parts += _ordered_parts(rows.column(name))
    if not parts:
        return np.arange(rows.num_rows)
    table = pa.table(parts, [str(number) for number in range(len(parts))])
    found: Numbers = pc.sort_indices(
        table, sort_keys=[(name, "ascending") for name in table.column_names]
    ).to_numpy()
    return found


def _ordered_parts(column: pa.ChunkedArray) -> list[pa.Array | pa.ChunkedArray]:
    """A column as those whose order, one after the other, is its own."""
    if t.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if t.is_null(column.type):
        return []
    if t.is_nested(column.type):
        return [pa.array(_ranks(column))]
    parts = [column.is_valid()] if column.null_count else []
    if t.is_floating(column.type):
        number = column.cast(pa.float64())
        nan = pc.fill_null(pc.is_nan(number), False)
        return [*parts, nan, pc.if_else(nan, pa.scalar(0.0), number)]
    return [*parts, column]


def _ranks(column: pa.ChunkedArray) -> Numbers:
    """The place of each value among the others; the values of structures and lists are few."""
    values = [_sortable(value) for value in column]
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, rank = np.zeros(len(values), dtype=np.int64), 0
    for before, at in zip([None, *order], order, strict=False):
        rank += before is not None and values[before] != values[at]
        ranks[at] = rank
    return ranks


def _sortable(value: pa.Scalar) -> tuple[Any, ...]:
    """A value whose order among others of its type is Spark's: part by part, what ends earlier first."""
    if not value.is_valid:
        return ()
    kind = value.type
    if t.is_struct(kind):
        return tuple(_sortable(value[index]) for index in range(kind.num_fields))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return (tuple(_sortable(item) for item in value.values),)
    if t.is_floating(kind):
        number = value.as_py()
        return (1, 0.0) if np.isnan(number) else (0, number)
    if t.is_string(kind):
        return (value.as_py().encode(),)
    return (value.value if t.is_temporal(kind) else value.as_py(),)
