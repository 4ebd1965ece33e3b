"""Printing records: a table for people, json, ndjson or csv for programs. Data goes to standard output."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.support.screen import echo_csv, echo_json, echo_table

if TYPE_CHECKING:
    import pyarrow as pa


_F = TypeVar("_F", bound=Callable[..., Any])
RECORD_FORMATS = ("table", "json", "ndjson", "csv")


def format_option(*formats: str, default: str = "table") -> Callable[[_F], _F]:
    """The option `-o/--output-format`."""
    return click.option(
        "-o",
        "--output-format",
        "output",
        type=click.Choice(formats or RECORD_FORMATS),
        default=default,
        show_default=True,
        help="How to print the result.",
    )


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
