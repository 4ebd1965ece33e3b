"""Recorded rows without Spark: whole datasets and their newest rows, as Arrow.

Slices are checked against their physical hash before they are read. The declared schema decides the types;
a column that an older slice does not have yet is null there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain import errors
from odfchain.lazy import pa
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.events import OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.text import first_line, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef

if TYPE_CHECKING:
    from odfchain.slices.footers import FileStats
    from odfchain.slices.skipping import Condition
    from odfchain.spark.executor_files import ExecutorFiles


def read_all(
    dataset: DatasetFiles,
    state: DatasetState,
    columns: Sequence[str] | None = None,
    slices: Sequence[SliceRef] | None = None,
) -> pa.Table:
    """All records (or those of some slices), with the declared schema (or the given columns of it)."""
    schema = columns_of(state, columns)
    tables = [_read_slice(dataset, ref, schema) for ref in (state.slices() if slices is None else slices)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_state(
    dataset: DatasetFiles,
    state: DatasetState,
    key: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    event_time: Timestamp | None = None,
    slices: Sequence[tuple[Path, OffsetInterval]] | None = None,
) -> pa.Table:
    """The rows in force at a head, as recorded, in order of offset (`odfchain.slices.state`).

    Without `key` the one that the sources agree on tells rows apart; an empty one compares whole rows, and
    counts them. With `event_time` those in force then (`odfchain.slices.state`).
    `slices` are files that were verified already; the first may be a state that replaces older ones.
    """
    from odfchain.slices import state as rule

    key = state.primary_key if key is None else key
    schema, names = columns_of(state, columns), state.vocabulary
    if slices is None:
        slices = [(verified_slice(dataset, ref), ref.slice.offset_interval) for ref in state.slices()]
    if not (files := [rule.SliceFile(path, names, interval) for path, interval in slices]):
        return schema.empty_table()
    columns_of(state, key)
    with readable(dataset.folder):
        if event_time is None and key:
            wanted = columns_of(state, list(dict.fromkeys([*schema.names, *key])))
            return rule.newest_rows(files, key, wanted).select(schema.names)
        if event_time is None:
            return rule.state(files, key, schema, net=True)
        wanted = columns_of(state, list(dict.fromkeys([*schema.names, names.event_time_column])))
        return rule.state_at(files, key, wanted, event_time).select(schema.names)


def read_tail(dataset: DatasetFiles, state: DatasetState, count: int, *, skip: int = 0) -> pa.Table:
    """The newest `count` records before the newest `skip`, in order of offset.

    Reads only the row groups that hold them; all values can be held by Python.
    """
    schema = columns_of(state, None)
    if (last := state.last_offset) is None or count <= 0:
        return schema.empty_table()
    high = last - skip
    low = max(0, high - count + 1)
    tables: list[Any] = []
    for ref in state.slices_newest_first():
        interval = ref.slice.offset_interval
        if interval.start > high:
            continue
        # slices come newest first, so all others are older
        if interval.end < low:
            break
        first, end = max(low, interval.start), min(high, interval.end)
        tables.append(_read_slice(dataset, ref, schema, first - interval.start, end - interval.start))
    return pa.concat_tables(tables[::-1]) if tables else schema.empty_table()


def columns_of(state: DatasetState, columns: Sequence[str] | None) -> pa.Schema:
    """The declared columns, or those of them that are asked for, as an Arrow schema; else `SchemaError`."""
    declared = state.schema
    schema = slice_schema(declared) if declared is not None else pa.schema([])
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            present = f"the dataset has {', '.join(schema.names)}"
            reason = present if schema.names else "no data is recorded yet"
            raise errors.SchemaError(f"no column {name!r} ({reason})")
    return pa.schema([schema.field(name) for name in columns])


def _read_slice(
    dataset: DatasetFiles, ref: SliceRef, schema: pa.Schema, first: int = 0, last: int | None = None
) -> pa.Table:
    """The rows `[first; last]` of a slice, counted from its beginning, in the declared types."""
    from odfchain.slices.reader import fitted, open_parquet

    path = verified_slice(dataset, ref)
    end = ref.slice.offset_interval.count - 1 if last is None else last
    with readable(path):
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise unreadable(path, f"column `{one_line(twice)}` comes twice")
            table = file.rows_between(first, end, [name for name in schema.names if name in names])
        if table.num_rows != end - first + 1:
            raise unreadable(path, f"it has no row {first + table.num_rows + 1:,}, which its block promises")
        return fitted(table, schema)


def verified_slice(dataset: DatasetFiles, ref: SliceRef) -> Path:
    """The file of a slice, which hashes to its name, or `SliceNotFoundError`, `ObjectCorruptedError`."""
    try:
        return dataset.data.verified_path(ref.slice.physical_hash)
    except errors.ObjectNotFoundError:
        path = dataset.data.locate(ref.slice.physical_hash)
        raise errors.SliceNotFoundError.of(dataset.alias, path) from None


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What is wrong with a slice that is read meanwhile is said as `unreadable` does."""
    try:
        yield
    except errors.BadInputError as error:
        raise unreadable(Path(error.file or path), error.message) from None
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise unreadable(path, f"it does not fit the declared schema: {first_line(error)}") from None


