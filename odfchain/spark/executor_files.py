"""Files that driver and executors have in common where they have no folder in common: those of a store.

`files_of(session)` is None where executors see the driver's folders: workers are given paths. Otherwise it is
the workspace's store. Keys are below its URL, every machine reaches it with credentials of its own
environment, and it is pickled into plans as that URL.

    datasets/fed01…/data/f1620…           slices by their hash, those of a commit to come as well
    datasets/fed01…/checkpoints/f1620…    checkpoints
    staging/<random>/…                    inputs and runs, for as long as `staged(files)` lasts

Driver: `with staged(files) as run: files.put(path, f"{run}/input")`, then a plan whose functions have `files`
and keys. Worker: `files.bring(key)`, `files.read(key, start, end)`, all in `translate_errors()`, and what it
writes before it puts it in `worker_folder()`. Rows of Parquet files: `odfchain.spark.input_frames`.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import hashlib
import io
import os
import secrets
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Protocol

from odfchain.errors import AccessError, ObjectCorruptedError, OdfchainError, TransferError
from odfchain.lazy import pa
from odfchain.limits import INPUT
from odfchain.odf.physical_hash import hash_file
from odfchain.spark.plans import map_in_arrow
from odfchain.storage import fsio
from odfchain.text import marker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
        """

    def read(self, key: str, start: int, end: int) -> bytes:
        """The bytes of a file from `start` up to, not with, `end`; `end` is not beyond its size."""


class ExecutorFiles(ReadableFiles, Protocol):
    """Files of a store for driver and workers, pickled as its URL; raises as `ReadableFiles`."""

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
    """The prefix of keys; a slash and the physical hash of the file come after it."""


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """A small file that goes to the workers within the plan; fulfils `ReadableFiles` for any key."""

    content: bytes = field(repr=False)

    def bring(self, key: str) -> Path:  # noqa: ARG002 - there is one file
        path, is_there = kept_copy("carried", self.content)
        if not is_there:
            fsio.replace_file(path, self.content)
        return path

    def read(self, key: str, start: int, end: int) -> bytes:  # noqa: ARG002 - there is one file
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


