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
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain import errors
from odfchain.ingest.history import WriterState
from odfchain.ingest.read_formats import declared_schema, open_input, read_step_for
from odfchain.ingest.schema_fit import fix_up
from odfchain.ingest.write import MergeOptions, WriteOptions, Written, write_input
from odfchain.lazy import F, pa
from odfchain.odf import sources as src
from odfchain.odf.enums import DatasetKind, OperationType
from odfchain.odf.events import AddData, AddPushSource, MetadataEvent, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import open_parquet
from odfchain.spark.executor_files import session_like
from odfchain.spark.input_frames import ROW_ID, FinerTimes, InputFrame, first_bad_row
from odfchain.spark.jobs import Steps, watched
from odfchain.spark.plans import FEW_BYTES, FEW_ROWS, FEW_SETTINGS, is_remote
from odfchain.spark.types import col, result_schema
from odfchain.text import one_line
from odfchain.workspace.commit import CommitCheck, StagedFile, commit, on_the_newest_head
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
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
    read: src.ReadStep
    preprocess: src.Transform | None = None


def stage_input(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: FileInput,
    options: WriteOptions,
    progress: Progress,
) -> Written:
    """Read, preprocess and merge an input and write what is new as a slice in `options.staging`."""
    # starting a session is slow, so the checks that need none come first
    try:
        with contextlib.ExitStack() as resources:
            if source.preprocess is not None:
                session = functools.cache(functools.partial(_session_for_queries, session, resources))
            return _stage(session, state, source, options, progress, resources)
    except errors.OdfchainError as error:
        if source.preprocess is not None and isinstance(error, errors.EngineError):
            from odfchain.spark.query_refusals import failed_query

            cause = error.__cause__
            fault = failed_query(cause, transform=source.preprocess) if isinstance(cause, Exception) else None
            if fault is not None:
                raise fault from error
        # messages name the source of the bytes, not the place of the file
        error.message = error.message.replace(str(source.path), source.name)
        if isinstance(error, errors.BadInputError) and error.file == str(source.path):
            error.file = source.name
        raise


_sessions: weakref.WeakKeyDictionary[SparkSession, SparkSession] = weakref.WeakKeyDictionary()


def session_for_few(session: SparkSession) -> SparkSession:
    """A second session in which few rows are read and merged; a remote one itself."""
    if is_remote(session):
        return session
    if (made := _sessions.get(session)) is None:
        made = _sessions[session] = session_like(session, FEW_SETTINGS)
    return made


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
    large = _is_large(source, options.merging.slice_bytes)
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
    malformed: Callable[[], errors.OdfchainError | None] | None = opened.malformed
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
    except errors.NothingToCommitError as nothing:
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
    if isinstance(source.read, src.ReadStepParquet):
        size = None
    name = source.name.rstrip("/").rpartition("/")[2]
    return Steps(
        reading=f"Reading {name}", merging=f"Merging {name}", writing=f"Writing {name}", rows=rows, size=size
    )


def _is_large(source: FileInput, slice_bytes: int) -> bool:
    # a Parquet file counts by its uncompressed size
    if not slice_bytes:
        return False
    with contextlib.suppress(OSError, errors.BadInputError):  # the reader reports the fault
        if not isinstance(source.read, src.ReadStepParquet):
            return source.path.stat().st_size > slice_bytes
        with open_parquet(source.path) as file:
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            return bool(sum(group.total_byte_size for group in groups) > slice_bytes)
    return False


def _are_few(source: FileInput, state: WriterState) -> bool:
    # by file sizes and footers alone: no rows are read for it
    if state.merge.LOOKS_BACK and state.next_offset > FEW_ROWS:
        return False
    if source.preprocess is not None or isinstance(source.read, src.ReadStepEsriShapefile):
        return False
    with contextlib.suppress(OSError, errors.BadInputError):  # the reader reports the fault
        if source.path.stat().st_size > FEW_BYTES or not isinstance(source.read, src.ReadStepParquet):
            return source.path.stat().st_size <= FEW_BYTES
        with open_parquet(source.path) as file:
            return bool(file.metadata.num_rows <= FEW_ROWS)
    return False


