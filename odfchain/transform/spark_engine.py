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
import functools
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odfchain.errors import BadInputError, EngineError, OdfchainError, QueryError
from odfchain.lazy import pq
from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import check_parquet, open_parquet
from odfchain.slices.writer import notes_on_cut_times
from odfchain.spark.executor_files import need_folders, session_like
from odfchain.spark.input_frames import spark_path
from odfchain.spark.jobs import Cancellation, Steps, explain, run_job, watched
from odfchain.spark.plans import FEW_ROWS, INTERPRETED, ONE_TASK, is_remote
from odfchain.spark.query import check_queries, run_queries
from odfchain.spark.session import SQL_SETTINGS, judge_of
from odfchain.text import counted
from odfchain.transform import archive
from odfchain.transform.checked_query import InputRows, Query, StepContext, StepInput, query_of
from odfchain.transform.engine_result import (
    KeyOf,
    StepFiles,
    check_result,
    in_order,
    result_fields,
    settled_schema,
    whole_pairs,
    write_output,
)
from odfchain.transform.engines import EngineRules, Executed, engine_version, rules_of
from odfchain.transform.operators import Catalyst, QueryKind
from odfchain.transform.retracting import (
    FinalTables,
    RetractingFlow,
    Tables,
    corrected,
    identity_of,
    used_of_tables,
)
from odfchain.transform.stream_flow import Flow, StepMemory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.odf.schema import DataSchema
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
    schema: DataSchema
    """That of the slices, system columns included."""
    notes: tuple[str, ...]
    """Notes for the user before the query is recorded."""


