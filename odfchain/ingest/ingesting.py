"""Push ingestion: files into a root dataset, all of them or none.

    plan      which source, which merge strategy, from the chain
    for each file: check → read → merge → write a slice (staged)
    commit    slices, blocks, one move of the head

When another writer moved the head in between, the staged work is thrown away and the run repeated on the new
head: what was new before may not be new any more. Source: specification "Data Ingestion", "Push Source".
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import (
    BadInputError,
    EngineError,
    IngestError,
    NothingToCommitError,
    OdfchainError,
    UsageError,
)
from odfchain.ingest.read_formats import declared_schema, open_input, read_step_for
from odfchain.ingest.schema_fit import fix_up
from odfchain.ingest.write import WriteOptions, WriterState, Written, write_input
from odfchain.odf.enums import DatasetKind, OperationType
from odfchain.odf.events import AddData, AddPushSource, MetadataEvent, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    ReadStep,
    ReadStepEsriShapefile,
    ReadStepParquet,
    Transform,
    WatermarkRule,
)
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import open_parquet
from odfchain.spark.input_frames import ROW_ID, FinerTimes, InputFrame, first_bad_row
from odfchain.spark.job_progress import Steps, watched
from odfchain.spark.plans import FEW_BYTES, FEW_ROWS, is_remote, session_for_few
from odfchain.spark.types import col, result_schema
from odfchain.text import one_line
from odfchain.workspace.commit import CommitCheck, StagedFile, commit, on_the_newest_head
from odfchain.workspace.config import DuplicateKeys, IngestConfig, LateEdits
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SystemColumns
from odfchain.workspace.watermark import of_system_time, rule_of, watermark_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# One input as one transaction, for pushed files and polled sources: check, read, preprocess, merge, write a
# staged slice.

INPUT_TABLE = "input"
"""Name of the input rows in the queries of a preprocess step."""


@dataclass(frozen=True, slots=True)
class FileInput:
    """Bytes and what to make of them."""

    path: Path
    name: str
    """The input's name in messages."""
    read: ReadStep
    preprocess: Transform | None = None


def stage_input(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: FileInput,
    options: WriteOptions,
    progress: Progress,
) -> Written:
    """Read, preprocess and merge an input and write what is new as a slice in `options.staging`.

    Raises:
        NothingToCommitError: nothing is new.
        BadInputError, SchemaError, IncompatibleSchemaError, QueryError, GuardError: naming the input.
        StorageFullError, EngineError: from Spark.
    """
    # starting a session is slow, so the checks that need none come first
    try:
        with contextlib.ExitStack() as resources:
            if source.preprocess is not None:
                session = functools.cache(functools.partial(_session_for_queries, session, resources))
            return _stage(session, state, source, options, progress, resources)
    except OdfchainError as error:
        if source.preprocess is not None and isinstance(error, EngineError):
            from odfchain.spark.query_refusals import failed_query

            cause = error.__cause__
            fault = failed_query(cause, transform=source.preprocess) if isinstance(cause, Exception) else None
            if fault is not None:
                raise fault from error
        # messages name the source of the bytes, not the place of the file
        error.message = error.message.replace(str(source.path), source.name)
        if isinstance(error, BadInputError) and error.file == str(source.path):
            error.file = source.name
        raise


def _stage(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: FileInput,
    options: WriteOptions,
    progress: Progress,
    resources: contextlib.ExitStack,
) -> Written:
    size = source.path.stat().st_size if source.path.is_file() else None
    progress.phase(f"Checking {source.name}", size)
    large = _is_large(source, options.slice_bytes)
    few = not large and _are_few(source, state)
    if few:
        in_any, session = session, lambda: session_for_few(in_any())
    opened = open_input(
        session,
        source.path,
        source.read,
        scratch=options.staging,
        progress=progress.advance,
        resources=resources,
    )
    for note in opened.notes:
        progress.note(f"{source.name}: {note}")
    frame = opened.frame
    malformed: Callable[[], OdfchainError | None] | None = opened.malformed
    if frame is not None and source.preprocess is not None:
        # what is wrong in the input as it was before its queries
        read, found = frame, opened.malformed
        malformed = lambda: (found() if found is not None else None) or first_bad_row(read, frozenset())  # noqa: E731
        frame = _preprocessed(session(), frame, source.preprocess, progress)
    elif frame is not None and declared_schema(source.read) is None:
        frame = fix_up(frame, state.vocabulary, operations=state.merge.TAKES_OPERATIONS)
    if frame is not None:
        frame = dataclasses.replace(frame, size=size, few=few, large=large)
    progress.phase(f"Merging {source.name}")
    notes: Sequence[str] = ()
    try:
        with watched(progress, _steps(source, state, size, opened.rows)):
            written = write_input(session, state, frame, options, malformed=malformed)
        notes = written.notes
    except NothingToCommitError as nothing:
        notes = nothing.notes
        raise
    finally:
        for note in notes:
            progress.note(f"{source.name}: {note}")
    return written


