"""Columns of a table of another format for those of a dataset, and whether a slice fits them.

Neither Delta nor Iceberg has unsigned numbers: they become the next larger signed ones. Slices are taken as
they are, so a type that the format's readers do not read from our files is refused with its column; rows
that are written anew are cast instead, where no value changes. Columns may always be null: which of them
may not has changed in the history of old chains. Source: RFC-045.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.errors import OdfchainError, SchemaError, StoreError
from odfchain.odf.arrow_schema import is_uuid
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.slices.footers import ColumnStats, FileStats, quoted
from odfchain.slices.reader import open_parquet
from odfchain.text import first_line, one_line

_LARGEST = (1 << 63) - 1
_NO_SPARK_NAME = set(" ,;{}()\n\t=")
"""Characters that Delta refuses in the names of columns."""


class TableFormat(StrEnum):
    """A format with tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"


def table_columns(declared: pa.Schema, to: TableFormat, *, rewritten: bool = False) -> pa.Schema:
    """The columns of a table for these; `rewritten` rows may have another type than in the slices.

    Raises:
        SchemaError: the format has no such type, or no such name; says which column.
    """
    names: dict[str, str] = {}
    for column in declared:
        if to is TableFormat.DELTA and _NO_SPARK_NAME & set(column.name):
            raise SchemaError(
                f"column {one_line(column.name)!r}: Delta has no names with spaces or ,;{{}}()="
            )
        same = names.setdefault(column.name.casefold(), column.name)
        if same != column.name:
            both = f"{one_line(same)!r} and {one_line(column.name)!r}"
            raise SchemaError(f"columns {both}: readers of tables ignore case")
    return pa.schema([_field(column, column.name, to, rewritten=rewritten) for column in declared])


def _field(field: pa.Field, path: str, to: TableFormat, *, rewritten: bool) -> pa.Field:
    def inner(child: pa.Field) -> pa.Field:
        return _field(child, f"{path}.{child.name}", to, rewritten=rewritten)

    kind = field.type
    if t.is_struct(kind):
        return pa.field(field.name, pa.struct([inner(kind.field(i)) for i in range(kind.num_fields)]))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.field(field.name, pa.list_(inner(kind.value_field).with_name("element")))
    if is_uuid(field):
        found = pa.uuid() if to is TableFormat.ICEBERG else pa.binary() if rewritten else None
    else:
        found = _plain(kind, to, rewritten=rewritten)
    if found is None:
        hint = None
        if not rewritten and _plain(kind, to, rewritten=True) is not None:
            hint = "--rows state writes the rows anew, with a type that fits where no value changes"
        raise SchemaError(
            f"column {one_line(path)!r}: {to.title()} does not read {kind} from slices", hint=hint
        )
    return pa.field(field.name, found)


def _plain(kind: pa.DataType, to: TableFormat, *, rewritten: bool) -> pa.DataType | None:
    if t.is_integer(kind):
        small = {"int8": pa.int8(), "int16": pa.int16(), "uint8": pa.int16()}
        wide = {"uint32": pa.int64(), "int64": pa.int64(), "uint64": pa.int64()}
        found = {**wide, **(small if to is TableFormat.DELTA else {})}
        return found.get(str(kind), pa.int32())
    if t.is_timestamp(kind):
        readable = rewritten or kind.unit != "ns"
        return pa.timestamp("us", "UTC" if kind.tz else None) if readable else None
    if t.is_time(kind):
        readable = to is TableFormat.ICEBERG and (rewritten or kind == pa.time64("us"))
        return pa.time64("us") if readable else None
    if t.is_float16(kind):
        return pa.float32() if rewritten else None
    if t.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    if t.is_fixed_size_binary(kind):
        return kind if to is TableFormat.ICEBERG else pa.binary()
    same = t.is_boolean(kind) or t.is_float32(kind) or t.is_float64(kind)
    texts = {pa.large_string(): pa.string(), pa.string(): pa.string()}
    others = {pa.binary(): pa.binary(), pa.large_binary(): pa.binary()}
    days = {pa.date32(): pa.date32(), pa.date64(): pa.date32()}
    return kind if same else {**texts, **others, **days}.get(kind)


def check_slice(path: Path, stats: FileStats, columns: pa.Schema, to: TableFormat) -> None:
    """A slice can be read as these columns of a table, every value of it.

    Raises:
        SchemaError: a column has another type there, or a number that is too large; says which one.
    """
    with open_parquet(path) as file:
        present = file.schema_arrow
        for column in columns:
            if column.name not in present.names:
                continue
            there = present.field(column.name)
            (found,) = table_columns(pa.schema([there]), to)
            if not _reads_as(found.type, column.type):
                said = f"column {one_line(column.name)!r} is {there.type} in {path.name}, and {column.type}"
                raise SchemaError(f"{said} in the table")
            known = stats.column(quoted(column.name))
            if not _has_uint64(there.type) or (known is not None and _is_small(known.high)):
                continue
            for batch in file.batches([column.name]):
                if _largest(batch.column(0)) > _LARGEST:
                    what = f"column {one_line(column.name)!r}: a number above 2⁶³ - 1"
                    raise SchemaError(
                        f"{what}, which {to.title()} has no type for", hint=f"it is in {path.name}"
                    )


