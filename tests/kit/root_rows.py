"""Roots whose rows are chosen one by one: real files with right hashes, whatever the rows say, and no source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow, from_arrow
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import hash_parquet
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.support import snapshot, write_lying

TIME = pa.timestamp("ms", "UTC")
MADE = Timestamp.parse("2100-01-01T00:00:00Z")
"""System time of all blocks; later than any clock that made the datasets."""
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
OPERATIONS = ("+A", "-R", "-C", "+C")


def schema_with(*columns: pa.Field) -> pa.Schema:
    """The system columns, then these."""
    system = {"offset": pa.uint64(), "op": pa.uint8(), "system_time": TIME, "event_time": TIME}
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in system.items()), *columns])


def schema_event(schema: pa.Schema) -> ev.SetDataSchema:
    return ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(schema)))


def add_root(workspace: Workspace, name: str, schema: pa.Schema) -> DatasetFiles:
    """A root that has a schema and no rows."""
    root = workspace.add(snapshot(name))[0]._files
    commit(root, DatasetState.read(root.chain), [schema_event(schema)], [], system_time=MADE)
    return root


def records(
    schema: pa.Schema,
    start: int,
    ops: Sequence[int],
    times: Sequence[dt.datetime],
    *columns: Sequence[Any],
    at: Timestamp = MADE,
) -> pa.Table:
    """Records from an offset on: operations, event times, then the columns that are no system columns."""
    values = [range(start, start + len(ops)), ops, [at.epoch_ms] * len(ops), times, *columns]
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def records_after(
    last: int | None, schema: pa.Schema, rows: Sequence[Sequence[Any]], at: Timestamp
) -> pa.Table:
    """Records behind an offset: (operation, event time, values…); what is missing at the end is null."""
    ops, *columns = ([row[i] if i < len(row) else None for row in rows] for i in range(len(schema) - 2))
    start, codes = 0 if last is None else last + 1, [OPERATIONS.index(op) for op in ops]
    return records(schema, start, codes, columns[0], *columns[1:], at=at)


def slice_of(path: Path, start: int) -> ev.DataSlice:
    """What a block says of the slice in a file, by the number of its rows."""
    (physical, size), (logical, count) = hash_file(path), hash_parquet(path)
    interval = ev.OffsetInterval(start=start, end=start + count - 1)
    return ev.DataSlice(logical_hash=logical, physical_hash=physical, offset_interval=interval, size=size)


def staged_slice(
    folder: Path,
    table: pa.Table,
    said: pa.Table | None = None,
    write: Callable[[pa.Table, Path], object] | None = None,
) -> tuple[ev.DataSlice, StagedFile]:
    """A slice with these records; with `said`, its file says of them what would be true of those."""
    path = folder / "made"
    if said is None:
        (write or pq.write_table)(table, path)
    else:
        write_lying(path, table, said)
    new = slice_of(path, table["offset"][0].as_py())
    return new, StagedFile(path, new.physical_hash)


def append(root: DatasetFiles, table: pa.Table, watermark: Timestamp, said: pa.Table | None = None) -> None:
    """A transaction of a root, its slice as `staged_slice` makes it."""
    append_all(root, [table], watermark, at=MADE, said=said)


def append_all(
    root: DatasetFiles,
    tables: Sequence[pa.Table],
    watermark: Timestamp | None = None,
    *,
    at: Timestamp | None = None,
    said: pa.Table | None = None,
    write: Callable[[pa.Table, Path], object] | None = None,
    check: Any = None,
    state: DatasetState | None = None,
    **fields: Any,
) -> Multihash:
    """One commit with a slice of each table, and more fields in their blocks; returns the newest block.

    Without a watermark the one in force stays, without a time the next possible one is taken; `state` is that
    of the head which the tables follow, where others write meanwhile.
    """
    state = state or DatasetState.read(root.chain)
    events, files, last = [], [], state.last_offset
    with root.staging() as folder:
        for number, table in enumerate(tables):
            (part := folder / str(number)).mkdir()
            new, file = staged_slice(part, table, said, write)
            mark = watermark or state.watermark
            events.append(ev.AddData(prev_offset=last, new_data=new, new_watermark=mark, **fields))
            files.append(file)
            last = new.offset_interval.end
        time = at or state.next_system_time()
        return commit(root, state, events, files, system_time=time, check=check)[-1]
