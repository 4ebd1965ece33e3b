"""Replaying a derivative dataset: every transaction is computed again and must give what is recorded.

A transaction needs its recorded inputs and the recorded checkpoint before it, not the result of replaying the
one before it. So they run side by side, and a fault in one does not accuse those that follow.

    plan      query, vocabulary, schema and input blocks as of the block      (planner)
    execute   by the engine version that the transform names, in staging      (nothing is committed)
    compare   data or none, offsets, records in their order, watermark        (faults)
              bytes of the checkpoint                                         (notes)

A transaction is at fault when it contradicts its inputs or its replay. One that cannot be replayed here, for
want of an input, a file or the engine's version, is unchecked. Source: specification "Dataset Validation";
RFC-019.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain import errors
from odfchain.audit.chain_checks import Run, hash_at
from odfchain.audit.input_claims import Find, first_difference, missing_input
from odfchain.audit.lineage import input_aliases
from odfchain.audit.report import BLOCKS, CHECKPOINTS, HEAD, INPUTS, LINKS, OF_ENGINES, REPLAY, Replay, Report
from odfchain.chain.chain import HashedBlock
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import ExecuteTransform, OffsetInterval
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import unmarked
from odfchain.progress import Progress, SideBySide
from odfchain.slices.reader import hash_parquet
from odfchain.transform.engines import address_of, rules_of
from odfchain.transform.execute import Engines, ExecutedStep, JobThreads, StepRun
from odfchain.transform.planner import RecordedStep, plan_recorded
from odfchain.workspace.config import TransformConfig
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

if TYPE_CHECKING:
    from odfchain.transform.engines import TransformEngine


_CHAIN_CHECKS = frozenset({HEAD, BLOCKS, LINKS})


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of replaying one transaction."""

    fault: str | None = None
    # The check that found the fault.
    check: int = REPLAY
    unchecked: str | None = None
    notes: tuple[str, ...] = ()
    # The engine; None when nothing was computed.
    engine: str | None = None
    # The recorded checkpoint, if the same came out again.
    checkpoint: Multihash | None = None


def replay_dataset(run: Run, after: int, find: Find, engines: ReplayEngines, *, jobs: int = 2) -> None:
    """Add to a dataset's report what replaying its transactions after a block shows; `jobs` run side by side.

    A root dataset has nothing to replay. What is wrong with the dataset or its inputs is in the report, and
    the report does not depend on `jobs`.
    """
    dataset, report, chain, progress = run.dataset, run.report, run.chain, run.progress
    # a root has no transactions to replay
    if report.kind is DatasetKind.ROOT:
        return
    report.replay = Replay()
    report.reasons.pop(REPLAY, None)
    if report.kind is None or any(fault.check in _CHAIN_CHECKS for fault in report.faults):
        message = "no transaction was replayed: the chain cannot be followed"
        report.leave_out(message, check=REPLAY)
        return
    wanted = [
        HashedBlock(stored.name, stored.block)
        for stored in chain.within(after, run.upto, ExecuteTransform.KIND)
    ]
    tail, head = hash_at(chain, after), hash_at(chain, run.upto)
    step = f"Replaying {dataset.alias}"
    progress.phase(step, len(wanted))
    together = SideBySide(progress, step)
    with JobThreads(jobs) as pool:
        running = [
            (block, _started(pool, dataset, plan, engines, together.part()))
            for block, plan in _plans(dataset, wanted, find, tail, head)
        ]
        for block, work in running:
            outcome = work if isinstance(work, _Outcome) else work.result()
            _add(report, dataset, block, outcome)
            progress.advance()
    report.sort()


