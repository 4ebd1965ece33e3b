"""What type the values of a column have in common: rules over texts and JSON values, without an engine.

A type is inferred only where every value of the column can be read as it, strictly (RFC-010), and still means
what was written: `007`, `+41`, numbers of more digits than a type keeps, and mixtures stay text. Why a column
stays text is said where at least half of its values are something else.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
from decimal import Decimal
from enum import Enum

from odfchain.model import data_schema as ds
from odfchain.model.enums import TimeUnit
from odfchain.spark.json_values import Number, Value, column_text
from odfchain.text import printable

EXACT_DIGITS = 15
"""Decimal digits that a DOUBLE always keeps."""

_SHOWN = 24
_BIGINT = range(-(2**63), 2**63)
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_NUMBER = re.compile(r"-?((?:0|[1-9][0-9]*)(?:\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_PADDED = re.compile(r"[+-]?0[0-9]+(?:\.[0-9]*)?")
_SIGNED = re.compile(r"\+[0-9]+(?:\.[0-9]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2})"
    r"(?:(:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?"
)
_BEGINNINGS = frozenset("0123456789+-.tTfF")
"""What a text begins with that may be anything but text."""


class ValueKind(Enum):
    """What one value looks like; its value is how messages call several of them."""

    TEXT = "text"
    BOOLEAN = "true or false"
    WHOLE = "whole numbers"
    LONG = f"whole numbers of more than {EXACT_DIGITS} digits"
    FRACTION = "numbers with a fraction"
    DATE = "dates"
    LOCAL = "times without a zone"
    LOCAL_FINE = "times without a zone in microseconds"
    ZONED = "times with a zone"
    ZONED_FINE = "times with a zone in microseconds"
    LIST = "lists"
    PADDED = "numbers with leading zeros"
    SIGNED = "numbers with a plus sign"
    HUGE = "numbers with more digits or a larger exponent than a number keeps"
    TOO_FINE = "times finer than a microsecond"
    NESTED = "objects, or lists that hold null, lists or objects"


_LOCAL = frozenset({ValueKind.LOCAL, ValueKind.LOCAL_FINE})
_ZONED = frozenset({ValueKind.ZONED, ValueKind.ZONED_FINE})
_TYPES: tuple[tuple[frozenset[ValueKind], ds.DataType], ...] = (
    (frozenset({ValueKind.BOOLEAN}), ds.DataTypeBool()),
    (frozenset({ValueKind.WHOLE, ValueKind.LONG}), ds.DataTypeInt64()),
    (frozenset({ValueKind.WHOLE, ValueKind.FRACTION}), ds.DataTypeFloat64()),
    (frozenset({ValueKind.DATE}), ds.DataTypeDate()),
    (frozenset({ValueKind.LOCAL}), ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")),
    (frozenset({ValueKind.ZONED}), ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")),
    (_LOCAL, ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
    (_ZONED, ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
)
"""Types, and the kinds that values of them may have; the first that has all is the column's."""


def kind_of(text: str) -> ValueKind:
    """What a text of a CSV file looks like."""
    if text[:1] not in _BEGINNINGS:
        return ValueKind.TEXT
    if text[0] in "tTfF":
        return ValueKind.BOOLEAN if text.lower() in ("true", "false") else ValueKind.TEXT
    return _kind_of_number(text, bare_exponent=False) or _kind_of_time(text)


def kind_of_json(value: Value) -> ValueKind:
    """What a JSON value that is not null looks like; a text is never a number or a boolean."""
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, Number):
        return _kind_of_number(value, bare_exponent=True) or ValueKind.HUGE
    if isinstance(value, str):
        return _kind_of_time(value)
    flat = isinstance(value, list) and not any(
        item is None or isinstance(item, list | dict) for item in value
    )
    return ValueKind.LIST if flat else ValueKind.NESTED