def _session_for_queries(
    session: Callable[[], SparkSession], resources: contextlib.ExitStack
) -> SparkSession:
    from odfchain.spark.query import session_for_queries

    made = session()
    return resources.enter_context(session_for_queries(made)) if is_remote(made) else made


def _preprocessed(
    session: SparkSession, source: InputFrame, transform: src.Transform, progress: Progress
) -> InputFrame:
    from pyspark.sql import Observation

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
    """The rows of a Spark DataFrame, or of what streams Arrow, with their types, as a file in `folder`."""
    path = folder / f"frame-{uuid.uuid4().hex}.parquet"
    if is_of_spark(frame):
        if not is_remote(frame.sparkSession):
            return _computed(frame, folder, path)
        frame = frame.toArrow()
    if not hasattr(frame, "__arrow_c_stream__"):
        raise errors.UsageError(
            f"expected a data frame, got {type(frame).__name__}",
            hint="give a Spark DataFrame, a pyarrow Table, or what streams Arrow, such as polars' frames",
        )
    from pyarrow.parquet import ParquetWriter

    try:
        with pa.RecordBatchReader.from_stream(frame) as rows, ParquetWriter(path, rows.schema) as sink:
            for batch in rows:
                sink.write_batch(batch)
    except (pa.ArrowException, ValueError) as error:
        raise errors.BadInputError(f"cannot be written as Parquet: {error}", file=FRAME) from error
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
    except errors.OdfchainError:
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
            raise errors.UsageError(
                "a batch is the name of its stream and a number, as in batch=('orders', 17)"
            )

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
class IngestOptions(MergeOptions):
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
    retries: int = 0
    """Runs repeated when another writer was faster."""


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

    def attempt() -> IngestOutcome:
        state = DatasetState.read(dataset.chain)
        if (repeated := already_ingested(dataset, state, options)) is not None:
            return repeated
        source = _push_source(dataset, state, options.source_name)
        declared, preprocess = (None, None) if source is None else (source.read, source.preprocess)
        merge = src.MergeStrategyAppend() if source is None else source.merge
        transaction = Transaction(dataset, state, merge, _name_of(source), session, options)
        event_time = (options.event_time or transaction.system_time).truncated_to_ms()
        with dataset.staging() as staging:
            for path in files:
                name = options.input_name or str(path)
                read = read_step_for(path, options.input_format, declared)
                transaction.stage(FileInput(path, name, read, preprocess), event_time, staging, progress)
            hashes = transaction.commit(progress, check)
        inputs, head = tuple(transaction.inputs), hashes[-1] if hashes else state.head
        return IngestOutcome(inputs, state.head, head, len(hashes), transaction.writer.watermark)

    return on_the_newest_head(attempt, options.retries, progress)


def already_ingested(
    dataset: DatasetFiles, state: DatasetState, options: IngestOptions
) -> IngestOutcome | None:
    """The outcome of a batch that is recorded; None for every other input."""
    source = _push_source(dataset, state, options.source_name)
    if options.batch is None or not options.batch.is_recorded(state, _name_of(source)):
        return None
    nothing = InputOutcome(options.input_name or options.batch.query, 0, {}, None)
    return IngestOutcome((nothing,), state.head, state.head, 0, state.watermark)


def _push_source(dataset: DatasetFiles, state: DatasetState, name: str | None) -> AddPushSource | None:
    # None where there is none, and rows are appended
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise errors.UsageError(f"{dataset.alias} is a derivative dataset: its data comes from its inputs")
    sources = state.push_sources
    if name is not None:
        if name not in sources:
            known = f"it has {', '.join(sources)}" if sources else "it has none"
            raise errors.UsageError(f"{dataset.alias} has no push source called {name!r} ({known})")
        return sources[name]
    if len(sources) > 1:
        raise errors.UsageError(
            f"{dataset.alias} has several push sources: {', '.join(sources)}",
            hint="choose one with --source-name",
        )
    if not sources and state.polling_source is not None:
        raise errors.IngestError(
            f"{dataset.alias} has a polling source: its data is pulled, not pushed",
            hint="define a push source in a dataset of its own",
        )
    return next(iter(sources.values()), None)


