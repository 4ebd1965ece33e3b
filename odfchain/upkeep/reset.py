"""Going back: the head is moved to an earlier block of its own chain.

What is dropped by that stays reachable under `refs/overwritten-…` until `gc --drop-refs` removes
it, so a reset is undone by a reset to the old head. Derived state needs nothing: the chain's index is checked
against the head whenever it is used, and a checkpoint is the one that the newest block names.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

from odfchain import errors
from odfchain.chain.compare import Ahead, Diverged, compare
from odfchain.odf.events import ExecuteTransform
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.storage.local import HEAD
from odfchain.storage.store import Store
from odfchain.transfer.object_workspace import SharedWorkspace
from odfchain.transfer.open_peer import open_peer
from odfchain.transfer.sharing import AliasKind, Sharing, aliases
from odfchain.transfer.signed_statements import Seen, SeenHeads
from odfchain.transfer.store_commit import StoredDataset
from odfchain.transfer.sync import PeerLinks
from odfchain.upkeep.garbage import Referrers, bring_branches, refuse, still_reached
from odfchain.workspace import points
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles

# Other places with a dataset's blocks, and derivatives that break when these are given up.


class RemoteState(Enum):
    """The state of a place."""

    REACHED = "reached"
    """It was asked, and its blocks were read."""
    NOTHING = "no dataset"
    UNKNOWN = "unknown"
    """It could not be asked, or not be believed."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Somewhere a dataset was pulled from or pushed to, and which of some blocks it has."""

    alias: str
    """As the user wrote it; a URL without its password."""
    kinds: tuple[str, ...]
    """`pull`, `push`."""
    answer: RemoteState
    has: frozenset[Multihash] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Dependent:
    """A derivative dataset of this workspace that has read blocks which are given up."""

    alias: str
    transactions: int
    """Its transactions that did."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A dataset whose history is rewritten, in its workspace."""

    workspace: WorkspaceFiles
    dataset: DatasetFiles

    def places_with(self, head: Multihash, blocks: Sequence[Multihash]) -> list[Remote]:
        """Every place that the dataset was pulled from or pushed to, and which of these blocks it has."""
        known: dict[str, list[str]] = {}
        for kind in AliasKind:
            for alias in aliases(self.dataset, kind):
                known.setdefault(alias, []).append(kind.value)
        sharing = Sharing(self.workspace)
        options = sharing.peer_options(None)

        def ask(alias: str, kinds: tuple[str, ...]) -> Remote:
            # a URL may hold a password, which is left out only once it is parsed
            shown = "a place that is not understood" if "://" in alias else alias
            try:
                url = sharing.url_of(alias)
                shown = str(url) if "://" in alias else alias
                with closing(open_peer(url, options)) as peer:
                    theirs = peer.head(self.dataset.ref)
                    if theirs is None and self.dataset.ref != HEAD:
                        theirs = peer.head(HEAD)  # the blocks may have been merged there
                    if theirs is None:
                        return Remote(shown, kinds, RemoteState.NOTHING)
                    return Remote(shown, kinds, RemoteState.REACHED, self._held(peer, theirs, head, blocks))
            except errors.OdfchainError as error:
                return Remote(shown, kinds, RemoteState.UNKNOWN, problem=str(error))

        # a place has a block if its chain contains it and the block can be read there
        return [ask(alias, tuple(kinds)) for alias, kinds in known.items()]

    def _held(
        self, peer: Store, theirs: Multihash, head: Multihash, blocks: Sequence[Multihash]
    ) -> frozenset[Multihash]:
        chain, links = self.dataset.chain, PeerLinks(peer, None, self.dataset.blocks)
        comparison = compare(chain, head, theirs, links)
        lacking: set[Multihash] = set()
        if isinstance(comparison, Ahead):
            lacking.update(comparison.blocks)
        elif isinstance(comparison, Diverged):
            lacking.update(name for name, _ in chain.walk(head, tail=comparison.common))
        named = [name for name in blocks if name not in lacking]

        def is_given(name: Multihash) -> bool:
            try:
                peer.block(name)
            except errors.CorruptedPeerError:
                return False
            return True

        with ThreadPoolExecutor(8, thread_name_prefix="blocks") as pool:
            return frozenset(itertools.compress(named, pool.map(is_given, named)))

    def dependents(self, blocks: Collection[Multihash]) -> list[Dependent]:
        """The derivatives in the workspace, on any branch, that have read up to one of these blocks."""
        wanted, dataset_id = frozenset(blocks), self.dataset.id
        readers = []
        datasets = self.workspace.datasets()
        for other in (each.on(ref) for each in datasets for ref in (HEAD, *points.branch_names(each))):
            try:
                count = 0
                # a derivative whose chain cannot be read is left out
                for hashed in DatasetState.read(other.chain).data_blocks():
                    event = hashed.block.event
                    if not isinstance(event, ExecuteTransform):
                        break
                    read = [i.last_block_hash for i in event.query_inputs if i.dataset_id == dataset_id]
                    if not wanted.intersection(name for name in read if name is not None):
                        break  # what it read before is older
                    count += 1
            except errors.OdfchainError:
                continue
            if count:
                readers.append(Dependent(other.label, count))
        return readers

    def rewrite_memory(self, dropped: Sequence[Multihash], now: Seen) -> None:
        """The newest block ever seen is not one that its owner has dropped."""
        dataset_id = self.dataset.id
        # a key's owner decides on the history, and so do the writers of a store, which has been rewound for
        # all; for other copies the memory stays: a reset here says nothing about what peers must have
        decides = self.dataset.shared.where is not None or self.workspace.has_key(dataset_id)
        if self.dataset.ref != HEAD or not decides:
            return  # of branches nothing is remembered
        memory = SeenHeads(self.workspace.root / "seen")
        if (known := memory.get(dataset_id)) is not None and known.head in dropped:
            memory.remember(dataset_id, now, lower=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The plan of a reset; nothing is changed yet."""

    dataset: str
    old_head: Multihash
    new_head: Multihash
    new_number: int
    dropped: tuple[Multihash, ...]
    """The blocks that are dropped, newest first; or those that come back, after an earlier reset."""
    returns: bool
    """True if the target is ahead of the head: a head that was given up before."""
    records: int
    """Records that are dropped (that come back)."""
    places: tuple[Remote, ...] = ()
    """Other places that may have the dropped blocks."""
    unsaved: tuple[Multihash, ...] = ()
    """Dropped blocks that no place was found to have, newest first."""
    dependents: tuple[Dependent, ...] = ()
    """Derivatives here that have read dropped blocks."""
    referrers: tuple[str, ...] = ()
    """Datasets whose rows name changes that nothing else would lead to."""
    follows: bool = False
    """True if the store that the dataset is in has the new head already: only this folder moves."""

    def __repr__(self) -> str:
        way = "come back" if self.returns else "go"
        what = f"{len(self.dropped):,} blocks with {self.records:,} records {way}"
        breaks = f", breaks {', '.join(d.alias for d in self.dependents)}" if self.dependents else ""
        return f"<reset of {self.dataset} to block {self.new_number:,}: {what}{breaks}>"

    @property
    def nothing(self) -> bool:
        """True if the head is there already."""
        return self.old_head == self.new_head


def find_block(dataset: DatasetFiles, text: str) -> Multihash:
    """The block that a hash or a sequence number of the present chain means."""
    if text.isascii() and text.isdigit():
        # `int` raises for texts of some thousand digits, and no chain has so many blocks
        return points.block_at(dataset, int(text[:20]))
    try:
        name = Multihash.parse(text)
    except errors.InvalidIdError as error:
        raise errors.InvalidIdError(
            f"{error} (a block is given by its hash or its sequence number)",
            hint=f"`odfchain log {dataset.alias}` lists the blocks",
        ) from None
    return points.block_at(dataset, name)


def _between(dataset: DatasetFiles, upper: DatasetState, lower: DatasetState) -> list[Multihash] | None:
    if not points.is_referenced(dataset, lower.head, head=upper.head):
        return None
    return [name for name, _ in dataset.chain.walk(upper.head, tail=lower.head)]


def _given_up(dataset: DatasetFiles) -> set[Multihash | None]:
    """Heads that references keep; those of branches are not given up: to go there is a merge."""
    refs = points.ref_names(dataset)
    return {dataset.chain.head(ref) for ref in refs if ref != HEAD and not is_branch_name(ref)}


def _on_other_references(dataset: DatasetFiles, blocks: Sequence[Multihash]) -> frozenset[Multihash]:
    """Those of some neighbouring blocks, newest first, that the head or a branch leads to as well."""
    others = [dataset.on(ref) for ref in (HEAD, *points.branch_names(dataset)) if ref != dataset.ref]
    heads = [(on, head) for on in others if (head := on.chain.head()) is not None]

    def is_here_only(block: Multihash) -> bool:
        return not any(points.is_referenced(on, block, head=head) for on, head in heads)

    # what leads to one of them leads to all older ones
    return frozenset(itertools.dropwhile(is_here_only, blocks))


class Reset(Rewriting):
    """A dataset whose head is moved to another block."""

    def plan(self, target: str | Multihash) -> ResetPlan:
        """Plan a move of the head to a block: dropped blocks, their other copies, and broken references.

        The target is an ancestor of the head; or a head that a reference keeps and that the present head is
        an ancestor of, which undoes a reset; or, by its hash, another head that the store has by now.
        """
        # the head of the store, which another machine has rewound
        if (there := self._head_there(target)) is not None:
            return self._plan_following(there)
        bring_branches(self.workspace)  # what they have is not lost
        name = find_block(self.dataset, target) if isinstance(target, str) else target
        old = DatasetState.read(self.dataset.chain)
        new = DatasetState.read(self.dataset.chain, name)
        forward = new.head_block.sequence_number > old.head_block.sequence_number
        upper, lower = (new, old) if forward else (old, new)
        between = _between(self.dataset, upper, lower)
        if between is None or (forward and new.head not in _given_up(self.dataset)):
            raise errors.UsageError(
                f"{self.dataset.alias}: block {name} is not an ancestor of the head {old.head}",
                hint=f"`odfchain log {self.dataset.alias}` lists the blocks that the head can go back to",
            )
        places: Sequence[Remote] = ()
        unsaved: list[Multihash] = []
        referrers: list[str] = []
        if between and not forward:
            stays = functools.partial(still_reached, self.dataset, new.head)
            referrers, _ = Referrers(self.workspace).of_changes(self.dataset, stays)
            places = self.places_with(old.head, between)
            saved = frozenset[Multihash]().union(*(place.has for place in places))
            saved |= _on_other_references(self.dataset, between)
            unsaved = [block for block in between if block not in saved]
        return ResetPlan(
            dataset=str(self.dataset.alias),
            old_head=old.head,
            new_head=new.head,
            new_number=new.head_block.sequence_number,
            dropped=tuple(between),
            returns=forward,
            records=upper.record_count - lower.record_count,
            places=tuple(places),
            unsaved=tuple(unsaved),
            dependents=() if forward else tuple(self.dependents(between)),
            referrers=tuple(referrers),
        )

    def _head_there(self, target: str | Multihash) -> Multihash | None:
        text = str(target)
        if self.dataset.ref != HEAD or text.isdigit() or text == str(self.dataset.chain.head()):
            return None
        there = stored.look() if (stored := self._stored) is not None else None
        return there if text == str(there) else None

    @property
    def _stored(self) -> StoredDataset | None:
        # None where the folder is all there is
        shared = self.dataset.shared
        return shared.stored(self.dataset.folder) if isinstance(shared, SharedWorkspace) else None

    def _plan_following(self, there: Multihash) -> ResetPlan:
        assert self._stored is not None  # noqa: S101 - the head is there
        self._stored.bring_blocks(there)
        old, new = DatasetState.read(self.dataset.chain), DatasetState.read(self.dataset.chain, there)
        is_kept = functools.partial(points.is_referenced, self.dataset, head=there)
        names = (name for name, _ in self.dataset.chain.walk(old.head))
        dropped = list(itertools.takewhile(lambda name: not is_kept(name), names))
        oldest = self.dataset.chain.get(dropped[-1]).prev_block_hash if dropped else old.head
        kept = 0 if oldest is None else DatasetState.read(self.dataset.chain, oldest).record_count
        return ResetPlan(
            dataset=str(self.dataset.alias),
            old_head=old.head,
            new_head=there,
            new_number=new.head_block.sequence_number,
            dropped=tuple(dropped),
            returns=False,
            records=old.record_count - kept,
            dependents=tuple(self.dependents(dropped)),
            follows=True,
        )

    def run(self, plan: ResetPlan, *, force: bool = False, break_references: bool = False) -> str | None:
        """The head is where the plan says, the old one kept by the reference returned; or all is as it was.

        None is returned when there was nothing to do, or the new head leads to the old one.
        Errors as `Dataset.reset`.
        """
        if plan.nothing:
            return None
        if plan.unsaved and not force:
            raise _unsaved(plan)
        if not break_references:
            refuse(f"what {plan.dataset} would drop", plan.referrers)
        # the store was rewound elsewhere: only this folder moves
        if plan.follows:
            assert self._stored is not None  # noqa: S101 - it was planned from its head
            self._stored.follow_reset(plan.old_head, plan.new_head)
            return points.overwritten_name(plan.old_head) if plan.dropped else None
        with points.locked_for(self.dataset):
            # Garbage collection, which takes the same lock, gives up a reference before its blocks.
            if plan.returns and plan.new_head not in _given_up(self.dataset):
                message = f"{self.dataset.alias}: the head {plan.new_head} is not kept any more"
                raise errors.ObjectNotFoundError(message)
            kept = None if plan.returns else points.keep_reachable(self.dataset, plan.old_head)
            self.dataset.set_head(plan.new_head, expected=plan.old_head)
        self.rewrite_memory(plan.dropped, Seen(plan.new_number, plan.new_head))
        return kept


def _unsaved(plan: ResetPlan) -> errors.WorkspaceError:
    unknown = [place for place in plan.places if place.answer is RemoteState.UNKNOWN]
    count, total = len(plan.unsaved), len(plan.dropped)
    blocks = f"{total:,} blocks that would be dropped" if total > 1 else "block that would be dropped"
    what = f"the {blocks}" if count == total else f"{count:,} of the {blocks}"
    if unknown:
        first = unknown[0]
        why = f"{first.alias} cannot be asked ({first.problem})"
    elif plan.places:
        why = f"not in {' or '.join(place.alias for place in plan.places)}"
    else:
        why = "the dataset was never pushed or pulled"
    return errors.WorkspaceError(
        f"{plan.dataset}: {what} may be nowhere else: {why}",
        hint="push the dataset first (`odfchain push`), or give them up with --force",
        exit_code=5,
    )
