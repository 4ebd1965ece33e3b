"""What a footer reports as one line of text, and back: bounds as they are compared, types by their names."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.slices.footers import ColumnStats, FileStats, Value

LONGEST = 1 << 20
"""A longer text is not worth keeping: reading the footer again costs as much [characters]."""
_WITH_ZONE = re.compile(r"timestamp\[(\w+), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")


def stats_text(stats: FileStats) -> str | None:
    """The statistics of a file as a line; None where that would not be the same, or is too long."""
    by_name = {each.name: each for each in stats.columns}
    if stats.present is None or len(by_name) != len(stats.columns):
        return None
    others = sorted(stats.present - by_name.keys())
    try:
        names = json.dumps([[[c.name, str(c.type)] for c in stats.columns], others])
        if any(_type_named(str(each.type)) != each.type for each in stats.columns):
            return None
        text = json.dumps([stats.row_count, names, [_column(each) for each in stats.columns]])
    except (ValueError, pa.ArrowException):
        return None
    return text if len(text) <= LONGEST else None


def stats_of_text(text: str | bytes) -> FileStats:
    """The statistics that a line means.

    Raises:
        ValueError: it is none.
    """
    try:
        rows, names, values = json.loads(text)
        columns, others = _names(names)
        found = tuple(
            ColumnStats(name, kind, *_values(kind, given))
            for (name, kind), given in zip(columns, values, strict=True)
        )
    except (TypeError, KeyError, InvalidOperation, binascii.Error, pa.ArrowException) as error:
        raise ValueError(str(error)) from None
    return FileStats(rows, found, others)


def _column(stats: ColumnStats) -> Any:
    if stats.low is None or stats.high is None:
        return stats.null_count
    return [stats.null_count, _plain(stats.low), _plain(stats.high)]


def _plain(value: Value) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _values(kind: pa.DataType, given: Any) -> tuple[Any, ...]:
    if isinstance(given, int):
        return (given,)
    nulls, low, high = given
    if t.is_decimal(kind):
        return nulls, Decimal(low), Decimal(high)
    if isinstance(low, str) and not (t.is_string(kind) or t.is_large_string(kind)):
        return nulls, base64.b64decode(low), base64.b64decode(high)
    return nulls, low, high


@functools.lru_cache(maxsize=1_024)
def _names(text: str) -> tuple[tuple[tuple[str, pa.DataType], ...], frozenset[str]]:
    """(columns with what is reported of them, all columns): the same text for many slices."""
    columns, others = json.loads(text)
    named = tuple((name, _type_named(kind)) for name, kind in columns)
    return named, frozenset([*(name for name, _ in named), *others])


@functools.lru_cache(maxsize=1_024)
def _type_named(text: str) -> pa.DataType:
    if found := _WITH_ZONE.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _DECIMAL.fullmatch(text):
        return getattr(pa, f"decimal{found[1]}")(int(found[2]), int(found[3]))
    if found := _FIXED.fullmatch(text):
        return pa.binary(int(found[1]))
    return pa.type_for_alias(text)
