"""Common parts of all pulls: blocks and objects arrive, are validated, and wait in a private folder.

An interruption leaves them there for the next pull. Nothing of the dataset is changed by blocks that arrive;
objects are stored in it once all of them are here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.chain.chain import HashedBlock
from odfchain.chain.compare import (
    Ahead,
    Behind,
    BlockLink,
    ChainLinks,
    Comparison,
    Descent,
    Diverged,
    Equal,
    compare,
    whole_chain,
)
from odfchain.chain.index import ChainIndex, History, Link, ReplayHistory, link_kind
from odfchain.chain.rules import check_append
from odfchain.chain.signed_heads import BlockAt
from odfchain.errors import (
    AppendError,
    CodecError,
    CorruptedPeerError,
    DatasetsDivergedError,
    DestinationAheadError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    RollbackError,
    StoreError,
    UnsupportedVersionError,
)
from odfchain.limits import LIMITS, SHARING
from odfchain.odf.block_codec import decode_block, decode_header
from odfchain.odf.events import Seed
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.fsio import LocalScratch
from odfchain.storage.local import ObjectStore, check_object_name
from odfchain.text import one_line
from odfchain.transfer.http_peer import Prefetch
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import ObjectKey, ObjectKind
from odfchain.transfer.signed_statements import Seen
from odfchain.transfer.slice_files import DataObject, absent, bring, objects_of
from odfchain.workspace.dataset_files import DatasetFiles

# Blocks on their way in: read from a peer, kept for the next attempt after an interruption.
# Known blocks are not requested. A received block is an unsynced file in a private folder that is hashed at
# each read, so a torn one only counts as missing.

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
# From how many unknown blocks on it is worth asking for a hint.
_HINT_FROM = 16
# How much of what was received is kept at hand until it is read the second time [bytes].
_MEMORY_BYTES = 64 << 20
# Overhead of a kept block [bytes], roughly.
_ENTRY_BYTES = 400


class Spool:
    """Received blocks in a private folder, one file each; threads may add different blocks at once.

    Bytes of blocks that were added are kept in memory, too, up to a bound and until they are taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder_text = str(folder)  # joining paths costs as much as writing a small file
        self._room = _MEMORY_BYTES
        self._at_hand: dict[Multihash, bytes] = {}

    def path(self, name: Multihash) -> Path:
        """The path of a block, if it were there."""
        return self.folder / str(name)

    def contains(self, name: Multihash) -> bool:
        """True if there is a file of this name; it may be torn."""
        return self.path(name).is_file()

    def names(self) -> frozenset[str]:
        """The names of all files."""
        with fsio.storage_errors(self.folder):
            return frozenset(path.name for path in self.folder.iterdir())

    def get(self, name: Multihash) -> bytes | None:
        """The bytes of a block; None when it is not here, or what is here does not hash to its name."""
        if (at_hand := self._at_hand.pop(name, None)) is not None:
            self._room += len(at_hand) + _ENTRY_BYTES
            return at_hand
        data = fsio.read_start(self.path(name), LIMITS.block_bytes + 1)
        return data if data is not None and hash_bytes(data) == name else None

    def at_hand(self, name: Multihash) -> bytes | None:
        """The bytes of a block, if they are in memory; they stay there until they are taken."""
        return self._at_hand.get(name)

    def add(self, name: Multihash, data: bytes) -> None:
        """Keep the bytes of a block, which hash to its name.

        Raises:
            StorageFullError, StoreError: it cannot be written.
        """
        path = f"{self._folder_text}/{name}"
        try:
            fd = os.open(path, _NEW_FILE, 0o644)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            finally:
                os.close(fd)
        except OSError as error:
            fsio.remove_quietly(Path(path))
            raise fsio.storage_error(error, path) from error
        needed = len(data) + _ENTRY_BYTES
        if needed <= self._room:
            self._room -= needed  # not exact when threads add at the same time, which does no harm
            self._at_hand[name] = data

    def keep_only(self, names: Sequence[Multihash]) -> None:
        """Remove every other file."""
        with fsio.storage_errors(self.folder):
            files = list(self.folder.iterdir())
            if len(files) > len(names):
                wanted = {str(name) for name in names}
                for path in files:
                    if path.name not in wanted:
                        path.unlink()


