"""Rows as they are to one Parquet file whose bytes follow from them alone, in one Arrow stage."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.spark.stage import write_ordered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SCHEMA_KEY = b"odfchain.spark.schema"
"""Key of the file's metadata that holds Spark's schema of the rows, as JSON."""


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What is known of a written file."""

    path: str
    rows: int


def write_rows(frame: DataFrame, folder: Path, *, few: int = 0) -> WrittenRows:
    """Write the rows in the order they come, also when there are none; `few` as in `write_ordered`.

    Raises:
        StorageFullError: the folder is full.
        EngineError: anything else that Spark reports.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    described = schema.with_metadata({SCHEMA_KEY: frame.schema.json().encode()})
    write = functools.partial(_write, schema=described.serialize().to_pybytes(), folder=str(folder))
    facts = write_ordered(frame, None, frame.columns, write, few=few)
    # Spark starts no task for rows of which it knows beforehand that there are none
    return WrittenRows(**facts) if facts is not None else write(iter(()))


def _write(batches: Iterator[pa.RecordBatch], schema: bytes, folder: str) -> WrittenRows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = pa.ipc.read_schema(pa.py_buffer(schema))
    path = Path(folder) / f"rows-{uuid.uuid4().hex}.parquet"
    rows = 0
    with pq.ParquetWriter(path, target, version="2.6", compression="snappy", store_schema=False) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).cast(target))
            rows += batch.num_rows
        writer.add_key_value_metadata(target.metadata)
    return WrittenRows(str(path), rows)
