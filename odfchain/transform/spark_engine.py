"""The engine on Spark in this process: one request, one private folder, nothing kept but plans.

    request ─ gate ─► operators ─► new rows of every input, cut and in order
    previous checkpoint ─► watermarks, remembered rows     │
                                                           ▼
                      slice  ◄─ in order ◄─ what the step adds to the result
                 checkpoint  ◄─ what is remembered for the next step

Everything runs in one partition and in the order of the inputs' offsets, so that neither the number of cores
nor the way files are cut shows in a result. Source: specification "Engine Contract"; RFC-019.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odfchain.errors import BadInputError, EngineError, OdfchainError, QueryError
from odfchain.lazy import F, Window, pq
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.engine_messages import INPUT_TABLE, RawQueryRequest, TransformRequest
from odfchain.odf.enums import OperationType, TimeUnit
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.schema import check_recordable, recorded
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import check_parquet
from odfchain.slices.writer import SliceFacts, SliceSpec, notes_on_cut_times, parquet_writer
from odfchain.spark.executor_files import copy_put, files_of, session_like
from odfchain.spark.input_frames import spark_path
from odfchain.spark.jobs import Cancellation, Steps, explain, run_job, watched
from odfchain.spark.plans import FEW_ROWS, INTERPRETED, ONE_TASK, is_remote
from odfchain.spark.query import Queries
from odfchain.spark.query_refusals import failed_query
from odfchain.spark.session import SQL_SETTINGS, judge_of
from odfchain.spark.stage import write_frame
from odfchain.spark.types import result_schema
from odfchain.text import counted
from odfchain.transform import archive
from odfchain.transform.checked_query import Query, StepContext
from odfchain.transform.engines import EngineRules, Executed, check_columns, engine_version, rules_of
from odfchain.transform.operators import Catalyst, QueryKind
from odfchain.transform.retracting import OPERATION, FinalRowsFlow, RetractingFlow
from odfchain.transform.step_files import InputRows, KeyOf, StepFiles, StepInput
from odfchain.transform.stream_flow import Flow, StepMemory
from odfchain.workspace.dataset_state import SystemColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from odfchain.progress import Progress


_Result = TypeVar("_Result")

SETTINGS = {
    **SQL_SETTINGS,
    **ONE_TASK,
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),  # batches show in a checkpoint's bytes
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.unionOutputPartitioning": "false",
}
"""Settings under which a query gives the same rows in the same order everywhere."""


@dataclass(frozen=True, slots=True)
class QueryCheck:
    """Facts about a query before any row is read."""

    kind: QueryKind
    schema: ds.DataSchema
    """That of the slices, system columns included."""
    notes: tuple[str, ...]
    """Notes for the user before the query is recorded."""


class SparkTransformEngine:
    """Executes transformations on a session of its own next to the given one; fulfils `InProcessEngine`."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        small_rows: int = FEW_ROWS,
        key_of: KeyOf = lambda _: None,
    ) -> None:
        """`session` is called when the first query comes; that may start Spark.

        Steps of up to `small_rows` rows are interpreted, larger ones are compiled. `key_of` says which files
        of requests executors find in a store.
        """
        self._base = session
        self._small_rows = small_rows
        self.deadline: float | None = None
        self.slices: str | None = None
        self._key_of = key_of
        self._sessions: dict[bool, SparkSession] = {}
        self._queries: dict[object, Query] = {}
        self._running: dict[str, Cancellation] = {}
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """The version that new transforms get; earlier rules are executed, too."""
        return engine_version()

    def limited(self, seconds: float | None) -> SparkTransformEngine:
        """The engine, which ends what takes longer than `seconds`, if any; starting Spark does not count."""
        engine = copy.copy(self)  # sessions, plans and what runs are shared
        engine.deadline = seconds
        return engine

    def keeping(self, slices: str) -> SparkTransformEngine:
        """The engine, whose executors put slices into the store under a key where they see no folder."""
        engine = copy.copy(self)
        engine.slices = slices
        return engine

    def session(self, *, interpreted: bool = False) -> SparkSession:
        """The session in which queries run; JavaNotFoundError or EngineError where Spark does not start."""
        with self._lock:
            if interpreted not in self._sessions:
                base = self._base()
                if is_remote(base):
                    raise EngineError(
                        "transformations do not run over Spark Connect: steps are made of Spark's own plans",
                        hint="compute them in a workspace without spark.remote; it may be on the same store",
                    )
                settings = SETTINGS | (INTERPRETED if interpreted else {})
                self._sessions[interpreted] = session_like(base, settings)
            return self._sessions[interpreted]

    def execute(
        self, request: TransformRequest, *, schema: ds.DataSchema | None, progress: Progress
    ) -> Executed:
        """The next step of a transformation: the same request gives the same files, whenever and wherever."""
        settled = _with_version(request)
        return self._run(settled, lambda files: self._execute(settled, schema, files, progress))

    def _run(
        self, request: TransformRequest | RawQueryRequest, work: Callable[[StepFiles], _Result]
    ) -> _Result:
        session, output = self.session(), _output_of(request)
        with (
            self._cancellable(output) as cancellation,
            _private(Path(output).parent) as folder,
            contextlib.ExitStack() as resources,
            _explained(request.transform),
        ):
            files = StepFiles(session, folder, resources, key_of=self._key_of, slices=self.slices)
            return run_job(session, lambda: work(files), deadline=self.deadline, cancellation=cancellation)

    def cancel(self, request: TransformRequest | RawQueryRequest) -> None:
        """End the run of a request, from another thread: it raises an EngineError. Others go on."""
        with self._lock:
            running = self._running.get(_output_of(request))
        if running is not None:
            running.cancel()

    @contextmanager
    def _cancellable(self, output: str) -> Iterator[Cancellation]:
        cancellation = Cancellation()
        with self._lock:
            self._running[output] = cancellation
        try:
            yield cancellation
        finally:
            with self._lock:
                del self._running[output]

    def check(
        self,
        transform: Transform,
        inputs: Sequence[StepInput],
        vocabulary: DatasetVocabulary,
        progress: Progress,
    ) -> QueryCheck:
        """Check by names and schemas that a query can be executed, and its result recorded."""
        session = self.session()

        def find() -> QueryCheck:
            query = Query.of(session, transform, inputs, note=progress.note)
            _check_result(query.result, vocabulary, query.kind)
            query.check_options(rules_of(transform.version))
            schema = _result_fields(query.result, [i.schema for i in inputs], vocabulary)
            return QueryCheck(query.kind, schema, query.notes(vocabulary))

        with _explained(transform):
            return run_job(session, find)

    def check_form(self, transform: Transform, tables: Collection[str]) -> None:
        """The queries use only `tables` and what is allowed; columns and types are not looked at."""
        base = self._base()
        plain = dataclasses.replace(transform, temporal_tables=None)
        with _explained(transform):
            if is_remote(base):
                Queries(judge_of(base), plain).check(tables)
                return
            session = self.session()
            run_job(session, lambda: Queries(session, plain).check(tables))

    def _query(
        self, session: SparkSession, request: TransformRequest, inputs: list[StepInput], progress: Progress
    ) -> Query:
        # planned once for the same text over the same columns
        key = (session, request.transform, tuple(i.identity for i in inputs), request.vocab)
        with self._lock:
            query = self._queries.get(key)
            if query is None:
                query = Query.of(session, request.transform, inputs, note=progress.note)
                _check_result(query.result, request.vocab, query.kind)
                self._queries[key] = query
            return query

    def _planned(
        self, request: TransformRequest, progress: Progress
    ) -> tuple[list[StepInput], bool, SparkSession, Query]:
        # the inputs, whether there are few rows, the session for so many, the query
        inputs = [StepInput.of(given) for given in request.query_inputs]
        small = _rows_of(request) <= self._small_rows
        session = self.session(interpreted=small)
        query = self._query(session, request, inputs, progress)
        if not small and query.generators > 1:
            # a compiled generator makes all that follows from one row in memory, and cannot be stopped
            session = self.session(interpreted=True)
            query = self._query(session, request, inputs, progress)
        return inputs, small, session, query

    def _execute(
        self, request: TransformRequest, schema: ds.DataSchema | None, files: StepFiles, progress: Progress
    ) -> Executed:
        progress.phase("Planning")
        began = time.monotonic()
        inputs, small, session, query = self._planned(request, progress)
        few = self._small_rows if small else 0
        step = StepContext.begin(request, query, inputs, files.folder)
        if step.restarted:
            progress.note("the query changed: what it remembers starts anew with this step")
        target = settled_schema(
            _result_fields(query.result, [i.schema for i in inputs], request.vocab), schema
        )
        rows = [i.rows(session, files, query.columns_of(i.given.query_alias)) for i in inputs]
        memory = StepMemory({name: files.read(session, path) for name, path in step.parts.items()})
        progress.phase("Computing")
        with watched(progress, _steps(request)):
            frame, promise = _result(query, step, rows, memory)
            names = query.result.names
            facts = _write_output(
                _in_order(frame, names, request.vocab.event_time_column, query.kind),
                names, target, request.vocab,
                start_offset=request.next_offset,
                system_time_ms=request.system_time.epoch_ms,
                files=files, target=Path(request.new_data_path),
                short=not small and query.kind is QueryKind.STATELESS and all(r.short for r in rows),
                few=few,
            )  # fmt: skip
        for note in notes_on_cut_times(facts.finer if facts is not None else {}):
            progress.note(note)
        watermark = step.output_watermark(promise)
        if query.kind is not QueryKind.STATELESS or len(inputs) > 1:
            left_out = _left_out(memory, rows, step)
            progress.phase("Remembering")
            with watched(progress, Steps.all_called("Remembering")):
                manifest = step.finish(memory, watermark, left_out, files, few)
            for note in _notes(manifest):
                progress.note(note)
        interval, put_since = None, 0.0
        if facts is not None:
            put_since = began if files.keeps_slices and not facts.path else 0.0
            start = request.next_offset
            interval = OffsetInterval(start=start, end=start + facts.rows - 1)
            facts = dataclasses.replace(facts, path=request.new_data_path)
        promised = None if watermark is None else Timestamp.from_epoch_ms(watermark)
        return Executed(
            offset_interval=interval,
            watermark=promised,
            facts=facts,
            keeps_checkpoint=False,
            takes_back_own=query.kind is not QueryKind.STATELESS,
            put_since=put_since,
        )

    def rows_of(self, request: TransformRequest, *, progress: Progress) -> int | None:
        settled = _with_version(request)
        return self._run(settled, lambda files: self._count(settled, files, progress))

    def _count(self, request: TransformRequest, files: StepFiles, progress: Progress) -> int | None:
        inputs, _, session, query = self._planned(request, progress)
        if not query.is_row_by_row:
            return None
        rows = [i.rows(session, files, query.columns_of(i.given.query_alias)) for i in inputs]
        step = StepContext.begin(request, query, inputs, files.folder)
        frame, _ = _result(query, step, rows, StepMemory({}))
        return frame.count()

    def tasks(self) -> int:
        return int(self.session().sparkContext.defaultParallelism)

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw Parquet files, exposed as the table `input`; returns the number of records."""
        if files_of(self._base()) is not None:
            raise EngineError(
                "raw queries do not run in a Spark whose executors do not see the folders of the driver",
                hint="run them where Spark is `local[*]`; or where they do see them: `spark.files: shared` "
                "in the workspace's config.yaml",
            )
        session = self.session()
        return self._run(request, lambda files: _raw_query(session, request, files.folder, progress))


def _result(
    query: Query, step: StepContext, rows: list[InputRows], memory: StepMemory
) -> tuple[DataFrame, int | None]:
    """(new rows as `c0`, `c1`, …; what may be promised of later ones [ms])."""
    catalyst: Catalyst = query.catalyst
    changing = frozenset(r.alias for r in rows if r.has_changes)
    windowed = query.kind is not QueryKind.STATELESS and step.rules.takes_corrections
    flow = Flow(
        catalyst,
        query.times,
        query.root,
        {r.alias: r.frame for r in rows},
        step.watermark,
        memory,
        query.used,
        rules=step.rules,
        changing=changing if windowed else frozenset(),
        may_be_late=_may_be_late(rows, step),
    )
    if query.kind is QueryKind.RETRACTING:
        tables = {i.given.query_alias: i.columns for i in step.inputs}
        places = {name: query.columns_of(name) for name in tables}
        used = {
            name: [f"c{i}" for i in (range(len(tables[name].names)) if wanted is None else sorted(wanted))]
            for name, wanted in places.items()
        }
        session, transform = catalyst.session, step.request.transform
        versions = frozenset(t.name for t in transform.temporal_tables or ())
        asked_again = Queries(session, transform).run if query.has_subqueries else None
        retracting = (RetractingFlow if step.rules.counts_at_once else FinalRowsFlow)(
            flow, tables, changing, used, versions, all(r.empty for r in rows), asked_again
        )
        return retracting.change(query.root), step.now
    if query.kind is QueryKind.WINDOWED and not step.rules.takes_corrections:
        for r in rows:
            if r.has_changes:
                raise QueryError(
                    f"`{r.alias}` retracts or corrects rows, and by the rules of {step.rules.version}, which "
                    "the transform names, nothing is taken back that was emitted for a time that has passed",
                    hint=f"{EngineRules().version} can: name that version in the transform and `add "
                    "--update` it, or make another dataset",
                )
    changes = flow.rows(query.root)
    frame = catalyst.frame(changes.plan)
    if changes.back is not None:
        frame = _corrected(frame, catalyst.frame(changes.back), query.identity())
    vocabulary = step.request.vocab
    operation = vocabulary.operation_type_column
    if operation in query.result.names and any(r.has_changes for r in rows):
        frame = _whole_pairs(frame, f"c{query.result.names.index(operation)}")
    mark = changes.marks.get(query.event_time(vocabulary))
    point = mark.promise if mark is not None else None
    return frame, None if point is None else point.start // 1_000


def _notes(step: archive.Manifest) -> Iterator[str]:
    for name, number in step.late.items():
        yield f"{name}: {counted(number, 'row')} came too late and {_were(number)} left out"
    for name, number in step.unmatched.items():
        rows = counted(number, "row")
        yield f"{name}: {rows} would take back what is not remembered and {_were(number)} left out"
    for name, number in step.waiting.items():
        what = "a watermark"
        if step.watermark_ms is not None:
            what = f"the watermark {Timestamp.from_epoch_ms(step.watermark_ms)} to move on"
        yield f"{name}: {counted(number, 'row')} {'waits' if number == 1 else 'wait'} for {what}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _with_version(request: TransformRequest) -> TransformRequest:
    # without a version a transform goes on by the rules of its last checkpoint
    if request.transform.version is not None or request.prev_checkpoint_path is None:
        return request
    version = archive.Manifest.read(Path(request.prev_checkpoint_path)).engine_version
    return dataclasses.replace(request, transform=dataclasses.replace(request.transform, version=version))


def _steps(request: TransformRequest) -> Steps:
    inputs = ", ".join(given.query_alias for given in request.query_inputs)
    return Steps(reading=f"Reading {inputs}", merging="Computing", writing="Computing and writing")


def _rows_of(request: TransformRequest) -> int:
    new = sum(i.offset_interval.count for i in request.query_inputs if i.offset_interval is not None)
    if request.prev_checkpoint_path is None:
        return new
    manifest = archive.Manifest.read(Path(request.prev_checkpoint_path))
    return new + sum(part.rows for part in manifest.parts)


def _left_out(memory: StepMemory, rows: list[InputRows], step: StepContext) -> dict[str, dict[str, int]]:
    # counting costs a job, so only where some rows could be late
    changing = any(r.has_changes for r in rows)
    return {
        "late": _counted(memory.late) if _may_be_late(rows, step) else {},
        "unmatched": _counted(memory.unmatched) if changing else {},
    }


def _may_be_late(rows: list[InputRows], step: StepContext) -> bool:
    return step.before is not None and any(r.may_have_before(step.before) for r in rows)


def _counted(frames: Sequence[tuple[str, DataFrame]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, frame in frames:
        if number := frame.count():
            counts[name] = counts.get(name, 0) + number
    return counts


def _output_of(request: TransformRequest | RawQueryRequest) -> str:
    # no two concurrent requests have the same output path
    return request.output_data_path if isinstance(request, RawQueryRequest) else request.new_data_path


@contextmanager
def _private(parent: Path) -> Iterator[Path]:
    # never used before, and removed afterwards
    folder = parent / f"step-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _explained(transform: Transform) -> Iterator[None]:
    # faults of the query itself come as Spark's errors, too
    try:
        yield
    except OdfchainError as error:
        cause = error.__cause__
        if isinstance(error, EngineError) and isinstance(cause, Exception):
            fault = failed_query(cause, transform=transform)
            if fault is not None:
                raise fault from error
        if isinstance(error, BadInputError) and error.file is None:
            raise QueryError(f"the result does not fit: {error.message}") from error
        raise
    except Exception as error:
        raise failed_query(error, transform=transform) or explain(error) from error


# --- the result as a slice: its columns, their types, the order of its rows ------------------------------

_INTEGERS = frozenset({"byte", "short", "integer", "long"})


def _check_result(result: StructType, vocabulary: DatasetVocabulary, kind: QueryKind) -> None:
    """The columns of a query's result can become a slice."""
    operation = vocabulary.operation_type_column
    chosen = result[operation].dataType if operation in result.names else None
    wrong = None if chosen is None or chosen.typeName() in _INTEGERS else chosen.simpleString()
    check_columns(result.names, vocabulary, wrong)
    _check_event_time(result, vocabulary)
    if chosen is not None and kind is not QueryKind.STATELESS:
        hint = "leave it out: the operations follow from what changes in the result"
        message = f"`{operation}` cannot be chosen in a query that looks at more than one row"
        raise QueryError(message, hint=hint)
    if kind is not QueryKind.STATELESS:
        for field in result.fields:
            if "map<" in field.dataType.simpleString():
                hint = "use map_entries: sort_array(map_entries(…))"
                raise QueryError(f"column `{field.name}` is a map, and maps have no order", hint=hint)


