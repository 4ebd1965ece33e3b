"""Blocks that are fetched while the head stays: those of branches, and those that were merged into a chain.

They lead to one of the dataset's own chains, so they have its Seed, and keep the append rules. They are
stored oldest first, after their slices and checkpoints. Source: RFC-021, RFC-038.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from odfchain import errors
from odfchain.chain.compare import Diverged
from odfchain.chain.index import MERGE
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.storage.store import AbsentError, Store
from odfchain.transfer.slice_files import DataObject, incoming_folder, objects_of
from odfchain.transfer.sync import BlockSpool, ChainFetch, Download, differ, shortened
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import FetchedBranch, FetchedBranches, merged_names
from odfchain.workspace.points import lock_path


class BranchFetch(ChainFetch):
    """One of a branch, or of what was merged: it leads to the chain of the head, or to the branch's own."""

    def read(self, head: Multihash) -> list[DataObject]:
        """The blocks up to `head` are received and checked; returns what new ones refer to."""
        with self.links() as links:
            self.descend(links, head)
            if self.common is None:
                raise self._other_dataset(head)
            return self.check(links)

    def fork_with(self, head: Multihash) -> Multihash:
        """The newest block of another chain of the dataset, up to `head`, that is one of the chain."""
        fork = self.newest_of(head)
        assert fork is not None  # noqa: S101 - they have the same seed
        return fork

    def _other_dataset(self, head: Multihash) -> errors.ChainsDifferError:
        state = DatasetState.read(self.dataset.on(HEAD).chain)
        return differ(
            (head, state.head, Diverged(len(self.new), state.head_block.sequence_number + 1, None)),
            f"{self.download.peer.where}: block {shortened(head)} is of another dataset than "
            f"{self.dataset.alias}: they have no block in common",
            "check the URL",
        )


@contextmanager
def fetching(dataset: DatasetFiles, peer: Store, parallel: int, progress: Progress) -> Iterator[BranchFetch]:
    """A private area for a fetch, removed afterwards unless the next attempt can use it.

    The caller holds the lock for what arrives.
    """
    area = incoming_folder(dataset) / f"beside-{dataset.ref}"
    try:
        download, spool = Download(peer, area, parallel, progress), BlockSpool(area / "blocks")
        yield BranchFetch(dataset, download, spool, dict.fromkeys((HEAD, dataset.ref)))
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
        if (names := merged_names(merge.block.event)) and until(names[0]):
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


@dataclass(frozen=True, slots=True)
class FetchedSources:
    """Fetched blocks, slices and checkpoints [count], and their size [bytes]."""

    blocks: int
    objects: int
    bytes: int


def bring_merged(
    dataset: DatasetFiles,
    peer: Store,
    *,
    on_demand: bool = False,
    parallel: int = 10,
    progress: Progress = SILENT,
) -> tuple[FetchedSources, list[Multihash]]:
    """All that was merged into the dataset is here, from any mirror, but for what the peer lacks.

    Nothing but hashes is believed. `on_demand` no slices come. Returns also the sources that are lacking.
    """
    blocks, lacking = 0, list[Multihash]()
    head = DatasetState.read(dataset.chain).head
    with fsio.locked(lock_path(dataset)), fetching(dataset, peer, parallel, progress) as fetch:
        while wanted := next((n for n in unknown_sources(dataset, head) if n not in lacking), None):
            try:
                blocks += _bring_source(fetch, wanted, on_demand=on_demand)
            except errors.CorruptedPeerError as error:
                if not isinstance(error.__cause__, AbsentError):
                    raise
                lacking.append(wanted)
        if not on_demand:
            merged = [item for found in merged_into(dataset, head) for item in found.objects]
            fetch.download.bring(dataset, merged)
    return FetchedSources(blocks, fetch.download.objects, fetch.download.bytes), lacking


def _bring_source(fetch: BranchFetch, source: Multihash, *, on_demand: bool) -> int:
    # named by hash: no reference is asked for or moved, which is all that it lacks of a pull
    dataset, download, objects = fetch.dataset, fetch.download, fetch.read(source)
    if not fetch.new:
        return 0
    if not on_demand:
        download.bring(dataset, objects)
    # before it is there: a merge may need it for its base, and believes only what was verified
    fork = fetch.fork_with(DatasetState.read(dataset.on(HEAD).chain).head)
    FetchedBranches(dataset).remember(FetchedBranch(None, download.peer.where, source, fork))
    return fetch.store()
