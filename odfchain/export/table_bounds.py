"""What a table says of the values in a file: only what no reader can skip a row by that is there.

The footers are taken at their word, but for long texts, which would fill the metadata. NaN is in no bound
and, for Spark, greater than every number, so floats have none.

A Delta table names the columns that its log says anything of: some readers take a bound that is missing for
one that nothing is within. For the same reason a file has bounds of all of them, or of none. Times have
milliseconds there, and decimals are JSON numbers, which readers may take for doubles. Source: RFC-045.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.slices.footers import ColumnStats, FileStats, quoted

_LONGEST_TEXT = 256
_DOUBLE_DIGITS = 15
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader knows [ms since the epoch]."""


def reported(stats: FileStats, name: str) -> ColumnStats | None:
    """What a footer reports of a column of a table."""
    return stats.column(quoted(name))


def exact_bounds(stats: ColumnStats, kind: pa.DataType) -> tuple[Any, Any] | None:
    """(least, greatest) as Iceberg has them: days, microseconds, numbers, texts, decimals; None: unknown."""
    low, high = stats.low, stats.high
    if low is None or high is None:
        return None
    if t.is_timestamp(kind) and isinstance(low, int) and isinstance(high, int):
        return low // 1000, -(-high // 1000)
    if t.is_string(kind) and isinstance(low, str) and isinstance(high, str):
        return (low, high) if max(len(low.encode()), len(high.encode())) <= _LONGEST_TEXT else None
    return (low, high) if t.is_integer(kind) or t.is_date32(kind) or t.is_decimal(kind) else None


def delta_columns(columns: pa.Schema) -> Sequence[str]:
    """The columns of a Delta table that its log says anything of."""

    def has_bounds(field: pa.Field) -> bool:
        kind = field.type
        short = t.is_decimal(kind) and kind.precision <= _DOUBLE_DIGITS
        other = t.is_integer(kind) or t.is_date32(kind) or t.is_timestamp(kind) or t.is_string(kind)
        return bool(short or other) and quoted(field.name) == field.name

    return [field.name for field in columns if has_bounds(field)]


def delta_stats(stats: FileStats, columns: pa.Schema, names: Sequence[str]) -> str:
    """The statistics of a file as a Delta log has them, of the columns that it says anything of.

    A column that came later is null in all rows.
    """
    nulls: dict[str, int] = {}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    whole = True
    for name in names:
        found, kind = reported(stats, name), columns.field(name).type
        absent = stats.present is not None and name not in stats.present
        if absent or (found is not None and found.null_count == stats.row_count):
            nulls[name] = stats.row_count
            continue
        if found is not None:
            nulls[name] = found.null_count
        bounds = None if found is None else exact_bounds(found, kind)
        shown = (None, None) if bounds is None else _in_json(bounds, kind)
        lows[name], highs[name] = shown
        whole = whole and None not in shown
    document = {"numRecords": stats.row_count, "nullCount": nulls}
    return json.dumps(document | ({"minValues": lows, "maxValues": highs} if whole else {}))


def _in_json(bounds: tuple[Any, Any], kind: pa.DataType) -> tuple[Any, Any]:
    low, high = bounds
    if t.is_timestamp(kind):
        return _moment(low // 1000, kind), _moment(-(-high // 1000), kind)
    if t.is_date32(kind):
        return _day(low), _day(high)
    return (float(low), float(high)) if isinstance(low, Decimal) else bounds


def _day(days: int) -> str | None:
    moment = _moment(days * 86_400_000, pa.timestamp("ms"))
    return None if moment is None else moment[:10]


def _moment(milliseconds: int, kind: pa.DataType) -> str | None:
    if not _FIRST <= milliseconds <= _LAST:
        return None
    text = (_EPOCH + dt.timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + ("Z" if kind.tz else "")
