"""A lock as a dataset of three blocks with rows, recorded without Spark."""

from __future__ import annotations

from typing import Any

import yaml

import odfchain as odf
from odfchain.cli.start import manifest_template
from tests.kit import query_datasets

COLUMNS = [
    *([name, "string"] for name in ("item_id", "asset_key", "store_type", "store_container")),
    *([name, "string"] for name in ("store_endpoint_url", "key")),
    ["size_bytes", "int64"], ["etag", "string"], ["last_modified", "string"],
]  # fmt: skip
NIGHTS = [f"2026-01-0{day}T02:00:00Z" for day in range(1, 6)]


def lock_row(operation: str, at: str, item: str, size: int, tag: str) -> list[Any]:
    """A row of a slice: an asset `B04` in the bucket `scenes`."""
    return [operation, at, item, "B04", "s3", "scenes", None, f"{item}/B04.tif", size, f'"{tag}"', at]


def lock_dataset(workspace: odf.Workspace) -> odf.Dataset:
    """Three assets; then one is processed again; then one is withdrawn, and another is new."""
    name = "s2.assets"
    document = yaml.safe_load(manifest_template(odf.DatasetAlias.parse(name), "assets"))
    (source, _) = document["content"]["metadata"]
    first, second, third = NIGHTS[1:4]
    blocks = [
        {"at": NIGHTS[0], "event": source},
        {"at": NIGHTS[0], "columns": COLUMNS},
        {"at": first, "rows": [lock_row("+A", first, item, 7, "1") for item in ("s1", "s2", "s3")]},
        {"at": second, "rows": [lock_row("-C", first, "s1", 7, "1"), lock_row("+C", second, "s1", 9, "2")]},
        {"at": third, "rows": [lock_row("-R", first, "s2", 7, "1"), lock_row("+A", third, "s4", 7, "1")]},
    ]
    query_datasets.make(workspace, name, {"made": NIGHTS[0], "blocks": blocks})
    return workspace[name]
