"""The recorded rows that a write compares with: state checkpoints, and which slices are read at all.

The state of the dataset goes into a write as a value and comes out as the next one, so that several inputs
can follow each other before anything is committed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odfchain.chain.index import SOURCES, are_of_several_keys
from odfchain.errors import StoreError
from odfchain.ingest.merge_task import NESTED, RecordedFiles, all_threads, task_bytes
from odfchain.lazy import pa
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import nullable, slice_schema
from odfchain.odf.events import Checkpoint, DatasetVocabulary, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers, hash_rows
from odfchain.odf.times import Timestamp
from odfchain.slices.footers import quoted
from odfchain.slices.ordering import order_of
from odfchain.slices.reader import BATCH_ROWS, check_parquet
from odfchain.slices.skipping import with_any_of
from odfchain.slices.state import newest_of
from odfchain.slices.writer import ObservedParquet, PhysicalHash, SliceFacts, cast_column
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, files_of
from odfchain.spark.input_frames import parquet_frame, rows_of_file, spark_path
from odfchain.spark.jobs import task_results
from odfchain.spark.stage import WrittenFile, write_into_store, write_ordered
from odfchain.spark.types import col, latest_rows, physical_struct
from odfchain.storage import fsio
from odfchain.workspace import read_slices
from odfchain.workspace.commit import StagedFile, slice_path
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class WriterState:
    """State of the dataset for a write, pending transactions included."""

    vocabulary: DatasetVocabulary
    merge: src.MergeStrategy
    schema: ds.DataSchema | None
    prev_offset: int | None
    checkpoint: Checkpoint | None
    watermark: Timestamp | None
    source_state: SourceState | None
    recorded: Callable[[], read_slices.RecordedRows]
    """The recorded rows to compare with, found on first use."""
    has_source: bool = False
    """True if the chain defines where rows come from; without that a new column is taken for an accident."""
    odf_schema: bool = False
    """True if the schema in force is declared in the ODF form, so that a new one is as well."""
    has_several_keys: Callable[[], bool] = lambda: False
    """True if sources tell records apart by different keys; found when asked for."""
    dataset: DatasetFiles | None = field(default=None, repr=False, compare=False)
    """The place of executors' slices in the store; None where they see the staging folder."""
    since: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When the run began, before which nothing of it was put into the store [s, `time.monotonic`]."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        return 0 if self.prev_offset is None else self.prev_offset + 1

    def keys(self, kind: str) -> str:
        """The prefix of keys of slices (`data`) or checkpoints (`checkpoints`), for executors."""
        return "" if self.dataset is None else self.dataset.keys(kind)

    def path_of(self, facts: SliceFacts) -> Path:
        """The file of a slice that was just written; one that is in the store comes here now."""
        if self.dataset is None:
            return Path(facts.path)
        return slice_path(self.dataset, staged_file(facts, self.since))

    def look_back(
        self,
        session: SparkSession,
        new: tuple[read_slices.RecordedSlice, ...],
        schema: ds.DataSchema,
        staging: Path,
        most: int = 0,
    ) -> LookBack:
        """The rows to compare with once `new` is recorded; a due state checkpoint is written in `staging`.

        `schema` is that of the dataset with `new`; one task takes up to `most` bytes (0: `task_bytes`).
        """

        def extended() -> read_slices.RecordedRows:
            before = self.recorded()
            return dataclasses.replace(before, slices=(*before.slices, *new))

        keeps = self.merge.KEEPS_STATE
        if self.checkpoint is None and not keeps:
            return LookBack(extended, None)
        after = extended()
        # our own checkpoint stays in force for blocks that make none, because it says up to where it counts;
        # one of another tool does not, because its maker has not seen the new rows
        kept = self.checkpoint if after.checkpoint is not None else None
        before = after.for_state(self.merge.primary_key) if keeps else after
        if not keeps or not read_slices.checkpoint_is_due(before):
            return LookBack(lambda: after, kept, carried=kept)
        facts, made = _write_checkpoint(session, self, before, schema, staging, most)
        name = Multihash.parse(facts.physical_hash)
        return LookBack(
            lambda: dataclasses.replace(after, checkpoint=made),
            Checkpoint(physical_hash=name, size=facts.size),
            carried=kept,
            staged=StagedFile(made.path, name, since=self.since),
        )

    def only_relevant(
        self, known: read_slices.RecordedRows, keys: Callable[[], pa.Table], *, index: bool
    ) -> read_slices.RecordedRows:
        """The recorded rows without slices that have none of these `keys`, by footers or an `index`."""
        assert self.schema is not None  # noqa: S101 - a slice was known
        fields = [f for name in self.merge.primary_key if (f := self.schema.field(name)) is not None]
        if (
            known.folder is None
            or sum(piece.rows for piece in known.slices) < INDEXED_ROWS
            or len(fields) != len(self.merge.primary_key)
            or any(isinstance(f.value_type, NESTED) for f in fields)
        ):
            return known
        asked = keys()
        text = repr([(f.name, f.value_type) for f in fields])
        files = KeyFiles(known.folder, hashlib.sha3_256(text.encode()).hexdigest()[:16])
        wanted = np.unique(np.concatenate([_key_hashes(batch) for batch in asked.to_batches()]))
        condition = with_any_of(quoted(asked.column_names[0]), asked.column(0), asked.schema.field(0).type)
        committed = [piece for piece in known.slices if piece.name is not None]
        files.keep_only(committed)
        kept: set[read_slices.RecordedSlice] = set(known.slices).difference(committed)
        for piece in committed:
            if not piece.may_hold(condition):
                continue
            if index and files.holds_any(piece, wanted) is None:
                path = piece.locate()
                rows = rows_of_file(path, str(path), asked.column_names, asked.schema)
                files.write(piece, map(_key_hashes, rows))
            # a file that is not there, or could not be kept, says nothing, so its slice is read
            if files.holds_any(piece, wanted) is not False:
                kept.add(piece)
        return dataclasses.replace(known, slices=tuple(piece for piece in known.slices if piece in kept))

    @classmethod
    def of(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        strategy: src.MergeStrategy,
        session: Callable[[], SparkSession],
    ) -> WriterState:
        """The state of a dataset at a head, for writes in a session."""
        return cls(
            vocabulary=state.vocabulary,
            merge=strategy,
            schema=state.schema,
            prev_offset=state.last_offset,
            checkpoint=state.checkpoint,
            watermark=state.watermark,
            source_state=state.source_state,
            has_source=state.polling_source is not None or bool(state.push_sources),
            odf_schema=state.odf_schema,
            recorded=functools.cache(functools.partial(_recorded_rows, dataset, state, session)),
            has_several_keys=lambda: are_of_several_keys(
                block.block.event for block in state.chain.nearest_all(*SOURCES, head=state.head)
            ),
            dataset=dataset,
        )


