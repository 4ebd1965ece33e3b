"""What an input's chain has to say between the block that it was read up to and a later one.

Only the blocks that matter to a transformation are read (data, schemas, vocabularies); the others are skipped
through the chain's index. Source: specification "ExecuteTransformInput", "Schema Evolution".
"""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.errors import DivergedInputError, ObjectNotFoundError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.engine_messages import Watermark
from odfchain.model.events import AddData, DataSlice, ExecuteTransform, OffsetInterval
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState

_KINDS = (*DATA_EVENTS, "SetDataSchema", "SetVocab")


@dataclass(frozen=True, slots=True)
class Backlog:
    """The blocks `(prev, last]` of an input; `blocks` are those that matter, oldest first."""

    prev: Multihash | None
    last: Multihash
    blocks: tuple[HashedBlock, ...]

    @property
    def slices(self) -> tuple[DataSlice, ...]:
        """The data, oldest first."""
        return tuple(data for _, block in self.blocks if (data := block.new_data) is not None)

    @property
    def interval(self) -> OffsetInterval | None:
        """Offsets of the records; None when there are none."""
        slices = self.slices
        if not slices:
            return None
        return OffsetInterval(start=slices[0].offset_interval.start, end=slices[-1].offset_interval.end)

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """Those of the data blocks, oldest first."""
        return tuple(mark for found in self.blocks if (mark := _watermark(found)) is not None)

    def cut(self, chain: MetadataChain) -> tuple[Backlog, Backlog]:
        """What one step may take, and the rest: the records of the first all have one schema and vocabulary.

        A change cuts only after records. One that comes before them is in force for all of them, and a piece
        without records would be a step that brings nothing.
        """
        filled = False
        for index, (_, block) in enumerate(self.blocks):
            event = block.event
            if isinstance(event, AddData | ExecuteTransform):
                filled = filled or event.new_data is not None
            elif filled and _changes_form(chain, self.blocks[index]):
                before = block.prev_block_hash
                assert before is not None  # noqa: S101 - records come before it
                first = Backlog(self.prev, before, self.blocks[:index])
                return first, Backlog(before, self.last, self.blocks[index:])
        return self, Backlog(self.last, self.last, ())


def _changes_form(chain: MetadataChain, block: HashedBlock) -> bool:
    """Whether records look different after a block; to say the same again does not count."""
    before = DatasetState.read(chain, block.block.prev_block_hash)
    after = DatasetState.read(chain, block.hash)
    return (before.schema, before.vocabulary) != (after.schema, after.vocabulary)


def read_backlog(chain: MetadataChain, prev: Multihash | None, last: Multihash) -> Backlog | None:
    """The blocks `(prev, last]`, or None when `prev` is no ancestor of `last`."""
    if prev == last:
        return Backlog(prev, last, ())
    if prev is None:
        return Backlog(None, last, tuple(chain.nearest_all(*_KINDS, head=last))[::-1])
    try:
        end = chain.get(prev)
    except ObjectNotFoundError:
        return None
    blocks: list[HashedBlock] = []
    # Asked for its kind as well, the walk comes by `prev` itself if, and only if, that is an ancestor.
    for item in chain.nearest_all(*_KINDS, end.event.KIND, head=last):
        if item.block.sequence_number <= end.sequence_number:
            return Backlog(prev, last, tuple(blocks[::-1])) if item.hash == prev else None
        if item.block.event.KIND in _KINDS:
            blocks.append(item)
    return None


def watermark_at(chain: MetadataChain, head: Multihash | None) -> Watermark | None:
    """The watermark in force at a block: that of the last data block, because watermarks are kept."""
    found = chain.nearest(*DATA_EVENTS, head=head) if head is not None else None
    return _watermark(found) if found is not None else None


def _watermark(block: HashedBlock) -> Watermark | None:
    event = block.block.event
    if not isinstance(event, AddData | ExecuteTransform) or event.new_watermark is None:
        return None
    return Watermark(system_time=block.block.system_time, event_time=event.new_watermark)


def diverged(
    dataset: DatasetFiles,
    item: DatasetFiles,
    dataset_id: DatasetId,
    read_to: Multihash | None,
    head: Multihash | None,
    *,
    where: str | None = None,
) -> DivergedInputError:
    """The error of an input that was rewritten after it had been read."""
    by = f"{where} of {dataset.alias}" if where is not None else str(dataset.alias)
    return DivergedInputError(
        f"{by}: its input {item.alias} ({dataset_id}) was rewritten: it was read up to block "
        f"{read_to or 'none'}, which is not in its chain any more (its head is {head or 'missing'})",
        hint="--reset-derivatives-on-diverged-input computes the dataset anew from the input as it is now; "
        "to keep its history, restore the input's earlier chain",
    )