def _check_event_time(result: StructType, vocabulary: DatasetVocabulary) -> None:
    name = vocabulary.event_time_column
    if result[name].dataType.typeName() not in ("timestamp", "date"):
        raise QueryError(
            f"the event time `{name}` is a {result[name].dataType.simpleString()}, not a timestamp or a date",
            hint="cast it to TIMESTAMP (times are UTC)",
        )


def _result_fields(
    result: StructType, inputs: Iterable[ds.DataSchema], vocabulary: DatasetVocabulary
) -> ds.DataSchema:
    """The schema of slices: system columns, then the result's (specification "Common Data Schema")."""
    known: dict[str, ds.DataField] = {}
    for schema in inputs:
        for field in schema.fields:
            known.setdefault(field.name, field)
    found = result_schema(result, ds.DataSchema(fields=tuple(known.values())))
    check_recordable(found.fields)
    name = vocabulary.event_time_column
    time = found.field(name)
    assert time is not None  # noqa: S101 - _check_result
    kind: ds.DataType = ds.DataTypeDate() if isinstance(time.value_type, ds.DataTypeDate) else ds.MS_UTC
    event_time = ds.DataField(name=name, type=ds.optional(kind) if result[name].nullable else kind)
    return SystemColumns.SPECIFICATION.before(found.fields, event_time, vocabulary)


