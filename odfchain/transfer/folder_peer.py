"""A dataset in a folder with the protocol's layout, to read from and to write to.

Such a folder is what a static web server publishes. Links are not followed within it, and nothing is written
into the folder of a workspace's dataset, which has rules and locks of its own. Source: RFC-021.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from odfchain.digest.physical import hash_bytes
from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    ObjectCorruptedError,
    RefConflictError,
    StoreError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS
from odfchain.progress import Progress
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD, check_object_name, parse_ref
from odfchain.store.local import LocalObjectStore, LocalRefStore
from odfchain.text import one_line
from odfchain.transfer.hint_file import encode_hint, hint_bytes, parse_hint
from odfchain.transfer.incoming import MIRROR_HINT, Incoming
from odfchain.transfer.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, Part, PeerUrl, SignedFile

_LOCK = ".lock"
_STAGING = ".staging"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class FolderPeer:
    """A dataset in a local folder; the folder need not exist until something is written."""

    caveat: str | None = None
    """The head is swapped under a lock that dies with its process."""

    def __init__(self, url: PeerUrl) -> None:
        """Prepare to read and write; nothing is touched yet.

        Raises:
            UnsupportedPeerError: the URL names no folder.
        """
        self._where = one_line(url.public(), 500)
        path = unquote(urlsplit(url.text).path)
        if url.scheme != "file" or "\0" in path or not path.startswith("/"):
            raise UnsupportedPeerError(
                f"{self._where}: not the URL of a folder", hint="write it like file:///srv/datasets/name"
            )
        self._folder = Path(path)
        self._staging: Path | None = None
        self._lock = threading.Lock()
        self._resources = contextlib.ExitStack()

    @property
    def where(self) -> str:
        """The URL."""
        return self._where

    def _name(self, key: object) -> str:
        return f"{self._where}{key}"

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[int | None]:
        """A descriptor of the regular file at a key; None when there is none.

        Raises:
            CorruptedPeerError: it is a link, or something else than a file.
            AccessError, TransferError: the operating system refuses.
        """
        path = self._folder / key
        if path.parent.is_symlink():
            raise _linked(self._name(path.parent.name))
        fd = _open_file(path, self._name(key))
        if fd is None:
            yield None
            return
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CorruptedPeerError(f"{self._name(key)}: not a regular file")
            yield fd
        except OSError as error:
            raise _peer_error(error, self._name(key)) from error
        finally:
            os.close(fd)

    def _read(self, key: str, limit: int) -> bytes | None:
        """The content of a small file; None when there is none.

        Raises:
            TransferError: it is longer than `limit`, or as `_open`.
        """
        with self._open(key) as fd:
            if fd is None:
                return None
            size = os.fstat(fd).st_size
            data = b"" if size > limit else _read_all(fd, limit + 1)
        if size > limit or len(data) > limit:
            raise TransferError(f"{self._name(key)}: larger than the allowed {limit:,} bytes")
        return data

    def head(self) -> Multihash | None:
        """The newest block; None when there is no such dataset.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        data = self._read(HEAD_KEY, LIMITS.ref_bytes)
        if data is None:
            return None
        try:
            return parse_ref(data, self._name(HEAD_KEY))
        except StoreError as error:
            raise CorruptedPeerError(one_line(str(error), 800)) from None

    def block(self, name: Multihash) -> bytes:
        """The bytes of a block, which hash to its name.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        key = str(ObjectKey(Part.BLOCK, name))
        data = self._read(key, LIMITS.block_bytes)
        if data is None:
            raise _absent(self._name(key))
        actual = hash_bytes(data)
        if actual != name:
            raise CorruptedPeerError(
                f"{self._name(key)}: the content hashes to {actual}, not to its name", hint=MIRROR_HINT
            )
        return data

    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        """Copy an object of exactly `size` bytes, which hashes to its name, into a file.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
            StoreError: the file cannot be written.
        """
        name = self._name(key)
        with (
            Incoming(key, size, target, name=name, progress=progress) as incoming,
            self._open(str(key)) as fd,
        ):
            while not incoming.complete():
                if fd is None:
                    raise _absent(name)
                found = os.fstat(fd).st_size
                if found != size:
                    raise incoming.refuse(f"{found:,} bytes, not the {size:,} of the object")
                os.lseek(fd, incoming.received, os.SEEK_SET)
                while (room := incoming.room) and (count := os.readv(fd, [room])):
                    incoming.append(count)
                if incoming.received < size:
                    raise incoming.refuse(f"the object ended after {incoming.received:,} of {size:,} bytes")

    def signed(self, file: SignedFile) -> bytes | None:
        """A file of signed statements; None when it is not there.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        return self._read(file.value, file.limit)

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the folder says; None when it says nothing of use."""
        with contextlib.suppress(TransferError):
            data = self._read(HINT_KEY, hint_bytes(limit))
            return None if data is None else parse_hint(data, limit)
        return None

    def contains(self, key: ObjectKey) -> bool:
        """Whether an object is there (its bytes are not read).

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        with self._open(str(key)) as fd:
            return fd is not None

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> None:
        """Durably store a file that hashes to the key's name; a damaged one in its place is repaired.

        The copy is hashed as it is made. The source stays.

        Raises:
            ObjectCorruptedError: the source does not hash to the name; nothing is stored.
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        if self.contains(key) and self._is_intact(key):
            with contextlib.suppress(OSError):
                progress.advance(source.stat().st_size)
            return
        with self._writing(key):
            staged = self._stage() / f"{key.part.value}-{key.name}-{threading.get_ident()}"
            try:
                _copy(source, staged, key, progress)
                folder = self._part(key.part.value)
                LocalObjectStore(folder).put_file(staged, key.name)
            finally:
                fsio.remove_quietly(staged)

    def _is_intact(self, key: ObjectKey) -> bool:
        with contextlib.suppress(StoreError):
            LocalObjectStore(self._folder / key.part.value).verified_path(key.name)
            return True
        return False

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Point the head at `new` if it points at `expected` now, under a lock.

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        check_object_name(new)
        self.head()  # a link or a malformed reference is refused before anything is written
        with self._writing(HEAD_KEY):
            refs = LocalRefStore(self._part("refs"), self._folder / _LOCK)
            refs.compare_and_swap(HEAD, expected, new)

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Say what the chain's blocks are, seed first.

        Raises:
            AccessError, TransferError: it cannot be written.
        """
        with self._writing(HINT_KEY):
            folder, _, file = HINT_KEY.partition("/")
            fsio.replace_file(self._part(folder) / file, encode_hint(hashes))

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """Durably replace a file of signed statements; None removes it.

        Raises:
            CorruptedPeerError, AccessError, TransferError: it cannot be written.
        """
        with self._writing(file.value):
            folder, _, name = file.value.partition("/")
            if data is not None:
                fsio.replace_file(self._part(folder) / name, data)
            elif (self._folder / folder).is_dir():
                fsio.remove_file(self._part(folder) / name)

    def close(self) -> None:
        """Remove what was staged."""
        with self._lock:
            self._staging = None
            self._resources.close()

    @contextlib.contextmanager
    def _writing(self, key: object) -> Iterator[None]:
        """Whatever the file system refuses is the peer's fault.

        Raises:
            AccessError, TransferError: it cannot be written.
        """
        if (self._folder / "staging").exists():
            raise AccessError(
                f"{self._where}: this is a dataset of a workspace, which nothing may be pushed into",
                hint="pull from the other side, or push to a folder of its own",
            )
        try:
            yield
        except (RefConflictError, ObjectCorruptedError):
            raise
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, OSError):
                raise _peer_error(cause, self._name(key)) from error
            raise TransferError(
                f"{self._name(key)}: {one_line(error.message, 300)}", hint=error.hint
            ) from error

    def _part(self, name: str) -> Path:
        """One of the layout's folders, made if it is missing."""
        folder = self._folder / name
        if folder.is_symlink():
            raise _linked(self._name(name))
        fsio.make_folder(folder)
        return folder

    def _stage(self) -> Path:
        """A folder on the same file system for copies that are not finished; gone after `close`."""
        with self._lock:
            if self._staging is None:
                base = self._part(_STAGING)
                self._staging = self._resources.enter_context(fsio.private_folder(base))
            return self._staging


