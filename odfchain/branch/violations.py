"""Rows whose foreign keys nothing answers: as messages, and as a table for a file.

Values are texts as people write them; several of them, and keys, are JSON.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.errors import ForeignKeyError, UsageError
from odfchain.store import fsio
from odfchain.text import counted, cut, one_line

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("dataset", "key", "columns", "value", "missing in", "origin")]
)
SHOWN = 20
"""Rows that a message lists."""
MOST_LISTED = 1_000_000
"""Rows that are listed in all; the others are counted."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Broken:
    """The rows of one dataset that break one of its foreign keys."""

    alias: str
    columns: tuple[str, ...]
    missing_in: str
    """What does not have what they refer to, in words."""
    count: int
    rows: pa.Table
    """The first of them, by `SCHEMA`."""
    refused: bool
    hint: str

    @property
    def message(self) -> str:
        """How many rows, and what is wrong with them."""
        columns = ", ".join(map(one_line, self.columns))
        verb = "refers" if self.count == 1 else "refer"
        return f"{counted(self.count, 'row')} of {self.alias} {verb} by {columns} to what {self.missing_in}"

    @property
    def lines(self) -> list[str]:
        """The first rows for people."""
        return [_line(row) for row in self.rows.slice(0, SHOWN).to_pylist()]


def _line(row: dict[str, Any]) -> str:
    names = json.loads(row["columns"])
    values = json.loads(row["value"]) if len(names) > 1 else [row["value"]]
    shown = ", ".join(
        f"{one_line(name)} = {cut(one_line(str(value)), _SHOWN_CHARACTERS)}"
        for name, value in zip(names, values, strict=True)
    )
    key = cut(one_line(row["key"]), 2 * _SHOWN_CHARACTERS)
    return f"{shown}, in {key}{' (' + row['origin'] + ')' if row['origin'] else ''}"


def refusal(found: Sequence[Broken]) -> ForeignKeyError:
    """The error of rows that are refused."""
    lines = [line for item in found for line in item.lines][:SHOWN]
    left = sum(item.count for item in found) - len(lines)
    lines += [f"… and {left:,} more"] if left > 0 else []
    return ForeignKeyError(
        f"{'; '.join(item.message for item in found)}; nothing was committed",
        list(found),
        excerpt=tuple(lines),
        hint=found[0].hint,
    )


def notes_on(found: Sequence[Broken]) -> list[str]:
    """What is said of rows that are committed all the same."""
    notes = []
    for item in found:
        left = item.count - min(item.count, SHOWN)
        listed = "; ".join(item.lines) + (f"; and {left:,} more" if left else "")
        notes.append(f"{item.message}; they are reported only: {listed}")
    return notes


def texts_of(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Values as texts."""
    return [None if value is None else _text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bytes():
            return value.hex()
        case bool():
            return str(value).lower()
        case dt.datetime():
            text = value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
            return text.replace("+00:00", "Z")
        case list() | dict():
            return json.dumps(value, ensure_ascii=False, default=_text)
    return str(value)


def rows_table(
    alias: str,
    key: Sequence[tuple[str, Sequence[str | None]]],
    columns: Sequence[str],
    values: Sequence[Sequence[str | None]],
    missing_in: str,
    origins: Sequence[str],
) -> pa.Table:
    """Rows by `SCHEMA`, of columns of texts."""
    names = [name for name, _ in key]
    keys = [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
        for row in zip(*(column for _, column in key), strict=True)
    ]
    several = len(columns) > 1
    texts = [
        json.dumps(list(row), ensure_ascii=False) if several else row[0] for row in zip(*values, strict=True)
    ]
    count = len(texts)
    listed = json.dumps(list(columns), ensure_ascii=False)
    data = [[alias] * count, keys, [listed] * count, texts, [missing_in] * count, list(origins)]
    return pa.table([pa.array(item, pa.string()) for item in data], schema=SCHEMA)


def write_violations(found: Iterable[Broken], path: Path) -> None:
    """Durably write the rows to a `.csv` or `.ndjson` file; without any it has none."""
    check_ending(path)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    as_csv = path.suffix == ".csv"
    if as_csv:
        writer.writerow(SCHEMA.names)
    for item in found:
        for row in item.rows.to_pylist():
            if as_csv:
                writer.writerow(row.values())
            else:
                text.write(json.dumps(row, ensure_ascii=False) + "\n")
    fsio.replace_file(path, text.getvalue().encode())


def check_ending(path: Path) -> None:
    """Nothing, where violations can be written to a file of this name.

    Raises:
        UsageError: they cannot.
    """
    if path.suffix not in (".csv", ".ndjson"):
        raise UsageError(f"{path}: violations are written as .csv or .ndjson")
