"""Bringing a derivative dataset up to date: steps planned, executed, checked and committed one by one.

    until there is nothing new:
        plan      what is new in the inputs, cut where a schema changes
        execute   one step, or several side by side where much is new     (staged)
        commit    slices, checkpoints and blocks, one move of the head

Each commit is one transaction: what was committed stays when a later one fails. Source: specification
"Derivative Transformations", "ExecuteTransform"; RFC-019, RFC-049.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from odfchain.codec.raw_arrow import schema_event
from odfchain.errors import DivergedInputError, RefConflictError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import OperationType
from odfchain.model.events import MetadataEvent
from odfchain.model.rebuild import unmarked, with_version
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import CommitCheck, StagedFile, commit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.system_columns import SystemColumns
from odfchain.transform.execute import Engines, ExecutedStep
from odfchain.transform.planner import PlannedStep, UpToDate, plan_next
from odfchain.transform.several_steps import StepRun, executed_steps
from odfchain.transform.start_over import reset_to_metadata
from odfchain.transform.taken_back import NewSlice


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
    slice_bytes: int = 0
    """A step that reads more may become several, each with a slice of about so many bytes; 0: always one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step brought, or several that were committed together."""

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


def run_transform(
    dataset: DatasetFiles,
    inputs: Sequence[DatasetFiles],
    engines: Engines,
    options: TransformOptions,
    progress: Progress = SILENT,
    *,
    check: CommitCheck | None = None,
) -> TransformOutcome:
    """Execute and commit steps until there is nothing new in the inputs; `check` judges each."""
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
        run = StepRun(dataset, engine, folder, system_time, options.system_columns, progress)
        done = executed_steps(run, step, options.slice_bytes)
        _check_taken_back(dataset, state, [executed for _, executed in done], progress)
        events = _events(state, done)
        hashes: list[Multihash] = []
        if events:
            progress.phase("Committing")
            hashes = commit(
                dataset, state, events, _slices(done), checkpoints=_checkpoints(done),
                system_time=system_time, check=check,
            )  # fmt: skip
    return _outcome(done, len(hashes)), step.more


Done = Sequence[tuple[PlannedStep, ExecutedStep]]


def _slices(done: Done) -> list[StagedFile]:
    return [
        StagedFile(
            each.data_path,
            each.slice.physical_hash,
            each.facts.footer if each.facts else None,
            each.put_since,
            put=bool(each.put_since),
        )
        for _, each in done
        if each.slice is not None
    ]


def _checkpoints(done: Done) -> list[StagedFile]:
    return [
        StagedFile(each.checkpoint_path, each.checkpoint.physical_hash)
        for _, each in done
        if each.checkpoint is not None and each.checkpoint_path is not None
    ]


def _outcome(done: Done, blocks: int) -> StepOutcome:
    operations: Counter[str] = Counter()
    for _, executed in done:
        if executed.facts and executed.slice:
            operations += Counter(
                {OperationType.from_code(int(code)).value: n for code, n in executed.facts.ops.items()}
            )
    intervals = [item.interval for step, _ in done for item in step.inputs if item.interval is not None]
    return StepOutcome(
        input_rows=sum(interval.count for interval in intervals),
        operations=dict(operations),
        blocks=blocks,
        watermark=done[-1][1].watermark,
    )


def _check_taken_back(
    dataset: DatasetFiles, state: DatasetState, done: Sequence[ExecutedStep], progress: Progress
) -> None:
    """The rule of check 10 for what the engine does not vouch for; a replay leaves it to the verification."""
    new = [
        NewSlice(each.slice, each.data_path, each.facts.ops)
        for each in done
        if each.slice is not None and each.facts is not None and not each.takes_back_own
    ]
    if new:
        from odfchain.transform.taken_back import check_taken_back

        ours = all(each.made_here for each in done)
        check_taken_back(dataset, state, new, ours=ours, progress=progress)


def _events(state: DatasetState, done: Done) -> list[MetadataEvent]:
    events: list[MetadataEvent] = []
    schema = done[0][0].schema
    for step, executed in done:
        transform = step.transform.transform
        unnamed = executed.version is not None and unmarked(transform).version is None
        if executed.version is not None and unnamed:
            transform = with_version(transform, executed.version)
        if executed.schema is not None and executed.schema != schema:
            events.append(schema_event(executed.schema, odf_form=state.odf_schema))
            schema = executed.schema
        # a step that brought nothing goes along with the next one: a block must say something
        if step.output is not None and not _changes(step, executed):
            # a rebuild is done of which nothing came: the transform without the mark says so
            events.append(dataclasses.replace(step.transform, transform=unmarked(transform)))
        elif (
            step.output is not None
            or executed.slice
            or executed.checkpoint_path
            or executed.watermark is not None
        ):
            if unnamed:  # whoever replays the step asks for what made it
                events.append(dataclasses.replace(step.transform, transform=transform))
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
