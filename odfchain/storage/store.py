"""A store: a dataset somewhere else, to read from and perhaps to write to.

A `Transport` (a web server, a folder, a bucket) only says how files are opened and written. What is made of
that is the same for all, in `Store`: how much is read at most, hashing, how often a failure that may pass is
tried again, where a broken object is continued, and what an absent file means. Nothing is believed: what does
not hash to its name is never handed on. `tests/share/test_peer_contract.py` runs one suite over all kinds.
Source: RFC-021, RFC-055.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar, final

from odfchain import errors
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.odf.physical_hash import Hasher, hash_bytes, sha3_256
from odfchain.progress import Progress
from odfchain.storage import http_rules
from odfchain.storage.fsio import FileState, file_state, lock_at_once, storage_errors
from odfchain.storage.local import HEAD, check_object_name, parse_ref
from odfchain.storage.public_layout import (
    HINT_KEY,
    INDEX_KEY,
    MOST_NAMES_BYTES,
    REFS_HINT_KEY,
    ObjectKey,
    ObjectKind,
    SignedFile,
    encode_hint,
    encode_names,
    hint_bytes,
    parse_hint,
    ref_key,
)
from odfchain.storage.routes import PRIVATE_HINT
from odfchain.text import one_line

_T = TypeVar("_T")

PEER_LIMITS = FetchLimits(
    deadline=SHARING.request_seconds,
    connect_timeout=SHARING.connect_seconds,
    idle_timeout=SHARING.idle_seconds,
    bytes_per_second=SHARING.bytes_per_second,
    redirects=SHARING.redirects,
    retries=SHARING.retries,
    first_wait=SHARING.retry_seconds,
)
"""Bounds on a request; the deadline grows with what is asked for, and covers the retries."""

# Hints for peers, in place of those for sources.
_HINTS: dict[str | None, str] = {
    http_rules.DEADLINE_HINT: "run the command again: what has arrived is kept",
    PRIVATE_HINT: "if you trust it, give the URL that it leads to",
}


class AbsentError(errors.TransferError):
    """The place has no such file; never leaves this package."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file of a peer that is being read."""

    name: str
    """The name in messages."""
    body: http_rules.Body
    total: int | None
    """Size of the whole file, where it is known [bytes]."""
    start: int = 0
    """From which of its bytes the body is; -1 where the place cannot continue it."""
    framed: bool = True
    """True if a body that ends early is all that the place has: the connection did not break."""


# A download into a file: hashed as it is written, and resumed after an interruption.
# Bytes of an earlier run are hashed first, and the whole must hash to the object's name, whichever peers it
# came from. A file has one writer.

BUFFER_BYTES = 1 << 20
"""Large pieces, because the hash lets other threads run while it works on one."""

MIRROR_HINT = "the peer's copy is damaged or not honest: try another peer that has the dataset"
"""The hint for wrong content."""


class Incoming:
    """One object and its file. Leaving the block without success keeps what has arrived.

    Progress advances by bytes, each byte once, also if some arrive again. What does not `resume` has a new
    file, which is gone afterwards unless it was published.

    Raises:
        StorageFullError: no space for the object.
        StoreError: another transfer writes to the file, or it cannot be written or read.
    """

    def __init__(
        self, key: ObjectKey, size: int, target: Path, *, name: str, progress: Progress, resume: bool = True
    ) -> None:
        # Bytes in the file.
        self.received = 0
        self.size = size
        self._key = key
        self._target = target
        self._name = name
        self._progress = progress
        self._reported = 0
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
            self._remove()
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # another error is on its way, or the caller syncs the file
                os.close(fd)

    def _adopt(self) -> None:
        if not lock_at_once(self._fd):
            hint = "try again when it ended"
            raise errors.StoreError(f"{self._target}: another transfer writes to it", hint=hint, exit_code=5)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise errors.StoreError(f"{self._target}: not a regular file")
        if found.st_size > self.size:
            os.ftruncate(self._fd, 0)
            return
        while self.received < found.st_size:
            # what an earlier run left is hashed before it is continued
            count = os.readv(self._fd, [self._buffer])
            if count == 0:
                break
            self._take(self._buffer[:count])
        self._inherited = self.received > 0

    @property
    def room(self) -> memoryview:
        """The buffer for the next bytes; empty when all have arrived."""
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
        if self.received > self._reported:
            self._progress.advance(self.received - self._reported)
            self._reported = self.received

    def restart(self) -> None:
        """Forget what has arrived."""
        with storage_errors(self._target):
            os.lseek(self._fd, 0, os.SEEK_SET)
            os.ftruncate(self._fd, 0)
        self.received, self._inherited, self._hasher = 0, False, sha3_256()

    def complete(self) -> bool:
        """True if the object is complete and hashes to its name."""
        if self.received < self.size:
            return False
        actual = Multihash.sha3_256(self._hasher.digest())
        if actual == self._key.name:
            return True
        if self._inherited:
            # the wrong bytes may be those of an earlier run: one new start
            self.restart()
            return False
        raise self.refuse(f"the content hashes to {actual}, not to its name")

    def sync(self) -> None:
        """Make what has arrived durable."""
        with storage_errors(self._target):
            os.fsync(self._fd)

    def publish(self, path: Path) -> FileState:
        """Give the file its name, also one that is taken; returns the state of the file that was written."""
        with storage_errors(path):
            self._target.replace(path)
            self._keep = True
            return file_state(os.fstat(self._fd))

    def refuse(self, what: str) -> errors.CorruptedPeerError:
        """The error for an object that is not what it should be; its file is removed."""
        self._remove()
        return errors.CorruptedPeerError(f"{self._name}: {what}", hint=MIRROR_HINT)

    def _remove(self) -> None:
        # another file may have the name by now
        with contextlib.suppress(OSError):
            if os.path.samestat(self._target.lstat(), os.fstat(self._fd)):
                self._target.unlink()


