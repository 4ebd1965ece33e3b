"""Data into a root dataset: pushed files and frames, and what a polling source has that is new.

    plan      which source, which merge strategy, from the chain
    for each input: read → fit the schema → merge → write what is new as slices (staged) → the events
    commit    slices, blocks, one move of the head

Pushed files are published together, or none of them. A pull repeats this until its source has no more: each
round is one transaction. What was committed stays when a later round fails, and what failed is fetched again
by the next pull. The state of the source is in the same block as the data that it describes, so every byte
of a source is ingested once, whenever a run is interrupted (RFC-014).

When another writer moved the head in between, the staged work is thrown away and the run repeated on the new
head: what was new before may not be new any more. Source: specification "Data Ingestion", "Push Source",
"Polling Source", "AddData", "SetDataSchema", "Watermark"; facts in `fixtures/conformance/writer_cases.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import GuardError, IngestError, NothingToCommitError, OdfchainError, UsageError
from odfchain.ingest import merge_strategies as merging
from odfchain.ingest.history import LARGEST_INPUT, LookBack, WriterState, read_recorded, staged_file
from odfchain.ingest.polling import Batch, FetchAhead, FetchOptions, PollingSource
from odfchain.ingest.read_formats import FileInput, read_step_for
from odfchain.ingest.schema_fit import settled
from odfchain.lazy import F
from odfchain.limits import AUDIT
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import schema_event
from odfchain.odf.enums import CORRECT_FROM, CORRECT_TO, TAKES_BACK, DatasetKind, OperationType
from odfchain.odf.events import AddData, AddPushSource, DataSlice, MetadataEvent, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, Progress
from odfchain.slices.state import SliceFile, taken_back_in_vain
from odfchain.slices.writer import SliceFacts, SliceSpec, notes_on_cut_times
from odfchain.spark import input_frames
from odfchain.spark.executor_files import StoreFolder, files_of
from odfchain.spark.java_formats import has_microseconds, to_milliseconds
from odfchain.spark.jobs import explain, is_of_spark, run_job, watched
from odfchain.spark.types import col, physical_type
from odfchain.text import one_line
from odfchain.workspace.commit import CommitCheck, StagedFile, commit, on_the_newest_head
from odfchain.workspace.config import DuplicateKeys, LateEdits, read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SystemColumns
from odfchain.workspace.read_slices import RecordedRows, RecordedSlice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """How rows meet what is recorded."""

    allow_empty: bool = False
    max_retract_ratio: float = 1.0
    """Largest share of the recorded keys that a snapshot may retract."""
    late_edits: LateEdits = LateEdits.IGNORE
    """Policy for known keys of a ledger with other values."""
    duplicate_keys: DuplicateKeys = DuplicateKeys.REFUSE
    """Policy for rows of one input with one key and other values (Ledger, Snapshot)."""
    allow_future: bool = False
    """Take rows however far in the future their event time lies; the watermark stays within the limit."""
    max_future: Duration | None = None
    """Limit for event times after the system time; None is no limit. What the source's manifest says wins."""
    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    """Types of offsets and operations, where the dataset has no schema yet."""
    slice_bytes: int = 0
    """A larger input becomes slices of about so many bytes of values each; 0: always one."""


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


class PullStatus(Enum):
    """Status of a pull."""

    UPDATED = "updated"
    UP_TO_DATE = "up to date"
    UNCACHEABLE = "skipped: the source does not tell what is new"


@dataclass(frozen=True, slots=True)
class PullOutcome(IngestOutcome):
    """Result of a pull."""

    status: PullStatus


# The runs.