def settled_schema(found: ds.DataSchema, declared: ds.DataSchema | None) -> ds.DataSchema:
    """The declared schema, units of times too, with what a new query adds at its end ("Schema Evolution")."""
    if declared is None:
        return found
    # the first four are the system columns, which `_result_fields` makes
    for field in declared.fields[4:]:
        now = found.field(field.name)
        if now is None:
            raise QueryError(
                f"the result has no column `{field.name}` any more, and readers of the dataset count on it",
                hint="select it, or make another dataset",
            )
        if _without_units(recorded(now.value_type)) != _without_units(recorded(field.value_type)):
            message = f"column `{field.name}` is {now.value_type.KIND} now and was {field.value_type.KIND}"
            raise QueryError(message, hint="cast it to what it was, or make another dataset")
    names = set(declared.names)
    added = tuple(f for f in found.fields if f.name not in names)
    return ds.DataSchema(fields=declared.fields + added, extra=declared.extra)


def _without_units(data_type: ds.DataType) -> ds.DataType:
    """The type with all timestamps in milliseconds, for telling whether two types differ in more."""

    def change(part: ds.DataType) -> ds.DataType | None:
        match part:
            case ds.DataTypeTimestamp(timezone=zone):
                zone = "UTC" if zone is None else zone
                return ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone=zone)
            case ds.DataTypeMap():
                return part
        return None

    return ds.with_types(data_type, change)


