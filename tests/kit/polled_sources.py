"""Datasets with a polling source, and the files that it watches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf.times import Timestamp

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {fetch}
      prepare: {prepare}
      read: {read}
      {preprocess}merge: {merge}
"""
CSV = 'kind: Csv, header: true, schema: ["city STRING", "population BIGINT"]'
LEDGER = "{kind: Ledger, primaryKey: [city]}"
SNAPSHOT = "{kind: Snapshot, primaryKey: [city]}"
APPEND = "{kind: Append}"
ABC = "city,population\nA,1000\nB,2000\nC,3000\n"


def polled(
    workspace: Workspace,
    fetch: str,
    *,
    merge: str = APPEND,
    read: str = CSV,
    prepare: str = "[]",
    preprocess: str = "",
    check: bool = True,
) -> Dataset:
    text = MANIFEST.format(
        fetch="{" + fetch + "}", prepare=prepare, read="{" + read + "}", merge=merge,
        preprocess=f"preprocess: {preprocess}\n      " if preprocess else "",
    )  # fmt: skip
    (dataset,) = workspace.add(text, check=check)
    return dataset


def file_url(path: Path) -> str:
    return f"kind: Url, url: '{path.as_uri()}'"


def at(time: str, **changes: Any) -> dict[str, Any]:
    return {"system_time": Timestamp.parse(time), **changes}


def touch(path: Path, content: str, seconds: int) -> None:
    path.write_text(content)
    os.utime(path, (seconds, seconds))


def rows(dataset: Dataset, *columns: str) -> list[list[Any]]:
    table = dataset.scan([*columns] or ["op", "city", "population"]).to_arrow()
    return [list(row.values()) for row in table.to_pylist()]
