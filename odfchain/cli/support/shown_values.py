"""Values of Arrow columns as Python has them to be printed: exact, of any type, and as `plain` prints them.

Arrow's own conversion fails for nanoseconds and for years that Python's times do not reach, and keeps NaN,
which JSON has no word for.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_SCALE = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_values(column: pa.Array, *, nan: bool = True) -> list[Any]:
    """The values of a column; times are texts already.

    Without `nan`, what is no number is None, as it is within lists and structs, which are JSON everywhere.
    """
    import pyarrow as pa
    from pyarrow import types as t

    kind = column.type
    if t.is_floating(kind):
        values = (column.cast(pa.float32()) if t.is_float16(kind) else column).to_pylist()
        return values if nan else [None if v is None or not math.isfinite(v) else v for v in values]
    if t.is_timestamp(kind):
        utc = column.cast(pa.timestamp(kind.unit, "UTC")) if kind.tz else column
        return [v and _moment(v) for v in utc.cast(pa.string()).to_pylist()]
    if t.is_time(kind):
        return [v and _time(v) for v in column.cast(pa.string()).to_pylist()]
    if t.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    if t.is_duration(kind):
        scale = _SCALE[kind.unit]
        return [None if v is None else v / scale for v in column.cast(pa.int64()).to_pylist()]
    if t.is_interval(kind):
        return [v and _interval(*v) for v in column.to_pylist()]
    if t.is_dictionary(kind):
        return python_values(column.dictionary_decode(), nan=nan)
    if t.is_struct(kind):
        return _structs(column)
    if t.is_map(kind):
        return [python_values(value.values, nan=False) if value.is_valid else None for value in column]
    if t.is_nested(kind) and not t.is_union(kind):
        return _lists(column)
    return list(column.to_pylist())


def _structs(column: pa.Array) -> list[Any]:
    kind = column.type
    names = [kind.field(i).name for i in range(kind.num_fields)]
    parts = [python_values(part, nan=False) for part in column.flatten()]
    rows = zip(*parts, strict=True) if parts else [()] * len(column)
    present = column.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if there else None
        for there, row in zip(present, rows, strict=True)
    ]


def _lists(column: pa.Array) -> list[Any]:
    import pyarrow.compute as pc

    items = iter(python_values(column.flatten(), nan=False))
    lengths = pc.list_value_length(column).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _moment(text: str) -> str:
    """RFC 3339 with 0, 3, 6 or 9 digits of a fraction, whichever loses nothing."""
    day, _, rest = text.partition(" ")
    zone = "Z" if rest.endswith("Z") else ""
    clock, _, fraction = rest.removesuffix("Z").partition(".")
    if not clock:
        return text
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{day}T{clock}.{fraction}{zone}" if fraction else f"{day}T{clock}{zone}"


def _time(text: str) -> str:
    clock, _, fraction = text.partition(".")
    if not fraction.strip("0"):
        return clock
    return f"{clock}.{fraction[:6].ljust(6, '0')}{fraction[6:] if fraction[6:].strip('0') else ''}"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """A length of time by the calendar, as ISO 8601 writes it."""
    whole, part = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    fraction = f".{part:09}".rstrip("0") if part else ""
    found = [f"{months}M"] * bool(months) + [f"{days}D"] * bool(days)
    found += [f"T{sign}{whole}{fraction}S"] * bool(nanoseconds)
    return "P" + ("".join(found) or "T0S")
