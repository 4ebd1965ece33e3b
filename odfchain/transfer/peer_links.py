"""Blocks on their way in: read from a peer, kept where an interrupted pull finds them again.

A block that is known here (received before, or part of the local dataset) is not asked for. A received
block is an unsynced file in a private folder and is hashed whenever it is read again, so a torn one is only
missing.

A hint lets blocks be asked for ahead of the walk (`odfchain.transfer.prefetch`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from odfchain.chain.compare import BlockLink
from odfchain.codec.blocks import decode_header
from odfchain.digest.physical import hash_bytes
from odfchain.errors import (
    CodecError,
    CorruptedPeerError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    StoreError,
    UnsupportedVersionError,
)
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS, SHARING
from odfchain.progress import SILENT, Progress
from odfchain.store import fsio
from odfchain.store.interfaces import ObjectStore, check_object_name
from odfchain.transfer.peer import Peer
from odfchain.transfer.prefetch import Prefetch
from odfchain.transfer.public_layout import ObjectKey, ObjectKind

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_HINT_FROM = 16
"""From how many unknown blocks on it is worth asking for a hint."""
_MEMORY_BYTES = 64 << 20
"""How much of what was received is kept at hand until it is read the second time [bytes]."""
_ENTRY_BYTES = 400
"""What keeping a block takes besides its bytes, roughly [bytes]."""


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
        """Where a block is or would be."""
        return self.folder / str(name)

    def contains(self, name: Multihash) -> bool:
        """Whether there is a file of this name; it may be torn."""
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
        self.received = 0
        """Bytes of blocks that came from the peer."""
        self._peer = peer
        self._spool = spool
        self._local = local
        self._progress = progress
        self._prefetch: Prefetch | None = None
        self._came: set[Multihash] = set()
        """What came in one piece, and was not read so far."""

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
        """Whether a block is one of the local dataset."""
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
        """What the peer has is no chain."""
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
        """A block that was received before, or is one of the local dataset."""
        data = self._spool.get(name)
        if data is None and self._local is not None:
            with contextlib.suppress(ObjectNotFoundError, ObjectCorruptedError):
                data = self._local.get(name)
        return data

    def fetch(self, name: Multihash) -> bytes:
        """A block from the peer, spooled."""
        data = self._peer.block(name)
        self._spool.add(name, data)
        return data


def _below(hint: Sequence[Multihash], limit: int, head: Multihash) -> Iterator[Multihash]:
    """The hinted blocks before the head, newest first; all of them when the head is not among them."""
    count = min(limit, len(hint))
    end = next((i for i in range(count - 1, -1, -1) if hint[i] == head), count)
    return (hint[i] for i in range(end - 1, -1, -1))


def bad_block(peer: Peer, name: Multihash, error: Exception) -> CorruptedPeerError:
    """The error for a block that cannot be read as one."""
    newer = isinstance(error, UnsupportedVersionError)
    return CorruptedPeerError(
        f"{ObjectKey(ObjectKind.BLOCK, name)} of {peer.where}: {error}",
        hint="a newer version of odfchain may be able to read it" if newer else None,
    )
