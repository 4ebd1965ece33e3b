"""A dataset as of a block, in another place and form; what was exported before is continued.

Files come first and are durable before a version names them, so a reader of the place sees whole versions
only, and an export that was interrupted goes on where it was. Source: RFC-045.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from odfchain import errors
from odfchain.odf.arrow_schema import with_extensions
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.tree import Form, read_json, to_tree
from odfchain.profiles.manifests import manifest_of
from odfchain.profiles.state_totals import profiled_columns
from odfchain.profiles.tables import DeltaFolder, TableFormat, TableVersion
from odfchain.progress import Progress
from odfchain.slices.footers import FileStats, file_stats, quoted
from odfchain.slices.reader import open_parquet
from odfchain.slices.state import SliceFile, in_force, rows_with_offsets
from odfchain.storage import fsio
from odfchain.storage.locations import Location, scheme_of
from odfchain.text import counted, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.options import ExportOptions
from odfchain.workspace.read_slices import KeptFooters, columns_of, verified_slice
from odfchain.workspace.workspace_files import FOLDER as ROOT

if TYPE_CHECKING:
    from odfchain.profiles.iceberg_table import IcebergFolder

RECORDS, STATE = "records", "state"
LODE = "lode"
FORMATS = (LODE, *TableFormat)


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
    table: str = ""
    """The table's name, which Lode has none of."""
    reading: str = ""
    """A line of Python that reads the table."""


@dataclass(frozen=True, slots=True)
class Exporting:
    """A dataset as of a state's block, that goes to another place in another form."""

    dataset: DatasetFiles
    state: DatasetState
    options: ExportOptions

    def run(self) -> Exported:
        """The place has the dataset as of a state's block, in a format."""
        kind, target = self.options.format, str(self.options.to)
        if kind not in FORMATS:
            raise errors.UsageError(
                f"unknown format {one_line(kind)!r}", hint=f"there are {', '.join(FORMATS)}"
            )
        if self.options.rows not in (RECORDS, STATE):
            raise errors.UsageError(
                f"no rows {one_line(self.options.rows)!r}", hint=f"there are {RECORDS} and {STATE}"
            )
        if kind == LODE and self.options.rows == STATE:
            raise errors.UsageError(
                "a Lode snapshot is made of the slices as they are", hint="--rows state is for tables"
            )
        if self.options.catalog is not None and kind != TableFormat.ICEBERG:
            raise errors.UsageError("--catalog is for Iceberg")
        did, folder = str(self.state.seed.dataset_id), local_folder(target, table=kind != LODE)
        if kind == LODE:
            folder = folder / FOLDER / did
        mark = Mark(did, str(self.dataset.alias), kind, self.options.rows, self.options.catalog)
        if kind != LODE:  # what cannot be expressed is refused before anything is written
            _table(mark, folder)
            _columns(self.state, TableFormat(kind), self.options.rows)
        with ExportFolder.claimed(folder, mark, self.dataset) as (place, known):
            try:
                place.check(known)
                return self._exported(place)
            except (errors.NameCollisionError, errors.ChainsDifferError):
                if known is None or not self.options.force:
                    raise
            if known.format == LODE:
                forget_snapshots(folder)
            else:
                _table(known, folder).drop()
            anew = ExportFolder(folder, mark)
            found = self._exported(anew)
            anew.forget_data(found.names)
            return found

    def _exported(self, place: ExportFolder) -> Exported:
        if place.mark.format == LODE:
            return self._lode(place)
        export = _TableExport(self, place)
        return export.of_state() if place.mark.rows == STATE else export.of_records()

    def _lode(self, place: ExportFolder) -> Exported:
        known, refs = exported_snapshots(place.folder), self.state.slices()
        newest = newest_snapshot(self.state, known)
        rename_codecs(place.folder, known)
        done = Exported(place.folder, self.state.head, self.state.head_block.sequence_number)
        if str(self.state.head) not in known:
            self.options.progress.phase(f"Exporting {self.dataset.alias}", len(refs))
            place.write_mark()
            copies = 0
            for ref in self.state.slices():
                copies += not place.has(str(ref.slice.physical_hash), verified_slice(self.dataset, ref))
                self.options.progress.advance()
            document = manifest_of(self.dataset, self.state) | {"codec": CODEC}
            for file in document["files"]:
                file["path"] = f"{FOLDER}/{document['dataset_id']}/{file['path']}"
            snapshot = place.folder / _SNAPSHOTS / str(self.state.head)
            fsio.make_folder(snapshot)
            fsio.replace_file(snapshot / _MANIFEST, canonical_bytes(document))
            names = frozenset(str(ref.slice.physical_hash) for ref in refs)
            size = sum(ref.slice.size for ref in refs)
            done = replace(done, versions=1, files=len(refs), size=size, copies=copies, names=names)
        point_to(place.folder, newest)
        return done