def _whole_pairs(frame: DataFrame, operation: str) -> DataFrame:
    """The rows with corrections in pairs: where a query kept one half, that is an append or a retraction."""
    # both halves are next to each other; whether two halves are of one pair is not known here
    codes = {op: op.code for op in OperationType}
    in_order = Window.orderBy("i")
    op = F.col(operation)
    # the last row has no next one: a null would make the whole condition null
    following = F.coalesce(F.lead(op).over(in_order), F.lit(-1)) == codes[OperationType.CORRECT_TO]
    leading = F.coalesce(F.lag(op).over(in_order), F.lit(-1)) == codes[OperationType.CORRECT_FROM]
    whole = (
        F.when((op == codes[OperationType.CORRECT_FROM]) & ~following, codes[OperationType.RETRACT])
        .when((op == codes[OperationType.CORRECT_TO]) & ~leading, codes[OperationType.APPEND])
        .otherwise(op)
    )
    # these ids have the order of the rows within one partition only
    numbered = frame.coalesce(1).withColumn("i", F.monotonically_increasing_id())
    return numbered.withColumn(operation, whole).sortWithinPartitions("i").drop("i")


def _in_order(frame: DataFrame, names: Sequence[str], event_time: str, kind: QueryKind) -> DataFrame:
    """The rows in the order in which they are recorded (RFC-019).

    Stateless: as they come. Windowed: by event time, then by every column from left to right; a correction
    takes the place of the row that it corrects. Retracting: what is taken back first, then by every column
    from left to right. Nulls come first, NaN last.
    """
    columns = [F.col(f"c{index}").asc_nulls_first() for index in range(len(names))]
    order: list[Column]
    if kind is QueryKind.STATELESS:
        return frame
    if kind is QueryKind.WINDOWED and OPERATION in frame.columns:
        order = _in_place(frame, names.index(event_time))
    elif kind is QueryKind.WINDOWED:
        order = [F.col(f"c{names.index(event_time)}").asc_nulls_first(), *columns]
    else:
        order = [F.col(OPERATION).desc(), *columns]
    return frame.coalesce(1).sortWithinPartitions(*order)