def staged_file(facts: SliceFacts, since: float) -> StagedFile:
    """A slice that was written, as what is to be committed."""
    path = Path(facts.path) if facts.path else None
    return StagedFile(path, Multihash.parse(facts.physical_hash), facts.footer, since)


# When and how a write makes a state checkpoint (RFC-018).


@dataclass(frozen=True, slots=True)
class LookBack:
    """The recorded rows that the next merge compares with."""

    recorded: Callable[[], read_slices.RecordedRows]
    checkpoint: Checkpoint | None
    """The new checkpoint of the block; of several blocks, the last one's."""
    carried: Checkpoint | None = None
    """The checkpoint of the blocks before the last one."""
    staged: StagedFile | None = None
    """The file of a checkpoint that was just made."""


def read_recorded(
    session: SparkSession, recorded: read_slices.RecordedRows, fields: tuple[ds.DataField, ...]
) -> DataFrame | None:
    """Recorded rows with some of their columns as physical types; None when nothing was ever recorded."""
    if (files := files_of(session)) is not None:
        keys = recorded.keys(files)
        return parquet_frame(session, files, physical_struct(fields), keys) if keys else None
    paths = list(recorded.paths())
    for path in paths:
        check_parquet(path)
    if not paths:
        return None
    return session.read.schema(physical_struct(fields)).parquet(*map(spark_path, paths))


def _recorded_rows(
    dataset: DatasetFiles, state: DatasetState, session: Callable[[], SparkSession]
) -> read_slices.RecordedRows:
    # a checkpoint stays in the store if it can
    if state.checkpoint is None or not dataset.checkpoints.on_demand:
        return read_slices.RecordedRows.of(dataset, state)
    files = files_of(session())
    if files is None:
        return read_slices.RecordedRows.of(dataset, state)

    def describe(key: str) -> read_slices.StateCheckpoint | None:
        return task_results(session(), functools.partial(_describe, files=files, key=key), 1)[0]

    return read_slices.RecordedRows.of(dataset, state, describe)


def _describe(_: int, files: ExecutorFiles, key: str) -> read_slices.StateCheckpoint | None:
    found = read_slices.read_description(files.bring(key), key)
    return None if found is None else dataclasses.replace(found, path=None)


