"""How two chains lie to each other, found by reading as few blocks as possible.

Because sequence numbers count without gaps, the difference of two heads' numbers says how far the longer
chain must be read before both can be compared block by block. Source: specification "Dataset
Sharing"; RFC-021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from odfchain.chain.chain import MetadataChain, link_fault
from odfchain.errors import ChainError, OdfchainError
from odfchain.limits import LIMITS
from odfchain.odf.block_codec import decode_header
from odfchain.odf.events import BlockHeader, MetadataBlock
from odfchain.odf.identity import HashList, Multihash


class Links(Protocol):
    """Reads the links of one chain."""

    def link(self, name: Multihash) -> BlockHeader | MetadataBlock:
        """A block, for its number and its predecessor."""

    def broken(self, problem: str) -> OdfchainError:
        """The error to raise for blocks that do not form a chain."""


@dataclass(frozen=True, slots=True)
class ChainLinks:
    """The links of a chain in this workspace."""

    chain: MetadataChain

    def link(self, name: Multihash) -> BlockHeader:
        """The number and the predecessor of a stored block."""
        return decode_header(self.chain.get_bytes(name))

    def broken(self, problem: str) -> OdfchainError:
        """The error for a chain that is broken on this side."""
        return ChainError(f"the local chain is broken: {problem}", hint="`odfchain verify` says more")


@dataclass(frozen=True, slots=True)
class Equal:
    """Both heads are the same block."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The source has all blocks of the destination, and these, newest first."""

    blocks: Sequence[Multihash]


@dataclass(frozen=True, slots=True)
class Behind:
    """The destination has all blocks of the source, and these, newest first."""

    blocks: Sequence[Multihash]


@dataclass(frozen=True, slots=True)
class Diverged:
    """Both have blocks that the other has not: how many after `common`, their newest common block."""

    source_blocks: int
    destination_blocks: int
    common: Multihash | None


Comparison = Equal | Ahead | Behind | Diverged


class Descent:
    """One walk from a head towards the seed; numbers must count down to 0, so it ends.

    Raises, from every method that reads:
        OdfchainError: a block cannot be read, or what `Links.broken` makes of blocks that are no chain.
    """

    def __init__(self, links: Links, head: Multihash) -> None:
        self.at: Multihash | None = head
        """The block that would be read next; None below the seed."""
        self.passed = HashList()
        """The blocks that were read, newest first."""
        self._links = links
        self._link: BlockHeader | MetadataBlock | None = links.link(head)
        self.number = self._link.sequence_number
        """The sequence number that the block at `at` must have."""
        if self.number >= LIMITS.chain_blocks:
            raise links.broken(
                f"its head {head} is block {self.number:,} (at most {LIMITS.chain_blocks:,} blocks are read)"
            )

    def step(self) -> None:
        """Read one block and go to its predecessor."""
        assert self.at is not None  # noqa: S101 - `at` is checked before each step
        link = self._link or self._links.link(self.at)
        self._link = None
        if (fault := link_fault(link.sequence_number, self.number, link.prev_block_hash)) is not None:
            raise self._links.broken(f"block {self.at} {fault}")
        self.passed.append(self.at)
        self.at = link.prev_block_hash
        self.number -= 1

    def down_to(self, number: int) -> Multihash | None:
        """Walk until the block at `at` has this number; returns it (None for -1: below the seed)."""
        while self.number > number:
            self.step()
        return self.at


def whole_chain(links: Links, head: Multihash) -> Sequence[Multihash]:
    """All blocks from the head to the seed, newest first."""
    descent = Descent(links, head)
    descent.down_to(-1)
    return descent.passed


def compare(
    source_head: Multihash, source: Links, destination_head: Multihash | None, destination: Links
) -> Comparison:
    """How the source's chain lies to the destination's (None: it has no head)."""
    if source_head == destination_head:
        return Equal()
    if destination_head is None:
        return Ahead(whole_chain(source, source_head))
    # the longer chain walks down to the length of the shorter one, then both step together
    theirs, ours = Descent(source, source_head), Descent(destination, destination_head)
    # reads at most the difference in length plus the distance to the newest common block on either side
    if theirs.down_to(ours.number) == destination_head:
        return Ahead(theirs.passed)
    if ours.down_to(theirs.number) == source_head:
        return Behind(ours.passed)
    while theirs.at != ours.at:
        theirs.step()
        ours.step()
    return Diverged(len(theirs.passed), len(ours.passed), theirs.at)