def _name_of(source: AddPushSource | None) -> str:
    return POLLING_SOURCE if source is None else source.source_name


class Transaction:
    """What inputs of one source bring to a dataset, published by one move of its head."""

    def __init__(
        self,
        dataset: DatasetFiles,
        state: DatasetState,
        merge: src.MergeStrategy,
        source: str,
        session: Callable[[], SparkSession],
        options: IngestOptions,
    ) -> None:
        self._dataset = dataset
        self._state = state
        self._session = session
        self._options = options
        self._rule = rule_of(dataset, source)
        self._batch = None if options.batch is None else options.batch.after(state, source)
        self._events: list[MetadataEvent] = []
        self._slices: list[StagedFile] = []
        self._checkpoints: list[StagedFile] = []
        self.system_time = state.next_system_time(options.system_time)
        self.writer = WriterState.of(dataset, state, merge, session)
        self.inputs: list[InputOutcome] = []

    def stage(
        self,
        given: FileInput,
        event_time: Timestamp,
        staging: Path,
        progress: Progress,
        *,
        source_state: SourceState | None = None,
        advances: bool = False,
    ) -> bool:
        """Read and merge one input; False if nothing of it is new."""
        write = WriteOptions(
            system_time=self.system_time,
            event_time=event_time,
            staging=staging,
            merging=self._options,
            new_source_state=source_state,
            advances=advances,
            watermark=self._rule,
        )
        try:
            written = stage_input(self._session, self.writer, given, write, progress)
        except errors.NothingToCommitError as nothing:
            self.inputs.append(InputOutcome(given.name, nothing.input_rows, {}, None))
            return False
        if self._batch is not None:
            written = _with_batch(written, self._batch)
        self._events += written.events
        self._slices += written.slices
        self._checkpoints += [written.checkpoint] if written.checkpoint else []
        self.inputs.append(_outcome_of(given.name, written))
        self.writer = written.state
        return True

    def commit(
        self, progress: Progress = SILENT, check: CommitCheck | None = None, *, ends: bool = True
    ) -> list[Multihash]:
        """Publish what was staged; the new blocks, none where nothing is new.

        The watermark of a source that follows the system time moves where the run `ends`.
        """
        writer, idle = self.writer, not self._events
        mark = of_system_time(writer.watermark, self._rule, self.system_time, idle=idle) if ends else None
        if mark is not None:
            late = watermark_event(
                mark,
                prev_offset=writer.prev_offset,
                checkpoint=writer.checkpoint,
                source_state=writer.source_state,
            )
            self._events.append(late)
            self.writer = dataclasses.replace(writer, watermark=mark)
        if not self._events:
            return []
        progress.phase("Committing")
        return commit(
            self._dataset, self._state, self._events, self._slices,
            checkpoints=self._checkpoints, system_time=self.system_time, check=check,
        )  # fmt: skip


def _with_batch(written: Written, batch: SourceState) -> Written:
    # without new rows nothing is recorded, and the batch may come again; of several blocks the last one has
    # the state
    *before, last = written.events
    if isinstance(last, AddData):
        last = dataclasses.replace(last, new_source_state=batch)
    return dataclasses.replace(
        written, events=(*before, last), state=dataclasses.replace(written.state, source_state=batch)
    )


def _outcome_of(file: str, written: Written) -> InputOutcome:
    if not written.facts:
        return InputOutcome(file, written.input_rows, {}, None)
    last = written.state.prev_offset
    assert last is not None  # noqa: S101 - a slice was written
    rows = sum(facts.rows for facts in written.facts)
    counts = sum((Counter(facts.ops) for facts in written.facts), Counter[str]())
    operations = {OperationType.from_code(int(code)).value: counts[code] for code in sorted(counts)}
    return InputOutcome(file, written.input_rows, operations, (last - rows + 1, last), len(written.facts))