@dataclass(frozen=True, slots=True)
class Ingestion:
    """Runs that bring data into a root dataset; `check` judges what each transaction is about to publish."""

    dataset: DatasetFiles
    session: Callable[[], SparkSession]
    options: IngestOptions
    progress: Progress = SILENT
    check: CommitCheck | None = None

    def push(self, files: Sequence[Path]) -> IngestOutcome:
        """Ingest files in the order given, each as one transaction, published together by one head move."""

        def attempt() -> IngestOutcome:
            state, options = DatasetState.read(self.dataset.chain), self.options
            if (repeated := self.already_ingested(state)) is not None:
                return repeated
            source = _push_source(self.dataset, state, options.source_name)
            declared, preprocess = (None, None) if source is None else (source.read, source.preprocess)
            merge = src.MergeStrategyAppend() if source is None else source.merge
            transaction = Transaction(self, state, merge, _name_of(source))
            event_time = (options.event_time or transaction.system_time).truncated_to_ms()
            with self.dataset.staging() as staging:
                for path in files:
                    read = read_step_for(path, options.input_format, declared)
                    given = FileInput(path, options.input_name or str(path), read, preprocess)
                    transaction.stage(given, event_time, staging)
                hashes = transaction.commit()
            inputs, head = tuple(transaction.inputs), hashes[-1] if hashes else state.head
            return IngestOutcome(inputs, state.head, head, len(hashes), transaction.writer.watermark)

        return on_the_newest_head(attempt, self.options.retries, self.progress)

    def already_ingested(self, state: DatasetState) -> IngestOutcome | None:
        """The outcome of a batch that is recorded; None for every other input."""
        source, batch = _push_source(self.dataset, state, self.options.source_name), self.options.batch
        if batch is None or not batch.is_recorded(state, _name_of(source)):
            return None
        nothing = InputOutcome(self.options.input_name or batch.query, 0, {}, None)
        return IngestOutcome((nothing,), state.head, state.head, 0, state.watermark)

    def pull(
        self,
        options: FetchOptions,
        *,
        expect_rows: Callable[[], None] = lambda: None,
        ahead: FetchAhead | None = None,
    ) -> PullOutcome:
        """Bring the dataset up to date with its polling source, one transaction for each fetch.

        `expect_rows` is called as soon as it is certain that the session will be needed. The first fetch may
        have been made, or begun, `ahead`.
        """
        if ahead is not None:
            ahead.wait(self.progress)
        source = PollingSource.of(self.dataset)
        old = source.state
        forever = source.is_recorded_forever(self.progress)
        if not forever and source.may_repeat and not options.fetch_uncacheable:
            return PullOutcome((), old.head, old.head, 0, old.watermark, PullStatus.UNCACHEABLE)
        inputs: list[InputOutcome] = []
        blocks = 0
        begun = [] if ahead is None else [ahead]

        def begin(found: PollingSource, run: Ingestion) -> Transaction:
            return Transaction(run, found.state, found.event.merge, POLLING_SOURCE)

        def idle() -> list[Multihash]:
            # at most a watermark that follows the system time, of which nothing is to be judged or shown
            quiet = dataclasses.replace(self, progress=SILENT, check=None)
            return begin(PollingSource.of(self.dataset), quiet).commit()

        def attempt() -> tuple[list[InputOutcome], list[Multihash], bool]:
            if forever:
                return [], idle(), False
            made = begun.pop().input(old.head) if begun else None
            with made or PollingSource.of(self.dataset).fetched(
                options, self.progress, expect_rows
            ) as polled:
                if polled is None:
                    return [], idle(), False
                expect_rows()
                transaction, fetched = begin(polled.source, self), polled.fetched
                event_time = fetched.event_time or self.options.event_time or transaction.system_time
                with polled.prepared(options, self.progress) as given:
                    is_new = transaction.stage(
                        given, event_time, polled.staging, source_state=fetched.state,
                        advances=fetched.advances,
                    )  # fmt: skip
                if is_new:
                    hashes = transaction.commit(ends=not fetched.has_more)
                else:
                    hashes = [] if fetched.has_more else idle()
                return transaction.inputs, hashes, fetched.has_more

        has_more = True
        while has_more:
            found, hashes, has_more = on_the_newest_head(attempt, self.options.retries, self.progress)
            inputs += found
            blocks += len(hashes)
        new = DatasetState.read(self.dataset.chain)
        status = PullStatus.UPDATED if blocks else PullStatus.UP_TO_DATE
        return PullOutcome(tuple(inputs), old.head, new.head, blocks, new.watermark, status)


def _push_source(dataset: DatasetFiles, state: DatasetState, name: str | None) -> AddPushSource | None:
    # None where there is none, and rows are appended
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: its data comes from its inputs")
    sources = state.push_sources
    if name is not None:
        if name not in sources:
            known = f"it has {', '.join(sources)}" if sources else "it has none"
            raise UsageError(f"{dataset.alias} has no push source called {name!r} ({known})")
        return sources[name]
    if len(sources) > 1:
        raise UsageError(
            f"{dataset.alias} has several push sources: {', '.join(sources)}",
            hint="choose one with --source-name",
        )
    if not sources and state.polling_source is not None:
        raise IngestError(
            f"{dataset.alias} has a polling source: its data is pulled, not pushed",
            hint="define a push source in a dataset of its own",
        )
    return next(iter(sources.values()), None)