def _add(report: Report, dataset: DatasetFiles, block: HashedBlock, outcome: _Outcome) -> None:
    number = block.block.sequence_number
    known = outcome.check == INPUTS and any(
        f.check == INPUTS and f.sequence_number == number for f in report.faults
    )
    if outcome.fault is not None and not known:
        report.fault(outcome.check, dataset.folder / "blocks" / str(block.hash), outcome.fault, number)
    if outcome.check != REPLAY:
        report.skip([REPLAY], "transactions that contradict their inputs were not computed again")
    if outcome.unchecked is not None:
        report.leave_out(outcome.unchecked, number, check=REPLAY)
    report.notes += (f"block {number}: {note}" for note in outcome.notes)
    if outcome.checkpoint in report.unjudged:
        report.unjudged.discard(outcome.checkpoint)
        report.count(CHECKPOINTS)
        if not report.unjudged and report.reasons.get(CHECKPOINTS) == OF_ENGINES:
            del report.reasons[CHECKPOINTS]
    replay = report.replay
    if replay is not None and outcome.engine is not None:
        report.count(REPLAY)
        replay.transactions += 1
        if outcome.engine not in replay.engines:
            replay.engines.append(outcome.engine)


# --- what there is to replay -----------------------------------------------------------------------


def _plans(
    dataset: DatasetFiles,
    wanted: Sequence[HashedBlock],
    find: Find,
    after: Multihash | None,
    upto: Multihash | None,
) -> Iterator[tuple[HashedBlock, RecordedStep | _Outcome]]:
    inputs: dict[DatasetId, DatasetFiles | None] = {}
    for item in wanted:
        for dataset_id in _input_ids(item):
            if dataset_id not in inputs:
                inputs[dataset_id] = find(dataset_id)
    at_hand = [item for item in inputs.values() if item is not None]
    aliases = input_aliases(DatasetState.read(dataset.chain).transform)
    remaining = deque(wanted)
    while remaining:
        # a missing input leaves this transaction out; the next ones are planned after it
        gone = [i for i in _input_ids(remaining[0]) if inputs[i] is None]
        if gone:
            reasons = "; ".join(missing_input(aliases.get(i), i) for i in gone)
            after = remaining[0].hash
            yield remaining.popleft(), _Outcome(unchecked=reasons)
            continue
        try:
            for step in plan_recorded(dataset, at_hand, tail=after, head=upto):
                yield remaining.popleft(), step
        except errors.OdfchainError as error:
            # planning goes on behind the transaction that cannot be planned
            after = remaining[0].hash
            yield remaining.popleft(), _unplanned(error)


def _unplanned(error: errors.OdfchainError) -> _Outcome:
    if isinstance(error, errors.TransformError) and not isinstance(error, errors.DivergedInputError):
        return _Outcome(fault=error.message, check=INPUTS)
    # an input that has changed since proves nothing about this block
    return _Outcome(unchecked=error.message)


def _input_ids(block: HashedBlock) -> list[DatasetId]:
    event = block.block.event
    return [item.dataset_id for item in event.query_inputs] if isinstance(event, ExecuteTransform) else []


# --- one transaction -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayEngines:
    """The engines that may execute a dataset's transforms."""

    find: Engines
    config: TransformConfig

    def name(self, transform: Transform) -> str:
        """The version of the engine, or its address where it is another process's business."""
        address = address_of(transform, self.config)
        return rules_of(transform.version).version if address is None else f"{transform.engine} at {address}"


def _started(
    pool: JobThreads,
    dataset: DatasetFiles,
    plan: RecordedStep | _Outcome,
    engines: ReplayEngines,
    progress: Progress,
) -> _Outcome | Future[_Outcome]:
    if isinstance(plan, _Outcome):
        return plan
    transform = unmarked(plan.step.transform.transform)
    try:
        engine = engines.find(transform)
    except (errors.TransformError, errors.DatasetNotFoundError) as error:
        return _Outcome(unchecked=error.message)
    return pool.submit(_replayed, dataset, plan, engine, engines.name(transform), progress)


