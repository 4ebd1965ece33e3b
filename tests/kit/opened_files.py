"""Which files of a folder are opened, by whichever process and language: told by the kernel (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN, _MODIFY, _CREATE, _DELETE, _MOVED = 0x20, 0x2, 0x100, 0x200, 0xC0
_HEAD = struct.Struct("iIII")


@contextmanager
def opened_files(folder: Path) -> Iterator[list[str]]:
    """The names of files in a folder that were opened, made, changed or removed; full after the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.inotify_init1(os.O_NONBLOCK)
    assert number >= 0, os.strerror(ctypes.get_errno())
    seen: list[str] = []
    try:
        wanted = _OPEN | _MODIFY | _CREATE | _DELETE | _MOVED
        assert libc.inotify_add_watch(number, os.fsencode(folder), wanted) >= 0
        yield seen
        try:
            data = os.read(number, 1 << 20)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            *_, size = _HEAD.unpack_from(data, place)
            place += _HEAD.size
            if name := data[place : place + size].rstrip(b"\0").decode():
                seen.append(name)
            place += size
    finally:
        os.close(number)