def _steps(source: FileInput, state: WriterState, size: int | None, rows: int | None) -> Steps:
    # no figures where recorded rows are read as well, and no size of a Parquet file, of which parts are read
    if state.merge.LOOKS_BACK and state.next_offset:
        size = rows = None
    if isinstance(source.read, ReadStepParquet):
        size = None
    name = source.name.rstrip("/").rpartition("/")[2]
    return Steps(
        reading=f"Reading {name}", merging=f"Merging {name}", writing=f"Writing {name}", rows=rows, size=size
    )


def _is_large(source: FileInput, slice_bytes: int) -> bool:
    # a Parquet file counts by its uncompressed size
    try:
        if not slice_bytes:
            return False
        if not isinstance(source.read, ReadStepParquet):
            return source.path.stat().st_size > slice_bytes
        with open_parquet(source.path) as file:
            footer = file.metadata
            groups = range(footer.num_row_groups)
            return bool(sum(footer.row_group(group).total_byte_size for group in groups) > slice_bytes)
    except (OSError, BadInputError):
        return False  # the reader reports the fault


def _are_few(source: FileInput, state: WriterState) -> bool:
    # by file sizes and footers alone: no rows are read for it
    if state.merge.LOOKS_BACK and state.next_offset > FEW_ROWS:
        return False
    if source.preprocess is not None or isinstance(source.read, ReadStepEsriShapefile):
        return False
    try:
        if source.path.stat().st_size > FEW_BYTES:
            return False
        if not isinstance(source.read, ReadStepParquet):
            return True
        with open_parquet(source.path) as file:
            return bool(file.metadata.num_rows <= FEW_ROWS)
    except (OSError, BadInputError):
        return False  # the reader reports the fault


def _session_for_queries(
    session: Callable[[], SparkSession], resources: contextlib.ExitStack
) -> SparkSession:
    from odfchain.spark.query import session_for_queries

    made = session()
    return resources.enter_context(session_for_queries(made)) if is_remote(made) else made


def _preprocessed(
    session: SparkSession, source: InputFrame, transform: Transform, progress: Progress
) -> InputFrame:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from odfchain.spark.query import run_queries, run_queries_over_connect

    counted = FinerTimes(Observation(), source.finer)
    observed = source.frame.observe(counted.observation, *counted.sums) if counted.numbers else source.frame
    given = observed.select(*[col(name) for name in source.schema.names])
    run = run_queries_over_connect if is_remote(session) else run_queries
    result = run(session, transform, {INPUT_TABLE: given}, note=progress.note)
    schema = result_schema(result.schema, source.schema)
    numbered = result.select(F.monotonically_increasing_id().alias(ROW_ID), *[col(n) for n in schema.names])
    return InputFrame(numbered, schema, source.file, counted=counted)


# In-memory rows or a DataFrame as one Parquet file, in order.

FRAME = "the frame"
"""Its name in messages."""


def is_of_spark(frame: Any) -> bool:
    """True if it is a DataFrame of PySpark, classic or Connect."""
    return type(frame).__module__.partition(".")[0] == "pyspark"


def write_frame_file(frame: Any, folder: Path) -> Path:
    """The rows of a Spark DataFrame, or of what streams Arrow, with their types, as a file in `folder`.

    Raises:
        UsageError: it is neither.
        BadInputError: it cannot be written as Parquet.
    """
    import pyarrow as pa

    path = folder / f"frame-{uuid.uuid4().hex}.parquet"
    if is_of_spark(frame):
        if not is_remote(frame.sparkSession):
            return _computed(frame, folder, path)
        frame = frame.toArrow()
    if not hasattr(frame, "__arrow_c_stream__"):
        raise UsageError(
            f"expected a data frame, got {type(frame).__name__}",
            hint="give a Spark DataFrame, a pyarrow Table, or what streams Arrow, such as polars' frames",
        )
    from pyarrow.parquet import ParquetWriter

    try:
        with pa.RecordBatchReader.from_stream(frame) as rows, ParquetWriter(path, rows.schema) as sink:
            for batch in rows:
                sink.write_batch(batch)
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(f"cannot be written as Parquet: {error}", file=FRAME) from error
    return path


