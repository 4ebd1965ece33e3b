"""Values of a slice as Python has them; a file may hold others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.text import one_line

_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Parts of a second in each of Arrow's units."""

_IMPOSSIBLE = (ValueError, OverflowError, KeyError, pa.ArrowException)
"""What Arrow raises for a value that Python cannot hold: a year after 9999, bytes that are no text, a time
zone that nobody knows."""


def check_values(column: pa.Array, name: str) -> None:
    """Nothing when every value is one of its type, and so has a text.

    Texts are UTF-8, decimals have their digits, times are in the years 1 to 9999, which is all that RFC 3339
    can write. Parquet and Spark hand on any bytes as text and any number as a time; other readers refuse the
    whole file for them, or fail.

    Raises:
        ValueError: says which column and what is wrong with it.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        wrong = "a text is not UTF-8" if "UTF8" in str(error) else one_line(str(error))
        raise ValueError(f"column `{one_line(name)}`: {wrong}") from None
    for leaf in _leaves(column):
        bounds = _bounds(leaf.type)
        if bounds is None or leaf.null_count == len(leaf):
            continue
        range_ = pc.min_max(leaf.cast(pa.int32()) if leaf.type.bit_width == 32 else leaf.cast(pa.int64()))
        for wrong in (range_["min"].as_py(), range_["max"].as_py()):
            if not bounds[0] <= wrong <= bounds[1]:
                raise ValueError(
                    f"column `{one_line(name)}`: {wrong} is no {leaf.type} of the years 1 to 9999"
                )


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The arrays without members that a column consists of; what is below a null is left out."""
    if t.is_struct(column.type):
        for member in column.flatten():
            yield from _leaves(member)
    elif t.is_map(column.type):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif t.is_list(column.type) or t.is_large_list(column.type) or t.is_fixed_size_list(column.type):
        yield from _leaves(column.flatten())
    else:
        yield column


def _bounds(data_type: pa.DataType) -> tuple[int, int] | None:
    """The smallest and the largest number that stands for a day or time; None for other types."""
    if t.is_date32(data_type):
        return _FIRST_DAY, _LAST_DAY
    if t.is_date64(data_type):
        return _FIRST_DAY * 86_400_000, (_LAST_DAY + 1) * 86_400_000 - 1
    if t.is_timestamp(data_type):
        parts = PER_SECOND[data_type.unit]
        return _FIRST_DAY * 86_400 * parts, (_LAST_DAY + 1) * 86_400 * parts - 1
    return None


def plain_value(scalar: pa.Scalar) -> Any:
    """The value; of one that Python cannot hold, a text that says so."""
    try:
        return scalar.as_py()
    except _IMPOSSIBLE:
        number = getattr(scalar, "value", None)
        return f"{number if isinstance(number, int) else 'a value'} that is no {scalar.type}"
