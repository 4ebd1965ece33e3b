"""The Arrow stage: ordered rows of a DataFrame into one file, without passing through the driver."""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.odf.physical_hash import hash_file
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
from odfchain.slices.writer import (
    ObservedParquet,
    PhysicalHash,
    SliceFacts,
    SliceSpec,
    cast_column,
    write_slice,
)
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, staged, translate_errors, worker_folder
from odfchain.spark.jobs import counted, explain, row_counter, run_job, task_results
from odfchain.spark.types import col

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from odfchain.odf.events import DatasetVocabulary


def write_ordered(
    frame: DataFrame,
    order: list[Column] | None,
    names: list[str],
    write: Callable[[Iterator[pa.RecordBatch]], Any],
    *,
    on_workers: Callable[[], Callable[[Iterator[pa.RecordBatch]], Any]] | None = None,
    file: str | None = None,
    few: int = 0,
    one_task: bool = False,
) -> dict[str, Any] | None:
    """Write rows in order on one worker; returns the result of `write`, None where that is None.

    Without an order the rows come as they are, partition by partition. Up to `few` rows are written by this
    process instead of a worker, which is faster for so few; they come in the same batches. With `one_task`
    all are, and they have to be few: the frame has one partition, which is ordered as it is.

    `write` takes the columns `names`, gives a dataclass of what JSON can hold, and is sent to the worker, or
    what `on_workers` returns, which is called once a worker is needed.

    Raises:
        BadInputError: what `write` marked as the fault of the input (`file`).
        StorageFullError: the folder it writes in is full.
        EngineError: anything else that Spark reports.
    """

    counter = row_counter(frame.sparkSession)

    whole = frame.coalesce(1) if order is None or one_task else frame.repartition(1)
    if order is not None:
        whole = whole.sortWithinPartitions(*order)
    # mapInArrow takes dots and backticks in names for syntax, so the columns go through it by position
    numbered = whole.select(*[col(name).alias(f"c{index}") for index, name in enumerate(names)])

    def on_worker() -> dict[str, Any] | None:
        there = write if on_workers is None else on_workers()

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            facts = there(batch.rename_columns(names) for batch in counted(batches, counter))
            if facts is not None:
                yield pa.RecordBatch.from_pydict({"facts": [json.dumps(asdict(facts))]})

        rows = numbered.mapInArrow(run, "facts string").collect()
        facts: dict[str, Any] | None = json.loads(rows[0]["facts"]) if rows else None
        return facts

    def here_or_there() -> dict[str, Any] | None:
        # one row more than `few` shows whether there are more
        table = (numbered if one_task else numbered.limit(few + 1)).toArrow()
        if table.num_rows > few and not one_task:
            return on_worker()
        facts = write(batch.rename_columns(names) for batch in table.to_batches())
        return None if facts is None else asdict(facts)

    try:
        return run_job(frame.sparkSession, here_or_there if few or one_task else on_worker)
    except Exception as error:
        raise explain(error, file=file) from error


@dataclass(slots=True)
class _ByRows:
    """How many threads need a session's setting at the moment, and its value before them."""

    before: str | None
    users: int = 0


_by_rows: weakref.WeakKeyDictionary[SparkSession, _ByRows] = weakref.WeakKeyDictionary()
_by_rows_lock = threading.Lock()


@contextlib.contextmanager
def batches_by_rows(session: SparkSession) -> Iterator[None]:
    """Arrow batches are cut by rows alone: measuring their bytes after every row takes half of the time."""
    key = "spark.sql.execution.arrow.maxBytesPerBatch"
    with _by_rows_lock:
        if session not in _by_rows:
            _by_rows[session] = _ByRows(session.conf.get(key, None))
            # so large that Spark never cuts by bytes
            session.conf.set(key, str(2**31 - 1))
        _by_rows[session].users += 1
    try:
        yield
    finally:
        with _by_rows_lock:
            _by_rows[session].users -= 1
            # the setting is the session's, so the last of several threads takes it back
            if not _by_rows[session].users:
                before = _by_rows.pop(session).before
                if before is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, before)


