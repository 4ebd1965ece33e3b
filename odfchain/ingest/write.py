"""One input into one transaction: merge, write the slice, and say which events record it.

The state of the dataset goes in as a value and comes out as the next one, so that several inputs can follow
each other before anything is committed. Source: specification "AddData", "SetDataSchema", "Watermark";
facts in `fixtures/conformance/writer_cases.json`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, GuardError, NothingToCommitError, OdfchainError
from odfchain.ingest.keys import (
    LARGEST_INPUT,
    LookBack,
    MergeInput,
    check_repeated,
    first_bad_key,
    look_back,
    notes_on_duplicates,
    only_relevant,
    read_recorded,
    recorded_rows,
)
from odfchain.ingest.merge_strategies import (
    Merged,
    check_strategy,
    current_state,
    first_bad_operation,
    first_edit,
    first_future_row,
    first_torn_correction,
    history_columns,
    merge,
    merge_with_edits,
    old_name,
    times_after,
)
from odfchain.ingest.schema_fit import settled
from odfchain.limits import AUDIT
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import schema_event
from odfchain.odf.enums import CORRECT_FROM, CORRECT_TO, TAKES_BACK
from odfchain.odf.events import AddData, Checkpoint, DatasetVocabulary, DataSlice, MetadataEvent, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    WatermarkRule,
)
from odfchain.odf.times import Duration, Timestamp
from odfchain.slices.state import SliceFile
from odfchain.slices.writer import SliceFacts, SliceSpec, notes_on_cut_times
from odfchain.spark.executor_files import StoreFolder, files_of
from odfchain.spark.input_frames import (
    ROW_ID,
    FinerTimes,
    InputFrame,
    empty_input,
    first_bad_row,
    is_milliseconds,
)
from odfchain.spark.jobs import explain, is_of_spark, run_job
from odfchain.spark.parse import has_microseconds, to_milliseconds
from odfchain.spark.types import all_of, col, physical_type
from odfchain.workspace.commit import StagedFile, slice_path
from odfchain.workspace.config import DuplicateKeys, LateEdits
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SystemColumns
from odfchain.workspace.read_slices import RecordedRows, RecordedSlice
from odfchain.workspace.slice_lookup import SOURCES, are_of_several_keys, taken_back_in_vain
from odfchain.workspace.watermark import DEFAULT_RULE, latest_believed, of_data

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession


# State, options and result of a write.


@dataclass(frozen=True, slots=True)
class WriterState:
    """State of the dataset for a write, pending transactions included."""

    vocabulary: DatasetVocabulary
    merge: MergeStrategy
    schema: ds.DataSchema | None
    prev_offset: int | None
    checkpoint: Checkpoint | None
    watermark: Timestamp | None
    source_state: SourceState | None
    recorded: Callable[[], RecordedRows]
    """The recorded rows to compare with, found on first use."""
    has_source: bool = False
    """True if the chain defines where rows come from; without that a new column is taken for an accident."""
    odf_schema: bool = False
    """True if the schema in force is declared in the ODF form, so that a new one is as well."""
    has_several_keys: Callable[[], bool] = lambda: False
    """True if sources tell records apart by different keys; found when asked for."""
    dataset: DatasetFiles | None = field(default=None, repr=False, compare=False)
    """The place of executors' slices in the store; None where they see the staging folder."""
    since: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When the run began, before which nothing of it was put into the store [s, `time.monotonic`]."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        return 0 if self.prev_offset is None else self.prev_offset + 1

    def keys(self, kind: str) -> str:
        """The prefix of keys of slices (`data`) or checkpoints (`checkpoints`), for executors."""
        return "" if self.dataset is None else self.dataset.keys(kind)

    def path_of(self, facts: SliceFacts) -> Path:
        """The file of a slice that was just written; one that is in the store comes here now."""
        return (
            Path(facts.path)
            if self.dataset is None
            else slice_path(self.dataset, staged_file(facts, self.since))
        )

    @classmethod
    def of(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        strategy: MergeStrategy,
        session: Callable[[], SparkSession],
    ) -> WriterState:
        """The state of a dataset at a head, for writes in a session."""
        return cls(
            vocabulary=state.vocabulary,
            merge=strategy,
            schema=state.schema,
            prev_offset=state.last_offset,
            checkpoint=state.checkpoint,
            watermark=state.watermark,
            source_state=state.source_state,
            has_source=state.polling_source is not None or bool(state.push_sources),
            odf_schema=state.odf_schema,
            recorded=functools.cache(lambda: recorded_rows(dataset, state, session)),
            has_several_keys=lambda: are_of_several_keys(
                block.block.event for block in state.chain.nearest_all(*SOURCES, head=state.head)
            ),
            dataset=dataset,
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write."""

    system_time: Timestamp
    event_time: Timestamp
    """Event time of rows that carry none."""
    staging: Path
    new_source_state: SourceState | None = None
    new_watermark: Timestamp | None = None
    """Overrides the computed watermark."""
    advances: bool = False
    """The watermark follows `event_time`, unless the input's rows have event times of their own."""
    allow_empty: bool = False
    max_retract_ratio: float = 1.0
    late_edits: LateEdits = LateEdits.IGNORE
    """Policy for known keys with other values (Ledger)."""
    duplicate_keys: DuplicateKeys = DuplicateKeys.REFUSE
    """Policy for rows of the input with one key and other values (Ledger, Snapshot)."""
    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    """Types of offsets and operations, where the dataset has no schema yet."""
    watermark: WatermarkRule = DEFAULT_RULE
    max_future: Duration | None = None
    """Limit for event times after the system time; None is no limit."""
    allow_future: bool = False
    """Take rows beyond that bound; the watermark stays within it."""
    slice_bytes: int = 0
    """A larger input becomes slices of at most so many bytes of values each; 0: always one."""

    @property
    def latest_believed(self) -> Timestamp | None:
        """The bound on event times; None is none."""
        return None if self.max_future is None else latest_believed(self.system_time, self.max_future)


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


def staged_file(facts: SliceFacts, since: float) -> StagedFile:
    """A slice that was written, as what is to be committed."""
    path = Path(facts.path) if facts.path else None
    return StagedFile(path, Multihash.parse(facts.physical_hash), facts.footer, since)


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
    after = dataclasses.replace(
        before,
        prev_offset=last.offset_interval.end if last else before.prev_offset,
        checkpoint=back.checkpoint if back else state.checkpoint,
        watermark=_of_rows(state, facts, options),
        source_state=options.new_source_state or state.source_state,
        recorded=back.recorded if back else state.recorded,
    )
    advanced = _advanced(after, options)
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


def _of_rows(state: WriterState, facts: tuple[SliceFacts, ...], options: WriteOptions) -> Timestamp | None:
    if options.new_watermark is not None:
        return options.new_watermark
    times = [each.max_event_time_ms for each in facts if each.max_event_time_ms is not None]
    latest = max(times, default=None)
    return _after_time(state, latest, options)


def _advanced(state: WriterState, options: WriteOptions) -> WriterState:
    # the event time that is given with the input moves the watermark, even if no row has it
    latest = options.event_time.epoch_ms if options.advances and options.new_watermark is None else None
    return dataclasses.replace(state, watermark=_after_time(state, latest, options))


def _after_time(state: WriterState, latest_ms: int | None, options: WriteOptions) -> Timestamp | None:
    bound = options.latest_believed
    return of_data(state.watermark, latest_ms, options.watermark, options.system_time, bound)


def data_slices(facts: tuple[SliceFacts, ...], start: int) -> list[DataSlice]:
    """The slices as blocks name them, the first record of all at an offset."""
    starts = itertools.accumulate((each.rows for each in facts), initial=start)
    return [each.slice_at(first) for each, first in zip(facts, starts, strict=False)]


# Changelog streams: a row that takes another back must find it in force, by the rule of check 10
# (`odfchain.workspace.slice_lookup`). It has the event time of that row, and means it where it has none
# (RFC-052).

_BEFORE = "__odfchain_before"


def takes_back(new: MergeInput) -> Column:
    """The condition that a row of the input takes another one back."""
    return col(new.vocabulary.operation_type_column).try_cast("int").isin(*TAKES_BACK)


def has_back_without_time(new: MergeInput) -> bool:
    """True if a row takes another back and does not say of which event time that one is."""
    name = new.vocabulary.event_time_column
    return bool(new.frame.where(takes_back(new) & col(name).isNull()).limit(1).collect())


def with_times_taken_back(new: MergeInput, history: DataFrame | None, event_time: Column) -> MergeInput:
    """The input whose rows that take back without an event time have that of the row that they take back.

    That is the newest one with their other values, of those before them in the input or else of the recorded
    ones. Rows that are added without an event time have `event_time`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    time, op = new.vocabulary.event_time_column, new.vocabulary.operation_type_column
    values = tuple(name for name in new.schema.names if name not in (time, op))
    alike = Window.partitionBy(*[col(name) for name in values]).orderBy(col(ROW_ID))
    frame = new.frame.withColumn(_BEFORE, F.lag(F.coalesce(col(time), event_time)).over(alike))
    # an earlier row of the input is newer than any recorded one
    before = col(_BEFORE)
    if history is not None:
        state = current_state(history, values, new)
        same = all_of(col(name).eqNullSafe(col(old_name(name))) for name in values)
        frame, before = frame.join(state, same, "left"), F.coalesce(before, col(old_name(time)))
    filled = F.when(takes_back(new) & col(time).isNull(), before).otherwise(col(time))
    frame = frame.withColumn(time, filled).select(*[col(name) for name in new.frame.columns])
    return dataclasses.replace(new, frame=frame)


def refuse_in_vain(
    session: Callable[[], SparkSession],
    state: WriterState,
    facts: tuple[SliceFacts, ...],
    new: MergeInput,
    order: tuple[str, ...],
) -> tuple[str, ...]:
    """Check that only rows in force are taken back; returns notes for the user.

    Raises:
        BadInputError: a row takes back what is not; the message has the first.
        ObjectNotFoundError, ObjectCorruptedError: an earlier slice is missing or damaged.
    """
    count = sum(each.ops.get(str(code), 0) for each in facts for code in TAKES_BACK)
    if count > AUDIT.retractions:  # as in a verification
        return (f"{count:,} rows are taken back; whether they were there is not checked",)
    names = state.vocabulary
    recorded = [SliceFile(piece.locate, names, piece.offsets) for piece in state.recorded().slices]
    slices = zip(facts, data_slices(facts, state.next_offset), strict=True)
    asked = [
        SliceFile(functools.partial(state.path_of, each), names, made.offset_interval)
        for each, made in slices
    ]
    wrong = taken_back_in_vain([*recorded, *asked], asked, in_force=not state.has_several_keys())
    if len(wrong):
        raise run_job(session(), lambda: _in_vain(new, order, int(wrong[0]) - state.next_offset))
    return ()


def _in_vain(new: MergeInput, order: tuple[str, ...], place: int) -> BadInputError:
    ordered = new.frame.orderBy(*[col(name).asc_nulls_first() for name in order])
    (row,) = ordered.offset(place).limit(1).select(ROW_ID).collect()
    return BadInputError(
        "takes back (-R, 1, or -C, 2) values that no row in force has",
        file=new.file,
        row=new.frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1,
        hint="write the values and the event time that were recorded; where no event time is written, it is "
        "that of the newest row with the same values",
    )


def write_input(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: InputFrame | None,
    options: WriteOptions,
    *,
    malformed: Callable[[], OdfchainError | None] | None = None,
) -> Written:
    """Merge an input into a dataset's history and write what is new as slices in `options.staging`."""
    # no source: the input is empty and has unknown columns, so only watermark and source state can change,
    # unless it is a snapshot, which says that no row is left
    if source is None and isinstance(state.merge, MergeStrategySnapshot) and state.schema is not None:
        fields = tuple(f for f in state.schema.fields if f.name not in state.vocabulary.columns)
        source = empty_input(session(), ds.DataSchema(fields=fields), "the empty input")
    if source is None:
        return recorded_write(state, None, (), None, options, input_rows=0)
    if source.schema.field(state.vocabulary.event_time_column) is not None:
        options = dataclasses.replace(options, advances=False)
    data, target, notes = _settle_schema(state, source, options.system_columns)
    run = functools.partial(_run, session, state, source, data, target, options, malformed)
    ran = run()
    if isinstance(state.merge, MergeStrategyChangelogStream):
        ran = _checked_changelog(session, state, ran, state.merge, run)
    facts, input_rows = ran.facts, ran.input_rows
    if not options.allow_future:
        _refuse_future(session, state, facts, ran.new, options)
    _guard(state, facts, input_rows, ran.recorded, options)
    if ran.edits and options.late_edits is LateEdits.WARN:
        notes += (f"{ran.edits:,} rows have a recorded key and other values; they were ignored",)
    notes += ran.notes
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
        back = look_back(
            session, state.recorded, state.checkpoint, new, state.merge, target, state.vocabulary,
            options.staging, state.keys("checkpoints"), state.since,
        )  # fmt: skip
    return recorded_write(state, target, facts, back, options, input_rows=input_rows, notes=notes)


def _settle_schema(
    state: WriterState, source: InputFrame, system_columns: SystemColumns
) -> tuple[ds.DataSchema, ds.DataSchema, tuple[str, ...]]:
    """(schema of the input's data columns, filled ones included; schema of the dataset after; notes)."""
    return settled(
        source.schema, state.schema, state.vocabulary, source.file, system_columns,
        operations=state.merge.TAKES_OPERATIONS, may_grow=state.has_source,
    )  # fmt: skip


_MOST_BROADCAST = 100_000
"""Recorded rows that may pass through the driver's memory to be joined, where Spark so chooses."""


@dataclass(frozen=True, slots=True)
class _MergeRun:
    new: MergeInput
    facts: tuple[SliceFacts, ...]
    input_rows: int
    recorded: int | None
    """Keys in the recorded state, where it is known."""
    edits: int
    """Rows of the input that have a known key and other values, where they are looked for."""
    notes: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    """The columns by which the rows of a slice are ordered."""


def _run(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: InputFrame,
    data: ds.DataSchema,
    target: ds.DataSchema,
    options: WriteOptions,
    malformed: Callable[[], OdfchainError | None] | None,
    *,
    back_without_time: bool = False,
) -> _MergeRun:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    vocabulary = state.vocabulary
    seen = Observation()
    frame = source.frame.coalesce(1) if source.few else source.frame
    for f in data.fields:
        if f.name not in source.schema.names:
            frame = frame.withColumn(f.name, F.lit(None).cast(physical_type(f.type)))
    cut = _microseconds_cut(source, data)
    finer = [FinerTimes(seen, source.finer), FinerTimes(seen, cut, "cut")]
    counts = [F.count(F.lit(1)).alias("rows")]
    if vocabulary.event_time_column in state.merge.primary_key:
        counts.append(F.count_if(col(vocabulary.event_time_column).isNull()).alias("timeless"))
    # one observation for all that is counted: each costs a pass over the rows
    frame = frame.observe(seen, *counts, *[total for times in finer for total in times.sums])
    if cut:
        frame = frame.withColumns({name: to_milliseconds(col(name)) for name in cut})
    if vocabulary.event_time_column in state.merge.primary_key:
        # a key is compared as it will be recorded
        frame = _with_event_times(frame, data, options, vocabulary)
    new = MergeInput(frame, data, vocabulary, source.file)
    history = _history(session, state, new, source.size, options, every=back_without_time)
    if history is not None and source.few:
        history = history.coalesce(1)
    if back_without_time:
        new = with_times_taken_back(new, history, _event_time(data, options, vocabulary))
    merged, edited = _merge(new, history, state.merge, options)
    try:
        facts = _write_rows(
            _with_event_times(merged.frame, data, options, vocabulary),
            merged.order,
            target,
            state,
            source,
            options,
        )
    except OdfchainError as error:
        cause = _diagnose(error, source, new, target, state.merge, malformed)
        if cause is error:
            raise
        raise cause from error
    rows = 0 if source.known_empty else _observed(seen, "rows")
    notes = () if source.known_empty else _notes_on_keys(session(), new, merged, seen, state, options)
    edits = _observed(merged.edits, "edits") if merged.edits else 0
    if edits and edited is not None and options.late_edits is LateEdits.REFUSE:
        raise run_job(session(), lambda: first_edit(edited, new, state.merge.primary_key))
    recorded = _observed(merged.recorded, "recorded") if merged.recorded else None
    if not source.known_empty:
        for times in (*finer, *([source.counted] if source.counted else [])):
            notes += notes_on_cut_times(times.counts())
    return _MergeRun(new, facts, rows, recorded, edits, notes, merged.order)


def _write_rows(
    frame: DataFrame,
    order: tuple[str, ...],
    target: ds.DataSchema,
    state: WriterState,
    source: InputFrame,
    options: WriteOptions,
) -> tuple[SliceFacts, ...]:
    from odfchain.spark.stage import write_frame, write_slices

    spec = SliceSpec.of(
        target, state.vocabulary, state.next_offset, options.system_time.epoch_ms, options.staging
    )
    files = files_of(frame.sparkSession)
    place = None if files is None else StoreFolder(files, state.keys("data"))
    short = source.short and _only_new_rows(state.merge, options.late_edits)
    if source.large:
        return write_slices(
            frame, order, spec, options.slice_bytes, file=source.file, short=short, place=place
        )
    ordered = [col(name).asc_nulls_first() for name in order]
    facts = write_frame(
        frame, ordered, spec, file=source.file, short=short, one_task=source.few,
        place=None if place is None else lambda: place,
    )  # fmt: skip
    return () if facts is None else (facts,)


def _microseconds_cut(source: InputFrame, data: ds.DataSchema) -> dict[str, Column]:
    return {
        f.name: has_microseconds(col(f.name)).cast("int")
        for f in data.fields
        if is_milliseconds(f.value_type)
        and (given := source.schema.field(f.name)) is not None
        and isinstance(given.value_type, ds.DataTypeTimestamp)
        and not is_milliseconds(given.value_type)
    }


def _notes_on_keys(
    session: SparkSession,
    new: MergeInput,
    merged: Merged,
    seen: Observation,
    state: WriterState,
    options: WriteOptions,
) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    key, which = state.merge.primary_key, options.duplicate_keys
    if merged.duplicates is not None and _observed(merged.duplicates, "repeated"):
        notes = notes_on_duplicates(*run_job(session, lambda: check_repeated(new, key, which)), which)
    name = state.vocabulary.event_time_column
    if name in key and (timeless := _observed(seen, "timeless")):
        notes += (f"rows without `{name}`, a part of the key: {timeless:,}; it is {options.event_time}",)
    return notes


def _only_new_rows(strategy: MergeStrategy, edits: LateEdits) -> bool:
    # such a strategy never writes recorded rows again
    ledger = isinstance(strategy, MergeStrategyLedger) and edits is not LateEdits.CORRECT
    return ledger or isinstance(strategy, MergeStrategyAppend)


def _merge(
    new: MergeInput, history: DataFrame | None, strategy: MergeStrategy, options: WriteOptions
) -> tuple[Merged, DataFrame | None]:
    """(rows to append, the input's rows that edit recorded ones when they are looked for)."""
    edits, duplicates = options.late_edits, options.duplicate_keys
    if isinstance(strategy, MergeStrategyLedger) and history is not None and edits is not LateEdits.IGNORE:
        check_strategy(strategy, new.schema, new.file)
        return merge_with_edits(new, history, strategy.primary_key, edits, duplicates)
    return merge(new, history, strategy, duplicates), None


def _observed(observation: Observation, name: str) -> int:
    return int(observation.get.get(name) or 0)


def _history(
    session: Callable[[], SparkSession],
    state: WriterState,
    new: MergeInput,
    size: int | None,
    options: WriteOptions,
    *,
    every: bool = False,
) -> DataFrame | None:
    # `size` is that of the input [bytes], where it is known; `every` column where all are looked at
    columns = new.schema.names if every else history_columns(state.merge, new.schema)
    if isinstance(state.merge, MergeStrategyLedger) and options.late_edits is not LateEdits.IGNORE:
        columns = list(new.schema.names)
    if columns is None or state.prev_offset is None or state.schema is None:
        return None
    recorded = state.recorded()
    if state.merge.KEEPS_STATE:
        recorded = recorded.for_state(state.merge.primary_key)
    elif size is not None and size <= LARGEST_INPUT:
        recorded = _relevant(session(), state, state.schema, new, recorded, options.staging)
    wanted = {*columns, state.vocabulary.offset_column, state.vocabulary.operation_type_column}
    history = read_recorded(session(), recorded, tuple(f for f in state.schema.fields if f.name in wanted))
    if history is None or state.next_offset <= _MOST_BROADCAST:
        return history
    # Spark estimates by widths of types, takes millions of keys for few, and has the driver hold them all
    return history.hint("merge")


def _relevant(
    session: SparkSession,
    state: WriterState,
    schema: ds.DataSchema,
    new: MergeInput,
    recorded: RecordedRows,
    staging: Path,
) -> RecordedRows:
    key, offset = state.merge.primary_key, state.vocabulary.offset_column
    try:
        return run_job(session, lambda: only_relevant(session, new, key, recorded, schema, offset, staging))
    except Exception as error:
        if is_of_spark(error) or isinstance(error, OdfchainError):
            return recorded  # the merge reads the same again, and says what is wrong with it
        raise


def _with_event_times(
    frame: DataFrame, data: ds.DataSchema, options: WriteOptions, vocabulary: DatasetVocabulary
) -> DataFrame:
    from pyspark.sql import functions as F

    name = vocabulary.event_time_column
    return frame.withColumn(name, F.coalesce(col(name), _event_time(data, options, vocabulary)))


def _event_time(data: ds.DataSchema, options: WriteOptions, vocabulary: DatasetVocabulary) -> Column:
    from pyspark.sql import functions as F

    field = data.field(vocabulary.event_time_column)
    assert field is not None  # noqa: S101 - with_event_time
    return F.timestamp_millis(F.lit(options.event_time.epoch_ms)).cast(physical_type(field.type))


def _diagnose(
    error: OdfchainError,
    source: InputFrame,
    new: MergeInput,
    target: ds.DataSchema,
    strategy: MergeStrategy,
    malformed: Callable[[], OdfchainError | None] | None,
) -> OdfchainError:
    # the input's own fault is named by its row, other errors are passed on
    required = frozenset(f.name for f in target.fields if not f.optional) - {new.vocabulary.event_time_column}

    operation = new.vocabulary.operation_type_column

    def search() -> OdfchainError | None:
        cause = malformed() if malformed is not None else None
        cause = cause or first_bad_row(source, required)
        if cause is None and strategy.TAKES_OPERATIONS and new.schema.field(operation) is not None:
            cause = first_bad_operation(new)
        if cause is None and (key := strategy.primary_key):
            cause = first_bad_key(new, key, unique=not strategy.TAKES_OPERATIONS)
        return cause

    try:
        cause = run_job(source.frame.sparkSession, search)
    except Exception as second:  # noqa: BLE001 - the first error is what counts
        return explain(second, file=source.file) if error.exit_code == 1 else error
    return cause or error


def _guard(
    state: WriterState,
    facts: tuple[SliceFacts, ...],
    input_rows: int,
    recorded: int | None,
    options: WriteOptions,
) -> None:
    # a snapshot that loses most rows is probably an accident
    if not isinstance(state.merge, MergeStrategySnapshot):
        return
    if input_rows == 0:
        if options.allow_empty:
            return
        raise GuardError(
            f"the snapshot is empty: it would retract {'all' if recorded is None else f'all {recorded:,}'} "
            "recorded rows",
            flag="--allow-empty",
        )
    retracted = sum(each.ops.get("1", 0) for each in facts)
    if recorded and retracted > options.max_retract_ratio * recorded:
        raise GuardError(
            f"the snapshot would retract {retracted:,} of {recorded:,} recorded rows "
            f"({retracted / recorded:.0%}, at most {options.max_retract_ratio:.0%} is allowed)",
            flag="--allow-retract",
        )


def _checked_changelog(
    session: Callable[[], SparkSession],
    state: WriterState,
    ran: _MergeRun,
    merge: MergeStrategyChangelogStream,
    run: Callable[..., _MergeRun],
) -> _MergeRun:
    # run again where rows that take back need the event times they take back
    operations = {code for each in ran.facts for code in each.ops}
    if operations & {str(CORRECT_FROM), str(CORRECT_TO)}:
        torn = run_job(session(), lambda: first_torn_correction(ran.new, merge.primary_key))
        if torn is not None:
            raise torn
    if not operations & set(map(str, TAKES_BACK)):
        return ran
    if run_job(session(), lambda: has_back_without_time(ran.new)):
        ran = run(back_without_time=True)
    notes = refuse_in_vain(session, state, ran.facts, ran.new, ran.order)
    return dataclasses.replace(ran, notes=ran.notes + notes)


def _refuse_future(
    session: Callable[[], SparkSession],
    state: WriterState,
    facts: tuple[SliceFacts, ...],
    new: MergeInput,
    options: WriteOptions,
) -> None:
    bound, system_time, event_time = options.latest_believed, options.system_time, options.event_time
    for each in facts:
        latest = each.max_event_time_ms
        if bound is None or latest is None or latest <= bound.epoch_ms:
            continue
        if times := times_after(state.path_of(each), new.vocabulary, bound):
            raise run_job(session(), lambda: first_future_row(new, times, event_time, bound, system_time))