def unreadable(path: Path, reason: str) -> errors.ObjectCorruptedError:
    """The error for a slice that differs from what its block says."""
    return errors.ObjectCorruptedError(
        f"{path}: the slice cannot be read: {reason}",
        hint="`odfchain verify` says what else is wrong with it",
    )


# Cached statistics of slices: one line for each slice in `info/file-stats`.
#
#     <CRC-32, 8 hex digits> <physical hash> <the statistics, `odfchain.slices.footers`>
#
# A line is written only where the bytes were verified: of a slice that was written here, from the memory of
# its writer; of one that came from elsewhere, from the footer of a file that was hashed here and is the
# slice. It says something of bytes with that hash, so nothing that happens to a file makes it wrong. The
# file is private and disposable: a line that is damaged or missing is made anew when the slice is read;
# commits only append.

# Files whose lines stay in memory [count].
_DATASETS = 16
_CRC = 8


class KeptFooters:
    """Cached footer statistics of a dataset's slices; what is read here is added."""

    def __init__(self, dataset: DatasetFiles) -> None:
        self._dataset = dataset
        self.path = dataset.folder / "info" / "file-stats"
        """Where they are kept; the file may be removed."""
        self._lines: _Lines | None = None

    def known(self, name: Multihash) -> FileStats | None:
        """The footer statistics of a slice that was verified before; the slice need not be here."""
        if self._lines is None:
            self._lines = _lines_in(self.path).grown()
        return self._lines.get(name)

    def stats(self, ref: SliceRef, locate: Callable[[SliceRef], Path] | None = None) -> FileStats:
        """The footer statistics of a slice; its file is hashed first where they are not cached.

        `locate` gives files that hash to their names. That it cannot be kept costs time only.
        """
        name = ref.slice.physical_hash
        if (found := self.known(name)) is None:
            from odfchain.slices.footers import file_stats

            path = locate(ref) if locate is not None else verified_slice(self._dataset, ref)
            with readable(path):
                found = file_stats(path)
            # a failure to write the cache costs time only
            self.keep([(name, found.to_text())])
        return found

    def needed(
        self,
        refs: Sequence[SliceRef],
        condition: Condition,
        *,
        locate: Callable[[SliceRef], Path] | None = None,
        signed_nan: bool = False,
    ) -> list[SliceRef]:
        """The slices that may hold a row of which a condition is true, in their order.

        What is known of verified bytes is believed, and such a slice need not be here; others are hashed
        first. `locate` is as in `stats`, and `signed_nan` as in `may_match`.
        """
        from odfchain.slices.skipping import may_match, understood

        if not understood(condition):
            return list(refs)
        return [ref for ref in refs if may_match(self.stats(ref, locate), condition, signed_nan=signed_nan)]

    def keep(self, found: Iterable[tuple[Multihash, str | None]]) -> None:
        """Remember what footers of verified slices report; without effect where that cannot be written."""
        if not (data := b"".join(_line(name, text) for name, text in found if text is not None)):
            return
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":  # another writer was interrupted
                    data = b"\n" + data
                os.write(fd, data)
            finally:
                os.close(fd)

    def drop(self, keep: Callable[[Multihash], bool]) -> None:
        """Forget what is kept of other slices than `keep` names, damaged lines, and what is there twice."""
        lines = _lines_in(self.path).grown()
        data = b"".join(lines.raw(name) + b"\n" for name in lines.names() if keep(name))
        with contextlib.suppress(errors.StoreError, OSError):
            if self.path.exists() and self.path.stat().st_size != len(data):
                fsio.replace_file(self.path, data, mode=0o600)


def _line(name: Multihash, text: str) -> bytes:
    body = f"{name} {text}".encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


