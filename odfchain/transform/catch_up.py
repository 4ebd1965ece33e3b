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
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from odfchain import errors
from odfchain.chain.chain import link_blocks
from odfchain.chain.index import DATA_EVENTS
from odfchain.limits import AUDIT
from odfchain.odf.arrow_schema import schema_event
from odfchain.odf.enums import TAKES_BACK, DatasetKind, OperationType
from odfchain.odf.events import MetadataEvent, Seed
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import is_rebuilt, rebuilt, unmarked
from odfchain.progress import Progress, SideBySide, Silent
from odfchain.slices.reader import read_footer
from odfchain.slices.state import SliceFile, taken_back_in_vain
from odfchain.slices.writer import notes_on_cut_times
from odfchain.text import first_line
from odfchain.transform.engines import InProcessEngine
from odfchain.transform.execute import Engines, ExecutedStep, JobThreads, StepRun
from odfchain.transform.planner import PlannedStep, UpToDate, plan_next
from odfchain.workspace.commit import CommitCheck, StagedFile, commit, on_the_newest_head
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import PullOptions, maybe_time

if TYPE_CHECKING:
    from odfchain.workspace.config import WorkspaceConfig

# Resetting a derivative dataset: a new chain on the same Seed from the events that people wrote. Executions
# and schemas are results of the query and left out: a schema may only gain optional columns, and the new
# query may have another one.
# Events before the first execution get new blocks, too: a head that only went back would look to a mirror
# like one that lags behind (specification "Metadata Chain").

_COMPUTED = (*DATA_EVENTS, "SetDataSchema")


