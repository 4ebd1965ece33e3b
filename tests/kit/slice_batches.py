"""What the slice writer is given: the form of a slice, and batches as Spark hands them over."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from odfchain.odf.events import DatasetVocabulary
from odfchain.slices.writer import SliceSpec

VOCABULARY = DatasetVocabulary()
MS = pa.timestamp("ms", "UTC")
US = pa.timestamp("us", "UTC")
SYSTEM = [
    pa.field("offset", pa.uint64(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),
    pa.field("system_time", MS, nullable=False),
    pa.field("event_time", MS, nullable=False),
]
NOW = 1_577_880_000_000


def spec(folder: Path, *fields: pa.Field, start: int = 0, system: list[pa.Field] = SYSTEM) -> SliceSpec:
    schema = pa.schema([*system, *fields])
    return SliceSpec(schema.serialize().to_pybytes(), VOCABULARY, start, NOW, str(folder))


def batch(count: int, start: int = 0, ops: list[int] | None = None, **columns: pa.Array) -> pa.RecordBatch:
    """What Spark hands over: no offset, no system time, physical types for those that Spark lacks."""
    times = pa.array([1_000_000 * (start + i) for i in range(count)], pa.int64()).cast(US)
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array(ops or [0] * count, pa.int32()),
            "event_time": times,
            "__odfchain_row": range(count),
            **columns,
        }
    )
