"""Bringing a derivative dataset up to date: steps planned, executed, checked and committed one by one.

    until there is nothing new:
        plan      what is new in the inputs, cut where a schema changes
        execute   the engine writes a slice and a checkpoint              (staged)
        check     the slice is what the engine says, in the declared form
        commit    slice, checkpoint and block, one move of the head

Each step is one transaction: what was committed stays when a later one fails. Source: specification
"Derivative Transformations", "ExecuteTransform"; RFC-019.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.codec.raw_arrow import schema_event
from odfchain.digest.physical import hash_file
from odfchain.engine.interface import Executed, TransformEngine
from odfchain.errors import DivergedInputError, RefConflictError
from odfchain.ids.multihash import Multihash
from odfchain.model.data_schema import DataSchema
from odfchain.model.enums import OperationType
from odfchain.model.events import (
    Checkpoint,
    DataSlice,
    ExecuteTransform,
    MetadataEvent,
    OffsetInterval,
)
from odfchain.model.rebuild import unmarked
from odfchain.model.sources import Transform
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import CommitCheck, StagedFile, commit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.system_columns import SystemColumns
from odfchain.slices.writer import SliceFacts
from odfchain.transform.planner import PlannedStep, UpToDate, plan_next
from odfchain.transform.request import build_request
from odfchain.transform.start_over import reset_to_metadata

Engines = Callable[[Transform], TransformEngine]
"""Finds the engine that executes a transform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformOptions:
    """What a user may say about a run."""

    system_time: Timestamp | None = None
    reset_on_diverged_input: bool = False
    """Drop what was computed, and compute it anew, when an input was rewritten."""
    retries: int = 0
    """Runs repeated when another writer was faster."""
    timeout: float | None = None
    """Longest time for one step [s]; None is what the settings say."""
    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    """Types of offsets and operations, where the dataset has no schema yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one step brought."""

    input_rows: int
    operations: dict[str, int] = field(default_factory=dict)
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
    blocks: int = 0
    watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformOutcome:
    """What a run committed; `head` is the old one when there was nothing new."""

    steps: tuple[StepOutcome, ...]
    old_head: Multihash
    head: Multihash
    watermark: Timestamp | None
    reason: str | None = None
    """Why there was nothing to do, where that is not obvious."""

    @property
    def blocks(self) -> int:
        """Blocks committed."""
        return sum(step.blocks for step in self.steps)


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step whose files are staged and checked."""

    schema: DataSchema | None
    """What the output is declared as from now on; None while no engine has said."""
    slice: DataSlice | None
    facts: SliceFacts | None
    checkpoint: Checkpoint | None
    """The one that the next step begins with: a new one, or that of the step before."""
    watermark: Timestamp | None
    data_path: Path
    checkpoint_path: Path | None
    """The file of a new checkpoint."""
    takes_back_own: bool
    """As in `Executed`."""
    made_here: bool
    """Whether the engine of this process made it."""

    def event(self, step: PlannedStep) -> ExecuteTransform:
        """What the block of the step records."""
        return ExecuteTransform(
            query_inputs=tuple(item.event for item in step.inputs),
            prev_checkpoint=step.prev_checkpoint.physical_hash if step.prev_checkpoint else None,
            prev_offset=step.prev_offset,
            new_data=self.slice,
            new_checkpoint=self.checkpoint,
            new_watermark=self.watermark,
        )


def execute_step(
    step: PlannedStep,
    dataset: DatasetFiles,
    engine: TransformEngine,
    folder: Path,
    system_time: Timestamp,
    progress: Progress = SILENT,
    system_columns: SystemColumns = SystemColumns.SPECIFICATION,
) -> ExecutedStep:
    """Execute a step in `folder` and check what the engine made; nothing is committed.

    Raises:
        QueryError: the query is at fault.
        BadInputError, CodecError, EngineError, StoreError: an input, the checkpoint or the engine is.
    """
    data, checkpoint = folder / "data", folder / "checkpoint"
    request = build_request(
        step, dataset, folder, system_time=system_time, new_data_path=data, new_checkpoint_path=checkpoint
    )
    wanted = step.schema
    if wanted is None and system_columns is not SystemColumns.SPECIFICATION:
        wanted = DataSchema(fields=system_columns.numbers(step.vocabulary))  # the rest is the result's
    executed = engine.execute(request, schema=wanted, progress=progress)
    progress.phase("Checking")
    facts, schema = _checked(step, executed, data, folder, system_time, system_columns)
    made_here = facts is not None and facts is executed.facts
    if step.output is not None and schema is not None:
        progress.phase("Comparing with the output so far")
        facts = _difference(step, dataset, facts, schema, folder, system_time)
    new_data = None
    if facts is not None:
        data = Path(facts.path)
        new_data = facts.slice_at(step.next_offset)
    kept, written = (step.read_checkpoint if executed.keeps_checkpoint else None), None
    if checkpoint.exists():
        name, size = hash_file(checkpoint)
        kept, written = Checkpoint(physical_hash=name, size=size), checkpoint
    known = [w for w in (executed.watermark, step.prev_watermark) if w is not None]
    mark = max(known, default=None)
    return ExecutedStep(
        schema,
        new_data,
        facts,
        kept,
        mark,
        data,
        written,
        executed.takes_back_own or step.output is not None,
        made_here,
    )


def _checked(
    step: PlannedStep,
    executed: Executed,
    data: Path,
    folder: Path,
    system_time: Timestamp,
    system_columns: SystemColumns,
) -> tuple[SliceFacts | None, DataSchema | None]:
    """(hashes and counts of the slice in its declared form, the schema that it declares)."""
    from odfchain.engine.check import check_output, measure, rewrite

    interval, vocabulary = executed.offset_interval, step.vocabulary
    if interval is None and not data.exists():
        return None, step.schema
    grown = _grown(step, executed, data)
    found = check_output(
        data, vocabulary=vocabulary, schema=grown, interval=interval, system_time=system_time
    )
    schema = grown or found
    if grown is None and system_columns is not SystemColumns.SPECIFICATION:
        schema = system_columns.of(found, vocabulary)  # engines elsewhere choose types of their own
    if interval is None:
        return None, schema
    if executed.facts is not None:
        return executed.facts, schema
    if found == schema:
        return measure(data, vocabulary), schema
    return rewrite(data, schema, vocabulary, interval.start, system_time.epoch_ms, folder), schema


def _difference(
    step: PlannedStep,
    dataset: DatasetFiles,
    facts: SliceFacts | None,
    schema: DataSchema,
    folder: Path,
    system_time: Timestamp,
) -> SliceFacts | None:
    """What turns the output so far into what the query made of everything."""
    from odfchain.slices.rows_in_force import SliceFile
    from odfchain.slices.writer import SliceSpec
    from odfchain.transform.rebuilt import write_difference

    names = step.vocabulary
    earlier = [
        SliceFile(dataset.data.verified_path(item.physical_hash), names, item.offset_interval)
        for item in step.output or ()
    ]
    made = None
    if facts is not None:
        interval = OffsetInterval(start=step.next_offset, end=step.next_offset + facts.rows - 1)
        made = SliceFile(Path(facts.path), names, interval)
    spec = SliceSpec.of(schema, names, step.next_offset, system_time.epoch_ms, folder)
    return write_difference(earlier, made, schema, spec)


def _grown(step: PlannedStep, executed: Executed, data: Path) -> DataSchema | None:
    """The schema declared so far, with the columns that this engine has added at its end."""
    from odfchain.codec.arrow import from_arrow
    from odfchain.slices.reader import open_parquet

    declared = step.schema
    if declared is None or executed.facts is None:
        return declared
    with open_parquet(data) as file:
        found = from_arrow(file.schema_arrow.remove_metadata())
    return DataSchema(fields=declared.fields + found.fields[len(declared.fields) :], extra=declared.extra)


def run_transform(
    dataset: DatasetFiles,
    inputs: Sequence[DatasetFiles],
    engines: Engines,
    options: TransformOptions,
    progress: Progress = SILENT,
    *,
    check: CommitCheck | None = None,
) -> TransformOutcome:
    """Execute and commit steps until there is nothing new in the inputs; `check` judges each.

    Raises:
        QueryError, TransformError, BadInputError, EngineError: the dataset is as it was, or as the last step
            that was committed left it.
        DivergedInputError: an input was rewritten, and a reset was not asked for.
        RefConflictError: other writers were faster in every attempt.
        StoreError: a file cannot be read or written.
    """
    old_head = DatasetState.read(dataset.chain).head
    steps: list[StepOutcome] = []
    attempts = 0
    while True:
        try:
            found = _next(dataset, inputs, engines, options, progress, check)
        except RefConflictError:
            attempts += 1
            if attempts > options.retries:
                raise
            progress.note("another writer was faster; repeating the step on the new head")
            continue
        if isinstance(found, UpToDate):
            break
        outcome, more = found
        steps.append(outcome)
        if not more or not outcome.blocks:
            found = UpToDate()
            break
    state = DatasetState.read(dataset.chain)
    return TransformOutcome(
        steps=tuple(steps), old_head=old_head, head=state.head, watermark=state.watermark, reason=found.reason
    )


def _next(
    dataset: DatasetFiles,
    inputs: Sequence[DatasetFiles],
    engines: Engines,
    options: TransformOptions,
    progress: Progress,
    check: CommitCheck | None,
) -> tuple[StepOutcome, bool] | UpToDate:
    """(what the next step brought, whether another one follows)."""
    state = DatasetState.read(dataset.chain)
    try:
        step = plan_next(dataset, state, inputs)
    except DivergedInputError as error:
        if not options.reset_on_diverged_input:
            raise
        progress.note(f"{error.message}; what was computed is dropped and computed anew")
        reset_to_metadata(dataset, system_time=options.system_time)
        state = DatasetState.read(dataset.chain)
        step = plan_next(dataset, state, inputs)
    if isinstance(step, UpToDate):
        return step
    system_time = state.next_system_time(options.system_time)
    with dataset.staging() as folder:
        engine = engines(unmarked(step.transform.transform))
        executed = execute_step(step, dataset, engine, folder, system_time, progress, options.system_columns)
        _check_taken_back(dataset, state, executed, progress)
        events = _events(step, state, executed)
        hashes: list[Multihash] = []
        if events:
            progress.phase("Committing")
            footer = executed.facts.footer if executed.facts else None
            made = executed.slice and StagedFile(executed.data_path, executed.slice.physical_hash, footer)
            slices = [made] if made else []
            checkpoints = (
                [StagedFile(executed.checkpoint_path, executed.checkpoint.physical_hash)]
                if executed.checkpoint and executed.checkpoint_path
                else []
            )
            hashes = commit(
                dataset, state, events, slices, checkpoints=checkpoints, system_time=system_time, check=check
            )
    counts = executed.facts.ops if executed.facts and executed.slice else {}
    outcome = StepOutcome(
        input_rows=sum(item.interval.count for item in step.inputs if item.interval is not None),
        operations={OperationType.from_code(int(code)).value: n for code, n in counts.items()},
        blocks=len(hashes),
        watermark=executed.watermark,
    )
    return outcome, step.more


def _check_taken_back(
    dataset: DatasetFiles, state: DatasetState, executed: ExecutedStep, progress: Progress
) -> None:
    """The rule of check 10 for what the engine does not vouch for; a replay leaves it to the verification."""
    if executed.slice is None or executed.facts is None or executed.takes_back_own:
        return
    from odfchain.transform.taken_back import check_taken_back

    check_taken_back(
        dataset, state, executed.slice, executed.data_path, executed.facts.ops,
        ours=executed.made_here, progress=progress,
    )  # fmt: skip


def _events(step: PlannedStep, state: DatasetState, executed: ExecutedStep) -> list[MetadataEvent]:
    events: list[MetadataEvent] = []
    if executed.schema is not None and executed.schema != step.schema:
        events.append(schema_event(executed.schema, odf_form=state.odf_schema))
    # a step that brought nothing goes along with the next one: a block must say something
    if step.output is not None and not _changes(step, executed):
        # a rebuild is done of which nothing came: the transform without the mark says so
        events.append(dataclasses.replace(step.transform, transform=unmarked(step.transform.transform)))
    elif (
        step.output is not None
        or executed.slice
        or executed.checkpoint_path
        or executed.watermark is not None
    ):
        events.append(executed.event(step))
    return events


def _changes(step: PlannedStep, executed: ExecutedStep) -> bool:
    """Whether a step leaves the dataset or its inputs elsewhere than the one before it."""
    return (
        executed.slice is not None
        or executed.checkpoint != step.prev_checkpoint
        or executed.watermark != step.prev_watermark
        or any(item.event.new_block_hash is not None for item in step.inputs)
    )
