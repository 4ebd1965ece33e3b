"""What is read of a dataset: now, at a block, and elsewhere.

Heavy libraries (Spark, pyarrow) are loaded by the methods that need them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from odfchain.api.snapshots import Snapshots
from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.errors import SchemaError, UsageError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import DataSchema
from odfchain.progress import SILENT, Progress
from odfchain.spark.known_errors import OwnErrors
from odfchain.text import table_html
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import AnyPoint, Time, maybe_time
from odfchain.workspace.points import opened_at

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from odfchain.api.scan import At, Brought, Scan
    from odfchain.api.workspace import Workspace
    from odfchain.assets.locks import AssetLock
    from odfchain.branches.row_history import RowChange


# Datasets, logs and lists as a line and as HTML. Names and values come from publishers: control characters
# are removed (`odfchain.text`), and HTML is escaped.

# Rows of a table that represents a longer one.
_SHOWN = 20


class Log(OwnErrors):
    """The blocks of a chain, newest first; read while they are walked, as often as they are."""

    def __init__(self, chain: MetadataChain, limit: int | None) -> None:
        self._chain, self._limit = chain, limit

    def __iter__(self) -> Iterator[HashedBlock]:
        return itertools.islice(self._chain.walk(), self._limit)

    def __repr__(self) -> str:
        lines = [f"#{row[0]} {row[1]} {row[2]} {row[3]}" for row in self._rows()]
        return "\n".join(lines) or "<Log: no blocks>"

    def _repr_html_(self) -> str:
        return table_html(("block", "time", "event", "records", "hash"), self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        found = list(itertools.islice(self, _SHOWN + 1))
        rows = [
            (str(b.sequence_number), str(b.system_time), b.event.KIND, _records(b), str(name))
            for name, b in found[:_SHOWN]
        ]
        return [*rows, *[("…", "", "", "", "")] * (len(found) > _SHOWN)]


def _records(block: MetadataBlock) -> str:
    return f"{block.new_data.offset_interval.count:,} records" if block.new_data else ""


def arrow_dataset(paths: Sequence[Path], schema: pa.Schema) -> Any:
    """The rows of these slices, in their order; missing columns are null, other widths are cast."""
    # never a folder, which may hold slices that no block names
    import pyarrow.dataset as ds

    if not paths:
        return ds.dataset(schema.empty_table())
    return ds.dataset([str(path) for path in paths], schema=schema, format="parquet")


class Readable(Snapshots):
    """What a dataset and a `View` of one have in common: what they are, and their rows."""

    _brought: Brought | None = None

    def __init__(self, workspace: Workspace, files: DatasetFiles) -> None:
        self._workspace, self._files = workspace, files

    # --- what it is --------------------------------------------------------------------------------

    @property
    def id(self) -> DatasetId:
        """The unique identity, `did:odf:…` (specification "Unique Identifiers")."""
        return self._files.id

    @property
    def alias(self) -> DatasetAlias:
        """The local name."""
        return self._files.alias

    @property
    def kind(self) -> DatasetKind:
        """Root or derivative."""
        return self._files.kind

    @property
    def path(self) -> Path:
        """The dataset's folder (specification "Dataset Layout")."""
        return self._files.folder

    @property
    def head(self) -> Multihash | None:
        """Hash of the newest block."""
        return self._files.chain.head()

    @property
    def summary(self) -> DatasetState:
        """The dataset's present state by its chain: schema, sources, offsets, watermark."""
        return DatasetState.read(self._files.chain)

    @property
    def schema(self) -> DataSchema | None:
        """The declared schema, system columns included; None before the first data."""
        return self.summary.schema

    @property
    def ref(self) -> str:
        """The reference that the dataset is opened on: `head`, or a branch; or a block's hash (`at`)."""
        return self._files.ref

    @property
    def label(self) -> str:
        """The local name, with `@BRANCH` where that is not the head: what commands take."""
        return self._files.label

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (self.path, self.ref) == (other.path, other.ref)

    def __hash__(self) -> int:
        return hash((self.path, self.ref))

    # --- reading -----------------------------------------------------------------------------------

    def log(self, limit: int | None = None) -> Log:
        """Blocks from newest to oldest, at most `limit`, each with its hash; read while it is walked."""
        return Log(self._files.chain, limit)

    def block_bytes(self, name: Multihash) -> bytes | None:
        """The file of a block, exactly as it is hashed; None when the dataset does not have it."""
        return self._files.chain.get_bytes(name) if self._files.chain.contains(name) else None

    def attachments(self) -> dict[str, str]:
        """The attachments in force: the text of each by its path, which is the publisher's and is not safe.

        `export_attachments` writes them as files.
        """
        return {item.path: item.content for item in self.summary.attachments}

    def export_attachments(self, to: str | Path) -> list[Path]:
        """The files that the attachments in force are written to, in a folder; nothing else is touched.

        Raises:
            StoreError: a path leads out of the folder, or two cannot be in one.
            NameCollisionError: a file of that path exists.
        """
        from odfchain.workspace.attachments import write_files

        return write_files(self.summary.attachments, Path(to))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        at: At = None,
        where: str | None = None,
        progress: Progress = SILENT,
    ) -> Scan:
        """The records as they were recorded, up to a moment; read when one of its `to_…` methods is called.

        `at` is a block (its hash or sequence number) or a system time; None is now. `where` is an SQL
        condition on their columns: slices that can hold no such record are not read. `progress` is of slices
        that are brought from elsewhere.

        Raises:
            QueryError: `where` is no condition, or names a column that there is not; says where.
        """
        from odfchain.api.scan import Scan, head_at
        from odfchain.workspace.read_slices import columns_of

        self._bring(progress)
        summary = DatasetState.read(self._files.chain, head_at(self._files, at))
        chosen = None if columns is None else tuple(columns)
        columns_of(summary, chosen)  # says which one is missing
        if where is None:
            return Scan(self, chosen, summary)
        from odfchain.slices.conditions import parse_where

        return Scan(self, chosen, summary, where=parse_where(where, columns_of(summary, None)))

    def to_spark(
        self, columns: Sequence[str] | None = None, *, at: At = None, where: str | None = None
    ) -> DataFrame:
        """The records as a Spark DataFrame: `scan(columns, at=at, where=where).to_spark()`."""
        return self.scan(columns, at=at, where=where).to_spark()

    def state(
        self,
        columns: Sequence[str] | None = None,
        *,
        at: At = None,
        key: Sequence[str] | None = None,
        event_time: Time | None = None,
        progress: Progress = SILENT,
    ) -> Scan:
        """The records in force at a moment: of each key the newest, unless it takes back what was before.

        As `scan` in everything else. The key is the one that the sources record; `key` gives another, and an
        empty one tells records apart by all their values. `at` is when it was known, and `event_time` when it
        was true.

        Raises:
            UsageError: no primary key is recorded, and none is given.
        """
        from odfchain.workspace.read_slices import columns_of

        found = self.scan(columns, at=at, progress=progress)
        chosen = found.summary.primary_key if key is None else tuple(key)
        if key is None and not chosen:
            raise UsageError(
                f"{self.alias}: no primary key is recorded that tells which records replace which",
                hint="give one: key=[...] (an empty one tells records apart by all values); "
                "scan() has them all",
            )
        if found.summary.schema is not None:  # nothing is in force before the first data
            columns_of(found.summary, chosen)
        return replace(found, key=chosen, event_time=maybe_time(event_time))

    def dataset(self, at: At = None, *, progress: Progress = SILENT) -> Any:
        """The records as a `pyarrow.dataset.Dataset` of hashed slices, for polars, DuckDB and pandas.

        `at` is as in `scan`, and so are the errors; SliceNotFoundError, ObjectCorruptedError name a slice.
        """
        from odfchain.api.queries import checked_slices
        from odfchain.api.scan import head_at
        from odfchain.workspace.read_slices import columns_of

        self._bring(progress)
        files, checked = self._files, checked_slices(self._workspace)
        state = DatasetState.read(files.chain, head_at(files, at))
        names = [ref.slice.physical_hash for ref in state.slices()]
        verify = self._brought is None or self._brought.verify
        paths = [checked.path(files, name, verify=verify) for name in names]
        checked.keep()
        return arrow_dataset(paths, columns_of(state, None))

    def tail(self, count: int = 10, *, skip: int = 0) -> pa.Table:
        """The newest records, in order of offset; reads only the slices that hold them."""
        from odfchain.workspace.read_slices import read_tail

        self._bring()
        return read_tail(self._files, self.summary, count, skip=skip)

    def history(self, key: Mapping[str, Any], *, limit: int | None = None) -> list[RowChange]:
        """Every change of the row with this primary key, newest first; at most `limit` of them.

        Values are those of the columns, or texts that mean them. What a merge brought says where from.
        """
        from odfchain.api.queries import checked_slices
        from odfchain.branches.row_history import RowHistory

        self._bring()
        checked = checked_slices(self._workspace)
        history = RowHistory(self._files, self.summary)
        found = history.of(key, limit=limit, locate=checked.located(self._files))
        checked.keep()
        return found

    def at(self, point: AnyPoint) -> View:
        """The dataset as of a branch, a block (`9`, `fix-names:9`, a hash), or a system time, to be read.

        Raises:
            PointNotFoundError, DatasetNotFoundError: there is no such branch or block.
        """
        from odfchain.api.branching import as_point

        return View(self._workspace, opened_at(self._files, as_point(point)))

    def lock(self, *, at: AnyPoint | None = None) -> AssetLock:
        """The lock that the dataset is, in force at its newest block, at its point, or at the one named.

        Raises:
            SchemaError: it is no asset lock.
        """
        from odfchain.assets.lock_table import KEY, schema_fault
        from odfchain.assets.locks import AssetLock

        if at is not None:
            return self.at(at).lock()
        schema, is_ours = lock_schema(self), self._workspace._files.has_key(self.id)
        table = schema.empty_table()
        if self.schema is not None:
            found = self.state().to_arrow().select(schema.names)
            table = found.cast(schema).replace_schema_metadata(schema.metadata)
            if (fault := schema_fault(table.schema)) is not None:
                raise SchemaError(f"{self.alias}: no asset lock: {fault}")
            table = table.sort_by([(name, "ascending") for name in KEY])
        # relative paths begin at the folder of the workspace
        return AssetLock(table, self._workspace.path.parent, is_ours)


