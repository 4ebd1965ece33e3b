"""Hard compaction: the history of a dataset is written anew with fewer, larger slices.

    1. neighbouring transactions become one (`batches`); merged slices are written in staging
    2. slices, then blocks get their names; nothing refers to them yet
    3. the old head is kept by `refs/overwritten-…`
    4. one compare-and-swap moves the head

Killed before 4 the dataset is as it was, and has some files that nothing refers to. Blocks before the first
merged one stay as they are; the blocks after it get new hashes, and keep the system times of the blocks they
stand for: when something was recorded does not change because it is stored in another way. The hashes do, so
whoever read the old blocks has to start over: `CompactPlan` says who that is. Blocks that branches forked
from, or were merged with, are not replaced: their merges could not be computed again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.chain.chain import EncodedBlock, HashedBlock, link_blocks
from odfchain.chain.earlier_blocks import DATA_EVENTS, ReplayHistory
from odfchain.chain.rules import check_append
from odfchain.errors import UnsavedBlocksError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import DatasetKind
from odfchain.model.events import AddData, DatasetVocabulary, MetadataEvent, SetVocab
from odfchain.model.metadata_block import MetadataBlock
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import StagedFile, keep_staged
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.kept_footers import keep_footers
from odfchain.repo.merge_record import understood_record
from odfchain.repo.references import keep_reachable
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.trust.seen import Seen
from odfchain.upkeep.batches import Batch, BatchLimits, batches
from odfchain.upkeep.downstream import Dependent, Remote, dependents, places_with
from odfchain.upkeep.merge_slices import merge_slices, same_columns
from odfchain.upkeep.needed_forks import branches_on
from odfchain.upkeep.reachable import merged_blocks
from odfchain.upkeep.referrers import bring_branches, of_changes, refuse, still_reached
from odfchain.upkeep.rollback import rewrite_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """How to compact."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    metadata_only: bool = False
    """Give up all data and keep the other events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPlan:
    """What a hard compaction would do; nothing is changed yet."""

    dataset: str
    old_head: Multihash
    blocks_before: int
    blocks_after: int
    slices_before: int
    slices_after: int
    records: int
    """Records before; they are the same after, or none without data."""
    kept: tuple[HashedBlock, ...]
    """Blocks that stay, oldest first."""
    batches: tuple[Batch, ...]
    """What comes after them."""
    replaced: tuple[Multihash, ...]
    """Blocks that are not part of the new history, newest first."""
    metadata_only: bool
    dependents: tuple[Dependent, ...] = ()
    """Derivatives here that have read replaced blocks."""
    referrers: tuple[str, ...] = ()
    """Datasets whose rows name changes of replaced blocks."""
    places: tuple[Remote, ...] = ()
    """Where the dataset was pulled from or pushed to; all of them have the old history or nothing."""
    refs: tuple[str, ...] = ()
    """References to other heads, which keep their objects."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to merge."""
        return not self.replaced

    def __repr__(self) -> str:
        blocks, slices = (self.blocks_before, self.blocks_after), (self.slices_before, self.slices_after)
        sizes = f"{blocks[0]:,} to {blocks[1]:,} blocks, {slices[0]:,} to {slices[1]:,} slices"
        return f"<compaction of {self.dataset}: {'nothing to do' if self.nothing else sizes}>"


