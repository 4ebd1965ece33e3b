"""Primary keys of an input: which are missing, which occur twice, and what is done about it (RFC-009).

One input is a set of keyed records. Rows that are equal in every column are one record; rows with one key and
other values are refused unless the user says which counts. Parts of a key compare null-safe, like every other
value; only a key of nulls alone names nothing and is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odfchain.errors import BadInputError, StoreError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.events import Checkpoint, DatasetVocabulary
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers
from odfchain.odf.sources import MergeStrategy
from odfchain.slices.footers import quoted
from odfchain.slices.marker import marker
from odfchain.slices.reader import check_parquet
from odfchain.slices.skipping import with_any_of
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, files_of
from odfchain.spark.input_frames import ROW_ID, parquet_frame, spark_path
from odfchain.spark.jobs import task_results
from odfchain.spark.stage import StateSpec, write_state
from odfchain.spark.types import all_of, col, comparable, latest_rows, physical_struct, physical_type
from odfchain.storage import fsio
from odfchain.text import cut
from odfchain.workspace.commit import StagedFile
from odfchain.workspace.config import DuplicateKeys
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import (
    METADATA_KEY,
    RecordedRows,
    RecordedSlice,
    StateCheckpoint,
    checkpoint_is_due,
    describe,
    read_description,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.window import WindowSpec


# Key hashes of slices in private files, read and written piece by piece (RFC-032).

PIECE_ROWS = 1 << 20
"""So many hashes are in memory at a time, and in order in a file."""

_HEAD = struct.Struct("<8sQ")
_MAGIC = b"odfkeys2"


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The hashes of the keys of slices, as files of a folder."""

    folder: Path
    kind: str
    """Names the columns of the key and their types."""

    def _path(self, piece: RecordedSlice) -> Path:
        return self.folder / f"{piece.name}.{self.kind}"

    def holds_any(self, piece: RecordedSlice, wanted: Numbers) -> bool | None:
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

    def write(self, piece: RecordedSlice, hashes: Iterable[Numbers]) -> None:
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

    def _sum_before(self, piece: RecordedSlice) -> int:
        # binds the file to its slice and key
        return zlib.crc32(self._path(piece).name.encode())

    def keep_only(self, slices: Sequence[RecordedSlice]) -> None:
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


# --- hashes that come from workers -----------------------------------------------------------------


def leave_hashes(
    batches: Iterator[pa.RecordBatch], ends: tuple[int, ...], folder: str
) -> Iterator[pa.RecordBatch]:
    """A task's rows of offset and hash, as a new file for each slice that has some; says which, and how many.

    `ends` are the last offsets of the slices, ascending. Whatever lies behind the last one is in none.
    """
    import pyarrow as pa  # imported on the worker

    paths: dict[int, Path] = {}
    rows: dict[int, int] = {}
    for batch in batches:
        offsets, hashes = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        numbers = np.searchsorted(ends, offsets)
        for number in map(int, np.unique(numbers)):
            path = paths.setdefault(number, Path(folder) / f"keys-{uuid.uuid4().hex}")
            own = hashes[numbers == number]
            rows[number] = rows.get(number, 0) + len(own)
            with path.open("ab") as stream:
                own.astype("<i8").tofile(stream)
    for number, path in paths.items():
        yield pa.RecordBatch.from_pylist([{"slice": number, "path": str(path), "rows": rows[number]}])


def left_hashes(paths: Sequence[str]) -> Iterator[Numbers]:
    """The hashes that tasks have left in files, a piece at a time."""
    for path in paths:
        with Path(path).open("rb") as stream:
            while len(part := np.fromfile(stream, dtype="<u8", count=PIECE_ROWS)):
                yield part


# Inputs of a merge.


@dataclass(frozen=True, slots=True)
class MergeInput:
    """New rows: `ROW_ID` and data columns (event time among them) as physical types."""

    frame: DataFrame
    schema: ds.DataSchema
    """Data columns, without system columns other than event time (and the operation, where it is given)."""
    vocabulary: DatasetVocabulary
    file: str = ""


_COPY, _DIFFERS = "__odfchain_copy", "__odfchain_differs"
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 6, 60


