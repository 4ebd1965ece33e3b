"""Datasets for queries, made block by block from what a case says, without Spark."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import records_after, schema_event, schema_with, staged_slice

TYPES = {
    "string": pa.string(), "int64": pa.int64(), "uint64": pa.uint64(), "float64": pa.float64(),
    "date": pa.date32(), "decimal": pa.decimal128(18, 4), "list": pa.list_(pa.int64()),
}  # fmt: skip


SAME = (
    'select City, Pop as Total from X where POP > 2000 order by "pop", CITY',
    "with Plain as (select city from x where op = 1) select count(*) n from PLAIN",
    # a WITH is known within itself only: what it reads is the dataset
    "with plain as (select city from plain) select (select max(city) from plain) m from plain",
    "select (with plain as (select 7 city) select max(city) from plain) a, city from plain",
    "with w as (select * from state('x')) select city from w where pop in (select pop from state(x)) order by 1",
    "select a.city from state('x@3') a where not exists (select 1 from state('x') b where a.city = b.city)",
    "select t.c, t.o from state('x', '2026-01-05') as t(o, op, s, e, c, p) order by t.o",
    'select sum(pop) over (partition by city order by "offset") s from x order by "offset"',
    'select 1 as one union all select count(*) from "acme/cities" order by 1',
    "select 'it''s -- no comment' t /* nor \"this\" */ -- from nowhere",
    'select city from x where pop = $p and event_time < $T order by "offset"',
)
"""Queries over `x`, `plain`, `keyless` and `acme/cities` of the cases, which both engines answer alike."""


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
    full = [[row[0], moment(row[1]), *row[2:]] for row in rows]
    new, staged = staged_slice(folder, records_after(state.last_offset, schema, full, at))
    return ev.AddData(prev_offset=state.last_offset, new_data=new, new_watermark=state.watermark), staged


def moment(text: str) -> dt.datetime:
    """A time that a case writes."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
