"""Push ingestion: files into a root dataset, all of them or none.

    plan      which source, which merge strategy, from the chain
    for each file: check → read → merge → write a slice (staged)
    commit    slices, blocks, one move of the head

When another writer moved the head in between, the staged work is thrown away and the run repeated on the new
head: what was new before may not be new any more. Source: specification "Data Ingestion", "Push Source".
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.errors import IngestError, NothingToCommitError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.ingest.read.formats import read_step_for
from odfchain.ingest.streamed_batch import Batch
from odfchain.ingest.transaction import FileInput, stage_input
from odfchain.ingest.writer_state import WriteOptions, WriterState, Written
from odfchain.model.duration import Duration
from odfchain.model.enums import DatasetKind, OperationType
from odfchain.model.events import AddData, AddPushSource, MetadataEvent, SourceState
from odfchain.model.sources import MergeStrategy, MergeStrategyAppend, ReadStep, Transform, WatermarkRule
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import CommitCheck, StagedFile, commit, on_the_newest_head
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.system_columns import SystemColumns
from odfchain.repo.watermark import of_system_time, rule_of, watermark_event
from odfchain.repo.workspace_config import DuplicateKeys, IngestConfig, LateEdits
from odfchain.text import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """What a user may say about a run."""

    source_name: str | None = None
    input_format: str | None = None
    input_name: str | None = None
    """What messages call the input, where its path says nothing."""
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
    """What to do with known keys of a ledger that have other values; default is the workspace's setting."""
    duplicate_keys: DuplicateKeys | None = None
    """What to do with rows of one input that have one key and other values; default is the workspace's."""
    retries: int | None = None
    """Runs repeated when another writer was faster; default is the workspace's setting."""
    allow_future: bool = False
    """Take rows however far in the future their event time lies."""
    max_future: Duration | None = None
    """How far after the system time an event time may lie; default is the workspace's setting. What the
    source's manifest says wins."""
    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    """Types of offsets and operations, where the dataset has no schema yet."""
    slice_bytes: int = 0
    """A larger input becomes several slices of about that size [bytes]; 0: always one."""


@dataclass(frozen=True, slots=True)
class InputOutcome:
    """What one file brought."""

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
    """What a run committed; `head` is the old one when there was nothing new."""

    inputs: tuple[InputOutcome, ...]
    old_head: Multihash
    head: Multihash
    blocks: int
    watermark: Timestamp | None

    @property
    def up_to_date(self) -> bool:
        """Whether nothing was committed."""
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
    """The transaction with the batch that it is of; one without anything new has none, and may come again.

    Of several blocks with rows the last one has it, as with every state of a source.
    """
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
    """How an input is written when nothing but the user's options and the source's rule is known."""
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
    """What a transaction brought, for people."""
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