def reset_to_metadata(dataset: DatasetFiles, *, system_time: Timestamp | None = None) -> Multihash:
    """The head of the rebuilt chain: all events but executions and schemas, in their order; or all as it was.

    Blocks, data and checkpoints of the old chain stay in the stores.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is not DatasetKind.DERIVATIVE:
        raise errors.TransformError(
            f"{dataset.alias}: a root dataset cannot be reset to its metadata: nothing brings its data back"
        )
    kept: list[MetadataEvent] = []
    seed, computed = state.head, False
    for name, block in dataset.chain.walk(state.head):
        if isinstance(block.event, Seed):
            seed = name
        elif block.event.KIND in _COMPUTED:
            computed = True
        else:
            kept.append(block.event)
    # nothing was computed yet: there is nothing to reset
    if not computed:
        return state.head
    if not kept:
        dataset.set_head(seed, expected=state.head)
        return seed
    rebuilt = link_blocks(
        kept[::-1], prev=seed, next_sequence_number=1, system_time=state.next_system_time(system_time)
    )
    dataset.chain.check_all(rebuilt, expected_head=seed)
    dataset.chain.publish(rebuilt, expected_head=state.head)
    return rebuilt[-1].hash


Done = Sequence[ExecutedStep]

# Rule of check 10 at the commit. Rows from other engines, and operations that a query sets itself (`SELECT
# op, …`), are compared with the slices so far (specification "Retractions and Corrections"; RFC-020).


def _check_taken_back(dataset: DatasetFiles, state: DatasetState, done: Done, progress: Progress) -> None:
    # new rows take back only rows in force, of `dataset` or earlier ones of their own; the engine vouches for
    # some, and replays leave it to `verify`
    new = [
        (SliceFile(each.data_path, state.vocabulary, each.slice.offset_interval), each.facts.ops)
        for each in done
        if each.slice is not None
        and each.facts is not None
        and not each.executed.takes_back_own
        and each.step.output is None
    ]
    count = sum(operations.get(str(code), 0) for _, operations in new for code in TAKES_BACK)
    if not count:
        return
    if count > AUDIT.retractions:  # as in a verification
        progress.note(f"{count:,} rows are taken back; whether they were there is not checked")
        return
    progress.phase("Comparing with what was recorded")
    slices = []
    for ref in state.slices():
        try:
            recorded = dataset.data.verified_path(ref.slice.physical_hash)
        except errors.ObjectNotFoundError as error:
            error.hint = f"what the step takes back must have been there: `odfchain fetch {dataset.alias}`"
            raise
        slices.append(SliceFile(recorded, state.vocabulary, ref.slice.offset_interval))
    asked = [item for item, _ in new]
    try:
        wrong = taken_back_in_vain([*slices, *asked], asked)
    except (pa.ArrowException, OSError, ValueError, KeyError, errors.BadInputError) as error:
        line = first_line(error)
        message = f"what the step takes back cannot be compared with the slices: {line}"
        raise errors.EngineError(message) from error
    if len(wrong):
        raise _refusal(int(wrong[0]), len(wrong), ours=all(each.executed.facts for each in done))


def _refusal(offset: int, count: int, *, ours: bool) -> errors.OdfchainError:
    more = f" ({count:,} such rows)" if count > 1 else ""
    if ours:
        return errors.QueryError(
            f"the result takes back at offset {offset:,} values that no row in force has{more}",
            hint="a row and what takes it back must come out equal: let the query keep both, and "
            "select nothing that differs between them (offset, system time); or leave `op` out",
        )
    return errors.EngineError(
        f"the engine broke its contract: the row at offset {offset:,} takes back values that no row in force "
        f"has{more}; nothing was recorded",
        hint="an engine that reads its input in another order does that: end the query with ORDER BY offset, "
        "or let this engine execute it (engine: odfchain-spark)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Result of a step, or of several that were committed together."""

    input_rows: int
    operations: dict[str, int] = field(default_factory=dict)
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
    blocks: int = 0
    watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformOutcome:
    """Result of a run; `head` is the old one when there was nothing new."""

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
    asked: PullOptions,
    config: WorkspaceConfig,
    *,
    check: CommitCheck | None = None,
) -> TransformOutcome:
    """Execute and commit steps until there is nothing new in the inputs; `check` judges each."""
    retries = config.ingest.retries if asked.retries is None else asked.retries
    old_head = DatasetState.read(dataset.chain).head
    steps: list[StepOutcome] = []
    attempt = functools.partial(_next, dataset, inputs, engines, asked, config, check)
    while not isinstance(found := on_the_newest_head(attempt, retries, asked.progress, "step"), UpToDate):
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
    asked: PullOptions,
    config: WorkspaceConfig,
    check: CommitCheck | None,
) -> tuple[StepOutcome, bool] | UpToDate:
    """(what the next step brought, whether another one follows)."""
    progress, given_time = asked.progress, maybe_time(asked.system_time)
    state = DatasetState.read(dataset.chain)
    try:
        step = plan_next(dataset, state, inputs)
    except errors.DivergedInputError as error:
        if not asked.reset_derivatives_on_diverged_input:
            raise
        progress.note(f"{error.message}; what was computed is dropped and computed anew")
        reset_to_metadata(dataset, system_time=given_time)
        state = DatasetState.read(dataset.chain)
        step = plan_next(dataset, state, inputs)
    if isinstance(step, UpToDate):
        return step
    system_time = state.next_system_time(given_time)
    with dataset.staging() as folder:
        engine = engines(unmarked(step.transform.transform))
        run = StepRun(dataset, engine, folder, system_time, progress, config.system_columns_of(dataset))
        done = _executed_steps(run, step, config.slice.max_bytes)
        _check_taken_back(dataset, state, done, progress)
        events = _events(state, done)
        hashes: list[Multihash] = []
        if events:
            progress.phase("Committing")
            hashes = commit(
                dataset, state, events, _slices(done), checkpoints=_checkpoints(done),
                system_time=system_time, check=check,
            )  # fmt: skip
    return _outcome(done, len(hashes)), step.more


def _slices(done: Done) -> list[StagedFile]:
    return [
        StagedFile(
            each.data_path,
            each.slice.physical_hash,
            each.facts.footer if each.facts else None,
            each.executed.put_since,
            put=bool(each.executed.put_since),
        )
        for each in done
        if each.slice is not None
    ]


