"""System calls that fail on demand: the i-th call of a kind raises an error, once or for ever.

`faulty` counts those of the storage layer, `failing` all that a process makes about files of one folder, also
those that write. A sync that failed and is tried again is remembered.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "fsync", "link", "replace", "rename", "unlink", "mkdir")


class FaultyCalls:
    """Counts the calls of `os` that the storage layer makes and fails the chosen one."""

    def __init__(self, fail_at: int | None, error: int, *, forever: bool) -> None:
        self.count = 0
        self.fired = 0
        self._fail_at = fail_at
        self._error = error
        self._forever = forever

    def hit(self, name: str) -> None:
        self.count += 1
        due = self._fail_at is not None and (
            self.count == self._fail_at or (self._forever and self.count > self._fail_at)
        )
        if due and name != "unlink":
            self.fired += 1
            raise OSError(self._error, os.strerror(self._error))


@contextlib.contextmanager
def faulty(fail_at: int | None, error: int = errno.ENOSPC, *, forever: bool = False) -> Iterator[FaultyCalls]:
    """Within the block, the storage layer's system calls go through a counter."""
    from odfchain.storage import fsio

    faults = FaultyCalls(fail_at, error, forever=forever)

    class Shim:
        def __getattr__(self, name: str) -> object:
            real = getattr(os, name)
            if name not in CALLS:
                return real

            def call(*args: object, **kwargs: object) -> object:
                faults.hit(name)
                return real(*args, **kwargs)

            return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsio, "os", Shim())
        yield faults


CHANGING = ("open", "fsync", "link", "replace", "rename", "mkdir", "pwrite", "ftruncate", "chmod", "utime")
"""Calls of `os` that `failing` counts, beside writes. Removing always works: it tidies up after the others."""


class FailingFolder(FaultyCalls):
    """Counts the calls about files of one folder, and fails the chosen one."""

    def __init__(self, folder: Path, fail_at: int | None, error: int, *, forever: bool) -> None:
        super().__init__(fail_at, error, forever=forever)
        self.calls: list[tuple[str, str]] = []
        self.synced_again: list[str] = []
        """Files whose sync failed, and was tried again."""
        self._folder = f"{folder.resolve()}/"
        self._unsynced = set[str]()
        self._counting = threading.Lock()

    def about(self, name: str, what: Any) -> None:
        """A call comes, about a path or an open file; it fails where its turn is."""
        named = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else Path(os.fsdecode(what))
        path = str(named.absolute())
        if not f"{path}/".startswith(self._folder):
            return
        with self._counting:
            self.calls.append((name, path))
            if name == "fsync" and path in self._unsynced:
                self.synced_again.append(path)
            try:
                self.hit(name)
            except OSError:
                # that of a folder is made again for other files in it
                if name == "fsync" and not Path(path).is_dir():
                    self._unsynced.add(path)
                raise


@contextlib.contextmanager
def failing(
    folder: Path, fail_at: int | None, error: int = errno.ENOSPC, *, forever: bool = False
) -> Iterator[FailingFolder]:
    """Within the block, this process's calls that change files of a folder go through a counter."""
    faults = FailingFolder(folder, fail_at, error, forever=forever)
    real_open = io.open

    class Raw(io.FileIO):
        def write(self, data: Any) -> int | None:
            faults.about("write", self.fileno())
            return super().write(data)

    def opened(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        writes = not set(mode).isdisjoint("wax+")
        if writes and not isinstance(file, int):
            faults.about("open", file)
        if not writes or "b" not in mode or "+" in mode:
            return real_open(file, mode, buffering, *args, **kwargs)
        raw = Raw(file, mode.replace("b", ""), kwargs.get("closefd", True), kwargs.get("opener"))
        return io.BufferedWriter(raw) if buffering else raw

    def counted(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None:
                faults.about(name, args[1] if name in ("link", "replace", "rename") else args[0])
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            patch.setattr(os, name, counted(name))
        patch.setattr(os, "fdopen", opened)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        yield faults