def _write_output(
    frame: DataFrame,
    names: Sequence[str],
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    *,
    start_offset: int,
    system_time_ms: int,
    files: StepFiles,
    target: Path,
    short: bool,
    few: int,
) -> SliceFacts | None:
    """Write rows as a slice at `target`; without rows a file that only has the schema, and None.

    `short` and `few` as in `write_frame`. The facts have no path where a worker has put the slice into the
    store, too.
    """
    op = vocabulary.operation_type_column
    named = {name: F.col(f"c{index}") for index, name in enumerate(names)}
    if OPERATION in frame.columns:
        named[op] = F.col(OPERATION)
    elif op not in named:
        named[op] = F.lit(0)
    made = (vocabulary.offset_column, vocabulary.system_time_column)
    selected = frame.select(*[named[f.name].alias(f.name) for f in schema.fields if f.name not in made])
    spec = SliceSpec.of(schema, vocabulary, start_offset, system_time_ms, files.folder)
    place = files.place(of_slice=True)
    facts = write_frame(selected, spec, short=short, few=few, place=place)
    if facts is None:
        with target.open("xb") as sink:
            parquet_writer(sink, slice_schema(schema), vocabulary).close()
        return None
    wrong = [code for code in facts.ops if int(code) > 3]
    if wrong:
        hint = "0 appends, 1 retracts, 2 and 3 correct"
        raise QueryError(f"the operation `{op}` is {wrong[0]} in some rows", hint=hint)
    if facts.path:
        Path(facts.path).replace(target)
    elif place is not None:
        copy_put(place(), facts.physical_hash, facts.size, target)
    return facts