def _checkpoints(done: Done) -> list[StagedFile]:
    return [
        StagedFile(each.checkpoint_path, each.checkpoint.physical_hash)
        for each in done
        if each.checkpoint is not None and each.checkpoint_path is not None
    ]


def _outcome(done: Done, blocks: int) -> StepOutcome:
    operations: Counter[str] = Counter()
    for each in done:
        if each.facts and each.slice:
            operations += Counter(
                {OperationType.from_code(int(code)).value: n for code, n in each.facts.ops.items()}
            )
    intervals = [item.interval for each in done for item in each.step.inputs if item.interval is not None]
    return StepOutcome(
        input_rows=sum(interval.count for interval in intervals),
        operations=dict(operations),
        blocks=blocks,
        watermark=done[-1].watermark,
    )


def _events(state: DatasetState, done: Done) -> list[MetadataEvent]:
    events: list[MetadataEvent] = []
    schema = done[0].step.schema
    for each in done:
        step, version = each.step, each.executed.version
        transform = step.transform.transform
        unnamed = version is not None and unmarked(transform).version is None
        if unnamed:
            named = dataclasses.replace(transform, version=version)
            transform = rebuilt(named) if is_rebuilt(transform) else named
        if each.schema is not None and each.schema != schema:
            events.append(schema_event(each.schema, odf_form=state.odf_schema))
            schema = each.schema
        # a step that brought nothing goes along with the next one: a block must say something
        if step.output is not None and not _changes(each):
            # a rebuild is done of which nothing came: the transform without the mark says so
            events.append(dataclasses.replace(step.transform, transform=unmarked(transform)))
        elif step.output is not None or each.slice or each.checkpoint_path or each.watermark is not None:
            if unnamed:  # a replay asks for the engine that made the step
                events.append(dataclasses.replace(step.transform, transform=transform))
            events.append(each.event())
    return events


def _changes(done: ExecutedStep) -> bool:
    # true if the step moves the dataset or its inputs
    return (
        done.slice is not None
        or done.checkpoint != done.step.prev_checkpoint
        or done.watermark != done.step.prev_watermark
        or any(item.event.new_block_hash is not None for item in done.step.inputs)
    )


# A large step is cut into several that are computed side by side (RFC-049):
#
#     pieces    blocks of the input with so many bytes                        footers are read
#     rows      how many records come of each piece                           a query, side by side
#     steps     pieces whose records fit into one slice
#     execute   each step as it will be replayed, offsets known beforehand    side by side
#
# Only row-by-row queries over one input are cut, so the result is the same. Where a step ends depends on the
# chain, the footers, the counts and the limit alone, so it can be replayed.

T = TypeVar("T")

_MOST_AT_ONCE = 64
"""Threads that wait for Spark [count]."""


def _executed_steps(run: StepRun, step: PlannedStep, max_bytes: int) -> Done:
    """The step, or several in its place whose slices have about `max_bytes` of values, executed."""
    steps = _cut(run, step, max_bytes) if max_bytes else [step]
    if len(steps) == 1:
        return [run.execute(step, to_commit=True)]
    done = _side_by_side(run, "Computing", steps, lambda part, each: part.execute(each, to_commit=True))
    known = step.prev_watermark
    settled = []
    for executed, following in zip(done, [*steps[1:], None], strict=True):
        new = executed.slice
        if new is None or (following is not None and following.next_offset != new.offset_interval.end + 1):
            message = f"{run.dataset.alias}: a step brought other records than were counted before it"
            hint = "this is a fault of odfchain; please report it. Meanwhile `slice.maxBytes: 0` avoids it"
            raise errors.EngineError(message, hint=hint)
        known = max((mark for mark in (known, executed.watermark) if mark is not None), default=None)
        settled.append(dataclasses.replace(executed, watermark=known))
    finer: Counter[str] = Counter()
    for executed in done:
        finer += Counter(executed.facts.finer if executed.facts is not None else {})
    for note in notes_on_cut_times(finer):
        run.progress.note(note)
    return settled


