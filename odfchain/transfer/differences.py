"""What is said, and refused, when two chains are not one line (RFC-021)."""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.chain.compare import (
    Ahead,
    Behind,
    ChainLinks,
    Comparison,
    Descent,
    Diverged,
    Equal,
    compare,
    whole_chain,
)
from odfchain.codec.blocks import decode_block
from odfchain.errors import (
    CodecError,
    CorruptedPeerError,
    DatasetsDivergedError,
    DestinationAheadError,
    RollbackError,
)
from odfchain.ids.multihash import Multihash
from odfchain.model.events import Seed
from odfchain.transfer.peer import Peer
from odfchain.transfer.peer_links import PeerLinks, bad_block
from odfchain.trust.seen import Seen
from odfchain.trust.signed_head import BlockAt

_WAYS_OUT = "--force replaces what is here by the peer's chain; or pull it under another name with --as"


def shortened(name: Multihash) -> str:
    """The first digits of a hash, for messages; the errors carry all of them."""
    return f"{str(name)[:17]}…"


@dataclass(frozen=True, slots=True)
class Destination:
    """The local side: a dataset and the head it had when the pull began."""

    name: str
    head: Multihash
    links: ChainLinks
    seed: Seed


@dataclass(frozen=True, slots=True)
class Source:
    """The peer's side; `number` is the sequence number of its head."""

    peer: Peer
    head: Multihash
    number: int
    links: PeerLinks

    def seed(self) -> Seed:
        """The first event of the peer's chain.

        Raises:
            CorruptedPeerError: the first block is not a Seed, or the blocks are no chain.
        """
        name = whole_chain(self.links, self.head)[-1]
        try:
            event = decode_block(self.links.bytes_of(name)).event
        except CodecError as error:
            raise bad_block(self.peer, name, error) from error
        if not isinstance(event, Seed):
            raise CorruptedPeerError(
                f"the chain of {self.peer.where} is broken: its first block {name} is {event.KIND}, not Seed"
            )
        return event


def blocks_of(source: Source, destination: Destination, found: Comparison) -> BlockAt:
    """The hashes of the peer's chain by number, read from the local one where both are the same.

    Raises, when it is asked:
        CorruptedPeerError, AccessError, TransferError: the peer's chain cannot be read.
        BrokenChainError, StoreError: the local one cannot.
    """
    ours = destination.links
    first = ours.link(destination.head).sequence_number + 1

    def block_at(number: int) -> Multihash | None:
        if not 0 <= number <= source.number:
            return None
        if not isinstance(found, Equal | Ahead):
            return Descent(source.links, source.head).down_to(number)
        if isinstance(found, Ahead) and number >= first:
            return found.blocks[source.number - number]
        return ours.chain.hash_at(number, destination.head)

    return block_at


def refuse_other_dataset(source: Source, destination: Destination, found: Comparison, *, force: bool) -> None:
    """A dataset is never overwritten by another one, whatever `force` says.

    Raises:
        DatasetsDivergedError: the seeds differ in id or kind.
    """
    if not isinstance(found, Diverged) or found.common is not None:
        return
    theirs, ours = source.seed(), destination.seed
    if (theirs.dataset_id, theirs.dataset_kind) == (ours.dataset_id, ours.dataset_kind):
        return
    raise DatasetsDivergedError(
        f"{'OverwriteSeedBlock: ' if force else ''}{source.peer.where} is another dataset than "
        f"{destination.name!r} here: {theirs.dataset_kind.value} {theirs.dataset_id}, "
        f"not {ours.dataset_kind.value} {ours.dataset_id}; their heads are {shortened(source.head)} "
        f"and {shortened(destination.head)}",
        source_head=str(source.head),
        destination_head=str(destination.head),
        source_blocks=found.source_blocks,
        destination_blocks=found.destination_blocks,
        common=None,
        hint="pull it under another name with --as",
    )


def refuse_difference(source: Source, destination: Destination, found: Comparison) -> None:
    """The source's chain continues the destination's, or is the same.

    Raises:
        DestinationAheadError, DatasetsDivergedError: it does not.
    """
    where, name = source.peer.where, destination.name
    heads = f"the peer's head is {shortened(source.head)}, the local one {shortened(destination.head)}"
    if isinstance(found, Behind):
        count = len(found.blocks)
        raise DestinationAheadError(
            f"{name!r} has all blocks of {where} and {count:,} more: {heads}",
            source_head=str(source.head),
            destination_head=str(destination.head),
            source_blocks=0,
            destination_blocks=count,
            common=str(source.head),
            hint=_WAYS_OUT,
        )
    if isinstance(found, Diverged):
        common = f"is {shortened(found.common)}" if found.common else "does not exist"
        raise DatasetsDivergedError(
            f"{name!r} and {where} have diverged: their newest common block {common}, after which the peer "
            f"has {found.source_blocks:,} blocks and {name!r} {found.destination_blocks:,}; {heads}",
            source_head=str(source.head),
            destination_head=str(destination.head),
            source_blocks=found.source_blocks,
            destination_blocks=found.destination_blocks,
            common=str(found.common) if found.common else None,
            hint=_WAYS_OUT,
        )


def refuse_rollback(source: Source, seen: Seen, destination: Destination | None) -> None:
    """The source's chain contains the newest block that was seen before.

    Raises:
        RollbackError: it does not. Counts are from the remembered block's height where its chain is not here.
    """
    lower = source.number < seen.sequence_number
    if not lower and Descent(source.links, source.head).down_to(seen.sequence_number) == seen.head:
        return
    found: Comparison | None = None
    if destination is not None and destination.links.chain.contains(seen.head):
        found = compare(source.head, source.links, seen.head, destination.links)
    theirs, ours, common = max(0, source.number - seen.sequence_number), 0, None
    if isinstance(found, Behind):
        ours, common = len(found.blocks), source.head
    elif isinstance(found, Diverged):
        theirs, ours, common = found.source_blocks, found.destination_blocks, found.common
    elif lower:
        ours = seen.sequence_number - source.number
    raise RollbackError(
        f"{source.peer.where} offers {'an older' if lower else 'another'} chain than was seen before: its "
        f"head is block {source.number:,} {shortened(source.head)}, the newest block seen is "
        f"{seen.sequence_number:,} {shortened(seen.head)}{'' if lower else ', which it does not contain'}",
        source_head=str(source.head),
        destination_head=str(seen.head),
        source_blocks=theirs,
        destination_blocks=ours,
        common=str(common) if common else None,
        hint="the peer may be out of date or forged: ask its owner, try another; --force accepts its chain",
    )
