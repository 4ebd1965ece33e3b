"""One input into one transaction: merge, write the slice, and say which events record it.

The state of the dataset goes in as a value and comes out as the next one, so that several inputs can follow
each other before anything is committed. Source: specification "AddData", "SetDataSchema", "Watermark";
facts in `fixtures/conformance/writer_cases.json`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.arrow import slice_schema
from odfchain.digest.logical import check_hashable
from odfchain.errors import GuardError, OdfchainError
from odfchain.ingest.checkpoint import look_back, read_recorded
from odfchain.ingest.future_rows import first_future_row, times_after
from odfchain.ingest.known_keys import LARGEST_INPUT, only_relevant
from odfchain.ingest.late_edits import first_edit, merge_with_edits
from odfchain.ingest.merge_input import MergeInput
from odfchain.ingest.merge_strategies import (
    Merged,
    check_strategy,
    first_bad_operation,
    first_torn_correction,
    history_columns,
    merge,
    takes_operations,
)
from odfchain.ingest.primary_keys import check_repeated, first_bad_key, notes_on_duplicates
from odfchain.ingest.schema_fit import (
    check_declared,
    check_reserved,
    dataset_schema,
    fit,
    normalized,
    with_event_time,
)
from odfchain.ingest.write_events import data_slices, recorded_write
from odfchain.ingest.writer_state import WriteOptions, WriterState, Written
from odfchain.model import data_schema as ds
from odfchain.model.enums import CORRECT_FROM, CORRECT_TO
from odfchain.model.events import (
    DatasetVocabulary,
)
from odfchain.model.recordable import check_recordable
from odfchain.model.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    primary_key,
)
from odfchain.repo.recorded import RecordedRows, RecordedSlice, keeps_state
from odfchain.repo.system_columns import SystemColumns
from odfchain.repo.workspace_config import LateEdits
from odfchain.slices.writer import SliceFacts, SliceSpec, notes_on_cut_times
from odfchain.spark.columns import col
from odfchain.spark.executor_files import StoreFolder, files_of
from odfchain.spark.failure import explain, is_of_spark
from odfchain.spark.input_frames import FinerTimes, InputFrame, empty_input, first_bad_row, is_milliseconds
from odfchain.spark.job import run_job
from odfchain.spark.parse import has_microseconds, to_milliseconds
from odfchain.spark.types import physical_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession


def write_input(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: InputFrame | None,
    options: WriteOptions,
    *,
    malformed: Callable[[], OdfchainError | None] | None = None,
) -> Written:
    """Merge an input into a dataset's history and write what is new as slices in `options.staging`.

    It is one slice, unless the input is larger than those may be.

    `source` is None for an empty input of unknown columns: only watermark and source state can change then,
    unless it is a snapshot, which says that nothing is left.
    """
    if source is None and isinstance(state.merge, MergeStrategySnapshot) and state.schema is not None:
        fields = tuple(f for f in state.schema.fields if f.name not in state.vocabulary.columns)
        source = empty_input(session(), ds.DataSchema(fields=fields), "the empty input")
    if source is None:
        return recorded_write(state, None, (), None, options, input_rows=0)
    data, target, notes = _settle_schema(state, source, options.system_columns)
    ran = _run(session, state, source, data, target, options, malformed)
    facts, input_rows = ran.facts, ran.input_rows
    if not options.allow_future:
        _refuse_future(session, state, facts, ran.new, options)
    if isinstance(state.merge, MergeStrategyChangelogStream):
        _refuse_torn_corrections(session, facts, ran.new, state.merge)
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
    operations = takes_operations(state.merge)
    data = normalized(source.schema, state.vocabulary, state.schema)
    check_reserved(data, state.vocabulary, source.file, operations=operations)
    data = with_event_time(data, state.schema, state.vocabulary)
    if state.schema is None:
        check_recordable(data.fields)
        return data, dataset_schema(data, state.vocabulary, system_columns), ()
    check_declared(state.schema, state.vocabulary)
    fitting = fit(state.schema, data, state.vocabulary, source.file, may_grow=state.has_source)
    target = ds.DataSchema(fields=state.schema.fields + fitting.added, extra=state.schema.extra)
    check_recordable(fitting.added)
    check_hashable(slice_schema(target))
    return ds.DataSchema(fields=data.fields + fitting.filled), target, fitting.notes


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


def _run(
    session: Callable[[], SparkSession],
    state: WriterState,
    source: InputFrame,
    data: ds.DataSchema,
    target: ds.DataSchema,
    options: WriteOptions,
    malformed: Callable[[], OdfchainError | None] | None,
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
    if vocabulary.event_time_column in primary_key(state.merge):
        counts.append(F.count_if(col(vocabulary.event_time_column).isNull()).alias("timeless"))
    # one observation for all that is counted: each costs a pass over the rows
    frame = frame.observe(seen, *counts, *[total for times in finer for total in times.sums])
    if cut:
        frame = frame.withColumns({name: to_milliseconds(col(name)) for name in cut})
    if vocabulary.event_time_column in primary_key(state.merge):
        # a key is compared as it will be recorded
        frame = _with_event_times(frame, data, options, vocabulary)
    new = MergeInput(frame, data, vocabulary, source.file)
    history = _history(session, state, new, source.size, options)
    if history is not None and source.few:
        history = history.coalesce(1)
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
        raise run_job(session(), lambda: first_edit(edited, new, primary_key(state.merge)))
    recorded = _observed(merged.recorded, "recorded") if merged.recorded else None
    if not source.known_empty:
        for times in (*finer, *([source.counted] if source.counted else [])):
            notes += notes_on_cut_times(times.counts())
    return _MergeRun(new, facts, rows, recorded, edits, notes)


def _write_rows(
    frame: DataFrame,
    order: tuple[str, ...],
    target: ds.DataSchema,
    state: WriterState,
    source: InputFrame,
    options: WriteOptions,
) -> tuple[SliceFacts, ...]:
    from odfchain.spark.several_slices import write_slices
    from odfchain.spark.stage import write_frame

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
    """Whether a row's timestamp is cut to the milliseconds that the dataset declares, by column."""
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
    """What the user should know about the keys of the input's rows."""
    notes: tuple[str, ...] = ()
    key, which = primary_key(state.merge), options.duplicate_keys
    if merged.duplicates is not None and _observed(merged.duplicates, "repeated"):
        notes = notes_on_duplicates(*run_job(session, lambda: check_repeated(new, key, which)), which)
    name = state.vocabulary.event_time_column
    if name in key and (timeless := _observed(seen, "timeless")):
        notes += (f"rows without `{name}`, a part of the key: {timeless:,}; it is {options.event_time}",)
    return notes