class SparkTransformEngine:
    """Executes transformations on a session of its own next to the given one."""

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
        """The session in which queries run, compiled or interpreted.

        Raises:
            JavaNotFoundError, EngineError: Spark does not start.
        """
        with self._lock:
            if interpreted not in self._sessions:
                base = self._base()
                if is_remote(base):
                    raise EngineError(
                        "transformations do not run over Spark Connect: steps are made of Spark's own plans",
                        hint="compute them in a workspace without spark.remote; it may be on the same store",
                    )
                session = session_like(base)
                for key, value in (SETTINGS | (INTERPRETED if interpreted else {})).items():
                    session.conf.set(key, value)
                self._sessions[interpreted] = session
            return self._sessions[interpreted]

    # --- transformations ---------------------------------------------------------------------------

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
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
        """Check a query without rows: it can be executed, and its result can be recorded.

        Of the inputs, only names and schemas are looked at.
        """
        session = self.session()

        def find() -> QueryCheck:
            query = query_of(session, transform, inputs, note=progress.note)
            check_result(query.result, vocabulary, query.kind)
            query.check_options(rules_of(transform.version))
            schema = result_fields(query.result, [i.schema for i in inputs], vocabulary)
            return QueryCheck(query.kind, schema, query.notes(vocabulary))

        with _explained(transform):
            return run_job(session, find)

    def check_form(self, transform: Transform, tables: Collection[str]) -> None:
        """The queries use only `tables` and what is allowed; columns and types are not looked at."""
        base = self._base()
        plain = dataclasses.replace(transform, temporal_tables=None)
        with _explained(transform):
            if is_remote(base):
                check_queries(judge_of(base), plain, tables)
                return
            session = self.session()
            run_job(session, lambda: check_queries(session, plain, tables))

    def _query(
        self,
        session: SparkSession,
        request: TransformRequest,
        inputs: list[StepInput],
        progress: Progress,
    ) -> Query:
        # planned once for the same text over the same columns
        key = (session, request.transform, tuple(i.identity for i in inputs), request.vocab)
        with self._lock:
            query = self._queries.get(key)
            if query is None:
                query = query_of(session, request.transform, inputs, note=progress.note)
                check_result(query.result, request.vocab, query.kind)
                self._queries[key] = query
            return query

    def _planned(
        self, request: TransformRequest, inputs: list[StepInput], *, small: bool, progress: Progress
    ) -> tuple[SparkSession, Query]:
        session = self.session(interpreted=small)
        query = self._query(session, request, inputs, progress)
        if not small and query.generators > 1:
            # a compiled generator makes all that follows from one row in memory, and cannot be stopped
            session = self.session(interpreted=True)
            query = self._query(session, request, inputs, progress)
        return session, query

    def _execute(
        self,
        request: TransformRequest,
        schema: DataSchema | None,
        files: StepFiles,
        progress: Progress,
    ) -> Executed:
        progress.phase("Planning")
        began = time.monotonic()
        inputs = [StepInput.of(given) for given in request.query_inputs]
        small = _rows_of(request) <= self._small_rows
        session, query = self._planned(request, inputs, small=small, progress=progress)
        few = self._small_rows if small else 0
        step = StepContext.begin(request, query, inputs, files.folder)
        if step.restarted:
            progress.note("the query changed: what it remembers starts anew with this step")
        target = settled_schema(
            result_fields(query.result, [i.schema for i in inputs], request.vocab), schema
        )
        rows = [i.rows(session, files, query.columns_of(i.given.query_alias)) for i in inputs]
        memory = StepMemory({name: _read_part(session, files, path) for name, path in step.parts.items()})
        progress.phase("Computing")
        with watched(progress, _steps(request)):
            frame, promise = _result(query, step, rows, memory)
            names = query.result.names
            facts = write_output(
                in_order(frame, names, request.vocab.event_time_column, query.kind),
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
        """Number of records of a step, for row-by-row queries over one input; else None."""
        settled = _with_version(request)
        return self._run(settled, lambda files: self._count(settled, files, progress))

    def _count(self, request: TransformRequest, files: StepFiles, progress: Progress) -> int | None:
        inputs = [StepInput.of(given) for given in request.query_inputs]
        small = _rows_of(request) <= self._small_rows
        session, query = self._planned(request, inputs, small=small, progress=progress)
        if not query.is_row_by_row:
            return None
        rows = [i.rows(session, files, query.columns_of(i.given.query_alias)) for i in inputs]
        step = StepContext.begin(request, query, inputs, files.folder)
        frame, _ = _result(query, step, rows, StepMemory({}))
        return frame.count()

    def tasks(self) -> int:
        """Number of steps that are worth executing at the same time."""
        return int(self.session().sparkContext.defaultParallelism)

    # --- raw queries -------------------------------------------------------------------------------

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw Parquet files, exposed as the table `input`; returns the number of records."""
        need_folders(self._base(), "raw queries do not run", "run them where Spark is `local[*]`")
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
        tables = {r.alias: r.columns for r in rows}
        used = used_of_tables(query.root, query.used, tables, whole=query.has_subqueries)
        session, transform = catalyst.session, step.request.transform
        versions = frozenset(t.name for t in transform.temporal_tables or ())
        counted = (Tables if step.rules.counts_at_once else FinalTables)(
            flow, tables, changing, used, versions
        )
        retracting = RetractingFlow(
            flow, counted, idle=all(r.empty for r in rows),
            asked_again=functools.partial(run_queries, session, transform, note=lambda _: None)
            if query.has_subqueries else None,
        )  # fmt: skip
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
        frame = corrected(frame, catalyst.frame(changes.back), identity_of(query.root))
    operation = step.vocabulary.operation_type_column
    if operation in query.result.names and any(r.has_changes for r in rows):
        frame = whole_pairs(frame, f"c{query.result.names.index(operation)}")
    mark = changes.marks.get(query.event_time(step.vocabulary))
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
    version = archive.read_manifest(Path(request.prev_checkpoint_path)).engine_version
    return dataclasses.replace(request, transform=dataclasses.replace(request.transform, version=version))


def _steps(request: TransformRequest) -> Steps:
    inputs = ", ".join(given.query_alias for given in request.query_inputs)
    return Steps(reading=f"Reading {inputs}", merging="Computing", writing="Computing and writing")


def _rows_of(request: TransformRequest) -> int:
    intervals = [i.offset_interval for i in request.query_inputs if i.offset_interval is not None]
    new = sum(interval.end - interval.start + 1 for interval in intervals)
    if request.prev_checkpoint_path is None:
        return new
    manifest = archive.read_manifest(Path(request.prev_checkpoint_path))
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


def _read_part(session: SparkSession, files: StepFiles, path: Path) -> DataFrame:
    import json

    from pyspark.sql.types import StructType

    from odfchain.spark.stage import SCHEMA_KEY

    try:
        with open_parquet(path) as file:
            struct = StructType.fromJson(json.loads((file.metadata.metadata or {})[SCHEMA_KEY]))
    except (KeyError, ValueError, TypeError) as error:
        raise EngineError(f"{path.name}: the checkpoint's rows have no schema") from error
    check_parquet(path)
    return files.rows(session, path, struct).coalesce(1)


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
    from odfchain.spark.query_refusals import failed_query

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


# Raw queries: another coordinator's preprocess steps over Parquet files.

INPUT_TABLE = "input"


def _raw_query(session: SparkSession, request: RawQueryRequest, folder: Path, progress: Progress) -> int:
    """Write the result of the query as one Parquet file, if it has rows; returns their number."""
    inputs = {}
    if request.input_data_paths:
        paths = [spark_path(Path(path)) for path in request.input_data_paths]
        for given in request.input_data_paths:
            check_parquet(Path(given))
        inputs[INPUT_TABLE] = session.read.parquet(*paths)
    progress.phase("Computing")
    result = run_queries(session, request.transform, inputs, note=progress.note)
    result.coalesce(1).write.parquet(str(folder / "result"))
    (path,) = (folder / "result").glob("part-*.parquet")
    count: int = pq.read_metadata(path).num_rows
    if count:
        path.replace(request.output_data_path)
    return count
