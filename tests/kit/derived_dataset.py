"""Three derivative datasets of one root, computed once, and a forger who rewrites what they record."""

from __future__ import annotations

import dataclasses
import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.transform.planner import PlannedStep, plan_next
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import MADE, add_root, append, records, schema_event, schema_with, staged_slice
from tests.kit.support import derivative

SCHEMA = schema_with(pa.field("sensor", pa.string()), pa.field("level", pa.int64()))

QUERIES = {
    "doubled": "SELECT event_time, sensor, level * 2 AS level FROM readings",
    "daily": "SELECT window(event_time, '1 day').start AS event_time, sensor, sum(level) AS level "
    "FROM readings GROUP BY window(event_time, '1 day'), sensor",
    "totals": "SELECT max(event_time) AS event_time, sensor, sum(level) AS level FROM readings GROUP BY sensor",
}
"""A query that looks at one row, one that is done with a day, and one that is never done."""

Row = tuple[int, str, int]
"""Day of January 2024, sensor, level."""

Made = tuple[DatasetFiles, DatasetFiles]
"""(a root, a derivative of it)."""

FIRST: list[Row] = [(1, "north", 1), (1, "south", 2), (2, "north", 3)]
SECOND: list[Row] = [(2, "south", 4), (3, "north", 5), (4, "south", 6)]


def derive(workspace: Workspace, name: str, query: str, source: str = "readings") -> Dataset:
    inputs = f"[{{datasetRef: {source}, alias: readings}}]"
    return workspace.add(derivative(query, name=name, inputs=inputs), check=False)[0]


def make_template(workspace: Workspace) -> None:
    """`readings` with two transactions, and everything that is made of it, step by step."""
    root = add_root(workspace, "readings", SCHEMA)
    made = [derive(workspace, name, query) for name, query in QUERIES.items()]
    for rows in (FIRST, SECOND):
        add_rows(root, rows)
        for dataset in made:
            dataset.pull(system_time=MADE)


def add_rows(root: DatasetFiles, rows: list[Row]) -> None:
    """A transaction of the root; its watermark is the last day."""
    start = DatasetState.read(root.chain).record_count
    times = [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day, _, _ in rows]
    columns = [sensor for _, sensor, _ in rows], [level for _, _, level in rows]
    table = records(SCHEMA, start, [0] * len(rows), times, *columns)
    append(root, table, Timestamp.from_epoch_ms(int(times[-1].timestamp() * 1_000)))


def copy_of(template: Path, target: Path) -> Workspace:
    """The template's workspace in another folder; no file of it is shared."""
    shutil.copytree(template, target)
    return Workspace.open(target)


# --- forging ---------------------------------------------------------------------------------------


def executions(dataset: DatasetFiles) -> list[int]:
    """Sequence numbers of the transactions, oldest first."""
    numbers = [
        b.block.sequence_number
        for b in dataset.chain.walk()
        if isinstance(b.block.event, ev.ExecuteTransform)
    ]
    return numbers[::-1]


def block_at(dataset: DatasetFiles, number: int) -> Multihash:
    (name,) = [b.hash for b in dataset.chain.walk() if b.block.sequence_number == number]
    return name


def slice_table(dataset: DatasetFiles, number: int) -> pa.Table:
    event = dataset.chain.get(block_at(dataset, number)).event
    assert isinstance(event, ev.AddData | ev.ExecuteTransform)
    return pq.ParquetFile(dataset.data.verified_path(event.new_data.physical_hash)).read()


def forge(
    dataset: DatasetFiles,
    number: int,
    rows: Callable[[pa.Table], pa.Table] | None = None,
    *,
    before: tuple[ev.MetadataEvent, ...] = (),
    **changes: Any,
) -> None:
    """Write a transaction anew with other rows (or `changes` to its event), and all blocks that follow.

    Every hash and every link is right: only who computes the transaction again can tell. Offsets follow from
    the rows' order. `before` are events that come before it now.
    """
    blocks = [b.block for b in dataset.chain.walk() if b.block.sequence_number >= number][::-1]
    table = slice_table(dataset, number) if rows is not None else None
    head = dataset.chain.head()
    prev = blocks[0].prev_block_hash
    assert prev is not None
    dataset.chain.set_ref("head", prev, expected=head)
    with dataset.staging() as folder:
        for block in blocks:
            event, staged = block.event, []
            assert isinstance(event, ev.ExecuteTransform)
            last = DatasetState.read(dataset.chain)
            if before:
                commit(dataset, last, before, [], system_time=block.system_time)
                last, before = DatasetState.read(dataset.chain), ()
            if table is not None:
                assert rows is not None
                changed = rows(table)
                start = table["offset"][0].as_py()
                offsets = pa.array(range(start, start + len(changed)), pa.uint64())
                changed = changed.set_column(0, table.schema.field(0), offsets)
                new, file = staged_slice(folder, changed)
                changes, staged, table = {**changes, "new_data": new}, [file], None
            previous = last.chain.nearest("ExecuteTransform", head=last.head)
            earlier = previous.block.event if previous is not None else None
            links: dict[str, Any] = {}
            if isinstance(earlier, ev.ExecuteTransform):
                checkpoint = earlier.new_checkpoint
                links = {
                    "prev_checkpoint": checkpoint.physical_hash if checkpoint else None,
                    "prev_offset": earlier.last_offset,
                }
            event = dataclasses.replace(event, **(links | changes))
            changes = {}
            commit(dataset, last, [event], staged, system_time=block.system_time)


def with_level(row: int, level: int) -> Callable[[pa.Table], pa.Table]:
    """Another level in one row."""

    def change(table: pa.Table) -> pa.Table:
        levels = table["level"].to_pylist()
        levels[row] = level
        index = table.schema.get_field_index("level")
        return table.set_column(
            index, table.schema.field(index), pa.array(levels, table.schema.field(index).type)
        )

    return change


# --- without an engine -----------------------------------------------------------------------------


def on_paper(workspace: Workspace, *transactions: list[Row]) -> Made:
    """(`readings`, a derivative that repeats its rows), both with real files, and no engine was needed."""
    root = add_root(workspace, "readings", SCHEMA)
    copied = derive(workspace, "copied", "SELECT event_time, sensor, level FROM readings")._files
    commit(copied, DatasetState.read(copied.chain), [schema_event(SCHEMA)], [], system_time=MADE)
    for rows in transactions:
        add_rows(root, rows)
        state = DatasetState.read(copied.chain)
        step = plan_next(copied, state, [root])
        assert isinstance(step, PlannedStep)
        with copied.staging() as folder:
            number = DatasetState.read(root.chain).head_block.sequence_number
            new, staged = staged_slice(folder, slice_table(root, number))
            event = ev.ExecuteTransform(
                query_inputs=tuple(item.event for item in step.inputs),
                prev_offset=step.prev_offset,
                new_data=new,
            )
            commit(copied, state, [event], [staged], system_time=MADE)
    return root, copied
