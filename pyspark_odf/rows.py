"""Rows of slices as Spark's tasks hand them over: hashed, decoded within bounds, in Spark's Arrow types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as at
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from odfchain.errors import ObjectCorruptedError
from odfchain.odf.arrow_schema import to_arrow
from odfchain.query.resolved_tables import CheckedSlices
from odfchain.slices.reader import ParquetSource, open_parquet
from odfchain.slices.state import SliceFile, state
from odfchain.slices.writer import ROW_GROUP_ROWS
from odfchain.transfer.reading import private_folder
from odfchain.transfer.slice_files import DataObject
from pyspark_odf.pinned import Pinned

MOST_TASKS = 10_000
_SPLIT_BYTES = 64 << 20
"""Slices of twice this size are read by several tasks, where they need not be brought."""
_BATCH_ROWS = 65_536
_CHECKED = CheckedSlices()
"""What this process has hashed: Spark's workers stay for many tasks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows `[low, high)` of a slice, counted from its first."""

    item: DataObject
    low: int
    high: int


def pieces_of(pinned: Pinned) -> list[Piece]:
    """All rows, slice by slice; large slices at hand in pieces."""
    found = []
    for item in pinned.slices:
        rows = rows_in(item)
        parts = item.size // _SPLIT_BYTES if pinned.origin.folder or pinned.origin.cache else 1
        step = rows if parts < 2 else -(-rows // parts // ROW_GROUP_ROWS) * ROW_GROUP_ROWS
        found += [Piece(item, low, min(low + step, rows)) for low in range(0, rows, step)]
    return found


def tasks_of(pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """The pieces for each task: one, or several neighbours where there would be too many tasks."""
    each = -(-len(pieces) // MOST_TASKS) or 1
    return [tuple(pieces[at : at + each]) for at in range(0, len(pieces), each)]


def rows_in(item: DataObject) -> int:
    """How many rows a slice has."""
    return item.offsets.count if item.offsets is not None else 0


def read_pieces(
    pinned: Pinned,
    pieces: Sequence[Piece],
    wanted: StructType,
    keeps: Callable[[Any], bool] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of some pieces; `keeps` says of a row group's footer whether it may hold what is looked for.

    Raises:
        SliceNotFoundError, ObjectCorruptedError, BadInputError, OversizedInputError: naming the slice.
        TransferError: it cannot be brought.
    """
    convert = _Conversion(pinned, wanted)
    for piece in pieces:
        with _paths(pinned, [piece.item]) as (path,), open_parquet(path) as file:
            if file.metadata.num_rows != rows_in(piece.item):
                raise ObjectCorruptedError(
                    f"{path}: it has {file.metadata.num_rows:,} rows, its block says {rows_in(piece.item):,}"
                )
            yield from (convert(batch) for batch in _batches(file, piece, convert.columns_in(file), keeps))


def _batches(
    file: ParquetSource, piece: Piece, columns: list[str], keeps: Callable[[Any], bool] | None
) -> Iterator[pa.RecordBatch]:
    groups, position = file.groups_of(piece.low, piece.high - 1)
    for group in groups:
        metadata = file.metadata.row_group(group)
        at, position = position, position + metadata.num_rows
        if keeps is not None and not keeps(metadata):
            continue
        for batch in file.batches(columns, groups=[group]):
            low, high = max(piece.low - at, 0), min(piece.high - at, batch.num_rows)
            at += batch.num_rows
            if low < high:
                yield batch.slice(low, high - low)


def read_state_rows(pinned: Pinned, wanted: StructType) -> Iterator[pa.RecordBatch]:
    """The rows in force, by the one definition of them; all slices in one task. Errors as `read_pieces`."""
    declared = to_arrow(pinned.declared)
    columns = pa.schema([declared.field(name) for name in wanted.fieldNames()])
    convert = _Conversion(pinned, wanted)
    with _paths(pinned, pinned.slices) as paths:
        slices = [
            SliceFile(path, pinned.vocabulary, item.offsets)
            for path, item in zip(paths, pinned.slices, strict=True)
            if item.offsets is not None
        ]
        for batch in state(slices, pinned.key, columns, net=True).to_batches(_BATCH_ROWS):
            yield convert(batch)


@contextmanager
def _paths(pinned: Pinned, items: Sequence[DataObject]) -> Iterator[list[Path]]:
    """The files of slices, for as long as they are read."""
    with private_folder() as private:
        files = pinned.origin.without_chain(private)
        verify = pinned.options.verify
        pinned.origin.bring(files, items, verify=verify)
        # what was brought into the private folder was hashed on its way
        again = verify and (pinned.origin.folder is not None or pinned.origin.cache is not None)
        yield [_CHECKED.path(files, item.key.name, verify=again) for item in items]


class _Conversion:
    """From batches of a slice to batches that equal what Spark expects, to the field."""

    def __init__(self, pinned: Pinned, wanted: StructType) -> None:
        self._target = to_arrow_schema(wanted, timezone="UTC")
        self._declared = to_arrow(pinned.declared)
        self._offset = pinned.vocabulary.offset_column

    def columns_in(self, file: ParquetSource) -> list[str]:
        """What is read: without any column the number of rows is unknown."""
        present = file.schema_arrow.names
        return [name for name in self._target.names if name in present] or [self._offset]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self._target:
            if field.name in batch.schema.names:
                exact = batch.column(field.name).cast(self._declared.field(field.name).type)
                columns.append(carried(exact, field.type))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self._target)


def carried(column: pa.Array, target: pa.DataType) -> pa.Array:
    """The values in the type in which Spark carries them.

    Raises:
        pyarrow.ArrowException: a value does not fit.
    """
    if column.type == target:
        return column
    if at.is_time32(column.type):
        return column.cast(pa.int32()).cast(target)
    if at.is_time64(column.type) or at.is_duration(column.type):
        return column.cast(pa.int64()).cast(target)
    if at.is_null(column.type):
        return pa.nulls(len(column), target)
    if at.is_timestamp(column.type):
        return column.cast(target, safe=False)  # of nanoseconds Spark has the microseconds
    if not at.is_nested(column.type):
        return column.cast(target)
    column = column.take(pa.array(range(len(column)), pa.int64()))  # without what lies outside a window
    if at.is_struct(column.type):
        parts = [carried(column.field(i), field.type) for i, field in enumerate(target)]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=column.is_null())
    if at.is_map(column.type):
        keys, items = carried(column.keys, target.key_type), carried(column.items, target.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=target, mask=column.is_null())
    if at.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    return pa.ListArray.from_arrays(
        column.offsets, carried(column.values, target.value_type), type=target, mask=column.is_null()
    )