def _open_file(path: Path, name: str) -> int | None:
    try:
        # a pipe must not make us wait for somebody to write to it
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise (_linked(name) if error.errno == errno.ELOOP else _peer_error(error, name)) from error


def _read_all(fd: int, limit: int) -> bytes:
    data = bytearray()
    while len(data) < limit and (piece := os.read(fd, min(limit - len(data), 1 << 20))):
        data += piece
    return bytes(data)


def _copy(source: Path, staged: Path, key: ObjectKey, progress: Progress) -> None:
    """A verified copy of a local file."""
    try:
        with source.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            with Incoming(key, size, staged, name=str(source), progress=progress) as incoming:
                while (room := incoming.room) and (count := stream.readinto(room)):
                    incoming.append(count)
                try:
                    intact = incoming.complete()
                except CorruptedPeerError as error:
                    raise ObjectCorruptedError(error.message) from None
                if not intact:
                    raise ObjectCorruptedError(f"{source}: became shorter while it was read")
    except OSError as error:
        raise fsio.storage_error(error, source) from error


def _absent(name: str) -> CorruptedPeerError:
    return CorruptedPeerError(
        f"{name}: not there, though the chain refers to it",
        hint="the peer's copy is incomplete: try another peer that has the dataset",
    )


def _linked(name: str) -> CorruptedPeerError:
    return CorruptedPeerError(f"{name}: a symbolic link, which is not followed")


def _peer_error(error: OSError, name: str) -> TransferError:
    stored = fsio.storage_error(error, name)
    kind = AccessError if error.errno in _REFUSED else TransferError
    return kind(stored.message, hint=stored.hint)
