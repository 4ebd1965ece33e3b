"""The one way to read Parquet: bounded before it is decoded, one error for all that may be wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.codec.uuids import without_extensions
from odfchain.errors import BadInputError
from odfchain.slices.bounds import open_checked, rows_at_a_time
from odfchain.slices.values import check_values
from odfchain.text import first_line

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
        names = (
            self.schema_arrow.names
            if columns is None
            else [n for n in self.schema_arrow.names if n in set(columns)]
        )
        if kept:
            return pa.Table.from_batches(kept)
        return pa.schema(
            [self.schema_arrow.field(self.schema_arrow.names.index(n)) for n in names]
        ).empty_table()


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