class RawBlock(NamedTuple):
    """The file of a block, and the hash that it has."""

    hash: Multihash
    data: bytes


class Transport(ABC):
    """How the files of a dataset are reached. Methods may be called from several threads.

    Besides `open` a kind implements what it can do; the rest is refused. RFC-055 says what each
    promises for each kind.

    Raises, all of them:
        CorruptedPeerError: what is there is not what may be there.
        AccessError: the place refuses.
        TransferError: it cannot be reached, is too slow, or sends too much.
    """

    takes_files = True
    """True if it is written file by file; a node takes a push as a whole."""
    caveat: str | None = None
    """The caveat of how references were swapped; None for a true compare-and-swap."""

    def __init__(
        self,
        where: str,
        *,
        limits: FetchLimits = PEER_LIMITS,
        timing: http_rules.Timing | None = None,
        turns: AbstractContextManager[object] | None = None,
    ) -> None:
        """A place that messages call `where`; `turns` is entered for as long as a file is asked for."""
        self.where = where
        self.limits = limits
        self.timing = timing or http_rules.Timing()
        self.turns = turns or contextlib.nullcontext()

    @abstractmethod
    def open(
        self, key: str, start: int, cap: int, deadline: http_rules.Deadline, /
    ) -> AbstractContextManager[Opened]:
        """A file, from byte `start` on where the place can do that; no more than `cap` bytes are wanted.

        Raises:
            AbsentError: there is no such file.
            TransientError: worth another attempt.
            FetchError: no answer in time.
        """

    def close(self) -> None:  # noqa: B027 - for kinds that keep any
        """Let go of connections."""

    def size(self, key: str) -> int | None:  # noqa: ARG002 - for kinds that can be asked
        """Size of a file [bytes], which is not read; None where it is not there, or the kind cannot say."""
        return None

    def put_file(self, key: ObjectKey, source: Path, progress: Progress) -> bool:  # noqa: ARG002 - for kinds that are written
        """Durably store a file that hashes to the key's name; returns whether it was there."""
        raise self._unwritable(key)

    def write(self, key: str, data: bytes) -> object:  # noqa: ARG002 - as above
        """Durably replace a small file; readers see the old content or the new."""
        raise self._unwritable(key)

    def delete(self, key: str) -> None:
        """Remove a small file, if it is there."""
        raise self._unwritable(key)

    def swap(self, ref: str, expected: Multihash | None, new: Multihash) -> None:  # noqa: ARG002 - as above
        """Point a reference at `new` if it is at `expected` (None: there is none), else RefConflictError."""
        raise self._unwritable(ref_key(ref))

    def folders(self, below: str) -> Sequence[str]:
        """The next segments of keys that begin with `below` (empty, or ending in a slash), in any order."""
        raise errors.UnsupportedPeerError(f"{self.where}{below}: nothing lists what is here")

    def _unwritable(self, key: object) -> errors.TransferError:
        return errors.TransferError(f"{self.where}{key}: single files cannot be written here")

    # --- shortcuts -----------------------------------------------------------------------------------

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:  # noqa: ARG002 - for nodes
        """Blocks that come in one piece, most likely the `count` above `after`; nothing from mere files."""
        return iter(())

    def announce(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:  # noqa: B027 - for nodes
        """These objects, with their sizes [bytes], are going to be fetched."""

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:  # noqa: ARG002 - for what is pushed
        """True if a file of this state is known to hash to the object's name: it was hashed on arrival."""
        return False


@final
class Store:
    """A dataset elsewhere: objects by hash, references by compare-and-swap, all bounded and thread-safe."""

    def __init__(self, transport: Transport, ref: str = HEAD) -> None:
        """The dataset that a transport reaches; nothing is asked of it yet."""
        self.transport = transport
        self.ref = ref
        """The reference that is asked for and moved: the head, or a branch."""

    @property
    def where(self) -> str:
        """The URL, for messages; without credentials."""
        return self.transport.where

    def close(self) -> None:
        """Let go of connections."""
        self.transport.close()

    # --- reading -------------------------------------------------------------------------------------

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:
        """As `Transport`; blocks of branches come one by one."""
        return self.transport.batch(after, count) if self.ref == HEAD else iter(())

    def head(self, ref: str | None = None, *, below: str = "") -> Multihash | None:
        """The newest block (of `ref`, if given); None when there is no such dataset, or no such branch.

        In a repository it is that of the dataset `below` the URL (a path that ends in a slash).
        """
        try:
            data, name = self._read(f"{below}{ref_key(ref or self.ref)}", LIMITS.ref_bytes)
            # a branch in a store that machines share is deleted by making its object empty
            return parse_ref(data, name) if data or (ref or self.ref) == HEAD else None
        except AbsentError:
            return None
        except errors.StoreError as error:
            raise errors.CorruptedPeerError(one_line(str(error), 800)) from None

    def decoded(self, name: Multihash) -> MetadataBlock:
        """A block, as it is read."""
        try:
            return decode_block(self.block(name))
        except errors.CodecError as error:
            message = f"{self.where}{ObjectKey(ObjectKind.BLOCK, name)}: {error}"
            raise errors.CorruptedPeerError(message) from None

    def block(self, name: Multihash) -> bytes:
        """The bytes of a block, which hash to its name; at most `LIMITS.block_bytes`."""
        with _promised():
            data, where = self._read(str(ObjectKey(ObjectKind.BLOCK, name)), LIMITS.block_bytes)
        actual = hash_bytes(data)
        if actual != name:
            message = f"{where}: the content hashes to {actual}, not to its name"
            raise errors.CorruptedPeerError(message, hint=MIRROR_HINT)
        return data

    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        """Bring an object of `size` bytes that hashes to its name into a file; wrong bytes are not left."""
        with Incoming(key, size, target, name=f"{self.where}{key}", progress=progress) as incoming:
            # each round continues a broken transfer where the peer supports that
            while not incoming.complete():
                with _promised("a signed line names" if key.kind.describes else "the chain refers to"):
                    self._attempts(
                        str(key), size, lambda opened: _receive(opened, incoming), lambda: incoming.received
                    )

    def signed(self, file: SignedFile) -> bytes | None:
        """A file of signed statements, of which only the size is checked; None when it is not there."""
        try:
            return self._read(file.key(self.ref), file.limit)[0]
        # many static hosts answer 403 for absent files, so AccessError means that there is none
        except (AbsentError, errors.AccessError):
            return None

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the peer says; at most `limit`. None when it says nothing."""
        if self.ref != HEAD:
            return None
        try:
            # without retries: a hint only saves time
            return parse_hint(self._read(HINT_KEY, hint_bytes(limit), retries=0)[0], limit)
        except errors.TransferError:
            return None

    def branches(self) -> list[str]:
        """The branches that the peer says it has, ordered; nothing depends on its truth."""
        try:
            data = self._read(REFS_HINT_KEY, MOST_NAMES_BYTES, retries=0)[0]
        except errors.TransferError:
            return []
        # what cannot name a branch is left out
        return sorted({name for name in data.decode("ascii", "replace").split("\n") if is_branch_name(name)})

    def index(self, limit: int) -> bytes | None:
        """The index of a repository of at most `limit` bytes; None when there is none."""
        try:
            return self._read(INDEX_KEY, limit)[0]
        except AbsentError:
            return None

    # --- writing -------------------------------------------------------------------------------------

    def contains(self, key: ObjectKey) -> bool:
        """True if an object is there (its bytes are not read)."""
        return self.size(key) is not None

    def size(self, key: ObjectKey) -> int | None:
        """Size of an object [bytes], which is not read; None where it is not there."""
        return self.transport.size(str(key))

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> bool:
        """Durably store a file that hashes to the key's name; returns whether it was there."""
        return self.transport.put_file(key, source, progress)

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Point the head, or the branch, at `new` if it points at `expected` now (None: there is none)."""
        check_object_name(new)
        self.transport.swap(self.ref, expected, new)

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Say what the chain's blocks are, seed first."""
        self.transport.write(HINT_KEY, encode_hint(hashes))

    def put_names(self, branches: Sequence[str]) -> None:
        """Say what the branches are called."""
        self.transport.write(REFS_HINT_KEY, encode_names(branches))

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """Durably replace a file of signed statements; None removes it."""
        if data is None:
            self.transport.delete(file.key(self.ref))
        else:
            self.transport.write(file.key(self.ref), data)

    # --- one file ------------------------------------------------------------------------------------

    def _read(self, key: str, limit: int, retries: int | None = None) -> tuple[bytes, str]:
        def take(opened: Opened) -> tuple[bytes, str]:
            # the declared size is checked before anything is read
            data = opened.body.read(limit) if (opened.total or 0) <= limit else None
            if data is None:
                raise errors.TransferError(f"{opened.name}: larger than the allowed {limit:,} bytes")
            return data, opened.name

        return self._attempts(key, limit, take, retries=retries)

    def _attempts(
        self,
        key: str,
        cap: int,
        take: Callable[[Opened], _T],
        received: Callable[[], int] = lambda: 0,
        retries: int | None = None,
    ) -> _T:
        limits = self.transport.limits if retries is None else replace(self.transport.limits, retries=retries)
        name = f"{self.where}{key}"

        def attempt() -> _T:
            try:
                with self.transport.open(key, received(), cap, deadline) as opened:
                    return take(opened)
            except http_rules.ProtocolError as error:  # another attempt would be answered in the same way
                raise errors.TransferError(f"{error.name}: {error.reason}") from error

        with self.transport.turns, as_transfer_errors():
            # the time limit grows with the size of the file
            seconds = limits.deadline + math.ceil(cap / SHARING.bytes_per_second)
            deadline = http_rules.Deadline(seconds, self.transport.timing, name=name)
            return http_rules.with_retries(
                attempt, name=name, limits=limits, timing=self.transport.timing, deadline=deadline
            )


@contextlib.contextmanager
def as_transfer_errors() -> Iterator[None]:
    """Translate errors of sources into those of peers."""
    try:
        yield
    except errors.FetchError as error:
        kind = errors.AccessError if isinstance(error, http_rules.ProxyDeniedError) else errors.TransferError
        raise kind(error.message, hint=_HINTS.get(error.hint, error.hint)) from error


@contextlib.contextmanager
def _promised(by: str = "the chain refers to") -> Iterator[None]:
    try:
        yield
    except AbsentError as error:
        # an absent object that the chain names is a damaged copy, not an absent dataset
        hint = "the peer's copy is incomplete: try another peer that has the dataset"
        raise errors.CorruptedPeerError(f"{error.message}, though {by} it", hint=hint) from error


def _receive(opened: Opened, incoming: Incoming) -> None:
    fits = opened.total in (None, incoming.size)
    if opened.start not in (0, incoming.received) or (opened.start and not fits):
        incoming.restart()
        raise http_rules.TransientError("the peer continued with something else than the rest of the object")
    if not fits:
        raise incoming.refuse(f"{opened.total:,} bytes, not the {incoming.size:,} of the object")
    if incoming.received and not opened.start:
        incoming.restart()
    while (room := incoming.room) and (count := opened.body.read_into(room)):
        incoming.append(count)
    if incoming.received < incoming.size:
        what = f"ended after {incoming.received:,} of {incoming.size:,} bytes"
        # the length was framed, so the object itself is wrong; an unframed body may have been cut
        if opened.framed and not opened.start:
            raise incoming.refuse(f"the object {what}")
        raise http_rules.TransientError(f"the body {what}")
