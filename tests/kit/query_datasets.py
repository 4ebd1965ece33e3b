"""Datasets for queries, made block by block from what a case says, without Spark."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.api import Workspace
from odfchain.codec.yaml_manifest import read_snapshots
from odfchain.model import events as ev
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import StagedFile, commit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from tests.kit.root_rows import schema_event, schema_with, staged_slice

TYPES = {
    "string": pa.string(), "int64": pa.int64(), "uint64": pa.uint64(), "float64": pa.float64(),
    "date": pa.date32(), "decimal": pa.decimal128(18, 4), "list": pa.list_(pa.int64()),
}  # fmt: skip


def make(workspace: Workspace, name: str, spec: dict[str, Any]) -> DatasetFiles:
    """A root with these blocks; each is `at` a system time: `rows`, `columns`, or an `event` of a manifest."""
    (snapshot,) = read_snapshots(_manifest(name, spec.get("kind", "Root"), []))
    dataset = workspace.create(snapshot, system_time=spec["made"])._files
    columns: list[tuple[str, str]] = []
    for block in spec["blocks"]:
        state, at = DatasetState.read(dataset.chain), Timestamp.parse(block["at"])
        with dataset.staging() as folder:
            staged: list[StagedFile] = []
            if "columns" in block:
                columns = [(str(column), str(kind)) for column, kind in block["columns"]]
                events: list[ev.MetadataEvent] = [schema_event(_schema(columns))]
            elif "rows" in block:
                event, slice_file = _slice(folder, state, _schema(columns), block["rows"], at)
                events, staged = [event], [slice_file]
            else:
                (made,) = read_snapshots(_manifest(name, "Root", [block["event"]]))
                events = list(made.metadata)
            commit(dataset, state, events, staged, system_time=at)
    return dataset


def _manifest(name: str, kind: str, events: list[dict[str, Any]]) -> str:
    content = {"name": name, "kind": kind, "metadata": events}
    return json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})


def _schema(columns: list[tuple[str, str]]) -> pa.Schema:
    return schema_with(*(pa.field(column, TYPES[kind]) for column, kind in columns))


def _slice(
    folder: Path, state: DatasetState, schema: pa.Schema, rows: list[list[Any]], at: Timestamp
) -> tuple[ev.AddData, StagedFile]:
    """Rows are (operation, event time, values…); what is missing at the end is null."""
    last = state.last_offset
    start = 0 if last is None else last + 1
    width = len(schema) - 2
    full = [[*row, *[None] * (width - len(row))] for row in rows]
    values: list[Any] = [
        range(start, start + len(full)),
        [ev_code(row[0]) for row in full],
        [at.epoch_ms] * len(full),
        [moment(row[1]) for row in full],
        *([row[place] for row in full] for place in range(2, width)),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    new, staged = staged_slice(folder, pa.table(arrays, schema=schema))
    return ev.AddData(prev_offset=last, new_data=new, new_watermark=state.watermark), staged


def ev_code(operation: str) -> int:
    """The number of `+A`, `-R`, `-C` or `+C`."""
    return ["+A", "-R", "-C", "+C"].index(operation)


def moment(text: str) -> dt.datetime:
    """A time that a case writes."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
