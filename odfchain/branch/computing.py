"""A pure function over the rows of intervals: called once in this process, or by Spark for parts of the keys.

Whatever two sides of a branch are compared for depends on the rows of one key at a time. So the function is
given all rows of some keys and cannot know which engine called it: what it decides is the same (RFC-036).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odfchain.branch.intervals import Interval, MergedColumns, read_rows
from odfchain.slices.writer import SliceFacts, SliceSpec, write_slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_PROCESS_BYTES = 256 << 20
"""So much Parquet is read in this process; more is for Spark."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a function makes of all rows of some keys."""

    rows: pa.Table
    """In order of key."""
    notes: Any = None
    """What is needed whole, whatever it is; it can be pickled, and is small."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers that add up."""


Function = Callable[[Sequence[pa.Table]], Part]
"""From a table for each interval (`read_rows`); it can be pickled and depends on nothing else."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What computes: this process, or Spark where there is more to read than `above` [bytes of Parquet]."""

    session: Callable[[], SparkSession]
    above: int = IN_PROCESS_BYTES


@dataclass(frozen=True, slots=True)
class Computed:
    """The parts of a result, in order of key."""

    schema: pa.Schema
    notes: tuple[Any, ...]
    """Those of all parts that have any."""
    counts: Mapping[str, int]
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """The rows, a bounded number at a time."""

    @classmethod
    def of(cls, part: Part) -> Computed:
        """A result of one part."""
        notes = () if part.notes is None else (part.notes,)
        return cls(part.rows.schema, notes, part.counts, lambda: iter(part.rows.to_batches()))

    def rows(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def write(self, spec: SliceSpec) -> SliceFacts | None:
        """The rows as a new slice, without ever having all of them in memory; errors as `write_slice`."""
        return write_slice(self.batches(), spec)


def compute(
    intervals: Sequence[Interval],
    view: MergedColumns,
    key: Sequence[str],
    function: Function,
    *,
    engine: Engine,  # noqa: ARG001
    folder: Path,  # noqa: ARG001
) -> Computed:
    """What a function makes of the rows of intervals; parts of it may lie in a private `folder`.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is missing, damaged, or not what its block says.
        EngineError: Spark failed. And what the function raises.
    """
    return Computed.of(function([read_rows(interval, view, key) for interval in intervals]))
