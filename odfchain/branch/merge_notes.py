"""What whoever merges should know: changes that do not come again, and corrections that will not last."""

from __future__ import annotations

from collections.abc import Iterator

from odfchain.branch.block_graph import BlockGraph
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import MERGE
from odfchain.ids.multihash import Multihash
from odfchain.model.events import AddData
from odfchain.model.sources import MergeStrategySnapshot
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import MergeMode, is_merge_state, understood_record
from odfchain.text import one_line


def notes_on(graph: BlockGraph, target: DatasetState, source: Multihash) -> tuple[str, ...]:
    """Notes on merging a block into a target."""
    return (*_reverted(graph, target, source), *_polled(target))


def _reverted(graph: BlockGraph, target: DatasetState, source: Multihash) -> Iterator[str]:
    """Merges of what the source has that the target took back again, newest first."""
    # what the source has and the target merged came after their fork
    oldest = graph.number(graph.fork(target.head, source))
    reverted: dict[Multihash, int] = {}
    for block in target.chain.nearest_all(MERGE, head=target.head):
        number = block.block.sequence_number
        if number <= oldest:
            return
        record = understood_record(block.block.event)
        if record is None:
            continue
        if record.mode is MergeMode.REVERT:
            reverted[record.base[0]] = number
            continue
        merged = block.hash in reverted and graph.is_stored(record.source)
        if merged and graph.is_ancestor(record.source, source):
            yield (
                f"block {number:,}, which merged {one_line(record.source_ref)}, was reverted by block "
                f"{reverted[block.hash]:,}: its changes do not come again, unless that block is reverted"
            )


def _polled(target: DatasetState) -> Iterator[str]:
    source = target.polling_source
    if source is not None and isinstance(source.merge, MergeStrategySnapshot) and _polls_itself(target):
        yield (
            f"{target.chain.ref} polls a Snapshot itself: its next pull takes back what is not like that "
            "upstream; poll on a branch, and merge that one"
        )


def _polls_itself(target: DatasetState) -> bool:
    """Whether the state of the source came by a poll here, and not with the merge of a branch that polls."""
    state = target.source_state
    if state is None:
        return False
    first: HashedBlock | None = None
    for block in target.chain.nearest_all("AddData", head=target.head):
        event = block.block.event
        given = event.new_source_state if isinstance(event, AddData) else None
        if is_merge_state(given):
            continue
        if given != state:
            break
        first = block
    before = first.block.prev_block_hash if first is not None else None
    return before is None or understood_record(target.chain.get(before).event) is None
