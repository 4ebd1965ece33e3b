"""The order of recorded rows: by column after column, nulls first, NaN last, texts by their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = npt.NDArray[np.int64]


def order_of(rows: pa.Table, columns: Sequence[int | str]) -> Numbers:
    """The positions of rows in the order of these columns; those that are equal in them stay as they are."""
    # a select by numbers, because names may be there twice
    chosen = rows.select(list(columns)).columns
    if any(_has_items(column.type) for column in chosen):
        keys = [tuple(map(sort_value, row)) for row in zip(*chosen, strict=True)]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    flat = [part for column in chosen for part in _flat(column)]
    if not flat:
        return np.arange(rows.num_rows)
    names = [str(number) for number in range(len(flat))]
    by = [(name, "ascending") for name in names]
    indices: Numbers = pc.sort_indices(pa.table(flat, names=names), sort_keys=by).to_numpy()
    return indices.astype(np.int64)


def _has_items(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_items(field.type) for field in kind)
    return bool(pa.types.is_nested(kind))


def _flat(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Columns without nulls that matter, without NaN and without parts, by which rows are ordered alike."""
    if pa.types.is_null(column.type):
        return
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        yield column.is_valid()
    if pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from _flat(part)
    elif pa.types.is_floating(column.type):  # Arrow sorts NaN next to the nulls
        number = column.cast(pa.float64())
        odd = pc.is_nan(number)
        yield from (odd, pc.if_else(odd, pa.scalar(0.0), number))
    else:
        yield column


def sort_value(value: pa.Scalar) -> Any:
    """A value that Python orders as the engine does."""
    if not value.is_valid:
        return (False,)
    kind = value.type
    if pa.types.is_dictionary(kind):
        return sort_value(value.value)
    if pa.types.is_struct(kind):
        return (True, tuple(sort_value(part) for part in value.values()))
    if pa.types.is_nested(kind):
        return (True, tuple(sort_value(item) for item in value.values))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return (True, value.as_buffer().to_pybytes())
    if pa.types.is_temporal(kind):
        return (True, value.value)
    plain = value.as_py()
    if pa.types.is_floating(kind):
        odd = math.isnan(plain)
        return (True, odd, 0 if odd else plain)
    return (True, plain)
