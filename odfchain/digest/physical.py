"""The physical hash of a file: SHA3-256 over its bytes, streamed.

Source: specification "Physical and Logical Hashes", "Checkpoint Hashing".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from odfchain.digest.sha3 import sha3_256
from odfchain.ids.multihash import Multihash

CHUNK_BYTES = 1 << 20


def hash_bytes(data: bytes) -> Multihash:
    """The physical hash of bytes in memory."""
    return Multihash.sha3_256(sha3_256(data).digest())


def hash_stream(
    stream: BinaryIO, progress: Callable[[int], None] | None = None, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[Multihash, int]:
    """(physical hash, size [bytes]) of everything left in a stream; memory stays at one chunk.

    `progress` is called with the size of every chunk.
    """
    hasher, size = sha3_256(), 0
    buffer = memoryview(bytearray(chunk_bytes))
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]
        hasher.update(buffer[:count])
        size += count
        if progress is not None:
            progress(count)
    return Multihash.sha3_256(hasher.digest()), size


def hash_file(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Multihash, int]:
    """(physical hash, size [bytes]) of a file."""
    with path.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size  # of small files there are many
        return hash_stream(stream, progress, chunk_bytes=max(1, min(size, CHUNK_BYTES)))
