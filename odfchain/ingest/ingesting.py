"""Data into a root dataset: pushed files and frames, and what a polling source has that is new.

    plan      which source, which merge strategy, from the chain
    for each input: open → fit the schema
    one job for as many as fit in a task: read → merge → write what is new as slices (staged)
    for each input: guards → the events
    commit    slices, blocks, one move of the head

Pushed files are published together, or none of them. Of a pull each file is one transaction: those that its
source has next are merged ahead by the same job (RFC-058), and committed one after the other. What was
committed stays when a later one fails, and what failed is fetched again by the next pull. The state of the
source is in the same block as the data that it describes, so every byte of a source is ingested once,
whenever a run is interrupted (RFC-014).

When another writer moved the head in between, the staged work is thrown away and the run repeated on the new
head: what was new before may not be new any more. Source: specification "Data Ingestion", "Push Source",
"Polling Source", "AddData", "SetDataSchema", "Watermark"; facts in `fixtures/conformance/writer_cases.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.chain.chain import HashedBlock
from odfchain.errors import IngestError, NothingToCommitError, UsageError
from odfchain.ingest.history import LookBack, WriterState, staged_file
from odfchain.ingest.merge_input import MOST_INPUTS, InputMerge, MergeOptions, WriteOptions, data_slices
from odfchain.ingest.merge_task import Outcome
from odfchain.ingest.polling import Batch, FetchAhead, FetchOptions, PollingSource
from odfchain.ingest.read_formats import FileInput, read_step_for
from odfchain.ingest.request_keys import RequestKey, sent_before
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import schema_event, schema_of_event
from odfchain.odf.enums import DatasetKind, OperationType
from odfchain.odf.events import AddData, AddPushSource, DataSlice, MetadataEvent, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, DeferredProgress, Progress
from odfchain.slices.writer import SliceFacts
from odfchain.spark.input_frames import InputFrame
from odfchain.spark.jobs import Steps, watched
from odfchain.text import one_line
from odfchain.workspace.commit import CommitCheck, StagedFile, commit, on_the_newest_head
from odfchain.workspace.config import LateEdits, read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.known_files import GivenFiles
from odfchain.workspace.read_slices import RecordedSlice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.transform.engines import TransformEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions(MergeOptions):
    """Options of a run."""

    source_name: str | None = None
    input_format: str | None = None
    input_name: str | None = None
    """The input's name in messages, where its path says nothing."""
    batch: Batch | None = None
    """The batch of a stream that the input is."""
    keys: Mapping[int, RequestKey] = field(default_factory=dict)
    """The requests that brought files, by the places of these: each comes in once."""
    event_time: Timestamp | None = None
    """Event time of rows that carry none; default is the system time."""
    again: bool | None = None
    """False passes over files that were appended before (RFC-059); None is for rows that are no file."""
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
    ingested_with: HashedBlock | None = None
    """The block that has the rows of this file already, which was passed over."""

    @property
    def rows(self) -> int:
        """Rows written."""
        return sum(self.operations.values())

    def __repr__(self) -> str:
        if self.ingested_with is not None:
            block, said = self.ingested_with.block, "nothing new: the same bytes were ingested"
            return (
                f"{one_line(self.file)}: {said} at {block.system_time} with block {block.sequence_number:,}"
            )
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
    engines: Callable[[src.Transform], TransformEngine]
    options: IngestOptions
    progress: Progress = SILENT
    check: CommitCheck | None = None

    def push(self, files: Sequence[Path], *, expect_rows: Callable[[], None] = lambda: None) -> IngestOutcome:
        """Ingest files in the order given, each as one transaction, published together by one head move.

        Files that were appended before are passed over; `expect_rows` is as in `pull`.
        """
        with contextlib.closing(GivenFiles(self.dataset, files)) as given:
            attempt = functools.partial(self._push, given, expect_rows)
            return on_the_newest_head(attempt, self.options.retries, self.progress)

    def _push(self, files: GivenFiles, expect_rows: Callable[[], None]) -> IngestOutcome:
        state, options = DatasetState.read(self.dataset.chain), self.options
        if (repeated := known_batch(self.dataset, state, options)) is not None:
            return repeated
        source = _push_source(self.dataset, state, options.source_name)
        declared, preprocess = (None, None) if source is None else (source.read, source.preprocess)
        merge = src.MergeStrategyAppend() if source is None else source.merge
        remembers = options.again is not None and isinstance(merge, src.MergeStrategyAppend)
        known = files.known(state, _name_of(source), again=bool(options.again)) if remembers else {}
        # with a key, equal bytes are not the same request
        known = {index: same for index, same in known.items() if index not in options.keys}
        known |= sent_before(state, _name_of(source), options.keys)
        fresh = [index for index in range(len(files.paths)) if index not in known]
        if fresh:
            expect_rows()
        transaction = Transaction(self, state, merge, _name_of(source))
        event_time = (options.event_time or transaction.system_time).truncated_to_ms()
        paths = iter([files.paths[index] for index in fresh])
        ends, before = dict[int, int](), state.head_block.sequence_number

        def announce(hashes: Sequence[Multihash]) -> None:
            if remembers:
                blocks = {index: (hashes[end - 1], before + end) for index, end in ends.items()}
                files.remember(blocks, _name_of(source))

        def open_next(_: Progress) -> NextInput | None:
            if (path := next(paths, None)) is None:
                return None
            read = read_step_for(path, options.input_format, declared)
            given = FileInput(path, options.input_name or str(path), read, preprocess)
            write = WriteOptions(
                system_time=transaction.system_time,
                event_time=event_time,
                staging=staging,
                merging=options,
                watermark=transaction.rule,
            )
            return NextInput(given, write)

        with (
            self.dataset.staging() as staging,
            contextlib.closing(Inputs(self, transaction.writer, open_next)) as inputs,
        ):
            for index in fresh:
                given = inputs.first()
                assert given is not None  # noqa: S101 - there are as many as files
                with given.kept:
                    if count := transaction.record(inputs, given.given.name, options.keys.get(index)):
                        ends[index] = count
            hashes = transaction.commit(announce=announce)
        done, head = dict(zip(fresh, transaction.inputs, strict=True)), hashes[-1] if hashes else state.head
        for index, same in known.items():
            name = same if isinstance(same, Multihash) else hashes[ends[same] - 1] if same in ends else None
            block = HashedBlock(name, self.dataset.chain.get(name)) if name is not None else None
            file = options.input_name or str(files.paths[index])
            done[index] = InputOutcome(file, 0, {}, None, ingested_with=block)
            if block is not None:
                self.progress.note(f"{done[index]!r}; --again ingests it once more")
        outcomes = tuple(done[index] for index in sorted(done))
        return IngestOutcome(outcomes, state.head, head, len(hashes), transaction.writer.watermark)

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
        with contextlib.closing(_Pull(self, options, expect_rows, ahead, is_done=forever)) as pulling:
            has_more = True
            while has_more:
                attempt = pulling.next_transaction
                found, hashes, has_more = on_the_newest_head(attempt, self.options.retries, self.progress)
                inputs += found
                blocks += len(hashes)
        new = DatasetState.read(self.dataset.chain)
        status = PullStatus.UPDATED if blocks else PullStatus.UP_TO_DATE
        return PullOutcome(tuple(inputs), old.head, new.head, blocks, new.watermark, status)