def lock_schema(dataset: Readable) -> pa.Schema:
    """The schema of the lock that a dataset is, or will be: v1, or the draft with checksums.

    Raises:
        SchemaError: the dataset is no asset lock.
    """
    from odfchain.assets.lock_table import schema_like
    from odfchain.ingest.read_formats import declared_schema

    schemas = [dataset.schema]
    if dataset.schema is None:  # nothing is recorded yet
        schemas = [declared_schema(source.read) for source in dataset.summary.push_sources.values()]
    names = [column.name for columns in schemas if columns is not None for column in columns.fields]
    schema = schema_like(names)
    if missing := [name for name in schema.names if name not in names]:
        raise SchemaError(
            f"{dataset.alias}: not an asset lock: column `{missing[0]}` is missing",
            hint="`odfchain new NAME --assets` makes the manifest of one",
        )
    return schema


class View(Readable):
    """A dataset at a point of its history (`Dataset.at`), or elsewhere as of a block (`open_dataset`).

    What is committed later does not change it, but for a branch by name: that is its newest block at each
    call. Slices that are elsewhere come when they are read, and go with the view and with what was made of
    it, or at `close`; in a `cache_dir` they stay.
    """

    def __init__(self, workspace: Workspace, files: DatasetFiles, brought: Brought | None = None) -> None:
        super().__init__(workspace, files)
        self._brought = brought

    def _bring(self, progress: Progress = SILENT) -> None:
        if self._brought is not None:
            self._brought.bring(self._files, self.summary, progress)

    def dataset(self, at: At = None, *, progress: Progress = SILENT) -> Any:
        """As `Dataset.dataset`."""
        found = super().dataset(at, progress=progress)
        if self._brought is not None:  # readers open the files lazily: they live as long as it does
            weakref.finalize(found, id, self._brought).atexit = False
        return found

    def to_arrow(self) -> pa.Table:
        """All records with the declared types; held in memory."""
        return self.scan().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """As `to_arrow`, with columns of Arrow types."""
        return self.scan().to_pandas()

    def close(self) -> None:
        """Remove the fetched files; frames made of them cannot be read any more."""
        if self._brought is not None:
            self._brought.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        block = self.summary.head_block
        return (
            f"<{self.alias}: {self.summary.record_count:,} records up to block "
            f"{block.sequence_number} ({block.system_time})>"
        )
