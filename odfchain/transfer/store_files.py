"""Files that driver and executors have in common, in the object store of a workspace (RFC-048)."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import InvalidIdError, ObjectCorruptedError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import sha3_256
from odfchain.spark.executor_files import kept_copy
from odfchain.storage import fsio
from odfchain.storage.bucket_store import BucketTransport, bucket_at, retry

KEPT_BYTES = 16 << 30
"""Copies that a machine keeps for its workers [bytes]."""
# A copy that was asked for since is not removed: a task may be about to open it.
_IN_USE_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The files below a URL of an object store; fulfils `ExecutorFiles`.

    Its pickled form has the URL and nothing else: credentials are those of the process that uses it.
    """

    url: str

    @property
    def _space(self) -> BucketTransport:
        return bucket_at(self.url)

    def put(self, path: Path, key: str) -> None:
        self._space.put_file(key, path, renew=True)

    def bring(self, key: str) -> Path:
        path, is_there = kept_copy("store", f"{self.url}{key}".encode())
        if not is_there:
            retry(lambda: self._bring(key, path))
            _keep_within(path.parent, KEPT_BYTES)
        return path

    def _bring(self, key: str, path: Path) -> None:
        name, hasher = None, sha3_256()
        with contextlib.suppress(InvalidIdError):
            name = Multihash.parse(key.rpartition("/")[2])
        with fsio.replaced(path, durable=False) as sink:
            for chunk in self._space.chunks(key):
                hasher.update(chunk)
                sink.write(chunk)
            if name not in (None, actual := Multihash.sha3_256(hasher.digest())):
                raise ObjectCorruptedError(
                    f"{self._space.where}{key}: the content hashes to {actual}, not to its name",
                    hint="restore the object from a backup or another copy of the dataset",
                )

    def read(self, key: str, start: int, end: int) -> bytes:
        return retry(lambda: b"".join(self._space.chunks(key, start, end)))

    def copy(self, key: str, start: int, end: int, target: Path) -> None:
        def attempt() -> None:
            with fsio.replaced(target, durable=False) as sink:
                for chunk in self._space.chunks(key, start, end):
                    sink.write(chunk)

        retry(attempt)

    def clear(self, below: str) -> None:
        self._space.clear(below)


def _keep_within(folder: Path, most: int) -> None:
    known = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            known.append((path.stat(), path))
    total = sum(found.st_size for found, _ in known)
    for found, path in sorted(known, key=lambda each: each[0].st_mtime):
        if total <= most or found.st_mtime > time.time() - _IN_USE_SECONDS:
            return
        fsio.remove_quietly(path)
        total -= found.st_size
