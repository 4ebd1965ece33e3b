"""Branches of a dataset in a store that machines share, as they come into the folder of this machine.

    refs/NAME           as a push of a branch writes it; empty once the branch was deleted
    refs/NAME.jws       the owner's signature of that

They are asked for when somebody names one, or lists them, and not at each opening. Blocks come as a pull of a
branch brings them; those of other machines are verified before they are merged, as those of any peer. What
was merged comes too, without slices. Source: RFC-048, RFC-038.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from odfchain.chain.index import MERGE
from odfchain.errors import ChainsDifferError, CorruptedPeerError, OdfchainError, StoreError
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.fetched_branches import fetched_branch, rename_fetched
from odfchain.repo.merge_record import merged_names
from odfchain.repo.points import is_referenced
from odfchain.repo.references import (
    branch_names,
    keep_reachable,
    lock_path,
    overwritten_name,
    remove_branch,
)
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.transfer.branch_pulling import bring_merged, pull_branch
from odfchain.transfer.merged_sources import unknown_sources
from odfchain.transfer.object_peer import ObjectPeer
from odfchain.transfer.object_space import ObjectSpace
from odfchain.transfer.sync import SyncOptions, SyncStatus
from odfchain.trust.signer import warn


def listed_branches(space: ObjectSpace, dataset: DatasetFiles) -> list[str]:
    """The names that branches have in the store, and those that they have here: a listing may lag."""
    listed = space.listed(f"datasets/{dataset.folder.name}/refs", SHARING.shared_names)
    return sorted({each.key for each in listed if is_branch_name(each.key)} | {*branch_names(dataset)})


def follow_branches(
    dataset: DatasetFiles,
    names: Sequence[str],
    ask: Callable[[str], Multihash | None],
    peer: Callable[[str], ObjectPeer],
) -> dict[str, OdfchainError]:
    """Branches are here as the store has them, which is asked for each; returns those that are damaged."""
    problems: dict[str, OdfchainError] = {}

    def head_of(name: str) -> tuple[str, Multihash | None]:
        try:
            return name, ask(name)
        except CorruptedPeerError as error:
            problems[name] = error
            return name, None

    with ThreadPoolExecutor(SHARING.parallel, thread_name_prefix="branches") as pool:
        heads = list(pool.map(head_of, names))
    # those that are gone come last: another one may have their blocks now
    for name, head in sorted(heads, key=lambda pair: pair[1] is None):
        if name not in problems:
            try:
                follow_branch(dataset.on(name), peer(name), head)
            except (CorruptedPeerError, ChainsDifferError, StoreError) as error:
                problems[name] = error
    return problems


def follow_branch(branch: DatasetFiles, peer: ObjectPeer, there: Multihash | None) -> None:
    """The branch that a dataset is opened on is here as it is `there`, or is not.

    A branch may have been deleted and made anew, or put back; what is given up here stays under a reference.
    """
    here = branch.chain.head()
    if here == there:
        return
    if there is not None:
        known = fetched_branch(branch, branch.ref)
        where = peer.where if known is None else known.where
        outcome = pull_branch(branch, peer, where, SyncOptions(on_demand=True, force=True))
        for text in outcome.warnings:
            warn(text)
        if here is not None and outcome.status is SyncStatus.OVERWRITTEN and not _is_needed(branch, here):
            kept = f"does not continue what was seen here, which stays under refs/{overwritten_name(here)}"
            warn(f"{branch.label}: the branch in {peer.where} {kept}")
        return
    with fsio.locked(lock_path(branch)):
        if (here := branch.chain.head()) is not None:
            if not _is_needed(branch, here):
                keep_reachable(branch, here)
            remove_branch(branch, here)
            rename_fetched(branch, branch.ref, None)


def _is_needed(branch: DatasetFiles, block: Multihash) -> bool:
    """Whether the head or another branch has a block of a branch, or has merged it."""
    for on in [branch.on(ref) for ref in (HEAD, *branch_names(branch)) if ref != branch.ref]:
        head = on.chain.head()
        if head is not None and (is_referenced(on, block, head=head) or _has_merged(on, block)):
            return True
    return False


def _has_merged(dataset: DatasetFiles, block: Multihash) -> bool:
    return any(block in merged_names(merge.block.event)[:1] for merge in dataset.chain.nearest_all(MERGE))


def follow_merged(dataset: DatasetFiles, peer: ObjectPeer) -> None:
    """The blocks that were merged into the chain of an open dataset are here, if the store has them."""
    head = dataset.chain.head()
    if head is not None and any(True for _ in unknown_sources(dataset, head)):
        bring_merged(dataset, peer, on_demand=True)