@dataclass(frozen=True, slots=True)
class _Piece:
    """Blocks of an input up to one with data."""

    end: Multihash
    rows: int
    size: int
    """Of its records, not compressed [bytes]."""


def _cut(run: StepRun, step: PlannedStep, max_bytes: int) -> list[PlannedStep]:
    pieces = _pieces(step, max_bytes)
    if len(pieces) < 2 or not isinstance(run.engine, InProcessEngine):
        return [step]
    planned = step.cut_after(run.dataset, [piece.end for piece in pieces[:-1]])
    engine, notes = run.engine, dict[str, None]()

    def rows_of(part: StepRun, each: PlannedStep) -> int | None:
        return engine.rows_of(part.request(each), progress=part.progress)

    counts = [rows for rows in _side_by_side(run, "Counting", planned, rows_of, notes) if rows is not None]
    for note in notes:
        run.progress.note(note)
    if len(counts) < len(pieces):
        return [step]
    ends, wanted = zip(*_fitting(pieces, counts, max_bytes), strict=True)
    if len(ends) == 1:
        return [step]
    offsets = itertools.accumulate(wanted, initial=step.next_offset)
    parts = zip(step.cut_after(run.dataset, ends[:-1]), offsets, strict=False)
    return [dataclasses.replace(each, prev_offset=offset - 1 if offset else None) for each, offset in parts]


def _fitting(pieces: Sequence[_Piece], counts: Sequence[int], max_bytes: int) -> list[tuple[Multihash, int]]:
    # a record counts as much as a row that is read; a piece without records goes with another one
    found: list[tuple[Multihash, int]] = []
    size = 0.0
    for piece, rows in zip(pieces, counts, strict=True):
        more = piece.size * rows / piece.rows
        if found and not (size and more and size + more > max_bytes):
            found[-1] = piece.end, found[-1][1] + rows
            size += more
        else:
            found.append((piece.end, rows))
            size = more
    return found


def _pieces(step: PlannedStep, max_bytes: int) -> list[_Piece]:
    # None where the step cannot be cut
    if len(step.inputs) != 1 or step.output is not None or step.prev_checkpoint is not None:
        return []
    (item,) = step.inputs
    if len(item.slices) < 2:
        return []
    found: list[_Piece] = []
    for name, block in item.blocks:
        if (data := block.new_data) is None:
            continue
        footer, _ = read_footer(item.dataset.data.verified_path(data.physical_hash))
        size = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
        rows = data.offset_interval.count
        if found and found[-1].size + size <= max_bytes:
            rows, size = found[-1].rows + rows, found.pop().size + size
        found.append(_Piece(name, rows, size))
    return found


class _Noted(Silent):
    """Keeps notes, each once."""

    def __init__(self, notes: dict[str, None]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        self._notes[text] = None


def _side_by_side(
    run: StepRun,
    phase: str,
    steps: Sequence[PlannedStep],
    work: Callable[[StepRun, PlannedStep], T],
    notes: dict[str, None] | None = None,
) -> list[T]:
    # each step has a folder of its own; results keep the order
    run.progress.phase(phase, len(steps))
    together = SideBySide(run.progress, phase)
    tasks = run.engine.tasks() if isinstance(run.engine, InProcessEngine) else 1
    with JobThreads(min(len(steps), tasks, _MOST_AT_ONCE)) as threads:
        waiting = []
        for number, each in enumerate(steps):
            folder = run.folder / f"{phase.lower()}-{number}"
            folder.mkdir()
            progress = together.part() if notes is None else _Noted(notes)
            part = dataclasses.replace(run, folder=folder, progress=progress)
            waiting.append(threads.submit(work, part, each))
        found = []
        for future in waiting:
            found.append(future.result())
            run.progress.advance()
    return found