def refuse_null_keys(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """The same rows, or a failed task where every part of a key is null."""
    from pyspark.sql import functions as F

    failure = F.raise_error(F.lit(marker("null-key"))).cast("boolean")
    is_null = all_of(col(name).isNull() for name in key)
    return frame.where(F.when(is_null, failure).otherwise(F.lit(True)))


def one_row_per_key(
    new: MergeInput, key: tuple[str, ...], duplicates: DuplicateKeys
) -> tuple[DataFrame, Observation]:
    """One row of the input for each key, or a failed task where a key is null."""
    # only repeated rows are counted here: comparing all values of rows whose keys differ would take a third
    # of a merge; `check_repeated` compares them if there are any
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    copy = F.row_number().over(_same_key(key, last=duplicates is DuplicateKeys.LAST))
    numbered = refuse_null_keys(new.frame, key).withColumn(_COPY, copy)
    observed = numbered.observe(seen, F.count_if(col(_COPY) > 1).alias("repeated"))
    return observed.where(col(_COPY) == 1).drop(_COPY), seen


def check_repeated(new: MergeInput, key: tuple[str, ...], duplicates: DuplicateKeys) -> tuple[int, int]:
    """(rows left out that are copies of the one that is kept, rows left out that differ from it).

    Raises:
        BadInputError: rows of one key differ, and no option says which counts.
    """
    from pyspark.sql import functions as F

    numbered = _numbered(new, key, last=duplicates is DuplicateKeys.LAST)
    copy = F.count_if((col(_COPY) > 1) & ~col(_DIFFERS))
    ((copies, others),) = numbered.agg(copy, F.count_if(col(_DIFFERS))).collect()
    if others and duplicates is DuplicateKeys.REFUSE and (refusal := first_bad_key(new, key)) is not None:
        raise refusal
    return copies, others


def _same_key(key: tuple[str, ...], *, last: bool) -> WindowSpec:
    from pyspark.sql import Window

    return Window.partitionBy(*[col(name) for name in key]).orderBy(
        col(ROW_ID).desc() if last else col(ROW_ID).asc()
    )


def _numbered(new: MergeInput, key: tuple[str, ...], *, last: bool) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    same = _same_key(key, last=last)
    numbered = new.frame.withColumn(_COPY, F.row_number().over(same))
    others = [comparable(col(f.name), physical_type(f.type)) for f in new.schema.fields if f.name not in key]
    if not others:
        return numbered.withColumn(_DIFFERS, F.lit(False))
    upto = same.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    values = F.struct(*[value.alias(f"v{index}") for index, value in enumerate(others)])
    return numbered.withColumn(_DIFFERS, ~values.eqNullSafe(F.first(values).over(upto)))


def first_bad_key(new: MergeInput, key: tuple[str, ...], *, unique: bool = True) -> BadInputError | None:
    """The first null key, or (`unique`) key of two rows that differ, as an error, for a failed job."""

    def row_number(row_id: int) -> int:
        return new.frame.where(col(ROW_ID) < row_id).count() + 1

    null = new.frame.where(all_of(col(n).isNull() for n in key)).orderBy(ROW_ID).limit(1).collect()
    if null:
        what = f"column `{key[0]}` is null" if len(key) == 1 else f"({', '.join(key)}) has only nulls"
        return BadInputError(f"primary key {what}", file=new.file, row=row_number(null[0][ROW_ID]))
    if not unique:
        return None
    differing = _numbered(new, key, last=False).where(_DIFFERS)
    twice = differing.orderBy(ROW_ID).limit(1).collect()
    if not twice:
        return None
    of_key = all_of(col(name).eqNullSafe(twice[0][name]) for name in key)
    (first,) = new.frame.where(of_key).orderBy(ROW_ID).limit(1).collect()
    there, here = (_texts(new, row[ROW_ID]) for row in (first, twice[0]))
    others = [n for n in new.schema.names if n not in key and there[n] != here[n]]
    return BadInputError(
        f"primary key ({_listed(here, key)}) occurs twice: also in row {row_number(first[ROW_ID]):,} "
        f"with other values ({_listed(there, others)} there, {_listed(here, others)} here)",
        file=new.file,
        row=row_number(twice[0][ROW_ID]),
        hint="--duplicate-keys first or last keeps one of them",
    )


def _texts(new: MergeInput, row_id: int) -> dict[str, str]:
    # by Spark, because Python would write times in the local zone
    texts = [_text(col(f.name), f).alias(f.name) for f in new.schema.fields]
    (row,) = new.frame.where(col(ROW_ID) == row_id).select(*texts).collect()
    texts_only = {f.name for f in new.schema.fields if isinstance(f.value_type, ds.DataTypeString)}
    return {name: repr(row[name]) if name in texts_only else str(row[name]) for name in new.schema.names}


def _text(value: Column, field: ds.DataField) -> Column:
    from pyspark.sql import functions as F

    match field.value_type:
        case ds.DataTypeBinary(fixed_length=16):
            return F.regexp_replace(F.lower(F.hex(value)), "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")
        case ds.DataTypeBinary():
            return F.hex(value)
    return value.cast("string")


def _listed(texts: dict[str, str], names: Sequence[str]) -> str:
    shown = [f"{name}={cut(texts[name], _SHOWN_CHARACTERS)}" for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN_COLUMNS else "")


def notes_on_duplicates(copies: int, others: int, duplicates: DuplicateKeys) -> tuple[str, ...]:
    """Notes on rows of an input that were left out."""
    notes = []
    if copies:
        notes.append(f"rows that are copies of others in every column: {copies:,}; each is recorded once")
    if others:
        notes.append(
            f"rows with a key of another row and other values: {others:,}; the {duplicates.value} was kept"
        )
    return tuple(notes)


# When and how a write makes a state checkpoint (RFC-018).


@dataclass(frozen=True, slots=True)
class LookBack:
    """The recorded rows that the next merge compares with."""

    recorded: Callable[[], RecordedRows]
    checkpoint: Checkpoint | None
    """The new checkpoint of the block; of several blocks, the last one's."""
    carried: Checkpoint | None = None
    """The checkpoint of the blocks before the last one."""
    staged: StagedFile | None = None
    """The file of a checkpoint that was just made."""


def read_recorded(
    session: SparkSession, recorded: RecordedRows, fields: tuple[ds.DataField, ...]
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


def recorded_rows(
    dataset: DatasetFiles, state: DatasetState, session: Callable[[], SparkSession]
) -> RecordedRows:
    """The recorded rows that a merge compares with; a checkpoint stays in the store if it can."""
    if state.checkpoint is None or not dataset.checkpoints.on_demand:
        return RecordedRows.of(dataset, state)
    files = files_of(session())
    if files is None:
        return RecordedRows.of(dataset, state)

    def describe(key: str) -> StateCheckpoint | None:
        return task_results(session(), functools.partial(_describe, files=files, key=key), 1)[0]

    return RecordedRows.of(dataset, state, describe)


def _describe(_: int, files: ExecutorFiles, key: str) -> StateCheckpoint | None:
    found = read_description(files.bring(key), key)
    return None if found is None else dataclasses.replace(found, path=None)


def look_back(
    session: Callable[[], SparkSession],
    recorded: Callable[[], RecordedRows],
    checkpoint: Checkpoint | None,
    new: tuple[RecordedSlice, ...],
    strategy: MergeStrategy,
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    staging: Path,
    place: str = "",
    since: float = 0.0,
) -> LookBack:
    """The rows to compare with once `new` is recorded; a due state checkpoint is written in `staging`.

    `place` is the prefix of checkpoints' keys, for executors that see no `staging`; none is before `since`.
    """

    def extended() -> RecordedRows:
        before = recorded()
        return dataclasses.replace(before, slices=(*before.slices, *new))

    if checkpoint is None and not strategy.KEEPS_STATE:
        return LookBack(extended, None)
    after = extended()
    # our own checkpoint stays in force for blocks that make none, because it says up to where it counts; one
    # of another tool does not, because its maker has not seen the new rows
    kept = checkpoint if after.checkpoint is not None else None
    key = strategy.primary_key
    if not strategy.KEEPS_STATE or not checkpoint_is_due(after.for_state(key)):
        return LookBack(lambda: after, kept, carried=kept)
    made, staged, size = _write(session(), after.for_state(key), key, schema, vocabulary, staging, place)
    named = Checkpoint(physical_hash=staged.physical_hash, size=size)
    staged = dataclasses.replace(staged, since=since)
    return LookBack(lambda: dataclasses.replace(after, checkpoint=made), named, carried=kept, staged=staged)


def _write(
    session: SparkSession,
    recorded: RecordedRows,
    key: tuple[str, ...],
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    staging: Path,
    place: str,
) -> tuple[StateCheckpoint, StagedFile, int]:
    fields = tuple(f for f in schema.fields if f.name != vocabulary.system_time_column)
    rows = read_recorded(session, recorded, fields)
    assert rows is not None  # noqa: S101 - the slice that made the checkpoint due
    last = recorded.slices[-1].offsets.end
    spec = StateSpec(
        schema=slice_schema(ds.DataSchema(fields=fields)).serialize().to_pybytes(),
        vocabulary=vocabulary,
        metadata={METADATA_KEY: describe(key, last)},
        folder=str(staging),
    )
    order = [*(col(name).asc_nulls_first() for name in key), col(vocabulary.offset_column).asc()]
    files = files_of(session)
    into = None if files is None else StoreFolder(files, place)
    facts = write_state(latest_rows(rows, key, vocabulary), order, spec, into)
    path = Path(facts.path) if facts.path else None
    return (
        StateCheckpoint(path, key, last, facts.rows, f"{place}/{facts.physical_hash}"),
        StagedFile(path, Multihash.parse(facts.physical_hash)),
        facts.size,
    )


# Slices that may hold a key of the input; others are not read (RFC-032). A ledger checks every row's key
# against all recorded ones, so the sorted key hashes of each slice are kept in a private file. A missing or
# damaged file is made again from the slice, so results never depend on it.

INDEXED_ROWS = 500_000
"""Recorded rows that are worth it; reading the keys of fewer takes a fraction of a second."""

LARGEST_INPUT = 8 << 20
"""Size of a file whose keys are looked up [bytes]; of a larger one they are read twice for too little."""

_ROWS_AT_ONCE = 4_000_000
_NO_ORDER = (ds.DataTypeList, ds.DataTypeMap, ds.DataTypeStruct)


def only_relevant(
    session: SparkSession,
    new: MergeInput,
    key: tuple[str, ...],
    recorded: RecordedRows,
    schema: ds.DataSchema,
    offset_column: str,
    staging: Path,
) -> RecordedRows:
    """The recorded rows without slices that have no key of the input, by their footers or by its hashes."""
    # executors leave hashes in `staging`; in memory are those of one input and a piece of a slice
    fields = tuple(f for name in key if (f := schema.field(name)) is not None)
    if (
        recorded.folder is None
        or sum(piece.rows for piece in recorded.slices) < INDEXED_ROWS
        or len(fields) != len(key)
        or any(isinstance(f.value_type, _NO_ORDER) for f in fields)
    ):
        return recorded
    files = KeyFiles(recorded.folder, _kind_of(fields))
    first = col(key[0]).cast(physical_type(fields[0].type)).alias("first")
    asked = new.frame.select(_hash_of(fields).alias("hash"), first).toArrow()
    wanted = np.unique(_unsigned(asked.column("hash").to_numpy()))
    condition = with_any_of(quoted(key[0]), asked.column("first"), _arrow_type(fields[0]))
    committed = [piece for piece in recorded.slices if piece.name is not None]
    files.keep_only(committed)
    kept: set[RecordedSlice] = set(recorded.slices).difference(committed)
    missing = []
    for piece in committed:
        if not piece.may_hold(condition):
            continue
        known = files.holds_any(piece, wanted)
        if known is None:
            missing.append(piece)
        elif known:
            kept.add(piece)
    offset = schema.field(offset_column)
    assert offset is not None  # noqa: S101 - a slice was recorded
    for group in _grouped(missing):
        _make(session, group, (offset, *fields), files, staging)
        # a file that could not be kept says nothing, so its slice is read
        kept.update(piece for piece in group if files.holds_any(piece, wanted) is not False)
    return dataclasses.replace(recorded, slices=tuple(piece for piece in recorded.slices if piece in kept))


def _kind_of(fields: Sequence[ds.DataField]) -> str:
    text = repr([(f.name, f.value_type) for f in fields])
    return hashlib.sha3_256(text.encode()).hexdigest()[:16]


def _hash_of(fields: Sequence[ds.DataField]) -> Column:
    # equal keys have equal hashes: nulls, -0.0 and NaN are normalised first
    from pyspark.sql import functions as F

    parts = []
    for f in fields:
        value = col(f.name).cast(physical_type(f.type))
        if isinstance(f.value_type, ds.DataTypeFloat16 | ds.DataTypeFloat32 | ds.DataTypeFloat64):
            value = F.when(F.isnan(value), float("nan")).when(value == 0, 0.0).otherwise(value.cast("double"))
        parts.append(value)
    return F.xxhash64(*parts)


def _arrow_type(field: ds.DataField) -> pa.DataType:
    return slice_schema(ds.DataSchema(fields=(field,))).field(0).type


def _unsigned(hashes: Numbers) -> Numbers:
    return np.ascontiguousarray(hashes, dtype=np.int64).view(np.uint64)


def _grouped(slices: Sequence[RecordedSlice]) -> Iterator[list[RecordedSlice]]:
    # slices that are read together have a bounded number of rows
    totals = itertools.accumulate(piece.rows for piece in slices)
    for _, group in itertools.groupby(
        zip(slices, totals, strict=True), key=lambda pair: pair[1] // _ROWS_AT_ONCE
    ):
        yield [piece for piece, _ in group]


def _make(
    session: SparkSession,
    group: list[RecordedSlice],
    fields: tuple[ds.DataField, ...],
    files: KeyFiles,
    staging: Path,
) -> None:
    offset, *key = fields
    rows = read_recorded(session, RecordedRows(tuple(group)), fields)
    assert rows is not None  # noqa: S101 - a slice has rows
    ends = tuple(piece.offsets.end for piece in group)
    leave = functools.partial(leave_hashes, ends=ends, folder=str(staging))
    hashed = rows.select(col(offset.name).cast("bigint").alias("offset"), _hash_of(key).alias("hash"))
    left = hashed.mapInArrow(leave, "slice long, path string, rows long").collect()
    try:
        for number, piece in enumerate(group):
            own = [row for row in left if row["slice"] == number]
            if sum(row["rows"] for row in own) != piece.rows:
                raise BadInputError("it has other offsets than its block says", file=str(piece.locate()))
            files.write(piece, left_hashes([row["path"] for row in own]))
    finally:
        for row in left:
            fsio.remove_quietly(Path(row["path"]))
