"""Asset locks as datasets: the lock that a dataset is at a block, and locks recorded as what they change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from odfchain.api.asset_locks import AssetLock
from odfchain.errors import FetchError, OdfchainError, SchemaError, SourceNotFoundError
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.api.dataset import Dataset
    from odfchain.api.options import MergeKeywords
    from odfchain.assets.lock_table import AssetRow
    from odfchain.ingest.ingesting import IngestOutcome


def lock_schema(dataset: Dataset) -> pa.Schema:
    """The schema of the lock that a dataset is, or will be: v1, or the draft with checksums.

    Raises:
        SchemaError: the dataset is no asset lock.
    """
    from odfchain.assets.lock_table import SCHEMA, SCHEMA_WITH_CHECKSUM
    from odfchain.ingest.read.formats import declared_schema

    schemas = [dataset.schema]
    if dataset.schema is None:  # nothing is recorded yet
        schemas = [declared_schema(source.read) for source in dataset.summary.push_sources.values()]
    names = [column.name for columns in schemas if columns is not None for column in columns.fields]
    schema = SCHEMA_WITH_CHECKSUM if "file_checksum" in names else SCHEMA
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SchemaError(
            f"{dataset.alias}: no asset lock: there is no column `{missing[0]}`",
            hint="`odfchain new NAME --assets` makes the manifest of one",
        )
    return schema


def lock_of(dataset: Dataset) -> AssetLock:
    """The lock that a dataset is, at its newest block: the rows in force, in the order of schema v1.

    Relative paths begin at the folder of the workspace.

    Raises:
        SchemaError: the dataset is no asset lock.
    """
    from odfchain.assets.lock_rules import schema_fault

    schema, folder = lock_schema(dataset), dataset._workspace.path.parent
    if dataset.schema is None:
        return AssetLock(schema.empty_table(), folder, dataset.has_key)
    found = dataset.state().to_arrow().select(schema.names)
    table = found.cast(schema).replace_schema_metadata(schema.metadata)
    fault = schema_fault(table.schema)
    if fault is not None:
        raise SchemaError(f"{dataset.alias}: no asset lock: {fault}")
    keys = [("item_id", "ascending"), ("asset_key", "ascending")]
    return AssetLock(table.sort_by(keys), folder, dataset.has_key)


def record_lock(
    dataset: Dataset,
    lock: AssetLock,
    *,
    probed: bool = True,
    progress: Progress = SILENT,
    **merging: Unpack[MergeKeywords],
) -> IngestOutcome:
    """What the lock says in other words than the dataset becomes a block; where nothing does, there is none.

    Where every row is as it was nothing is merged, and Spark is not started. Of what was not `probed`, or
    could not be reached, the dataset keeps what it knows.

    Raises: as `Dataset.ingest_frame`, and
        SchemaError: the dataset is no asset lock.
    """
    from odfchain.api.bringing import ingest_frame

    known = lock_of(dataset)
    if not probed or lock.faults:
        lock = _with_unreachable(lock if probed else with_known_facts(lock, known), known)
    if known.table.num_rows and not any(merging.values()) and known.table.equals(lock.table):
        return _unchanged(dataset, lock)
    return ingest_frame(dataset, lock.table, None, merging, progress, name="the lock")


def _unchanged(dataset: Dataset, lock: AssetLock) -> IngestOutcome:
    from odfchain.ingest.ingesting import IngestOutcome, InputOutcome

    state, nothing = dataset.summary, dict.fromkeys(("+A", "-R", "-C", "+C"), 0)
    brought = InputOutcome("the lock", lock.table.num_rows, nothing, None)
    return IngestOutcome((brought,), state.head, state.head, 0, state.watermark)


def _with_unreachable(new: AssetLock, known: AssetLock) -> AssetLock:
    """A lock with the known rows of those assets that no store could say anything of."""
    from odfchain.assets.lock_table import table_of

    def is_passing(error: OdfchainError) -> bool:
        return isinstance(error, FetchError) and not isinstance(error, SourceNotFoundError)

    kept = {(fault.item_id, fault.asset_key) for fault in new.faults if is_passing(fault.error)}
    rows = [*new.rows, *(row for row in known.rows if row.key in kept)]
    return replace(new, table=table_of(rows, checksums="file_checksum" in new.table.schema.names))


def with_known_facts(new: AssetLock, known: AssetLock) -> AssetLock:
    """A lock that nobody probed, with the facts of an earlier one where location and size are the same."""
    from odfchain.assets.lock_table import table_of

    before = {row.key: row for row in known.rows}

    def kept(row: AssetRow) -> AssetRow:
        old = before.get(row.key)
        if old is None or old.location != row.location:
            return row
        size, known_size = row.facts.size_bytes, old.facts.size_bytes
        if None not in (size, known_size) and size != known_size:
            return row
        return replace(row, facts=replace(old.facts, size_bytes=size if known_size is None else known_size))

    return replace(
        new, table=table_of(map(kept, new.rows), checksums="file_checksum" in new.table.schema.names)
    )