def _computed(frame: DataFrame, folder: Path, path: Path) -> Path:
    # under the settings of the frame's own session, but for whole microseconds
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import SparkSession

    from odfchain.spark.jobs import explain, run_job
    from odfchain.spark.plans import jvm_of
    from odfchain.spark.query_refusals import failed_query

    # a clone, so that the settings of the user's session stay as they are
    clone = frame._jdf.sparkSession().cloneSession()  # noqa: SLF001 - PySpark has no public way into the JVM
    clone.conf().set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session = SparkSession(frame.sparkSession.sparkContext, clone)
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset
    rows = Frame(dataset.ofRows(clone, frame._jdf.logicalPlan()), session)  # noqa: SLF001
    parts = folder / f"parts-{uuid.uuid4().hex}"
    try:
        run_job(session, lambda: rows.write.parquet(parts.as_uri()))
    except OdfchainError:
        raise
    except Exception as error:
        raise failed_query(error, FRAME) or explain(error, file=FRAME) from error
    files = sorted(parts.glob("part-*.parquet"))
    if len(files) == 1:
        return files[0].rename(path)
    return _joined(files, path)


def _joined(files: list[Path], path: Path) -> Path:
    from pyarrow.parquet import ParquetWriter

    from odfchain.slices.reader import data_batches

    with open_parquet(files[0]) as first:
        schema = first.schema_arrow
    with ParquetWriter(path, schema) as sink:
        for file in files:
            for batch in data_batches(file):
                sink.write_batch(batch)
            file.unlink()
    return path


# Exactly-once batches of a stream. A stream that was killed before its acknowledgement repeats its last
# batch; the commit has recorded the batch's number as source state (kind `odfchain/batch`). Numbers only
# grow, so one number per stream is kept.

KIND = "odfchain/batch"
_STREAMS = 16
"""Streams into one source whose last batch is kept [count]: those that wrote last."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream, numbered by the stream's runner."""

    query: str
    """Identity of the stream, which stays the same when it is started again."""
    number: int

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not isinstance(self.number, int) or self.number < 0:
            raise UsageError("a batch is the name of its stream and a number, as in batch=('orders', 17)")

    def is_recorded(self, state: DatasetState, source: str) -> bool:
        """True if it, or a later one of its stream, was ingested."""
        return _recorded(state, source).get(self.query, -1) >= self.number

    def after(self, state: DatasetState, source: str) -> SourceState:
        """The source state that is recorded with it."""
        others = {query: n for query, n in _recorded(state, source).items() if query != self.query}
        kept = dict([*others.items(), (self.query, self.number)][-_STREAMS:])
        value = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
        return SourceState(source_name=source, kind=KIND, value=value)


def _recorded(state: DatasetState, source: str) -> dict[str, int]:
    # the stream that wrote last is at the end
    found = state.state_of_source(source)
    if found is None or found[0].kind != KIND:
        return {}
    try:
        value = json.loads(found[0].value)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and all(type(n) is int for n in value.values()) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """Options of a run."""

    source_name: str | None = None
    input_format: str | None = None
    input_name: str | None = None
    """The input's name in messages, where its path says nothing."""
    batch: Batch | None = None
    """The batch of a stream that the input is."""
    event_time: Timestamp | None = None
    """Event time of rows that carry none; default is the system time."""
    system_time: Timestamp | None = None
    allow_empty: bool = False
    allow_retract: bool = False
    max_retract_ratio: float | None = None
    """Largest share of the recorded keys that a snapshot may retract; default is the workspace's setting."""
    late_edits: LateEdits | None = None
    """Policy for known keys of a ledger with other values; default is the workspace's setting."""
    duplicate_keys: DuplicateKeys | None = None
    """Policy for rows of one input with one key and other values; default is the workspace's."""
    retries: int | None = None
    """Runs repeated when another writer was faster; default is the workspace's setting."""
    allow_future: bool = False
    """Take rows however far in the future their event time lies."""
    max_future: Duration | None = None
    """Limit for event times after the system time; default is the workspace's setting. What the
    source's manifest says wins."""
    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    """Types of offsets and operations, where the dataset has no schema yet."""
    slice_bytes: int = 0
    """A larger input becomes several slices of about that size [bytes]; 0: always one."""


