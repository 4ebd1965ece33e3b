"""The rows still in force to one Parquet checkpoint, in one ordered Arrow stage (RFC-018)."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.slices.observers import PhysicalHash
from odfchain.slices.writer import ObservedParquet, cast_column
from odfchain.spark.executor_files import StoreFolder
from odfchain.spark.stage import into_store, write_ordered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from odfchain.model.events import DatasetVocabulary


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What a state checkpoint is to look like; sent to the worker that writes it."""

    schema: bytes
    """Arrow schema of the columns that are kept, serialized by pyarrow."""
    vocabulary: DatasetVocabulary
    metadata: dict[bytes, bytes]
    """Key-value metadata of the file."""
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What is known of a written checkpoint."""

    path: str
    """Empty where it is in the store."""
    rows: int
    size: int
    """Bytes of the file."""
    physical_hash: str


def write_state(
    frame: DataFrame, order: list[Column], spec: StateSpec, place: StoreFolder | None = None
) -> StateFacts:
    """Order the rows and write them as one file, also when there are none.

    `frame` has the columns of the schema as physical types. The worker puts the file into `place`, where one
    is given.
    """
    import pyarrow as pa

    names = pa.ipc.read_schema(pa.py_buffer(spec.schema)).names
    write = functools.partial(_write, spec=spec) if place is None else into_store(_write, spec, place)
    facts = write_ordered(frame, order, names, write)
    assert facts is not None  # noqa: S101 - `_write` always says something
    return StateFacts(**facts)


def _write(batches: Iterator[pa.RecordBatch], spec: StateSpec) -> StateFacts:
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    path = Path(spec.folder) / f"state-{uuid.uuid4().hex}.parquet"
    rows, physical = 0, PhysicalHash()
    try:
        with ObservedParquet(path, schema, spec.vocabulary, [physical], metadata=spec.metadata) as file:
            for batch in batches:
                columns = [cast_column(batch.column(i), target) for i, target in enumerate(schema)]
                file.write(pa.RecordBatch.from_arrays(columns, schema=schema))
                rows += batch.num_rows
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return StateFacts(str(path), rows, physical.size, str(physical.hash))