def given_columns(spec: SliceSpec) -> list[str]:
    """The columns that the writer of a slice is given, in order: all but offset and system time."""
    made = {spec.vocabulary.offset_column, spec.vocabulary.system_time_column}
    return [name for name in pa.ipc.read_schema(pa.py_buffer(spec.schema)).names if name not in made]


def into_store(
    write: Callable[[Iterator[pa.RecordBatch], Any], Any], spec: Any, place: StoreFolder
) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """`write` for `spec` as `write_ordered` takes it; the file is put into the store, and has no path."""
    return functools.partial(_put, write=write, spec=spec, place=place)


def _put(
    batches: Iterator[pa.RecordBatch],
    write: Callable[[Iterator[pa.RecordBatch], Any], Any],
    spec: Any,
    place: StoreFolder,
) -> Any:
    # the worker's own folder is removed in any case
    with translate_errors(), worker_folder() as folder:
        facts = write(batches, replace(spec, folder=str(folder)))
        if facts is None:
            return None
        place.files.put(Path(facts.path), f"{place.key}/{facts.physical_hash}")
        return replace(facts, path="")


def write_frame(
    frame: DataFrame,
    order: list[Column] | None,
    spec: SliceSpec,
    *,
    file: str | None = None,
    short: bool = False,
    few: int = 0,
    one_task: bool = False,
    place: Callable[[], StoreFolder] | None = None,
) -> SliceFacts | None:
    """Order the rows, write them as one slice, and return its facts; None when there are no rows.

    `frame` has every column of the target schema except offset and system time, as physical types, and may
    have others for the order. `short`: no row holds more than a few KiB; `few` and `one_task` as in
    `write_ordered`. A worker puts the slice into what `place` returns, if that is given; this process, which
    writes few rows, leaves it in the folder of `spec`.
    """
    names = given_columns(spec)
    write = functools.partial(write_slice, spec=spec)
    there = None if place is None else lambda: into_store(write_slice, spec, place())
    with batches_by_rows(frame.sparkSession) if short else contextlib.nullcontext():
        facts = write_ordered(
            frame, order, names, write, on_workers=there, file=file, few=few, one_task=one_task
        )
    return None if facts is None else SliceFacts(**facts)


# Rows to one Parquet file whose bytes depend on the rows alone, in one Arrow stage.

SCHEMA_KEY = b"odfchain.spark.schema"
"""Key of the file's metadata that holds Spark's schema of the rows, as JSON."""


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """Specification of a file; sent to the worker that writes it."""

    schema: bytes
    """Arrow schema of the rows, serialized by pyarrow."""
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Facts about a written file."""

    path: str
    """Empty where a worker has put it into the store, under its physical hash."""
    rows: int
    size: int = 0
    physical_hash: str = ""
    """Empty, and no size, of rows that are not in the store."""


def write_rows(
    frame: DataFrame, folder: Path, *, few: int = 0, place: Callable[[], StoreFolder] | None = None
) -> WrittenFile:
    """Write the rows in the order they come, also when there are none; `few` as in `write_ordered`.

    A worker puts the file into what `place` returns, if that is given.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    described = schema.with_metadata({SCHEMA_KEY: frame.schema.json().encode()})
    spec = RowsSpec(described.serialize().to_pybytes(), str(folder))
    write = functools.partial(_write, spec=spec)
    there = None if place is None else lambda: into_store(_write_hashed, spec, place())
    facts = write_ordered(frame, None, frame.columns, write, on_workers=there, few=few)
    # Spark starts no task for rows of which it knows beforehand that there are none
    return WrittenFile(**facts) if facts is not None else write(iter(()))


def _write_hashed(batches: Iterator[pa.RecordBatch], spec: RowsSpec) -> WrittenFile:
    facts = _write(batches, spec)
    name, size = hash_file(Path(facts.path))
    return replace(facts, size=size, physical_hash=str(name))


def _write(batches: Iterator[pa.RecordBatch], spec: RowsSpec) -> WrittenFile:
    target = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    path = Path(spec.folder) / f"rows-{uuid.uuid4().hex}.parquet"
    rows = 0
    with pq.ParquetWriter(path, target, version="2.6", compression="snappy", store_schema=False) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).cast(target))
            rows += batch.num_rows
        writer.add_key_value_metadata(target.metadata)
    return WrittenFile(str(path), rows)


