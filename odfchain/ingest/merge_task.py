"""Where inputs are merged: by one task that also reads and writes, or by tasks for buckets of keys.

Either way rows are merged by `odfchain.ingest.merge_strategies`. One task takes inputs one after the other,
reads the recorded rows that are looked at once, and writes a slice for each; what comes back are facts and
counts. An input that is too much for one task is cut by a hash of the key, and the changes of all buckets are
put in order and written by Spark.
Source: RFC-058.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.ingest import merge_strategies as strategies
from odfchain.lazy import F, t
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import nullable
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.row_hash import Numbers
from odfchain.slices.reader import BATCH_ROWS
from odfchain.slices.writer import SliceFacts, SliceSpec, as_declared, hash_threads, write_slice
from odfchain.spark.executor_files import ReadableFiles, StoreFolder, translate_errors
from odfchain.spark.input_frames import FINER, is_milliseconds, rows_of_file
from odfchain.spark.java_formats import to_milliseconds
from odfchain.spark.jobs import RowCounter, explain, run_job
from odfchain.spark.plans import is_local, map_in_arrow
from odfchain.spark.slice_runs import BATCH_BYTES, RunFacts, RunLayout, leave_runs, row_sizes, windows
from odfchain.spark.stage import batches_by_rows, given_columns, write_into_store
from odfchain.spark.types import as_physical, col, physical_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType as SparkType

_PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True)
class MergeRules:
    """How an input is merged; sent to the workers."""

    strategy: src.MergeStrategy
    vocabulary: DatasetVocabulary
    policies: strategies.Policies
    names: tuple[str, ...]
    """Data columns of the input, those that are filled included."""
    schema: bytes
    """All columns of the dataset, as Arrow's schema, serialized."""
    timed: bool = False
    """Rows that take back without an event time get that of what they take back."""

    def fields(self, names: Iterable[str]) -> list[pa.Field]:
        """Columns of the dataset, in which everything may be null."""
        target = pa.ipc.read_schema(pa.py_buffer(self.schema))
        return [target.field(name).with_nullable(True).remove_metadata() for name in names]

    def read(self, batches: Iterable[pa.RecordBatch]) -> tuple[strategies.NewRows, Counter[str]]:
        """The rows of an input in their order and in the types of the dataset, and what they count."""
        operation = self.vocabulary.operation_type_column if self.strategy.TAKES_OPERATIONS else None
        fields = self.fields(name for name in self.names if name != operation)
        counts, numbers, operations = Counter[str](), [], []
        pieces: list[list[pa.Array]] = [[pa.nulls(0, field.type)] for field in fields]
        for batch in batches:
            counts["rows"] += len(batch)
            for column, field in zip(pieces, fields, strict=True):
                column.append(self._column(batch, field, counts))
            if strategies.NUMBER in batch.schema.names:
                numbers.append(batch.column(strategies.NUMBER).to_numpy(zero_copy_only=False))
            if operation in batch.schema.names:
                operations.append(batch.column(operation))
            for name in batch.schema.names:
                if name.startswith(FINER):
                    counts[f"finer:{name.removeprefix(FINER)}"] += pc.sum(batch.column(name)).as_py() or 0
        # column by column, so that no more than one of them is in memory twice
        whole = [pa.concat_arrays(pieces.pop(0)) for _ in fields]
        rows = pa.Table.from_arrays(whole, schema=pa.schema(fields))
        pa.default_memory_pool().release_unused()
        order = np.concatenate(numbers) if numbers else np.arange(1, len(rows) + 1)
        given = pa.concat_arrays(operations) if operations else None
        if not bool((np.diff(order) > 0).all()):
            places = np.argsort(order, kind="stable")
            order, rows = order[places], rows.take(pa.array(places)).combine_chunks()
            given = given and given.take(pa.array(places))
        new = strategies.NewRows(rows, order, self.vocabulary, self.policies, given)
        time = self.vocabulary.event_time_column
        if time in self.strategy.primary_key:
            # a key is compared as it will be recorded
            counts["timeless"] = rows[time].null_count
            new = new.with_event_times()
        if isinstance(self.strategy, src.MergeStrategyChangelogStream):
            counts["backTimeless"] = new.without_time()
        return new, +counts

    @staticmethod
    def _column(batch: pa.RecordBatch, field: pa.Field, counts: Counter[str]) -> pa.Array:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            return pa.nulls(len(batch), field.type)
        column = batch.column(place)
        kind, target = column.type, field.type
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(target) and kind.unit != target.unit:
            parts = _PER_UNIT[target.unit] // _PER_UNIT[kind.unit]
            if parts > 1:  # rounded towards the past, which Arrow's cast does not
                numbers = column.cast(pa.int64())
                rest = pa.array(np.mod(numbers.fill_null(0).to_numpy(zero_copy_only=False), parts))
                if number := pc.sum(pc.not_equal(rest, 0)).as_py():
                    counts[f"cut:{field.name}"] += number
                    column = pc.subtract(numbers, rest).cast(kind)
        return as_declared(column, field)

    def state(self, recorded: Iterable[pa.RecordBatch]) -> strategies.State:
        """What inputs are compared with."""
        if isinstance(self.strategy, src.MergeStrategyChangelogStream):
            # all columns but the event time of what is taken back
            left_out = (self.vocabulary.event_time_column, self.vocabulary.operation_type_column)
            values = [name for name in self.names if name not in left_out]
            return strategies.State.by_values(recorded, values, self.vocabulary)
        return strategies.State.of(recorded, self.strategy, self.vocabulary, self.policies.edits)

    def merged(self, new: strategies.NewRows, recorded: strategies.State | None) -> strategies.Changes:
        """The rows to append; errors as `NewRows.merged`."""
        if self.timed:
            new, recorded = new.with_times_taken_back(recorded) if new.without_time() else new, None
        return new.merged(self.strategy, recorded)

    def as_recorded(self, changes: strategies.Changes, order: Numbers, start: int) -> pa.Table:
        """Changes as they are recorded from an offset on, in the columns that are looked at."""
        offset, operation = self.vocabulary.offset_column, self.vocabulary.operation_type_column
        looked_at = strategies.columns_looked_at(self.strategy, self.names, self.policies.edits)
        names = [name for name in looked_at if name != operation]
        rows = changes.columns([operation, *names], order)
        offsets, system = np.arange(start, start + len(rows)), self.fields((offset, operation))
        first = [pa.array(offsets).cast(system[0].type), rows[operation].cast(system[1].type)]
        return pa.table([*first, *rows.columns[1:]], names=[offset, operation, *names])


