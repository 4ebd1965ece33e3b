"""Taking one block of data back, whatever came after it.

It is a merge, by the same rules: the base is the state after the block, theirs is the state before it, and
ours is the present one. So what nobody changed since becomes what it was, and what somebody changed is in
conflict. The merge record has the mode `revert`, and is no edge of the graph of blocks (RFC-036).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computed_merge import Sides, compute_merge
from odfchain.branch.computing import Engine
from odfchain.branch.conflict_file import read_resolution
from odfchain.branch.diffing import Trust
from odfchain.branch.foreign_keys import ForeignKeys, references_of
from odfchain.branch.merge_bases import MergeInput
from odfchain.branch.recording import ChangeOutcome, stage_changes, write_batches
from odfchain.branch.resolving import UNDECIDED, Resolution, check_decided
from odfchain.errors import PointNotFoundError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import DatasetKind
from odfchain.model.events import AddData
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import CommitCheck, both
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import MergeMode, MergeRecord
from odfchain.repo.points import is_referenced


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertRequest:
    """Which block is taken back, and how."""

    block: Multihash
    resolve: Resolution | Path = UNDECIDED
    message: str = ""
    system_time: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertMeans:
    """What a revert needs of those who call it."""

    engine: Engine
    trusted: Trust
    bound: Callable[[Timestamp], Timestamp | None]
    """The latest event time that is believed at a system time."""
    check: ForeignKeys
    guard: CommitCheck
    """What else is checked of the rows."""


def revert(dataset: DatasetFiles, request: RevertRequest, means: RevertMeans) -> ChangeOutcome:
    """Commit the inverse of a block's changes on the reference that the dataset is opened on.

    Nothing is committed where all that it changed is as it was before.
    """
    state = DatasetState.read(dataset.chain)
    before = _before(dataset, state, request.block)
    graph = BlockGraph(dataset)
    asked = MergeInput.between(graph, (request.block,), state.head, before)
    sides = Sides.of(graph, state.head, before, asked)
    resolution = read_resolution(request.resolve, sides.columns.data, sides.key)
    system_time = state.next_system_time(request.system_time)
    with dataset.staging() as staging:
        found = compute_merge(
            sides, trusted=means.trusted, engine=means.engine, folder=staging, resolution=resolution
        )
        how, conflicts = check_decided(found.notes.lines, resolution, sides.key).recorded
        facts = write_batches(state, found.computed.batches(), state.schema, system_time, staging)
        if facts is None:
            return ChangeOutcome.nothing(state)
        references = references_of(means.check.find, dataset, state)
        record = MergeRecord(
            base=asked.bases,
            source=before,
            source_ref=dataset.ref,
            target=state.head,
            mode=MergeMode.REVERT,
            resolution=how,
            conflicts=conflicts,
            references=references,
            message=request.message,
        )
        recorded = stage_changes(
            dataset, state, facts, staging=staging, system_time=system_time, record=record,
            bound=means.bound(system_time),
        )  # fmt: skip
        check = dataclasses.replace(means.check, references=references)
        return recorded.committed(dataset, state, system_time, both(check, means.guard))


def _before(dataset: DatasetFiles, state: DatasetState, block: Multihash) -> Multihash:
    """The block before one that can be taken back."""
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(
            f"{dataset.alias} is a derivative dataset: its data are computed",
            hint="revert a block of the inputs that it is computed from",
        )
    if not is_referenced(dataset, block, head=state.head):
        raise PointNotFoundError(
            f"{dataset.label} does not have block {block}, so there is nothing to take back",
            hint=f"`odfchain log {dataset.label}` lists its blocks",
        )
    found = dataset.chain.get(block)
    if not isinstance(found.event, AddData) or found.event.new_data is None or found.prev_block_hash is None:
        raise UsageError(
            f"{dataset.label}: block {found.sequence_number:,} ({found.event.KIND}) has no data to take back",
            hint=f"`odfchain log {dataset.label}` lists the blocks that have",
        )
    if not state.primary_key:
        raise UsageError(
            f"{dataset.alias} has no primary key, so nothing says which rows came after those of the block"
        )
    return found.prev_block_hash
