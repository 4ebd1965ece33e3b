"""The one way to read Parquet: bounded before it is decoded, one error for all that may be wrong with it."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from odfchain.errors import BadInputError, SchemaError
from odfchain.odf.arrow_schema import slice_schema, to_arrow, without_extensions
from odfchain.odf.identity import Multihash
from odfchain.odf.logical_hash import LogicalDigest, NullRule
from odfchain.odf.schema import DataSchema
from odfchain.slices.bounds import open_checked, rows_at_a_time
from odfchain.text import first_line, one_line

# Values of a slice as Python has them; a file may hold others.

_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Parts of a second in each of Arrow's units."""

# Arrow's errors for values that Python cannot hold: a year after 9999, bytes that are no text, an unknown
# time zone.
_IMPOSSIBLE = (ValueError, OverflowError, KeyError, pa.ArrowException)


def check_values(column: pa.Array, name: str) -> None:
    """Refuse values not of their type: text that is not UTF-8, times outside the years 1 to 9999.

    Raises:
        ValueError: says which column and what is wrong with it.
    """
    try:
        # Parquet and Spark hand on any bytes as text and any number as a time; other readers refuse the file
        # full validation looks at every value: UTF-8, and digits of decimals
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        wrong = "a text is not UTF-8" if "UTF8" in str(error) else one_line(str(error))
        raise ValueError(f"column `{one_line(name)}`: {wrong}") from None
    for leaf in _leaves(column):
        bounds = _bounds(leaf.type)
        if bounds is None or leaf.null_count == len(leaf):
            continue
        range_ = pc.min_max(leaf.cast(pa.int32()) if leaf.type.bit_width == 32 else leaf.cast(pa.int64()))
        for wrong in (range_["min"].as_py(), range_["max"].as_py()):
            if not bounds[0] <= wrong <= bounds[1]:
                raise ValueError(
                    f"column `{one_line(name)}`: {wrong} is no {leaf.type} of the years 1 to 9999"
                )


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The arrays without members that a column consists of, without the values below a null."""
    if t.is_struct(column.type):
        for member in column.flatten():
            yield from _leaves(member)
    elif t.is_map(column.type):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif t.is_list(column.type) or t.is_large_list(column.type) or t.is_fixed_size_list(column.type):
        yield from _leaves(column.flatten())
    else:
        yield column


def _bounds(data_type: pa.DataType) -> tuple[int, int] | None:
    """The smallest and the largest number of a day or time; None for other types."""
    if t.is_date32(data_type):
        return _FIRST_DAY, _LAST_DAY
    if t.is_date64(data_type):
        return _FIRST_DAY * 86_400_000, (_LAST_DAY + 1) * 86_400_000 - 1
    if t.is_timestamp(data_type):
        parts = PER_SECOND[data_type.unit]
        return _FIRST_DAY * 86_400 * parts, (_LAST_DAY + 1) * 86_400 * parts - 1
    return None


def plain_value(scalar: pa.Scalar) -> Any:
    """The value; of one that Python cannot hold, a text that says so."""
    try:
        return scalar.as_py()
    except _IMPOSSIBLE:
        number = getattr(scalar, "value", None)
        return f"{number if isinstance(number, int) else 'a value'} that is no {scalar.type}"


Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


class ParquetSource:
    """An open Parquet file; its footer is within bounds, its rows are examined before they are decoded."""

    def __init__(self, path: Path, file: pq.ParquetFile) -> None:
        self._path = path
        self._file = file
        self._schema = without_extensions(file.schema_arrow)
        self._plain = file.schema_arrow.types == self._schema.types

    @property
    def schema_arrow(self) -> pa.Schema:
        """The columns as Arrow reads them; UUIDs are 16 bytes, and their fields are marked."""
        return self._schema

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer."""
        return self._file.metadata

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        groups: Sequence[int] | None = None,
        most_rows: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows (of some row groups), a bounded number of bytes at a time; none is empty."""
        with _readable(self._path):
            rows = rows_at_a_time(self._path, groups)
            chosen = {"columns": None if columns is None else list(columns)}
            found = self._file.iter_batches(min(rows, most_rows or rows), row_groups=groups, **chosen)
        while True:
            with _readable(self._path):
                batch = next(found, None)
                if batch is None:
                    return
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    check_values(column, name)
            if batch.num_rows:
                yield batch if self._plain else self._without_extensions(batch)

    def _without_extensions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with _readable(self._path):
            return batch.cast(without_extensions(batch.schema))

    def groups_of(self, first: int, last: int) -> tuple[list[int], int]:
        """(the row groups that hold the rows `[first; last]`, the rows before them)."""
        groups, before, position = [], 0, 0
        for index in range(self.metadata.num_row_groups):
            count = self.metadata.row_group(index).num_rows
            if position + count <= first:
                before += count
            elif position <= last:
                groups.append(index)
            position += count
        return groups, before

    def rows_between(self, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows `[first; last]`, counted from 0; only the row groups that hold them are decoded."""
        groups, position = self.groups_of(first, last)
        kept: list[pa.RecordBatch] = []
        if groups:
            for batch in self.batches(columns, groups=groups):
                low, high = max(first - position, 0), min(last + 1 - position, batch.num_rows)
                if low < high:
                    # a copy: a window would keep the whole batch in memory
                    kept.append(
                        batch.take(pa.array(range(low, high))) if high - low < batch.num_rows else batch
                    )
                position += batch.num_rows
                if position > last:
                    break
        if kept:
            return pa.Table.from_batches(kept)
        return pa.schema([f for f in self.schema_arrow if columns is None or f.name in columns]).empty_table()


