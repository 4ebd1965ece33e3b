"""The newest blocks of a chain alone, with what earlier ones say that is still in force.

Following the chain to its Seed takes as long as it is. Where only its newest blocks are asked for, the
earlier ones that the checks need (the one before, the newest of each kind, all sources and schemas) are
looked up in the chain's index, and read and hashed; that there are no others is the index's word. So the
report says of the checks that rest on it that they were not made everywhere (RFC-051).
"""

from __future__ import annotations

from odfchain.audit.checks import BLOCKS, LINKS, RULES, SCHEMA, SYSTEM
from odfchain.audit.report import Report
from odfchain.audit.stored_blocks import StoredBlock, StoredBlocks
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import EVENT_KINDS, MERGE
from odfchain.errors import OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.model import events as ev
from odfchain.repo.dataset_files import DatasetFiles

_ALL_OF = (
    (ev.AddPushSource.KIND, ev.DisablePushSource.KIND),
    (ev.SetPollingSource.KIND, ev.DisablePollingSource.KIND),
    (ev.SetDataSchema.KIND,),
    (MERGE,),
)
"""Events of which an earlier one counts beside the newest; they are few."""
_RESTS_ON_THE_INDEX = (BLOCKS, LINKS, RULES, SYSTEM, SCHEMA)


def add_what_is_in_force(
    dataset: DatasetFiles, blocks: StoredBlocks, before: Multihash, report: Report
) -> bool:
    """Add the earlier blocks that count from `before` on; False where they cannot be looked up."""
    number = blocks.oldest.number
    report.skip(
        _RESTS_ON_THE_INDEX,
        f"the chain was read down to block {number:,}: what is in force before it was looked up in its index",
    )
    try:
        for found in _in_force(dataset, before):
            data = dataset.chain.get_bytes(found.hash)
            blocks.add(StoredBlock(found.hash, found.block, True, found.block.sequence_number), data)
    except OdfchainError as error:
        report.leave_out(
            f"what is in force before block {number:,} cannot be looked up: {error.message}", check=RULES
        )
        return False
    return True


def _in_force(dataset: DatasetFiles, before: Multihash) -> list[HashedBlock]:
    """Newest first."""
    chain = dataset.chain
    found = {before: HashedBlock(before, chain.get(before))}
    nearest = (chain.nearest(kind, head=before) for kind in EVENT_KINDS)
    others = (block for kinds in _ALL_OF for block in chain.nearest_all(*kinds, head=before))
    for block in (*nearest, *others):
        if block is not None:
            found[block.hash] = block
    return sorted(found.values(), key=lambda item: -item.block.sequence_number)
