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
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.slices.runs import (
    ReadBytes,
    Rows,
    Run,
    RunBlocks,
    RunFacts,
    RunLayout,
    cuts,
    mapped,
    rows_between,
    write_runs,
)
from odfchain.slices.writer import SliceFacts, SliceSpec, write_slice
from odfchain.spark.columns import col
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, staged, telling, worker_folder
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
    place: StoreFolder | None = None,
) -> tuple[SliceFacts, ...]:
    """Order the rows, write them as slices of about the same size, and return their facts in order.

    The order is ascending, nulls first, and no two rows are alike in it. A slice has at most `max_bytes` of
    values, give or take a row. For the rest as `odfchain.spark.stage.write_frame`; `spec` is of the first.
    With a `place` the runs are in the store, too, for as long as this takes.
    """
    names = given_columns(spec)
    columns = [*names, *(name for name in order if name not in names)]
    operation = names.index(spec.vocabulary.operation_type_column)
    layout = RunLayout(len(names), tuple(columns.index(name) for name in order), operation)
    with contextlib.nullcontext("") if place is None else staged(place.files) as below:
        into = spec.folder if place is None else StoreFolder(place.files, below)
        runs = _write_runs(frame, columns, _RunsOfATask(layout, into), file=file, short=short)
        try:
            if not runs:
                return ()
            ends = cuts([_opened(run, place) for run in runs], max_bytes)
            # what lookups need is not needed by who reads all
            lean = tuple(dataclasses.replace(run, index=b"") for run in runs)
            task = _WriteSlice(lean, tuple(names), (0,) * len(runs), tuple(ends), spec, place)
            return tuple(task_results(frame.sparkSession, task, len(ends), file=file))
        finally:
            for run in runs if place is None else ():
                Path(run.path).unlink(missing_ok=True)


def _opened(run: RunFacts, place: StoreFolder | None) -> Run:
    if place is None:
        return Run.of_file(run)
    read = functools.partial(place.files.read, run.path)
    return Run(run, read, read)


def _write_runs(
    frame: DataFrame, columns: Sequence[str], write: _RunsOfATask, *, file: str | None, short: bool
) -> list[RunFacts]:
    # by position, as in `write_ordered`
    numbered = frame.select(*[col(name).alias(f"c{index}") for index, name in enumerate(columns)])
    session = frame.sparkSession
    try:
        with batches_by_rows(session) if short else contextlib.nullcontext():
            rows = run_job(session, numbered.mapInArrow(write, "said binary").collect)
    except Exception as error:
        raise explain(error, file=file) from error
    return [pickle.loads(row["said"]) for row in rows]  # noqa: S301 - by our own tasks


@dataclass(frozen=True, slots=True)
class _RunsOfATask:
    """Leaves the rows of a task as runs; sent to the workers."""

    layout: RunLayout
    into: str | StoreFolder
    """A folder that driver and workers see, or one in the store."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # imported on the worker

        for facts in self._written(batches):
            yield pa.RecordBatch.from_pydict({"said": [pickle.dumps(facts)]})

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[RunFacts]:
        if isinstance(self.into, str):
            yield from write_runs(batches, self.layout, self.into)
            return
        with telling(), worker_folder() as folder:
            for facts in write_runs(batches, self.layout, str(folder)):
                path = Path(facts.path)
                key = f"{self.into.key}/{path.name}"
                self.into.files.put(path, key)
                path.unlink()
                yield dataclasses.replace(facts, path=key)


@dataclass(frozen=True, slots=True)
class _WriteSlice:
    """Writes the slice of a number; sent to the workers."""

    runs: tuple[RunFacts, ...]
    names: tuple[str, ...]
    start: Rows
    ends: tuple[Rows, ...]
    spec: SliceSpec
    place: StoreFolder | None

    def __call__(self, number: int) -> SliceFacts:
        start, end = self.ends[number - 1] if number else self.start, self.ends[number]
        spec = dataclasses.replace(self.spec, start_offset=self.spec.start_offset + sum(start))
        if self.place is None:
            return self._write([Run.of_file(run) for run in self.runs], start, end, spec)
        with worker_folder() as folder:
            runs = [
                _brought(self.place.files, run, first, last, folder / str(n))
                for n, (run, first, last) in enumerate(zip(self.runs, start, end, strict=True))
            ]
            facts = self._write(runs, start, end, dataclasses.replace(spec, folder=str(folder)))
            self.place.files.put(Path(facts.path), f"{self.place.key}/{facts.physical_hash}")
            return dataclasses.replace(facts, path="")

    def _write(self, runs: list[Run], start: Rows, end: Rows, spec: SliceSpec) -> SliceFacts:
        batches = rows_between(runs, start, end)
        facts = write_slice((batch.rename_columns(self.names) for batch in batches), spec)
        assert facts is not None  # noqa: S101 - slices are not empty
        return facts


def _brought(files: ExecutorFiles, run: RunFacts, start: int, end: int, target: Path) -> Run:
    """A run of which this machine has the rows of an interval, and the one before them."""

    def ranged(blocks: RunBlocks, first: int, suffix: str) -> ReadBytes:
        low, high = blocks.around(first, end)
        path = target.with_suffix(suffix)
        files.copy(run.path, low, high, path)
        return mapped(path, low)

    if start == end:
        return Run(run, _nothing, _nothing)
    return Run(run, ranged(run.keys, max(0, start - 1), ".keys"), ranged(run.values, start, ".values"))


def _nothing(_start: int, _end: int) -> bytes:
    raise AssertionError("no row of it is in the slice")