def session_like(session: SparkSession, settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A new session in the same Spark with settings, whose executors reach files in the same way."""
    made = give_files(session.newSession(), files_of(session))
    for key, value in settings.items():
        made.conf.set(key, value)
    return made


@contextlib.contextmanager
def staged(files: ExecutorFiles) -> Iterator[str]:
    """The beginning of keys, without a slash at its end, for files that are gone afterwards."""
    below = f"staging/{secrets.token_hex(16)}"
    try:
        yield below
    finally:
        with contextlib.suppress(OdfchainError):  # the outcome of the run does not depend on it
            # files of a killed driver stay, under a random prefix that nothing refers to
            files.clear(below)


def copy_put(place: StoreFolder, name: str, size: int, target: Path) -> None:
    """Copy a file that a worker has put to a new file of the driver, and verify its hash."""
    key = f"{place.key}/{name}"
    place.files.copy(key, 0, size, target)
    actual, _ = hash_file(target)
    if str(actual) != name:
        hint = "it was just written: run the command again"
        raise ObjectCorruptedError(f"{key}: the content hashes to {actual}, not to its name", hint=hint)


# --- on a worker ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Errors of the project's pass through Spark: `odfchain.spark.jobs.explain` raises them again."""
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
    """Where this machine keeps a copy of the kind `what`, and whether it is there; that marks it as used."""
    path = own_folder("brought") / f"{kind}-{hashlib.sha3_256(what).hexdigest()}"
    try:
        # marks its use: copies that were not used for an hour may be removed
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


# Input files for workers: in a folder that both see, or in a store.
#
# The driver checks every byte of an input, so it has the file. Where executors see its folders they are
# given the path. Elsewhere it is put once into the store of the workspace, below `staging/`, and workers
# read ranges of it that begin and end with records: which ones is found out here, in the file, by a few
# reads for each. A small file goes within the plan instead, which costs no request.

RANGE_BYTES = 8 << 20
"""About how much of a text file a worker reads at a time."""

RANGES_OF_A_TASK = 16
"""Most that one task reads, where each core has a task."""

CARRIED_BYTES = 256 << 10
"""A file of at most this size is sent within the plan: it is put, listed and removed for nothing."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the driver, and how workers come to it; a small value that is sent to them."""

    path: Path
    """Where the driver has it; workers as well where there are no `files`."""
    files: ReadableFiles | None = None
    key: str = ""

    def here(self) -> Path:
        """The whole file on the machine of the worker that asks."""
        return self.path if self.files is None else self.files.bring(self.key)

    @contextlib.contextmanager
    def parts(self) -> Iterator[Callable[[int, int], bytes]]:
        """A function that gives a worker the bytes from one place up to, not with, another."""
        if self.files is not None:
            yield functools.partial(self.files.read, self.key)
            return
        with self.path.open("rb") as stream:

            def read(start: int, end: int) -> bytes:
                stream.seek(start)
                return stream.read(end - start)

            yield read


class Handover:
    """Hands files over to workers; what it put into a store is gone with `resources`."""

    def __init__(self, session: Callable[[], SparkSession], resources: contextlib.ExitStack) -> None:
        self.session = session
        self._resources = resources
        self._below, self._put = "", 0

    def give(self, path: Path, known: InputFile | None = None) -> InputFile:
        """The file, for workers of the session, started now if need be; `known` says what the store has."""
        files = files_of(self.session())
        if files is None:
            return InputFile(path.resolve())
        with path.open("rb") as stream:
            content = stream.read(CARRIED_BYTES + 1)
        # a small file goes within the plan, which costs no request
        if len(content) <= CARRIED_BYTES:
            return InputFile(path, CarriedFile(content))
        if known is not None:
            return known
        self._put += 1
        key = f"{self.staging(files).key}/input-{self._put}"
        files.put(path, key)
        return InputFile(path, files, key)

    def staging(self, files: ExecutorFiles) -> StoreFolder:
        """Where files of the store are that are gone with `resources`."""
        self._below = self._below or self._resources.enter_context(staged(files))
        return StoreFolder(files, self._below)


# --- where records begin -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextRanges:
    """A text file of a store in ranges that begin and end with records."""

    file: InputFile
    cuts: tuple[int, ...]
    """Where ranges begin, and where the last one ends."""
    quote: bytes = b""
    """The quote around a field with line feeds; empty where each line is a record."""

    def bytes_of(self, number: int) -> bytes:
        """The bytes of a range; a forgotten quote makes one of the rest of a file, which is refused."""
        start, end = self.cuts[number], self.cuts[number + 1]
        if end - start > RANGE_BYTES + INPUT.record_bytes:
            message = f"a record has more than {INPUT.record_bytes >> 20} MiB"
            raise RuntimeError(marker("bad-record", message=message))
        with self.file.parts() as read:
            return read(start, end)


def text_ranges(
    file: InputFile, *, quote: str = "", header: bool = False, size: int | None = None
) -> TextRanges:
    """The ranges of a UTF-8 text of about `size` bytes (8 MiB) each, without byte order mark and header.

    With `quote`, line breaks are those outside of it, and line feeds alone; records then have no others.
    """
    mark, size = quote.encode(), size or RANGE_BYTES
    with file.path.open("rb") as stream:
        total = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        # a byte order mark belongs to no record
        begin = len(codecs.BOM_UTF8) if stream.read(3) == codecs.BOM_UTF8 else 0
        cuts = [_behind_header(stream, begin, total, mark) if header else begin]
        while cuts[-1] < total:
            cuts.append(_next_cut(stream, cuts[-1], min(cuts[-1] + size, total), total, mark))
    return TextRanges(file, tuple(cuts), mark)


def _behind_header(stream: BinaryIO, begin: int, total: int, quote: bytes) -> int:
    """Where the first record that holds anything ends."""
    while begin < total:
        end = _next_cut(stream, begin, begin, total, quote)
        stream.seek(begin)
        line = stream.read(end - begin)
        for record in [line] if quote else line.splitlines(keepends=True):
            begin += len(record)
            if record.strip(b"\r\n"):
                return begin
    return total


def _next_cut(stream: BinaryIO, begin: int, at: int, total: int, quote: bytes) -> int:
    """Where the first record ends that ends behind `at`; at `begin`, before it, another one begins."""
    quotes = 0
    if quote:
        stream.seek(begin)
        for start in range(begin, at, _CHUNK):
            quotes += stream.read(min(_CHUNK, at - start)).count(quote)
    stream.seek(at)
    while chunk := stream.read(_CHUNK):
        seen = 0
        while (feed := chunk.find(b"\n", seen)) >= 0:
            quotes += chunk.count(quote, seen, feed) if quote else 0
            if quotes % 2 == 0:
                return at + feed + 1
            seen = feed + 1
        quotes += chunk.count(quote, seen) if quote else 0
        at += len(chunk)
    return total


# --- on workers ----------------------------------------------------------------------------------------


def numbered_frame(
    session: SparkSession,
    count: int,
    make: Callable[[Iterator[int]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
    *,
    most: int = RANGES_OF_A_TASK,
) -> DataFrame:
    """The rows that workers make of the numbers from 0, in order; a task for each core, of at most `most`."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with translate_errors():
            yield from make(number for batch in batches for number in batch.column(0).to_pylist())

    tasks = max(-(-count // most), min(count, _cores(session)), 1)
    return map_in_arrow(session.range(0, count, 1, tasks), read, schema)


def _cores(session: SparkSession) -> int:
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - over Spark Connect, which has no context
        return 2
