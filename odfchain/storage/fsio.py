"""The only place that syncs, renames, links and locks files.

Every write follows the same steps: a temporary file in the target's folder, write, fsync, publish by an
atomic operation, fsync of the folder. What has been acknowledged is durable; what was interrupted is an
unreferenced temporary file. A failed fsync is never tried again: the error goes up (RFC-007).
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from odfchain.errors import StorageFullError, StoreError, UsageError

TEMP_PREFIX = ".pending-"
"""Name prefix of files that are not published yet."""

_SYNC_THREADS = 16
# Names of a folder that are compared with one that is not in it.
_NAMES = 2_000

_FULL = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files in the system",
}


def storage_error(error: OSError, path: Path | str) -> StoreError:
    """The project's error for an operating-system error on `path`."""
    reason = _FULL.get(error.errno or 0)
    if reason is not None:
        return StorageFullError(f"{path}: {reason}", hint="free some space and run the command again")
    return StoreError(f"{path}: {error.strerror or error}")


def shortage(error: BaseException) -> StorageFullError | None:
    """The error for what this machine has no more of; None where an error may say something of a file."""
    number, text = getattr(error, "errno", None), str(error)
    if number == errno.EAGAIN or "start new thread" in text or "launch worker thread" in text:
        reason = "no more threads or processes can be started"
    elif isinstance(error, MemoryError) or number == errno.ENOMEM or "failed to map segment" in text:
        reason = "there is not enough memory"
    elif number in (errno.EMFILE, errno.ENFILE):
        reason = _FULL[number]
    else:
        return None
    return StorageFullError(
        reason, hint="end other programs or raise the limits (`ulimit -a`), and run it again"
    )


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """An operating-system error inside becomes the project's error on `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


FileState = tuple[int, int, int, int]
"""The parts of a file's state that a change of it changes."""


def file_state(found: os.stat_result) -> FileState:
    """The state of a file: its inode and size, and its times of change."""
    # the modification time can be set by an editor of the file, the change time cannot
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def no_file(path: str | os.PathLike[str], hint: str | None = None) -> UsageError:
    """The error for a path that is no file, with the name next to it that may be meant."""
    path = Path(path)
    if path.is_dir():
        return UsageError(f"{path}: is a folder", hint=hint or "name a file in it")
    if hint is None and path.parts[:1] in (("http:",), ("https:",)):
        hint = "the command reads files: download it, and name the file"
    with contextlib.suppress(OSError):
        names = [entry.name for entry in islice(path.parent.iterdir(), _NAMES)]
        close = difflib.get_close_matches(path.name, names, n=1)
        hint = hint or (f"did you mean {path.with_name(close[0])}?" if close else None)
    return UsageError(f"{path}: no such file", hint=hint)


def read_start(path: Path, limit: int) -> bytes | None:
    """At most `limit` bytes of a file from its start, None when it is not there."""
    with storage_errors(path), contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        # of a regular file no more memory is asked for than it has bytes
        return stream.read(min(limit, os.fstat(stream.fileno()).st_size or limit))
    return None


def read_named(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file that a user names; one more than `most` shows that it is too large."""
    if (data := read_start(Path(path), most + 1)) is None:
        raise no_file(path)
    return data


_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_OWN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    with storage_errors(path):
        fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    with storage_errors(folder), _opened(folder, _FOLDER) as fd:
        os.fsync(fd)


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    with storage_errors(path), _opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)


def sync_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Make the content of many files durable; yields each when it is."""
    # one write of the journal does for all; each is synced by itself after that, for only that reports errors
    os.sync()
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - readers do not load it

    with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="sync") as pool:
        for path, _ in zip(paths, pool.map(sync_file, paths), strict=True):
            yield path


def unique_name() -> str:
    """A name that nothing else has."""
    return os.urandom(16).hex()


def temp_path(folder: Path) -> Path:
    """A path in `folder` that nothing else has."""
    return folder / f"{TEMP_PREFIX}{unique_name()}"


