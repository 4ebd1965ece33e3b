"""Batches of blocks that are no such thing, or otherwise written than ours."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable

from odfchain.transfer.smart_messages import BlocksBatch


def pressed(fill: Callable[[tarfile.TarFile], None]) -> BlocksBatch:
    """What is filled into a tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        fill(tar)
    return BlocksBatch(num_blocks=1, payload=stream.getvalue())


def entry(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> BlocksBatch:
    """One file of a tar, or what is none."""

    def fill(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, len(data), link
        tar.addfile(info, io.BytesIO(data))

    return pressed(fill)


def bomb(name: str, kind: bytes, size: int) -> BlocksBatch:
    """A header that says two gigabytes, and as many zeros as are there."""
    head = tarfile.TarInfo(name)
    head.type, head.size = kind, 2 << 30
    return BlocksBatch(num_blocks=1, payload=gzip.compress(head.tobuf(tarfile.GNU_FORMAT) + bytes(size)))
