"""Blocks in one piece: a gzip-compressed tar with a file for each, oldest first, named by its hash.

Whatever comes is unpacked within bounds and hashed; nothing is written under the names in it.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from odfchain.digest.physical import hash_bytes
from odfchain.errors import CorruptedPeerError
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS, SMART
from odfchain.smart.smart_messages import BlocksBatch
from odfchain.text import one_line

_END = b"\0" * 1024


class RawBlock(NamedTuple):
    """The file of a block, and the hash that it has."""

    hash: Multihash
    data: bytes


def packed(blocks: Iterable[RawBlock]) -> BlocksBatch:
    """The batch of these blocks; the same blocks always give the same bytes."""
    tar, count = io.BytesIO(), 0
    for block in blocks:
        entry = tarfile.TarInfo(str(block.hash))
        entry.size, entry.mode = len(block.data), 0
        tar.write(entry.tobuf(tarfile.USTAR_FORMAT))
        tar.write(block.data)
        tar.write(b"\0" * (-len(block.data) % tarfile.BLOCKSIZE))
        count += 1
    tar.write(_END)
    return BlocksBatch(num_blocks=count, payload=gzip.compress(tar.getvalue(), 6, mtime=0))


def unpacked(batch: BlocksBatch) -> list[RawBlock]:
    """All blocks of a batch, as many as it says.

    Raises:
        CorruptedPeerError: more or fewer, one that does not hash to its name, something else than files of
            blocks, or more bytes than blocks can have.
    """
    if batch.num_blocks > SMART.blocks:
        raise _fault(f"{batch.num_blocks:,} blocks; {SMART.blocks:,} are allowed")
    found = list(readable(batch))
    if len(found) != batch.num_blocks:
        raise _fault(f"{len(found):,} blocks, though it says {batch.num_blocks:,}")
    return found


def readable(batch: BlocksBatch) -> Iterator[RawBlock]:
    """The blocks of a batch, one after the other, however many there are.

    Raises:
        CorruptedPeerError: when the first thing comes that is none; those before it are what they seem.
    """
    if len(batch.payload) > SMART.batch_bytes:
        raise _fault(f"{len(batch.payload):,} bytes; {SMART.batch_bytes:,} are allowed")
    try:
        with tarfile.open(fileobj=_Inflated(batch.payload), mode="r|") as tar:
            for number, entry in enumerate(tar):
                if number >= SMART.blocks:
                    raise _fault(f"more than {SMART.blocks:,} files")
                yield _block(tar, entry)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise _fault(f"not a gzip-compressed tar: {one_line(str(error))}") from None


def _block(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> RawBlock:
    name = one_line(entry.name, 100)
    if not entry.isreg() or entry.issparse():
        raise _fault(f"{name!r} is not an ordinary file")
    if not 0 <= entry.size <= LIMITS.block_bytes:
        raise _fault(f"{name!r} has {entry.size:,} bytes; a block has at most {LIMITS.block_bytes:,}")
    file = tar.extractfile(entry)
    data = file.read() if file is not None else b""
    actual = hash_bytes(data)
    if str(actual) != entry.name:
        raise _fault(f"{name!r} has content that hashes to {actual}")
    return RawBlock(actual, data)


class _Inflated(io.RawIOBase):
    """What a gzip stream unpacks to, no more of it than is allowed, a piece at a time.

    Raises:
        CorruptedPeerError: it unpacks to more.
    """

    def __init__(self, data: bytes) -> None:
        self._rest = data
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._made = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            size = SMART.unpacked_bytes
        found = b""
        while len(found) < size and not self._inflater.eof:
            piece = self._inflater.decompress(self._rest, size - len(found))
            self._rest = self._inflater.unconsumed_tail
            found += piece
            if not piece and not self._rest:
                raise EOFError("it ends early")
        self._made += len(found)
        if self._made > SMART.unpacked_bytes:
            raise _fault(f"it unpacks to more than {SMART.unpacked_bytes:,} bytes")
        return found


def _fault(what: str) -> CorruptedPeerError:
    return CorruptedPeerError(f"a batch of blocks: {what}")
