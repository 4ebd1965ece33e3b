"""Workspaces whose datasets are asked by commands; made without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with

BIG = (1 << 63) + 5
TYPES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "big": (pa.uint64(), [BIG, 0, None]),
    "small": (pa.int8(), [-128, 127, None]),
    "whole": (pa.int64(), [-(1 << 63), (1 << 63) - 1, None]),
    "exact": (pa.decimal128(38, 10), [Decimal("12345678901234567890.0123456789"), Decimal("-0.5"), None]),
    "wide": (pa.decimal256(60, 2), [Decimal("1" * 58 + ".25"), Decimal("0.01"), None]),
    "real": (pa.float64(), [0.1, 1e300, None]),
    "single": (pa.float32(), [0.5, -1.25, None]),
    "truth": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ['a "b", c\nd', "Zürich", None]),
    "raw": (pa.binary(), [b"\x00\xff", b"abc", None]),
    "day": (pa.date32(), [dt.date(2024, 2, 29), dt.date(1, 1, 1), None]),
    "clock": (pa.time64("us"), [dt.time(1, 2, 3), dt.time(1, 2, 3, 500_000), None]),
    "moment": (pa.timestamp("us", "UTC"), [START, dt.datetime(2024, 1, 1, 1, 2, 3, 450_000, dt.UTC), None]),
    "fine": (pa.timestamp("us", "UTC"), [dt.datetime(1969, 1, 1, 0, 0, 0, 1, dt.UTC), START, None]),
    "bare": (pa.timestamp("ms"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1_000), None]),  # noqa: DTZ001
    "items": (pa.list_(pa.int64()), [[1, None, BIG - (1 << 63)], [], None]),
    "nested": (
        pa.struct([("a", pa.uint64()), ("b", pa.list_(pa.string()))]),
        [{"a": BIG, "b": ["x", None]}, {"a": None, "b": None}, None],
    ),
    "times": (pa.list_(pa.timestamp("ms", "UTC")), [[START, None], [], None]),
}
"""A column of each type that a dataset may have, with values at its edges."""


def add_types(workspace: Workspace) -> DatasetFiles:
    """A root with a column of every type and three rows."""
    schema = schema_with(*(pa.field(column, kind) for column, (kind, _) in TYPES.items()))
    root = add_root(workspace, "types", schema)
    append(root, records(schema, 0, [0, 0, 0], [START] * 3, *(v for _, v in TYPES.values())), MADE)
    return root


def add_numbers(workspace: Workspace, name: str, slices: Sequence[int]) -> DatasetFiles:
    """A root of one column `v` that counts from 0, in slices of so many rows."""
    schema = schema_with(pa.field("v", pa.int64()))
    root = add_root(workspace, name, schema)
    start = 0
    for count in slices:
        values = range(start, start + count)
        append(root, records(schema, start, [0] * count, [START] * count, values), MADE)
        start += count
    return root


def new_workspace(folder: Path) -> Workspace:
    folder.mkdir(parents=True, exist_ok=True)
    return Workspace.init(folder)
