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
from dataclasses import replace
from pathlib import Path

from odfchain import errors
from odfchain.odf.identity import Multihash
from odfchain.progress import Progress
from odfchain.storage import fsio
from odfchain.storage.http_rules import Body
from odfchain.storage.local import LocalObjectStore, LocalRefStore
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ref_key
from odfchain.storage.store import PEER_LIMITS, AbsentError, Incoming, Opened, Store, Transport
from odfchain.text import one_line

_LOCK = ".lock"
_STAGING = ".staging"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class FolderTransport(Transport):
    """A dataset in a local folder, made by the first write; references are swapped under a lock."""

    def __init__(self, url: PeerUrl) -> None:
        super().__init__(one_line(str(url), 500), limits=replace(PEER_LIMITS, first_wait=0))
        path = url.path
        if url.scheme != "file" or "\0" in path or not path.startswith("/"):
            hint = "write it like file:///srv/datasets/name"
            raise errors.UnsupportedPeerError(f"{self.where}: not the URL of a folder", hint=hint)
        self._folder = Path(path)
        self._staging: Path | None = None
        self._lock = threading.Lock()
        self._resources = contextlib.ExitStack()

    def _name(self, key: object) -> str:
        return f"{self.where}{key}"

    @contextlib.contextmanager
    def open(self, key: str, start: int = 0, /, *_: object) -> Iterator[Opened]:
        path, name = self._folder / key, self._name(key)
        if path.parent.is_symlink():
            raise _linked(self._name(path.parent.name))
        fd = _open_file(path, name)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise errors.CorruptedPeerError(f"{name}: not a regular file")
            os.lseek(fd, start, os.SEEK_SET)
            yield Opened(name, _FileBody(fd, found.st_size - start), found.st_size, start=start)
        except OSError as error:
            raise _peer_error(error, name) from error
        finally:
            os.close(fd)

    def size(self, key: str) -> int | None:
        with contextlib.suppress(AbsentError), self.open(key) as found:
            return found.total
        return None

    def put_file(self, key: ObjectKey, source: Path, progress: Progress) -> bool:
        store = LocalObjectStore(self._folder / key.kind.value)
        if self.size(str(key)) is not None:
            with contextlib.suppress(errors.StoreError):  # a damaged file in its place is repaired
                store.verified_path(key.name)
                with contextlib.suppress(OSError):
                    progress.advance(source.stat().st_size)
                return True
        with self._writing(key):
            staged = self._stage() / f"{key.kind.value}-{key.name}-{threading.get_ident()}"
            try:
                # hashed while it is copied; the source stays
                _copy(source, staged, key, progress)
                self._part(key.kind.value)
                store.put_file(staged, key.name)
            finally:
                fsio.remove_quietly(staged)
        return False

    def swap(self, ref: str, expected: Multihash | None, new: Multihash) -> None:
        Store(self, ref).head()  # a link or a malformed reference is refused before anything is written
        with self._writing(ref_key(ref)):
            self._part("refs")
            LocalRefStore(self._folder, self._folder / _LOCK).compare_and_swap(ref, expected, new)

    def write(self, key: str, data: bytes) -> None:
        folder, _, name = key.partition("/")
        with self._writing(key):
            fsio.replace_file(self._part(folder) / name, data)

    def delete(self, key: str) -> None:
        folder, _, name = key.partition("/")
        with self._writing(key):
            if (self._folder / folder).is_dir():
                fsio.remove_file(self._part(folder) / name)

    def folders(self, below: str) -> Sequence[str]:
        if not self._folder.is_dir():
            raise errors.TransferError(f"{self.where}: no such folder")
        try:
            with os.scandir(self._folder / below) as found:
                return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise errors.TransferError(f"{one_line(self._name(below))}: {error.strerror}") from error

    def close(self) -> None:
        with self._lock:
            self._staging = None
            self._resources.close()

    @contextlib.contextmanager
    def _writing(self, key: object) -> Iterator[None]:
        # only datasets of a workspace have this folder: they change by their own commands
        if (self._folder / "staging").exists():
            message = f"{self.where}: this is a dataset of a workspace, which nothing may be pushed into"
            raise errors.AccessError(message, hint="pull from the other side, or push to a folder of its own")
        try:
            yield
        except (errors.RefConflictError, errors.ObjectCorruptedError):
            raise
        except errors.StoreError as error:
            cause = error.__cause__
            if isinstance(cause, OSError):
                raise _peer_error(cause, self._name(key)) from error
            message = f"{self._name(key)}: {one_line(error.message, 300)}"
            raise errors.TransferError(message, hint=error.hint) from error

    def _part(self, name: str) -> Path:
        folder = self._folder / name
        # a link could lead out of the folder
        if folder.is_symlink():
            raise _linked(self._name(name))
        fsio.make_folder(folder)
        return folder

    def _stage(self) -> Path:
        with self._lock:
            if self._staging is None:
                # on the same file system, so that a finished copy can be renamed
                base = self._part(_STAGING)
                self._staging = self._resources.enter_context(fsio.private_folder(base))
            return self._staging


class _FileBody(Body):
    def __init__(self, fd: int, length: int) -> None:
        self._fd = fd
        self.length = length

    def read_into(self, view: memoryview) -> int:
        return os.readv(self._fd, [view])


def _open_file(path: Path, name: str) -> int:
    try:
        # opening a pipe must not wait for a writer
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise AbsentError(f"{name}: not there") from error
    except OSError as error:
        raise (_linked(name) if error.errno == errno.ELOOP else _peer_error(error, name)) from error


def _copy(source: Path, staged: Path, key: ObjectKey, progress: Progress) -> None:
    with fsio.storage_errors(source), source.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        with Incoming(key, size, staged, name=str(source), progress=progress) as incoming:
            while (room := incoming.room) and (count := stream.readinto(room)):
                incoming.append(count)
            try:
                intact = incoming.complete()
            except errors.CorruptedPeerError as error:
                raise errors.ObjectCorruptedError(error.message) from None
            if not intact:
                raise errors.ObjectCorruptedError(f"{source}: became shorter while it was read")


def _linked(name: str) -> errors.CorruptedPeerError:
    return errors.CorruptedPeerError(f"{name}: a symbolic link, which is not followed")


def _peer_error(error: OSError, name: str) -> errors.TransferError:
    stored = fsio.storage_error(error, name)
    kind = errors.AccessError if error.errno in _REFUSED else errors.TransferError
    return kind(stored.message, hint=stored.hint)