class _Lines:
    """The lines of one file, read as far as it has grown; what one says is found when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = (0, 0)
        self._size = 0
        self._known: dict[str, bytes | FileStats] = {}

    def get(self, name: Multihash) -> FileStats | None:
        key = str(name)
        found = self._known.get(key)
        if isinstance(found, bytes):
            from odfchain.slices.footers import FileStats

            try:
                found = self._known[key] = FileStats.of_text(found[_CRC + len(key) + 2 :])
            except ValueError:
                del self._known[key]
                return None
        return found

    def grown(self) -> _Lines:
        with self._lock, contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(fd, "rb") as stream:
                stat = os.fstat(fd)
                if (stat.st_dev, stat.st_ino) != self._file or stat.st_size < self._size:
                    self._known, self._size = {}, 0
                    self._file = (stat.st_dev, stat.st_ino)
                stream.seek(self._size)
                for line in stream:
                    if not line.endswith(b"\n"):
                        break  # another process is writing it
                    self._size += len(line)
                    self._add(line[:-1])
        return self

    def _add(self, line: bytes) -> None:
        crc, _, body = line.partition(b" ")
        name, _, _ = body.partition(b" ")
        if crc == b"%08x" % zlib.crc32(body):
            self._known[name.decode("ascii", "replace")] = line

    def names(self) -> list[Multihash]:
        found = []
        for key in self._known:
            with contextlib.suppress(errors.InvalidIdError):
                found.append(Multihash.parse(key))
        return found

    def raw(self, name: Multihash) -> bytes:
        found = self._known[str(name)]
        if isinstance(found, bytes):
            return found
        text = found.to_text()
        assert text is not None  # noqa: S101 - it came from one
        return _line(name, text)[:-1]


_lines_in = functools.lru_cache(_DATASETS)(_Lines)


# The records that merging reads: the slices so far, and the state checkpoint that replaces the older ones.
#
# A state checkpoint is a Parquet file with the rows that are still in force: for each primary key the one
# with the largest offset, unless that is a retraction. Rows are as recorded, their offset and operation
# included, ordered by key; the file says itself which key it was made for and up to which offset (RFC-018).
# So the rows of a checkpoint and of the slices after it lead to the same state as all slices.

METADATA_KEY = b"odfchain.state"
"""Key of the Parquet file's metadata under which a checkpoint describes itself."""

_VERSION = 1
# Slices that are read after a checkpoint before the next one is due; opening many files is slow.
_LARGEST_DELTA = 32
# Rows that are not worth a checkpoint.
_SMALLEST_DELTA = 50_000


@dataclass(frozen=True, slots=True)
class RecordedSlice:
    """A slice of the history; `locate` gives its file, verified."""

    offsets: OffsetInterval
    locate: Callable[[], Path]
    name: Multihash | None = None
    """Its physical hash, once it is committed."""
    footer: Callable[[], FileStats] | None = None
    """Its footer statistics, as `KeptFooters.stats`; once it is committed."""
    key: str = ""
    """Its key for executors that see no folder of the driver (`odfchain.spark.executor_files`)."""
    unsent: Path | None = None
    """Its file, where it is not in the store under that key yet."""
    size: int = 0
    """Of its file [bytes]."""

    def key_in(self, files: ExecutorFiles) -> str:
        """Its key, under which it is in the store; errors as `ExecutorFiles.put`."""
        if self.unsent is not None:
            files.put(self.unsent, self.key)
        return self.key

    def may_hold(self, condition: Condition) -> bool:
        """True if a row of it may be as a condition says."""
        from odfchain.slices.skipping import may_match, understood

        return self.footer is None or not understood(condition) or may_match(self.footer(), condition)

    @property
    def rows(self) -> int:
        """Number of records."""
        return self.offsets.end - self.offsets.start + 1


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """The state of a dataset up to an offset, as a verified file."""

    path: Path | None
    """None where executors have written or looked at it, and it is not here."""
    key: tuple[str, ...]
    last_offset: int
    rows: int
    stored: str = ""
    """Its key for executors that see no folder of the driver."""


def describe(key: tuple[str, ...], last_offset: int) -> bytes:
    """The description of a state checkpoint that its Parquet metadata carry."""
    return json.dumps({"version": _VERSION, "primaryKey": list(key), "lastOffset": last_offset}).encode()