class PeerLinks:
    """The links of a peer's chain; blocks are spooled as they are read.

    Leave the block (`with`) to end what was asked for ahead.
    """

    def __init__(
        self, peer: Peer, spool: Spool, local: ObjectStore | None = None, progress: Progress = SILENT
    ) -> None:
        # Bytes of blocks that came from the peer.
        self.received = 0
        self._peer = peer
        self._spool = spool
        self._local = local
        self._progress = progress
        self._prefetch: Prefetch | None = None
        # Blocks that arrived whole and were not read so far.
        self._came: set[Multihash] = set()

    def __enter__(self) -> PeerLinks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._prefetch is not None:
            self._prefetch.close()

    def prepare(self, head: Multihash, known: int, after: Multihash | None) -> int:
        """Ask for what saves time if the head is above block `known`; returns the head's sequence number.

        `after` is the newest block of the local dataset. Either the blocks above it come in one piece, or
        the hint says which they are.
        """
        number = self.link(head).sequence_number
        if number > known:
            for block in self._peer.batch(after, number - known):
                self._spool.add(block.hash, block.data)
                self._came.add(block.hash)
        if not self._came and known + _HINT_FROM < number < LIMITS.chain_blocks:
            with contextlib.suppress(OdfchainError):  # it only saves time; what is wrong shows without it
                hint = self._peer.hint(number + 1)
                if hint:
                    self._prefetch = self._prefetched(_below(hint, number + 1, head))
        return number

    def _prefetched(self, hinted: Iterator[Multihash]) -> Prefetch:
        here = self.spooled()
        return Prefetch(
            hinted,
            here=lambda name: str(name) in here,
            local=self.local,
            fetch=self.fetch,
            keep=self._spool.add,
            pipeline=self._peer.pipeline(),
        )

    def spooled(self) -> frozenset[str]:
        """The names of the blocks that were received before."""
        return self._spool.names()

    def local(self, name: Multihash) -> bool:
        """True if a block is one of the local dataset."""
        return self._local is not None and self._local.contains(name)

    def link(self, name: Multihash) -> BlockLink:
        """The number and the predecessor of a block.

        Raises:
            CorruptedPeerError: it is no block, or its predecessor is named by another kind of hash.
            AccessError, TransferError: from the peer.
            StorageFullError, StoreError: what came cannot be kept.
        """
        data = self.bytes_of(name)
        try:
            header = decode_header(data)
            if header.prev_block_hash is not None:
                check_object_name(header.prev_block_hash)
        except (CodecError, StoreError) as error:
            raise bad_block(self._peer, name, error) from error
        return BlockLink(header.sequence_number, header.prev_block_hash)

    def broken(self, problem: str) -> OdfchainError:
        """The error for a peer's broken chain."""
        return CorruptedPeerError(f"the chain of {self._peer.where} is broken: {problem}")

    def bytes_of(self, name: Multihash) -> bytes:
        """A block's bytes, hashed.

        Raises:
            CorruptedPeerError, AccessError, TransferError: from the peer.
            StorageFullError, StoreError: what came cannot be kept.
        """
        # asked first, though the block may be spooled by now: taking one lets another be asked for
        data = self._prefetch.take(name) if self._prefetch is not None else None
        if name in self._came:
            self._came.discard(name)
            data = self._spool.at_hand(name)
        if data is None:
            if (known := self._known(name)) is not None:
                return known
            data = self.fetch(name)
        self.received += len(data)
        if self.received > SHARING.chain_bytes:
            raise self.broken(f"more than {SHARING.chain_bytes:,} bytes of blocks")
        self._progress.advance()
        return data

    def _known(self, name: Multihash) -> bytes | None:
        data = self._spool.get(name)
        if data is None and self._local is not None:
            # a damaged local block is requested like a missing one
            with contextlib.suppress(ObjectNotFoundError, ObjectCorruptedError):
                data = self._local.get(name)
        return data

    def fetch(self, name: Multihash) -> bytes:
        """A block from the peer, spooled."""
        data = self._peer.block(name)
        self._spool.add(name, data)
        return data


def _below(hint: Sequence[Multihash], limit: int, head: Multihash) -> Iterator[Multihash]:
    count = min(limit, len(hint))
    # a stale hint does not have the head: then all of it is used
    end = next((i for i in range(count - 1, -1, -1) if hint[i] == head), count)
    return (hint[i] for i in range(end - 1, -1, -1))


