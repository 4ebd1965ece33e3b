"""A small dataset with real slices and a checkpoint, made without Spark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.chain.chain import link_blocks
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow, from_arrow
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.slices.writer import SliceSpec, write_slice
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

VOCABULARY = ev.DatasetVocabulary()
TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", TIME, nullable=False),
        pa.field("event_time", TIME),
        pa.field("city", pa.string()),
    ]
)


def slice_of(
    dataset: DatasetFiles,
    start: int,
    cities: list[str],
    ops: list[int] | None = None,
    time: int | None = None,
) -> ev.DataSlice:
    """Writes a slice into the data store and returns what a block says of it."""
    times = [start if time is None else time] * len(cities)
    batch = pa.RecordBatch.from_pydict(
        {"op": ops or [0] * len(cities), "event_time": times, "city": cities},
        schema=pa.schema([("op", pa.int32()), ("event_time", TIME), ("city", pa.string())]),
    )
    spec = SliceSpec(SCHEMA.serialize().to_pybytes(), VOCABULARY, start, 0, str(dataset.folder / "staging"))
    facts = write_slice([batch], spec)
    physical = Multihash.parse(facts.physical_hash)
    dataset.data.put_file(Path(facts.path), physical)
    return ev.DataSlice(
        logical_hash=Multihash.parse(facts.logical_hash),
        physical_hash=physical,
        offset_interval=ev.OffsetInterval(start=start, end=start + len(cities) - 1),
        size=facts.size,
    )


def schema_event(schema: pa.Schema = SCHEMA) -> ev.SetDataSchema:
    """The schema of the slices."""
    return ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(schema)))


def add(dataset: DatasetFiles, event: ev.MetadataEvent, *, unchecked: bool = False) -> None:
    """Appends an event; `unchecked` leaves the append rules aside."""
    state = DatasetState.read(dataset.chain)
    blocks = link_blocks(
        [event],
        prev=state.head,
        next_sequence_number=state.head_block.sequence_number + 1,
        system_time=Timestamp.parse("2000-01-01T00:00:00Z"),
    )
    if not unchecked:
        dataset.chain.check_all(blocks, expected_head=state.head)
    dataset.chain.publish(blocks, expected_head=state.head)


def add_slice(dataset: DatasetFiles, cities: list[str], **changes: Any) -> ev.DataSlice:
    """Appends a slice; `changes` are made to what its block says of it."""
    state = DatasetState.read(dataset.chain)
    prev = state.last_offset
    new = slice_of(dataset, 0 if prev is None else prev + 1, cities)
    declared = dataclasses.replace(new, **changes)
    add(
        dataset,
        ev.AddData(
            prev_offset=prev,
            new_data=declared,
            prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
            new_watermark=state.watermark,
        ),
        unchecked=bool(changes),
    )
    return new
