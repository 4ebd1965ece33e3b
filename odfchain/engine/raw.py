"""Queries over raw Parquet files, as another coordinator asks for them in the middle of an ingest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.slices.reader import check_parquet
from odfchain.spark.input_frames import spark_path
from odfchain.sql.query import run_queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.model.engine_messages import RawQueryRequest
    from odfchain.progress import Progress

INPUT_TABLE = "input"


def run_raw_query(session: SparkSession, request: RawQueryRequest, folder: Path, progress: Progress) -> int:
    """Write the result of the query as one Parquet file, if it has rows; returns their number."""
    import pyarrow.parquet as pq  # of what was just written here

    inputs = {}
    if request.input_data_paths:
        paths = [spark_path(Path(path)) for path in request.input_data_paths]
        for given in request.input_data_paths:
            check_parquet(Path(given))
        inputs[INPUT_TABLE] = session.read.parquet(*paths)
    progress.phase("Computing")
    result = run_queries(session, request.transform, inputs, note=progress.note)
    result.coalesce(1).write.parquet(str(folder / "result"))
    (path,) = (folder / "result").glob("part-*.parquet")
    count: int = pq.read_metadata(path).num_rows
    if count:
        path.replace(request.output_data_path)
    return count
