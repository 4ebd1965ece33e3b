"""Cells as people and other programs write them: one JSON text for each value, and back, exactly.

Equal values have equal texts. Decimals, times, dates and bytes (hex) are texts, and so are integers that
JavaScript cannot hold; numbers that are none are `"NaN"`, `"Infinity"`, `"-Infinity"`; maps are lists of
entries in one order. Spreadsheets write numbers in ways of their own: what is equal by the type of its column
is taken (`1416.0` for an integer), and everything else is refused, because 1,416 may be two numbers.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

_SAFE = 2**53 - 1
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ZEROS = re.compile(r"\.(\d*?)0+(?=Z|$)", re.ASCII)
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_NO_NUMBERS = {
    "nan": math.nan,
    "infinity": math.inf,
    "inf": math.inf,
    "-infinity": -math.inf,
    "-inf": -math.inf,
}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def json_text(tree: Any) -> str:
    """The one text of a tree of JSON."""
    return json.dumps(tree, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def tree_of(value: pa.Scalar) -> Any:
    """A cell as JSON has it."""
    kind = value.type
    if not value.is_valid:
        return None
    if t.is_integer(kind):
        number = value.as_py()
        return number if abs(number) <= _SAFE else str(number)
    if t.is_floating(kind):
        return _tree_of_float(value)
    if t.is_decimal(kind):
        return format(value.as_py(), "f")
    if t.is_struct(kind):
        return {name: tree_of(value[name]) for name in kind.names}
    if t.is_map(kind):
        entries = ({"key": tree_of(e["key"]), "value": tree_of(e["value"])} for e in value.values)
        return sorted(entries, key=json_text)
    if t.is_nested(kind):
        return [tree_of(item) for item in value.values]
    if t.is_timestamp(kind) or t.is_time(kind):
        return _time_text(value)
    if t.is_date(kind):
        return value.cast(pa.string()).as_py()
    if t.is_duration(kind):
        return value.value
    found = value.as_py()
    return found.hex() if isinstance(found, bytes) else found


def _time_text(value: pa.Scalar) -> str:
    zoned = t.is_timestamp(value.type) and value.type.tz
    utc = value.cast(pa.timestamp(value.type.unit, "UTC")) if zoned else value
    text = utc.cast(pa.string()).as_py().replace(" ", "T")
    return _ZEROS.sub(lambda found: f".{found[1]}" if found[1] else "", text)


def _tree_of_float(value: pa.Scalar) -> Any:
    # the shortest digits that mean this number in its own width
    number = float(str(value.type.to_pandas_dtype()(value.as_py())))
    if math.isfinite(number):
        return int(number) if number.is_integer() and abs(number) <= _SAFE else number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def array_of(trees: list[Any], kind: pa.DataType) -> pa.Array:
    """Cells of a column from what JSON, or a person, wrote for each.

    Raises:
        ValueError: one is not exactly a value of this type.
    """
    found = [_exact(tree, kind) for tree in trees]
    try:
        return pa.array(found, kind)
    except (pa.ArrowException, OverflowError, TypeError, UnicodeError):
        raise _wrong(trees[0] if len(trees) == 1 else trees, kind) from None


def canonical_text(tree: Any, kind: pa.DataType) -> str:
    """The JSON text of the value that somebody wrote; errors as `array_of`."""
    return json_text(tree_of(array_of([tree], kind)[0]))


def _exact(tree: Any, kind: pa.DataType) -> Any:
    """What Arrow takes for a value of this type, and changes nothing of."""
    if tree is None:
        return None
    if t.is_struct(kind) and isinstance(tree, dict) and tree.keys() == set(kind.names):
        return {each.name: _exact(tree[each.name], each.type) for each in kind}
    if t.is_map(kind) and isinstance(tree, list):
        entries = [e for e in tree if isinstance(e, dict) and e.keys() == {"key", "value"}]
        if len(entries) == len(tree):
            return [(_exact(e["key"], kind.key_type), _exact(e["value"], kind.item_type)) for e in entries]
    elif t.is_nested(kind) and not t.is_struct(kind) and isinstance(tree, list):
        return [_exact(item, kind.value_type) for item in tree]
    if isinstance(tree, dict | list) or t.is_nested(kind):
        raise _wrong(tree, kind)
    if t.is_boolean(kind):
        text = str(tree).casefold()
        if text not in ("true", "false"):
            raise _wrong(tree, kind)
        return text == "true"
    if t.is_string(kind) or t.is_large_string(kind):
        return tree if isinstance(tree, str) else json_text(tree)
    if isinstance(tree, bool):
        raise _wrong(tree, kind)
    try:
        return _exact_number(str(tree), kind) if _is_number(kind) else _exact_text(str(tree), kind)
    except (ValueError, ArithmeticError, pa.ArrowException):
        raise _wrong(tree, kind) from None


def _is_number(kind: pa.DataType) -> bool:
    tests = (t.is_integer, t.is_floating, t.is_decimal, t.is_duration)
    return any(test(kind) for test in tests)


def _exact_number(text: str, kind: pa.DataType) -> Any:
    if t.is_floating(kind) and text.strip().casefold() in _NO_NUMBERS:
        return _NO_NUMBERS[text.strip().casefold()]
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    number = Decimal(text.strip())
    if t.is_floating(kind):
        found = np.float16(text) if t.is_float16(kind) else float(number)
        if not math.isfinite(found):
            raise InvalidOperation(text)
        return found
    if t.is_decimal(kind):
        return number
    if number.adjusted() > 40 or number != number.to_integral_value():
        raise InvalidOperation(text)
    return int(number)


def _exact_text(text: str, kind: pa.DataType) -> Any:
    if t.is_timestamp(kind):
        text = text.strip().replace(" ", "T", 1)
        text = f"{text}T00:00:00" if _DAY.fullmatch(text) else text
        zoned = f"{text}Z" if kind.tz and not _ZONE.search(text) else text
        plain = pa.timestamp(kind.unit, "UTC" if kind.tz else None)
        return pa.scalar(zoned).cast(plain).value
    if t.is_time(kind) and (clock := _CLOCK.fullmatch(text.strip())):
        hour, minute, second = (int(part or 0) for part in clock.groups()[:3])
        nanoseconds = int((clock[4] or "").ljust(9, "0"))
        part, rest = divmod(nanoseconds * _PER_SECOND[kind.unit], 10**9)
        if not rest and hour < 24 and minute < 60 and second < 60:
            return (hour * 3600 + minute * 60 + second) * _PER_SECOND[kind.unit] + part
    elif t.is_date(kind):
        return pa.scalar(text.strip()).cast(pa.date32()).as_py()
    elif t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return bytes.fromhex(text)
    raise ValueError(text)


def _wrong(tree: Any, kind: pa.DataType) -> ValueError:
    return ValueError(f"{tree if isinstance(tree, str) else json_text(tree)} is not a value of type {kind}")
