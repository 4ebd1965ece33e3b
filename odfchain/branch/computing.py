"""A pure function over the rows of intervals: called once in this process, or by Spark for parts of the keys.

Whatever two sides of a branch are compared for depends on the rows of one key at a time. So the function is
given all rows of some keys and cannot know which engine called it: what it decides is the same (RFC-036).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.branch.computed_rows import Computed, Function, KeyResult
from odfchain.branch.intervals import Interval, MergedColumns, parquet_bytes, read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Computed", "Engine", "Function", "KeyResult", "compute"]

IN_PROCESS_BYTES = 256 << 20
"""So much Parquet is read in this process; more is for Spark."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What computes: this process, or Spark where there is more to read than `above` [bytes of Parquet]."""

    session: Callable[[], SparkSession]
    above: int = IN_PROCESS_BYTES


def compute(
    intervals: Sequence[Interval],
    view: MergedColumns,
    key: Sequence[str],
    function: Function,
    *,
    engine: Engine,
    folder: Path,
) -> Computed:
    """What a function makes of the rows of intervals; parts of it may lie in a private `folder`."""
    if key and parquet_bytes(intervals) > engine.above:
        from odfchain.branch.by_key_on_spark import compute_on_spark  # noqa: PLC0415 - for large ones only

        return compute_on_spark(intervals, view, key, function, session=engine.session(), folder=folder)
    return Computed.of(function([read_rows(interval, view, key) for interval in intervals]))
