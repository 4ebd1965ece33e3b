"""Which slices may hold a key of an input: the others need not be read (RFC-032).

A ledger asks of every row whether its key was ever seen. For each recorded slice the hashes of its keys are
kept in order in a private file; a slice that has none of the input's hashes has none of its keys. Hashes that
are missing or damaged are made again from the slice, so what is recorded never depends on these files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odfchain.codec.arrow import to_arrow
from odfchain.digest.row_hash import Numbers
from odfchain.errors import BadInputError, StoreError
from odfchain.ingest.checkpoint import read_recorded
from odfchain.ingest.merge_input import MergeInput
from odfchain.model import data_schema as ds
from odfchain.repo.recorded import RecordedRows, RecordedSlice
from odfchain.slices.footers import quoted
from odfchain.slices.skipping import with_any_of
from odfchain.spark.columns import col
from odfchain.spark.types import physical_type
from odfchain.store import fsio

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession

INDEXED_ROWS = 500_000
"""Recorded rows that are worth it; reading the keys of fewer takes a fraction of a second."""

LARGEST_INPUT = 8 << 20
"""Size of a file whose keys are looked up [bytes]; of a larger one they are read twice for too little."""

_ROWS_AT_ONCE = 4_000_000
_HEAD = struct.Struct("<8sQ")
_MAGIC = b"odfkeys1"
_NO_ORDER = (ds.DataTypeList, ds.DataTypeMap, ds.DataTypeStruct)


@dataclass(frozen=True, slots=True)
class _KeyFiles:
    """The hashes of the keys of slices, as files of a folder."""

    folder: Path
    kind: str
    """Names the columns of the key and their types."""

    def _path(self, piece: RecordedSlice) -> Path:
        return self.folder / f"{piece.name}.{self.kind}"

    def _head(self, piece: RecordedSlice, hashes: Numbers) -> bytes:
        """What a file of these hashes begins with; that of another slice or key begins otherwise."""
        return _HEAD.pack(_MAGIC, zlib.crc32(hashes.data, zlib.crc32(self._path(piece).name.encode())))

    def read(self, piece: RecordedSlice) -> Numbers | None:
        """The hashes in order, None where there is no whole file of as many."""
        try:
            with self._path(piece).open("rb") as stream:
                head = stream.read(_HEAD.size)
                found = np.fromfile(stream, dtype="<u8", count=piece.rows + 1)
        except OSError:
            return None
        if len(found) != piece.rows or head != self._head(piece, found):
            return None
        return found

    def write(self, piece: RecordedSlice, hashes: Numbers) -> None:
        """Keep them; a disk that takes no more only costs time."""
        try:
            fsio.make_folder(self.folder)
            fsio.replace_file(self._path(piece), self._head(piece, hashes) + hashes.tobytes())
        except StoreError:
            return

    def keep_only(self, slices: Sequence[RecordedSlice]) -> None:
        """Remove what belongs to no slice any more."""
        names = {str(piece.name) for piece in slices}
        for path in self.folder.glob("*.*") if self.folder.is_dir() else ():
            if path.name.partition(".")[0] not in names:
                fsio.remove_quietly(path)


def only_relevant(
    session: SparkSession,
    new: MergeInput,
    key: tuple[str, ...],
    recorded: RecordedRows,
    schema: ds.DataSchema,
    offset_column: str,
) -> RecordedRows:
    """The recorded rows without slices that have no key of the input, by their footers or by its hashes.

    Raises:
        BadInputError: a slice is not as its block says.
        ObjectNotFoundError, ObjectCorruptedError: a slice that has to be read is missing or damaged.
    """
    fields = tuple(f for name in key if (f := schema.field(name)) is not None)
    if (
        recorded.folder is None
        or sum(piece.rows for piece in recorded.slices) < INDEXED_ROWS
        or len(fields) != len(key)
        or any(isinstance(f.value_type, _NO_ORDER) for f in fields)
    ):
        return recorded
    files = _KeyFiles(recorded.folder, _kind_of(fields))
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
        known = files.read(piece)
        if known is None:
            missing.append(piece)
        elif _any_of(wanted, known):
            kept.add(piece)
    offset = schema.field(offset_column)
    assert offset is not None  # noqa: S101 - a slice was recorded
    for group in _grouped(missing):
        for piece, hashes in _made(session, group, (offset, *fields)):
            files.write(piece, hashes)
            if _any_of(wanted, hashes):
                kept.add(piece)
    return dataclasses.replace(recorded, slices=tuple(piece for piece in recorded.slices if piece in kept))


def _kind_of(fields: Sequence[ds.DataField]) -> str:
    text = repr([(f.name, f.value_type) for f in fields])
    return hashlib.sha3_256(text.encode()).hexdigest()[:16]


def _hash_of(fields: Sequence[ds.DataField]) -> Column:
    """A hash by which equal keys are equal: nulls, -0.0 and NaN as they are compared."""
    from pyspark.sql import functions as F

    parts = []
    for f in fields:
        value = col(f.name).cast(physical_type(f.type))
        if isinstance(f.value_type, ds.DataTypeFloat16 | ds.DataTypeFloat32 | ds.DataTypeFloat64):
            value = F.when(F.isnan(value), float("nan")).when(value == 0, 0.0).otherwise(value.cast("double"))
        parts.append(value)
    return F.xxhash64(*parts)


def _arrow_type(field: ds.DataField) -> pa.DataType:
    return to_arrow(ds.DataSchema(fields=(field,))).field(0).type


def _unsigned(hashes: Numbers) -> Numbers:
    return np.ascontiguousarray(hashes, dtype=np.int64).view(np.uint64)


def _any_of(wanted: Numbers, known: Numbers) -> bool:
    places = np.searchsorted(known, wanted)
    inside = places < len(known)
    return bool((known[places[inside]] == wanted[inside]).any())


def _grouped(slices: Sequence[RecordedSlice]) -> Iterator[list[RecordedSlice]]:
    """Slices that are read together, of a bounded number of rows where one alone has no more."""
    totals = itertools.accumulate(piece.rows for piece in slices)
    for _, group in itertools.groupby(
        zip(slices, totals, strict=True), key=lambda pair: pair[1] // _ROWS_AT_ONCE
    ):
        yield [piece for piece, _ in group]


def _made(
    session: SparkSession, group: list[RecordedSlice], fields: tuple[ds.DataField, ...]
) -> Iterator[tuple[RecordedSlice, Numbers]]:
    """The hashes of the keys of each slice, in order."""
    offset, *key = fields
    rows = read_recorded(session, RecordedRows(tuple(group)), fields)
    assert rows is not None  # noqa: S101 - a slice has rows
    table = rows.select(col(offset.name).cast("bigint"), _hash_of(key)).toArrow()
    offsets, hashes = (column.to_numpy() for column in table.columns)
    hashes = _unsigned(hashes)
    for piece in group:
        own = hashes[(offsets >= piece.offsets.start) & (offsets <= piece.offsets.end)]
        if len(own) != piece.rows:
            raise BadInputError("it has other offsets than its block says", file=str(piece.locate()))
        yield piece, np.sort(own)
