"""Objects and references in folders of the local file system (specification "Dataset Layout")."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from odfchain import errors
from odfchain.limits import LIMITS
from odfchain.odf.identity import Multicodec, Multihash
from odfchain.odf.physical_hash import hash_bytes, hash_file
from odfchain.storage import fsio

HEAD = "head"
"""The reference that every dataset has."""


def is_object_name(name: Multihash) -> bool:
    """True for full SHA3-256 multihashes: objects are named by nothing else."""
    return name.codec is Multicodec.SHA3_256 and len(name.digest) == 32


def check_object_name(name: Multihash) -> None:
    """The hash can name an object, or `StoreError`."""
    if not is_object_name(name):
        raise errors.StoreError(f"{name} cannot name an object (a full sha3-256 multihash can)")


def parse_ref(data: bytes, where: str) -> Multihash:
    """The hash that a reference file holds; surrounding white space is ignored."""
    if len(data) > LIMITS.ref_bytes:
        raise errors.StoreError(f"{where}: a reference of {len(data)} bytes (at most {LIMITS.ref_bytes})")
    try:
        value = Multihash.parse(data.decode("ascii").strip())
        check_object_name(value)
    except (UnicodeDecodeError, errors.InvalidIdError, errors.StoreError) as error:
        raise errors.StoreError(f"{where}: not a reference to a block: {error}") from None
    return value


_OBJECT_NAME = re.compile(r"f1620[0-9a-f]{64}")
SIGNED_ENDINGS = (".jws", ".checkpoint")
"""Names with such an end are those of signatures, which are in the folder of the references."""
_REF_NAME = re.compile(r"(?!.*\.(?:jws|checkpoint)\Z)[a-z0-9]+(?:[.-][a-z0-9]+)*")

_Stamp = tuple[int, int, int, int]

# Files from this number on are synced together, which waits for all that the machine has to write.
_MANY = 64
# Objects removed under one hold of the lock: writers that need one of them wait no longer than that.
_DISCARDED_AT_ONCE = 256


@functools.lru_cache(256)
def _verified_in(_: Path) -> dict[Multihash, _Stamp]:
    # of a folder, for all who open it: each request to a node opens its dataset anew
    return {}


class LocalObjectStore:
    """Objects named by the SHA3-256 multihash of their bytes, a file each: immutable, verified on read."""

    on_demand = False
    """True if objects come from elsewhere when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified = _verified_in(folder)

    def _path(self, name: Multihash) -> Path:
        check_object_name(name)
        return self._folder / str(name)

    def locate(self, name: Multihash) -> str:
        """Where the object is or would be, for messages."""
        return str(self._path(name))

    def path(self, name: Multihash) -> Path:
        """The object's file, which may be missing or damaged."""
        return self._path(name)

    def contains(self, name: Multihash) -> bool:
        """True if an object of this name is there (its bytes are not read)."""
        return self.path(name).is_file()

    def size(self, name: Multihash) -> int:
        """Size of the object [bytes]."""
        path = self.path(name)
        try:
            return path.stat().st_size
        except OSError as error:
            raise _unreadable(path, error) from error

    def get(self, name: Multihash) -> bytes:
        """The bytes of a block, as `read`."""
        return self.read(name, LIMITS.block_bytes, "a block")

    def read(self, name: Multihash, most: int, what: str) -> bytes:
        """The bytes of an object that is no larger than `most`, hashed before they are returned.

        Raises:
            ObjectNotFoundError: there is no such object.
            ObjectCorruptedError: it is too large, or its bytes do not hash to its name.
        """
        path = self.path(name)
        try:
            found = _ordinary(path)
            if found.st_size > most:
                message = f"{path}: {found.st_size:,} bytes; {what} has at most {most:,}"
                raise errors.ObjectCorruptedError(message)
            data = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error
        actual = hash_bytes(data)
        if actual != name:
            raise _corrupted(path, actual)
        return data

    def verified_path(self, name: Multihash) -> Path:
        """A local file with the object's bytes, checked to hash to its name."""
        path = self.path(name)
        try:
            stamp = fsio.file_state(_ordinary(path))
            # hashed once for each state (inode, size, times of change) in this process
            if self._verified.get(name) == stamp:
                return path
            actual, _ = hash_file(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        if actual != name:
            raise _corrupted(path, actual)
        self._verified[name] = stamp
        return path

    def put(self, data: bytes) -> Multihash:
        """Durably store bytes and return their name; storing them again changes nothing."""
        name = hash_bytes(data)
        path = self._path(name)
        while not (fsio.create_file(path, data) or self._reuse(name, lambda: fsio.replace_file(path, data))):
            pass  # it was discarded between the two
        return name

    def put_file(self, source: Path, name: Multihash) -> None:
        """Durably take over a finished file whose hash is `name`; the source is consumed."""
        path = self._path(name)
        while not fsio.adopt_file(source, path):
            # the name is taken: use that file, or put this one in its place if it is damaged
            if self._reuse(name, lambda: self._replace(source, path)):
                fsio.remove_quietly(source)
                return

    def put_files(self, files: Sequence[tuple[Path, Multihash]]) -> Iterator[Multihash]:
        """Put files; all of them are durable when the last one was yielded."""
        if len(files) < _MANY:
            for source, name in files:
                self.put_file(source, name)
                yield name
            return
        # synced together: two waits for the disk for each file are minutes for a long chain
        for _ in fsio.sync_files([source for source, _ in files]):
            pass
        for source, name in files:
            if not fsio.move_file(source, self._path(name)):
                self.put_file(source, name)
            yield name
        fsio.sync_folder(self._folder)

    def _replace(self, source: Path, path: Path) -> None:
        fsio.sync_file(source)
        with fsio.storage_errors(path):
            source.replace(path)
        fsio.sync_folder(self._folder)

    def _reuse(self, name: Multihash, repair: Callable[[], None]) -> bool:
        path = self._path(name)
        # the lock that `discard` takes: what is found here is not removed a moment later
        with fsio.locked_folder(self._folder):
            if not path.exists() and not path.is_symlink():
                return False
            if not self.is_intact(name) or not fsio.mark_used(path):
                repair()
            else:
                # who put it there may have ended before its name was durable
                fsio.sync_folder(self._folder)
        return True

    def discard(self, names: Iterable[Multihash], *, unused_since_ns: int) -> list[tuple[Multihash, int]]:
        """Remove objects that were not stored, or stored again, since a time [ns since the epoch].

        Returns the names and sizes [bytes] of those removed. A writer that stores one of them meanwhile
        either keeps it from being removed or writes it anew.
        """
        gone: list[tuple[Multihash, int]] = []
        waiting = list(names)
        for start in range(0, len(waiting), _DISCARDED_AT_ONCE):
            # the lock of `_reuse`: a writer of an object meanwhile either keeps it or writes it anew
            with fsio.locked_folder(self._folder):
                gone += self._discard(waiting[start : start + _DISCARDED_AT_ONCE], unused_since_ns)
        return gone

    def _discard(self, names: list[Multihash], unused_since_ns: int) -> Iterator[tuple[Multihash, int]]:
        for name in names:
            path = self._path(name)
            try:
                if not fsio.is_unused_since(path, unused_since_ns):
                    continue
                size = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise fsio.storage_error(error, path) from error
            yield name, size

    def is_intact(self, name: Multihash) -> bool:
        """True if the object's file is there and hashes to its name."""
        try:
            self.verified_path(name)
        except (errors.ObjectCorruptedError, errors.ObjectNotFoundError):
            return False
        return True

    def names(self) -> Iterator[Multihash]:
        """Every object's name, in no particular order."""
        try:
            entries = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return
        for entry in entries:  # temporary and foreign files are passed over
            if _OBJECT_NAME.fullmatch(entry):
                yield Multihash.parse(entry)


class LocalRefStore:
    """Pointers to blocks (base16 texts in `refs/` of a dataset's folder), moved only by compare-and-swap."""

    def __init__(self, dataset: Path, lock: Path | None = None) -> None:
        self._folder = dataset / "refs"
        self._lock = lock or dataset / "info" / "lock"

    def _path(self, name: str) -> Path:
        if not _REF_NAME.fullmatch(name):
            raise errors.InvalidIdError(f"{name!r} is not a valid reference name")
        return self._folder / name

    def get(self, name: str) -> Multihash | None:
        """The target of a reference, None when it does not exist."""
        path = self._path(name)
        data = fsio.read_start(path, 4096)
        return None if data is None else parse_ref(data, str(path))

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Durably point the reference at `new` if it points at `expected` now (None: does not exist).

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
            StoreError: it cannot be written; the old value stays.
        """
        check_object_name(new)
        path = self._path(name)
        with fsio.locked(self._lock):
            actual = self.get(name)
            if actual != expected:
                raise conflict(name, expected, actual)
            fsio.replace_file(path, str(new).encode())

    def remove(self, name: str, expected: Multihash) -> None:
        """Durably remove a reference that points at `expected` now; otherwise as `compare_and_swap`."""
        path = self._path(name)
        with fsio.locked(self._lock):
            actual = self.get(name)
            if actual != expected:
                raise conflict(name, expected, actual)
            fsio.remove_file(path)

    def names(self) -> Iterator[str]:
        """Every reference's name."""
        if self._folder.is_dir():
            yield from sorted(p.name for p in self._folder.iterdir() if _REF_NAME.fullmatch(p.name))


def conflict(name: str, expected: Multihash | None, actual: Multihash | None) -> errors.RefConflictError:
    """The error of a lost compare-and-swap."""
    return errors.RefConflictError(
        f"reference {name!r} moved: expected {expected or 'nothing'}, found {actual or 'nothing'}",
        expected=str(expected) if expected else None,
        actual=str(actual) if actual else None,
    )


def _ordinary(path: Path) -> os.stat_result:
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        # a pipe or a device could be read for ever
        raise errors.ObjectCorruptedError(f"{path}: not an ordinary file")
    return found


def _unreadable(path: Path, error: OSError) -> errors.StoreError:
    gone = isinstance(error, FileNotFoundError)
    return errors.ObjectNotFoundError(f"{path}: no such object") if gone else fsio.storage_error(error, path)


def _corrupted(path: Path, actual: Multihash) -> errors.StoreError:
    hint = "`odfchain fsck NAME` finds and repairs damaged files; --from URL names a copy of the dataset"
    return errors.ObjectCorruptedError(f"{path}: the content hashes to {actual}, not to its name", hint=hint)


# Objects that are fetched into a folder when they are read.


class BroughtObjectStore(LocalObjectStore):
    """A folder into which `bring` fetches objects on their first use; `names` are those that are here.

    `bring` puts an object into the store it is given, or leaves it as it is when there is none elsewhere.
    """

    on_demand = True

    def __init__(self, folder: Path, bring: Callable[[LocalObjectStore, Multihash], None]) -> None:
        super().__init__(folder)
        self._bring = bring

    def path(self, name: Multihash) -> Path:
        path = super().path(name)
        if not path.is_file():
            self._bring(LocalObjectStore(self._folder), name)
        return path