def plan_compact(
    workspace: WorkspaceFiles, dataset: DatasetFiles, options: CompactOptions | None = None
) -> CompactPlan:
    """What would be merged, and who breaks by it.

    Raises:
        UsageError: the dataset is derivative: its transactions are what its query gave, step by step. Or a
            branch needs the blocks that would be replaced.
    """
    options = options or CompactOptions()
    bring_branches(workspace)
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is DatasetKind.DERIVATIVE and not options.metadata_only:
        raise UsageError(
            f"{dataset.alias}: the slices of a derivative dataset cannot be merged, because each is "
            "the result of one execution and is verified as such",
            hint="--keep-metadata-only gives up its data, and the next run computes it anew in one step",
        )
    chain = list(dataset.chain.walk(state.head))[::-1]
    if options.metadata_only:
        kept, after = _without_data(chain, state.seed.dataset_kind)
    else:
        found = mergeable(dataset, (b.block for b in chain), options.limits)
        first = next((i for i, batch in enumerate(found) if batch.merges), len(found))
        kept, after = chain[:first], found[first:]
    replaced = tuple(found.hash for found in chain[len(kept) :][::-1])
    before = sum(b.block.new_data is not None for b in chain)
    merged_away = sum(max(0, len(batch.slices) - 1) for batch in after)
    plan = CompactPlan(
        dataset=str(dataset.alias),
        old_head=state.head,
        blocks_before=len(chain),
        blocks_after=len(kept) + len(after),
        slices_before=before,
        slices_after=0 if options.metadata_only else before - merged_away,
        records=state.record_count,
        kept=tuple(kept),
        batches=tuple(after),
        replaced=replaced,
        metadata_only=options.metadata_only,
    )
    if plan.nothing:
        return plan
    _check_forks(dataset, chain, plan)
    merges = [] if plan.metadata_only else [found.block.event for found in chain]
    merged = [name for event in merges for name in merged_blocks(dataset, event)]
    stays = functools.partial(still_reached, dataset, kept[-1].hash, *merged)
    return dataclasses.replace(
        plan,
        dependents=tuple(dependents(workspace, dataset, replaced)),
        referrers=tuple(of_changes(workspace, dataset, stays)[0]),
        places=tuple(places_with(workspace, dataset, state.head, replaced)),
    )


def _check_forks(dataset: DatasetFiles, chain: Sequence[HashedBlock], plan: CompactPlan) -> None:
    needing = branches_on(dataset, chain, frozenset(plan.replaced), merges=not plan.metadata_only)
    if needing:
        raise UsageError(
            f"{dataset.alias}: blocks that would be replaced are those that {', '.join(needing[:8])}"
            f"{' and others' if len(needing) > 8 else ''} forked from, or merged",
            hint="`odfchain branch delete` gives up branches; `compact --soft` makes a new dataset and "
            "leaves this one as it is",
        )


def mergeable(dataset: DatasetFiles, blocks: Iterable[MetadataBlock], limits: BatchLimits) -> list[Batch]:
    """The batches of the blocks; those whose files do not have the same columns are left block by block."""
    made: list[Batch] = []
    for batch in batches(blocks, limits):
        same = len(batch.slices) < 2 or same_columns(dataset, batch.slices)
        made += [batch] if same else [Batch((block,)) for block in batch.blocks]
    return made


def _without_data(chain: Sequence[HashedBlock], kind: DatasetKind) -> tuple[list[HashedBlock], list[Batch]]:
    """The seed, and the events that people wrote; the schema of a derivative is a result of its query."""
    computed = (*DATA_EVENTS, "SetDataSchema") if kind is DatasetKind.DERIVATIVE else DATA_EVENTS
    rest = [Batch((b.block,)) for b in chain[1:] if b.block.event.KIND not in computed]
    if len(rest) == len(chain) - 1:
        return list(chain), []
    return list(chain[:1]), rest


def compact(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    plan: CompactPlan,
    *,
    force: bool = False,
    break_references: bool = False,
    progress: Progress = SILENT,
) -> Multihash:
    """The dataset has the planned history with the same records; or it is as it was. Returns its head."""
    if plan.nothing:
        return plan.old_head
    if not break_references:
        refuse(f"what {plan.dataset} would replace", plan.referrers)
    if plan.metadata_only and not force:
        _check_saved(dataset, plan)
    with dataset.staging() as staging:
        progress.phase(f"Merging slices of {dataset.alias}", plan.slices_before)
        made: list[EncodedBlock] = []
        files: list[StagedFile] = []
        history = ReplayHistory()
        for _, block in plan.kept:
            history.add(block)
        # without data all blocks are new, so that a copy is not taken for one that lags behind
        at = DatasetState.read(dataset.chain, plan.old_head)
        now = at.next_system_time() if plan.metadata_only else None
        renamed: dict[Multihash | None, Multihash] = {}
        for event, file, batch in rewritten(dataset, plan.batches, staging, plan.kept, progress):
            newest, previous = history.previous(), made[-1].hash if made else plan.kept[-1].hash
            renamed[batch.blocks[0].prev_block_hash] = previous
            (encoded,) = link_blocks(
                [_retargeted(event, renamed)],
                prev=previous,
                next_sequence_number=newest.sequence_number + 1,
                system_time=now or batch.blocks[-1].system_time,
            )
            check_append(encoded.block, history)
            history.add(encoded.block)
            made.append(encoded)
            files += [file] if file is not None else []
        return _publish(workspace, dataset, plan, made, files)