# Recorded rows are larger in memory than in their files, about so many times.
_UNPACKED = 3
_FIXED_BYTES, _TEXT_BYTES = 8, 24


def bytes_of(recorded: read_slices.RecordedRows, schema: ds.DataSchema, names: Sequence[str]) -> int:
    """About what some columns of recorded rows take in memory: by number and types, or by their files."""
    fields = [f for f in schema.fields if f.name in names]
    long = (ds.DataTypeString, ds.DataTypeBinary, *NESTED)
    fixed = sum(_TEXT_BYTES if isinstance(f.value_type, long) else _FIXED_BYTES for f in fields)
    rows = sum(piece.rows for piece in recorded.slices)
    stored = sum(piece.size for piece in recorded.slices) * len(fields) / len(schema.fields)
    each = max(fixed, _UNPACKED * stored / max(rows, 1))
    return int((rows + (recorded.checkpoint.rows if recorded.checkpoint else 0)) * each)


def recorded_files(
    session: SparkSession, known: read_slices.RecordedRows, fields: Iterable[pa.Field]
) -> RecordedFiles:
    """The same rows as files that a task of the session reads, verified."""
    files = files_of(session)
    keys = map(str, known.paths()) if files is None else known.keys(files)
    return RecordedFiles(tuple(keys), files, tuple(fields))


def _write_checkpoint(
    session: SparkSession,
    state: WriterState,
    recorded: read_slices.RecordedRows,
    schema: ds.DataSchema,
    staging: Path,
    most: int,
) -> tuple[WrittenFile, read_slices.StateCheckpoint]:
    vocabulary, key = state.vocabulary, state.merge.primary_key
    fields = tuple(f for f in schema.fields if f.name != vocabulary.system_time_column)
    last = recorded.slices[-1].offsets.end
    spec = _StateSpec(
        schema=slice_schema(ds.DataSchema(fields=fields)).serialize().to_pybytes(),
        vocabulary=vocabulary,
        metadata={read_slices.METADATA_KEY: read_slices.describe(key, last)},
        folder=str(staging),
    )
    files, place = files_of(session), state.keys("checkpoints")
    into = None if files is None else StoreFolder(files, place)
    if bytes_of(recorded, schema, [f.name for f in fields]) <= (most or task_bytes(session)):
        columns = nullable(pa.ipc.read_schema(pa.py_buffer(spec.schema))).remove_metadata()
        task = _StateTask(recorded_files(session, recorded, columns), key, spec, into)
        (facts,) = task_results(session, task, 1)
    else:
        rows = read_recorded(session, recorded, fields)
        assert rows is not None  # noqa: S101 - the slice that made the checkpoint due
        order = [*(col(name).asc_nulls_first() for name in key), col(vocabulary.offset_column).asc()]
        names = pa.ipc.read_schema(pa.py_buffer(spec.schema)).names
        write = functools.partial(write_into_store, write=_write_state, spec=spec, place=into)
        found = write_ordered(latest_rows(rows, key, vocabulary), order, names, write)
        assert found is not None  # noqa: S101 - `_write_state` always says something
        facts = WrittenFile(**found)
    path = Path(facts.path) if facts.path else None
    return facts, read_slices.StateCheckpoint(path, key, last, facts.rows, f"{place}/{facts.physical_hash}")


@dataclass(frozen=True, slots=True)
class _StateSpec:
    """Specification of a state checkpoint; sent to the worker that writes it."""

    schema: bytes
    """Arrow schema of the columns that are kept, serialized by pyarrow."""
    vocabulary: DatasetVocabulary
    metadata: dict[bytes, bytes]
    """Key-value metadata of the file."""
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""


@dataclass(frozen=True, slots=True)
class _StateTask:
    """Writes the state that recorded rows lead to, in order; sent to a worker."""

    recorded: RecordedFiles
    key: tuple[str, ...]
    spec: _StateSpec
    place: StoreFolder | None

    def __call__(self, _: int) -> WrittenFile:
        with all_threads():
            found = newest_of(self.recorded.batches(), self.key, self.spec.vocabulary)
            empty = pa.schema(self.recorded.fields).empty_table()
            rows = empty if found is None else found[0].combine_chunks()
            rows = rows.take(pa.array(order_of(rows, self.key))).combine_chunks()
            batches = iter(rows.to_batches(BATCH_ROWS))
            written: WrittenFile = write_into_store(batches, _write_state, self.spec, self.place)
            return written


