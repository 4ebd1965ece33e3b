"""Rows as they are to one Parquet file whose bytes follow from them alone, in one Arrow stage."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.digest.physical import hash_file
from odfchain.spark.executor_files import StoreFolder
from odfchain.spark.stage import into_store, write_ordered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SCHEMA_KEY = b"odfchain.spark.schema"
"""Key of the file's metadata that holds Spark's schema of the rows, as JSON."""


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """What a file is to look like; sent to the worker that writes it."""

    schema: bytes
    """Arrow schema of the rows, serialized by pyarrow."""
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What is known of a written file."""

    path: str
    """Empty where a worker has put it into the store, under its physical hash."""
    rows: int
    size: int = 0
    """Bytes of the file, where it is in the store."""
    physical_hash: str = ""
    """Where it is in the store."""


def write_rows(
    frame: DataFrame, folder: Path, *, few: int = 0, place: Callable[[], StoreFolder] | None = None
) -> WrittenRows:
    """Write the rows in the order they come, also when there are none; `few` as in `write_ordered`.

    A worker puts the file into what `place` returns, if that is given.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    described = schema.with_metadata({SCHEMA_KEY: frame.schema.json().encode()})
    spec = RowsSpec(described.serialize().to_pybytes(), str(folder))
    write = functools.partial(_write, spec=spec)
    there = None if place is None else lambda: into_store(_write_hashed, spec, place())
    facts = write_ordered(frame, None, frame.columns, write, on_workers=there, few=few)
    # Spark starts no task for rows of which it knows beforehand that there are none
    return WrittenRows(**facts) if facts is not None else write(iter(()))


def _write_hashed(batches: Iterator[pa.RecordBatch], spec: RowsSpec) -> WrittenRows:
    facts = _write(batches, spec)
    name, size = hash_file(Path(facts.path))
    return dataclasses.replace(facts, size=size, physical_hash=str(name))


def _write(batches: Iterator[pa.RecordBatch], spec: RowsSpec) -> WrittenRows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    path = Path(spec.folder) / f"rows-{uuid.uuid4().hex}.parquet"
    rows = 0
    with pq.ParquetWriter(path, target, version="2.6", compression="snappy", store_schema=False) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).cast(target))
            rows += batch.num_rows
        writer.add_key_value_metadata(target.metadata)
    return WrittenRows(str(path), rows)
