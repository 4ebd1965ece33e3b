"""Column statistics from the footer of a Parquet file: nothing estimated, nothing filled in.

Bounds and null counts of row groups are merged only where every row group with a value reports them. Repeated
leaves are left out (their counts are of elements), and so are columns without a count of nulls. Other writers
cut long texts and raise the upper bound to a value that no row has, so bounds of text longer than 60 bytes
count only from the writer that does not. NaN is in no bound. Source: RFC-039.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

from odfchain.odf.times import Timestamp
from odfchain.slices.reader import PER_SECOND, read_footer

# The writer that leaves long bounds out instead of cutting them.
_WHOLE_BOUNDS = "parquet-cpp"
_LONGEST_OF_OTHERS = 60
_EPOCH = dt.date(1970, 1, 1).toordinal()

Value = bool | int | float | str | bytes | Decimal
"""Bounds as they are compared: dates as days, timestamps and times of day as nanoseconds."""


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """The statistics of one column."""

    name: str
    """A path with dots; a part with a dot or a backtick is quoted in backticks."""
    type: pa.DataType
    null_count: int
    low: Value | None = None
    high: Value | None = None

    def to_document(self) -> dict[str, Any]:
        """The statistics as a manifest has them."""
        found: dict[str, Any] = {"name": self.name}
        if self.low is not None and self.high is not None:
            low, high = shown(self.low, self.type), shown(self.high, self.type)
            if low is not None and high is not None:
                found |= {"min": low, "max": high}
        return found | {"null_count": self.null_count}


@dataclass(frozen=True, slots=True)
class FileStats:
    """The statistics in the footer of one file."""

    row_count: int
    columns: tuple[ColumnStats, ...]
    present: frozenset[str] | None = None
    """All columns of the file; None where that is not known: one that is not reported may be there."""

    def column(self, name: str) -> ColumnStats | None:
        """The statistics of a column; None where none are reported."""
        return next((each for each in self.columns if each.name == name), None)

    def to_document(self) -> dict[str, Any]:
        """The statistics as a manifest has them."""
        return {"row_count": self.row_count, "columns": [each.to_document() for each in self.columns]}

    def to_text(self) -> str | None:
        """One line, bounds as they are compared; None where that would not be the same, or is too long."""
        by_name = {each.name: each for each in self.columns}
        if self.present is None or len(by_name) != len(self.columns):
            return None
        others = sorted(self.present - by_name.keys())
        try:
            # a text in the text: slices of one schema share it, so reading parses it once (`_names`)
            names = json.dumps([[[c.name, str(c.type)] for c in self.columns], others])
            # not every type can be found again by its name
            if any(_type_named(str(each.type)) != each.type for each in self.columns):
                return None
            text = json.dumps([self.row_count, names, [_column(each) for each in self.columns]])
        except (ValueError, pa.ArrowException):
            return None
        return text if len(text) <= LONGEST else None

    @classmethod
    def of_text(cls, text: str | bytes) -> FileStats:
        """The statistics that a line means; `ValueError` where it is none."""
        try:
            rows, names, values = json.loads(text)
            columns, others = _names(names)
            pairs = zip(columns, values, strict=True)
            found = tuple(ColumnStats(name, kind, *_values(kind, given)) for (name, kind), given in pairs)
        except (TypeError, KeyError, RecursionError, InvalidOperation, pa.ArrowException) as error:
            raise ValueError(str(error)) from None
        return cls(rows, found, others)


def file_stats(path: Path) -> FileStats:
    """The statistics in a file's footer; no row is read."""
    return footer_stats(*read_footer(path))


def footer_stats(
    footer: pq.FileMetaData,
    schema: pa.Schema,
    *,
    group: int | None = None,
    columns: Collection[str] | None = None,
) -> FileStats:
    """The statistics in the footer of a file with this schema; or of one row group, of some columns."""
    every = list(leaves(schema))
    whole = str(footer.created_by or "").startswith(_WHOLE_BOUNDS)
    groups = range(footer.num_row_groups) if group is None else [group]
    found = []
    for index, (name, kind, repeated) in enumerate(every):
        left_out = repeated or (columns is not None and name not in columns)
        stats = None if left_out else _merged(footer, groups, index, name, kind, whole=whole)
        if stats is not None:
            found.append(stats)
    rows = footer.num_rows if group is None else footer.row_group(group).num_rows
    return FileStats(rows, tuple(found), frozenset(name for name, _, _ in every))


def quoted(name: str) -> str:
    """A part of a path, quoted where need be."""
    return "`" + name.replace("`", "``") + "`" if "." in name or "`" in name else name


def leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType, bool]]:
    """(path, type, whether it is within a list or a map), in the order of the file's columns."""

    def walk(path: str, kind: pa.DataType, repeated: bool) -> Iterator[tuple[str, pa.DataType, bool]]:
        if isinstance(kind, pa.BaseExtensionType):  # UUIDs are 16 bytes
            kind = kind.storage_type
        if t.is_dictionary(kind):
            yield path, kind.value_type, repeated
        elif t.is_struct(kind):
            for member in kind:
                yield from walk(f"{path}.{quoted(member.name)}", member.type, repeated)
        elif t.is_map(kind):
            yield from walk(f"{path}.key", kind.key_type, True)
            yield from walk(f"{path}.value", kind.item_type, True)
        elif t.is_nested(kind):
            yield from walk(f"{path}.element", kind.value_type, True)
        else:
            yield path, kind, repeated

    for column in schema:
        yield from walk(quoted(column.name), column.type, False)


def _merged(
    footer: pq.FileMetaData, groups: Iterable[int], index: int, name: str, kind: pa.DataType, *, whole: bool
) -> ColumnStats | None:
    nulls, lows, highs, bounded = 0, list[Value](), list[Value](), True
    for number in groups:
        group = footer.row_group(number)
        stats = group.column(index).statistics
        if stats is None or not stats.has_null_count:
            return None
        nulls += stats.null_count
        # only nulls: it has no bounds to report, and adds none to those of the others
        if stats.null_count == group.num_rows:
            continue
        low, high = bounds_of(stats, kind) if stats.has_min_max else (None, None)
        if low is None or high is None or (not whole and _may_be_cut(low, high)):
            bounded = False
            continue
        lows.append(low)
        highs.append(high)
    if not bounded or not lows:
        return ColumnStats(name, kind, nulls)
    return ColumnStats(name, kind, nulls, min(lows), max(highs))


def _may_be_cut(low: Value, high: Value) -> bool:
    sizes = [len(v.encode() if isinstance(v, str) else v) for v in (low, high) if isinstance(v, str | bytes)]
    return max(sizes, default=0) > _LONGEST_OF_OTHERS


def bounds_of(stats: pq.Statistics, kind: pa.DataType) -> tuple[Value | None, Value | None]:
    """The bounds that one chunk of a column reports, as they are compared; None for what cannot be."""
    if t.is_string(kind) or t.is_large_string(kind):
        return _decoded(stats.min_raw), _decoded(stats.max_raw)
    if t.is_decimal(kind):
        low, high = stats.min, stats.max
        return (low, high) if isinstance(low, Decimal) and isinstance(high, Decimal) else (None, None)
    low, high = _raw(stats.min_raw, kind), _raw(stats.max_raw, kind)
    unordered = any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high))
    return (None, None) if unordered else (low, high)


def _decoded(value: Any) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else None
    except UnicodeDecodeError:
        # a writer has cut the text within a character
        return None


def _raw(value: Any, kind: pa.DataType) -> Value | None:
    if t.is_boolean(kind):
        return bool(value)
    if t.is_unsigned_integer(kind):
        # Parquet has signed physical types only: raw bounds of unsigned columns may be negative
        return int(int(value) % (1 << int(kind.bit_width)))
    if t.is_integer(kind) or t.is_date32(kind):
        return int(value)
    if t.is_floating(kind):
        return float(value) if isinstance(value, int | float) else None
    if (t.is_timestamp(kind) or t.is_time(kind)) and isinstance(value, int):
        return value * nanoseconds_per_unit(kind)
    return bytes(value) if isinstance(value, bytes) else None


def nanoseconds_per_unit(kind: pa.DataType) -> int:
    """How long the unit of a timestamp or a time of day is."""
    return 10**9 // PER_SECOND[str(kind.unit)]


def shown(value: Value, kind: pa.DataType) -> Any:
    """A bound as JSON has it (RFC 3339, ISO 8601, decimals as text, base64); None for years beyond these."""
    if t.is_date(kind) or t.is_timestamp(kind):
        days = int(value) if t.is_date(kind) else int(value) // (86_400 * 10**9)
        if not dt.date.min.toordinal() <= days + _EPOCH <= dt.date.max.toordinal():
            return None
        return str(dt.date.fromordinal(days + _EPOCH) if t.is_date(kind) else Timestamp(int(value)))
    if t.is_time(kind):
        seconds, rest = divmod(int(value), 10**9)
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
    if isinstance(value, Decimal):
        # `str` gives some decimals an exponent
        return format(value, "f")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# Statistics of a footer as one line of text: types are found again by their names.

LONGEST = 1 << 20
"""A longer text is not worth keeping: reading the footer again costs as much [characters]."""
_WITH_ZONE = re.compile(r"timestamp\[(\w+), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")


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
    # many slices have the same text, so it is parsed once
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
