"""Which slices may hold a key of an input: the others need not be read (RFC-032).

A ledger asks of every row whether its key was ever seen. For each recorded slice the hashes of its keys are
kept in order in a private file; a slice that has none of the input's hashes has none of its keys. Hashes that
are missing or damaged are made again from the slice, so what is recorded never depends on these files.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odfchain.codec.arrow import slice_schema
from odfchain.digest.row_hash import Numbers
from odfchain.errors import BadInputError
from odfchain.ingest.checkpoint import read_recorded
from odfchain.ingest.hashed_keys import KeyFiles, leave_hashes, left_hashes
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
    """The recorded rows without slices that have no key of the input, by their footers or by its hashes.

    Workers leave hashes in `staging`; this process holds one input's and a piece of a slice's.
    """
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
    return slice_schema(ds.DataSchema(fields=(field,))).field(0).type


def _unsigned(hashes: Numbers) -> Numbers:
    return np.ascontiguousarray(hashes, dtype=np.int64).view(np.uint64)


def _grouped(slices: Sequence[RecordedSlice]) -> Iterator[list[RecordedSlice]]:
    """Slices that are read together, of a bounded number of rows where one alone has no more."""
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
    """Make the files of these slices."""
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
