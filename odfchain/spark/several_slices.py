"""Rows to as many slices as their size asks for, written side by side (RFC-049).

    each task puts its rows in order and leaves them as runs          no shuffle
    the driver looks up in the runs where slices are cut             a few rows
    each slice is put in order from its part of the runs, written    one task for each
    and hashed

So what is recorded is the same for one task and for many.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.slices.runs import Rows, Run, RunFacts, cuts, rows_between, write_runs
from odfchain.slices.writer import SliceFacts, SliceSpec, write_slice
from odfchain.spark.columns import col
from odfchain.spark.failure import explain
from odfchain.spark.job import run_job
from odfchain.spark.stage import batches_by_rows, given_columns
from odfchain.spark.tasks import task_results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def write_slices(
    frame: DataFrame,
    order: Sequence[str],
    spec: SliceSpec,
    max_bytes: int,
    *,
    file: str | None = None,
    short: bool = False,
) -> tuple[SliceFacts, ...]:
    """Order the rows, write them as slices of about the same size, and return their facts in order.

    The order is ascending, nulls first, and no two rows are alike in it. A slice has at most `max_bytes` of
    values, give or take a row. For the rest as `odfchain.spark.stage.write_frame`; `spec` is of the first.

    Raises:
        BadInputError: a value or null that does not fit the schema.
        StorageFullError: the staging folder is full.
        EngineError: anything else that Spark reports.
    """
    names = given_columns(spec)
    columns = [*names, *(name for name in order if name not in names)]
    keys = tuple(columns.index(name) for name in order)
    runs = _write_runs(frame, columns, len(names), keys, spec.folder, file=file, short=short)
    if not runs:
        return ()
    paths = tuple(run.path for run in runs)
    operation = names.index(spec.vocabulary.operation_type_column)
    ends = cuts([Run(path, keys) for path in paths], operation, max_bytes)
    task = _WriteSlice(paths, keys, tuple(names), (0,) * len(paths), tuple(ends), spec)
    try:
        return tuple(task_results(frame.sparkSession, task, len(ends), file=file))
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)


def _write_runs(
    frame: DataFrame,
    columns: Sequence[str],
    recorded: int,
    order: tuple[int, ...],
    folder: str,
    *,
    file: str | None,
    short: bool,
) -> list[RunFacts]:
    # by position, as in `write_ordered`
    numbered = frame.select(*[col(name).alias(f"c{index}") for index, name in enumerate(columns)])
    write = functools.partial(_runs_of_a_task, columns=recorded, order=order, folder=folder)
    session = frame.sparkSession
    try:
        with batches_by_rows(session) if short else contextlib.nullcontext():
            rows = run_job(session, numbered.mapInArrow(write, "path string, rows long, size long").collect)
    except Exception as error:
        raise explain(error, file=file) from error
    return [RunFacts(row["path"], row["rows"], row["size"]) for row in rows]


def _runs_of_a_task(
    batches: Iterator[pa.RecordBatch], columns: int, order: tuple[int, ...], folder: str
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # imported on the worker

    for facts in write_runs(batches, columns, order, folder):
        yield pa.RecordBatch.from_pylist([dataclasses.asdict(facts)])


@dataclass(frozen=True, slots=True)
class _WriteSlice:
    """Writes the slice of a number; sent to the workers."""

    paths: tuple[str, ...]
    order: tuple[int, ...]
    names: tuple[str, ...]
    start: Rows
    ends: tuple[Rows, ...]
    spec: SliceSpec

    def __call__(self, number: int) -> SliceFacts:
        runs = [Run(path, self.order) for path in self.paths]
        start, end = self.ends[number - 1] if number else self.start, self.ends[number]
        batches = rows_between(runs, start, end, len(self.names))
        spec = dataclasses.replace(self.spec, start_offset=self.spec.start_offset + sum(start))
        facts = write_slice((batch.rename_columns(self.names) for batch in batches), spec)
        assert facts is not None  # noqa: S101 - slices are not empty
        return facts