def known_batch(dataset: DatasetFiles, state: DatasetState, options: IngestOptions) -> IngestOutcome | None:
    """The outcome of a batch that is recorded; None for every other input."""
    source, batch = _push_source(dataset, state, options.source_name), options.batch
    if batch is None or not batch.is_recorded(state, _name_of(source)):
        return None
    nothing = InputOutcome(options.input_name or batch.query, 0, {}, None)
    return IngestOutcome((nothing,), state.head, state.head, 0, state.watermark)


def _push_source(dataset: DatasetFiles, state: DatasetState, name: str | None) -> AddPushSource | None:
    # None where there never was one, and rows are appended
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: its data comes from its inputs")
    sources = state.push_sources
    if name is not None:
        if name not in sources:
            known = f"it has {', '.join(sources)}" if sources else "it has none"
            raise UsageError(f"{dataset.alias} has no push source called {name!r} ({known})")
        return sources[name]
    if len(sources) > 1:
        hint = "choose one with --source"
        raise UsageError(f"{dataset.alias} has several push sources: {', '.join(sources)}", hint=hint)
    if not sources and state.polling_source is not None:
        hint = "define a push source in a dataset of its own"
        raise IngestError(f"{dataset.alias} has a polling source: its data is pulled, not pushed", hint=hint)
    if not sources and state.has_disabled_source:
        message = f"{dataset.alias}: its source is disabled, so nothing says how a file is merged"
        hint = "define the source again in the manifest: odfchain add --update MANIFEST"
        raise IngestError(message, hint=hint)
    return next(iter(sources.values()), None)


def _name_of(source: AddPushSource | None) -> str:
    return POLLING_SOURCE if source is None else source.source_name


