"""The statistics of a file as a manifest's document has them, back in the form that is compared.

A document has texts where JSON has no such value, so the types of the columns are needed. What is not a value
of its column's type is no bound: a file is then kept, never skipped. Source: RFC-039.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.errors import CodecError, InvalidIdError
from odfchain.model.timestamp import Timestamp
from odfchain.slices.footers import ColumnStats, FileStats, Value, leaves
from odfchain.text import one_line

_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


def stats_of_document(file: Mapping[str, Any], schema: pa.Schema) -> FileStats:
    """The statistics of one of a manifest's files; columns that the schema has not are left out.

    Raises:
        CodecError: they have another form.
    """
    types = {name: kind for name, kind, _ in leaves(schema)}
    try:
        stats = file["stats"]
        found = [_column(each, types[each["name"]]) for each in stats["columns"] if each["name"] in types]
        return FileStats(_count(stats["row_count"]), tuple(found))
    except (KeyError, TypeError, AttributeError) as error:
        raise CodecError(f"not a manifest: its statistics are malformed ({one_line(str(error))})") from None


def _column(told: Mapping[str, Any], kind: pa.DataType) -> ColumnStats:
    low, high = (_value(told.get(name), kind) for name in ("min", "max"))
    known = low is not None and high is not None
    bounds = (low, high) if known else (None, None)
    return ColumnStats(told["name"], kind, _count(told["null_count"]), *bounds)


def _count(told: Any) -> int:
    if not isinstance(told, int) or isinstance(told, bool) or told < 0:
        raise CodecError("not a manifest: a count in its statistics is no whole number")
    return told


def _value(told: Any, kind: pa.DataType) -> Value | None:
    """A bound, as `footers` has it; None for what is no value of that type."""
    if t.is_boolean(kind):
        return told if isinstance(told, bool) else None
    if isinstance(told, bool):
        return None
    try:
        if t.is_integer(kind):
            return int(told) if isinstance(told, int | str) else None
        if t.is_floating(kind):
            found = float(told)
            return None if math.isnan(found) else found
        return _text_value(told, kind) if isinstance(told, str) else None
    except (ValueError, TypeError, OverflowError, InvalidOperation, InvalidIdError, binascii.Error):
        return None


def _text_value(told: str, kind: pa.DataType) -> Value | None:
    if t.is_string(kind) or t.is_large_string(kind):
        return told
    if t.is_decimal(kind):
        found = Decimal(told)
        return found if found.is_finite() else None
    if t.is_date(kind):
        return (dt.date.fromisoformat(told) - dt.date(1970, 1, 1)).days
    if t.is_timestamp(kind):
        return Timestamp.parse(told).epoch_ns
    if t.is_time(kind) and (parts := _TIME.fullmatch(told)):
        hours, minutes, seconds = map(int, parts.groups()[:3])
        return (hours * 3600 + minutes * 60 + seconds) * 10**9 + int((parts[4] or "").ljust(9, "0"))
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return base64.b64decode(told, validate=True)
    return None
