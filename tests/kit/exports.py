"""Columns of the fixtures of exports, and tables of other formats as their own libraries read them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf.arrow_schema import UUID_MARK
from odfchain.odf.times import Timestamp
from tests.kit import query_datasets
from tests.kit.snapshot_columns import fixture, type_of

FIXTURE = fixture("exports")
TABLES = ("delta", "iceberg")
FIRST = [["iata", "string"], ["city", "string"]]
GROWN = [*FIRST, ["runways", "int64"]]
BLOCKS: list[dict[str, Any]] = [
    {"at": "2024-01-01T00:00:00Z", "columns": FIRST},
    {"at": "2024-01-02T00:00:00Z", "rows": [["+A", "2024-01-01", "ZRH", "Zurich"], ["+A", "2024-01-01", "BSL", None]]},
    {"at": "2024-01-03T00:00:00Z", "event": {"kind": "SetInfo", "description": "airports", "keywords": []}},
    {"at": "2024-01-04T00:00:00Z", "rows": [["-C", "2024-01-01", "BSL"], ["+C", "2024-01-04", "BSL", "Basel"]]},
    {"at": "2024-01-05T00:00:00Z", "columns": GROWN},
    {"at": "2024-01-06T00:00:00Z", "rows": [["+A", "2024-01-06", "GVA", "Geneva", 1], ["-R", "2024-01-01", "ZRH", "Zurich"]]},
]  # fmt: skip


def field_of(text: str, name: str) -> pa.Field:
    """A column of a type as the fixture writes it."""
    mark = UUID_MARK if text == "uuid" else None
    return pa.field(name, type_of(text), metadata=mark)


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


def add(workspace: Workspace, name: str, blocks: list[dict[str, Any]] = BLOCKS) -> Dataset:
    query_datasets.make(workspace, name, {"made": "2023-12-31T00:00:00Z", "blocks": blocks})
    return workspace[name]


def part(dataset: Dataset) -> None:
    """Another history from block 4 on."""
    dataset.reset(at(dataset, 4), force=True)
    columns = [(f.name, "string") for f in dataset.scan().to_arrow().schema][4:]
    rows = [["+A", "2024-02-01", "LUG", "Lugano"]]
    query_datasets.add_rows(dataset._files, columns, rows, Timestamp.parse("2024-03-01T00:00:00Z"))


def at(dataset: Dataset, number: int) -> Any:
    return dataset.at(number).head
