"""Columns of the fixtures of exports, and tables of other formats as their own libraries read them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import types as t

from odfchain.codec.uuids import UUID_MARK
from tests.kit.support import ROOT

FIXTURE: dict[str, Any] = json.loads(
    (ROOT / "fixtures" / "snapshots" / "exports.json").read_text(encoding="utf-8")
)
TABLES = ("delta", "iceberg")


def field_of(text: str, name: str) -> pa.Field:
    """A column of a type as the fixture writes it."""
    mark = UUID_MARK if text == "uuid" else None
    return pa.field(name, type_of(text), metadata=mark)


def type_of(text: str) -> pa.DataType:
    if text == "uuid":
        return pa.binary(16)
    if found := re.fullmatch(r"list<(.*)>", text):
        return pa.list_(type_of(found[1]))
    if found := re.fullmatch(r"struct<(.*)>", text):
        return pa.struct([(n, type_of(k)) for n, k in (m.split(":") for m in found[1].split(","))])
    if found := re.fullmatch(r"(\w+)[\[(](.*)[\])]", text):
        made = getattr(pa, found[1])
        return made(*(int(part) if part.isdecimal() else part for part in found[2].split(",")))
    return getattr(pa, {"bool": "bool_"}.get(text, text))()


def value_of(value: Any, kind: pa.DataType) -> Any:
    """A value of a fixture as pyarrow takes it."""
    if value is None:
        return None
    if isinstance(value, dict) and "repeat" in value:
        text, count = value["repeat"]
        return text * count
    if t.is_struct(kind):
        return {member.name: value_of(value[member.name], member.type) for member in kind}
    if t.is_list(kind):
        return [value_of(item, kind.value_type) for item in value]
    if t.is_decimal(kind):
        return Decimal(value)
    if t.is_floating(kind):
        return float(value)
    if t.is_timestamp(kind):
        return dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC if kind.tz else None)
    if t.is_date(kind):
        return dt.date.fromisoformat(value)
    if t.is_time(kind):
        return dt.time.fromisoformat(value)
    return value.encode() if t.is_binary(kind) or t.is_fixed_size_binary(kind) else value


def rows_of(kind: str, folder: Path) -> list[dict[str, Any]]:
    """All rows of the newest version of a table, in an order of their own."""
    if kind == "delta":
        found = pa.table(DeltaTable(folder.as_uri()).to_pyarrow_table())
    else:
        with iceberg(folder) as table:
            found = table.scan().to_arrow()
    return plain(found)


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows that can be compared: NaN is a word, UUIDs are bytes, and columns are in order of their names."""
    table = table.select(sorted(table.schema.names))
    rows = [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: str(row.get("offset", "")).zfill(20) + repr(row))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return getattr(value, "bytes", value)


@contextlib.contextmanager
def iceberg(folder: Path) -> Iterator[Any]:
    """The Iceberg table of an export without a catalog of somebody's."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("odf", uri=f"sqlite:///{folder / '_catalog.db'}")
    try:
        ((name),) = catalog.list_tables("odf")
        yield catalog.load_table(name)
    finally:
        catalog.close()


def delta_log(folder: Path) -> list[dict[str, Any]]:
    """The actions of a Delta log as its files have them, oldest first."""
    found = sorted((folder / "_delta_log").glob("*.json"))
    return [json.loads(line) for path in found for line in path.read_text(encoding="utf-8").splitlines()]


def blocks_of(kind: str, folder: Path) -> list[str]:
    """The block of each version with data, oldest first."""
    if kind == "delta":
        commits = (line["commitInfo"] for line in delta_log(folder) if "commitInfo" in line)
        return [commit["odf.blockHash"] for commit in commits if "odf.blockHash" in commit]
    with iceberg(folder) as table:
        return [snapshot.summary["odf.blockHash"] for snapshot in table.snapshots()]