def _table(mark: Mark, folder: Path) -> DeltaFolder | IcebergFolder:
    if mark.format == TableFormat.DELTA:
        return DeltaFolder(folder, mark.name, mark.dataset)
    from odfchain.profiles.iceberg_table import IcebergFolder

    return IcebergFolder(folder, mark.name, mark.catalog)


def _columns(state: DatasetState, to: TableFormat, rows: str) -> pa.Schema:
    if state.schema is None:
        raise errors.SchemaError("the dataset has no columns yet: there is nothing to export")
    if rows == STATE:
        return to.columns(profiled_columns(state), rewritten=True)
    return to.columns(columns_of(state, None))


class _TableExport:
    """One export to a table."""

    def __init__(self, asked: Exporting, place: ExportFolder) -> None:
        self._dataset, self._state, self._place = asked.dataset, asked.state, place
        self._progress = asked.options.progress
        self._table, self._to = _table(place.mark, place.folder), TableFormat(place.mark.format)
        self._known: dict[Multihash | None, pa.Schema] = {}
        self._footers = KeptFooters(self._dataset)

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
        if there := self._table.files():
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
        except (ValueError, errors.InvalidIdError):
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
        key = None if declared is None else declared.hash
        if key not in self._known:
            self._known[key] = _columns(state, self._to, RECORDS)
        return self._known[key]

    def _notes(self, versions: Sequence[TableVersion]) -> tuple[str, ...]:
        found = []
        operation = quoted(self._state.vocabulary.operation_type_column)
        reported = [version.stats.column(operation) for version in versions]
        if others := sum(stats is None or stats.high != 0 for stats in reported):
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
            self._place.folder, self._state.head, number, count, count, size, copies, notes, names,
            self._table.name, self._table.reading,
        )  # fmt: skip


def _name(ref: SliceRef) -> str:
    return f"{ref.slice.physical_hash}.parquet"


# The state as one Parquet file without offset, operation and system time. In memory are
# their offsets, some of the keys at a time, and one row group.

_GROUP_ROWS = 1 << 17


def write_state(
    dataset: DatasetFiles, state: DatasetState, columns: pa.Schema, path: Path, progress: Progress
) -> None:
    """The file has the rows in force, in order of offset, as these columns, and appears when complete."""
    names, refs = state.vocabulary, state.slices()
    files = [SliceFile(verified_slice(dataset, ref), names, ref.slice.offset_interval) for ref in refs]
    offsets = in_force(files, state.primary_key)
    declared = profiled_columns(state)
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


# Whether a slice can be read as columns of a table, and rows in such columns.

_LARGEST = (1 << 63) - 1