# The rows still in force to one Parquet checkpoint, in one ordered Arrow stage (RFC-018).


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Specification of a state checkpoint; sent to the worker that writes it."""

    schema: bytes
    """Arrow schema of the columns that are kept, serialized by pyarrow."""
    vocabulary: DatasetVocabulary
    metadata: dict[bytes, bytes]
    """Key-value metadata of the file."""
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""


def write_state(
    frame: DataFrame, order: list[Column], spec: StateSpec, place: StoreFolder | None = None
) -> WrittenFile:
    """Order the rows and write them as one file, also when there are none.

    `frame` has the columns of the schema as physical types. The worker puts the file into `place`, where one
    is given.
    """
    names = pa.ipc.read_schema(pa.py_buffer(spec.schema)).names
    write = into_store(_write_state, spec, place) if place else functools.partial(_write_state, spec=spec)
    facts = write_ordered(frame, order, names, write)
    assert facts is not None  # noqa: S101 - `_write` always says something
    return WrittenFile(**facts)


def _write_state(batches: Iterator[pa.RecordBatch], spec: StateSpec) -> WrittenFile:
    schema = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    path = Path(spec.folder) / f"state-{uuid.uuid4().hex}.parquet"
    rows, physical = 0, PhysicalHash()
    try:
        with ObservedParquet(path, schema, spec.vocabulary, [physical], metadata=spec.metadata) as file:
            for batch in batches:
                columns = [cast_column(batch.column(i), target) for i, target in enumerate(schema)]
                file.write(pa.RecordBatch.from_arrays(columns, schema=schema))
                rows += batch.num_rows
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return WrittenFile(str(path), rows, physical.size, str(physical.hash))


# Rows to as many slices as their size asks for, written side by side (RFC-049).
#
#     each task puts its rows in order and leaves them as runs          no shuffle
#     the driver looks up in the runs where slices are cut             a few rows
#     each slice is put in order from its part of the runs, written    one task for each
#     and hashed
#
# So what is recorded is the same for one task and for many.


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
            lean = tuple(replace(run, index=b"") for run in runs)
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
        for facts in self._written(batches):
            yield pa.RecordBatch.from_pydict({"said": [pickle.dumps(facts)]})

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[RunFacts]:
        if isinstance(self.into, str):
            yield from write_runs(batches, self.layout, self.into)
            return
        with translate_errors(), worker_folder() as folder:
            for facts in write_runs(batches, self.layout, str(folder)):
                path = Path(facts.path)
                key = f"{self.into.key}/{path.name}"
                self.into.files.put(path, key)
                path.unlink()
                yield replace(facts, path=key)


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
        spec = replace(self.spec, start_offset=self.spec.start_offset + sum(start))
        if self.place is None:
            return self._write([Run.of_file(run) for run in self.runs], start, end, spec)
        with worker_folder() as folder:
            runs = [
                _brought(self.place.files, run, first, last, folder / str(n))
                for n, (run, first, last) in enumerate(zip(self.runs, start, end, strict=True))
            ]
            facts = self._write(runs, start, end, replace(spec, folder=str(folder)))
            self.place.files.put(Path(facts.path), f"{self.place.key}/{facts.physical_hash}")
            return replace(facts, path="")

    def _write(self, runs: list[Run], start: Rows, end: Rows, spec: SliceSpec) -> SliceFacts:
        batches = rows_between(runs, start, end)
        facts = write_slice((batch.rename_columns(self.names) for batch in batches), spec)
        assert facts is not None  # noqa: S101 - slices are not empty
        return facts


def _brought(files: ExecutorFiles, run: RunFacts, start: int, end: int, target: Path) -> Run:
    def ranged(blocks: RunBlocks, first: int, suffix: str) -> ReadBytes:
        low, high = blocks.around(first, end)
        path = target.with_suffix(suffix)
        files.copy(run.path, low, high, path)
        return mapped(path, low)

    if start == end:
        return Run(run, _nothing, _nothing)
    # the row before the interval, too: it has the sum of all sizes up to there
    return Run(run, ranged(run.keys, max(0, start - 1), ".keys"), ranged(run.values, start, ".values"))


def _nothing(_start: int, _end: int) -> bytes:
    raise AssertionError("no row of it is in the slice")
