"""The rows of an answer as JSON holds them, in the three formats of the reference node.

Decimals, times and dates are text, bytes are hex, what is no finite number is null. Maps, which the node has
no form for, are lists of `{key, value}`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import QueryError
from odfchain.query.node_json import double, single
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("JsonAoS", "JsonSoA", "JsonAoA")
"""Rows as objects, columns as lists, rows as lists."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH_ORDINAL = 719_163
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH_ORDINAL, dt.date.max.toordinal() - _EPOCH_ORDINAL
_T = TypeVar("_T")


def json_rows(table: pa.Table, data_format: str) -> Any:
    """The rows of a table in one of `FORMATS`."""
    names = table.schema.names
    if data_format != "JsonAoA":
        _check_names(names)
    named = data_format != "JsonAoA"
    columns = [_values(table.column(i).combine_chunks(), names[i], named) for i in range(len(names))]
    if data_format == "JsonSoA":
        return dict(sorted(zip(names, columns, strict=True)))
    if data_format == "JsonAoA":
        return [list(row) for row in zip(*columns, strict=True)]
    order = sorted(range(len(names)), key=names.__getitem__)
    keys, sorted_columns = [names[i] for i in order], [columns[i] for i in order]
    return [dict(zip(keys, row, strict=True)) for row in zip(*sorted_columns, strict=True)]


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise QueryError(
            f"two columns are called {one_line(twice, 80)}: an answer has one value for each name",
            hint="give one of them another name with AS",
        )


def _values(array: pa.Array, name: str, named: bool) -> list[Any]:
    """One value of JSON for each of an array; `named`: structs are objects, else lists."""
    import pyarrow as pa
    from pyarrow import types as t

    kind = array.type
    if t.is_null(kind) or t.is_boolean(kind) or t.is_integer(kind) or t.is_string(kind):
        return list(array.to_pylist())
    if t.is_large_string(kind):
        return list(array.to_pylist())
    if t.is_float64(kind):
        return _each(double, array.to_pylist())
    if t.is_floating(kind):
        return _each(single, array.cast(pa.float32()).to_pylist())
    if t.is_decimal(kind):
        return _each(_decimal, array.to_pylist())
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return _each(bytes.hex, array.to_pylist())
    if t.is_date(kind):
        if t.is_date32(kind):
            return _each(_day, array.cast(pa.int32()).to_pylist())
        return _each(lambda v: _moment(v, 1_000), array.cast(pa.int64()).to_pylist())
    if t.is_timestamp(kind):
        numbers = array.cast(pa.int64()).to_pylist()
        return _each(_in_zone(kind.tz, _PER_SECOND[kind.unit]), numbers)
    if t.is_time(kind):
        numbers = array.cast(pa.int32() if t.is_time32(kind) else pa.int64()).to_pylist()
        return _each(lambda v: _time_of_day(v, _PER_SECOND[kind.unit]), numbers)
    if t.is_duration(kind):
        return _each(lambda v: _span(v, _PER_SECOND[kind.unit]), array.cast(pa.int64()).to_pylist())
    if t.is_dictionary(kind):
        return _values(array.dictionary_decode(), name, named)
    if t.is_fixed_size_list(kind):
        array, kind = array.cast(pa.list_(kind.value_field)), pa.list_(kind.value_field)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        if t.is_map(kind):
            keys, items = _values(array.keys, name, named), _values(array.items, name, named)
            inner: list[Any] = [{"key": k, "value": v} for k, v in zip(keys, items, strict=True)]
        else:
            inner = _values(array.values, name, named)
        ends = array.offsets.to_pylist()
        there = array.is_valid().to_pylist()
        return [inner[a:b] if ok else None for a, b, ok in zip(ends, ends[1:], there, strict=False)]
    if t.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if named:
            _check_names(names)
        parts = [_values(part, name, named) for part in array.flatten()]
        rows = zip(*parts, strict=True) if parts else [() for _ in range(len(array))]
        made = ((dict(sorted(zip(names, row, strict=True))) if named else list(row)) for row in rows)
        there = array.is_valid().to_pylist()
        return [value if ok else None for value, ok in zip(made, there, strict=True)]
    raise QueryError(
        f"the column {one_line(name, 80)} is of type {one_line(str(kind), 80)}, which JSON does not have",
        hint="cast it to text: CAST(column AS VARCHAR)",
    )


def _each(make: Callable[[_T], Any], values: list[_T | None]) -> list[Any]:
    return [None if value is None else make(value) for value in values]


def _decimal(value: Decimal) -> str:
    return format(value, "f")


# --- times: 0, 3, 6 or 9 digits of a second, as many as there are ---------------------------------------


def _day(days: int) -> str:
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise QueryError("a date before the year 1 or after 9999, which answers do not have")
    return dt.date.fromordinal(days + _EPOCH_ORDINAL).isoformat()


def _time_of_day(value: int, per_second: int) -> str:
    seconds, part = divmod(value, per_second)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(part * (10**9 // per_second))}"


def _fraction(nanoseconds: int) -> str:
    if not nanoseconds:
        return ""
    if nanoseconds % 1_000:
        return f".{nanoseconds:09}"
    return f".{nanoseconds // 1_000:06}" if nanoseconds % 1_000_000 else f".{nanoseconds // 1_000_000:03}"


def _moment(value: int, per_second: int) -> str:
    days, rest = divmod(value, 86_400 * per_second)
    return f"{_day(days)}T{_time_of_day(rest, per_second)}"


def _in_zone(zone: str | None, per_second: int) -> Callable[[int], str]:
    """What writes a timestamp: the time of a zone with its distance from UTC, or none of both."""
    if zone is None:
        return lambda value: _moment(value, per_second)
    if zone in ("UTC", "Z", "+00:00", "Etc/UTC"):
        return lambda value: _moment(value, per_second) + "Z"
    raise QueryError(
        f"times of the zone {one_line(zone, 40)} depend on tables that change, so they are not signed",
        hint="give them in UTC, or cast them to text",
    )


def _span(value: int, per_second: int) -> str:
    """A length of time as ISO 8601 has it, in seconds."""
    sign = "-" if value < 0 else ""
    seconds, part = divmod(abs(value), per_second)
    if not value:
        return "P0D"
    fraction = f"{part * (10**9 // per_second):09}".rstrip("0")
    return f"{sign}PT{seconds}{'.' if fraction else ''}{fraction}S"
