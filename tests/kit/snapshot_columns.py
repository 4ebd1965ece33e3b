"""Columns of the fixtures of manifests, profiles and exports, as Arrow has them."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from tests.kit.support import ROOT

FIXTURES = ROOT / "fixtures" / "snapshots"
_OWN = {
    "date": pa.date32(), "bool": pa.bool_(), "timestamp[ms]": pa.timestamp("ms", "UTC"), "uuid": pa.binary(16),
}  # fmt: skip


def fixture(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def type_of(text: str) -> pa.DataType:
    if text in _OWN:
        return _OWN[text]
    if found := re.fullmatch(r"list<(.*)>", text):
        return pa.list_(type_of(found[1]))
    if found := re.fullmatch(r"struct<(.*)>", text):
        return pa.struct([(n, type_of(k)) for n, k in (m.split(":") for m in found[1].split(","))])
    if found := re.fullmatch(r"(\w+)[\[(](.*)[\])]", text):
        made = getattr(pa, {"decimal": "decimal128"}.get(found[1], found[1]))
        return made(*(int(part) if part.isdecimal() else part for part in found[2].split(",")))
    return getattr(pa, text)()


def column(kind: str, values: Any) -> pa.Array:
    given = list(range(values["range"])) if isinstance(values, dict) else values
    return pa.array([value_of(value, type_of(kind)) for value in given], type_of(kind))


def value_of(value: Any, kind: pa.DataType) -> Any:
    match value:
        case {"repeat": [text, count]}:
            return text * count
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case dict():
            return {member.name: value_of(value.get(member.name), member.type) for member in kind}
        case list():
            return [value_of(item, kind.value_type) for item in value]
        case str() if t.is_floating(kind):
            return float(value)
        case str() if t.is_decimal(kind):
            return Decimal(value)
        case str() if t.is_timestamp(kind):
            return dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC if kind.tz else None)
        case str() if t.is_date(kind):
            return dt.date.fromisoformat(value)
        case str() if t.is_time(kind):
            return dt.time.fromisoformat(value)
        case str() if t.is_binary(kind) or t.is_fixed_size_binary(kind):
            return value.encode()
    return value