def bad_block(peer: Peer, name: Multihash, error: Exception) -> CorruptedPeerError:
    """The error for a block that cannot be read as one."""
    newer = isinstance(error, UnsupportedVersionError)
    return CorruptedPeerError(
        f"{ObjectKey(ObjectKind.BLOCK, name)} of {peer.where}: {error}",
        hint="a newer version of odfchain may be able to read it" if newer else None,
    )


# The append rules over blocks that a peer sent, before anything that they refer to is asked for.


def index_chain(dataset: DatasetFiles, newest_first: Sequence[Multihash], kinds: Sequence[str]) -> None:
    """Let a new dataset's index know all blocks that were checked, so that none is read again for it.

    `kinds` are those of the blocks' events (`link_kind`), oldest first. The index is a cache: if it is wrong
    or cannot be written, it is built from the blocks when needed.
    """
    top = len(newest_first) - 1
    links = (Link(name, top - n, kinds[top - n]) for n, name in enumerate(newest_first))
    scratch = LocalScratch(dataset.index_path)
    ChainIndex(scratch, lambda _: links).sync(Link(newest_first[0], top, kinds[top]))


def checked_blocks(
    peer: Peer, links: PeerLinks, newest_first: Sequence[Multihash], base: History | None
) -> Iterator[HashedBlock]:
    """The blocks of a chain, oldest first, each after it was found to keep all append rules.

    `base` answers for the local chain before them; None when they start with the seed.

    Raises:
        CorruptedPeerError: a block is malformed or breaks a rule; the message names both.
        AccessError, TransferError: a block had to be asked for again, in vain.
        StorageFullError, StoreError: what was received cannot be read.
    """
    history = ReplayHistory(base)
    first = base is None
    for name in reversed(newest_first):
        try:
            block = decode_block(links.bytes_of(name))
        except CodecError as error:
            raise bad_block(peer, name, error) from error
        try:
            check_append(block, None if first else history)
        except AppendError as error:
            raise CorruptedPeerError(
                f"block {block.sequence_number} ({str(name)[:17]}…) of {peer.where} breaks the rule "
                f"{error.rule}: {one_line(str(error))}"
            ) from error
        history.add(block)
        first = False
        yield HashedBlock(name, block)


# Diverged chains: messages and refusals (RFC-021).

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


@dataclass(frozen=True, slots=True)
class Received:
    """Validated blocks: the seed if it was there; objects and kinds of events, oldest first."""

    seed: Seed | None
    objects: list[DataObject]
    kinds: list[str]


@dataclass(slots=True)
class Arrival:
    """The arrival of one pull from one peer; `area` is its folder."""

    peer: Peer
    area: Path
    parallel: int
    progress: Progress
    objects: int = field(default=0, init=False)
    """Objects received [count]."""
    bytes: int = field(default=0, init=False)
    """Bytes received, blocks' too."""

    @contextmanager
    def links(self, spool: Spool, local: ObjectStore | None) -> Iterator[PeerLinks]:
        """The links of the peer's chain; blocks that are local are not asked for."""
        self.progress.phase("Receiving blocks")
        with PeerLinks(self.peer, spool, local, self.progress) as links:
            yield links
            self.bytes += links.received

    def source(
        self, links: PeerLinks, head: Multihash, *, known: int, after: Multihash | None = None
    ) -> Source:
        """The peer as the source of a pull of `head`; `after` the newest local block, `known` its number."""
        number = links.prepare(head, known, after)
        self.progress.phase("Receiving blocks", max(0, number - known - 1))
        return Source(self.peer, head, number, links)

    def check(self, links: PeerLinks, blocks: Sequence[Multihash], base: History | None) -> Received:
        """Validate the blocks (newest first) against the append rules after `base`."""
        seed: Seed | None = None
        objects: list[DataObject] = []
        kinds: list[str] = []
        self.progress.phase("Checking blocks", len(blocks))
        for found in checked_blocks(self.peer, links, blocks, base):
            if isinstance(found.block.event, Seed):
                seed = found.block.event
            objects += objects_of(found.block)
            kinds.append(link_kind(found.block.event))
            self.progress.advance()
        return Received(seed, objects, kinds)

    def bring(self, dataset: DatasetFiles, wanted: Sequence[DataObject]) -> None:
        """The objects are in the dataset; errors as `slice_files.bring`."""
        folder = self.area / "objects"
        lacking = absent(dataset, wanted, folder)
        self.bytes += bring(
            dataset, self.peer, lacking, folder, parallel=self.parallel, progress=self.progress
        )
        self.objects += len(lacking)
