"""Inputs of an interval of records, dataset by dataset, down to the roots.

Every answer is bounded: intervals that were followed already are named and not followed again, a dataset that
comes from itself is not entered twice on one path, and long lists say how many of them are not shown.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from odfchain.audit.lineage import SourceUse, input_aliases, source_of
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import DATA_EVENTS, DataEvent
from odfchain.errors import BrokenChainError, DatasetNotFoundError, OdfchainError
from odfchain.limits import LineageLimits
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import AddData, ExecuteTransform, ExecuteTransformInput, SetTransform
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.workspace_files import WorkspaceFiles

# The block that added a record, and the blocks that added an interval.
# Offsets grow along the chain, so a block is found by bisection with a few dozen reads. Where a damaged
# chain breaks that rule, it is reported and no other block is named. Source: specification "Common Data
# Schema" (offsets).


def data_event(block: HashedBlock) -> DataEvent:
    """The data event of a block that has one."""
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
        self._at = dataset.chain.by_number(self.state.head)

    def has(self, block: Multihash, sequence_number: int) -> bool:
        """True if a block is the one with this number in the chain."""
        return self._at(sequence_number) == block

    def last_data(self, upto: int) -> HashedBlock | None:
        """The last data block at or before a sequence number."""
        return self.dataset.chain.nearest(*DATA_EVENTS, head=self._at(upto))

    def input_aliases(self, upto: Multihash) -> dict[DatasetId, str]:
        """How the queries in force at a block call their inputs."""
        return input_aliases(self.dataset.chain.nearest_event(SetTransform, head=upto))

    def first_data(self, since: int, upto: int) -> HashedBlock | None:
        """The first data block in `[since; upto]`."""
        return self._first(since, upto, lambda found: found.block.sequence_number >= since)

    def block_of(self, offset: int) -> HashedBlock:
        """The block that added a record of the dataset."""

        def has_added(found: HashedBlock) -> bool:
            last = data_event(found).last_offset
            return last is not None and last >= offset

        found = self._first(0, self.state.head_block.sequence_number, has_added)
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

    def _first(self, since: int, upto: int, fits: Callable[[HashedBlock], bool]) -> HashedBlock | None:
        # bisection: where a data block fits, all later ones do
        def is_reached(number: int) -> bool:
            found = self.last_data(number)
            return found is not None and fits(found)

        number = since + bisect_left(range(since, upto + 1), True, key=is_reached)
        return self.last_data(number) if number <= upto else None


Interval = tuple[int, int]
"""First and last, both included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReads:
    """The blocks `(prev, new]` and `offsets` of one input that a transaction, or several in a row, read."""

    id: str
    alias: str | None
    """How the queries call the input."""
    name: str | None
    """Its name here."""
    missing: bool = False
    """True if it is not here."""
    prev_block: Multihash | None
    new_block: Multihash | None
    blocks: Interval | None = None
    """Sequence numbers, where the input is here."""
    offsets: Interval | None = None
    """None: no records."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """A transaction that added some of the records."""

    ref: SliceRef
    system_time: Timestamp
    present: bool
    source: SourceUse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of an input's records, the transactions that added them, and what those were made of."""

    reads: InputReads
    kind: DatasetKind | None = None
    contributions: tuple[Contribution, ...] = ()
    """Oldest first; not more than `LINEAGE.transactions`, the newest ones."""
    left_out: Interval | None = None
    """Blocks before them whose transactions are not listed."""
    problem: str | None = None
    """The reason for knowing nothing more."""
    origins: tuple[Span, ...] = ()