def rewritten(
    dataset: DatasetFiles,
    planned: Iterable[Batch],
    staging: Path,
    before: Sequence[HashedBlock] = (),
    progress: Progress = SILENT,
) -> Iterator[tuple[MetadataEvent, StagedFile | None, Batch]]:
    """The events that batches become after the blocks `before`, their new files, and the batches."""
    events = [block.event for _, block in before]
    vocabulary = next((e for e in reversed(events) if isinstance(e, SetVocab)), None)
    previous = next((e for e in reversed(events) if isinstance(e, AddData)), None)
    for batch in planned:
        event: MetadataEvent = batch.blocks[-1].event
        file = None
        if isinstance(event, SetVocab):
            vocabulary = event
        if isinstance(event, AddData):
            data = batch.slices[0] if batch.slices else None
            if len(batch.slices) > 1:
                names = DatasetVocabulary.from_event(vocabulary)
                merged = merge_slices(dataset, batch.slices, names, staging)
                data, file = merged.slice, merged.staged
            progress.advance(len(batch.slices))
            event = batch.event(data, previous)
            if _says_nothing(event, previous):
                continue
            previous = event
        yield event, file, batch


def _retargeted(event: MetadataEvent, renamed: dict[Multihash | None, Multihash]) -> MetadataEvent:
    """The event, which names the new block where it says what a merge was made on."""
    record = understood_record(event)
    if record is None or not isinstance(event, AddData):
        return event
    target = renamed.get(record.target, record.target)
    return dataclasses.replace(event, new_source_state=dataclasses.replace(record, target=target).to_state())


def _publish(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    plan: CompactPlan,
    made: list[EncodedBlock],
    staged: list[StagedFile],
) -> Multihash:
    for file in staged:
        keep_staged(dataset.data, file)
    keep_footers(dataset, ((file.physical_hash, file.footer) for file in staged))
    keep_reachable(dataset, plan.old_head)
    if made:
        dataset.chain.publish(made, expected_head=plan.old_head)
        now = Seen(made[-1].block.sequence_number, made[-1].hash)
    else:
        dataset.set_head(plan.kept[-1].hash, expected=plan.old_head)
        now = Seen(plan.kept[-1].block.sequence_number, plan.kept[-1].hash)
    rewrite_memory(workspace, dataset, plan.replaced, now)
    return now.head


def _check_saved(dataset: DatasetFiles, plan: CompactPlan) -> None:
    if dataset.kind is DatasetKind.DERIVATIVE:
        return  # its data can be computed again
    saved = frozenset[Multihash]().union(*(place.has for place in plan.places))
    lacking = [name for name in plan.replaced if name not in saved]
    if lacking:
        raise UnsavedBlocksError(
            f"{plan.dataset}: the data of {len(lacking):,} blocks would be given up and may be nowhere else",
            hint="push the dataset first (`odfchain push`), or give them up with --force",
        )


def _says_nothing(event: AddData, previous: AddData | None) -> bool:
    """Whether an event without data repeats what the one before it says, now that that one says more."""
    if event.new_data is not None:
        return False
    before = previous or AddData()
    said = (before.new_checkpoint, before.new_watermark, before.new_source_state)
    return said == (event.new_checkpoint, event.new_watermark, event.new_source_state)