def _name_of(source: AddPushSource | None) -> str:
    return POLLING_SOURCE if source is None else source.source_name


class Transaction:
    """What inputs of one source bring to a dataset, published by one move of its head."""

    def __init__(self, run: Ingestion, state: DatasetState, merge: src.MergeStrategy, source: str) -> None:
        batch, self._run, self._state = run.options.batch, run, state
        self._rule = read_config(run.dataset).rule_of(source)
        self._batch = None if batch is None else batch.after(state, source)
        self._events: list[MetadataEvent] = []
        self._slices: list[StagedFile] = []
        self._checkpoints: list[StagedFile] = []
        self.system_time = state.next_system_time(run.options.system_time)
        self.writer = WriterState.of(run.dataset, state, merge, run.session)
        self.inputs: list[InputOutcome] = []

    def stage(
        self,
        given: FileInput,
        event_time: Timestamp,
        staging: Path,
        *,
        source_state: SourceState | None = None,
        advances: bool = False,
    ) -> bool:
        """Read and merge one input; False if nothing of it is new."""
        write = WriteOptions(
            system_time=self.system_time,
            event_time=event_time,
            staging=staging,
            merging=self._run.options,
            new_source_state=source_state,
            advances=advances,
            watermark=self._rule,
        )
        try:
            written = self._written(given, write)
        except NothingToCommitError as nothing:
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

    def _written(self, given: FileInput, options: WriteOptions) -> Written:
        progress, slice_bytes = self._run.progress, options.merging.slice_bytes
        with given.translate_errors(), contextlib.ExitStack() as resources:
            session, opened = given.open(
                self._run.session, self.writer, slice_bytes, options.staging, progress, resources
            )
            progress.phase(f"Merging {given.name}")
            notes: Sequence[str] = ()
            try:
                with watched(progress, given.steps(self.writer, opened.rows)):
                    written = write_input(
                        session, self.writer, opened.frame, options, malformed=opened.malformed
                    )
                notes = written.notes
            except NothingToCommitError as nothing:
                notes = nothing.notes
                raise
            finally:
                for note in notes:
                    progress.note(f"{given.name}: {note}")
            return written

    def commit(self, *, ends: bool = True) -> list[Multihash]:
        """Publish what was staged; the new blocks, none where nothing is new.

        The watermark of a source that follows the system time moves where the run `ends`.
        """
        writer, idle = self.writer, not self._events
        mark = self._rule.at_system_time(writer.watermark, self.system_time, idle=idle) if ends else None
        if mark is not None:
            self.writer = dataclasses.replace(writer, watermark=mark)
            self._events.append(_add_data(writer, self.writer, None))
        if not self._events:
            return []
        self._run.progress.phase("Committing")
        return commit(
            self._run.dataset, self._state, self._events, self._slices,
            checkpoints=self._checkpoints, system_time=self.system_time, check=self._run.check,
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


# One input: merge, write what is new as slices, and say which events record it.


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write."""

    system_time: Timestamp
    event_time: Timestamp
    """Event time of rows that carry none."""
    staging: Path
    merging: MergeOptions = MergeOptions()
    new_source_state: SourceState | None = None
    advances: bool = False
    """The watermark follows `event_time`, unless the input's rows have event times of their own."""
    watermark: src.WatermarkRule = field(default_factory=src.WatermarkRule)

    @property
    def latest_believed(self) -> Timestamp | None:
        """The bound on event times; None is none."""
        limit = self.watermark.max_future or self.merging.max_future
        return None if limit is None else self.system_time.shifted(limit.milliseconds)


@dataclass(frozen=True, slots=True)
class Written:
    """A transaction that is ready to be committed, and the state after it."""

    events: tuple[MetadataEvent, ...]
    slices: tuple[StagedFile, ...]
    checkpoint: StagedFile | None
    state: WriterState
    facts: tuple[SliceFacts, ...]
    """Of each slice."""
    input_rows: int
    notes: tuple[str, ...] = ()
    """Notes on how the input was made to fit."""


# The events that record a write.


def recorded_write(
    state: WriterState,
    target: ds.DataSchema | None,
    facts: tuple[SliceFacts, ...],
    back: LookBack | None,
    options: WriteOptions,
    *,
    input_rows: int,
    notes: tuple[str, ...] = (),
) -> Written:
    """The events that record a write, by the writer rules."""
    # the last slice has the watermark and the source state: a reader that stops earlier must get no watermark
    # beyond later rows, and no state of a source that was not read to its end
    events: list[MetadataEvent] = []
    if target is not None and target != state.schema:
        events.append(schema_event(target, odf_form=state.odf_schema))
    after = dataclasses.replace(state, schema=target or state.schema)
    slices = data_slices(facts, state.next_offset)
    for new_data in slices[:-1]:
        before = after
        carried = back.carried if back else None
        after = dataclasses.replace(before, prev_offset=new_data.offset_interval.end, checkpoint=carried)
        events.append(_add_data(before, after, new_data))
    before, last = after, slices[-1] if slices else None
    times = [each.max_event_time_ms for each in facts if each.max_event_time_ms is not None]
    latest = max(times, default=None)
    after = dataclasses.replace(
        before,
        prev_offset=last.offset_interval.end if last else before.prev_offset,
        checkpoint=back.checkpoint if back else state.checkpoint,
        watermark=_after_time(state, latest, options),
        source_state=options.new_source_state or state.source_state,
        recorded=back.recorded if back else state.recorded,
    )
    # the event time that is given with the input moves the watermark, even if no row has it
    given = options.event_time.epoch_ms if options.advances else None
    advanced = dataclasses.replace(after, watermark=_after_time(after, given, options))
    if last is None:
        after = advanced
    if last is not None or after.watermark != state.watermark or after.source_state != state.source_state:
        events.append(_add_data(before, after, last))
    if after != advanced:  # rows that are only taken back have older event times
        events.append(_add_data(after, advanced, None))
        after = advanced
    if not events:
        raise NothingToCommitError("nothing to commit", input_rows=input_rows, notes=notes)
    staged = tuple(staged_file(each, state.since) for each in facts)
    return Written(tuple(events), staged, back.staged if back else None, after, facts, input_rows, notes)


def _add_data(before: WriterState, after: WriterState, new_data: DataSlice | None) -> AddData:
    return AddData(
        prev_checkpoint=before.checkpoint.physical_hash if before.checkpoint else None,
        prev_offset=before.prev_offset,
        new_data=new_data,
        new_checkpoint=after.checkpoint,
        new_watermark=after.watermark,
        new_source_state=after.source_state,
    )


def _after_time(state: WriterState, latest_ms: int | None, options: WriteOptions) -> Timestamp | None:
    bound = options.latest_believed
    return options.watermark.after_rows(state.watermark, latest_ms, options.system_time, bound)


def data_slices(facts: tuple[SliceFacts, ...], start: int) -> list[DataSlice]:
    """The slices as blocks name them, the first record of all at an offset."""
    starts = itertools.accumulate((each.rows for each in facts), initial=start)
    return [each.slice_at(first) for each, first in zip(facts, starts, strict=False)]


def write_input(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: input_frames.InputFrame | None,
    options: WriteOptions,
    *,
    malformed: Callable[[], OdfchainError | None] | None = None,
) -> Written:
    """Merge an input into a dataset's history and write what is new as slices in `options.staging`."""
    # no source: the input is empty and has unknown columns, so only watermark and source state can change,
    # unless it is a snapshot, which says that no row is left
    if source is None and isinstance(state.merge, src.MergeStrategySnapshot) and state.schema is not None:
        fields = tuple(f for f in state.schema.fields if f.name not in state.vocabulary.columns)
        source = input_frames.empty_input(session(), ds.DataSchema(fields=fields), "the empty input")
    if source is None:
        return recorded_write(state, None, (), None, options, input_rows=0)
    if source.schema.field(state.vocabulary.event_time_column) is not None:
        options = dataclasses.replace(options, advances=False)
    data, target, notes = settled(
        source.schema, state.schema, state.vocabulary, source.file, options.merging.system_columns,
        operations=state.merge.TAKES_OPERATIONS, may_grow=state.has_source,
    )  # fmt: skip
    write = _Write(session, state, source, data, target, options, malformed)
    ran = write.run()
    if isinstance(state.merge, src.MergeStrategyChangelogStream):
        ran = write.checked_changelog(ran, state.merge)
    facts = ran.facts
    if not options.merging.allow_future:
        write.refuse_future(ran)
    write.guard(ran)
    if ran.edits and options.merging.late_edits is LateEdits.WARN:
        notes += (f"{ran.edits:,} rows have a recorded key and other values; they were ignored",)
    back = None
    if facts:
        new = tuple(
            RecordedSlice(
                data_slice.offset_interval,
                functools.partial(state.path_of, each),
                key=f"{state.keys('data')}/{data_slice.physical_hash}",
                unsent=Path(each.path) if each.path else None,
            )
            for each, data_slice in zip(facts, data_slices(facts, state.next_offset), strict=True)
        )
        back = state.look_back(session, new, target, options.staging)
    return recorded_write(
        state, target, facts, back, options, input_rows=ran.input_rows, notes=notes + ran.notes
    )


_MOST_BROADCAST = 100_000
"""Recorded rows that may pass through the driver's memory to be joined, where Spark so chooses."""


@dataclass(frozen=True, slots=True)
class _MergeRun:
    new: merging.MergeInput
    facts: tuple[SliceFacts, ...]
    input_rows: int
    recorded: int | None
    """Keys in the recorded state, where it is known."""
    edits: int
    """Rows of the input that have a known key and other values, where they are looked for."""
    notes: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    """The columns by which the rows of a slice are ordered."""


@dataclass(frozen=True, slots=True)
class _Write:
    """The write of one input whose columns fit."""

    session: Callable[[], SparkSession]
    state: WriterState
    source: input_frames.InputFrame
    data: ds.DataSchema
    """Of the input's data columns, filled ones included."""
    target: ds.DataSchema
    """Of the dataset afterwards."""
    options: WriteOptions
    malformed: Callable[[], OdfchainError | None] | None

    def run(self, *, back_without_time: bool = False) -> _MergeRun:
        from pyspark.sql import Observation

        state, source, options = self.state, self.source, self.options
        event_time, key = state.vocabulary.event_time_column, state.merge.primary_key
        seen = Observation()
        frame = source.frame.coalesce(1) if source.few else source.frame
        for f in self.data.fields:
            if f.name not in source.schema.names:
                frame = frame.withColumn(f.name, F.lit(None).cast(physical_type(f.type)))
        cut = self._microseconds_cut()
        finer = [input_frames.FinerTimes(seen, source.finer), input_frames.FinerTimes(seen, cut, "cut")]
        counts = [F.count(F.lit(1)).alias("rows")]
        if event_time in key:
            counts.append(F.count_if(col(event_time).isNull()).alias("timeless"))
        # one observation for all that is counted: each costs a pass over the rows
        frame = frame.observe(seen, *counts, *[total for times in finer for total in times.sums])
        if cut:
            frame = frame.withColumns({name: to_milliseconds(col(name)) for name in cut})
        if event_time in key:
            # a key is compared as it will be recorded
            frame = self._with_event_times(frame)
        new = merging.MergeInput(frame, self.data, state.vocabulary, source.file)
        history = self._history(new, every=back_without_time)
        if history is not None and source.few:
            history = history.coalesce(1)
        if back_without_time:
            new = new.with_times_taken_back(history, self._event_time())
        merged = new.merged(history, state.merge, options.merging.duplicate_keys, options.merging.late_edits)
        try:
            facts = self._write_rows(self._with_event_times(merged.frame), merged.order)
        except OdfchainError as error:
            cause = self._diagnose(error, new)
            if cause is error:
                raise
            raise cause from error
        rows = 0 if source.known_empty else _observed(seen, "rows")
        notes = () if source.known_empty else self._notes_on_keys(new, merged, seen)
        edits = _observed(merged.edits, "edits") if merged.edits else 0
        if edits and (edited := merged.edited) is not None and options.merging.late_edits is LateEdits.REFUSE:
            raise run_job(self.session(), lambda: new.first_edit(edited, key))
        recorded = _observed(merged.recorded, "recorded") if merged.recorded else None
        if not source.known_empty:
            for times in (*finer, *([source.counted] if source.counted else [])):
                notes += notes_on_cut_times(times.counts())
        return _MergeRun(new, facts, rows, recorded, edits, notes, merged.order)

    def _write_rows(self, frame: DataFrame, order: tuple[str, ...]) -> tuple[SliceFacts, ...]:
        from odfchain.spark.slice_runs import write_slices
        from odfchain.spark.stage import write_frame

        state, source, options = self.state, self.source, self.options
        spec = SliceSpec.of(
            self.target, state.vocabulary, state.next_offset, options.system_time.epoch_ms, options.staging
        )
        files = files_of(frame.sparkSession)
        place = None if files is None else StoreFolder(files, state.keys("data"))
        # strategies that never write recorded rows again
        ledger = (
            isinstance(state.merge, src.MergeStrategyLedger)
            and options.merging.late_edits is not LateEdits.CORRECT
        )
        short = source.short and (ledger or isinstance(state.merge, src.MergeStrategyAppend))
        if source.large:
            return write_slices(
                frame, order, spec, options.merging.slice_bytes, file=source.file, short=short, place=place
            )
        ordered = [col(name).asc_nulls_first() for name in order]
        facts = write_frame(
            frame, ordered, spec, file=source.file, short=short, one_task=source.few,
            place=None if place is None else lambda: place,
        )  # fmt: skip
        return () if facts is None else (facts,)

    def _microseconds_cut(self) -> dict[str, Column]:
        return {
            f.name: has_microseconds(col(f.name)).cast("int")
            for f in self.data.fields
            if input_frames.is_milliseconds(f.value_type)
            and (given := self.source.schema.field(f.name)) is not None
            and isinstance(given.value_type, ds.DataTypeTimestamp)
            and not input_frames.is_milliseconds(given.value_type)
        }

    def _notes_on_keys(
        self, new: merging.MergeInput, merged: merging.Merged, seen: Observation
    ) -> tuple[str, ...]:
        notes: list[str] = []
        key, which = self.state.merge.primary_key, self.options.merging.duplicate_keys
        if merged.duplicates is not None and _observed(merged.duplicates, "repeated"):
            copies, others = run_job(self.session(), lambda: new.check_repeated(key, which))
            if copies:
                notes.append(
                    f"rows that are copies of others in every column: {copies:,}; each is recorded once"
                )
            if others:
                notes.append(
                    f"rows with a key of another row and other values: {others:,}; the {which.value} was kept"
                )
        name = self.state.vocabulary.event_time_column
        if name in key and (timeless := _observed(seen, "timeless")):
            notes.append(
                f"rows without `{name}`, a part of the key: {timeless:,}; it is {self.options.event_time}"
            )
        return tuple(notes)

    def _history(self, new: merging.MergeInput, *, every: bool) -> DataFrame | None:
        # `every` column where all are looked at
        state, session = self.state, self.session
        if state.prev_offset is None or state.schema is None or not (every or state.merge.LOOKS_BACK):
            return None
        columns: Sequence[str] = new.schema.names
        ignored = self.options.merging.late_edits is LateEdits.IGNORE
        if isinstance(state.merge, src.MergeStrategyLedger) and ignored:
            columns = state.merge.primary_key
        recorded = state.recorded()
        if state.merge.KEEPS_STATE:
            recorded = recorded.for_state(state.merge.primary_key)
        elif self.source.size is not None and self.source.size <= LARGEST_INPUT:
            recorded = self._relevant(new, recorded)
        wanted = {*columns, state.vocabulary.offset_column, state.vocabulary.operation_type_column}
        fields = tuple(f for f in state.schema.fields if f.name in wanted)
        history = read_recorded(session(), recorded, fields)
        if history is None or state.next_offset <= _MOST_BROADCAST:
            return history
        # Spark estimates by widths of types, takes millions of keys for few, and has the driver hold them all
        return history.hint("merge")

    def _relevant(self, new: merging.MergeInput, recorded: RecordedRows) -> RecordedRows:
        session, staging = self.session(), self.options.staging
        try:
            return run_job(session, lambda: self.state.only_relevant(session, new, recorded, staging))
        except Exception as error:
            if is_of_spark(error) or isinstance(error, OdfchainError):
                return recorded  # the merge reads the same again, and says what is wrong with it
            raise

    def _with_event_times(self, frame: DataFrame) -> DataFrame:
        name = self.state.vocabulary.event_time_column
        return frame.withColumn(name, F.coalesce(col(name), self._event_time()))

    def _event_time(self) -> Column:
        field = self.data.field(self.state.vocabulary.event_time_column)
        assert field is not None  # noqa: S101 - with_event_time
        return F.timestamp_millis(F.lit(self.options.event_time.epoch_ms)).cast(physical_type(field.type))

    def _diagnose(self, error: OdfchainError, new: merging.MergeInput) -> OdfchainError:
        # the input's own fault is named by its row, other errors are passed on
        required = frozenset(f.name for f in self.target.fields if not f.optional)

        def search() -> OdfchainError | None:
            cause = self.malformed() if self.malformed is not None else None
            cause = cause or input_frames.first_bad_row(
                self.source, required - {new.vocabulary.event_time_column}
            )
            return cause or new.first_fault(self.state.merge)

        try:
            cause = run_job(self.source.frame.sparkSession, search)
        except Exception as second:  # noqa: BLE001 - the first error is what counts
            return explain(second, file=self.source.file) if error.exit_code == 1 else error
        return cause or error

    def guard(self, ran: _MergeRun) -> None:
        # a snapshot that loses most rows is probably an accident
        recorded, most = ran.recorded, self.options.merging.max_retract_ratio
        if not isinstance(self.state.merge, src.MergeStrategySnapshot):
            return
        if ran.input_rows == 0:
            if self.options.merging.allow_empty:
                return
            raise GuardError(
                "the snapshot is empty: it would retract "
                f"{'all' if recorded is None else f'all {recorded:,}'} recorded rows",
                flag="--allow-empty",
            )
        retracted = sum(each.ops.get("1", 0) for each in ran.facts)
        if recorded and retracted > most * recorded:
            raise GuardError(
                f"the snapshot would retract {retracted:,} of {recorded:,} recorded rows "
                f"({retracted / recorded:.0%}, at most {most:.0%} is allowed)",
                flag="--allow-retract",
            )

    # Changelog streams: a row that takes another back must find it in force, by the rule of check 10
    # (`odfchain.slices.state`). It has the event time of that row, and means it where it has none
    # (RFC-052).

    def checked_changelog(self, ran: _MergeRun, strategy: src.MergeStrategyChangelogStream) -> _MergeRun:
        # run again where rows that take back need the event times they take back
        operations = {code for each in ran.facts for code in each.ops}
        if operations & {str(CORRECT_FROM), str(CORRECT_TO)}:
            torn = run_job(self.session(), lambda: ran.new.first_torn_correction(strategy.primary_key))
            if torn is not None:
                raise torn
        if not operations & set(map(str, TAKES_BACK)):
            return ran
        if run_job(self.session(), ran.new.has_back_without_time):
            ran = self.run(back_without_time=True)
        return dataclasses.replace(ran, notes=ran.notes + self._refuse_in_vain(ran))

    def _refuse_in_vain(self, ran: _MergeRun) -> tuple[str, ...]:
        # only rows in force are taken back
        state, facts = self.state, ran.facts
        count = sum(each.ops.get(str(code), 0) for each in facts for code in TAKES_BACK)
        if count > AUDIT.retractions:  # as in a verification
            return (f"{count:,} rows are taken back; whether they were there is not checked",)
        names = state.vocabulary
        recorded = [SliceFile(piece.locate, names, piece.offsets) for piece in state.recorded().slices]
        asked = [
            SliceFile(functools.partial(state.path_of, each), names, made.offset_interval)
            for each, made in zip(facts, data_slices(facts, state.next_offset), strict=True)
        ]
        wrong = taken_back_in_vain([*recorded, *asked], asked, in_force=not state.has_several_keys())
        if len(wrong):
            place = int(wrong[0]) - state.next_offset
            raise run_job(self.session(), lambda: ran.new.first_taken_back_in_vain(ran.order, place))
        return ()

    def refuse_future(self, ran: _MergeRun) -> None:
        bound, given, now = self.options.latest_believed, self.options.event_time, self.options.system_time
        for each in ran.facts:
            if bound is None or each.max_event_time_ms is None or each.max_event_time_ms <= bound.epoch_ms:
                continue
            first = functools.partial(ran.new.first_future_row, self.state.path_of(each), given, bound, now)
            if (fault := run_job(self.session(), first)) is not None:
                raise fault


def _observed(observation: Observation, name: str) -> int:
    return int(observation.get.get(name) or 0)