class Origins:
    """Follows records through the datasets of a workspace."""

    def __init__(self, workspace: WorkspaceFiles, limits: LineageLimits) -> None:
        self._limits = limits
        # an input may be read by many transactions
        self._find = cache(partial(_find, workspace))
        self._followed: set[tuple[str, Interval]] = set()

    # --- what transactions read --------------------------------------------------------------------

    def reads_of(self, locator: Locator, block: HashedBlock) -> tuple[InputReads, ...]:
        """The reads of one transaction, in the order of the transform's inputs."""
        event, names = block.block.event, locator.input_aliases(block.hash)
        if not isinstance(event, ExecuteTransform):
            return ()
        return tuple(
            self._reads(first, last, names.get(last.dataset_id))
            for first, last in zip(_read_from(locator, block, event), event.query_inputs, strict=True)
        )

    def _reads(
        self, first: ExecuteTransformInput, last: ExecuteTransformInput, alias: str | None
    ) -> InputReads:
        start = 0 if first.prev_offset is None else first.prev_offset + 1
        end = last.last_offset
        located = self._find(str(first.dataset_id))
        blocks, problem = None, located.problem
        prev, new = first.prev_block_hash, last.last_block_hash
        if located.locator is not None and new is not None and new != prev:
            blocks, problem = _block_numbers(located.locator, prev, new)
        return InputReads(
            id=str(first.dataset_id),
            alias=None if alias is None else one_line(alias),
            name=located.name,
            missing=located.missing,
            prev_block=prev,
            new_block=new if new != prev else None,
            blocks=blocks,
            offsets=(start, end) if end is not None and end >= start else None,
            problem=problem,
        )

    # --- down to the roots -------------------------------------------------------------------------

    def of_interval(
        self, locator: Locator, first: HashedBlock, last: HashedBlock, path: tuple[str, ...] = ()
    ) -> tuple[Span, ...]:
        """The inputs of the transactions from block `first` to block `last`."""
        path = (*path, str(locator.state.seed.dataset_id))
        merged: dict[str, list[InputReads]] = {}
        for reads in self._reads_between(locator, first, last):
            known = merged.setdefault(reads.id, [])
            last_read = known[-1].offsets if known else None
            # reads that continue each other are one
            if known and (not last_read or not reads.offsets or reads.offsets[0] <= last_read[1] + 1):
                known[-1] = _joined(known[-1], reads)
            else:
                known.append(reads)
        return tuple(self._span(reads, path) for several in merged.values() for reads in several)

    def _reads_between(self, locator: Locator, first: HashedBlock, last: HashedBlock) -> Iterator[InputReads]:
        low, high = first.block.sequence_number, last.block.sequence_number
        starts = [low]
        transform = locator.dataset.chain.nearest("SetTransform", head=last.hash)
        while transform is not None and transform.block.sequence_number > low:
            # a new transform begins a new group of reads
            starts.insert(1, transform.block.sequence_number)
            prev = transform.block.prev_block_hash
            transform = locator.dataset.chain.nearest("SetTransform", head=prev) if prev else None
        for start, after in zip(starts, [*starts[1:], high + 1], strict=True):
            begin, end = locator.first_data(start, after - 1), locator.last_data(after - 1)
            if begin is None or end is None:
                continue
            opening, closing = begin.block.event, end.block.event
            if isinstance(opening, ExecuteTransform) and isinstance(closing, ExecuteTransform):
                names = locator.input_aliases(end.hash)
                closed = {item.dataset_id: item for item in closing.query_inputs}
                for item in _read_from(locator, begin, opening):
                    ended = closed.get(item.dataset_id, item)
                    yield self._reads(item, ended, names.get(item.dataset_id))

    def _span(self, reads: InputReads, path: tuple[str, ...]) -> Span:
        if reads.offsets is None:
            return Span(reads=reads, problem="no records were read")
        locator = self._find(reads.id).locator
        if locator is None:
            return Span(reads=reads, problem=reads.problem)
        key = (reads.id, reads.offsets)
        if reads.id in path:
            return Span(reads=reads, problem="comes from itself: a circle")
        if key in self._followed:
            return Span(reads=reads, problem="followed above")
        if len(self._followed) >= self._limits.spans or len(path) > self._limits.depth:
            return Span(reads=reads, problem="not followed: the answer is too long; ask for this dataset")
        self._followed.add(key)
        try:
            return self._followed_span(locator, reads, reads.offsets, path)
        except OdfchainError as error:
            return Span(reads=reads, problem=str(error))

    def _followed_span(
        self, locator: Locator, reads: InputReads, offsets: Interval, path: tuple[str, ...]
    ) -> Span:
        kind = locator.state.seed.dataset_kind
        start, end = offsets
        if locator.last_offset is None or end > locator.last_offset:
            here = 0 if locator.last_offset is None else locator.last_offset + 1
            return Span(reads=reads, kind=kind, problem=f"the copy here has {here:,} records only")
        first, last = locator.block_of(start), locator.block_of(end)
        contributions: list[Contribution] = []
        left_out: Interval | None = None
        for block in locator.dataset.chain.nearest_all("AddData", "ExecuteTransform", head=last.hash):
            number = block.block.sequence_number
            if number < first.block.sequence_number:
                break
            data = data_event(block).new_data
            if data is None:
                continue
            if len(contributions) == self._limits.transactions:
                left_out = (first.block.sequence_number, number)
                break
            source = source_of(locator.dataset.chain, block) if kind is DatasetKind.ROOT else None
            ref = SliceRef(block.hash, number, data)
            present = locator.dataset.data.contains(data.physical_hash)
            contributions.insert(0, Contribution(ref, block.block.system_time, present, source))
        origins = () if kind is DatasetKind.ROOT else self.of_interval(locator, first, last, path)
        return Span(
            reads=reads,
            kind=kind,
            contributions=tuple(contributions),
            left_out=left_out,
            problem=reads.problem,
            origins=origins,
        )


