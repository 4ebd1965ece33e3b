"""Rows recorded on branches, block by block and without Spark: real files with right hashes, and no source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import append_all, records_after, schema_event, schema_with
from tests.kit.support import push_source, snapshot

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COLUMNS = (pa.field("k", pa.string()), pa.field("a", pa.string()), pa.field("b", pa.string()))
Row = tuple[Any, ...]
"""Operation, the day of the event time, and the values."""


def keyed(
    workspace: Workspace,
    key: Sequence[str] = ("k",),
    columns: Sequence[pa.Field] | None = COLUMNS,
    *,
    name: str = "d",
    merge: str = "UpsertStream",
) -> DatasetFiles:
    """A root with a source of this key (none is an Append) and no rows; a schema, unless that is None."""
    strategy = {"kind": merge, "primaryKey": list(key)} if key else {"kind": "Append"}
    (made,) = read_snapshots(snapshot(name, push_source(strategy)))
    files = workspace.create(made, system_time=DAY.isoformat())._files
    if columns is not None:
        give_columns(files, columns)
    return files


def give_columns(
    dataset: DatasetFiles, columns: Sequence[pa.Field], names: dict[str, str] | None = None
) -> None:
    """A schema of these columns from now on, in which the system columns may have other names."""
    schema = schema_with(*columns)
    if names:
        schema = pa.schema([f.with_name(names.get(f.name, f.name)) for f in schema])
    add(dataset, schema_event(schema))


def add(dataset: DatasetFiles, *events: ev.MetadataEvent) -> None:
    """Blocks without data."""
    state = DatasetState.read(dataset.chain)
    commit(dataset, state, list(events), [], system_time=state.next_system_time())


def branch(dataset: DatasetFiles, name: str, at: Multihash | None = None) -> DatasetFiles:
    target = at or dataset.chain.head()
    assert target is not None
    dataset.chain.set_ref(name, target, expected=None)
    return dataset.on(name)


def record(dataset: DatasetFiles, rows: Sequence[Row], columns: Sequence[pa.Field] = COLUMNS) -> Multihash:
    """A block with these rows; what is missing of a row at its end is null."""
    table, mark = table_of(dataset, rows, columns), DatasetState.read(dataset.chain).watermark
    latest = Timestamp.from_epoch_ms(table["event_time"].cast(pa.int64()).to_numpy().max())
    return append_all(dataset, [table], max(latest, mark or latest))


def table_of(dataset: DatasetFiles, rows: Sequence[Row], columns: Sequence[pa.Field] = COLUMNS) -> pa.Table:
    """These rows as the next ones of a dataset."""
    schema = schema_with(*columns)
    state = DatasetState.read(dataset.chain)
    dated = [(row[0], DAY + dt.timedelta(days=row[1]), *row[2:]) for row in rows]
    return records_after(state.last_offset, schema, dated, state.next_system_time())
