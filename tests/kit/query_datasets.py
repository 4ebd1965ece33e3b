"""Datasets for queries, made block by block from what a case says, without Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.chain.chain import link_blocks
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.times import Timestamp
from odfchain.spark.session import SparkEngine
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import append_all, records_after, schema_event, schema_with
from tests.kit.support import fixture, snapshot

TYPES = {
    "string": pa.string(), "int64": pa.int64(), "uint64": pa.uint64(), "float64": pa.float64(),
    "date": pa.date32(), "decimal": pa.decimal128(18, 4), "list": pa.list_(pa.int64()),
}  # fmt: skip
AT = "2024-01-10T00:00:00Z"

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


CASES = fixture("query/cases.json")
"""Cases of queries, and the datasets that they are asked over."""


@contextlib.contextmanager
def on_spark(workspace: Workspace, engine: SparkEngine) -> Iterator[Workspace]:
    """Here Spark answers in the session of the tests, which stays."""
    workspace._engines.spark = engine
    try:
        yield workspace
    finally:
        workspace._engines.spark = None


def dropped_block(dataset: DatasetFiles) -> Multihash:
    """A good block after the head that is stored, and that no reference leads to."""
    state = DatasetState.read(dataset.chain)
    (block,) = link_blocks(
        [ev.SetInfo(description="dropped")],
        prev=state.head,
        next_sequence_number=state.head_block.sequence_number + 1,
        system_time=state.head_block.system_time,
    )
    dataset.chain._blocks.put(block.data)
    return block.hash


def make(workspace: Workspace, name: str, spec: dict[str, Any]) -> DatasetFiles:
    """A root with these blocks; each is `at` a system time: `rows`, `columns`, or an `event` of a manifest."""
    (made,) = read_snapshots(snapshot(name, kind=spec.get("kind", "Root")))
    dataset = workspace.create(made, system_time=spec["made"])._files
    columns: list[list[str]] = []
    for block in spec["blocks"]:
        at = Timestamp.parse(block["at"])
        if "rows" in block:
            add_rows(dataset, columns, block["rows"], at)
            continue
        if "columns" in block:
            columns = block["columns"]
            event: ev.MetadataEvent = schema_event(schema_of(columns))
        else:
            ((event,),) = (made.metadata for made in read_snapshots(snapshot(name, block["event"])))
        commit(dataset, DatasetState.read(dataset.chain), [event], [], system_time=at)
    return dataset


def polling(*key: str, url: str = "https://example.org/cities.csv") -> dict[str, Any]:
    """The event of a source that is polled; of a key, each poll is a snapshot."""
    strategy = {"kind": "Snapshot", "primaryKey": list(key)} if key else {"kind": "Append"}
    fetch, read = {"kind": "Url", "url": url}, {"kind": "Csv", "header": True}
    return {"kind": "SetPollingSource", "fetch": fetch, "read": read, "merge": strategy}


def cities(
    workspace: Workspace, source: dict[str, Any], columns: list[list[str]], *slices: list[Any]
) -> DatasetFiles:
    """The root `cities` with a source, columns, and a block for each slice."""
    parts = [{"event": source}, {"columns": columns}, *({"rows": rows} for rows in slices)]
    return make(workspace, "cities", {"made": AT, "blocks": [{"at": AT, **part} for part in parts]})


def schema_of(columns: Sequence[Sequence[str]]) -> pa.Schema:
    return schema_with(*(pa.field(column, TYPES[kind]) for column, kind in columns))


def add_rows(
    dataset: DatasetFiles, columns: Sequence[Sequence[str]], rows: list[list[Any]], at: Timestamp,
    state: DatasetState | None = None,
) -> None:  # fmt: skip
    """A block of rows, each (operation, event time, values…); what is missing at the end is null.

    It follows the state, or what is there now.
    """
    full = [[row[0], moment(row[1]), *row[2:]] for row in rows]
    state = state or DatasetState.read(dataset.chain)
    append_all(dataset, [records_after(state.last_offset, schema_of(columns), full, at)], at=at, state=state)


def moment(text: str) -> dt.datetime:
    """A time that a case writes."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
