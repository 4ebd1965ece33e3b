"""A function of numbers by Spark's workers: for work that has its input, and what it makes, in files."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from odfchain.errors import OdfchainError
from odfchain.spark.failure import explain
from odfchain.spark.job import run_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_MOST_TASKS = 1_000


def run_tasks(session: SparkSession, function: Callable[[int], None], count: int) -> None:
    """`function` was called with each number below `count`, by workers that see the same files.

    Raises:
        EngineError: Spark failed. And what the function raises.
    """
    numbers = session.range(0, count, 1, min(count, _MOST_TASKS))
    said = numbers.mapInArrow(functools.partial(_call, function=function), "error binary")
    try:
        errors = run_job(session, said.collect)
    except Exception as error:
        raise explain(error) from error
    for row in errors:
        raise pickle.loads(row["error"])  # noqa: S301 - by our own tasks


def _call(batches: Iterator[pa.RecordBatch], function: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                function(number)
    except OdfchainError as error:
        yield pa.RecordBatch.from_pydict({"error": [pickle.dumps(error)]})
