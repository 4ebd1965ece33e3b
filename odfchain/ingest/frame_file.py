"""Rows that are in memory, or that Spark would compute, as one Parquet file in their order."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import BadInputError, OdfchainError, UsageError
from odfchain.spark.session_kind import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAME = "the frame"
"""What messages call it."""


def is_of_spark(frame: Any) -> bool:
    """Whether it is a DataFrame of PySpark's, of whatever kind."""
    return type(frame).__module__.partition(".")[0] == "pyspark"


def write_frame_file(frame: Any, folder: Path) -> Path:
    """The rows of a Spark DataFrame, or of what streams Arrow, with their types, as a file in `folder`.

    Raises:
        UsageError: it is neither.
        BadInputError: it cannot be written as Parquet.
    """
    import pyarrow as pa

    path = folder / f"frame-{uuid.uuid4().hex}.parquet"
    if is_of_spark(frame):
        if not is_remote(frame.sparkSession):
            return _computed(frame, folder, path)
        frame = frame.toArrow()
    if not hasattr(frame, "__arrow_c_stream__"):
        raise UsageError(
            f"a {type(frame).__name__} is no frame",
            hint="give a Spark DataFrame, a pyarrow Table, or what streams Arrow, such as polars' frames",
        )
    from pyarrow.parquet import ParquetWriter

    try:
        with pa.RecordBatchReader.from_stream(frame) as rows, ParquetWriter(path, rows.schema) as sink:
            for batch in rows:
                sink.write_batch(batch)
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(f"cannot be written as Parquet: {error}", file=FRAME) from error
    return path


def _computed(frame: DataFrame, folder: Path, path: Path) -> Path:
    """As Spark computes it, under the settings of the session that it is of, but with whole microseconds."""
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import SparkSession

    from odfchain.spark.failure import explain
    from odfchain.spark.job import run_job
    from odfchain.spark.plan_walk import jvm_of
    from odfchain.sql.messages import failed_query

    # a clone, so that a setting of the user's session changes for nobody else
    clone = frame._jdf.sparkSession().cloneSession()  # noqa: SLF001 - PySpark has no public way into the JVM
    clone.conf().set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session = SparkSession(frame.sparkSession.sparkContext, clone)
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset
    rows = Frame(dataset.ofRows(clone, frame._jdf.logicalPlan()), session)  # noqa: SLF001
    parts = folder / f"parts-{uuid.uuid4().hex}"
    try:
        run_job(session, lambda: rows.write.parquet(parts.as_uri()))
    except OdfchainError:
        raise
    except Exception as error:
        raise failed_query(error, FRAME) or explain(error, file=FRAME) from error
    files = sorted(parts.glob("part-*.parquet"))
    if len(files) == 1:
        return files[0].rename(path)
    return _joined(files, path)


def _joined(files: list[Path], path: Path) -> Path:
    from pyarrow.parquet import ParquetWriter

    from odfchain.slices.reader import data_batches, open_parquet

    with open_parquet(files[0]) as first:
        schema = first.schema_arrow
    with ParquetWriter(path, schema) as sink:
        for file in files:
            for batch in data_batches(file):
                sink.write_batch(batch)
            file.unlink()
    return path
