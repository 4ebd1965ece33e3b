"""System calls that fail on demand: the i-th call of a kind raises an error, once or for ever."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

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
