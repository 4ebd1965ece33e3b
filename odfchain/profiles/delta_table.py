"""A Delta table: a version for each data block, in order, and the block's hash in its commit.

Every commit carries a transaction of the application `odf:DATASET` with the block's number, which stays
when the log is tidied up. Paths are relative: the folder may be moved. Source: RFC-045.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.errors import EngineError
from odfchain.profiles.table_columns import TableVersion, exact_bounds, library_errors, reported
from odfchain.slices.footers import FileStats, quoted
from odfchain.storage import fsio

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
        self._name, self._app = name, f"odf:{dataset}"

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
            exists = self._library.DeltaTable.is_deltatable(self._uri)
            table = self._open() if exists else None
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
            name=self._name,
            configuration={_SKIPPING: ",".join(_delta_columns(columns))},
            commit_properties=None if version is None else self._facts(version),
        )
        return self._open()

    def _widened(self, table: Any, columns: pa.Schema) -> Any:
        # columns are never dropped, so others stay
        wanted = self._library.Schema.from_arrow(columns)
        known = {field.name: field for field in table.schema().fields}
        new = [field for field in wanted.fields if known.get(field.name) != field]
        if not new:
            return table
        table.alter.add_columns(new)
        return self._open()

    def _commit(self, table: Any, version: TableVersion, mode: str) -> None:
        schema = table.schema() if mode == "append" else self._library.Schema.from_arrow(version.columns)
        names = [name for name in table.metadata().configuration.get(_SKIPPING, "").split(",") if name]
        table.create_write_transaction(
            [self._added(version, names)], mode, schema, commit_properties=self._facts(version)
        )
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
