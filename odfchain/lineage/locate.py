"""Records and blocks of a chain: which block added a record, and which blocks added an interval of them.

Offsets grow along the chain, so a block is found by bisection: a few dozen blocks are read however long the
chain is. That offsets grow is a rule that readers check at every append; where a chain breaks it all the
same, it is said and no other block is named. Source: specification "Common Data Schema" (offsets).
"""

from __future__ import annotations

from collections.abc import Callable

from odfchain.chain.chain import HashedBlock
from odfchain.chain.earlier_blocks import DATA_EVENTS, DataEvent
from odfchain.errors import BrokenChainError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import AddData, ExecuteTransform
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState


def data_event(block: HashedBlock) -> DataEvent:
    """The data event of a block that has one.

    Raises:
        BrokenChainError: it has none.
    """
    event = block.block.event
    if not isinstance(event, AddData | ExecuteTransform):
        raise BrokenChainError(f"block {block.block.sequence_number} ({block.hash}) has no data event")
    return event


class Locator:
    """Finds blocks of one dataset, as of the head when it is made.

    Raises:
        BrokenChainError, StoreError, CodecError: the chain cannot be read; so do all methods.
    """

    def __init__(self, dataset: DatasetFiles) -> None:
        self.dataset = dataset
        self.state = DatasetState.read(dataset.chain)
        self.last_offset = self.state.last_offset
        self._hashes: list[Multihash] | None = None

    def hash_of(self, sequence_number: int) -> Multihash:
        """The hash of a block of the chain."""
        if sequence_number == self.state.head_block.sequence_number:
            return self.state.head
        if self._hashes is None:
            self._hashes = self.dataset.chain.hashes(self.state.head)
        return self._hashes[sequence_number]

    def has(self, block: Multihash, sequence_number: int) -> bool:
        """Whether a block is the one with this number in the chain."""
        return sequence_number <= self.state.head_block.sequence_number and (
            self.hash_of(sequence_number) == block
        )

    def last_data(self, upto: int) -> HashedBlock | None:
        """The last data block at or before a sequence number."""
        return self.dataset.chain.nearest(*DATA_EVENTS, head=self.hash_of(upto))

    def first_data(self, since: int, upto: int) -> HashedBlock | None:
        """The first data block in `[since; upto]`."""

        def reached(number: int) -> bool:
            found = self.last_data(number)
            return found is not None and found.block.sequence_number >= since

        number = _first(since, upto, reached)
        return None if number is None else self.last_data(number)

    def block_of(self, offset: int) -> HashedBlock:
        """The block that added a record of the dataset.

        Raises:
            BrokenChainError: no block did, though the chain has as many records.
        """

        def reached(number: int) -> bool:
            found = self.last_data(number)
            last = data_event(found).last_offset if found is not None else None
            return last is not None and last >= offset

        number = _first(0, self.state.head_block.sequence_number, reached)
        found = self.last_data(number) if number is not None else None
        data = data_event(found).new_data if found is not None else None
        if (
            found is None
            or data is None
            or not data.offset_interval.start <= offset <= data.offset_interval.end
        ):
            raise BrokenChainError(
                f"{self.dataset.alias}: no block adds the record {offset}, "
                f"though the chain goes to {self.last_offset}",
                hint=f"`odfchain verify {self.dataset.alias}` says what is wrong",
            )
        return found


def _first(low: int, high: int, reached: Callable[[int], bool]) -> int | None:
    """The smallest number in `[low; high]` for which it is true, if from there on it stays true."""
    if low > high or not reached(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low
