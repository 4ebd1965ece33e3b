"""What was merged into a chain and is no part of it: the blocks that a merge is computed again from.

Whoever has the chain alone has a whole dataset; these blocks are there for who wants to check its merges.
They are sent and stored in an order in which a block that is there has its chain there, and the source of a
merge all that its own chain has merged. Source: RFC-038.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from odfchain.chain.index import MERGE
from odfchain.ids.multihash import Multihash
from odfchain.model.metadata_block import MetadataBlock
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.merge_record import merged_names
from odfchain.transfer.slice_files import DataObject, absent, objects_of


@dataclass(frozen=True, slots=True)
class MergedBlocks:
    """What one merge brought in, without what older merges brought."""

    source: Multihash
    blocks: dict[Multihash, MetadataBlock]
    whole: bool
    """Whether all blocks are here."""

    @property
    def in_order(self) -> list[Multihash]:
        """Oldest first, the source last."""
        return sorted(self.blocks, key=lambda name: (name == self.source, self.blocks[name].sequence_number))

    @property
    def objects(self) -> list[DataObject]:
        """What the blocks bring."""
        return [item for name in self.in_order for item in objects_of(self.blocks[name])]


def merged_into(
    dataset: DatasetFiles, head: Multihash, until: Callable[[Multihash], bool] = lambda _: False
) -> list[MergedBlocks]:
    """What was merged into the chain up to `head`, oldest merge first, as far as it is here.

    Merges are looked at from the newest on, as long as `until` is not so of their source.
    """
    sources: list[Multihash] = []
    for merge in dataset.chain.nearest_all(MERGE, head=head):
        names = merged_names(merge.block.event)
        if names and until(names[0]):
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
    """Whether all of it is here, slices and checkpoints, too."""
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
