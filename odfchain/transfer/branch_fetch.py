"""Pulling remote branches, and the blocks that were merged into a chain.

A branch is fetched while the head stays where it is: blocks, rules, slices, then one compare-and-swap
of the branch, then its signature. Its origin is recorded before it is there, so that it is not merged as
if it had been made here. An interruption before that leaves the dataset as it was. Source: RFC-038.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from odfchain.chain.compare import Descent
from odfchain.chain.index import MERGE
from odfchain.chain.signed_heads import HeadSignature, SignatureStatus, check_branch, signature_key
from odfchain.chain.signing import SignedFile
from odfchain.errors import (
    BranchNotFoundError,
    ChainsDifferError,
    CorruptedPeerError,
    DatasetsDivergedError,
    DestinationAheadError,
    TransferError,
)
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore
from odfchain.transfer.peer import AbsentError, Peer
from odfchain.transfer.pulling import DEFAULTS, SyncOptions, SyncOutcome, SyncStatus
from odfchain.transfer.receive import Arrival, Spool, shortened
from odfchain.transfer.signed_statements import NO_POLICY, refuse_unsigned
from odfchain.transfer.slice_files import (
    EVERYTHING,
    DataObject,
    Selection,
    absent,
    incoming_folder,
    missing_slices,
    objects_of,
    selection_of,
)
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import (
    FetchedBranch,
    fetched_branch,
    fetched_branches,
    merged_names,
    remember_fetched,
)
from odfchain.workspace.points import keep_reachable, lock_path

# Blocks of a branch, or of a merge, that are fetched while the head stays.
# They lead to one of the dataset's own chains, so they have its Seed, and keep the append rules. They are
# stored oldest first, after their slices and checkpoints. Source: RFC-021, RFC-038.


class Beside:
    """The blocks up to one that a peer has, and the newest of them that the dataset's chains have.

    Those are the chain of the head, and that of the branch that the dataset is opened on.
    """

    def __init__(self, dataset: DatasetFiles, arrival: Arrival) -> None:
        self.arrival = arrival
        # The blocks that the chains do not have, newest first.
        self.new: Sequence[Multihash] = ()
        self._dataset = dataset
        self._store = LocalObjectStore(dataset.folder / "blocks")
        self._spool = Spool(arrival.area / "blocks")
        self._objects: list[DataObject] = []
        chains = [dataset.on(ref) for ref in dict.fromkeys((HEAD, dataset.ref))]
        self._own = [(on, top) for on in chains if (top := on.chain.head()) is not None]
        self._common = self._own[0][1]
        self._number = -1

    def read(self, head: Multihash) -> None:
        """The blocks up to `head` are received and checked.

        Raises:
            DatasetsDivergedError: it is a block of another dataset.
            CorruptedPeerError, AccessError, TransferError: from the peer.
            StorageFullError, StoreError, BrokenChainError: what came cannot be kept, or what is here be read.
        """
        fsio.make_folder(self._spool.folder)
        with self.arrival.links(self._spool, self._store) as links:
            descent = Descent(links, head)
            while descent.at is not None and not self._is_own(descent.number, descent.at):
                descent.step()
            if descent.at is None:
                raise self._other_dataset(head, len(descent.passed))
            self.new, self._common, self._number = descent.passed, descent.at, descent.number
            base = self._dataset.chain.history(descent.at)
            self._objects = self.arrival.check(links, self.new, base).objects if self.new else []

    def has(self, block: Multihash) -> bool:
        """True if a block is stored, and one of the chain that was read."""
        if not self._dataset.chain.contains(block):
            return False
        number = self._dataset.chain.get(block).sequence_number
        if number <= self._number:
            return self._dataset.chain.hash_at(number, self._common) == block
        place = self._number + len(self.new) - number
        return place >= 0 and self.new[place] == block

    def newest_of(self, head: Multihash) -> Multihash:
        """The newest block of another chain of the dataset, up to `head`, that is one of the chain."""
        return next(name for name, _ in self._dataset.chain.walk(head) if self.has(name))

    def bring(self, selection: Selection) -> None:
        """The slices and checkpoints of the new blocks are here; errors as `slice_files.bring`."""
        self.arrival.bring(self._dataset, selection.of(self._objects))

    def store(self) -> int:
        """The new blocks are stored; returns how many of them were not here."""
        count = 0
        self.arrival.progress.phase("Publishing", len(self.new))
        for name in reversed(self.new):
            if self._spool.contains(name):
                self._store.put_file(self._spool.path(name), name)
                count += 1
            self.arrival.progress.advance()
        return count

    def _is_own(self, number: int, name: Multihash) -> bool:
        return any(on.chain.hash_at(number, top) == name for on, top in self._own)

    def _other_dataset(self, head: Multihash, count: int) -> DatasetsDivergedError:
        here = self._own[0][1]
        return DatasetsDivergedError(
            f"{self.arrival.peer.where}: block {shortened(head)} is of another dataset than "
            f"{self._dataset.alias}: they have no block in common",
            source_head=str(head),
            destination_head=str(here),
            source_blocks=count,
            destination_blocks=self._dataset.chain.get(here).sequence_number + 1,
            common=None,
            hint="check the URL",
        )


@contextmanager
def arriving(dataset: DatasetFiles, peer: Peer, parallel: int, progress: Progress) -> Iterator[Beside]:
    """A private area for a fetch, removed afterwards unless the next attempt can use it.

    The caller holds the lock for what arrives.
    """
    area = incoming_folder(dataset) / f"beside-{dataset.ref}"
    try:
        yield Beside(dataset, Arrival(peer, area, parallel, progress))
    except (CorruptedPeerError, ChainsDifferError):
        shutil.rmtree(area, ignore_errors=True)
        raise
    shutil.rmtree(area, ignore_errors=True)


# Merged blocks, which are no part of the chain: a merge is computed again from them.
# They are optional, and sent in an order in which a block that is there has its chain there, and the source
# of a merge all that its own chain has merged. Source: RFC-038.


@dataclass(frozen=True, slots=True)
class MergedBlocks:
    """The blocks that one merge added, without those of older merges."""

    source: Multihash
    blocks: dict[Multihash, MetadataBlock]
    whole: bool
    """True if all blocks are here."""

    @property
    def in_order(self) -> list[Multihash]:
        """Oldest first, the source last."""
        return sorted(self.blocks, key=lambda name: (name == self.source, self.blocks[name].sequence_number))

    @property
    def objects(self) -> list[DataObject]:
        """The objects of the blocks."""
        return [item for name in self.in_order for item in objects_of(self.blocks[name])]


def merged_into(
    dataset: DatasetFiles, head: Multihash, until: Callable[[Multihash], bool] = lambda _: False
) -> list[MergedBlocks]:
    """Merged blocks of the chain up to `head`, oldest merge first, as far as they are here."""
    sources: list[Multihash] = []
    for merge in dataset.chain.nearest_all(MERGE, head=head):
        names = merged_names(merge.block.event)
        if names and until(names[0]):
            # sources are sent oldest first: `until` holds for those of older merges, too
            break
        sources += names[:1]
    known: set[Multihash] = set()
    found = []
    for source in reversed(sources):
        found.append(_brought(dataset, head, source, known))
        known |= found[-1].blocks.keys()
    return [merged for merged in found if merged.blocks]


def _brought(
    dataset: DatasetFiles, head: Multihash, source: Multihash, known: Collection[Multihash]
) -> MergedBlocks:
    found: dict[Multihash, MetadataBlock] = {}
    waiting, whole = [source], True
    while waiting:
        current: Multihash | None = waiting.pop()
        while current is not None and current not in found and current not in known:
            if not dataset.chain.contains(current):
                whole = False
                break
            block = dataset.chain.get(current)
            if dataset.chain.hash_at(block.sequence_number, head) == current:
                break
            found[current] = block
            waiting += merged_names(block.event)[:1]
            current = block.prev_block_hash
    return MergedBlocks(source, found, whole)


def sendable(dataset: DatasetFiles, merged: MergedBlocks) -> bool:
    """True if all of it is here, slices and checkpoints, too."""
    return merged.whole and not absent(dataset, merged.objects)


def unknown_sources(dataset: DatasetFiles, head: Multihash) -> Iterator[Multihash]:
    """The sources of merges that are not here, also of merges in what was merged."""
    waiting, seen = [head], set[Multihash]()
    while waiting:
        for merge in dataset.chain.nearest_all(MERGE, head=waiting.pop()):
            if merge.hash in seen:
                break  # what is older was seen with it
            seen.add(merge.hash)
            for name in merged_names(merge.block.event)[:1]:
                if dataset.chain.contains(name):
                    waiting.append(name)
                else:
                    yield name


def pull_branch(
    dataset: DatasetFiles,
    peer: Peer,
    where: str,
    options: SyncOptions = DEFAULTS,
    progress: Progress = SILENT,
) -> SyncOutcome:
    """The branch that the dataset is opened on is the peer's of that name, or is as it was.

    `where` is remembered as the place that it came from. A branch that has nothing of its own follows the
    peer's also where that was set back; what is given up stays under a reference.

    Raises:
        BranchNotFoundError: the peer has no such branch.
        DatasetsDivergedError, DestinationAheadError: the branch here has blocks of its own (unless `force`),
            or the peer's is of another dataset.
        SignatureError: its signature is not what the options want.
        CorruptedPeerError: what the peer sent is wrong; the message names the object or the block.
        AccessError, TransferError: the peer refuses or cannot be reached.
        RefConflictError: another writer moved the branch meanwhile.
        BrokenChainError, CodecError: the local dataset is damaged.
        StorageFullError, StoreError: it cannot be stored.
    """
    peer.ref = dataset.ref
    head = peer.head()
    if head is None:
        raise _no_branch(peer)
    about = f"{dataset.alias}@{dataset.ref}"
    signature = check_branch(peer.signed(SignedFile.HEAD), dataset.on(HEAD).id, dataset.ref, head)
    refuse_unsigned(signature, options.signature or NO_POLICY, name=about, where=peer.where)
    with fsio.locked(lock_path(dataset)), arriving(dataset, peer, options.parallel, progress) as beside:
        old, entry = dataset.chain.head(), fetched_branch(dataset, dataset.ref)
        beside.read(head)
        status = _status(beside, old, head)
        fetched = {known.block for known in fetched_branches(dataset)}
        own = old not in fetched or dataset.shared.where is not None  # other machines have added to it
        if status is SyncStatus.OVERWRITTEN and old is not None:
            if own and not options.force:
                raise _refusal(dataset, peer, beside, old, head)
            keep_reachable(dataset, old)
        if not options.on_demand:
            beside.bring(selection_of(dataset))
        beside.store()
        if status is not SyncStatus.UP_TO_DATE:
            trusted = _trusted(dataset, beside, old, entry)
            remember_fetched(dataset, FetchedBranch(dataset.ref, where, head, trusted))
            dataset.chain.set_ref(dataset.ref, head, expected=old)
    _keep_signature(dataset, head, signature)
    wrong = signature.status is SignatureStatus.INVALID
    return SyncOutcome(
        status,
        old,
        head,
        len(beside.new),
        beside.arrival.objects,
        beside.arrival.bytes,
        missing_slices(dataset),
        signature,
        warnings=(f"{about} at {peer.where}: {signature.message}; it is not kept",) if wrong else (),
    )


def _status(beside: Beside, old: Multihash | None, head: Multihash) -> SyncStatus:
    if old is None:
        return SyncStatus.CREATED
    if old == head:
        return SyncStatus.UP_TO_DATE
    return SyncStatus.UPDATED if beside.has(old) else SyncStatus.OVERWRITTEN


def _trusted(
    dataset: DatasetFiles, beside: Beside, old: Multihash | None, entry: FetchedBranch | None
) -> Multihash:
    if entry is not None and beside.has(entry.verified):
        return entry.verified
    # no record of a fetch: the branch was made here
    if entry is None and old is not None:
        return beside.newest_of(old)
    return beside.newest_of(DatasetState.read(dataset.on(HEAD).chain).head)


def _refusal(
    dataset: DatasetFiles, peer: Peer, beside: Beside, old: Multihash, head: Multihash
) -> ChainsDifferError:
    number = dataset.chain.get(old).sequence_number
    fork = beside.newest_of(old)
    ours = number - dataset.chain.get(fork).sequence_number
    name, branch = f"{dataset.alias}@{dataset.ref}", dataset.ref
    rename = f"`odfchain branch rename {dataset.alias} {branch} my-{branch}`"
    give_up = "give its blocks up with --force"
    if fork == head:
        return DestinationAheadError(
            f"{name} has {_count(ours)} that {peer.where} has not: its branch is at {shortened(head)}",
            source_head=str(head),
            destination_head=str(old),
            source_blocks=0,
            destination_blocks=ours,
            common=str(fork),
            hint=f"push them (`odfchain push {name}`), or {give_up}",
        )
    return DatasetsDivergedError(
        f"{name} and {peer.where} diverged after block {shortened(fork)}: {_count(ours)} only here",
        source_head=str(head),
        destination_head=str(old),
        source_blocks=len(beside.new),
        destination_blocks=ours,
        common=str(fork),
        hint=f"{rename}, then pull again and merge the two; or {give_up}",
    )


def _count(blocks: int) -> str:
    return f"{blocks:,} block{'' if blocks == 1 else 's'}"


def _keep_signature(dataset: DatasetFiles, head: Multihash, found: HeadSignature) -> None:
    path = dataset.folder / signature_key(dataset.ref)
    with fsio.locked(dataset.folder / "info" / "lock"):
        if dataset.chain.head() != head:
            return
        if found.status is SignatureStatus.SIGNED:
            fsio.replace_file(path, f"{found.text}\n".encode())
        else:
            fsio.remove_quietly(path)


def _no_branch(peer: Peer) -> BranchNotFoundError:
    others = peer.branches()
    return BranchNotFoundError(
        f"{peer.where}: no branch {peer.ref!r}",
        hint=f"its branches: {', '.join(others[:20])}"
        if others
        else "branches are there where they were pushed (`odfchain push DATASET@BRANCH`), or are served "
        "(`odfchain serve --branches`)",
    )


# --- what was merged -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchedSources:
    """Fetched blocks, slices and checkpoints [count], and their size [bytes]."""

    blocks: int
    objects: int
    bytes: int


def fetch_merged(
    dataset: DatasetFiles, peer: Peer, *, parallel: int = 10, progress: Progress = SILENT
) -> FetchedSources:
    """All that was merged into the dataset is here, from any mirror: nothing but hashes is believed.

    Raises:
        AccessError, TransferError: the peer refuses, cannot be reached, or does not have all of it. What it
            has is here then.
    """
    # merge records are followed by hash; no reference of the peer is requested
    found, lacking = bring_merged(dataset, peer, parallel=parallel, progress=progress)
    if lacking:
        raise TransferError(
            f"{peer.where}: {len(lacking):,} of the branches that were merged into {dataset.alias} "
            f"are not there: {', '.join(map(shortened, lacking[:3]))}; what is there was brought",
            hint="try another copy of the dataset: --from URL",
        )
    return found


def bring_merged(
    dataset: DatasetFiles,
    peer: Peer,
    *,
    on_demand: bool = False,
    parallel: int = 10,
    progress: Progress = SILENT,
) -> tuple[FetchedSources, list[Multihash]]:
    """As `fetch_merged`, but what the peer does not have is returned; `on_demand` no slices come."""
    blocks, lacking = 0, list[Multihash]()
    head = DatasetState.read(dataset.chain).head
    with fsio.locked(lock_path(dataset)), arriving(dataset, peer, parallel, progress) as beside:
        while wanted := _next_source(dataset, head, lacking):
            try:
                beside.read(wanted)
                if not on_demand:
                    beside.bring(EVERYTHING)
                # before it is there: a merge may need it for its base, and believes only what was verified
                fork = beside.newest_of(DatasetState.read(dataset.on(HEAD).chain).head)
                remember_fetched(dataset, FetchedBranch(None, peer.where, wanted, fork))
                blocks += beside.store()
            except CorruptedPeerError as error:
                if not isinstance(error.__cause__, AbsentError):
                    raise
                lacking.append(wanted)
        if not on_demand:
            merged = [item for found in merged_into(dataset, head) for item in found.objects]
            beside.arrival.bring(dataset, merged)
    return FetchedSources(blocks, beside.arrival.objects, beside.arrival.bytes), lacking


def _next_source(dataset: DatasetFiles, head: Multihash, lacking: Collection[Multihash]) -> Multihash | None:
    return next((name for name in unknown_sources(dataset, head) if name not in lacking), None)
