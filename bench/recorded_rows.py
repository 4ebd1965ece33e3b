"""Datasets of many rows for what reads them, recorded without Spark: slices are committed as they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odfchain import Dataset, Timestamp, Workspace
from odfchain.odf.arrow_schema import encode_raw_arrow, from_arrow
from odfchain.odf.events import AddData, DataSlice, OffsetInterval, SetDataSchema
from odfchain.odf.physical_hash import hash_file
from odfchain.slices.reader import hash_parquet
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

TIME = pa.timestamp("ms", "UTC")
MADE = Timestamp.parse("2026-01-01T00:00:00Z")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", TIME, nullable=False),
        pa.field("event_time", TIME, nullable=False),
        pa.field("key", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("name", pa.string()),
    ]
)


def history(rows: int, slices: int, keys: int, *, seed: int = 1) -> Iterable[pa.Table]:
    """Rows of a changelog, cut into slices: the first half puts keys in force, then they change or go."""
    rng = np.random.default_rng(seed)
    count = rows // slices
    for number in range(slices):
        offsets = np.arange(number * count, (number + 1) * count)
        key = rng.integers(0, keys, count)
        op = rng.choice([0, 2, 3], count, p=[0.5, 0.1, 0.4]) if number * 2 >= slices else np.zeros(count)
        values = [
            offsets, op.astype("u1"), np.full(count, MADE.epoch_ms), MADE.epoch_ms + offsets, key,
            rng.random(count), [f"name {k % 5_000}" for k in key],
        ]  # fmt: skip
        yield pa.table([pa.array(v, f.type) for v, f in zip(values, SCHEMA, strict=True)], schema=SCHEMA)


def record(workspace: Workspace, name: str, tables: Iterable[pa.Table]) -> Dataset:
    """A root with these slices, each in a block of its own."""
    text = f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {name}, kind: Root, metadata: []}}\n"
    (dataset,) = workspace.add(text)
    declare(dataset._files, SCHEMA)
    for table in tables:
        record_slice(dataset._files, table, compression="zstd")
    return dataset


def declare(files: DatasetFiles, schema: pa.Schema) -> None:
    """A block that says what columns the rows have."""
    declared = SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(schema)))
    commit(files, DatasetState.read(files.chain), [declared], [], system_time=Timestamp.now())


def record_slice(
    files: DatasetFiles, table: pa.Table, *, compression: str = "snappy", watermark: Timestamp | None = None
) -> None:
    """A block with these rows, which have all columns."""
    state = DatasetState.read(files.chain)
    with files.staging() as folder:
        path = Path(folder) / "slice"
        pq.write_table(table, path, compression=compression)
        (physical, size), (logical, count) = hash_file(path), hash_parquet(path)
        start = int(table["offset"][0].as_py())
        interval = OffsetInterval(start=start, end=start + count - 1)
        new = DataSlice(logical_hash=logical, physical_hash=physical, offset_interval=interval, size=size)
        event = AddData(prev_offset=state.last_offset, new_data=new, new_watermark=watermark)
        commit(files, state, [event], [StagedFile(path, physical)], system_time=Timestamp.now())


def paths_of(dataset: Dataset) -> list[str]:
    """The slices' files, for readers that know nothing of datasets."""
    return [dataset._files.data.locate(ref.slice.physical_hash) for ref in dataset.summary.slices()]
