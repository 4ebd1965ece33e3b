"""The metadata chain of one dataset: reading, walking and appending blocks.

Blocks are kept as the bytes that were received and never encoded again. Appending checks the rules, stores
the block, and then moves the reference by compare-and-swap; a crash in between leaves an unreferenced block.
Source: specification "Metadata Chain"; RFC-004, RFC-007.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

from odfchain.chain import index
from odfchain.chain.rules import check_alone, check_append
from odfchain.errors import AppendError, ChainError, ObjectNotFoundError, OversizedInputError
from odfchain.limits import LIMITS
from odfchain.odf.block_codec import MANIFEST_VERSION, block_hash, decode_block, decode_header, encode_block
from odfchain.odf.events import BlockHeader, MetadataBlock, MetadataEvent
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import to_tree
from odfchain.storage.fsio import MemoryScratch
from odfchain.storage.local import HEAD, LocalObjectStore, LocalRefStore

_CACHE_BLOCKS = 256

Published = Callable[[Multihash, int], None]
"""Called with a block (its hash and sequence number) made here, once the reference points at it."""


class HashedBlock(NamedTuple):
    """A block and the hash it is stored under."""

    hash: Multihash
    block: MetadataBlock

    def to_document(self) -> dict[str, Any]:
        """The block as a MetadataBlock manifest has it, after its hash."""
        return {"blockHash": str(self.hash), **to_tree(self.block)}


class EncodedBlock(NamedTuple):
    """A block that is not stored yet: its hash and its bytes."""

    hash: Multihash
    data: bytes
    block: MetadataBlock


def link_blocks(
    events: Sequence[MetadataEvent],
    *,
    prev: Multihash | None,
    next_sequence_number: int,
    system_time: Timestamp,
) -> list[EncodedBlock]:
    """Blocks for events that follow each other, linked by hash."""
    blocks: list[EncodedBlock] = []
    for number, event in enumerate(events, start=next_sequence_number):
        block = MetadataBlock(
            system_time=system_time, prev_block_hash=prev, sequence_number=number, event=event
        )
        data = encode_block(block, MANIFEST_VERSION)
        if len(data) > LIMITS.block_bytes:  # nobody would read it
            raise OversizedInputError(f"a block of {len(data):,} bytes (at most {LIMITS.block_bytes:,})")
        prev = block_hash(data)
        blocks.append(EncodedBlock(prev, data, block))
    return blocks


def check_following(
    blocks: Sequence[EncodedBlock], prev: Multihash | None = None, base: index.History | None = None
) -> None:
    """Blocks may follow `prev`, whose history is `base`, one after the other; of a new chain without them."""
    for encoded in blocks:
        # faults of blocks by themselves come first, as in `append`
        check_alone(encoded.block)
    history = index.ReplayHistory(
        base
    )  # rules look at earlier blocks of this group, which are not stored yet
    for name, _, block in blocks:
        if block.prev_block_hash != prev:
            raise ChainError(f"block {block.sequence_number} does not follow the one before it")
        check_append(block, history if prev is not None else None)
        history.add(block)
        prev = name


def link_fault(number: int, expected: int | None, prev: Multihash | None) -> str | None:
    """What is wrong with the number of a block in a walk to the seed; None when nothing is."""
    if expected is not None and number != expected:
        return f"has sequence number {number}, expected {expected}"
    if (prev is None) != (number == 0):
        return f"has sequence number {number} and {'no' if prev is None else 'a'} predecessor"
    return None


def descend(
    heads: Iterable[Multihash | None],
    read: Callable[[Multihash], MetadataBlock | None],
    until: Callable[[Multihash], bool] = lambda _: False,
    *,
    merged: Callable[[MetadataBlock], Iterable[Multihash]] = lambda _: (),
) -> Iterator[HashedBlock]:
    """Blocks from some heads towards their seeds, one chain after the other, and those `merged` into them.

    A chain ends before a block of which `until` is true, asked when it is reached, or that `read` has not.
    """
    waiting = [*heads][::-1]
    while waiting:
        current = waiting.pop()
        while current is not None and not until(current) and (block := read(current)) is not None:
            yield HashedBlock(current, block)
            waiting += merged(block)
            current = block.prev_block_hash


class MetadataChain:
    """The chain whose blocks are in `blocks`, as the reference `ref` of `refs` has it.

    A branch is the same dataset on another reference. With a `scratch` file an index is kept there, which
    makes appending and looking up the nearest block of a kind independent of the chain's length.
    """

    def __init__(
        self,
        blocks: LocalObjectStore,
        refs: LocalRefStore,
        scratch: index.Scratch | None = None,
        published: Published | None = None,
        *,
        ref: str = HEAD,
    ) -> None:
        self._blocks = blocks
        self._refs = refs
        self.ref = ref
        """The reference that is read and moved."""
        self._index = index.ChainIndex(scratch, self._walk_links) if scratch is not None else None
        # bounded: a walk over a long chain must not keep all its blocks
        self._decoded = functools.lru_cache(_CACHE_BLOCKS)(lambda name: decode_block(blocks.get(name)))
        self._published = published
        self.scratch, self.is_reindexed = scratch, isinstance(scratch, MemoryScratch)
        """Where its index is, and True if no index that is a file is believed."""

    def reindexed(self) -> MetadataChain:
        """The same chain with an index in memory, which is made by walking."""
        return MetadataChain(self._blocks, self._refs, MemoryScratch(), ref=self.ref)

    def head(self, ref: str | None = None) -> Multihash | None:
        """The block that a reference (default: the chain's own) points at, None when there is none."""
        return self._refs.get(self.ref if ref is None else ref)

    def contains(self, name: Multihash) -> bool:
        """True if a block of this hash is stored."""
        return self._blocks.contains(name)

    def get_bytes(self, name: Multihash) -> bytes:
        """A block file's bytes, as they were received."""
        return self._blocks.get(name)

    def get(self, name: Multihash) -> MetadataBlock:
        """A block by its hash."""
        return self._decoded(name)

    def walk(
        self,
        head: Multihash | None = None,
        *,
        tail: Multihash | None = None,
        ignore_missing_tail: bool = False,
    ) -> Iterator[HashedBlock]:
        """Blocks from `head` (default: the reference) towards the seed, before `tail`, or a ChainError."""
        current = head if head is not None else self.head()
        if current is None or current == tail:
            return
        expected: int | None = None
        while current is not None:
            if current == tail:
                return
            try:
                block = self.get(current)
            except ObjectNotFoundError as error:
                if expected is None:
                    raise
                raise ChainError(f"block {expected} of the chain is missing: {error}") from error
            yield HashedBlock(current, block)
            self._check_link(current, block.sequence_number, expected, block.prev_block_hash)
            # numbers count down to 0, so the walk ends even over hostile blocks
            expected, current = block.sequence_number - 1, block.prev_block_hash
        if tail is not None and not ignore_missing_tail:
            raise ChainError(f"InvalidInterval: block {tail} is not an ancestor of {head or self.head()}")

    def _check_link(
        self, name: Multihash, sequence_number: int, expected: int | None, prev: Multihash | None
    ) -> None:
        if (fault := link_fault(sequence_number, expected, prev)) is not None:
            raise ChainError(f"block {self._blocks.locate(name)} {fault}")
        # sequence numbers come from peers: a bound for all that loops or allocates by them
        if sequence_number >= LIMITS.chain_blocks:
            raise ChainError(f"a chain of more than {LIMITS.chain_blocks:,} blocks")

    def walk_files(
        self, head: Multihash, *, tail: Multihash | None = None
    ) -> Iterator[tuple[Multihash, BlockHeader, bytes]]:
        """Like `walk`, the files as they are; only their headers are read."""
        current: Multihash | None = head
        expected: int | None = None
        while current is not None and current != tail:
            data = self._blocks.get(current)
            header = decode_header(data)
            self._check_link(current, header.sequence_number, expected, header.prev_block_hash)
            yield current, header, data
            expected, current = header.sequence_number - 1, header.prev_block_hash
        if current != tail:
            raise ChainError(f"InvalidInterval: block {tail} is not an ancestor of {head}")

    def _walk_links(self, head: Multihash) -> Iterator[index.Link]:
        for name, header, data in self.walk_files(head):
            # the event is decoded only where it may be a merge
            kind = (
                index.link_kind(decode_block(data).event)
                if index.MERGE.encode() in data
                else header.event_kind
            )
            yield index.Link(name, header.sequence_number, kind)

    def nearest(self, *kinds: str, head: Multihash | None = None) -> HashedBlock | None:
        """The newest block of these event kinds (or `MERGE`) up to `head` (default: the reference's)."""
        start = head if head is not None else self.head()
        if start is None:
            return None
        if self._index is None:
            return next((hb for hb in self.walk(start) if _is_one_of(hb.block.event, kinds)), None)
        return self._indexed(start, kinds)

    def nearest_event(self, *kinds: type[index.E], head: Multihash | None = None) -> index.E | None:
        """The newest event of these classes at or before `head` (default: the head reference)."""
        nearest = self.nearest(*(kind.KIND for kind in kinds), head=head)
        event = nearest.block.event if nearest is not None else None
        return event if isinstance(event, kinds) else None

    def _indexed(self, start: Multihash, kinds: tuple[str, ...]) -> HashedBlock | None:
        assert self._index is not None  # noqa: S101 - checked by the caller
        link = index.Link.of(start, self.get(start))
        for attempt in (1, 2):
            # a second attempt after a rebuild: the scratch file may be damaged or of another chain
            self._index.sync(link)
            row = self._index.row(link.sequence_number)
            if row is not None and row.hash == start:
                number = row.nearest_of(kinds)
                if number is None:
                    return None
                target = self._index.row(number)
                if target is not None:
                    linked = self.get(target.hash)
                    same = (linked.sequence_number, linked.event.KIND) == (number, target.kind)
                    if same and _is_one_of(linked.event, kinds):
                        return HashedBlock(target.hash, linked)
            if attempt == 1:
                self._index.rebuild(link)
        # The scratch file cannot hold rows (read-only media, say): walk.
        return next((hb for hb in self.walk(start) if _is_one_of(hb.block.event, kinds)), None)

    def nearest_all(self, *kinds: str, head: Multihash | None = None) -> Iterator[HashedBlock]:
        """All blocks with these event kinds, newest first, skipping the others."""
        hashed = self.nearest(*kinds, head=head)
        while hashed is not None:
            yield hashed
            prev = hashed.block.prev_block_hash
            hashed = self.nearest(*kinds, head=prev) if prev is not None else None

    def hashes(self, head: Multihash) -> list[Multihash]:
        """Hashes of all blocks up to `head`, seed first, as the index says; the blocks are not read."""
        if self._index is not None:
            block = self.get(head)
            self._index.sync(index.Link.of(head, block))
            known = self._index.hashes(block.sequence_number + 1)
            if known is not None and known[-1] == head:
                return known
        # no index, or a damaged one
        return [link.hash for link in self._walk_links(head)][::-1]

    def by_number(self, head: Multihash) -> Callable[[int], Multihash | None]:
        """The hashes of the blocks up to `head` by their numbers; None for a number beyond it.

        Each is looked up (with its errors) when it is asked for; all, where the index does not know one.
        """
        count, known = self.get(head).sequence_number + 1, list[Multihash]()

        def at(number: int) -> Multihash | None:
            if not -count <= number < count:
                return None
            found = None if known else self.indexed_hash(number % count, head)
            if found is None:
                known.extend(() if known else self.hashes(head))
                found = known[number]
            return found

        return at

    def hash_at(self, number: int, head: Multihash) -> Multihash | None:
        """The block of this number among those up to `head`; None where they are fewer."""
        return self.by_number(head)(number)

    def indexed_hash(self, number: int, head: Multihash) -> Multihash | None:
        """The hash of a block by its number, from the index alone; None where it has none or is damaged."""
        block = self.get(head)
        if self._index is None:
            return None
        self._index.sync(index.Link.of(head, block))
        row, last = self._index.row(number), self._index.row(block.sequence_number)
        return row.hash if row is not None and last is not None and last.hash == head else None

    def history(self, prev: Multihash) -> index.History:
        """The questions of the append rules, answered for the predecessor `prev`, which must be stored."""
        if not self._blocks.contains(prev):
            raise AppendError("PrevBlockNotFound", "prev-block-exists", f"block {prev} is not in the store")
        return _ChainHistory(self, prev)

    def append(
        self,
        block: MetadataBlock,
        *,
        data: bytes | None = None,
        expected_hash: Multihash | None = None,
        publish: bool = True,
        expected_ref: Multihash | EllipsisType | None = ...,
    ) -> Multihash:
        """Check, store and publish one block; returns its hash.

        `data` are the bytes as received (default: the block encoded now). To `publish` moves the reference
        from `expected_ref` (default: the block's predecessor).

        Raises:
            AppendError: a rule is broken; nothing is stored.
        """
        data = encode_block(block, MANIFEST_VERSION) if data is None else data
        name = block_hash(data)
        if expected_hash is not None and name != expected_hash:
            message = f"the block hashes to {name}, not {expected_hash}"
            raise AppendError("HashMismatch", "hash-mismatch", message)
        prev = block.prev_block_hash
        check_alone(block)  # before the predecessor is looked for: the block's own faults come first
        check_append(block, self.history(prev) if prev is not None else None)
        self._blocks.put(data)
        if publish:
            expected = prev if isinstance(expected_ref, EllipsisType) else expected_ref
            self._refs.compare_and_swap(self.ref, expected, name)
            if self._published is not None:
                self._published(name, block.sequence_number)
        return name

    def check_all(self, blocks: Sequence[EncodedBlock], *, expected_head: Multihash | None) -> None:
        """Check that blocks may follow `expected_head` one after the other; nothing is stored."""
        base = self.history(expected_head) if expected_head is not None else None
        check_following(blocks, expected_head, base)

    def publish(self, blocks: Sequence[EncodedBlock], *, expected_head: Multihash | None) -> None:
        """Store checked blocks oldest first, then move the reference once; all become visible together."""
        for encoded in blocks:
            self._blocks.put(encoded.data)
        self._refs.compare_and_swap(self.ref, expected_head, blocks[-1].hash)
        if self._published is not None:
            self._published(blocks[-1].hash, blocks[-1].block.sequence_number)

    def set_ref(self, ref: str, target: Multihash, *, expected: Multihash | None) -> None:
        """Point a reference at a stored block, which may be another's: no hook is called."""
        if not self._blocks.contains(target):
            raise ObjectNotFoundError(f"{self._blocks.locate(target)}: no such block")
        self._refs.compare_and_swap(ref, expected, target)

    def remove_ref(self, ref: str, expected: Multihash) -> None:
        """Remove a reference that points at `expected` now; blocks stay."""
        self._refs.remove(ref, expected)


def _is_one_of(event: MetadataEvent, kinds: tuple[str, ...]) -> bool:
    # `MERGE` may be one of the kinds
    return event.KIND in kinds or (index.MERGE in kinds and index.is_merge(event))


class _ChainHistory(index.History):
    """Answers from the index, or by walking where there is none or it gives up."""

    def __init__(self, chain: MetadataChain, prev: Multihash) -> None:
        self._chain = chain
        self._prev = prev

    def blocks(self, *kinds: str) -> Iterator[MetadataBlock]:
        chain, prev = self._chain, self._prev
        found = chain.nearest_all(*kinds, head=prev) if kinds else chain.walk(prev)
        return (hashed.block for hashed in found)