@contextlib.contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[ParquetSource]:
    """A Parquet file of anybody."""
    with _readable(path):
        file = open_checked(path, **options)
    with file:
        with _readable(path):  # types that Arrow cannot express are found here
            source = ParquetSource(path, file)
        yield source


def read_footer(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    """(the footer of a Parquet file, its columns as Arrow reads them); errors as `open_parquet`."""
    with _readable(path), open_checked(path) as file:
        return file.metadata, file.schema_arrow


def data_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a bounded number at a time."""
    with open_parquet(path) as file:
        yield from file.batches()


def fitted(rows: Rows, schema: pa.Schema) -> Rows:
    """The rows in the columns and types of a schema; a column that they do not have yet is null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)


def read_own(path: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a file that this workspace made for itself, and hashed; by a schema, as `fitted`."""
    with _readable(path):
        try:
            found = pq.read_table(path, columns=schema.names)
        except pa.ArrowInvalid:  # a column came later
            with pq.ParquetFile(path) as file:
                present = file.schema_arrow.names
            found = pq.read_table(path, columns=[name for name in schema.names if name in present])
        return found if found.schema.equals(schema) else fitted(found, schema)


def check_parquet(path: Path) -> None:
    """Nothing when all rows of a file may be decoded, by whichever reader."""
    with _readable(path):
        rows_at_a_time(path)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise BadInputError(f"not a readable Parquet file: {first_line(error)}", file=str(path)) from None


# The logical hash of a Parquet file, a bounded number of bytes at a time.


def hash_parquet(
    path: Path,
    *,
    null_rule: NullRule = "correct",
    executor: Executor | None = None,
    schema: pa.Schema | None = None,
) -> tuple[Multihash, int]:
    """(logical hash, number of records) of a Parquet file of anybody; in a `schema`, if one is given."""
    with open_parquet(path) as file:
        digest = LogicalDigest(schema or file.schema_arrow, null_rule=null_rule, executor=executor)
        rows = 0
        for batch in file.batches():
            digest.update(batch if schema is None else batch.cast(schema))
            rows += batch.num_rows
    return digest.finish(), rows


def other_rule(path: Path, recorded: Multihash, declared: DataSchema | None) -> str | None:
    """By which other rule a file has the recorded logical hash, as words; None where by none."""
    if hash_parquet(path, null_rule="reference")[0] == recorded:
        return "follows the reference implementation's rule for null structs"
    if declared is None:
        return None
    with contextlib.suppress(pa.ArrowException, ValueError, SchemaError):  # other columns, or finer times
        # this project once hashed times of day in seconds as declared, not as Parquet gives them back
        # (RFC-012)
        schema = to_arrow(declared)
        if schema != slice_schema(declared) and hash_parquet(path, schema=schema)[0] == recorded:
            return "is that of the declared types, where Parquet keeps others"
    return None
