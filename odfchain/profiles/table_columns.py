"""Columns of a table of another format for those of a dataset, and whether a slice fits them.

Neither Delta nor Iceberg has unsigned numbers: they become the next larger signed ones. Slices are taken as
they are, so a type that the format's readers do not read from our files is refused with its column; rows
that are written anew are cast instead, where no value changes. Columns may always be null: which of them
may not has changed in the history of old chains. Source: RFC-045.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.errors import OdfchainError, SchemaError, StoreError
from odfchain.odf.arrow_schema import is_uuid
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.slices.footers import ColumnStats, FileStats, quoted
from odfchain.text import first_line, one_line

_NO_SPARK_NAME = set(" ,;{}()\n\t=")
"""Characters that Delta refuses in the names of columns."""


class TableFormat(StrEnum):
    """A format with tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"

    def columns(self, declared: pa.Schema, *, rewritten: bool = False) -> pa.Schema:
        """The columns of a table for these; `rewritten` rows may have another type than in the slices."""
        names: dict[str, str] = {}
        for column in declared:
            if self is TableFormat.DELTA and _NO_SPARK_NAME & set(column.name):
                raise SchemaError(
                    f"column {one_line(column.name)!r}: Delta has no names with spaces or ,;{{}}()="
                )
            same = names.setdefault(column.name.casefold(), column.name)
            if same != column.name:
                both = f"{one_line(same)!r} and {one_line(column.name)!r}"
                raise SchemaError(f"columns {both}: readers of tables ignore case")
        return pa.schema([self._field(column, column.name, rewritten=rewritten) for column in declared])

    def _field(self, field: pa.Field, path: str, *, rewritten: bool) -> pa.Field:
        def inner(child: pa.Field) -> pa.Field:
            return self._field(child, f"{path}.{child.name}", rewritten=rewritten)

        kind = field.type
        if t.is_struct(kind):
            return pa.field(field.name, pa.struct([inner(kind.field(i)) for i in range(kind.num_fields)]))
        if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
            return pa.field(field.name, pa.list_(inner(kind.value_field).with_name("element")))
        if is_uuid(field):
            found = pa.uuid() if self is TableFormat.ICEBERG else pa.binary() if rewritten else None
        else:
            found = self._plain(kind, rewritten=rewritten)
        if found is None:
            hint = None
            if not rewritten and self._plain(kind, rewritten=True) is not None:
                hint = "--rows state writes the rows anew, with a type that fits where no value changes"
            raise SchemaError(
                f"column {one_line(path)!r}: {self.title()} does not read {kind} from slices", hint=hint
            )
        return pa.field(field.name, found)

    def _plain(self, kind: pa.DataType, *, rewritten: bool) -> pa.DataType | None:
        if t.is_integer(kind):
            small = {"int8": pa.int8(), "int16": pa.int16(), "uint8": pa.int16()}
            wide = {"uint32": pa.int64(), "int64": pa.int64(), "uint64": pa.int64()}
            found = {**wide, **(small if self is TableFormat.DELTA else {})}
            return found.get(str(kind), pa.int32())
        if t.is_timestamp(kind):
            readable = rewritten or kind.unit != "ns"
            return pa.timestamp("us", "UTC" if kind.tz else None) if readable else None
        if t.is_time(kind):
            readable = self is TableFormat.ICEBERG and (rewritten or kind == pa.time64("us"))
            return pa.time64("us") if readable else None
        if t.is_float16(kind):
            return pa.float32() if rewritten else None
        if t.is_decimal(kind):
            return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
        if t.is_fixed_size_binary(kind):
            return kind if self is TableFormat.ICEBERG else pa.binary()
        same = t.is_boolean(kind) or t.is_float32(kind) or t.is_float64(kind)
        texts = {pa.large_string(): pa.string(), pa.string(): pa.string()}
        others = {pa.binary(): pa.binary(), pa.large_binary(): pa.binary()}
        days = {pa.date32(): pa.date32(), pa.date64(): pa.date32()}
        return kind if same else {**texts, **others, **days}.get(kind)


# Column statistics for table formats: only bounds by which no reader can skip a matching row.
# Long texts are left out, and floats have no bounds, because NaN is greater than every number in Spark. In
# Delta a file has bounds of all listed columns or of none, because some readers take a missing bound as one
# that nothing matches. Times are milliseconds there, and decimals JSON numbers, which readers may take for
# doubles (RFC-045).

_LONGEST_TEXT = 256


def reported(stats: FileStats, name: str) -> ColumnStats | None:
    """Statistics of a table's column in a footer."""
    return stats.column(quoted(name))


def exact_bounds(stats: ColumnStats, kind: pa.DataType) -> tuple[Any, Any] | None:
    """(least, greatest) as Iceberg has them: days, microseconds, numbers, texts, decimals; None: unknown."""
    low, high = stats.low, stats.high
    if low is None or high is None:
        return None
    if t.is_timestamp(kind) and isinstance(low, int) and isinstance(high, int):
        return low // 1000, -(-high // 1000)
    if t.is_string(kind) and isinstance(low, str) and isinstance(high, str):
        return (low, high) if max(len(low.encode()), len(high.encode())) <= _LONGEST_TEXT else None
    return (low, high) if t.is_integer(kind) or t.is_date32(kind) or t.is_decimal(kind) else None


# Table versions, and errors of the libraries.

_LIBRARIES = ("deltalake", "_internal", "pyiceberg", "sqlalchemy", "sqlite3")
_PLAIN = (Exception, ValueError, RuntimeError)
"""Errors of the libraries other than their own classes; other kinds are bugs of ours."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table: its columns, and the data file that is added or replaces all others."""

    hash: Multihash
    block: MetadataBlock
    columns: pa.Schema
    name: str
    """Of the file in the table's folder `data`."""
    source: Path
    """The path of its content."""
    stats: FileStats

    @property
    def facts(self) -> Mapping[str, str]:
        """The version's own metadata."""
        return {
            "odf.blockHash": str(self.hash),
            "odf.sequenceNumber": str(self.block.sequence_number),
            "odf.systemTime": str(self.block.system_time),
        }


@contextmanager
def library_errors(place: Path) -> Iterator[None]:
    """Translate errors of a format's library into the project's.

    Raises:
        StoreError: the library failed.
    """
    try:
        yield
    except (OdfchainError, MemoryError):
        raise
    except Exception as error:
        known = type(error) in _PLAIN or isinstance(error, OSError)
        if not known and type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        raise StoreError(f"{place}: {type(error).__name__}: {first_line(error)}") from error
