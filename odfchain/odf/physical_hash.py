"""SHA3-256 over a file's bytes (specification "Physical and Logical Hashes", "Checkpoint Hashing")."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from odfchain.odf.identity import Multihash

# SHA3-256, from the fastest implementation this Python has.
#
# OpenSSL's runs two to three times faster than the one inside CPython. Where `hashlib` was built without
# it, PyCryptodome's is taken.


class Hasher(Protocol):
    """A running hash, as `hashlib` has them."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Feed bytes."""

    def digest(self) -> bytes:
        """The digest of everything fed so far (32 bytes)."""

    def copy(self) -> Self:
        """An independent hasher in the same state."""


def openssl_sha3() -> bool:
    """True if `hashlib.sha3_256` is OpenSSL's."""
    return getattr(hashlib.sha3_256, "__module__", None) == "_hashlib"


def sha3_256(data: bytes | memoryview = b"") -> Hasher:
    """A SHA3-256 hasher that has been fed `data`."""
    if openssl_sha3():
        return hashlib.sha3_256(data)
    from Crypto.Hash import SHA3_256  # noqa: PLC0415 - only where hashlib is the slow one

    hasher: Hasher = SHA3_256.new(data, update_after_digest=True)
    return hasher


CHUNK_BYTES = 1 << 20


def hash_bytes(data: bytes) -> Multihash:
    """The physical hash of bytes in memory."""
    return Multihash.sha3_256(sha3_256(data).digest())


def hash_stream(stream: BinaryIO, *, chunk_bytes: int = CHUNK_BYTES) -> tuple[Multihash, int]:
    """(physical hash, size [bytes]) of everything left in a stream; memory stays at one chunk."""
    hasher, size = sha3_256(), 0
    buffer = memoryview(bytearray(chunk_bytes))
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]
        hasher.update(buffer[:count])
        size += count
    return Multihash.sha3_256(hasher.digest()), size


def hash_file(path: Path) -> tuple[Multihash, int]:
    """(physical hash, size [bytes]) of a file."""
    with path.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size  # of small files there are many
        return hash_stream(stream, chunk_bytes=max(1, min(size, CHUNK_BYTES)))
