"""Printing records: a table for people, json, ndjson or csv for programs. Data goes to standard output."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from odfchain.cli.context import say
from odfchain.cli.screen import echo_csv, echo_json, echo_table

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain import Dataset
    from odfchain.results import Dependent, Remote


def print_records(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[str],
    output: str,
    *,
    titles: dict[str, str] | None = None,
    right: Sequence[str] = (),
) -> None:
    """Print records; `titles` and `right` (columns aligned right) concern the table only."""
    match output:
        case "json":
            echo_json(list(rows), default=plain)
        case "ndjson":
            for row in rows:
                echo_json(row, default=plain, indent=None)
        case "csv":
            echo_csv(columns, ([cell_text(row.get(c)) for c in columns] for row in rows))
        case _:
            names = [(titles or {}).get(c, c) for c in columns]
            cells = ([cell_text(row.get(c)) for c in columns] for row in rows)
            echo_table(names, cells, right={columns.index(c) for c in right})


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    match value:
        case dt.datetime():
            utc = value.astimezone(dt.UTC) if value.tzinfo else value
            fine = "microseconds" if utc.microsecond % 1_000 else "milliseconds"
            text = utc.isoformat(timespec=fine if utc.microsecond else "seconds")
            return text.replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case dt.timedelta():
            return value.total_seconds()
    return str(value)


def cell_text(value: Any) -> str:
    """A value as a table and CSV have it; nothing for None."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list() | dict():
            return json.dumps(value, default=plain, ensure_ascii=False)
    return str(plain(value))


def numeric_columns(schema: pa.Schema) -> list[str]:
    """The columns of numbers, which a table aligns right."""
    kinds = ("int", "uint", "float", "double", "dec")
    return [field.name for field in schema if str(field.type).startswith(kinds)]


def human_size(size: float) -> str:
    """Bytes for people: `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_age(epoch_ns: int, now_ns: int) -> str:
    """A time for people: `3 hours ago`."""
    seconds = (now_ns - epoch_ns) // 1_000_000_000
    if seconds < 0:
        return "in the future"
    for size, unit in (
        (31_536_000, "year"),
        (2_592_000, "month"),
        (86_400, "day"),
        (3_600, "hour"),
        (60, "minute"),
    ):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def count_of(number: int, noun: str) -> str:
    """A number of things for people: `1,200 blocks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(tree: Any) -> None:
    """Print a JSON document in which values of all kinds may stand."""
    echo_json(tree, default=plain)


# Values of Arrow columns for printing: exact, of any type. Arrow's own conversion fails for nanoseconds and
# for years beyond Python's, and keeps NaN, which JSON lacks.

_SCALE = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_values(column: pa.Array, *, nan: bool = True) -> list[Any]:
    """The values of a column; times are texts already."""
    import pyarrow as pa
    from pyarrow import types as t

    kind = column.type
    if t.is_floating(kind):
        values = (column.cast(pa.float32()) if t.is_float16(kind) else column).to_pylist()
        # JSON has no NaN: None there, as within lists and structs
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
    day, _, rest = text.partition(" ")
    zone = "Z" if rest.endswith("Z") else ""
    clock, _, fraction = rest.removesuffix("Z").partition(".")
    if not clock:
        return text
    # 0, 3, 6 or 9 digits, whichever loses nothing
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{day}T{clock}.{fraction}{zone}" if fraction else f"{day}T{clock}{zone}"


def _time(text: str) -> str:
    clock, _, fraction = text.partition(".")
    if not fraction.strip("0"):
        return clock
    return f"{clock}.{fraction[:6].ljust(6, '0')}{fraction[6:] if fraction[6:].strip('0') else ''}"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    whole, part = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    fraction = f".{part:09}".rstrip("0") if part else ""
    found = [f"{months}M"] * bool(months) + [f"{days}D"] * bool(days)
    # seconds may have another sign than days
    found += [f"T{sign}{whole}{fraction}S"] * bool(nanoseconds)
    return "P" + ("".join(found) or "T0S")


# Warnings before history is given up: other copies, and broken references.


def tell_consequences(places: Sequence[Remote], dependents: Sequence[Dependent]) -> None:
    """Say which places have what is given up, and whose transactions have read it."""
    for place in places:
        known = f"has {len(place.has):,} of these blocks" if place.has else place.answer.value
        say(f"  {' and '.join(place.kinds)} {place.alias}: {place.problem or known}")
    for item in dependents:
        say(f"  breaks {item.alias}: {count_of(item.transactions, 'transaction')} read what is given up")


def tell_of_proof(dataset: Dataset) -> None:
    """Say that a second history can be proven, where the first one is signed."""
    if dataset.has_key and dataset.ref == "head":
        say("  the old head was signed: anyone who kept it and sees the new one can prove equivocation")


def places_tree(places: Sequence[Remote]) -> list[dict[str, Any]]:
    """The places for programs."""
    return [
        {
            "alias": place.alias,
            "kinds": list(place.kinds),
            "answer": place.answer.value,
            "blocks": len(place.has),
            "problem": place.problem,
        }
        for place in places
    ]


def dependents_tree(found: Sequence[Dependent]) -> list[dict[str, Any]]:
    """The dependents for programs."""
    return [{"dataset": item.alias, "transactions": item.transactions} for item in found]