@dataclass(frozen=True, slots=True)
class InputOutcome:
    """Result of one file."""

    file: str
    input_rows: int
    operations: dict[str, int]
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
    offsets: tuple[int, int] | None
    """First and last offset of what was written."""
    slices: int = 0
    """In how many slices it is, each in a block of its own."""

    @property
    def rows(self) -> int:
        """Rows written."""
        return sum(self.operations.values())

    def __repr__(self) -> str:
        written = ", ".join(f"{count:,} {op}" for op, count in self.operations.items() if count)
        return f"{one_line(self.file)}: {self.input_rows:,} rows read, {written or 'none written'}"


@dataclass(frozen=True, slots=True)
class IngestOutcome:
    """Result of a run; `head` is the old one when there was nothing new."""

    inputs: tuple[InputOutcome, ...]
    old_head: Multihash
    head: Multihash
    blocks: int
    watermark: Timestamp | None

    @property
    def up_to_date(self) -> bool:
        """True if nothing was committed."""
        return self.blocks == 0

    def __repr__(self) -> str:
        files = "; ".join(map(repr, self.inputs))
        return f"<ingested {files}: {'nothing new' if self.up_to_date else f'{self.blocks:,} blocks'}>"


@dataclass(frozen=True, slots=True)
class _Plan:
    read: ReadStep | None
    preprocess: Transform | None
    merge: MergeStrategy
    source_name: str = POLLING_SOURCE


def ingest_files(
    dataset: DatasetFiles,
    session: Callable[[], SparkSession],
    files: Sequence[Path],
    options: IngestOptions,
    progress: Progress = SILENT,
    *,
    check: CommitCheck | None = None,
) -> IngestOutcome:
    """Ingest files in the order given, each as one transaction, published together by one head move.

    `check` judges what is about to be published.
    """
    return on_the_newest_head(
        lambda: _attempt(dataset, session, files, options, progress, check), options.retries, progress
    )


def already_ingested(
    dataset: DatasetFiles, state: DatasetState, options: IngestOptions
) -> IngestOutcome | None:
    """The outcome of a batch that is recorded; None for every other input."""
    source = plan_push(dataset, state, options.source_name).source_name
    if options.batch is None or not options.batch.is_recorded(state, source):
        return None
    nothing = InputOutcome(options.input_name or options.batch.query, 0, {}, None)
    return IngestOutcome((nothing,), state.head, state.head, 0, state.watermark)


def plan_push(dataset: DatasetFiles, state: DatasetState, source_name: str | None) -> _Plan:
    """The read step and merge strategy of a push, by the sources in force.

    Raises:
        UsageError: there is no such source, or several to choose from.
        IngestError: the dataset cannot be pushed to.
    """
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: its data comes from its inputs")
    sources = state.push_sources
    if source_name is not None:
        if source_name not in sources:
            known = f"it has {', '.join(sources)}" if sources else "it has none"
            raise UsageError(f"{dataset.alias} has no push source called {source_name!r} ({known})")
        return _plan_source(sources[source_name])
    if len(sources) == 1:
        return _plan_source(next(iter(sources.values())))
    if sources:
        raise UsageError(
            f"{dataset.alias} has several push sources: {', '.join(sources)}",
            hint="choose one with --source-name",
        )
    if state.polling_source is not None:
        raise IngestError(
            f"{dataset.alias} has a polling source: its data is pulled, not pushed",
            hint="define a push source in a dataset of its own",
        )
    return _Plan(None, None, MergeStrategyAppend())


def _plan_source(source: AddPushSource) -> _Plan:
    return _Plan(source.read, source.preprocess, source.merge, source.source_name)