def _kind_of_number(text: str, *, bare_exponent: bool) -> ValueKind | None:
    if _WHOLE.fullmatch(text):
        if len(text) <= EXACT_DIGITS:
            return ValueKind.WHOLE
        if len(text) > 20 or int(text) not in _BIGINT:
            return ValueKind.HUGE
        return ValueKind.LONG if len(text.lstrip("-")) > EXACT_DIGITS else ValueKind.WHOLE
    match = _NUMBER.fullmatch(text)
    if match is None:
        return (
            ValueKind.PADDED
            if _PADDED.fullmatch(text)
            else ValueKind.SIGNED
            if _SIGNED.fullmatch(text)
            else None
        )
    mantissa, exponent = match[1], match[2]
    if exponent and not (bare_exponent or "." in mantissa or exponent[1] in "+-"):
        return None  # such as 12E3, which is a code more often than a number
    digits = mantissa.replace(".", "").strip("0")
    found = float(text)
    kept = not digits or sys.float_info.min < abs(found) < math.inf
    exact = kept and (len(digits) <= EXACT_DIGITS or Decimal(repr(found)) == Decimal(text))
    return ValueKind.FRACTION if exact else ValueKind.HUGE


def _kind_of_time(text: str) -> ValueKind:
    try:
        if _DATE.fullmatch(text):
            dt.date.fromisoformat(text)
            return ValueKind.DATE
        match = _TIME.fullmatch(text) if len(text) >= 16 else None
        if match is None:
            return ValueKind.TEXT
        minute, second, fraction, zone = match.groups(default="")
        dt.datetime.fromisoformat(minute + second + (zone or "Z")).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return ValueKind.TEXT
    digits = len(fraction.rstrip("0"))
    if digits > 6:
        return ValueKind.TOO_FINE
    if not zone:
        return ValueKind.LOCAL if digits <= 3 else ValueKind.LOCAL_FINE
    return ValueKind.ZONED if digits <= 3 else ValueKind.ZONED_FINE


class ColumnValues:
    """What was seen in one column: how many values of each kind, and the first of them."""

    def __init__(self) -> None:
        self.seen: dict[ValueKind, int] = {}
        self._first: dict[ValueKind, tuple[str, int]] = {}
        self._items: ColumnValues | None = None
        self._moved = False
        """Whether a time has another zone than UTC."""

    @property
    def count(self) -> int:
        """Values that are not null."""
        return sum(self.seen.values())

    def add(self, text: str, row: int) -> None:
        """Take one more value of a CSV file; rows count from 1."""
        self._add(kind_of(text), text, row)

    def add_json(self, value: Value, row: int) -> None:
        """Take one more JSON value that is not null."""
        kind = kind_of_json(value)
        self._add(kind, value, row)
        if kind is ValueKind.LIST:
            if self._items is None:
                self._items = ColumnValues()
            for item in value:
                self._items.add_json(item, row)

    def _add(self, kind: ValueKind, value: Value, row: int) -> None:
        if kind in self.seen:
            self.seen[kind] += 1
        else:
            self.seen[kind] = 1
            self._first[kind] = (printable(column_text(value) or "", _SHOWN), row)
        self._moved = self._moved or (kind in _ZONED and not value.endswith("Z"))

    def inferred(self) -> tuple[ds.DataType, str | None]:
        """The type that all values have, or text; and what the user should know about that."""
        kinds = frozenset(self.seen)
        if kinds == {ValueKind.LIST} and self._items is not None:
            item, note = self._items.inferred()
            return ds.DataTypeList(item_type=item), note
        found = next((data_type for allowed, data_type in _TYPES if kinds and kinds <= allowed), None)
        if found is None:
            return ds.DataTypeString(), self._doubt()
        if kinds <= _LOCAL:
            return found, "no zone is given: taken as UTC"
        return found, "recorded in UTC" if self._moved else None

    def _doubt(self) -> str | None:
        """Why a column of text is one, where most of its values look like something else."""
        if not self.seen:
            return "no values: kept as text"
        if 2 * self.seen.get(ValueKind.TEXT, 0) > self.count:
            return None
        ranked = sorted(self.seen, key=lambda kind: (-self.seen[kind], kind is ValueKind.TEXT))
        most, *others = ranked
        if not others:
            return f"{most.value}, such as {self._example(most)}: kept as text"
        other = f"{others[0].value}, such as {self._example(others[0])}"
        return f"mixed: {self.seen[most]:,} of {self.count:,} are {most.value}, others {other}: kept as text"

    def _example(self, kind: ValueKind) -> str:
        text, row = self._first[kind]
        return f"{text!r} in row {row:,}"