def _write_state(batches: Iterator[pa.RecordBatch], spec: _StateSpec) -> WrittenFile:
    schema = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    path = Path(spec.folder) / f"state-{uuid.uuid4().hex}.parquet"
    rows, physical = 0, PhysicalHash()
    try:
        with ObservedParquet(path, schema, spec.vocabulary, [physical], metadata=spec.metadata) as file:
            for batch in batches:
                columns = [cast_column(batch.column(i), target) for i, target in enumerate(schema)]
                file.write(pa.RecordBatch.from_arrays(columns, schema=schema))
                rows += batch.num_rows
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return WrittenFile(str(path), rows, physical.size, str(physical.hash))


# Slices that may hold a key of the input; others are not read (RFC-032). A ledger checks every row's key
# against all recorded ones, so the sorted key hashes of each slice are kept in a private file, read and
# written piece by piece. A missing or damaged file is made again from the slice: results never depend on it.

PIECE_ROWS = 1 << 20
"""So many hashes are in memory at a time, and in order in a file."""

_HEAD = struct.Struct("<8sQ")
_MAGIC = b"odfkeys3"


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The hashes of the keys of slices, as files of a folder."""

    folder: Path
    kind: str
    """Names the columns of the key and their types."""

    def _path(self, piece: read_slices.RecordedSlice) -> Path:
        return self.folder / f"{piece.name}.{self.kind}"

    def holds_any(self, piece: read_slices.RecordedSlice, wanted: Numbers) -> bool | None:
        """True if the slice has one of these hashes; None where its file is missing or damaged."""
        found, sum_, rows = False, self._sum_before(piece), 0
        try:
            with self._path(piece).open("rb") as stream:
                head = stream.read(_HEAD.size)
                while len(known := np.fromfile(stream, dtype="<u8", count=PIECE_ROWS)):
                    rows, sum_ = rows + len(known), zlib.crc32(known.data, sum_)
                    if rows > piece.rows:
                        return None
                    found = found or _any_of(wanted, known)
        except OSError:
            return None
        return found if rows == piece.rows and head == _HEAD.pack(_MAGIC, sum_) else None

    def write(self, piece: read_slices.RecordedSlice, hashes: Iterable[Numbers]) -> None:
        """Keep the hashes of a slice; a disk that takes no more only costs time."""
        sum_ = self._sum_before(piece)
        try:
            fsio.make_folder(self.folder)
            with fsio.replaced(self._path(piece)) as stream:
                stream.write(_HEAD.pack(_MAGIC, 0))
                for part in _pieces(hashes):
                    part.sort()
                    sum_ = zlib.crc32(part.data, sum_)
                    stream.write(part.data)
                stream.seek(0)
                stream.write(_HEAD.pack(_MAGIC, sum_))
        except StoreError:
            return

    def _sum_before(self, piece: read_slices.RecordedSlice) -> int:
        # binds the file to its slice and key
        return zlib.crc32(self._path(piece).name.encode())

    def keep_only(self, slices: Sequence[read_slices.RecordedSlice]) -> None:
        """Remove what belongs to no slice any more."""
        names = {str(piece.name) for piece in slices}
        for path in self.folder.glob("*.*") if self.folder.is_dir() else ():
            if path.name.partition(".")[0] not in names:
                fsio.remove_quietly(path)


def _pieces(hashes: Iterable[Numbers]) -> Iterator[Numbers]:
    # pieces of one size; the last may be shorter
    held = np.empty(PIECE_ROWS, np.uint64)
    count = 0
    for part in hashes:
        while len(part):
            taken = min(len(part), PIECE_ROWS - count)
            held[count : count + taken] = part[:taken]
            count, part = count + taken, part[taken:]  # noqa: PLW2901 - what is left of it
            if count == PIECE_ROWS:
                yield held
                count = 0
    if count:
        yield held[:count]


def _any_of(wanted: Numbers, known: Numbers) -> bool:
    places = np.searchsorted(known, wanted)
    inside = places < len(known)
    return bool((known[places[inside]] == wanted[inside]).any())


INDEXED_ROWS = 500_000
"""Recorded rows that are worth it; reading the keys of fewer takes a fraction of a second."""

LARGEST_INPUT = 8 << 20
"""Size of a file whose keys are looked up [bytes]; of a larger one they are read twice for too little."""


def _key_hashes(keys: pa.RecordBatch) -> Numbers:
    # equal keys have equal hashes, in every process
    return np.ascontiguousarray(hash_rows(keys, (), key=_MAGIC)["low"])
