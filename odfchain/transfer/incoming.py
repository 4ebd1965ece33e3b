"""An object on its way into a file: hashed as it is written, and continued where an earlier run broke off.

Nothing that the file holds is believed: what is there already is hashed first, and the whole has to hash to
the object's name. So it does not matter which peer a part came from. A file has one writer: what was hashed
as it came is what the file has, since no other transfer writes to it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from odfchain.digest.sha3 import Hasher, sha3_256
from odfchain.errors import BusyError, CorruptedPeerError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.progress import Progress
from odfchain.store.fsio import FileState, file_state, lock_at_once, remove_own, storage_errors
from odfchain.transfer.public_layout import ObjectKey

BUFFER_BYTES = 1 << 20
"""Large pieces, because the hash lets other threads run while it works on one."""

MIRROR_HINT = "the peer's copy is damaged or not honest: try another peer that has the dataset"
"""What to do about wrong content."""


class Incoming:
    """One object and its file. Leaving the block without success keeps what has arrived.

    Progress advances by bytes, each byte once, also if some arrive again. What does not `resume` has a new
    file, which is gone afterwards unless it was published.

    Raises:
        BusyError: another transfer writes to the file.
        StorageFullError: no space for the object.
        StoreError: the file cannot be written or read.
    """

    def __init__(
        self,
        key: ObjectKey,
        size: int,
        target: Path,
        *,
        name: str,
        progress: Progress,
        resume: bool = True,
    ) -> None:
        self.received = 0
        """Bytes in the file."""
        self.size = size
        self._key = key
        self._target = target
        self._name = name
        self._progress = progress
        self._told = 0
        self._inherited = False
        self._resume = self._keep = resume
        self._hasher: Hasher = sha3_256()
        self._fd = -1
        self._buffer = memoryview(bytearray(max(1, min(size, BUFFER_BYTES))))

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            with storage_errors(self._target):
                self._fd = os.open(self._target, flags if self._resume else flags | os.O_EXCL, 0o644)
                self._adopt()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._keep or (self.received == 0 and error is not None):
            remove_own(self._target, self._fd)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # another error is on its way, or the caller syncs the file
                os.close(fd)

    def _adopt(self) -> None:
        """Hash what an earlier run left, and no other run still writes."""
        if not lock_at_once(self._fd):
            raise BusyError(f"{self._target}: another transfer writes to it", hint="try again when it ended")
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{self._target}: not a regular file")
        if found.st_size > self.size:
            os.ftruncate(self._fd, 0)
            return
        while self.received < found.st_size:
            count = os.readv(self._fd, [self._buffer])
            if count == 0:
                break
            self._take(self._buffer[:count])
        self._inherited = self.received > 0

    @property
    def room(self) -> memoryview:
        """Where to read the next bytes to; empty when all have arrived."""
        return self._buffer[: self.size - self.received]

    def append(self, count: int) -> None:
        """Take over the first `count` bytes of `room`."""
        self.add(self._buffer[:count])

    def add(self, data: memoryview) -> None:
        """Take over bytes, no more of them than there is room for in the object."""
        with storage_errors(self._target):
            rest = data
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self._take(data)

    def _take(self, data: memoryview) -> None:
        self._hasher.update(data)
        self.received += len(data)
        if self.received > self._told:
            self._progress.advance(self.received - self._told)
            self._told = self.received

    def restart(self) -> None:
        """Forget what has arrived."""
        with storage_errors(self._target):
            os.lseek(self._fd, 0, os.SEEK_SET)
            os.ftruncate(self._fd, 0)
        self.received, self._inherited, self._hasher = 0, False, sha3_256()

    def complete(self) -> bool:
        """Whether the object is there, and is what its name says.

        A file that was begun by an earlier run and ends up wrong is given one new start.

        Raises:
            CorruptedPeerError: the content is not that of the name; nothing is left of it.
        """
        if self.received < self.size:
            return False
        actual = Multihash.sha3_256(self._hasher.digest())
        if actual == self._key.name:
            return True
        if self._inherited:
            self.restart()
            return False
        raise self.refuse(f"the content hashes to {actual}, not to its name")

    def sync(self) -> None:
        """Make what has arrived durable."""
        with storage_errors(self._target):
            os.fsync(self._fd)

    def publish(self, path: Path) -> FileState:
        """Give the file its name, whatever has that now; the state of the very file that was written."""
        with storage_errors(path):
            self._target.replace(path)
            self._keep = True
            return file_state(os.fstat(self._fd))

    def refuse(self, what: str) -> CorruptedPeerError:
        """The error for an object that is not what it should be; its file is removed."""
        remove_own(self._target, self._fd)
        return CorruptedPeerError(f"{self._name}: {what}", hint=MIRROR_HINT)
