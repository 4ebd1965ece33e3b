"""Columns of the fixtures of manifests and profiles, as Arrow has them."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.kit.support import ROOT

FIXTURES = ROOT / "fixtures" / "snapshots"
_SIMPLE = {
    "int64": pa.int64(), "uint64": pa.uint64(), "float64": pa.float64(), "string": pa.string(),
    "binary": pa.binary(), "date": pa.date32(), "bool": pa.bool_(), "timestamp[ms]": pa.timestamp("ms", "UTC"),
}  # fmt: skip


def fixture(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def type_of(text: str) -> pa.DataType:
    if text.startswith("list<"):
        return pa.list_(type_of(text[5:-1]))
    if text.startswith("struct<"):
        return pa.struct([(n, type_of(k)) for n, k in (m.split(":") for m in text[7:-1].split(","))])
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        return pa.decimal128(int(found[1]), int(found[2]))
    return _SIMPLE[text]


def column(kind: str, values: Any) -> pa.Array:
    given = list(range(values["range"])) if isinstance(values, dict) else values
    return pa.array([value_of(value, type_of(kind)) for value in given], type_of(kind))


def value_of(value: Any, kind: pa.DataType) -> Any:
    match value:
        case {"repeat": [text, count]}:
            return text * count
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case str() if pa.types.is_floating(kind):
            return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}[value]
        case str() if pa.types.is_decimal(kind):
            return Decimal(value)
        case str() if pa.types.is_date(kind):
            return dt.date.fromisoformat(value)
    return value