def _replayed(
    dataset: DatasetFiles, recorded: RecordedStep, engine: TransformEngine, name: str, progress: Progress
) -> _Outcome:
    try:
        with dataset.staging() as folder:
            run = StepRun(dataset, engine, folder, recorded.system_time, progress)
            done = run.execute(recorded.step)
            differences = list(_differences(dataset, recorded, done))
            notes = tuple(_checkpoint_notes(recorded, done, done.version or name))
            if done.version is not None:
                name = f"{recorded.step.transform.transform.engine}_{done.version}"
    except (errors.JavaNotFoundError, errors.StorageFullError):
        raise
    except errors.RefusedQueryError as error:
        # what is allowed changes with the engine, and says nothing about who recorded it (RFC-016)
        return _Outcome(unchecked=f"it cannot be replayed: {name} refuses the query: {error}")
    except errors.QueryError as error:
        return _Outcome(fault=f"DataNotReproducible: {name} refuses the query: {error}", engine=name)
    except errors.OdfchainError as error:
        return _Outcome(unchecked=f"it cannot be replayed: {error}")
    if not differences:
        old, new = recorded.event.new_checkpoint, done.checkpoint
        same = old.physical_hash if old and new and old.physical_hash == new.physical_hash else None
        return _Outcome(notes=notes, engine=name, checkpoint=same)
    # another checkpoint goes without saying then
    return _Outcome(fault=f"DataNotReproducible: {'; '.join(differences)}", engine=name)


def _differences(dataset: DatasetFiles, recorded: RecordedStep, done: ExecutedStep) -> Iterator[str]:
    old, new = recorded.event.new_data, done.slice
    if old is None and new is not None:
        yield f"nothing recorded, {new.offset_interval.count:,} records replayed"
    elif old is not None and new is None:
        yield f"{old.offset_interval.count:,} records recorded, none replayed"
    elif old is not None and new is not None:
        # the most telling difference comes first
        if old.logical_hash != new.logical_hash:
            vocabulary = recorded.step.vocabulary
            yield from _first(dataset, recorded, done.data_path, vocabulary.offset_column)
        if old.offset_interval != new.offset_interval:
            counts = f"{old.offset_interval.count:,} records recorded, {new.offset_interval.count:,} replayed"
            yield f"{counts} (offsets {_span(old.offset_interval)}, {_span(new.offset_interval)})"
    if recorded.event.new_watermark != done.watermark:
        yield f"watermark {_shown(recorded.event.new_watermark)} recorded, {_shown(done.watermark)} replayed"


def _first(
    dataset: DatasetFiles, recorded: RecordedStep, replayed: Path, offset_column: str
) -> Iterator[str]:
    data = recorded.event.new_data
    assert data is not None  # noqa: S101 - checked by the caller
    # the reference implementation hashes null structs in another way
    if hash_parquet(replayed, null_rule="reference")[0] == data.logical_hash:
        return  # another rule for null structs (RFC-006): the records are the same
    path = dataset.data.path(data.physical_hash)
    try:
        difference = first_difference(path, replayed, offset_column=offset_column)
    except errors.OdfchainError as error:
        yield f"the records differ from the replayed ones (where, is not known: {error})"
        return
    if difference is not None:
        yield str(difference)
    else:
        yield "the recorded logical hash is not that of the replayed records, which the slice does hold"


def _checkpoint_notes(recorded: RecordedStep, done: ExecutedStep, version: str) -> Iterator[str]:
    # other versions may write other bytes for the same state
    if unmarked(recorded.step.transform.transform).version != version:
        return
    old, new = recorded.event.new_checkpoint, done.checkpoint
    if (old and old.physical_hash) != (new and new.physical_hash):
        yield (
            f"the checkpoint differs: {old.physical_hash if old else 'none'} recorded, "
            f"{new.physical_hash if new else 'none'} replayed"
        )


def _span(interval: OffsetInterval) -> str:
    return f"{interval.start} to {interval.end}"


def _shown(watermark: Timestamp | None) -> str:
    return "none" if watermark is None else str(watermark)
