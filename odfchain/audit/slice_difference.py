"""Where two slices differ first: a column, or a row and the first column of it that differs.

Two values are the same when they hash the same, as the logical hash sees them: by type, value and place, not
by encoding; a NaN is itself. Both files are read side by side in batches, so memory does not grow with them,
and within a batch the row is found by halving. Source: specification "Physical and Logical Hashes".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odfchain.digest.logical import LogicalDigest, hash_table
from odfchain.errors import SchemaError
from odfchain.ids.multihash import Multihash
from odfchain.slices.reader import ParquetSource, open_parquet
from odfchain.slices.values import plain_value
from odfchain.text import one_line

_BATCH_ROWS = 8_192
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference; `offset` is None when already the columns differ, `column` when a row is missing.

    `recorded` and `replayed` are values, types or column names as text on one line; None is what is missing.
    """

    offset: int | None
    column: str | None
    recorded: str | None
    replayed: str | None

    def __str__(self) -> str:
        if self.column is not None:
            where = f"column `{one_line(self.column, _SHOWN_CHARACTERS)}`"
        else:
            where = "columns" if self.offset is None else "record"
        if self.offset is not None:
            where = f"offset {self.offset}, {where}"
        return f"{where}: recorded {self.recorded or 'nothing'}, replayed {self.replayed or 'nothing'}"


def first_difference(recorded: Path, replayed: Path, *, offset_column: str) -> Difference | None:
    """The first difference between two slices; None when their columns and records are the same.

    Offsets are those of `recorded`, and where it has none left, of `replayed`.
    """
    with open_parquet(recorded) as one, open_parquet(replayed) as other:
        found = _columns(one.schema_arrow, other.schema_arrow)
        if found is not None:
            return found
        position = 0
        for left, right in _side_by_side(one, other):
            if left is None or right is None:
                rest = left if right is None else right
                if rest is None:
                    return None
                at = _offset(rest, 0, offset_column, position)
                return Difference(at, None, _row(left), _row(right))
            differs = _in_batch(left, right)
            if differs is not None:
                row, index = differs
                return Difference(
                    _offset(left, row, offset_column, position),
                    left.schema.field(index).name,
                    shown(left.column(index)[row]),
                    shown(right.column(index)[row]),
                )
            position += left.num_rows
    raise AssertionError("the last pair has an end")  # pragma: no cover


# --- columns ---------------------------------------------------------------------------------------


def _columns(one: pa.Schema, other: pa.Schema) -> Difference | None:
    for was in one:
        if was.name not in other.names:
            return Difference(None, was.name, _type(was), None)
        now = other.field(other.get_field_index(was.name))
        if not _same_type(was, now):
            return Difference(None, was.name, _type(was), _type(now))
    for was in other:
        if was.name not in one.names:
            return Difference(None, was.name, None, _type(was))
    if one.names != other.names:
        return Difference(None, None, ", ".join(one.names), ", ".join(other.names))
    return None


def _same_type(one: pa.Field, other: pa.Field) -> bool:
    """Whether values of the two hash alike; a type without a hash is the same as itself only."""
    if one.type == other.type:
        return True
    try:
        first, second = (hash_table(pa.schema([f]).empty_table()) for f in (one, other))
    except SchemaError:
        return False
    return first == second


# --- rows ------------------------------------------------------------------------------------------


def _side_by_side(
    one: ParquetSource, other: ParquetSource
) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
    """Batches of the same rows, and at the end what is left of either (None: nothing)."""
    lefts, rights = (file.batches(most_rows=_BATCH_ROWS) for file in (one, other))
    left = right = None
    while True:
        left = left if left is not None and left.num_rows else _next(lefts)
        right = right if right is not None and right.num_rows else _next(rights)
        if left is None or right is None:
            yield left, right
            return
        count = min(left.num_rows, right.num_rows)
        yield left.slice(0, count), right.slice(0, count)
        left, right = left.slice(count), right.slice(count)


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return next((batch for batch in batches if batch.num_rows), None)


def _in_batch(left: pa.RecordBatch, right: pa.RecordBatch) -> tuple[int, int] | None:
    """(row, index of the column) of the first difference."""
    found: tuple[int, int] | None = None
    end = left.num_rows
    for index in range(left.num_columns):
        row = _first_row(left.column(index), right.column(index), end)
        if row is not None:
            found, end = (row, index), row
    return found


def _first_row(left: pa.Array, right: pa.Array, end: int) -> int | None:
    """The first row before `end` in which two columns differ."""
    if _hash(left.slice(0, end)) == _hash(right.slice(0, end)):
        return None
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        if _hash(left.slice(low, middle - low)) == _hash(right.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _hash(column: pa.Array) -> Multihash | list[object]:
    try:
        digest = LogicalDigest(pa.schema([("", column.type)]))
    except SchemaError:
        return list(column.to_pylist())  # in no slice of ours, but a foreign one may have such a column
    digest.update(pa.record_batch([column], names=[""]))
    return digest.finish()


def _offset(batch: pa.RecordBatch, row: int, column: str, position: int) -> int:
    """The row's offset; its place in the file where it says none."""
    if column in batch.schema.names:
        value = batch.column(batch.schema.get_field_index(column))[row].as_py()
        if isinstance(value, int):
            return value
    return position + row


# --- as text ---------------------------------------------------------------------------------------


def shown(value: pa.Scalar) -> str:
    """A value on one line, shortened."""
    plain = plain_value(value)
    if isinstance(plain, str):
        return one_line(repr(plain[: 2 * _SHOWN_CHARACTERS]), _SHOWN_CHARACTERS)
    if isinstance(plain, bytes):
        return one_line("0x" + plain[:_SHOWN_CHARACTERS].hex(), _SHOWN_CHARACTERS)
    if isinstance(plain, dt.date | dt.time):
        return plain.isoformat()
    return "null" if plain is None else one_line(str(plain), _SHOWN_CHARACTERS)


def _type(field: pa.Field) -> str:
    return one_line(str(field.type), _SHOWN_CHARACTERS)


def _row(batch: pa.RecordBatch | None) -> str | None:
    if batch is None:
        return None
    values = (f"{name}={shown(batch.column(i)[0])}" for i, name in enumerate(batch.schema.names))
    return one_line(", ".join(values), _SHOWN_CHARACTERS)
