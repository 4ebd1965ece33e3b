"""Which branches and merges need blocks of a chain as they are.

Rewriting a block changes its hash. Then a branch that forked there, or that was merged with it, has no common
history with the chain any more, and whoever computes such a merge again finds other bases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from odfchain.chain.chain import HashedBlock
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.merge_record import understood_record
from odfchain.repo.references import branch_names
from odfchain.store.interfaces import HEAD
from odfchain.upkeep.reachable import merged_blocks


def branches_on(
    dataset: DatasetFiles, chain: Sequence[HashedBlock], blocks: Collection[Multihash], *, merges: bool = True
) -> list[str]:
    """The branches, also merged ones that are gone, that forked from one of these blocks or merged one.

    `blocks` are of `chain`, the whole chain of the dataset's reference; without `merges` its own merges do
    not count.
    """
    own = {found.hash for found in chain}
    refs = [ref for ref in (HEAD, *branch_names(dataset)) if ref != dataset.ref]
    heads = [(dataset.chain.head(ref), ref) for ref in refs]
    waiting = [(head, ref) for head, ref in heads if head is not None]
    for found in chain if merges else ():
        waiting += _merged(dataset, found)
    needing: set[str] = set()
    seen: set[tuple[Multihash, str]] = set()
    while waiting:
        name, branch = waiting.pop()
        current: Multihash | None = name
        while current is not None and current not in own and (current, branch) not in seen:
            seen.add((current, branch))
            block = dataset.chain.get(current)
            waiting += [(merged, branch) for merged in merged_blocks(dataset, block.event)]
            current = block.prev_block_hash
        if current is not None and current in own and current in blocks:
            needing.add(branch)
    return sorted(needing)


def _merged(dataset: DatasetFiles, found: HashedBlock) -> list[tuple[Multihash, str]]:
    merged = merged_blocks(dataset, found.block.event)
    record = understood_record(found.block.event)
    return [(name, record.source_ref) for name in merged] if record is not None else []
