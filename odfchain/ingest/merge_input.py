"""The merge of inputs: by which plan, what was found, and why one is refused.

Rows are merged by `odfchain.ingest.merge_strategies`; where that is done is said in
`odfchain.ingest.merge_task`. Here is what is read of the input and of what is recorded, and what is made of
counts and faults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, IngestError, OdfchainError
from odfchain.ingest import merge_strategies as strategies
from odfchain.ingest.history import LARGEST_INPUT, WriterState, bytes_of, read_recorded, recorded_files
from odfchain.ingest.merge_task import (
    Buckets,
    MergeRules,
    MergeStep,
    MergeTask,
    Outcome,
    run_in_task,
    task_bytes,
)
from odfchain.ingest.schema_fit import check_strategy, settled
from odfchain.lazy import F, pa
from odfchain.limits import AUDIT
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.enums import TAKES_BACK
from odfchain.odf.events import DataSlice, SourceState
from odfchain.odf.times import Duration, Timestamp
from odfchain.slices.state import SliceFile, taken_back_in_vain
from odfchain.slices.writer import SliceFacts, SliceSpec, notes_on_cut_times
from odfchain.spark import input_frames
from odfchain.spark.executor_files import StoreFolder, files_of
from odfchain.spark.input_frames import FINER, ROW_ID
from odfchain.spark.jobs import RowCounter, explain, run_job
from odfchain.spark.slice_runs import RunFacts, run_layout, write_slices
from odfchain.spark.stage import batches_by_rows
from odfchain.spark.types import col, physical_type
from odfchain.workspace.config import DuplicateKeys, LateEdits
from odfchain.workspace.dataset_state import ALLOW_FUTURE, SystemColumns
from odfchain.workspace.read_slices import RecordedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    task_bytes: int = 0
    """What one task merges at most, new and recorded [bytes]; 0: a quarter of the memory of Spark."""


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


def data_slices(facts: tuple[SliceFacts, ...], start: int) -> list[DataSlice]:
    """The slices as blocks name them, the first record of all at an offset."""
    starts = itertools.accumulate((each.rows for each in facts), initial=start)
    return [each.slice_at(first) for each, first in zip(facts, starts, strict=False)]


@dataclass(frozen=True, slots=True)
class InputMerge:
    """The merge of one input whose columns fit."""

    state: WriterState
    source: input_frames.InputFrame
    data: ds.DataSchema
    """Of the input's data columns, filled ones included."""
    target: ds.DataSchema
    """Of the dataset afterwards."""
    options: WriteOptions
    notes: tuple[str, ...]
    """How it was made to fit."""

    @classmethod
    def of(cls, state: WriterState, source: input_frames.InputFrame, options: WriteOptions) -> InputMerge:
        """The input, if it fits; of the state vocabulary, strategy and schema count."""
        if source.schema.field(state.vocabulary.event_time_column) is not None:
            options = dataclasses.replace(options, advances=False)
        data, target, notes = settled(
            source.schema, state.schema, state.vocabulary, source.file, options.merging.system_columns,
            operations=state.merge.TAKES_OPERATIONS, may_grow=state.has_source,
        )  # fmt: skip
        check_strategy(state.merge, data, source.file, operation=state.vocabulary.operation_type_column)
        return cls(state, source, data, target, options, notes)

    def run(
        self, following: Sequence[InputMerge] = (), *, taken_back: bool = False
    ) -> tuple[list[Outcome], Callable[[int], int]]:
        """Merge and write the rows, and then those of inputs that follow, where they are `fitting`.

        What follows is merged up to the first input that is refused, or cannot be read or written. With the
        outcomes comes what tells the number of the input's row at a place of what was written. With
        `taken_back` event times of rows that take back are looked for.
        """
        source = self.source
        rules = self.rules(timed=taken_back or self.state.prev_offset is None)
        recorded, names = self._recorded(rules, following, taken_back=taken_back)
        size = (source.size or 0) + (bytes_of(recorded, self.target, names) if recorded else 0)
        try:
            if source.large or size > self.most:
                number = min(max(-(-_BUCKETS_OF_A_TASK * size // self.most), _LEAST_BUCKETS), _MOST_BUCKETS)
                outcome, row_at = self._by_buckets(rules, recorded, names, number)
                return [outcome], row_at
            return self._in_one_task(rules, following, recorded, names)
        except OdfchainError as error:
            cause = self._diagnose(error)
            if cause is error:
                raise
            raise cause from error

    def concluded(self, outcome: Outcome) -> tuple[Outcome, tuple[str, ...]]:
        """What came of the merge after all, and notes; raises why the input is refused."""
        row_at = None
        self._refuse_fault(outcome)
        # rows that take back need the event times of what they take back
        if outcome.counts["backTimeless"] and self.state.prev_offset is not None:
            (outcome,), row_at = self.run(taken_back=True)
            self._refuse_fault(outcome)
        notes = self._notes(outcome.counts)
        if isinstance(self.state.merge, src.MergeStrategyChangelogStream):
            notes += self._refuse_in_vain(outcome, row_at)
        self._guard(outcome)
        return outcome, notes

    @property
    def most(self) -> int:
        """How large an input and what is recorded may be for one task [bytes]."""
        most = self.options.merging.task_bytes or task_bytes(self.source.session)
        # a task takes about twice what it merges, and twice as much where rows are compared with a state
        return -(-most // 2) if self.state.merge.KEEPS_STATE else most

    def spec(self) -> SliceSpec:
        """Of the slice that comes of it; where other inputs come before, but for its offset."""
        options = self.options
        return SliceSpec.of(
            self.target, self.state.vocabulary, self.state.next_offset, options.system_time.epoch_ms,
            options.staging,
        )  # fmt: skip

    def rules(self, *, timed: bool = False) -> MergeRules:
        """How a worker merges it."""
        schema = slice_schema(self.target).serialize().to_pybytes()
        return MergeRules(
            self.state.merge, self.state.vocabulary, self._policies(), tuple(self.data.names), schema,
            timed=timed,
        )  # fmt: skip

    def _policies(self) -> strategies.Policies:
        options = self.options
        bound = None if options.merging.allow_future else options.latest_believed
        after = Duration(bound.epoch_ms - options.system_time.epoch_ms) if bound else None
        return strategies.Policies(
            options.event_time.epoch_ms,
            options.merging.duplicate_keys,
            options.merging.late_edits,
            None if bound is None else bound.epoch_ms,
            f"{bound} ({after} after the system time {options.system_time})",
        )

    # --- what is recorded ------------------------------------------------------------------------------

    def _recorded(
        self, rules: MergeRules, following: Sequence[InputMerge], *, taken_back: bool
    ) -> tuple[RecordedRows | None, tuple[str, ...]]:
        """The recorded rows to compare with, and which of their columns; None where there are none."""
        recorded, names = self._looked_at(following, taken_back=taken_back)
        sizes = [merge.source.size for merge in (self, *following)]
        small = all(size is not None and size <= LARGEST_INPUT for size in sizes)
        if recorded is not None and not self.state.merge.KEEPS_STATE and small and not taken_back:
            found = [self.relevant(rules, recorded)]
            found += [merge.relevant(merge.rules(), recorded) for merge in following]
            relevant = {piece for each in found for piece in each.slices}
            pieces = tuple(piece for piece in recorded.slices if piece in relevant)
            recorded = dataclasses.replace(recorded, slices=pieces)
        return recorded, names

    def _looked_at(
        self, following: Sequence[InputMerge], *, taken_back: bool = False
    ) -> tuple[RecordedRows | None, tuple[str, ...]]:
        state, vocabulary = self.state, self.state.vocabulary
        edits, last = self.options.merging.late_edits, [self, *following][-1]
        # every input has all columns of the dataset so far
        columns = strategies.columns_looked_at(state.merge, last.data.names, edits, taken_back=taken_back)
        if state.prev_offset is None or state.schema is None or not columns:
            return None, ()
        recorded = state.recorded()
        if state.merge.KEEPS_STATE:
            recorded = recorded.for_state(state.merge.primary_key)
        system = (vocabulary.offset_column, vocabulary.operation_type_column)
        return recorded, tuple(dict.fromkeys((*system, *columns)))

    def fitting(self, following: Sequence[InputMerge]) -> int:
        """How many inputs, from this one on, one task can merge one after the other; 0: this one alone."""
        recorded, names = self._looked_at(following)
        size = bytes_of(recorded, [self, *following][-1].target, names) if recorded else 0
        most, fit = self.most, 0
        for merge in (self, *following):
            source = merge.source
            size += source.size or 0
            if source.large or source.size is None or merge.source.reader is None or size > most:
                break
            fit += 1
        return min(fit, MOST_INPUTS)

    def relevant(self, rules: MergeRules, recorded: RecordedRows) -> RecordedRows:
        """The recorded rows without slices that have no key of this input."""

        def keys() -> pa.Table:
            read = self.source.reader
            batches = read() if read else run_job(self.source.session, self._given().toArrow).to_batches()
            return rules.read(batches)[0].rows.select(rules.strategy.primary_key)

        try:
            # slices in a store stay there
            return self.state.only_relevant(recorded, keys, index=files_of(self.source.session) is None)
        except Exception:  # noqa: BLE001 - the merge reads the same again, and says what is wrong with it
            return recorded

    # --- one task, or buckets --------------------------------------------------------------------------

    def _given(self) -> DataFrame:
        """The rows of the input: their number, all data columns, and how many times were too fine."""
        source = self.source
        columns = [
            col(f.name)
            if f.name in source.schema.names
            else F.lit(None).cast(physical_type(f.type)).alias(f.name)
            for f in self.data.fields
        ]
        finer = [col(f"{FINER}{name}") for name in source.finer]
        return source.frame.select(col(ROW_ID).alias(strategies.NUMBER), *columns, *finer)

    def _place(self, session: SparkSession) -> StoreFolder | None:
        files = files_of(session)
        return None if files is None else StoreFolder(files, self.state.keys("data"))

    def _in_one_task(
        self,
        rules: MergeRules,
        following: Sequence[InputMerge],
        recorded: RecordedRows | None,
        names: tuple[str, ...],
    ) -> tuple[list[Outcome], Callable[[int], int]]:
        source, session = self.source, self.source.session
        steps = [MergeStep(rules, self.spec(), source.reader)]
        steps += [MergeStep(merge.rules(), merge.spec(), merge.source.reader) for merge in following]
        fields = steps[-1].rules.fields(names)
        read = None if recorded is None else recorded_files(session, recorded, fields)
        given = self._given() if source.reader is None else None
        task = MergeTask(
            tuple(steps), read, self._place(session), RowCounter.of(session),
            () if given is None else tuple(given.columns),
        )  # fmt: skip

        def run(task: MergeTask) -> list[Outcome]:
            return run_in_task(session, given, task, short=source.short, file=source.file)

        def row_at(place: int) -> int:
            return run(dataclasses.replace(task, steps=task.steps[:1], row_at=place))[0].row

        return run(task), row_at

    def _by_buckets(
        self, rules: MergeRules, recorded: RecordedRows | None, names: tuple[str, ...], number: int
    ) -> tuple[Outcome, Callable[[int], int]]:
        source, merging, given, spec = self.source, self.options.merging, self._given(), self.spec()
        edits = recorded is not None and merging.late_edits is not LateEdits.IGNORE
        order = strategies.change_order(rules.strategy, rules.vocabulary, edits=edits)
        fields = tuple(f for f in self.target.fields if f.name in names)
        history = None if recorded is None else read_recorded(source.session, recorded, fields)
        looked_at = () if recorded is None else tuple(rules.fields(f.name for f in fields))
        buckets = Buckets(rules, self.target, given, history, looked_at, number)
        columns, layout = run_layout(spec, order)
        said: list[tuple[Counter[str], strategies.Fault | None]] = []

        def leave(into: str | StoreFolder) -> list[RunFacts]:
            try:
                with batches_by_rows(given.sparkSession) if source.short else contextlib.nullcontext():
                    counts, fault, runs = buckets.leave(into, layout, columns)
            except Exception as error:
                raise explain(error, file=source.file) from error
            said.append((counts, fault))
            return [] if fault is not None else runs

        most = merging.slice_bytes if source.large else _ONE_SLICE
        place = self._place(given.sparkSession)
        facts = write_slices(given.sparkSession, leave, spec, most, file=source.file, place=place)

        def number_of(row: int) -> int:
            # the rows of buckets know only what orders them
            return run_job(given.sparkSession, lambda: given.where(col(strategies.NUMBER) < row).count() + 1)

        def row_at(place: int) -> int:
            ordered = given.orderBy(*[col(name).asc_nulls_first() for name in order])
            rows = ordered.offset(place).limit(1).select(strategies.NUMBER)
            return number_of(run_job(given.sparkSession, rows.collect)[0][0])

        ((counts, fault),) = said
        if fault is not None:
            fault = dataclasses.replace(fault, row=number_of(fault.row), other=number_of(fault.other))
        return Outcome(counts, facts, fault), row_at

    # --- what was found --------------------------------------------------------------------------------

    def _notes(self, counts: Counter[str]) -> tuple[str, ...]:
        notes: list[str] = []
        if copies := counts["copies"]:
            notes.append(f"rows that are copies of others in every column: {copies:,}; each is recorded once")
        if others := counts["differing"]:
            which = self.options.merging.duplicate_keys.value
            notes.append(f"rows with a key of another row and other values: {others:,}; the {which} was kept")
        if timeless := counts["timeless"]:
            name = self.state.vocabulary.event_time_column
            note = f"rows without `{name}`, a part of the key: {timeless:,}; it is {self.options.event_time}"
            notes.append(note)
        for kind in ("finer:", "cut:"):
            found = {name.removeprefix(kind): n for name, n in counts.items() if name.startswith(kind)}
            notes += notes_on_cut_times(found)
        if self.source.counted is not None:
            notes += notes_on_cut_times(self.source.counted())
        return tuple(notes)

    def _refuse_fault(self, outcome: Outcome) -> None:
        file = self.source.file
        if (fault := outcome.fault) is None:
            return
        if fault.kind == strategies.FaultKind.FUTURE:
            raise IngestError(
                f"{file}: row {fault.row:,} {fault.message}",
                flag=ALLOW_FUTURE,
                setting="set ingest.maxFuture, or the source's `watermark: {maxFuture: …}`",
            )
        message = fault.message.replace(strategies.OTHER_ROW, f"{fault.other:,}")
        refused = BadInputError(message, file=file, row=fault.row, hint=fault.hint or None)
        key = [self.target.field(name) for name in self.state.merge.primary_key]
        # a required column that is null is named as such
        raise self._diagnose(refused) if any(f is not None and not f.optional for f in key) else refused

    def _diagnose(self, error: OdfchainError) -> OdfchainError:
        # the input's own fault is named by its row, other errors are passed on
        required = frozenset(f.name for f in self.target.fields if not f.optional)

        def search() -> OdfchainError | None:
            given = {self.state.vocabulary.event_time_column}
            return input_frames.first_bad_row(self.source, required - given)

        try:
            cause = run_job(self.source.session, search)
        except Exception as second:  # noqa: BLE001 - the first error is what counts
            return explain(second, file=self.source.file) if error.exit_code == 1 else error
        return cause or error

    def _guard(self, ran: Outcome) -> None:
        """Refuse a snapshot that loses most rows, which is probably an accident."""
        recorded, most = ran.counts["recorded"], self.options.merging.max_retract_ratio
        where = f"{self.source.file}: " if self.source.file else ""
        if not isinstance(self.state.merge, src.MergeStrategySnapshot):
            return
        if ran.counts["rows"] == 0:
            if self.options.merging.allow_empty:
                return
            raise IngestError(
                f"{where}the snapshot is empty: it would retract "
                f"{'all' if self.state.prev_offset is None else f'all {recorded:,}'} recorded rows",
                flag="--allow-empty",
            )
        retracted = sum(each.ops.get("1", 0) for each in ran.facts)
        if recorded and retracted > most * recorded:
            raise IngestError(
                f"{where}the snapshot would retract {retracted:,} of {recorded:,} recorded rows "
                f"({retracted / recorded:.0%}, at most {most:.0%} is allowed)",
                flag="--allow-retract",
                hint="a snapshot is the whole present state: new and changed rows alone go in by "
                "`odfchain correct NAME FILE --allow-new`",
            )

    # Changelog streams: a row that takes another back must find it in force, by the rule of check 10
    # (`odfchain.slices.state`). It has the event time of that row, and means it where it has none
    # (RFC-052).

    def _refuse_in_vain(self, ran: Outcome, row_at: Callable[[int], int] | None) -> tuple[str, ...]:
        # only rows in force are taken back
        state, facts = self.state, ran.facts
        count = sum(each.ops.get(str(code), 0) for each in facts for code in TAKES_BACK)
        if not count:
            return ()
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
            row_at = row_at or self.run()[1]
            raise BadInputError(
                "takes back (-R, 1, or -C, 2) values that no row in force has",
                file=self.source.file,
                row=row_at(int(wrong[0]) - state.next_offset),
                hint="write the values and the event time that were recorded; where no event time is written,"
                " it is that of the newest row with the same values",
            )
        return ()


# Several are merged at a time, and Java holds their rows as well.
_BUCKETS_OF_A_TASK, _LEAST_BUCKETS, _MOST_BUCKETS = 4, 4, 10_000
_ONE_SLICE = 1 << 62
MOST_INPUTS = 64
"""So many at most are merged by one task."""