def _attempt(
    dataset: DatasetFiles,
    session: Callable[[], SparkSession],
    files: Sequence[Path],
    options: IngestOptions,
    progress: Progress,
    check: CommitCheck | None,
) -> IngestOutcome:
    state = DatasetState.read(dataset.chain)
    plan = plan_push(dataset, state, options.source_name)
    if (repeated := already_ingested(dataset, state, options)) is not None:
        return repeated
    system_time = state.next_system_time(options.system_time)
    with dataset.staging() as staging:
        events: list[MetadataEvent] = []
        slices: list[StagedFile] = []
        checkpoints: list[StagedFile] = []
        outcomes: list[InputOutcome] = []
        writer = WriterState.of(dataset, state, plan.merge, session)
        rule = rule_of(dataset, plan.source_name)
        event_time = (options.event_time or system_time).truncated_to_ms()
        for path in files:
            name = options.input_name or str(path)
            try:
                write = write_options(options, rule, system_time, event_time, staging)
                read = read_step_for(path, options.input_format, plan.read)
                given = FileInput(path, name, read, plan.preprocess)
                written = stage_input(session, writer, given, write, progress)
            except NothingToCommitError as nothing:
                outcomes.append(InputOutcome(name, nothing.input_rows, {}, None))
                continue
            if options.batch is not None:
                written = _with_batch(written, options.batch.after(state, plan.source_name))
            events += written.events
            slices += written.slices
            checkpoints += [written.checkpoint] if written.checkpoint else []
            outcomes.append(outcome_of(name, written))
            writer = written.state
        if (late := by_system_time(writer, rule, system_time, idle=not events)) is not None:
            events.append(late)
            writer = dataclasses.replace(writer, watermark=late.new_watermark)
        if not events:
            return IngestOutcome(tuple(outcomes), state.head, state.head, 0, state.watermark)
        progress.phase("Committing")
        hashes = commit(
            dataset, state, events, slices, checkpoints=checkpoints, system_time=system_time, check=check
        )
    return IngestOutcome(tuple(outcomes), state.head, hashes[-1], len(hashes), writer.watermark)


def _with_batch(written: Written, batch: SourceState) -> Written:
    # without new rows nothing is recorded, and the batch may come again; of several blocks the last one has
    # the state
    *before, last = written.events
    if isinstance(last, AddData):
        last = dataclasses.replace(last, new_source_state=batch)
    return dataclasses.replace(
        written, events=(*before, last), state=dataclasses.replace(written.state, source_state=batch)
    )


def by_system_time(
    writer: WriterState, rule: WatermarkRule, system_time: Timestamp, *, idle: bool
) -> AddData | None:
    """The event that ends a run of a source whose watermark follows the system time, where it moves."""
    mark = of_system_time(writer.watermark, rule, system_time, idle=idle)
    if mark is None:
        return None
    return watermark_event(
        mark,
        prev_offset=writer.prev_offset,
        checkpoint=writer.checkpoint,
        source_state=writer.source_state,
    )


def write_options(
    options: IngestOptions,
    rule: WatermarkRule,
    system_time: Timestamp,
    event_time: Timestamp,
    staging: Path,
) -> WriteOptions:
    """Options of a write, from the user's options and the source's rule alone."""
    ratio = 1.0 if options.allow_retract else options.max_retract_ratio
    return WriteOptions(
        system_time=system_time,
        event_time=event_time,
        staging=staging,
        allow_empty=options.allow_empty,
        max_retract_ratio=1.0 if ratio is None else ratio,
        late_edits=options.late_edits or LateEdits.IGNORE,
        duplicate_keys=options.duplicate_keys or DuplicateKeys.REFUSE,
        watermark=rule,
        max_future=rule.max_future or options.max_future,
        allow_future=options.allow_future,
        system_columns=options.system_columns,
        slice_bytes=options.slice_bytes,
    )


def outcome_of(file: str, written: Written) -> InputOutcome:
    """The result of a transaction, for messages."""
    if not written.facts:
        return InputOutcome(file, written.input_rows, {}, None)
    last = written.state.prev_offset
    assert last is not None  # noqa: S101 - a slice was written
    rows = sum(facts.rows for facts in written.facts)
    counts = sum((Counter(facts.ops) for facts in written.facts), Counter[str]())
    operations = {OperationType.from_code(int(code)).value: counts[code] for code in sorted(counts)}
    return InputOutcome(file, written.input_rows, operations, (last - rows + 1, last), len(written.facts))


def with_defaults(options: IngestOptions, config: IngestConfig) -> IngestOptions:
    """The options with the workspace's settings where nothing else was said."""
    ratio = options.max_retract_ratio
    return dataclasses.replace(
        options,
        max_retract_ratio=config.max_retract_ratio if ratio is None else ratio,
        late_edits=options.late_edits or config.late_edits,
        duplicate_keys=options.duplicate_keys or config.duplicate_keys,
        retries=config.retries if options.retries is None else options.retries,
        allow_future=options.allow_future or config.allow_future,
        max_future=options.max_future or config.max_future,
    )
