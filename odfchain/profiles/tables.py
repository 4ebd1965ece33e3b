"""Columns of a table of another format for those of a dataset, whether a slice fits them, and Delta tables.

Neither Delta nor Iceberg has unsigned numbers: they become the next larger signed ones. Slices are taken as
they are, so a type that the format's readers do not read from our files is refused with its column; rows
that are written anew are cast instead, where no value changes. Columns may always be null: which of them
may not has changed in the history of old chains. Source: RFC-045.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.errors import EngineError, OdfchainError, SchemaError, StoreError
from odfchain.odf.arrow_schema import is_uuid
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.slices.footers import ColumnStats, FileStats, quoted
from odfchain.storage import fsio
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
# Long texts are left out, and floats have no bounds, because NaN is greater than every number in Spark.

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
    """Translate errors of a format's library into the project's."""
    try:
        yield
    except (OdfchainError, MemoryError):
        raise
    except Exception as error:
        known = type(error) in _PLAIN or isinstance(error, OSError)
        if not known and type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        raise StoreError(f"{place}: {type(error).__name__}: {first_line(error)}") from error


# A Delta table: a version for each data block, in order, and the block's hash in its commit. Every commit
# carries a transaction of the application `odf:DATASET` with the block's number, which stays when the log is
# tidied up. Paths are relative: the folder may be moved (RFC-045).

_SKIPPING = "delta.dataSkippingStatsColumns"
"""Set when the table is made, and never again: the library would ask readers for more than they need."""


class DeltaFolder:
    """The Delta table in a folder, or the one that will be there."""

    def __init__(self, folder: Path, name: str, dataset: str) -> None:
        try:
            import deltalake
            from deltalake import transaction
        except ImportError:
            raise EngineError(
                "exports to Delta need deltalake, which is not installed",
                hint="pip install 'odfchain[delta]'",
            ) from None
        self._library, self._actions = deltalake, transaction
        self._folder, self._uri = folder, folder.as_uri()
        self.name, self._app = name, f"odf:{dataset}"
        self.reading = f"from deltalake import DeltaTable; DeltaTable({str(folder)!r}).to_pandas()"

    def files(self) -> Sequence[str] | None:
        """The files of the newest version."""
        with library_errors(self._folder):
            if not self._library.DeltaTable.is_deltatable(self._uri):
                return None
            return [path.rpartition("/")[2] for path in self._open().file_uris()]

    def newest(self) -> str | None:
        """As the log says, as long as it is kept."""
        with library_errors(self._folder):
            found = (commit.get("odf.blockHash") for commit in self._open().history())
            return next((str(block) for block in found if block), None)

    def append(self, columns: pa.Schema, versions: Iterable[TableVersion]) -> int:
        """Each version is a commit of its own; columns that come to the schema are another one before it."""
        count = 0
        with library_errors(self._folder):
            table = self._open() if self._library.DeltaTable.is_deltatable(self._uri) else None
            for version in versions:
                if table is None:
                    table = self._create(version.columns, version)
                else:
                    table = self._widened(table, version.columns)
                    self._commit(table, version, "append")
                count += 1
            if table is None:
                self._create(columns, None)
            else:
                self._widened(table, columns)
        return count

    def replace(self, version: TableVersion) -> None:
        """One commit removes the old file and adds the new one."""
        with library_errors(self._folder):
            if self._library.DeltaTable.is_deltatable(self._uri):
                self._commit(self._open(), version, "overwrite")
            else:
                self._create(version.columns, version)

    def drop(self) -> None:
        """Remove the log: without it there is no table."""
        fsio.remove_tree(self._folder / "_delta_log")

    def _open(self) -> Any:
        return self._library.DeltaTable(self._uri)

    def _create(self, columns: pa.Schema, version: TableVersion | None) -> Any:
        self._actions.create_table_with_add_actions(
            self._uri,
            self._library.Schema.from_arrow(columns),
            [] if version is None else [self._added(version, _delta_columns(columns))],
            mode="error",
            name=self.name,
            configuration={_SKIPPING: ",".join(_delta_columns(columns))},
            commit_properties=None if version is None else self._facts(version),
        )
        return self._open()

    def _widened(self, table: Any, columns: pa.Schema) -> Any:
        # columns are never dropped, so others stay
        wanted = self._library.Schema.from_arrow(columns)
        known = {field.name: field for field in table.schema().fields}
        if not (new := [field for field in wanted.fields if known.get(field.name) != field]):
            return table
        table.alter.add_columns(new)
        return self._open()

    def _commit(self, table: Any, version: TableVersion, mode: str) -> None:
        schema = table.schema() if mode == "append" else self._library.Schema.from_arrow(version.columns)
        names = [name for name in table.metadata().configuration.get(_SKIPPING, "").split(",") if name]
        added, facts = self._added(version, names), self._facts(version)
        table.create_write_transaction([added], mode, schema, commit_properties=facts)
        table.update_incremental()

    def _facts(self, version: TableVersion) -> Any:
        known = self._actions.Transaction(self._app, version.block.sequence_number, None)
        return self._actions.CommitProperties(
            custom_metadata=dict(version.facts), app_transactions=[known], max_commit_retries=0
        )

    def _added(self, version: TableVersion, names: Sequence[str]) -> Any:
        return self._actions.AddAction(
            path=f"data/{version.name}",
            size=version.source.stat().st_size,
            partition_values={},
            modification_time=version.block.system_time.epoch_ms,
            data_change=True,
            stats=_delta_stats(version.stats, version.columns, names),
        )


# Statistics in the log. A file has bounds of all listed columns or of none, because some readers take a
# missing bound as one that nothing matches. Times are milliseconds, and decimals JSON numbers, which readers
# may take for doubles (RFC-045).

_DOUBLE_DIGITS = 15
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader knows [ms since the epoch]."""


def _delta_columns(columns: pa.Schema) -> Sequence[str]:
    """The columns of a Delta table that its log says anything of."""

    def has_bounds(field: pa.Field) -> bool:
        kind = field.type
        short = t.is_decimal(kind) and kind.precision <= _DOUBLE_DIGITS
        other = t.is_integer(kind) or t.is_date32(kind) or t.is_timestamp(kind) or t.is_string(kind)
        return bool(short or other) and quoted(field.name) == field.name

    return [field.name for field in columns if has_bounds(field)]


def _delta_stats(stats: FileStats, columns: pa.Schema, names: Sequence[str]) -> str:
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
