"""An Iceberg table: a snapshot for each data block, in order, and the block's hash in its summary.

All snapshots of one export are one commit, after the table was made. Slices have no field ids: the table's
name mapping gives them. Their entries are made here and not by `add_files`, whose bounds leave out row groups
that report none. Without a catalog the table is in one of its own, in the folder. Source: RFC-045.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as t
from pyiceberg.table import Transaction
from pyiceberg.table.update import update_table_metadata

from odfchain.errors import EngineError, NameCollisionError, UsageError
from odfchain.profiles.tables import TableVersion, exact_bounds, library_errors, reported
from odfchain.storage import fsio
from odfchain.text import first_line, one_line

_NAMESPACE, _CATALOG = "odf", "_catalog.db"
_MAPPING = "schema.name-mapping.default"
_PLAIN = re.compile(r"[^a-z0-9_]")


class IcebergFolder:
    """The Iceberg table in a folder, or the one that will be there."""

    def __init__(self, folder: Path, name: str, catalog: str | None) -> None:
        try:
            import pyiceberg.catalog.sql  # noqa: F401 - the catalog without a server
        except ImportError:
            raise EngineError(
                "exports to Iceberg need pyiceberg, which is not installed",
                hint="pip install 'odfchain[iceberg]'",
            ) from None
        self._folder, self._catalog = folder, catalog
        self._id = (_NAMESPACE, _PLAIN.sub("_", name.lower()))
        self.name = ".".join(self._id)
        self._uri = f"sqlite:///{folder / _CATALOG}"
        place = repr(catalog) if catalog else f"{_NAMESPACE!r}, type='sql', uri={self._uri!r}"
        self.reading = (
            "from pyiceberg.catalog import load_catalog; "
            f"load_catalog({place}).load_table({self.name!r}).scan().to_pandas()"
        )

    def files(self) -> Sequence[str] | None:
        """The files of the newest snapshot."""
        if self._catalog is None and not (self._folder / _CATALOG).exists():
            return None
        with self._catalogued() as catalog:
            table = self._loaded(catalog)
            return (
                None if table is None else [str(file.file_path).rpartition("/")[2] for file in _files(table)]
            )

    def newest(self) -> str | None:
        """As the newest snapshot with a block says."""
        with self._catalogued() as catalog:
            table = self._loaded(catalog)
            snapshots = [] if table is None else table.snapshots()[::-1]
            found = (each.summary["odf.blockHash"] for each in snapshots if each.summary is not None)
            return next((str(block) for block in found if block), None)

    def append(self, columns: pa.Schema, versions: Iterable[TableVersion]) -> int:
        """All snapshots become visible at once."""
        ordered = list(versions)
        with self._catalogued() as catalog:
            table = self._loaded(catalog)
            with self._transaction(catalog, table, ordered[0].columns if ordered else columns) as transaction:
                known: pa.Schema | None = None
                for version in ordered:
                    known = _widened(transaction, version.columns, known)
                    with _snapshot(transaction, version).fast_append() as new:
                        new.append_data_file(self._entry(transaction, version))
                _widened(transaction, columns, known)
            self._hint(catalog)
        return len(ordered)

    def replace(self, version: TableVersion) -> None:
        """One snapshot removes the old file and adds the new one."""
        with self._catalogued() as catalog:
            table = self._loaded(catalog)
            old = [] if table is None else _files(table)
            with self._transaction(catalog, table, version.columns) as transaction:
                _widened(transaction, version.columns, None)
                snapshot = _snapshot(transaction, version)
                with snapshot.overwrite() if old else snapshot.fast_append() as new:
                    for file in old:
                        new.delete_data_file(file)
                    new.append_data_file(self._entry(transaction, version))
            self._hint(catalog)

    def drop(self) -> None:
        """Remove the table from its catalog, and its metadata."""
        if self._catalog is None:
            fsio.remove_tree(self._folder / _CATALOG)
        else:
            with self._catalogued() as catalog:
                if self._loaded(catalog) is not None:
                    catalog.drop_table(self._id)
        fsio.remove_tree(self._folder / "metadata")

    @contextlib.contextmanager
    def _catalogued(self) -> Iterator[Any]:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog

        with library_errors(self._folder):
            if self._catalog is None:
                catalog: Any = SqlCatalog(_NAMESPACE, uri=self._uri, warehouse=self._location)
            else:
                try:
                    catalog = load_catalog(self._catalog)
                except ValueError as error:
                    raise UsageError(
                        f"--catalog {one_line(self._catalog)}: {first_line(error)}",
                        hint="PyIceberg reads .pyiceberg.yaml, and PYICEBERG_CATALOG__NAME__URI",
                    ) from None
            try:
                yield catalog
            finally:
                catalog.close()

    @property
    def _location(self) -> str:
        return f"file://{self._folder}"

    def _loaded(self, catalog: Any) -> Any:
        # None where there is no such table
        if not catalog.table_exists(self._id):
            return None
        table = catalog.load_table(self._id)
        if table.location() != self._location:
            raise NameCollisionError(
                f"the catalog has {'.'.join(self._id)} already, at {one_line(table.location())}",
                hint="name that folder with --to, or another catalog with --catalog",
            )
        return table

    def _transaction(self, catalog: Any, table: Any, columns: pa.Schema) -> Any:
        if table is not None:
            return IcebergCommit(table)
        catalog.create_namespace_if_not_exists(_NAMESPACE)
        format_ = {"format-version": "2"}
        made = catalog.create_table(self._id, columns, location=self._location, properties=format_)
        new = IcebergCommit(made)
        return new.set_properties({_MAPPING: new.table_metadata.schema().name_mapping.model_dump_json()})

    def _hint(self, catalog: Any) -> None:
        # for readers without a catalog
        newest = str(catalog.load_table(self._id).metadata_location).rpartition("/")[2]
        fsio.replace_file(
            self._folder / "metadata" / "version-hint.text", newest.removesuffix(".metadata.json").encode()
        )

    def _entry(self, transaction: Any, version: TableVersion) -> Any:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        kinds = {field.name: field.type for field in version.columns}
        nulls, lows, highs = dict[int, int](), dict[int, bytes](), dict[int, bytes]()
        for field in transaction.table_metadata.schema().fields:
            kind = kinds.get(field.name)
            found = None if kind is None or t.is_nested(kind) else reported(version.stats, field.name)
            if found is None:
                continue
            nulls[field.field_id] = found.null_count
            if (bounds := exact_bounds(found, kind)) is not None:
                lows[field.field_id], highs[field.field_id] = (to_bytes(field.field_type, b) for b in bounds)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location}/data/{version.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=version.stats.row_count,
            file_size_in_bytes=version.source.stat().st_size,
            column_sizes={},
            value_counts=dict.fromkeys(nulls, version.stats.row_count),
            null_value_counts=nulls,
            nan_value_counts={},
            lower_bounds=lows,
            upper_bounds=highs,
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=0,
        )


def _snapshot(transaction: Any, version: TableVersion) -> Any:
    return transaction.update_snapshot(snapshot_properties=dict(version.facts))


def _widened(transaction: Any, columns: pa.Schema, known: pa.Schema | None) -> pa.Schema:
    # `known` are the columns before, where they were read already
    if known is None or not known.equals(columns):
        with transaction.update_schema() as update:
            update.union_by_name(columns)
    return columns


def _files(table: Any) -> list[Any]:
    return [task.file for task in table.scan().plan_files()]


# PyIceberg's own transaction applies all updates again at each look at the metadata: a hundred snapshots took
# ten seconds. Here each is applied once. Loaded on use: the library is optional.


class IcebergCommit(Transaction):  # type: ignore[misc]
    """The updates of one commit."""

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self._known, self._applied = table.metadata, 0

    @property
    def table_metadata(self) -> Any:
        """The metadata with all updates so far."""
        new, self._applied = self._updates[self._applied :], len(self._updates)
        if new:
            self._known = update_table_metadata(self._known, new)
        return self._known