@dataclass(frozen=True, slots=True)
class RecordedFiles:
    """Files with recorded rows, which the task that merges reads; sent to it."""

    keys: tuple[str, ...]
    """Paths, where there are no `files`."""
    files: ReadableFiles | None
    fields: tuple[pa.Field, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in these columns; errors as `rows_of_file`."""
        schema = pa.schema(self.fields)
        for key in self.keys:
            path = Path(key) if self.files is None else self.files.bring(key)
            yield from rows_of_file(path, key, schema.names, schema)


@contextlib.contextmanager
def all_threads() -> Iterator[None]:
    """Arrow uses several cores: Spark lets it have one for each task, and a task of ours is alone."""
    threads = pa.cpu_count()
    pa.set_cpu_count(hash_threads())
    try:
        yield
    finally:
        pa.set_cpu_count(threads)


# --- one task ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a merge; all that comes back from its task."""

    counts: Counter[str]
    facts: tuple[SliceFacts, ...] = ()
    fault: strategies.Fault | None = None
    row: int = 0
    """The row that was asked for."""
    looks_back: bool = False
    """Nothing was merged: rows that take back need the event times of what is recorded."""


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One input of a task."""

    rules: MergeRules
    spec: SliceSpec
    """Of its slice; where it is not the first one, the offset follows from those before it."""
    reader: Callable[[], Iterator[pa.RecordBatch]] | None
    """Gives its rows; None: they come from Spark."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Reads inputs and what is recorded, merges one after the other, and writes slices; sent to a worker."""

    steps: tuple[MergeStep, ...]
    """Several only where all have readers."""
    recorded: RecordedFiles | None
    """None where no slice was ever written, or none is looked at."""
    place: StoreFolder | None
    counter: RowCounter
    columns: tuple[str, ...]
    """The columns of the batches that come from Spark."""
    row_at: int | None = None
    """Write nothing, and say which row of the input is at this place of the slice."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """On a worker: the outcomes, pickled, as rows."""
        with translate_errors(), all_threads():
            given = (batch.rename_columns(self.columns) for batch in batches) if self.columns else iter(())
            if not self.columns:
                list(batches)
            said = [pickle.dumps(outcome) for outcome in self.outcomes(given)]
        yield pa.RecordBatch.from_pydict({"said": said})

    def outcomes(self, given: Iterable[pa.RecordBatch]) -> Iterator[Outcome]:
        """What comes of each input, up to the first that is refused, or cannot be read or written.

        Merged by itself, such an input says why: an error here is that of the first one.
        """
        held = _Held(self.recorded, self.steps[0].spec.start_offset)
        for number, step in enumerate(self.steps):
            self.counter.begin(number)
            try:
                outcome = self._outcome(number, given if step.reader is None else step.reader(), held)
            except Exception:
                if not number:
                    raise
                return
            yield outcome
            if outcome.fault is not None or outcome.looks_back:
                return

    def _outcome(self, number: int, given: Iterable[pa.RecordBatch], held: _Held) -> Outcome:
        step = self.steps[number]
        rules = step.rules if held.next_offset else dataclasses.replace(step.rules, timed=True)
        new, counts = rules.read(given)
        if counts["backTimeless"] and not rules.timed:
            return Outcome(counts, looks_back=True)
        # rows are counted from 1 as they stand in the file
        new = dataclasses.replace(new, numbers=np.arange(1, len(new.rows) + 1))
        try:
            changes = rules.merged(new, held.state(rules))
        except strategies.RefusedInputError as refused:
            return Outcome(counts, fault=refused.fault)
        counts += changes.counts
        if not len(changes):
            return Outcome(counts)
        order = changes.in_order()
        if self.row_at is not None:
            return Outcome(counts, row=int(changes.inputs[order[self.row_at]]))
        spec = dataclasses.replace(step.spec, start_offset=held.next_offset)
        rows = self.counter.counted(_batches(changes, given_columns(spec), order), number)
        facts = write_into_store(rows, write_slice, spec, self.place)
        held.add(rules, changes, order, last=step is self.steps[-1])
        return Outcome(counts, () if facts is None else (facts,))


class _Held:
    """What is recorded, in memory from the first look at it on, and what steps append to it."""

    def __init__(self, files: RecordedFiles | None, next_offset: int) -> None:
        self.next_offset = next_offset
        self._files = files
        self._state: strategies.State | None = None

    def state(self, rules: MergeRules) -> strategies.State | None:
        """What an input is compared with; None where nothing is recorded, or looked at."""
        if self._files is not None:
            self._state, self._files = rules.state(self._files.batches()), None
        return self._state

    def add(self, rules: MergeRules, changes: strategies.Changes, order: Numbers, *, last: bool) -> None:
        """These changes are recorded now."""
        if rules.strategy.LOOKS_BACK and not last:
            before = [] if self._state is None else self._state.rows.to_batches()
            after = rules.as_recorded(changes, order, self.next_offset)
            self._state = rules.state([*before, *after.to_batches()])
        self.next_offset += len(order)


def _batches(changes: strategies.Changes, names: Sequence[str], order: Numbers) -> Iterator[pa.RecordBatch]:
    data = [name for name in names if name in changes.source.column_names]
    source = changes.source.select(data)
    sizes = np.zeros(len(order), np.int64)
    if source.nbytes > BATCH_BYTES // 2:
        sizes = np.concatenate([row_sizes(batch) for batch in source.to_batches()])[changes.places[order]]
    for low, high in windows(sizes):
        yield from changes.columns(names, order[low:high]).combine_chunks().to_batches()


_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def task_bytes(session: SparkSession) -> int:
    """What one task merges: a quarter of the memory of Spark's process that it runs beside [bytes]."""
    key = "spark.driver.memory" if is_local(session) else "spark.executor.memory"
    text = (session.conf.get(key, None) or "1g").lower().removesuffix("b")
    return int(text.rstrip("kmgt")) * _UNITS.get(text[-1], 1) // 4


def run_in_task(
    session: SparkSession, frame: DataFrame | None, task: MergeTask, *, short: bool = False, file: str
) -> list[Outcome]:
    """What comes of the inputs of a task that a worker of the session runs; of the first one at least.

    `frame` has the input's rows where the task has no reader of its own; `short`: none holds more than a few
    KiB. `file` is what messages call the first one.
    """
    # by position: names with dots and backticks are syntax where columns are named
    columns = [] if frame is None else [col(name).alias(f"c{n}") for n, name in enumerate(frame.columns)]
    rows = session.range(0, 1, 1, 1) if frame is None else frame.select(*columns)

    def run() -> list[Outcome]:
        in_one = rows if frame is None else rows.repartition(1)
        collected = map_in_arrow(in_one, task, "said binary").collect()
        return [pickle.loads(row["said"]) for row in collected]  # noqa: S301 - by our own tasks

    try:
        with batches_by_rows(session) if short and frame is not None else contextlib.nullcontext():
            return run_job(session, run)
    except Exception as error:
        raise explain(error, file=file) from error


# --- buckets of keys -----------------------------------------------------------------------------------

# Rows that are appended together.
_APPENDED_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class BucketMerge:
    """Merges the rows of a bucket of keys, and leaves the changes as runs; sent to the workers."""

    rules: MergeRules
    columns: tuple[str, ...]
    """Those of the input."""
    recorded: tuple[pa.Field, ...]
    """Columns of recorded rows."""
    changes: bytes
    """Those of the changes in the types of Spark, as Arrow's schema."""
    layout: RunLayout
    into: str | StoreFolder

    def __call__(self, new: pa.Table, old: pa.Table | None = None) -> pa.Table:
        """What comes of new rows, and of recorded ones with the same keys: runs, counts, a fault."""
        # without the column that names the bucket
        given = new.select(range(len(self.columns))).rename_columns(self.columns)
        rows, counts = self.rules.read(given.sort_by(strategies.NUMBER).combine_chunks().to_batches())
        fault, runs = None, list[RunFacts]()
        try:
            recorded = self.rules.state(self._declared(old)) if self.recorded else None
            changes = self.rules.merged(rows, recorded)
        except strategies.RefusedInputError as refused:
            fault = refused.fault
        else:
            counts += changes.counts
            schema = pa.ipc.read_schema(pa.py_buffer(self.changes))
            table = changes.columns(schema.names).combine_chunks()
            batches = (_as_carried(batch, schema) for batch in table.to_batches(BATCH_ROWS))
            runs = list(leave_runs(batches, self.layout, self.into))
        return pa.table({"said": [pickle.dumps((counts, fault, runs))]})

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same of new rows of which none is compared with another, so many at a time."""
        held = list[pa.RecordBatch]()
        for batch in batches:
            held.append(batch)
            if sum(each.nbytes for each in held) >= _APPENDED_BYTES:
                yield from self(pa.Table.from_batches(held)).to_batches()
                held.clear()
        if held:
            yield from self(pa.Table.from_batches(held)).to_batches()

    def _declared(self, old: pa.Table | None) -> Iterator[pa.RecordBatch]:
        schema = pa.schema(self.recorded)
        for batch in () if old is None else old.select(range(len(schema))).to_batches():
            columns = list(map(as_declared, batch.columns, schema))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A merge by buckets of keys, as a plan."""

    rules: MergeRules
    target: ds.DataSchema
    """Of the dataset afterwards."""
    given: DataFrame
    """The input: `NUMBER`, data columns, and those that count finer times."""
    history: DataFrame | None
    """Recorded rows."""
    recorded: tuple[pa.Field, ...]
    """Their columns, also where there are no such rows any more; none where nothing is looked at."""
    number: int
    """How many buckets."""

    def leave(
        self, into: str | StoreFolder, layout: RunLayout, names: Sequence[str]
    ) -> tuple[Counter[str], strategies.Fault | None, list[RunFacts]]:
        """Merge, and leave the changes as runs; (counts, the first fault, the runs)."""
        from pyspark.sql.pandas.types import to_arrow_schema

        struct = t.StructType([t.StructField(name, self._physical(name)) for name in names])
        changes = nullable(to_arrow_schema(struct, timezone="UTC")).serialize().to_pybytes()
        merge = BucketMerge(self.rules, tuple(self.given.columns), self.recorded, changes, layout, into)
        said = "said binary"
        if isinstance(self.rules.strategy, src.MergeStrategyAppend):
            found = map_in_arrow(self._bucketed(self.given), merge.batches, said)
        elif self.history is None:
            # Spark tells by its arguments whether a function takes the key as well
            new = self._bucketed(self.given).groupBy("bucket")
            found = new.applyInArrow(lambda new: merge(new), said)  # noqa: PLW0108
        else:
            old = self._bucketed(self.history).groupBy("bucket")
            both = self._bucketed(self.given).groupBy("bucket").cogroup(old)
            found = both.applyInArrow(lambda new, old: merge(new, old), said)  # noqa: PLW0108
        collected = run_job(found.sparkSession, found.collect)
        rows = [pickle.loads(row["said"]) for row in collected]  # noqa: S301 - by our own tasks
        faults = [fault for _, fault, _ in rows if fault is not None]
        counts = sum((counts for counts, _, _ in rows), Counter[str]())
        return (
            counts,
            strategies.first_fault(faults) if faults else None,
            [run for _, _, runs in rows for run in runs],
        )

    def _bucketed(self, frame: DataFrame) -> DataFrame:
        # by position: names with dots and backticks are syntax where columns are named
        columns = [col(name).alias(f"c{place}") for place, name in enumerate(frame.columns)]
        key, rules = self.rules.strategy.primary_key, self.rules
        # lists, maps and structures have no hash that is equal where they are
        fields = [f for f in self.target.fields if f.name in key and not isinstance(f.value_type, NESTED)]
        time, event_time_ms = rules.vocabulary.event_time_column, rules.policies.event_time_ms
        hashed = key_hash(fields, time, event_time_ms) if fields else F.lit(0)
        return frame.select(*columns, F.pmod(hashed, F.lit(self.number)).alias("bucket"))

    def _physical(self, name: str) -> SparkType:
        if name == strategies.NUMBER:
            return t.LongType()
        field = self.target.field(
            self.rules.vocabulary.event_time_column if name == strategies.GIVEN_TIME else name
        )
        assert field is not None  # noqa: S101 - a column of the dataset
        return physical_type(field.type)


def _as_carried(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(map(as_physical, rows.columns, schema.types)), schema=schema)


NESTED = (ds.DataTypeList, ds.DataTypeMap, ds.DataTypeStruct)
"""Types whose values have no order, or no hash that is equal where they are."""


def key_hash(fields: Sequence[ds.DataField], event_time: str, event_time_ms: int) -> Column:
    """A hash of columns as they are recorded, an event time filled in, -0.0 and NaN normalised."""
    parts = []
    for f in fields:
        kind = physical_type(f.type)
        value = col(f.name).cast(kind)
        if isinstance(f.value_type, ds.DataTypeFloat16 | ds.DataTypeFloat32 | ds.DataTypeFloat64):
            value = F.when(F.isnan(value), float("nan")).when(value == 0, 0.0).otherwise(value.cast("double"))
        if is_milliseconds(f.value_type):
            value = to_milliseconds(value)
        if f.name == event_time:
            value = F.coalesce(value, F.timestamp_millis(F.lit(event_time_ms)).cast(kind))
        parts.append(value)
    return F.xxhash64(*parts)
