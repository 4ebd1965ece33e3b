"""Pulling branches of others, and what was merged into a chain.

A branch comes in beside the head, which stays where it is: blocks, rules, slices, then one compare-and-swap
of the branch, then its signature. Where it came from is noted before it is there, so that nobody merges it as
if he had made it. An interruption before that leaves the dataset as it was. Source: RFC-038.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from odfchain.errors import (
    BranchNotFoundError,
    ChainsDifferError,
    CorruptedPeerError,
    DatasetsDivergedError,
    DestinationAheadError,
    TransferError,
)
from odfchain.ids.multihash import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.fetched_branches import FetchedBranch, fetched_branch, fetched_branches, remember_fetched
from odfchain.repo.references import keep_reachable, lock_path
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.transfer.beside_head import Beside, arriving
from odfchain.transfer.differences import shortened
from odfchain.transfer.merged_sources import merged_into, unknown_sources
from odfchain.transfer.partial import selection_of
from odfchain.transfer.peer import AbsentError, Peer
from odfchain.transfer.slice_counts import missing_slices
from odfchain.transfer.slice_files import EVERYTHING
from odfchain.transfer.sync import DEFAULTS, SyncOptions, SyncOutcome, SyncStatus
from odfchain.trust.offered import refuse_unsigned
from odfchain.trust.parties import SignedFile
from odfchain.trust.signature_policy import NO_POLICY
from odfchain.trust.signed_branch import check_branch
from odfchain.trust.signed_head import HeadSignature, SignatureStatus, signature_key


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
    """The newest block of the branch that was made here, or that was verified."""
    if entry is not None and beside.has(entry.verified):
        return entry.verified
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
        f"{name} and {peer.where} went apart after block {shortened(fork)}: {_count(ours)} only here",
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
        f"{peer.where}: there is no branch {peer.ref!r}",
        hint=f"it says that it has: {', '.join(others[:20])}"
        if others
        else "branches are there where they were pushed (`odfchain push DATASET@BRANCH`), or are served "
        "(`odfchain serve --branches`)",
    )


# --- what was merged -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchedSources:
    """What was brought: blocks, slices and checkpoints [count], and their size [bytes]."""

    blocks: int
    objects: int
    bytes: int


def fetch_merged(
    dataset: DatasetFiles, peer: Peer, *, parallel: int = 10, progress: Progress = SILENT
) -> FetchedSources:
    """All that was merged into the dataset is here, from any mirror: nothing but hashes is believed.

    Merge records are followed by hash; no reference of the peer is asked for.

    Raises:
        AccessError, TransferError: the peer refuses, cannot be reached, or does not have all of it. What it
            has is here then.
    """
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
