"""How two chains lie to each other, by reading no more of a stored one than the blocks that it lacks.

Sequence numbers count without gaps. Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from odfchain.chain.chain import MetadataChain, link_fault
from odfchain.errors import OdfchainError
from odfchain.limits import LIMITS
from odfchain.odf.events import BlockHeader, MetadataBlock
from odfchain.odf.identity import HashList, Multihash


class Links(Protocol):
    """Reads the links of one chain."""

    def link(self, name: Multihash) -> BlockHeader | MetadataBlock:
        """A block, for its number and its predecessor."""

    def broken(self, problem: str) -> OdfchainError:
        """The error to raise for blocks that do not form a chain."""


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

    def to_known(self, *known: Callable[[int], Multihash | None]) -> None:
        """Walk until the block at `at` is one of a chain that is known by numbers, or to below the seed."""
        while self.at is not None and not any(at(self.number) == self.at for at in known):
            self.step()


def compare(chain: MetadataChain, head: Multihash, there: Multihash | None, links: Links) -> Comparison:
    """How a stored chain up to `head` lies to another one up to `there` (None: it has no head)."""
    if head == there:
        return Equal()
    if there is None:
        return Ahead(HashList(reversed(chain.hashes(head))))
    theirs = Descent(links, there)
    theirs.to_known(chain.by_number(head))
    if theirs.at == head:
        return Behind(theirs.passed)
    ours = HashList(name for name, _ in chain.walk(head, tail=theirs.at))
    return Ahead(ours) if theirs.at == there else Diverged(len(ours), len(theirs.passed), theirs.at)
