"""A function of numbers by Spark's workers: for work that has its input, and what it makes, in files."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from odfchain.errors import OdfchainError
from odfchain.spark.failure import explain
from odfchain.spark.job import run_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")

_MOST_TASKS = 1_000
_FAILED = -1
"""Instead of the number of a call, where it raised an error."""


def task_results(
    session: SparkSession, function: Callable[[int], T], count: int, *, file: str | None = None
) -> list[T]:
    """What `function` returned of each number below `count`, called by workers.

    Raises:
        BadInputError: what it marked as the fault of an input (`file`).
        EngineError: Spark failed. And what the function raises.
    """
    numbers = session.range(0, count, 1, min(count, _MOST_TASKS))
    said = numbers.mapInArrow(functools.partial(_call, function=function), "number long, said binary")
    try:
        rows = run_job(session, said.collect)
    except Exception as error:
        raise explain(error, file=file) from error
    results = {row["number"]: pickle.loads(row["said"]) for row in rows}  # noqa: S301 - by our own tasks
    if _FAILED in results:
        raise results[_FAILED]
    return [results[number] for number in range(count)]


def _call(batches: Iterator[pa.RecordBatch], function: Callable[[int], object]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    def said(number: int, what: object) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": [number], "said": [pickle.dumps(what)]})

    try:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield said(number, function(number))
    except OdfchainError as error:
        yield said(_FAILED, error)
