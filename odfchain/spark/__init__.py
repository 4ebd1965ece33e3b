"""Apache Spark: the JVM, the session, files to frames, the stage that writes, the gate over queries."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    source: Any,
    *,
    state: bool = False,
    at: Any = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """A dataset as a native DataFrame of the caller's session: Parquet over slices that were checked.

    `source` is a dataset, a URL or a folder as `odfchain.open_dataset` takes it, or the path of a workspace
    and a name in it. `state` gives the rows in force (by the recorded key, or without one by all values)
    instead of all records; `at` is a block or a system time, as in `Dataset.scan`. Offsets are `bigint`,
    other unsigned columns of the next larger type.
    """
    # the public rooms stand above this one, so they are named at the call only
    found: DataFrame = import_module("odfchain.api.scan").native_frame(
        spark, source, state=state, at=at, columns=columns
    )
    return found