def read_description(path: Path, stored: str = "") -> StateCheckpoint | None:
    """The state checkpoint in a file; None when the file is something else (checkpoints of other engines).

    `stored` is its key for executors.
    """
    from odfchain.slices.reader import open_parquet

    try:
        with open_parquet(path) as file:
            footer = file.metadata
    except errors.BadInputError:
        return None
    if (text := (footer.metadata or {}).get(METADATA_KEY)) is None:
        return None
    try:
        tree = json.loads(text)
        if tree["version"] != _VERSION:
            return None
        key = tuple(str(name) for name in tree["primaryKey"])
        return StateCheckpoint(path, key, int(tree["lastOffset"]), footer.num_rows, stored)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        message = f"{path}: the description of the state checkpoint is damaged: {error}"
        raise errors.CodecError(message) from None


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """Everything recorded so far, slices oldest first."""

    slices: tuple[RecordedSlice, ...] = ()
    checkpoint: StateCheckpoint | None = None
    folder: Path | None = None
    """A private one for what can be computed again from the slices."""

    @classmethod
    def of(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        describe: Callable[[str], StateCheckpoint | None] | None = None,
    ) -> RecordedRows:
        """The recorded rows of a dataset at a head.

        `describe` looks at a checkpoint in the store by its key, where the file itself need not come here.
        """
        kept = KeptFooters(dataset)
        slices = tuple(_recorded_slice(dataset, ref, kept) for ref in state.slices())
        checkpoint = None
        if state.checkpoint is not None:
            name = state.checkpoint.physical_hash
            stored = dataset.key("checkpoints", name)
            with contextlib.suppress(errors.ObjectNotFoundError):  # it only saves time
                if describe is not None and not Path(dataset.checkpoints.locate(name)).is_file():
                    checkpoint = describe(stored)
                else:
                    checkpoint = read_description(dataset.checkpoints.verified_path(name), stored)
        return cls(slices, checkpoint, dataset.folder / "info" / "keys")

    @classmethod
    def since_checkpoint(
        cls, dataset: DatasetFiles, state: DatasetState, key: tuple[str, ...]
    ) -> tuple[RecordedRows, bool]:
        """The files that give the state of a key, back to the checkpoint only, which is not verified.

        And whether the chain names a checkpoint that is a state, and is here.
        """
        described = None
        if state.checkpoint is not None:
            path = Path(dataset.checkpoints.locate(state.checkpoint.physical_hash))
            described = read_description(path) if path.is_file() else None
        used = described if described is not None and described.key == key else None
        slices: list[RecordedSlice] = []
        kept = KeptFooters(dataset)
        for ref in state.slices_newest_first():
            if used is not None and ref.slice.offset_interval.start <= used.last_offset:
                break
            slices.append(_recorded_slice(dataset, ref, kept))
        return cls(tuple(slices[::-1]), used), described is not None

    def for_state(self, key: tuple[str, ...]) -> RecordedRows:
        """The files that give the state of a key: the checkpoint, if it is of that key, and later slices."""
        if self.checkpoint is None or self.checkpoint.key != key:
            return RecordedRows(self.slices)
        last = self.checkpoint.last_offset
        return RecordedRows(tuple(s for s in self.slices if s.offsets.start > last), self.checkpoint)

    def paths(self) -> list[Path]:
        """The files, verified."""
        own = [self.checkpoint.path] if self.checkpoint and self.checkpoint.path else []
        return own + [piece.locate() for piece in self.slices]

    def keys(self, files: ExecutorFiles) -> list[str]:
        """The keys of files for executors, put into the store; errors as `ExecutorFiles.put`."""
        own = [self.checkpoint.stored] if self.checkpoint else []
        return own + [piece.key_in(files) for piece in self.slices]


def _recorded_slice(dataset: DatasetFiles, ref: SliceRef, kept: KeptFooters) -> RecordedSlice:
    name = ref.slice.physical_hash
    locate = functools.partial(dataset.data.verified_path, name)
    key, footer = dataset.key("data", name), functools.partial(kept.stats, ref)
    return RecordedSlice(ref.slice.offset_interval, locate, name, footer, key, size=ref.slice.size)


def checkpoint_is_due(rows: RecordedRows) -> bool:
    """True if so much has come after the checkpoint (or the first slice) that a new one saves work."""
    slices = rows.slices if rows.checkpoint else rows.slices[1:]
    base = rows.checkpoint.rows if rows.checkpoint else sum(s.rows for s in rows.slices[:1])
    later = sum(s.rows for s in slices)
    # merges read at most half as much again as they must, and checkpoints take at most twice the space of the
    # log
    return len(slices) >= _LARGEST_DELTA or later >= max(_SMALLEST_DELTA, base // 2)
