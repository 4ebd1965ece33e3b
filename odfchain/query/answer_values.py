"""The rows of an answer as JSON holds them, in the three formats of the reference node.

Decimals, times, dates and intervals are text, bytes are hex, what is no finite number is null. What the node
has no form for: maps are lists of `{key, value}`, views of lists are lists, dictionaries are their values.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import QueryError
from odfchain.query.interval_arrays import number_schema, reread
from odfchain.query.node_json import double, single
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("JsonAoS", "JsonSoA", "JsonAoA")
"""Rows as objects, columns as lists, rows as lists."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH_ORDINAL = 719_163
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH_ORDINAL, dt.date.max.toordinal() - _EPOCH_ORDINAL
_LONGEST = 2**63 - 1
_T = TypeVar("_T")


def json_rows(table: pa.Table, data_format: str) -> Any:
    """The rows of a table in one of `FORMATS`."""
    names = table.schema.names
    if data_format != "JsonAoA":
        _check_names(names)
    named = data_format != "JsonAoA"
    kinds, table = table.schema.types, _with_numbers(table)
    columns = [
        _values(table.column(i).combine_chunks(), kind, names[i], named) for i, kind in enumerate(kinds)
    ]
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


def _with_numbers(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    schema = number_schema(table.schema)
    return pa.Table.from_batches([reread(batch, schema) for batch in table.to_batches()], schema)


def _values(array: pa.Array, kind: pa.DataType, name: str, named: bool) -> list[Any]:
    """One value of JSON for each of an array of a kind; `named`: structs are objects, else lists."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types as t

    if t.is_null(kind) or t.is_boolean(kind) or t.is_integer(kind):
        return list(array.to_pylist())
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return list(array.to_pylist())
    if (interval := _INTERVALS.get(str(kind))) is not None:
        return _each(interval, array.to_pylist())
    if t.is_float64(kind):
        return _each(double, array.to_pylist())
    if t.is_floating(kind):
        return _each(single, array.cast(pa.float32()).to_pylist())
    if t.is_decimal(kind):
        return _each(_decimal, array.to_pylist())
    if any(of(kind) for of in (t.is_binary, t.is_large_binary, t.is_fixed_size_binary, t.is_binary_view)):
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
        return _values(array.dictionary_decode(), kind.value_type, name, named)
    if t.is_map(kind):
        keys = _values(array.keys, kind.key_type, name, named)
        items = _values(array.items, kind.item_type, name, named)
        inner = [{"key": k, "value": v} for k, v in zip(keys, items, strict=True)]
        ends, there = array.offsets.to_pylist(), array.is_valid().to_pylist()
        return [inner[a:b] if ok else None for a, b, ok in zip(ends, ends[1:], there, strict=False)]
    lists = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    if any(of(kind) for of in lists):
        flat = iter(_values(array.flatten(), kind.value_type, name, named))
        return _each(lambda count: list(islice(flat, count)), pc.list_value_length(array).to_pylist())
    if t.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if named:
            _check_names(names)
        parts = [_values(part, f.type, name, named) for part, f in zip(array.flatten(), kind, strict=True)]
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
    """A length of time as ISO 8601 has it, in seconds; one beyond 2⁶³ milliseconds as the node has it."""
    if abs(value) * 1_000 // per_second > _LONGEST:
        return "<invalid>"
    sign = "-" if value < 0 else ""
    seconds, part = divmod(abs(value), per_second)
    if not value:
        return "P0D"
    fraction = f"{part * (10**9 // per_second):09}".rstrip("0")
    return f"{sign}PT{seconds}{'.' if fraction else ''}{fraction}S"


# --- intervals, as the node's library shows them -----------------------------------------------------


def _months(value: int) -> str:
    return f"{value // 12} years {value % 12} mons"


def _days_and_milliseconds(value: int) -> str:
    days, milliseconds = struct.unpack("<ii", struct.pack("<q", value))
    return _interval([(days, "days")], milliseconds, 3)


def _months_days_nanoseconds(value: tuple[int, int, int]) -> str:
    return _interval([(value[0], "mons"), (value[1], "days")], value[2], 9)


def _interval(parts: list[tuple[int, str]], rest: int, digits: int) -> str:
    """The parts that are not 0, and what the rest is in hours, minutes and seconds with so many digits."""
    seconds, part = divmod(abs(rest), 10**digits)
    sign = -1 if rest < 0 else 1
    parts = [*parts, (sign * (seconds // 3_600), "hours"), (sign * (seconds // 60 % 60), "mins")]
    texts = [f"{number} {unit}" for number, unit in parts if number]
    if seconds % 60 or part:
        texts.append(f"{'-' if rest < 0 else ''}{seconds % 60}.{part:0{digits}} secs")
    return " ".join(texts) or "0 secs"


_INTERVALS: dict[str, Callable[[Any], str]] = {
    "month_interval": _months,
    "day_time_interval": _days_and_milliseconds,
    "month_day_nano_interval": _months_days_nanoseconds,
}
