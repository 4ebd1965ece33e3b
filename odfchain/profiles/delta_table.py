"""A Delta table: a version for each data block, in order, and the block's hash in its commit.

Every commit carries a transaction of the application `odf:DATASET` with the block's number, which stays
when the log is tidied up. Paths are relative: the folder may be moved. Source: RFC-045.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.errors import EngineError
from odfchain.profiles.table_columns import TableVersion, delta_columns, delta_stats, library_errors
from odfchain.storage import fsio

_SKIPPING = "delta.dataSkippingStatsColumns"
"""Set when the table is made, and never again: the library would ask readers for more than they need."""


class DeltaFolder:
    """The Delta table in a folder, or the one that will be there."""

    def __init__(self, folder: Path, name: str, dataset: str) -> None:
        """Raises:
        EngineError: the library is not installed.
        """
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
            [] if version is None else [self._added(version, delta_columns(columns))],
            mode="error",
            name=self._name,
            configuration={_SKIPPING: ",".join(delta_columns(columns))},
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
            stats=delta_stats(version.stats, version.columns, names),
        )