class _Pull:
    """The transactions of a pull, one for each object of its source."""

    def __init__(
        self,
        run: Ingestion,
        options: FetchOptions,
        expect_rows: Callable[[], None],
        ahead: FetchAhead | None,
        *,
        is_done: bool,
    ) -> None:
        self._run, self._options, self._expect_rows, self._is_done = run, options, expect_rows, is_done
        self._begun = ahead
        self._source: PollingSource | None = None
        """The source after all objects that were opened; None before the first and after the last."""
        self._head: Multihash | None = None
        self._inputs: Inputs | None = None
        self._rule = src.WatermarkRule()

    def next_transaction(self) -> tuple[list[InputOutcome], list[Multihash], bool]:
        """Commit the next object; (what came of it, the new blocks, whether there may be more)."""
        if self._is_done:
            return [], self._idle(), False
        state = DatasetState.read(self._run.dataset.chain)
        if self._inputs is None or state.head != self._head:
            self.close()
            self._source = PollingSource.of(self._run.dataset)
            state = self._source.state
            first = self._transaction(state)
            self._inputs, self._head = Inputs(self._run, first.writer, self._open_next), state.head
            self._rule = first.rule
        if (given := self._inputs.first()) is None:
            return [], self._idle(), False
        transaction = self._transaction(state, given.options.system_time)
        with given.kept:
            with given.unchanged:
                is_new = transaction.record(self._inputs, given.given.name)
            if is_new:
                hashes = transaction.commit(ends=not given.has_more)
            else:
                hashes = [] if given.has_more else self._idle()
        self._head = hashes[-1] if hashes else state.head
        return transaction.inputs, hashes, given.has_more

    def close(self) -> None:
        """Remove what was staged in vain."""
        if self._inputs is not None:
            self._inputs.close()

    def _transaction(self, state: DatasetState, time: Timestamp | None = None) -> Transaction:
        assert state.polling_source is not None  # noqa: S101 - `PollingSource.of` found it
        return Transaction(self._run, state, state.polling_source.merge, POLLING_SOURCE, time)

    def _open_next(self, progress: Progress) -> NextInput | None:
        if (source := self._source) is None:
            return None
        begun, self._begun, self._source = self._begun, None, None
        made = begun.input(source.state.head) if begun is not None else None
        with contextlib.ExitStack() as kept:
            polled = kept.enter_context(made or source.fetched(self._options, progress, self._expect_rows))
            if polled is None:
                return None
            self._expect_rows()
            fetched, unchanged = polled.fetched, contextlib.ExitStack()
            time = source.next_system_time(self._run.options.system_time)
            given = unchanged.enter_context(polled.prepared(self._options, progress))
            write = WriteOptions(
                system_time=time,
                event_time=fetched.event_time or self._run.options.event_time or time,
                staging=polled.staging,
                merging=self._run.options,
                new_source_state=fetched.state,
                advances=fetched.advances,
                watermark=self._rule,
            )
            if fetched.has_more and fetched.state is not None:
                self._source = source.after(fetched.state, time)
            return NextInput(given, write, fetched.has_more, unchanged, kept.pop_all())

    def _idle(self) -> list[Multihash]:
        # at most a watermark that follows the system time, of which nothing is to be judged or shown
        quiet = dataclasses.replace(self._run, progress=SILENT, check=None)
        found = PollingSource.of(self._run.dataset)
        return Transaction(quiet, found.state, found.event.merge, POLLING_SOURCE).commit()


class Transaction:
    """What inputs of one source bring to a dataset, published by one move of its head."""

    def __init__(
        self,
        run: Ingestion,
        state: DatasetState,
        merge: src.MergeStrategy,
        source: str,
        system_time: Timestamp | None = None,
    ) -> None:
        batch, self._run, self._state = run.options.batch, run, state
        self.rule = read_config(run.dataset).rule_of(source)
        self._batch = None if batch is None else batch.after(state, source)
        self._source = source
        self._events: list[MetadataEvent] = []
        self._slices: list[StagedFile] = []
        self._checkpoints: list[StagedFile] = []
        self.system_time = system_time or state.next_system_time(run.options.system_time)
        self.writer = WriterState.of(run.dataset, state, merge, run.session)
        self.inputs: list[InputOutcome] = []

    def record(self, inputs: Inputs, name: str, key: RequestKey | None = None) -> int:
        """Merge the input of this name (a request's `key`); the blocks up to its last, 0 if none is new."""
        try:
            written = inputs.written(self.writer)
        except NothingToCommitError as nothing:
            self.inputs.append(InputOutcome(name, nothing.input_rows, {}, None))
            return 0
        batch = self._batch if key is None else key.after(self._state, self._source)
        if batch is not None:
            written = _with_batch(written, batch)
        self._events += written.events
        self._slices += written.slices
        self._checkpoints += [written.checkpoint] if written.checkpoint else []
        self.inputs.append(_outcome_of(name, written))
        self.writer = written.state
        return len(self._events)

    def commit(
        self, *, ends: bool = True, announce: Callable[[Sequence[Multihash]], None] = lambda _: None
    ) -> list[Multihash]:
        """Publish what was staged; the new blocks, none where nothing is new. `announce` is as in `commit`.

        The watermark of a source that follows the system time moves where the run `ends`.
        """
        writer, idle = self.writer, not self._events
        mark = self.rule.at_system_time(writer.watermark, self.system_time, idle=idle) if ends else None
        if mark is not None:
            self.writer = dataclasses.replace(writer, watermark=mark)
            self._events.append(_add_data(writer, self.writer, None))
        if not self._events:
            return []
        self._run.progress.phase("Committing")
        return commit(
            self._run.dataset, self._state, self._events, self._slices,
            checkpoints=self._checkpoints, system_time=self.system_time, check=self._run.check,
            announce=announce,
        )  # fmt: skip