def _only_new_rows(strategy: MergeStrategy, edits: LateEdits) -> bool:
    """Whether the strategy writes rows of the input and never recorded ones."""
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
) -> DataFrame | None:
    """The recorded rows that count, with the columns that the strategy looks at; None when there are none.

    `size` is that of the input [bytes], where it is known.
    """
    columns = history_columns(state.merge, new.schema)
    if isinstance(state.merge, MergeStrategyLedger) and options.late_edits is not LateEdits.IGNORE:
        columns = list(new.schema.names)
    if columns is None or state.prev_offset is None or state.schema is None:
        return None
    recorded = state.recorded()
    if keeps_state(state.merge):
        recorded = recorded.for_state(primary_key(state.merge))
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
    key, offset = primary_key(state.merge), state.vocabulary.offset_column
    try:
        return run_job(session, lambda: only_relevant(session, new, key, recorded, schema, offset, staging))
    except Exception as error:
        if is_of_spark(error) or isinstance(error, OdfchainError):
            return recorded  # the merge reads the same again, and says what is wrong with it
        raise


def _with_event_times(
    frame: DataFrame, data: ds.DataSchema, options: WriteOptions, vocabulary: DatasetVocabulary
) -> DataFrame:
    """The rows with missing event times filled in."""
    from pyspark.sql import functions as F

    name = vocabulary.event_time_column
    field = data.field(name)
    assert field is not None  # noqa: S101 - with_event_time
    fallback = F.timestamp_millis(F.lit(options.event_time.epoch_ms)).cast(physical_type(field.type))
    return frame.withColumn(name, F.coalesce(col(name), fallback))


def _diagnose(
    error: OdfchainError,
    source: InputFrame,
    new: MergeInput,
    target: ds.DataSchema,
    strategy: MergeStrategy,
    malformed: Callable[[], OdfchainError | None] | None,
) -> OdfchainError:
    """The fault that made a job fail, with its row where the input is to blame."""
    required = frozenset(f.name for f in target.fields if not f.optional) - {new.vocabulary.event_time_column}

    operation = new.vocabulary.operation_type_column

    def search() -> OdfchainError | None:
        cause = malformed() if malformed is not None else None
        cause = cause or first_bad_row(source, required)
        if cause is None and takes_operations(strategy) and new.schema.field(operation) is not None:
            cause = first_bad_operation(new)
        if cause is None and (key := primary_key(strategy)):
            cause = first_bad_key(new, key, unique=not takes_operations(strategy))
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
    """Refuse a snapshot that looks like an accident."""
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


def _refuse_torn_corrections(
    session: Callable[[], SparkSession],
    facts: tuple[SliceFacts, ...],
    new: MergeInput,
    merge: MergeStrategyChangelogStream,
) -> None:
    if any(each.ops.keys() & {str(CORRECT_FROM), str(CORRECT_TO)} for each in facts):
        torn = run_job(session(), lambda: first_torn_correction(new, merge.primary_key))
        if torn is not None:
            raise torn


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