# Retracted and new results as recorded rows. The two are a correction (-C, +C) if they are of the same group,
# the result has the group's columns, and the step changes one row of it; else -R and +A (specification
# "Representation of Retractions and Corrections"; RFC-019).

_PLACE = "place"
"""Column that says where a row is ordered: the row itself, or the one that it replaces."""


def _corrected(new: DataFrame, back: DataFrame, identity: Sequence[int] | None) -> DataFrame:
    """The rows of a step with `OPERATION`, and what `_in_place` orders them by.

    `identity` are the columns that tell the groups of the result apart; None where it does not show them.
    """
    codes = {op: F.lit(op.code) for op in OperationType}
    row = F.struct(*[F.col(name) for name in new.columns])
    rows = new.withColumn(OPERATION, codes[OperationType.APPEND]).union(
        back.withColumn(OPERATION, codes[OperationType.RETRACT])
    )
    rows = rows.coalesce(1).withColumn(_PLACE, row)
    if identity is None:
        return rows
    is_back = F.col(OPERATION) == codes[OperationType.RETRACT]
    group = Window.partitionBy(*[F.col(f"c{index}") for index in identity])
    gone, come = F.sum(is_back.cast("int")).over(group), F.sum((~is_back).cast("int")).over(group)
    rows = rows.withColumn("pair", (gone == 1) & (come == 1))
    old = F.max(F.when(is_back, F.col(_PLACE))).over(group)
    operation = (
        F.when(F.col("pair") & is_back, codes[OperationType.CORRECT_FROM])
        .when(F.col("pair"), codes[OperationType.CORRECT_TO])
        .otherwise(F.col(OPERATION))
    )
    rows = rows.withColumn(_PLACE, F.when(F.col("pair"), old).otherwise(F.col(_PLACE)))
    return rows.withColumn(OPERATION, operation).drop("pair")


def _in_place(frame: DataFrame, event_time: int) -> list[Column]:
    """The order of corrected rows: as without corrections, a correction in the old row's place."""
    count = sum(name.startswith("c") for name in frame.columns)
    place = [F.col(f"{_PLACE}.c{index}").asc_nulls_first() for index in range(count)]
    return [place[event_time], *place, F.col(OPERATION).asc()]


# Raw queries: another coordinator's preprocess steps over Parquet files.


def _raw_query(session: SparkSession, request: RawQueryRequest, folder: Path, progress: Progress) -> int:
    """Write the result of the query as one Parquet file, if it has rows; returns their number."""
    inputs = {}
    if request.input_data_paths:
        paths = [spark_path(Path(path)) for path in request.input_data_paths]
        for given in request.input_data_paths:
            check_parquet(Path(given))
        inputs[INPUT_TABLE] = session.read.parquet(*paths)
    progress.phase("Computing")
    result = Queries(session, request.transform, progress.note).run(inputs)
    result.coalesce(1).write.parquet(str(folder / "result"))
    (path,) = (folder / "result").glob("part-*.parquet")
    count: int = pq.read_metadata(path).num_rows
    if count:
        path.replace(request.output_data_path)
    return count