def _with_batch(written: Written, batch: SourceState) -> Written:
    # without new rows nothing is recorded, and the batch may come again; of several blocks the last one has
    # the state
    *before, last = written.events
    if isinstance(last, AddData):
        last = dataclasses.replace(last, new_source_state=batch)
    state = dataclasses.replace(written.state, source_state=batch)
    return dataclasses.replace(written, events=(*before, last), state=state)


def _outcome_of(file: str, written: Written) -> InputOutcome:
    if not written.facts:
        return InputOutcome(file, written.input_rows, {}, None)
    last = written.state.prev_offset
    assert last is not None  # noqa: S101 - a slice was written
    rows = sum(facts.rows for facts in written.facts)
    counts = sum((Counter(facts.ops) for facts in written.facts), Counter[str]())
    operations = {OperationType.from_code(int(code)).value: counts[code] for code in sorted(counts)}
    return InputOutcome(file, written.input_rows, operations, (last - rows + 1, last), len(written.facts))


# Inputs: as many as one task can take are merged and written by it, and each is recorded by itself.


@dataclass(frozen=True, slots=True)
class NextInput:
    """An input that is there."""

    given: FileInput
    options: WriteOptions
    has_more: bool = False
    unchanged: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Left when it was read; raises if it has changed meanwhile."""
    kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What it needs until it is recorded."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    next: NextInput
    merge: InputMerge | None
    progress: DeferredProgress

    def steps(self, state: WriterState) -> Steps:
        return self.next.given.steps(state, None if self.merge is None else self.merge.source.rows)


class Inputs:
    """Inputs in order, opened, merged and written ahead; notes and errors of each come in its turn."""

    def __init__(
        self, run: Ingestion, state: WriterState, open_next: Callable[[Progress], NextInput | None]
    ) -> None:
        self._run, self._open_next = run, open_next
        self._state = state
        """Vocabulary and schema after all that wait."""
        self._waiting = deque[_Waiting]()
        self._outcomes = deque[Outcome]()
        self._failed: tuple[Exception, DeferredProgress] | None = None

    def first(self) -> NextInput | None:
        """The input whose turn it is; None where there is none."""
        if not self._waiting and self._failed is None:
            self._gather()
        if not self._waiting and self._failed is not None:
            (error, progress), self._failed = self._failed, None
            progress.show_on(self._run.progress)
            raise error
        return self._waiting[0].next if self._waiting else None

    def _gather(self) -> bool:
        # one more; false if that was the last
        progress = DeferredProgress(self._run.progress)
        if not self._waiting:
            progress.show_on(self._run.progress)
        try:
            if (found := self._open_next(progress)) is not None:
                with contextlib.ExitStack() as failed:
                    failed.push(found.kept)
                    failed.push(found.unchanged)
                    self._waiting.append(self._fitted(found, progress))
                    failed.pop_all()
                return True
        except Exception as error:
            if not self._waiting:
                raise
            self._failed = error, progress
        return False

    def _fitted(self, found: NextInput, progress: DeferredProgress) -> _Waiting:
        given, options = found.given, found.options
        with given.translate_errors():
            source = given.open(
                self._run.session, self._run.engines, self._state, options.merging.slice_bytes,
                options.staging, progress, found.kept,
            )  # fmt: skip
            merge = fitted(self._run.session, self._state, source, options)
        if merge is not None:
            self._state = with_schema(self._state, merge.target)
        return _Waiting(found, merge, progress)

    def written(self, state: WriterState) -> Written:
        """Merge the input whose turn it is; `state` is what is recorded before it."""
        if not self._outcomes:
            while self._together(state) == len(self._waiting) < MOST_INPUTS and self._failed is None:
                if not self._gather():
                    break
        waiting = self._waiting[0]
        given, progress = waiting.next.given, self._run.progress
        waiting.progress.show_on(progress)
        progress.phase(f"Merging {given.name}")
        notes: Sequence[str] = ()
        try:
            with given.translate_errors():
                if not self._outcomes:
                    self._merge(state)
                with watched(progress, waiting.steps(state)):
                    if waiting.merge is None:
                        done = recorded_write(state, None, (), None, waiting.next.options, input_rows=0)
                    else:
                        done = written(state, waiting.merge, self._outcomes.popleft())
            notes = done.notes
        except NothingToCommitError as nothing:
            notes = nothing.notes
            raise
        finally:
            self._waiting.popleft()
            for note in notes:
                progress.note(f"{given.name}: {note}")
        return done

    def _merges(self, state: WriterState) -> list[InputMerge]:
        found = list[InputMerge]()
        for each in self._waiting:
            if (merge := each.merge) is None:
                break
            found.append(merge if found else dataclasses.replace(merge, state=state))
        return found

    def _together(self, state: WriterState) -> int:
        merges = self._merges(state)
        return merges[0].fitting(merges[1:]) if merges else 0

    def _merge(self, state: WriterState) -> None:
        if merges := self._merges(state):
            number = max(self._together(state), 1)
            steps = [each.steps(state) for each in itertools.islice(self._waiting, number)]
            with watched(self._run.progress, *steps):
                self._outcomes.extend(merges[0].run(merges[1:number])[0])

    def close(self) -> None:
        """Remove what was staged in vain."""
        while self._waiting:
            self._waiting.popleft().next.kept.close()


# One input: merge, write what is new as slices, and say which events record it.


@dataclass(frozen=True, slots=True)
class Written:
    """A transaction that is ready to be committed, and the state after it."""

    events: tuple[MetadataEvent, ...]
    slices: tuple[StagedFile, ...]
    checkpoint: StagedFile | None
    state: WriterState
    facts: tuple[SliceFacts, ...]
    input_rows: int
    notes: tuple[str, ...] = ()
    """Notes on how the input was made to fit."""


# The events that record a write.


def with_schema(state: WriterState, target: ds.DataSchema) -> WriterState:
    """The state with another schema, as it will be read from the chain."""
    if target == state.schema:
        return state
    event = schema_event(target, odf_form=state.odf_schema)
    return dataclasses.replace(state, schema=schema_of_event(event.raw_arrow_schema, event.schema))


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
    after = state if target is None else with_schema(state, target)
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


def fitted(
    session: Callable[[], SparkSession], state: WriterState, source: InputFrame | None, options: WriteOptions
) -> InputMerge | None:
    """The merge of an input whose columns fit; None where only watermark and source state can change.

    Of the state vocabulary, strategy and schema count.
    """
    # an empty snapshot says that no row is left
    if source is None and isinstance(state.merge, src.MergeStrategySnapshot) and state.schema is not None:
        fields = tuple(f for f in state.schema.fields if f.name not in state.vocabulary.columns)
        source = InputFrame(session(), ds.DataSchema(fields=fields), "the empty input")
    return None if source is None else InputMerge.of(state, source, options)


def written(state: WriterState, merge: InputMerge, outcome: Outcome) -> Written:
    """What records an input on top of a state, given what came of its merge."""
    merge, options = dataclasses.replace(merge, state=state), merge.options
    outcome, found = merge.concluded(outcome)
    facts, notes = outcome.facts, merge.notes
    if (edits := outcome.counts["edits"]) and options.merging.late_edits is LateEdits.WARN:
        notes += (f"{edits:,} rows have a recorded key and other values; they were ignored",)
    if known := outcome.counts["known"]:  # their recorded values are not read
        notes += (f"rows with a recorded key: {known:,}; they were ignored (--late-edits compares values)",)
    back = None
    if facts:
        new = tuple(
            RecordedSlice(
                data_slice.offset_interval,
                functools.partial(state.path_of, each),
                key=f"{state.keys('data')}/{data_slice.physical_hash}",
                unsent=Path(each.path) if each.path else None,
                size=each.size,
            )
            for each, data_slice in zip(facts, data_slices(facts, state.next_offset), strict=True)
        )
        back = state.look_back(
            merge.source.session, new, merge.target, options.staging, options.merging.task_bytes
        )
    return recorded_write(
        state, merge.target, facts, back, options,
        input_rows=outcome.counts["rows"], notes=notes + found,
    )  # fmt: skip
