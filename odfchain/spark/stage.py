"""The Arrow stage: ordered rows of a DataFrame into a slice file, without passing through the driver."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from odfchain.spark.columns import col
from odfchain.spark.failure import explain
from odfchain.spark.job import run_job
from odfchain.spark.slice_writer import SliceFacts, SliceSpec, write_slice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


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


@contextlib.contextmanager
def _batches_by_rows(session: SparkSession) -> Iterator[None]:
    """Arrow batches are cut by rows alone: measuring their bytes after every row takes half of the time."""
    key = "spark.sql.execution.arrow.maxBytesPerBatch"
    session.conf.set(key, str(2**31 - 1))
    try:
        yield
    finally:
        session.conf.unset(key)


def write_frame(
    frame: DataFrame,
    order: list[Column],
    spec: SliceSpec,
    *,
    file: str | None = None,
    short: bool = False,
) -> SliceFacts | None:
    """Order the rows, write them as one slice, and return its facts; None when there are no rows.

    `frame` has every column of the target schema except offset and system time, as carriers, and may have
    others for the order. `short` says that no row holds more than a few KiB.

    Raises:
        BadInputError: a value or null that does not fit the schema.
        StorageFullError: the staging folder is full.
        EngineError: anything else that Spark reports.
    """
    import pyarrow as pa

    ordered = frame.repartition(1).sortWithinPartitions(*order)
    made = {spec.vocabulary.offset_column, spec.vocabulary.system_time_column}
    names = [name for name in pa.ipc.read_schema(pa.py_buffer(spec.schema)).names if name not in made]
    # mapInArrow takes dots and backticks in names for syntax, so the columns go through it by position
    numbered = ordered.select(*[col(name) for name in names]).toDF(*[f"c{n}" for n in range(len(names))])
    written = numbered.mapInArrow(slice_stage(spec, names), "facts string")
    try:
        with _batches_by_rows(written.sparkSession) if short else contextlib.nullcontext():
            rows = run_job(written.sparkSession, written.collect)
    except Exception as error:
        raise explain(error, file=file) from error
    if not rows:
        return None
    return SliceFacts(**json.loads(rows[0]["facts"]))