def _reads_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    if t.is_integer(found) and t.is_integer(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if t.is_struct(found) and t.is_struct(wanted):
        members = {field.name: field.type for field in wanted}
        return all(f.name not in members or _reads_as(f.type, members[f.name]) for f in found)
    if t.is_list(found) and t.is_list(wanted):
        return _reads_as(found.value_type, wanted.value_type)
    return bool(found == wanted)


def _has_uint64(kind: pa.DataType) -> bool:
    if t.is_struct(kind):
        return any(_has_uint64(field.type) for field in kind)
    return _has_uint64(kind.value_type) if t.is_nested(kind) else bool(t.is_uint64(kind))


def _is_small(high: object) -> bool:
    return isinstance(high, int) and high <= _LARGEST


def _largest(column: pa.Array) -> int:
    kind = column.type
    if t.is_struct(kind):
        return max(map(_largest, column.flatten()), default=0)
    if t.is_nested(kind):
        return _largest(column.flatten())
    return int(pc.max(column).as_py() or 0) if t.is_uint64(kind) else 0


def cast_rows(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Rows in the columns of a table, by name.

    Raises:
        SchemaError: a value would change; says in which column.
    """
    found = []
    for column in columns:
        try:
            found.append(rows.column(column.name).cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            said = one_line(str(error).split("\n", maxsplit=1)[0])
            raise SchemaError(f"column {one_line(column.name)!r}: {said}") from None
    return pa.RecordBatch.from_arrays(found, schema=columns)


# Column statistics for table formats: only bounds by which no reader can skip a matching row.
# Long texts are left out, and floats have no bounds, because NaN is greater than every number in Spark. In
# Delta a file has bounds of all listed columns or of none, because some readers take a missing bound as one
# that nothing matches. Times are milliseconds there, and decimals JSON numbers, which readers may take for
# doubles (RFC-045).

_LONGEST_TEXT = 256
_DOUBLE_DIGITS = 15
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader knows [ms since the epoch]."""


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


def delta_columns(columns: pa.Schema) -> Sequence[str]:
    """The columns of a Delta table that its log says anything of."""

    def has_bounds(field: pa.Field) -> bool:
        kind = field.type
        short = t.is_decimal(kind) and kind.precision <= _DOUBLE_DIGITS
        other = t.is_integer(kind) or t.is_date32(kind) or t.is_timestamp(kind) or t.is_string(kind)
        return bool(short or other) and quoted(field.name) == field.name

    return [field.name for field in columns if has_bounds(field)]


def delta_stats(stats: FileStats, columns: pa.Schema, names: Sequence[str]) -> str:
    """The statistics of a file as a Delta log has them, of the columns that it says anything of."""
    # a column that was added later is null in all rows
    nulls: dict[str, int] = {}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    whole = True
    for name in names:
        found, kind = reported(stats, name), columns.field(name).type
        absent = stats.present is not None and name not in stats.present
        if absent or (found is not None and found.null_count == stats.row_count):
            nulls[name] = stats.row_count
            continue
        if found is not None:
            nulls[name] = found.null_count
        bounds = None if found is None else exact_bounds(found, kind)
        shown = (None, None) if bounds is None else _in_json(bounds, kind)
        lows[name], highs[name] = shown
        whole = whole and None not in shown
    document = {"numRecords": stats.row_count, "nullCount": nulls}
    return json.dumps(document | ({"minValues": lows, "maxValues": highs} if whole else {}))


def _in_json(bounds: tuple[Any, Any], kind: pa.DataType) -> tuple[Any, Any]:
    low, high = bounds
    if t.is_timestamp(kind):
        return _moment(low // 1000, kind), _moment(-(-high // 1000), kind)
    if t.is_date32(kind):
        return _day(low), _day(high)
    return (float(low), float(high)) if isinstance(low, Decimal) else bounds


def _day(days: int) -> str | None:
    moment = _moment(days * 86_400_000, pa.timestamp("ms"))
    return None if moment is None else moment[:10]


def _moment(milliseconds: int, kind: pa.DataType) -> str | None:
    if not _FIRST <= milliseconds <= _LAST:
        return None
    text = (_EPOCH + dt.timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + ("Z" if kind.tz else "")


# Table versions, and errors of the libraries.

_LIBRARIES = ("deltalake", "_internal", "pyiceberg", "sqlalchemy", "sqlite3")
_PLAIN = (Exception, ValueError, RuntimeError)
"""Errors of the libraries besides their own classes; other kinds are bugs of ours."""


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