def check_slice(path: Path, stats: FileStats, columns: pa.Schema, to: TableFormat) -> None:
    """A slice can be read as these columns of a table, every value of it."""
    with open_parquet(path) as file:
        present = file.schema_arrow
        for column in columns:
            if column.name not in present.names:
                continue
            there = present.field(column.name)
            (found,) = to.columns(pa.schema([there]))
            if not _reads_as(found.type, column.type):
                said = f"column {one_line(column.name)!r} is {there.type} in {path.name}, and {column.type}"
                raise errors.SchemaError(f"{said} in the table")
            known = stats.column(quoted(column.name))
            high = known.high if known is not None else None
            if not _has_uint64(there.type) or (isinstance(high, int) and high <= _LARGEST):
                continue
            for batch in file.batches([column.name]):
                if _largest(batch.column(0)) > _LARGEST:
                    what = f"column {one_line(column.name)!r}: a number above 2⁶³ - 1"
                    raise errors.SchemaError(
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


def _largest(column: pa.Array) -> int:
    kind = column.type
    if t.is_struct(kind):
        return max(map(_largest, column.flatten()), default=0)
    if t.is_nested(kind):
        return _largest(column.flatten())
    return int(pc.max(column).as_py() or 0) if t.is_uint64(kind) else 0


def cast_rows(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Rows in the columns of a table, by name."""
    found = []
    for column in columns:
        try:
            found.append(rows.column(column.name).cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            said = one_line(str(error).split("\n", maxsplit=1)[0])
            raise errors.SchemaError(f"column {one_line(column.name)!r}: {said}") from None
    return pa.RecordBatch.from_arrays(found, schema=columns)


# The folder that a dataset is exported to: ours alone, outside every dataset, marked before it is filled.
# `_odfchain.json` says which dataset the export is of, and in which form; names with an underscore are left
# alone by what tidies tables up. A folder without it that is not empty is not ours.

_MARK = "_odfchain.json"
_MOST_BYTES = 65_536
_ANEW = "--force starts anew"
_OURS = re.compile(r"(?:state-)?f1620[0-9a-f]{64}(?:\.parquet)?")


@dataclass(frozen=True, slots=True)
class Mark:
    """Identity of an export; two of one place have to be equal."""

    FORM: ClassVar = Form(nulls=True)
    dataset: str
    name: str
    """The dataset's when it was first exported: tables keep theirs."""
    format: str
    rows: str
    catalog: str | None = None
    version: Literal[1] = 1


def local_folder(text: str, *, table: bool) -> Path:
    """The folder that a path or a URL of `file` names, without links on the way."""
    scheme = scheme_of(text)
    if scheme != "file" and len(scheme) > 1:
        raise errors.UsageError(
            f"{one_line(text)}: exports are written to folders, as a path or as file:///…",
            hint="copy the folder to the store afterwards; Lode's and Delta's files name no absolute paths",
        )
    folder = Path(text if scheme != "file" else Location.parse(text, folder=True).key).resolve()
    if table and set("?#%") & set(str(folder)):
        said = f"{one_line(str(folder))}: no table in folders with ?, # or % in their names"
        raise errors.UsageError(said, hint="name another one with --to")
    return folder


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """A folder that may be exported to."""

    folder: Path
    mark: Mark

    @classmethod
    @contextlib.contextmanager
    def claimed(
        cls, folder: Path, mark: Mark, dataset: DatasetFiles
    ) -> Iterator[tuple[ExportFolder, Mark | None]]:
        """(the place, what was exported there before), for one export at a time."""
        _check_outside(folder, dataset)
        _check_links((folder.parent, folder))  # those of a Lode store: others are resolved
        fsio.make_folder(folder)
        with fsio.locked_folder(folder):
            data = fsio.read_start(folder / _MARK, _MOST_BYTES)
            known = None if data is None else _read_mark(data, folder)
            with fsio.storage_errors(folder):
                if known is None and any(folder.iterdir()):
                    raise errors.NameCollisionError(
                        f"{folder}: not empty, and no export of odfchain", hint="name a new folder with --to"
                    )
                _check_links(folder.rglob("*"))
            yield cls(folder, mark if known is None else replace(mark, name=known.name)), known

    def write_mark(self) -> None:
        """Say durably what the place is for, before anything else is in it."""
        data = json.dumps(to_tree(self.mark), sort_keys=True).encode()
        if fsio.read_start(self.folder / _MARK, _MOST_BYTES) != data:
            fsio.replace_file(self.folder / _MARK, data)

    def check(self, known: Mark | None) -> None:
        """Check that the export in this folder is the one to be continued."""
        if known is None or known == self.mark:
            return
        if known.dataset != self.mark.dataset:
            said = f"an export of another dataset ({one_line(known.dataset)})"
        else:
            catalog = f", in catalog {known.catalog}" if known.catalog else ""
            said = one_line(f"an export of another kind ({known.format}, {known.rows}{catalog})")
        raise errors.NameCollisionError(
            f"{self.folder}: {said}", hint=f"name another folder with --to; {_ANEW}"
        )

    def has(self, name: str, source: Path) -> bool:
        """`data/NAME` is this file's content, durably; returns whether it is the file itself."""
        path = self.folder / "data" / name
        fsio.make_folder(path.parent)
        with fsio.storage_errors(path):
            if path.exists():
                if path.samefile(source):
                    return True
                if hash_file(path)[0] == hash_file(source)[0]:
                    return False
                path.unlink()  # of an export that was interrupted, or damaged
        try:
            os.link(source, path)
        except FileExistsError as error:
            raise fsio.storage_error(error, path) from error
        except OSError:
            # another file system or another owner: no second name is possible
            with fsio.replaced(path) as stream, source.open("rb") as content:
                shutil.copyfileobj(content, stream, 1 << 20)
            return False
        fsio.sync_folder(path.parent)
        return True

    def forget_data(self, wanted: Collection[str]) -> None:
        """Remove data files of earlier exports that are not wanted."""
        folder = self.folder / "data"
        for path in folder.iterdir() if folder.is_dir() else ():
            if _OURS.fullmatch(path.name) and path.name not in wanted:
                fsio.remove_file(path)


def _read_mark(data: bytes, folder: Path) -> Mark:
    try:
        return read_json(Mark, data, _MOST_BYTES)
    except errors.ManifestError:
        raise errors.NameCollisionError(
            f"{folder / _MARK}: not understood; a later version may have written it",
            hint="name a new folder with --to",
        ) from None


def _check_links(paths: Iterable[Path]) -> None:
    # what is behind one would be written to, or removed by --force: slices of a dataset, perhaps
    for path in paths:
        if path.is_symlink():
            raise errors.NameCollisionError(f"{path}: a link within an export", hint="remove it")


def _check_outside(folder: Path, dataset: DatasetFiles) -> None:
    """A folder is neither within a dataset, nor has one in it."""
    own = dataset.folder.resolve()
    within = [p for p in (folder, *folder.parents) if (p / "blocks").is_dir() and (p / "refs").is_dir()]
    if within or own.parent in (folder, *folder.parents) or folder in own.parents or ROOT in folder.parts:
        raise errors.UsageError(
            f"{folder}: inside a dataset, or contains one: a vacuum of the table would delete blocks",
            hint="name a folder outside the workspace with --to",
        )


def continued(
    state: DatasetState, names: list[str], there: Collection[str], newest: Callable[[], str | None]
) -> int:
    """The number of the files `names`, oldest first, that a table has, if it has no others."""
    common = next((i for i, name in enumerate(names) if name not in there), len(names))
    if common == len(there):
        return common
    more, less = len(there) - common, len(names) - common
    raise parted(state, newest(), f"the export has {counted(more, 'file')} that", counts=(less, more))


def check_line(state: DatasetState, block: Multihash) -> None:
    """A block that was exported before is the state's, or one before it."""
    chain, own = state.chain, state.head_block.sequence_number
    number = chain.get(block).sequence_number if chain.contains(block) else None
    if number is not None and chain.hash_at(min(number, own), block if number > own else state.head) == (
        state.head if number > own else block
    ):
        if number <= own:
            return
        raise parted(state, str(block), "the export has a block that", counts=(0, number - own))
    raise parted(state, str(block), "the export has a block that", counts=(1, 1))


def parted(
    state: DatasetState, newest: str | None, what: str, *, counts: tuple[int, int]
) -> errors.ChainsDifferError:
    """The error where an export has more than the blocks up to a state; `counts` are what each lacks."""
    number, ahead = state.head_block.sequence_number, counts[0] == 0
    why = "it is of a later one" if ahead else "the histories have parted, or others have changed it"
    return errors.ChainsDifferError(
        f"{what} no block up to {number:,} has: {why}",
        source_head=str(state.head),
        destination_head=newest or "unknown",
        source_blocks=counts[0],
        destination_blocks=counts[1],
        common=str(state.head) if ahead else None,
        hint=f"name another folder with --to; {_ANEW}",
    )


# A Lode store: a dataset's slices once, a manifest for each block that was exported, and the latest of them.
# `datasets/DID/data/SLICE`, `datasets/DID/snapshots/BLOCK/manifest.json`, `datasets/DID/latest`. The manifest
# is the dataset's own with its paths from the store's root, and with a codec that Lode's library has not: its
# own for Parquet takes columns by their order, and gives the values of others. Slices come first, then the
# manifest, then the pointer, so that none of them names what is not there (RFC-039; Lode 0.9).

FOLDER = "datasets"
_SNAPSHOTS, _MANIFEST, _POINTER = "snapshots", "manifest.json", "latest"
CODEC = "odf-parquet"
_BEFORE_CODEC = b'{"checksum_algorithm":"sha3-256","codec":'
_EARLIER, _NOW = (_BEFORE_CODEC + b'"%s"' % name for name in (b"parquet", CODEC.encode()))
"""Prefixes of manifests: earlier ones named the codec of Lode's library."""


def exported_snapshots(folder: Path) -> list[str]:
    """The names of the snapshots that have manifests."""
    with fsio.storage_errors(folder):
        return [path.parent.name for path in sorted(folder.glob(f"{_SNAPSHOTS}/*/{_MANIFEST}"))]


def newest_snapshot(state: DatasetState, names: list[str]) -> Multihash:
    """The newest block of these snapshots and of a state, which are all of one history."""
    try:
        blocks = [Multihash.parse(name) for name in names]
    except errors.InvalidIdError:
        raise parted(state, names[-1], "the export has a snapshot that", counts=(1, 1)) from None
    known = {block: state.chain.get(block).sequence_number for block in blocks if state.chain.contains(block)}
    newest = max(known, key=known.__getitem__, default=None)
    later = newest is not None and known[newest] > state.head_block.sequence_number
    top = DatasetState.read(state.chain, newest) if later else state
    for block in (*blocks, state.head):
        check_line(top, block)
    return top.head


def point_to(folder: Path, block: Multihash) -> None:
    """Lode's library takes a block for the latest; without the pointer that is the largest hash."""
    # Lode's library compares the pointer byte for byte under a lock: it ends without a line end
    path, data = folder / _POINTER, str(block).encode()
    with fsio.locked(folder / f"{_POINTER}.lock"):
        if fsio.read_start(path, len(data) + 1) != data:
            fsio.replace_file(path, data)


def rename_codecs(folder: Path, names: list[str]) -> None:
    """The manifests of earlier exports name the codec that the library has not."""
    for name in names:
        path = folder / _SNAPSHOTS / name / _MANIFEST
        if fsio.read_start(path, len(_EARLIER)) == _EARLIER:
            with fsio.storage_errors(path):
                data = path.read_bytes()
            fsio.replace_file(path, _NOW + data.removeprefix(_EARLIER))


def forget_snapshots(folder: Path) -> None:
    """Remove all snapshots at once; then none is the latest."""
    if (folder / _SNAPSHOTS).exists():
        gone = fsio.temp_path(folder)
        fsio.move_folder(folder / _SNAPSHOTS, gone)
        fsio.remove_tree(gone)
    fsio.remove_file(folder / _POINTER)
