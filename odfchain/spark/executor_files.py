"""Files that driver and executors have in common where they have no folder in common: those of a store.

`files_of(session)` is None where executors see the driver's folders: workers are given paths. Otherwise it is
the workspace's store. Keys are below its URL, every machine reaches it with credentials of its own
environment, and it is pickled into plans as that URL.

    datasets/fed01…/data/f1620…           slices by their hash, those of a commit to come as well
    datasets/fed01…/checkpoints/f1620…    checkpoints
    staging/<random>/…                    inputs and runs, for as long as `staged(files)` lasts

Driver: `with staged(files) as run: files.put(path, f"{run}/input")`, then a plan whose functions have `files`
and keys. Worker: `files.bring(key)`, `files.read(key, start, end)`, all in `telling()`, and what it writes
before it puts it in `worker_folder()`. Rows of Parquet files: `odfchain.spark.parquet_frame`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from odfchain.digest.physical import hash_file
from odfchain.errors import AccessError, EngineError, ObjectCorruptedError, OdfchainError, TransferError
from odfchain.slices.marker import marker
from odfchain.store import fsio

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHARED = "where they do see them: `spark.files: shared` in the workspace's config.yaml"
CREDENTIALS_HINT = (
    "executors reach the store with the credentials of their own environment (docs/operate.md); where they "
    "see the folders of the driver, `spark.files: shared` in the workspace's config.yaml does without"
)


class ReadableFiles(Protocol):
    """Files by key that workers read; pickled into plans.

    Raises, all of them:
        AccessError, TransferError: the store refuses, or cannot be reached.
        ObjectNotFoundError: there is no such file.
        StorageFullError, StoreError: what came cannot be kept here.
    """

    def bring(self, key: str) -> Path:
        """A copy of a file on this machine, in a folder that no other has to see; not to be changed.

        Where the key ends in a physical hash, the copy hashes to it. Copies are kept for those who ask again;
        beyond a bound the ones that were not asked for in the last hour go.

        Raises:
            ObjectCorruptedError: it does not hash to its name.
        """

    def read(self, key: str, start: int, end: int) -> bytes:
        """The bytes of a file from `start` up to, not with, `end`; `end` is not beyond its size."""


class ExecutorFiles(ReadableFiles, Protocol):
    """Files of a store, for the driver and for workers; pickled as the URL that the keys are below.

    Raises, all of them: as `ReadableFiles`.
    """

    def put(self, path: Path, key: str) -> None:
        """A file, whose content follows from the key, is durably there, as one that was just written."""

    def copy(self, key: str, start: int, end: int, target: Path) -> None:
        """The same bytes as a new file, with little memory."""

    def clear(self, below: str) -> None:
        """No file is there any more whose key begins with `below` and a slash."""


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """Where workers put what they have written; sent to them."""

    files: ExecutorFiles
    key: str
    """What the keys begin with; a slash and the physical hash of the file come after it."""


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """A small file that goes to the workers within the plan; fulfils `ReadableFiles`, whatever the key."""

    content: bytes = field(repr=False)

    def bring(self, key: str) -> Path:  # noqa: ARG002 - there is one file
        """As `ReadableFiles`."""
        path, is_there = kept_copy("carried", self.content)
        if not is_there:
            fsio.replace_file(path, self.content)
        return path

    def read(self, key: str, start: int, end: int) -> bytes:  # noqa: ARG002 - there is one file
        """As `ReadableFiles`."""
        return self.content[start:end]


_given: weakref.WeakKeyDictionary[SparkSession, ExecutorFiles] = weakref.WeakKeyDictionary()


def give_files(session: SparkSession, files: ExecutorFiles | None) -> SparkSession:
    """The session, whose executors reach files by these from now on; None: they see the driver's folders."""
    if files is None:
        _given.pop(session, None)
    else:
        _given[session] = files
    return session


def files_of(session: SparkSession) -> ExecutorFiles | None:
    """How executors of a session reach files; None: they see the driver's folders."""
    return _given.get(session)


def need_folders(session: SparkSession, what: str, hint: str) -> None:
    """Nothing, where executors of a session see the folders of the driver, without which `what` is not done.

    Raises:
        EngineError: they do not.
    """
    if files_of(session) is not None:
        raise EngineError(
            f"{what} in a Spark whose executors do not see the folders of the driver",
            hint=f"{hint}; or {_SHARED}",
        )


def session_like(session: SparkSession) -> SparkSession:
    """A new session in the same Spark, whose executors reach files in the same way."""
    return give_files(session.newSession(), files_of(session))


@contextlib.contextmanager
def staged(files: ExecutorFiles) -> Iterator[str]:
    """The beginning of keys, without a slash at its end, for files that are gone afterwards.

    What a driver that was killed has left there is named by nothing.
    """
    below = f"staging/{secrets.token_hex(16)}"
    try:
        yield below
    finally:
        with contextlib.suppress(OdfchainError):  # the outcome of the run does not depend on it
            files.clear(below)


def copy_put(place: StoreFolder, name: str, size: int, target: Path) -> None:
    """What a worker has put is a new file of the driver, too, which hashes to its name.

    Raises:
        ObjectCorruptedError: it does not.
    """
    key = f"{place.key}/{name}"
    place.files.copy(key, 0, size, target)
    actual, _ = hash_file(target)
    if str(actual) != name:
        raise ObjectCorruptedError(
            f"{key}: the content hashes to {actual}, not to its name",
            hint="it was just written: run the command again",
        )


# --- on a worker ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Errors of the project's pass through Spark: `odfchain.spark.failure.explain` raises them again."""
    try:
        yield
    except OdfchainError as error:
        hint = CREDENTIALS_HINT if isinstance(error, AccessError | TransferError) else error.hint
        text = marker("raised", name=type(error).__name__, message=str(error), hint=hint or "")
        raise RuntimeError(text) from None


@contextlib.contextmanager
def worker_folder() -> Iterator[Path]:
    """A private folder on the worker's machine, gone afterwards; with the executor, if it is killed."""
    with fsio.private_folder(own_folder("writing")) as folder:
        yield folder


def kept_copy(kind: str, what: bytes) -> tuple[Path, bool]:
    """Where this machine keeps a copy, and whether it is there; then it counts as asked for now.

    `what` tells copies of a kind apart; those of two kinds are never the same.
    """
    path = own_folder("brought") / f"{kind}-{hashlib.sha3_256(what).hexdigest()}"
    try:
        os.utime(path)
    except FileNotFoundError:
        return path, False
    return path, True


def own_folder(name: str) -> Path:
    """A folder of workers on their machine: in that of their executor, which Spark removes at its end."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    base = Path(local) / "odfchain" if local else Path(tempfile.gettempdir()) / f"odfchain-{os.getuid()}"
    fsio.make_folder(base, mode=0o700)
    fsio.make_folder(base / name, mode=0o700)
    return base / name
