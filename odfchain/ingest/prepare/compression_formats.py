"""Compressed streams that hold one file: gzip, zstd, bzip2 and xz, decoded piece by piece.

All members (frames, streams) are decoded, not only the first. Zero bytes between and after members are
padding; anything else there is an error. A decoder never holds more than a few dozen MiB, whatever the
bytes say. Sources: RFC 1952 (gzip), RFC 8878 (Zstandard), the .xz file format 1.2.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Protocol

from odfchain.errors import PrepareError

_OUTPUT_BYTES = 1 << 20
_LZMA_MEMORY = 512 << 20
_ZSTD_FEED = 2 << 10  # one call returns at most 128 KiB for every 4 bytes: 64 MiB


class Codec(Enum):
    """A single-file format."""

    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"


def codec_of(head: bytes) -> Codec | None:
    """The format whose magic number the bytes begin with."""
    if head.startswith(b"\x1f\x8b"):
        return Codec.GZIP
    if head.startswith(b"BZh") and head[3:4] in tuple(b"%d" % n for n in range(1, 10)):
        return Codec.BZIP2
    if head.startswith(b"\xfd7zXZ\x00"):
        return Codec.XZ
    skippable = len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"
    if head.startswith(b"\x28\xb5\x2f\xfd") or skippable:
        return Codec.ZSTD
    return None


class _Decoder(Protocol):
    """Decodes one member; fed with b"" as long as it does not need input."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(out) < max_length and not self._inner.unconsumed_tail
        return out


class _Zstd:
    """The library bounds no output, so its input is rationed."""

    def __init__(self) -> None:
        import zstandard

        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._rest = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data + self._rest

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        data = self._rest + data if self._rest else data
        self._rest = data[_ZSTD_FEED:]
        return self._inner.decompress(data[:_ZSTD_FEED])


def _new_decoder(codec: Codec) -> _Decoder:
    if codec is Codec.BZIP2:
        return bz2.BZ2Decompressor()
    if codec is Codec.XZ:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)
    return _Gzip() if codec is Codec.GZIP else _Zstd()


def _errors(codec: Codec) -> tuple[type[Exception], ...]:
    if codec is Codec.ZSTD:
        import zstandard

        return (zstandard.ZstdError,)
    return {Codec.GZIP: (zlib.error,), Codec.XZ: (lzma.LZMAError,)}.get(
        codec, (OSError, ValueError, EOFError)
    )


def decoded(
    codec: Codec, pieces: Iterable[bytes], name: str, head_at: Callable[[int], bytes]
) -> Iterator[bytes]:
    """The decoded bytes of all members, in pieces.

    `head_at` gives the input's bytes at an offset: it tells what follows a member from a broken member.

    Raises:
        PrepareError: the input is corrupt, cut short or followed by something else.
    """
    errors = _errors(codec)
    decoder: _Decoder | None = None
    read = start = 0  # offsets in the input: what was taken from `pieces`, and where the member begins
    for piece in pieces:
        read += len(piece)
        data = piece
        while True:
            if decoder is None:
                data = data.lstrip(b"\0") if read > len(data) or start else data
                if not data:
                    break
                start = read - len(data)
                decoder = _new_decoder(codec)
            try:
                out = decoder.decompress(data, _OUTPUT_BYTES)
            except errors as error:
                reason = str(error).rpartition(": ")[2] or "unknown reason"
                raise _broken(codec, name, start, head_at(start), reason) from error
            if out:
                yield out
            if decoder.eof:
                data, decoder = decoder.unused_data, None
                continue
            data = b""
            if decoder.needs_input:
                break
    if decoder is not None:
        raise _broken(codec, name, start, head_at(start), "it ends too early: the file is cut short")


def _broken(codec: Codec, name: str, start: int, head: bytes, reason: str) -> PrepareError:
    if start and codec_of(head) is not codec:
        return PrepareError(f"{name}: from byte {start:,} on, the file is not {codec.value} any more")
    where = f" (in the member that begins at byte {start:,})" if start else ""
    return PrepareError(f"{name}: the {codec.value} data is corrupt{where}: {reason}")
