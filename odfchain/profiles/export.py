"""A dataset as of a block, in another place and form; what was exported before is continued.

Files come first and are durable before a version names them, so a reader of the place sees whole versions
only, and an export that was interrupted goes on where it was. Source: RFC-045.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.errors import ChainsDifferError, InvalidIdError, NameCollisionError, SchemaError, UsageError
from odfchain.odf.arrow_schema import with_extensions
from odfchain.odf.identity import Multihash
from odfchain.profiles.export_folder import ExportFolder, Mark, check_line, continued, local_folder, parted
from odfchain.profiles.lode_store import (
    FOLDER,
    export_lode,
    exported_snapshots,
    forget_snapshots,
    newest_snapshot,
    point_to,
    rename_codecs,
)
from odfchain.profiles.table_columns import TableFormat, TableVersion, cast_rows, check_slice, table_columns
from odfchain.progress import SILENT, Progress
from odfchain.slices.footers import file_stats, quoted
from odfchain.slices.state import SliceFile, in_force, rows_with_offsets
from odfchain.storage import fsio
from odfchain.text import counted, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.read_slices import KeptFooters, columns_of, verified_slice

if TYPE_CHECKING:
    from odfchain.profiles.delta_table import DeltaFolder
    from odfchain.profiles.iceberg_table import IcebergFolder


# The state as one Parquet file without offset, operation and system time. In memory are the keys (without a
# key, hashes) and one row group.

_GROUP_ROWS = 1 << 17


def state_columns(state: DatasetState) -> pa.Schema:
    """The declared columns that rows in force are exported with."""
    names = state.vocabulary
    system = {names.offset_column, names.operation_type_column, names.system_time_column}
    return pa.schema([field for field in columns_of(state, None) if field.name not in system])


def write_state(
    dataset: DatasetFiles, state: DatasetState, columns: pa.Schema, path: Path, progress: Progress
) -> None:
    """The file has the rows in force, in order of offset, as these columns, and appears when complete."""
    names, refs = state.vocabulary, state.slices()
    files = [SliceFile(verified_slice(dataset, ref), names, ref.slice.offset_interval) for ref in refs]
    offsets = in_force(files, state.primary_key)
    declared = state_columns(state)
    progress.phase(f"Writing the rows in force of {dataset.alias}", sum(ref.slice.size for ref in refs))
    with fsio.replaced(path) as stream, pq.ParquetWriter(stream, with_extensions(columns)) as writer:
        waiting: list[pa.RecordBatch] = []
        for item, ref in zip(files, refs, strict=True):
            for rows, _ in rows_with_offsets(item, offsets, declared):
                waiting.append(cast_rows(rows, columns))
                if sum(batch.num_rows for batch in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting), _GROUP_ROWS)
                    waiting = []
            progress.advance(ref.slice.size)
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), _GROUP_ROWS)


RECORDS, STATE = "records", "state"
LODE = "lode"
FORMATS = (LODE, *TableFormat)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export."""

    rows: str = RECORDS
    """All records, or those in force."""
    catalog: str | None = None
    """Of PyIceberg's configuration; None is one in the folder."""
    force: bool = False
    """An export that cannot be continued is made anew."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    folder: Path
    block: Multihash
    sequence_number: int
    versions: int = 0
    """Number of versions or snapshots added; 0 where the block was exported before."""
    files: int = 0
    """Number of data files that are new in these, or of all in a Lode snapshot."""
    size: int = 0
    """Of these files [bytes]."""
    copies: int = 0
    """Number of files that were copied because they could not be linked."""
    notes: tuple[str, ...] = ()
    names: frozenset[str] = field(default=frozenset(), repr=False)
    """Of all data files of the newest version."""


def export_dataset(
    dataset: DatasetFiles,
    state: DatasetState,
    to: str,
    target: str,
    options: ExportOptions,
    progress: Progress = SILENT,
) -> Exported:
    """The place has the dataset as of a state's block, in a format.

    Raises:
        UsageError, InvalidIdError: no such format or place, or options that do not go together.
    """
    if to not in FORMATS:
        raise UsageError(f"unknown format {one_line(to)!r}", hint=f"there are {', '.join(FORMATS)}")
    if options.rows not in (RECORDS, STATE):
        raise UsageError(f"no rows {one_line(options.rows)!r}", hint=f"there are {RECORDS} and {STATE}")
    if to == LODE and options.rows == STATE:
        raise UsageError(
            "a Lode snapshot is made of the slices as they are", hint="--rows state is for tables"
        )
    if options.catalog is not None and to != TableFormat.ICEBERG:
        raise UsageError("--catalog is for Iceberg")
    did, folder = str(state.seed.dataset_id), local_folder(target, table=to != LODE)
    if to == LODE:
        folder = folder / FOLDER / did
    mark = Mark(did, str(dataset.alias), to, options.rows, options.catalog)
    if to != LODE:  # what cannot be expressed is refused before anything is written
        _table(mark, folder)
        _columns(state, TableFormat(to), options.rows)
    with ExportFolder.claimed(folder, mark, dataset) as (place, known):
        try:
            place.check(known)
            return _exported(dataset, state, place, progress)
        except (NameCollisionError, ChainsDifferError):
            if known is None or not options.force:
                raise
        if known.format == LODE:
            forget_snapshots(folder)
        else:
            _table(known, folder).drop()
        anew = ExportFolder(folder, mark)
        found = _exported(dataset, state, anew, progress)
        anew.forget_data(found.names)
        return found


def _exported(
    dataset: DatasetFiles, state: DatasetState, place: ExportFolder, progress: Progress
) -> Exported:
    if place.mark.format == LODE:
        return _lode(dataset, state, place, progress)
    export = _TableExport(dataset, state, place, progress)
    return export.of_state() if place.mark.rows == STATE else export.of_records()


def _lode(dataset: DatasetFiles, state: DatasetState, place: ExportFolder, progress: Progress) -> Exported:
    known, refs = exported_snapshots(place.folder), state.slices()
    newest = newest_snapshot(state, known)
    rename_codecs(place.folder, known)
    done = Exported(place.folder, state.head, state.head_block.sequence_number)
    if str(state.head) not in known:
        progress.phase(f"Exporting {dataset.alias}", len(refs))
        place.write_mark()
        copies = export_lode(place, dataset, state, progress)
        names = frozenset(str(ref.slice.physical_hash) for ref in refs)
        size = sum(ref.slice.size for ref in refs)
        done = replace(done, versions=1, files=len(refs), size=size, copies=copies, names=names)
    point_to(place.folder, newest)
    return done


def _table(mark: Mark, folder: Path) -> DeltaFolder | IcebergFolder:
    if mark.format == TableFormat.DELTA:
        from odfchain.profiles.delta_table import DeltaFolder

        return DeltaFolder(folder, mark.name, mark.dataset)
    from odfchain.profiles.iceberg_table import IcebergFolder

    return IcebergFolder(folder, mark.name, mark.catalog)


def _columns(state: DatasetState, to: TableFormat, rows: str) -> pa.Schema:
    if state.schema is None:
        raise SchemaError("the dataset has no columns yet: there is nothing to export")
    if rows == STATE:
        return table_columns(state_columns(state), to, rewritten=True)
    return table_columns(columns_of(state, None), to)


class _TableExport:
    """One export to a table."""

    def __init__(
        self, dataset: DatasetFiles, state: DatasetState, place: ExportFolder, progress: Progress
    ) -> None:
        self._dataset, self._state, self._place, self._progress = dataset, state, place, progress
        self._table, self._to = _table(place.mark, place.folder), TableFormat(place.mark.format)
        self._known: dict[Multihash, pa.Schema] = {}
        self._footers = KeptFooters(dataset)

    def of_records(self) -> Exported:
        # a version for each data block that the table lacks
        refs, there = self._state.slices(), self._table.files()
        names = [_name(ref) for ref in refs]
        begin = continued(self._state, names, there or (), self._table.newest)
        self._progress.phase(f"Looking at {self._dataset.alias}", len(refs) - begin)
        versions = [self._version(ref) for ref in refs[begin:]]
        self._progress.phase(f"Exporting {self._dataset.alias}", len(versions))
        self._place.write_mark()
        copies = 0

        def placed() -> Iterator[TableVersion]:
            nonlocal copies
            for version in versions:
                copies += not self._place.has(version.name, version.source)
                yield version
                self._progress.advance()

        self._table.append(_columns(self._state, self._to, RECORDS), placed())
        return self._done(versions, copies, frozenset(names), self._notes(versions))

    def of_state(self) -> Exported:
        # the table has one version, with the rows in force
        name = f"state-{self._state.head}.parquet"
        there = self._table.files()
        if there:
            self._check_state(there)
            if name in there:
                return self._done([], 0, frozenset([name]), ())
        columns = _columns(self._state, self._to, STATE)
        with self._dataset.staging() as folder:
            path = folder / name
            write_state(self._dataset, self._state, columns, path, self._progress)
            self._place.write_mark()
            copies = 0 if self._place.has(name, path) else 1
            block = self._state.head_block
            version = TableVersion(self._state.head, block, columns, name, path, file_stats(path))
            self._table.replace(version)
            return self._done([version], copies, frozenset([name]), ())

    def _check_state(self, there: Sequence[str]) -> None:
        try:
            (only,) = there
            block = Multihash.parse(only.removeprefix("state-").removesuffix(".parquet"))
        except (ValueError, InvalidIdError):
            others = f"the table has {counted(len(there), 'file')} that"
            raise parted(self._state, self._table.newest(), others, counts=(1, 1)) from None
        check_line(self._state, block)

    def _version(self, ref: SliceRef) -> TableVersion:
        block = self._state.chain.get(ref.block_hash)
        columns = self._columns_at(DatasetState(self._state.chain, ref.block_hash, block))
        path = verified_slice(self._dataset, ref)
        stats = self._footers.stats(ref)
        check_slice(path, stats, columns, self._to)
        self._progress.advance()
        return TableVersion(ref.block_hash, block, columns, _name(ref), path, stats)

    def _columns_at(self, state: DatasetState) -> pa.Schema:
        declared = self._state.chain.nearest("SetDataSchema", head=state.head)
        if declared is None:
            return _columns(state, self._to, RECORDS)
        if declared.hash not in self._known:
            self._known[declared.hash] = _columns(state, self._to, RECORDS)
        return self._known[declared.hash]

    def _notes(self, versions: Sequence[TableVersion]) -> tuple[str, ...]:
        found = []
        operation = quoted(self._state.vocabulary.operation_type_column)
        reported = [version.stats.column(operation) for version in versions]
        others = sum(stats is None or stats.high != 0 for stats in reported)
        if others:
            found.append(
                f"{others:,} of {counted(len(versions), 'slice')} correct or take back records, which "
                "readers see one by one: --rows state exports the rows in force"
            )
        unsigned = [f.name for f in columns_of(self._state, None) if f.type in (pa.uint32(), pa.uint64())]
        if self._to is TableFormat.ICEBERG and unsigned and versions:
            found.append(
                f"Iceberg's Java readers refuse unsigned columns ({one_line(', '.join(unsigned))}): leave "
                "them out there, or export --rows state"
            )
        return tuple(found)

    def _done(
        self, versions: Sequence[TableVersion], copies: int, names: frozenset[str], notes: tuple[str, ...]
    ) -> Exported:
        size = sum(version.source.stat().st_size for version in versions)
        number, count = self._state.head_block.sequence_number, len(versions)
        return Exported(
            self._place.folder, self._state.head, number, count, count, size, copies, notes, names
        )


def _name(ref: SliceRef) -> str:
    return f"{ref.slice.physical_hash}.parquet"