def remove_quietly(path: Path) -> None:
    """Remove a file if it is there; used for clean-up after another error."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def _temporary(folder: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    temp = temp_path(folder)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as stream:
            yield temp, stream
    except BaseException:
        remove_quietly(temp)
        raise


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def create_file(path: Path, data: bytes, *, mode: int = 0o644) -> bool:
    """Durably create all of `path` with `data`, or leave an existing file alone; True if it was created."""
    with storage_errors(path), _temporary(path.parent, mode) as (temp, stream):
        stream.write(data)
        _sync(stream)
        try:
            # a link fails where the name exists, a rename would replace it
            os.link(temp, path)
        except FileExistsError:
            return False
        finally:
            remove_quietly(temp)
    sync_folder(path.parent)
    return True


def replace_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Durably give `path` the content `data`, atomically."""
    with replaced(path, mode=mode) as stream:
        stream.write(data)


@contextlib.contextmanager
def replaced(path: Path, *, mode: int = 0o644, durable: bool = True) -> Iterator[BinaryIO]:
    """A stream of what `path` has once the block inside ends; after an error all is as it was."""
    with storage_errors(path), _temporary(path.parent, mode) as (temp, stream):
        yield stream
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
        os.replace(temp, path)
    if durable:
        sync_folder(path.parent)


def adopt_file(source: Path, path: Path) -> bool:
    """Durably publish a finished file of this file system by moving it; False, and no move, if it exists."""
    sync_file(source)
    published = move_file(source, path)
    if published:
        sync_folder(path.parent)
    return published


def move_file(source: Path, path: Path) -> bool:
    """Publish a durable file under its final name; the name is durable once the caller syncs the folder."""
    with storage_errors(path):
        os.chmod(source, 0o644)
        try:
            os.link(source, path)
        except FileExistsError:
            return False
        source.unlink()
    return True


def make_folder(path: Path, *, mode: int = 0o755) -> None:
    """Durably create a folder and its missing parents."""
    missing = []
    folder = path
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for part in reversed(missing):
        with storage_errors(part):
            # another process may have made it meanwhile
            part.mkdir(mode=mode, exist_ok=True)
        try:
            sync_folder(part.parent)
        except StoreError:
            # the next run would take a folder that is there for durable
            with contextlib.suppress(OSError):
                part.rmdir()
            raise


