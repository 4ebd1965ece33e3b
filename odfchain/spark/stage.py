"""The Arrow stage: ordered rows of a DataFrame into a slice file, without passing through the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from odfchain.spark.failure import explain
from odfchain.spark.job import run_job
from odfchain.spark.slice_writer import SliceFacts, SliceSpec, write_slice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def slice_stage(spec: SliceSpec, names: list[str]) -> Any:
    """The function that `mapInArrow` runs on the one ordered partition; it yields the facts as JSON.

    `names` are the columns of the batches in order.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # imported on the worker

        facts = write_slice((batch.rename_columns(names) for batch in batches), spec)
        if facts is not None:
            yield pa.RecordBatch.from_pydict({"facts": [json.dumps(asdict(facts))]})

    return run


def write_frame(
    frame: DataFrame, order: list[Column], spec: SliceSpec, *, file: str | None = None
) -> SliceFacts | None:
    """Order the rows, write them as one slice, and return its facts; None when there are no rows.

    `frame` has every column of the target schema except offset and system time, as carriers.

    Raises:
        BadInputError: a value or null that does not fit the schema.
        StorageFullError: the staging folder is full.
        EngineError: anything else that Spark reports.
    """
    ordered = frame.repartition(1).sortWithinPartitions(*order)
    # mapInArrow takes dots and backticks in names for syntax, so the columns go through it by position
    numbered = ordered.toDF(*[f"c{index}" for index in range(len(frame.columns))])
    written = numbered.mapInArrow(slice_stage(spec, frame.columns), "facts string")
    try:
        rows = run_job(written.sparkSession, written.collect)
    except Exception as error:
        raise explain(error, file=file) from error
    if not rows:
        return None
    return SliceFacts(**json.loads(rows[0]["facts"]))