def _read_from(
    locator: Locator, block: HashedBlock, event: ExecuteTransform
) -> tuple[ExecuteTransformInput, ...]:
    before = block.block.prev_block_hash
    if before is None or not DatasetState.read(locator.dataset.chain, before).awaits_rebuild:
        return event.query_inputs
    # a rebuild reads its inputs from the first record on
    return tuple(
        dataclasses.replace(
            item,
            prev_block_hash=None,
            new_block_hash=item.last_block_hash,
            prev_offset=None,
            new_offset=item.last_offset,
        )
        for item in event.query_inputs
    )


@dataclass(frozen=True, slots=True)
class _LocatedDataset:
    """A dataset as far as it is here."""

    name: str | None = None
    locator: Locator | None = None
    problem: str | None = None
    missing: bool = False


def _find(workspace: WorkspaceFiles, dataset_id: str) -> _LocatedDataset:
    name: str | None = None
    try:
        dataset = workspace.dataset(dataset_id)
        name = str(dataset.alias)
        return _LocatedDataset(name, Locator(dataset))
    except DatasetNotFoundError:
        return _LocatedDataset(problem="not in this workspace", missing=True)
    except OdfchainError as error:
        return _LocatedDataset(name, problem=f"damaged: {error}")


def _block_numbers(
    locator: Locator, prev: Multihash | None, new: Multihash
) -> tuple[Interval | None, str | None]:
    numbers = []
    for name in (prev, new):
        if name is None:
            numbers.append(-1)
            continue
        try:
            number = locator.dataset.chain.get(name).sequence_number
            # the hash exists, but on another history than the copy's
            if not locator.has(name, number):
                return (
                    None,
                    f"block {name} is not in the chain of the copy here: it differs from what was read",
                )
        except OdfchainError as error:
            return None, f"block {name} cannot be read here: {error}"
        numbers.append(number)
    return (numbers[0] + 1, numbers[1]), None


def _joined(earlier: InputReads, later: InputReads) -> InputReads:
    offsets, blocks = earlier.offsets or later.offsets, earlier.blocks or later.blocks
    if earlier.offsets and later.offsets:
        offsets = (earlier.offsets[0], later.offsets[1])
    if earlier.blocks and later.blocks:
        blocks = (earlier.blocks[0], later.blocks[1])
    return dataclasses.replace(
        later,
        prev_block=earlier.prev_block,
        new_block=later.new_block or earlier.new_block,
        blocks=blocks,
        offsets=offsets,
        problem=earlier.problem or later.problem,
    )
