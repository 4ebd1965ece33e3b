"""The promises of the stores, kept in memory: for tests and simulators."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from odfchain.errors import InvalidIdError, ObjectCorruptedError, ObjectNotFoundError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.local import _REF_NAME, check_object_name, conflict


class MemoryObjectStore:
    """A dictionary of objects; `objects` is open to tests that damage it."""

    def __init__(self) -> None:
        self.objects: dict[Multihash, bytes] = {}
        self._folder: Path | None = None

    def locate(self, name: Multihash) -> str:
        return f"memory:{name}"

    def contains(self, name: Multihash) -> bool:
        check_object_name(name)
        return name in self.objects

    def size(self, name: Multihash) -> int:
        return len(self._find(name))

    def _find(self, name: Multihash) -> bytes:
        check_object_name(name)
        if name not in self.objects:
            raise ObjectNotFoundError(f"{self.locate(name)}: no such object")
        return self.objects[name]

    def get(self, name: Multihash) -> bytes:
        """The object's bytes, hashed before they are returned."""
        data = self._find(name)
        actual = hash_bytes(data)
        if actual != name:
            raise ObjectCorruptedError(
                f"{self.locate(name)}: the content hashes to {actual}, not to its name"
            )
        return data

    def verified_path(self, name: Multihash) -> Path:
        """A temporary copy that lives as long as the store."""
        data = self.get(name)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="odfchain-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / str(name)
        path.write_bytes(data)
        return path

    def put(self, data: bytes) -> Multihash:
        name = hash_bytes(data)
        self.objects[name] = bytes(data)
        return name

    def put_file(self, source: Path, name: Multihash) -> None:
        check_object_name(name)
        self.objects[name] = source.read_bytes()
        source.unlink()

    def names(self) -> Iterator[Multihash]:
        yield from sorted(self.objects, key=str)


class MemoryRefStore:
    """A dictionary of references behind a lock."""

    def __init__(self) -> None:
        self._refs: dict[str, Multihash] = {}
        self._lock = threading.Lock()

    def _check(self, name: str) -> None:
        if not _REF_NAME.fullmatch(name):
            raise InvalidIdError(f"{name!r} is not a valid reference name")

    def get(self, name: str) -> Multihash | None:
        self._check(name)
        return self._refs.get(name)

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        self._check(name)
        check_object_name(new)
        with self._lock:
            actual = self._refs.get(name)
            if actual != expected:
                raise conflict(name, expected, actual)
            self._refs[name] = new

    def names(self) -> Iterator[str]:
        yield from sorted(self._refs)
