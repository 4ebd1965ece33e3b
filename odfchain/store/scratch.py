"""Private, disposable byte files: the home of derived data such as the chain index."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from odfchain.store import fsio


class LocalScratch:
    """A file that is never synced: losing it costs time, not data.

    It begins as a copy of `first`, where that is given and there.
    """

    def __init__(self, path: Path, first: Path | None = None) -> None:
        self._path = path
        self._first = first

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes from `start`; nothing when the file cannot be read."""
        if self._first is not None:
            self._begin(self._first)
            self._first = None
        try:
            with self._path.open("rb") as stream:
                return os.pread(stream.fileno(), count, start)
        except OSError:
            return b""

    def _begin(self, first: Path) -> None:
        if self._path.exists() or not first.exists():
            return
        copy = fsio.temp_path(self._path.parent)
        try:
            shutil.copyfile(first, copy)
            copy.replace(self._path)
        except OSError:
            fsio.remove_quietly(copy)

    def write(self, start: int, data: bytes) -> None:
        """Write at `start` and drop everything after."""
        with fsio.storage_errors(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                os.pwrite(fd, data, start)
                os.ftruncate(fd, start + len(data))
            finally:
                os.close(fd)


class MemoryScratch:
    """The same in memory; `data` is open to tests that damage it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes from `start`."""
        return bytes(self.data[start : start + count])

    def write(self, start: int, data: bytes) -> None:
        """Write at `start` and drop everything after."""
        self.data[start:] = b"\0" * max(0, start - len(self.data))
        self.data[start:] = data