def move_folder(source: Path, target: Path) -> None:
    """Durably rename a folder; the target must not exist."""
    with storage_errors(target):
        os.rename(source, target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive advisory lock (flock) named by `path`; it is released when the holder dies."""
    with _opened(path, _OWN) as fd:
        # the kernel releases the lock when its holder dies
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Take the lock named by `path` if it is free; yields whether it is held."""
    with _opened(path, _OWN) as fd:
        yield lock_at_once(fd)


def lock_at_once(fd: int) -> bool:
    """True if an open file is locked for its holder alone, until it is closed; nothing is waited for."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the exclusive lock of a folder itself; it needs no file in it."""
    with _opened(folder, _FOLDER) as fd:
        with storage_errors(folder):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def is_unused_since(path: Path, since_ns: int) -> bool:
    """True if a file, or all of a folder, is there and was last written, named or used before then [ns]."""
    with storage_errors(path):
        try:
            times = [last_use_ns(path)]
        except FileNotFoundError:
            return False
        if path.is_dir() and not path.is_symlink():
            for found in path.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    times.append(last_use_ns(found))
    # a folder is as new as the newest file in it
    return max(times) < since_ns


def last_use_ns(path: Path) -> int:
    """When a file was last written, named or used [ns since the epoch]."""
    found = path.lstat()
    # moving or linking a file changes its status only
    return max(found.st_mtime_ns, found.st_ctime_ns)


def mark_used(path: Path) -> bool:
    """Make the last use of a file the present, its content unchanged; False for another user's file."""
    with storage_errors(path):
        found = path.stat()
        try:
            # sets the change time to the present, and that alone
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        except PermissionError:
            return False
    return True


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder and what is in it; what is gone already is no error."""
    with storage_errors(path), contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_file(path: Path) -> None:
    """Durably remove a file; one that is not there is removed already."""
    with storage_errors(path):
        path.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextlib.contextmanager
def private_folder(base: Path, name: str | None = None) -> Iterator[Path]:
    """A folder in `base` that is gone afterwards, also after an error, and is not handed out twice.

    It is locked by its owner; what owners that died have left in `base` is removed on the way.
    """
    folder = base / (name or unique_name())
    owner, fd = os.getpid(), -1
    try:
        with locked(base / ".lock"):
            # under the lock: a new folder is not yet locked by its owner
            for abandoned in _abandoned(base):
                shutil.rmtree(abandoned, ignore_errors=True)
            with storage_errors(folder):
                folder.mkdir()
                fd = os.open(folder, _FOLDER)
                fcntl.flock(fd, fcntl.LOCK_EX)
        yield folder
    finally:
        # removed while it is locked, so that no other process takes it for abandoned
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
        if fd >= 0:
            os.close(fd)


def remove_at_end(owner: object, folder: Path) -> Callable[[], object]:
    """The folder goes with its owner, at this process's end (not a fork's), or by the result."""
    return weakref.finalize(owner, _remove_own, os.getpid(), folder)


def _remove_own(owner: int, folder: Path) -> None:
    # a fork runs what its parent left to the end as well, and would take the files from under it
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _abandoned(base: Path) -> Iterator[Path]:
    for folder in sorted(base.iterdir()):
        if not folder.is_dir() or folder.is_symlink():
            continue
        try:
            fd = os.open(folder, _FOLDER)
        except OSError:
            continue
        try:
            # locked while the caller looks at it, so no new owner comes in between
            if lock_at_once(fd):  # otherwise its owner lives
                yield folder
        finally:
            os.close(fd)


def clear_abandoned(base: Path, *, keep: bool = False) -> tuple[int, int]:
    """Remove (with `keep`, only count) private folders of dead owners in `base`; their files and bytes."""
    files = size = 0
    if not base.is_dir():
        return 0, 0
    with locked(base / ".lock"), storage_errors(base):
        for folder in _abandoned(base):
            here = weigh(folder)
            files, size = files + here[0], size + here[1]
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
    return files, size


def weigh(path: Path) -> tuple[int, int]:
    """Files and bytes of a file or of everything in a folder; what vanishes meanwhile does not count."""
    files, size = 0, 0
    for found in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        with contextlib.suppress(OSError):
            stat = found.lstat()
            # folders count, so that an empty one is not nothing
            files += 1
            size += stat.st_size if not found.is_dir() else 0
    return files, size


# Private, disposable byte files: the home of derived data such as the chain index.


class LocalScratch:
    """A file that is never synced, at first a copy of `first`; fulfils `Scratch`: only a cache."""

    def __init__(self, path: Path, first: Path | None = None) -> None:
        self._path = path
        self._first = first

    def read(self, start: int, count: int) -> bytes:
        if self._first is not None:
            self._begin(self._first)
            self._first = None
        try:
            with self._path.open("rb") as stream:
                return os.pread(stream.fileno(), count, start)
        except OSError:
            # a cache that cannot be read is as good as an empty one
            return b""

    def _begin(self, first: Path) -> None:
        if self._path.exists() or not first.exists():
            return
        copy = temp_path(self._path.parent)
        try:
            shutil.copyfile(first, copy)
            # whole or not at all: another process may read the file already
            copy.replace(self._path)
        except OSError:
            remove_quietly(copy)

    def write(self, start: int, data: bytes) -> None:
        with storage_errors(self._path), _opened(self._path, _OWN) as fd:
            os.pwrite(fd, data, start)
            os.ftruncate(fd, start + len(data))


class MemoryScratch:
    """The same in memory; fulfils `Scratch`. `data` is open to tests that damage it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def read(self, start: int, count: int) -> bytes:
        return bytes(self.data[start : start + count])

    def write(self, start: int, data: bytes) -> None:
        self.data[start:] = b"\0" * max(0, start - len(self.data))
        self.data[start:] = data
