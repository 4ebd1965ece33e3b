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

from odfchain import errors
from odfchain.chain.compare import Descent, Diverged
from odfchain.chain.index import MERGE
from odfchain.chain.signed_heads import (
    HeadSignature,
    SignatureStatus,
    SignedFile,
    check_branch,
    signature_key,
)
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore
from odfchain.text import counted
from odfchain.transfer.peer import AbsentError, Peer
from odfchain.transfer.pulling import DEFAULTS, SyncOptions, SyncOutcome, SyncStatus
from odfchain.transfer.receive import BlockSpool, Download, differ, shortened
from odfchain.transfer.signed_statements import NO_POLICY, refuse_unsigned
from odfchain.transfer.slice_files import (
    EVERYTHING,
    DataObject,
    Selection,
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


class BranchFetch:
    """The blocks up to one that a peer has, and the newest of them that the dataset's chains have.

    Those are the chain of the head, and that of the branch that the dataset is opened on.
    """

    def __init__(self, dataset: DatasetFiles, download: Download) -> None:
        self.download = download
        # The blocks that the chains do not have, newest first.
        self.new: Sequence[Multihash] = ()
        self._dataset = dataset
        self._spool = BlockSpool(download.area / "blocks")
        self._objects: list[DataObject] = []
        chains = [dataset.on(ref) for ref in dict.fromkeys((HEAD, dataset.ref))]
        self._own = [(on, top) for on in chains if (top := on.chain.head()) is not None]
        self._common = self._own[0][1]
        self._number = -1

    def read(self, head: Multihash) -> None:
        """The blocks up to `head` are received and checked."""
        fsio.make_folder(self._spool.folder)
        with self.download.links(self._spool, LocalObjectStore(self._dataset.folder / "blocks")) as links:
            descent = Descent(links, head)
            while descent.at is not None and not any(
                on.chain.hash_at(descent.number, top) == descent.at for on, top in self._own
            ):
                descent.step()
            if descent.at is None:
                raise self._other_dataset(head, len(descent.passed))
            self.new, self._common, self._number = descent.passed, descent.at, descent.number
            base = self._dataset.chain.history(descent.at)
            self._objects = self.download.check(links, self.new, base).objects if self.new else []

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
        """The slices and checkpoints of the new blocks are here."""
        self.download.bring(self._dataset, selection.of(self._objects))

    def store(self) -> int:
        """The new blocks are stored; returns how many of them were not here."""
        return self.download.publish(self._dataset, self._spool, self.new)

    def _other_dataset(self, head: Multihash, count: int) -> errors.DatasetsDivergedError:
        here = self._own[0][1]
        return differ(
            errors.DatasetsDivergedError,
            (head, here, Diverged(count, self._dataset.chain.get(here).sequence_number + 1, None)),
            f"{self.download.peer.where}: block {shortened(head)} is of another dataset than "
            f"{self._dataset.alias}: they have no block in common",
            "check the URL",
        )


@contextmanager
def fetching(dataset: DatasetFiles, peer: Peer, parallel: int, progress: Progress) -> Iterator[BranchFetch]:
    """A private area for a fetch, removed afterwards unless the next attempt can use it.

    The caller holds the lock for what arrives.
    """
    area = incoming_folder(dataset) / f"beside-{dataset.ref}"
    try:
        yield BranchFetch(dataset, Download(peer, area, parallel, progress))
    except (errors.CorruptedPeerError, errors.ChainsDifferError):
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
    peer's also where that was rewound; what is given up stays under a reference.
    """
    peer.ref = dataset.ref
    head = peer.head()
    if head is None:
        raise _no_branch(peer)
    about = f"{dataset.alias}@{dataset.ref}"
    signature = check_branch(peer.signed(SignedFile.HEAD), dataset.on(HEAD).id, dataset.ref, head)
    refuse_unsigned(signature, options.signature or NO_POLICY, name=about, where=peer.where)
    with fsio.locked(lock_path(dataset)), fetching(dataset, peer, options.parallel, progress) as fetch:
        old, entry = dataset.chain.head(), fetched_branch(dataset, dataset.ref)
        fetch.read(head)
        status = _status(fetch, old, head)
        fetched = {known.block for known in fetched_branches(dataset)}
        own = old not in fetched or dataset.shared.where is not None  # other machines have added to it
        if status is SyncStatus.OVERWRITTEN and old is not None:
            if own and not options.force:
                raise _refusal(dataset, peer, fetch, old, head)
            keep_reachable(dataset, old)
        if not options.on_demand:
            fetch.bring(selection_of(dataset))
        fetch.store()
        if status is not SyncStatus.UP_TO_DATE:
            trusted = _trusted(dataset, fetch, old, entry)
            remember_fetched(dataset, FetchedBranch(dataset.ref, where, head, trusted))
            dataset.chain.set_ref(dataset.ref, head, expected=old)
    _keep_signature(dataset, head, signature)
    wrong = signature.status is SignatureStatus.INVALID
    return SyncOutcome(
        status,
        old,
        head,
        len(fetch.new),
        fetch.download.objects,
        fetch.download.bytes,
        missing_slices(dataset),
        signature,
        warnings=(f"{about} at {peer.where}: {signature.message}; it is not kept",) if wrong else (),
    )


def _status(fetch: BranchFetch, old: Multihash | None, head: Multihash) -> SyncStatus:
    if old is None:
        return SyncStatus.CREATED
    if old == head:
        return SyncStatus.UP_TO_DATE
    return SyncStatus.UPDATED if fetch.has(old) else SyncStatus.OVERWRITTEN


def _trusted(
    dataset: DatasetFiles, fetch: BranchFetch, old: Multihash | None, entry: FetchedBranch | None
) -> Multihash:
    if entry is not None and fetch.has(entry.verified):
        return entry.verified
    # no record of a fetch: the branch was made here
    if entry is None and old is not None:
        return fetch.newest_of(old)
    return fetch.newest_of(DatasetState.read(dataset.on(HEAD).chain).head)


def _refusal(
    dataset: DatasetFiles, peer: Peer, fetch: BranchFetch, old: Multihash, head: Multihash
) -> errors.ChainsDifferError:
    number = dataset.chain.get(old).sequence_number
    fork = fetch.newest_of(old)
    ours = number - dataset.chain.get(fork).sequence_number
    name, branch = f"{dataset.alias}@{dataset.ref}", dataset.ref
    rename = f"`odfchain branch rename {dataset.alias} {branch} my-{branch}`"
    give_up = "give its blocks up with --force"
    found = Diverged(0 if fork == head else len(fetch.new), ours, fork)
    if fork == head:
        return differ(
            errors.DestinationAheadError,
            (head, old, found),
            f"{name} has {counted(ours, 'block')} that {peer.where} has not: its branch is at "
            f"{shortened(head)}",
            f"push them (`odfchain push {name}`), or {give_up}",
        )
    return differ(
        errors.DatasetsDivergedError,
        (head, old, found),
        f"{name} and {peer.where} diverged after block {shortened(fork)}: {counted(ours, 'block')} only here",
        f"{rename}, then pull again and merge the two; or {give_up}",
    )


def _keep_signature(dataset: DatasetFiles, head: Multihash, found: HeadSignature) -> None:
    path = dataset.folder / signature_key(dataset.ref)
    with fsio.locked(dataset.folder / "info" / "lock"):
        if dataset.chain.head() != head:
            return
        if found.status is SignatureStatus.SIGNED:
            fsio.replace_file(path, f"{found.text}\n".encode())
        else:
            fsio.remove_quietly(path)


def _no_branch(peer: Peer) -> errors.BranchNotFoundError:
    others = peer.branches()
    return errors.BranchNotFoundError(
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


def bring_merged(
    dataset: DatasetFiles,
    peer: Peer,
    *,
    on_demand: bool = False,
    parallel: int = 10,
    progress: Progress = SILENT,
) -> tuple[FetchedSources, list[Multihash]]:
    """All that was merged into the dataset is here, from any mirror, but for what the peer lacks.

    Nothing but hashes is believed. `on_demand` no slices come. Returns also the sources that are lacking.
    """
    # merge records are followed by hash; no reference of the peer is requested
    blocks, lacking = 0, list[Multihash]()
    head = DatasetState.read(dataset.chain).head
    with fsio.locked(lock_path(dataset)), fetching(dataset, peer, parallel, progress) as fetch:
        while wanted := next((n for n in unknown_sources(dataset, head) if n not in lacking), None):
            try:
                fetch.read(wanted)
                if not on_demand:
                    fetch.bring(EVERYTHING)
                # before it is there: a merge may need it for its base, and believes only what was verified
                fork = fetch.newest_of(DatasetState.read(dataset.on(HEAD).chain).head)
                remember_fetched(dataset, FetchedBranch(None, peer.where, wanted, fork))
                blocks += fetch.store()
            except errors.CorruptedPeerError as error:
                if not isinstance(error.__cause__, AbsentError):
                    raise
                lacking.append(wanted)
        if not on_demand:
            merged = [item for found in merged_into(dataset, head) for item in found.objects]
            fetch.download.bring(dataset, merged)
    return FetchedSources(blocks, fetch.download.objects, fetch.download.bytes), lacking
