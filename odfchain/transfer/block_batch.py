"""Blocks in one piece: a gzip-compressed tar with a file for each, oldest first, named by its hash.

What comes is unpacked within bounds and hashed; nothing is written under the names in it.
"""

from __future__ import annotations

import functools
import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence

from odfchain.errors import CorruptedPeerError
from odfchain.limits import LIMITS, SMART
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.store import RawBlock
from odfchain.text import one_line
from odfchain.transfer.slice_files import DataObject
from odfchain.transfer.smart_messages import BlocksBatch, TransferPlan

_END = b"\0" * 1024
_HEAD = tarfile.BLOCKSIZE
# Units of decompression, and the limit of one piece's output [bytes].
_PACKED_BYTES, _PIECE_BYTES = 16 << 10, 256 << 10

# The header of a file that is called like a block: nothing that is not said of such files elsewhere.
_PLAIN = re.compile(
    rb"(f1620[0-9a-f]{64})\0{31}[0-7 \0]{24}([0-7]{11})[ \0][0-7 \0]{20}[0\0]\0{100}ustar.{83}\0{167}",
    re.DOTALL,
)


def packed(blocks: Iterable[RawBlock]) -> BlocksBatch:
    """The batch of these blocks; the same blocks always give the same bytes."""
    tar, count = io.BytesIO(), 0
    for block in blocks:
        tar.write(_head(str(block.hash), len(block.data)))
        tar.write(block.data)
        tar.write(b"\0" * (-len(block.data) % tarfile.BLOCKSIZE))
        count += 1
    tar.write(_END)
    return BlocksBatch(num_blocks=count, payload=gzip.compress(tar.getvalue(), 6, mtime=0))


def plan_of(blocks: int, block_bytes: int, objects: Sequence[DataObject]) -> TransferPlan:
    """The plan of a transfer of so many blocks, and of the objects that they name."""
    offsets = [item.offsets for item in objects if item.offsets is not None]
    return TransferPlan(
        num_blocks=blocks,
        num_objects=len(objects),
        num_records=sum(each.end - each.start + 1 for each in offsets),
        bytes_in_raw_blocks=block_bytes,
        bytes_in_raw_objects=sum(item.size for item in objects),
    )


def _head(name: str, size: int) -> bytes:
    # `tarfile` takes as long for a header as hashing the block: its output is patched instead
    head, digits = bytearray(_empty_head()), b"%011o" % size
    head[: len(name)] = name.encode("ascii")
    head[124:135] = digits
    head[148:154] = b"%06o" % (sum(head[:148]) + sum(head[156:]) + 8 * ord(" "))
    return bytes(head)


@functools.cache
def _empty_head() -> bytes:
    entry = tarfile.TarInfo("")
    entry.mode = 0
    return entry.tobuf(tarfile.USTAR_FORMAT)


def unpacked(batch: BlocksBatch) -> list[RawBlock]:
    """All blocks of a batch, as many as it says."""
    if batch.num_blocks > SMART.blocks:
        raise _fault(f"{batch.num_blocks:,} blocks; {SMART.blocks:,} are allowed")
    found = list(readable(batch))
    if len(found) != batch.num_blocks:
        raise _fault(f"{len(found):,} blocks, though it says {batch.num_blocks:,}")
    return found


def readable(batch: BlocksBatch) -> Iterator[RawBlock]:
    """The blocks of a batch, one after the other, however many there are."""
    if len(batch.payload) > SMART.batch_bytes:
        raise _fault(f"{len(batch.payload):,} bytes; {SMART.batch_bytes:,} are allowed")
    try:
        for number, block in enumerate(_blocks(_Inflated(batch.payload))):
            if number >= SMART.blocks:
                raise _fault(f"more than {SMART.blocks:,} files")
            yield block
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise _fault(f"not a gzip-compressed tar: {one_line(str(error))}") from None


def _blocks(stream: _Inflated) -> Iterator[RawBlock]:
    read = 0
    # headers in the usual form are read here; from the first other one on `tarfile` reads
    while (plain := _PLAIN.fullmatch(head := stream.read(_HEAD))) is not None:
        name, size = plain[1].decode("ascii"), int(plain[2], 8)
        _check_size(name, size)
        yield _hashed(name, stream.read(size))
        stream.read(-size % _HEAD)
        read += 1
    if read and not head:
        return  # it ends without saying so, which `tarfile` allows as well
    stream.put_back(head)
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for entry in tar:
            yield _block(tar, entry)


def _block(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> RawBlock:
    name = one_line(entry.name, 100)
    if not entry.isreg() or entry.issparse():
        raise _fault(f"{name!r} is not an ordinary file")
    _check_size(name, entry.size)
    file = tar.extractfile(entry)
    return _hashed(entry.name, file.read() if file is not None else b"")


def _check_size(name: str, size: int) -> None:
    if not 0 <= size <= LIMITS.block_bytes:
        raise _fault(f"{name!r} has {size:,} bytes; a block has at most {LIMITS.block_bytes:,}")


def _hashed(name: str, data: bytes) -> RawBlock:
    actual = hash_bytes(data)
    if str(actual) != name:
        raise _fault(f"{one_line(name, 100)!r} has content that hashes to {actual}")
    return RawBlock(actual, data)


class _Inflated(io.RawIOBase):
    """A gzip stream, decompressed in pieces, up to a limit."""

    def __init__(self, data: bytes) -> None:
        self._packed = memoryview(data)
        self._rest = b""
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._made = 0
        self._buffer, self._start = b"", 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            size = SMART.unpacked_bytes
        while len(self._buffer) - self._start < size and not self._inflater.eof:
            self._buffer, self._start = self._buffer[self._start :] + self._more(), 0
        found = self._buffer[self._start : self._start + size]
        self._start += len(found)
        return found

    def put_back(self, data: bytes) -> None:
        self._buffer, self._start = data + self._buffer[self._start :], 0

    def _more(self) -> bytes:
        if not self._rest:
            if not self._packed:
                raise EOFError("it ends early")
            # cut up: what is left over is copied with each piece that is unpacked
            self._rest, self._packed = bytes(self._packed[:_PACKED_BYTES]), self._packed[_PACKED_BYTES:]
        found = self._inflater.decompress(self._rest, _PIECE_BYTES)
        self._rest = self._inflater.unconsumed_tail
        self._made += len(found)
        if self._made > SMART.unpacked_bytes:
            raise _fault(f"it unpacks to more than {SMART.unpacked_bytes:,} bytes")
        return found


def _fault(what: str) -> CorruptedPeerError:
    return CorruptedPeerError(f"a batch of blocks: {what}")
