"""Asset locks: derived, read, checked, moved and written.

Without probing there is no request at all, and the size alone is what a document claims. All faults of a run
come together; they are left out of the rows. Source: RFC-047; asset-lock ADR-003.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain import errors
from odfchain.assets import lock_table
from odfchain.assets.checking import CheckedAsset, compared
from odfchain.assets.hrefs import ACCESS_KEY, parse_href
from odfchain.assets.objects import (
    JOBS,
    MD5,
    SHA2_256,
    WINDOW,
    DeriveOptions,
    Facts,
    Method,
    Probe,
    Selection,
    SlicesOptions,
    StoreOptions,
    Stores,
    algorithm_of,
)
from odfchain.assets.relocating import Arrivals, Layout, Relocation
from odfchain.assets.stac import AssetFault, NamedAsset, Projected, Projection, StacReader
from odfchain.limits import ASSETS
from odfchain.progress import SILENT, Progress
from odfchain.spark.known_errors import OwnErrors
from odfchain.startup import no_search_for_circles
from odfchain.storage import fsio
from odfchain.storage.locations import Location
from odfchain.text import counted, one_line
from odfchain.workspace.options import takes

_SHOWN = 20
"""Faulty rows that a message lists."""


@dataclass(frozen=True, slots=True)
class AssetLock(OwnErrors):
    """A lock of assets: a table with location and facts of each asset."""

    table: pa.Table
    """Schema v1 of ADR-003, sorted by item and asset."""
    folder: Path
    """The base of relative keys."""
    is_ours: bool = False
    """True if it was made here: then its absolute paths are trusted."""
    faults: tuple[AssetFault, ...] = field(default=(), repr=False)
    """Assets that were left out of it, and why."""
    warnings: tuple[str, ...] = field(default=(), repr=False)
    summary: str = ""
    # True if its rows were validated when they were read.
    _is_judged: bool = field(default=False, repr=False)

    @classmethod
    @takes(DeriveOptions)
    def derive(cls, asked: DeriveOptions) -> AssetLock:
        """The lock of all assets that STAC documents name: files, folders, URLs or `-` for standard input.

        A catalog in a server that speaks like S3 is `s3+http://host/bucket/catalog.json`; it is asked signed.
        With `probe` the facts are what the stores say; without, no request is made for them. `checksum` is
        `metadata`, `use-etag`, `calculate-if-needed` or `calculate-always`; the last two read objects.

        Raises:
            UsageError: objects are to be read, and none is to be asked for.
            AssetError: a source is not STAC, an asset cannot be recorded (unless `keep_going`), or two have
                the same item and key; or there are more than a lock may have.
            FetchError, SourceNotFoundError: an object cannot be asked for, or is not there; likewise.
        """
        chosen, progress = asked.stores or StoreOptions(), asked.progress
        method = None if asked.checksum is None else Method(asked.checksum)
        if not asked.probe and method in (Method.CALCULATE_IF_NEEDED, Method.CALCULATE_ALWAYS):
            raise errors.UsageError(
                f"checksums by {asked.checksum} are made of objects, and without probing none is asked for"
            )
        root, faults, warnings = Path(asked.folder).resolve(), list[AssetFault](), list[str]()
        named = {parse_href(each, servers=True).endpoint for each in asked.sources if "://" in each}
        stores = chosen.stores(root, ours=True, also=named)
        reader = StacReader(stores, asked, faults.append)
        progress.phase("Reading STAC")
        with no_search_for_circles():
            every = (asset for source in asked.sources for asset in reader.assets(source))
            found = list(itertools.islice(every, ASSETS.rows + 1))
        if len(found) > ASSETS.rows:
            raise errors.AssetError(
                f"more than {ASSETS.rows:,} assets, and a lock has no more rows",
                hint="make a lock for each collection",
            )
        _check_asked_for(found, asked)
        with no_search_for_circles():
            rows = [
                lock_table.AssetRow(a.item_id, a.asset_key, a.location.relative_to(root), Facts(a.size))
                for a in _distinct(found)
            ]
        if asked.probe:
            rows = _probed(rows, stores, faults, warnings, jobs=chosen.jobs, progress=progress)
        if method is not None:
            rows = _with_checksums(rows, stores, method, faults, progress)
        if not asked.keep_going:
            _check_whole(faults)
        table = table_of(rows, checksums=method is not None)
        return cls(table, root, True, tuple(faults), tuple(warnings), _summary(rows, reader.items))

    @classmethod
    def of_slices(cls, dataset_id: str, sizes: Mapping[str, int], asked: SlicesOptions) -> AssetLock:
        """The lock of a dataset's slices and checkpoints, by their keys, as they lie below a place.

        `item_id` is the dataset's DID, `asset_key` like `data/f1620…`, and `file_checksum` that name without
        its `f`: a multihash in hex is exactly what STAC's `file:checksum` is. Errors as `derive`.
        """
        root, chosen = Path(asked.folder).resolve(), asked.stores or StoreOptions()
        place = _folder(asked.at)
        rows = [
            lock_table.AssetRow(
                dataset_id,
                key,
                place.below(key).relative_to(root),
                Facts(size, file_checksum=key.rpartition("/")[2].removeprefix("f")),
            )
            for key, size in sizes.items()
        ]
        faults = list[AssetFault]()
        if asked.probe:
            stores = chosen.stores(root, ours=True, also=[place.endpoint])
            rows = _probed(rows, stores, faults, None, jobs=chosen.jobs, progress=asked.progress)
        if not asked.keep_going:
            _check_whole(faults)
        table = table_of(rows, checksums=True)
        items = 1 if sizes or not asked.probe else 0
        return cls(table, root, True, tuple(faults), (), _summary(rows, items))

    @classmethod
    def read(cls, path: str | Path) -> AssetLock:
        """A lock from a file; every row is judged, once.

        Raises:
            AssetError: there is no such file, it is no readable Parquet file, has other columns than a lock,
                or faulty rows; the message lists the first.
        """
        file, kept, shown, number = (
            lock_table.LockFile(Path(path)),
            list[pa.RecordBatch](),
            list[lock_table.RowFault](),
            0,
        )
        for batch, faults in file.batches():
            kept.append(batch)
            number += len(faults)
            shown += faults[: _SHOWN - len(shown)]
            if number:
                kept.clear()
        for fault in file.repeated():
            number += 1
            shown += [fault] if len(shown) < _SHOWN else []
        if number:
            said = "; ".join(map(str, shown))
            more = f"; and {number - len(shown):,} more" if number > len(shown) else ""
            raise errors.AssetError(
                f"{path}: {number:,} of {counted(file.rows, 'row')} faulty: {said}{more}",
                hint="`odfchain assets check LOCK --offline` lists all of them",
                exit_code=6,
            )
        columns = pa.Table.from_batches(kept, file.schema).columns
        table = pa.Table.from_arrays(columns, schema=lock_table.schema_like(file.schema.names))
        if not file.is_sorted:
            table = table.sort_by([(name, "ascending") for name in lock_table.KEY])
        return cls(table, Path(path).parent.resolve(), _is_judged=True)

    @property
    def rows(self) -> list[lock_table.AssetRow]:
        """The rows as values, in order."""
        return list(self._each_row())

    def _each_row(self) -> Iterator[lock_table.AssetRow]:
        # a few thousand of them are in memory at a time
        number = 0
        for batch in self.table.to_batches(max_chunksize=lock_table.PIECE):
            if not self._is_judged:
                for fault in lock_table.row_faults(batch, number):
                    raise errors.AssetError(str(fault), exit_code=6)
            columns = [
                batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
                for name in lock_table.SCHEMA_WITH_CHECKSUM.names
            ]
            for item, asset, store, container, endpoint, key, size, checksum, etag, time in zip(
                *columns, strict=True
            ):
                location = Location(store, container, endpoint, key)
                yield lock_table.AssetRow(item, asset, location, Facts(size, etag, time, checksum))
            number += batch.num_rows

    def only(self, items: Collection[str] = (), assets: Collection[str] = ()) -> AssetLock:
        """The rows of these items and assets; empty: all."""
        found, missing = self.table, list[str]()
        for name, wanted in (("item_id", items), ("asset_key", assets)):
            if wanted:
                chosen = pa.array(sorted(wanted), pa.string())
                there = pc.is_in(chosen, pc.unique(self.table.column(name)))
                missing += chosen.filter(pc.invert(there)).to_pylist()
                found = found.filter(pc.is_in(found.column(name), chosen))
        if missing:
            shown = ", ".join(map(one_line, missing))
            raise errors.AssetError(f"the lock has no item or asset called {shown}")
        return replace(self, table=found)

    def hrefs(self) -> Iterator[str]:
        """The hrefs of all rows, in order."""
        return (row.location.href() for row in self._each_row())

    def check(
        self, *, checksums: bool = False, stores: StoreOptions | None = None, progress: Progress = SILENT
    ) -> Iterator[CheckedAsset]:
        """Each asset with what its store says of it today, compared with the facts; records nothing.

        Some thousands of assets are in memory at a time. With `checksums` objects whose checksum is locked
        are read as a whole.
        """
        chosen = stores or StoreOptions()
        return check_rows(
            self._each_row(), self.stores(chosen), jobs=chosen.jobs, checksums=checksums,
            total=self.table.num_rows, progress=progress,
        )  # fmt: skip

    def relocate(
        self,
        to: str,
        *,
        layout: str | None = None,
        prefix: str | None = None,
        folder: str | Path = ".",
        overwrite: bool = False,
        checksum: bool = False,
        dry_run: bool = False,
        arrivals: str | Path | None = None,
        stores: StoreOptions | None = None,
        progress: Progress = SILENT,
    ) -> AssetLock:
        """Copy the objects below `to`; the new lock describes the copies. `faults` has what was not copied.

        `layout` is `item-asset` (`<item>/<asset>`) or `source-key`; without a word the first, for a dataset's
        own slices the second. `arrivals` is a file that remembers what has arrived; a later call with it
        copies only the rest; once the lock is written it is to be removed. A dry run makes no request.

        Raises:
            UsageError: `to` is no place for objects, or `prefix` is named with another layout.
            AssetError: a key does not begin with `prefix`.
        """
        root = Path(folder).resolve()
        named_as = Layout(layout) if layout is not None else Layout.usual(self._each_row())
        if prefix is not None and named_as is not Layout.SOURCE_KEY:
            raise errors.UsageError(
                "a prefix is for copies that are called as their sources", hint="--layout source-key"
            )
        chosen = stores or StoreOptions()
        relocation = Relocation(
            layout=named_as, prefix=None if prefix is None else _folder(prefix), jobs=chosen.jobs,
            overwrite=overwrite, checksum=checksum, relative_to=root, sources_in=self.folder,
        )  # fmt: skip
        target = _folder(to)
        planned = relocation.plan(self.rows, target)
        checksums = checksum or "file_checksum" in self.table.schema.names
        if dry_run:
            return AssetLock(table_of(relocation.described(planned), checksums=checksums), root)
        found = relocation.run(
            planned, self.stores(chosen), chosen.stores(root, ours=True, also=[target.endpoint]),
            Arrivals(None if arrivals is None else Path(arrivals)), progress,
        )  # fmt: skip
        table = table_of(found.rows, checksums=checksums)
        return AssetLock(table, root, True, found.faults, (), found.summary)

    def project(
        self,
        source: str | Path,
        out: str | Path,
        *,
        name: str = "locked",
        primary: bool = False,
        keep_version: bool = False,
    ) -> Projected:
        """Write the STAC documents of a file or folder below `out`, with what this lock says of their assets.

        Each becomes the alternate `name` of its asset; with `primary` its href, and the old one an alternate.
        Documents are brought up to STAC 1.1; with `keep_version` those of 1.0 stay at 1.0.
        """
        rows = {row.key: row for row in self.rows}
        projection = Projection(rows, self.folder, name, primary, keep_version)
        return projection.write(str(source), Path(out))

    def write(self, path: str | Path) -> None:
        """Durably write the lock; a file that is there is replaced as a whole."""
        fsio.make_folder(Path(path).parent)
        with fsio.replaced(Path(path)) as file:
            pq.write_table(self.table, file, version="2.6", compression="snappy", row_group_size=65_536)

    def completed_by(self, known: AssetLock, *, probed: bool) -> AssetLock:
        """This lock with what an earlier one knows, where stores did not answer or were not asked (`probed`).

        A store that is down says nothing about its assets: their rows stay. Facts that were not asked for
        stay where location and size are the same.
        """
        before = {row.key: row for row in known.rows}

        def kept(row: lock_table.AssetRow) -> lock_table.AssetRow:
            old = before.get(row.key)
            if old is None or old.location != row.location or row.facts.has_other_size(old.facts):
                return row
            size, known_size = row.facts.size_bytes, old.facts.size_bytes
            return replace(row, facts=replace(old.facts, size_bytes=known_size if size is None else size))

        down = {
            (fault.item_id, fault.asset_key)
            for fault in self.faults
            if isinstance(fault.error, errors.FetchError)
            and not isinstance(fault.error, errors.SourceNotFoundError)
        }
        rows = [*(self.rows if probed else map(kept, self.rows))]
        rows += (row for key, row in before.items() if key in down)
        return replace(self, table=table_of(rows, checksums="file_checksum" in self.table.schema.names))

    def stores(self, options: StoreOptions) -> Stores:
        """The stores of its objects, as far as they may be asked."""
        return options.stores(self.folder, ours=self.is_ours or options.trust_files)


def _folder(text: str) -> Location:
    path = text if "://" in text else Path(text).resolve().as_uri()
    try:
        return Location.parse(path, folder=True)
    except errors.InvalidIdError as error:
        raise errors.UsageError(f"{text}: {error.message}", hint=error.hint) from None


def table_of(rows: Iterable[lock_table.AssetRow], *, checksums: bool = False) -> pa.Table:
    """The table of a lock with these rows, sorted."""
    chosen = sorted(rows, key=lambda row: row.key)  # texts are in the order of their UTF-8
    for before, after in itertools.pairwise(chosen):
        if before.key == after.key:
            raise errors.AssetError(
                f"{after.label}: named twice",
                hint="ids are unique inside a collection only: make a lock for each collection",
            )
    schema = lock_table.SCHEMA_WITH_CHECKSUM if checksums else lock_table.SCHEMA
    columns = {name: list(map(operator.attrgetter(lock_table.PATHS[name]), chosen)) for name in schema.names}
    table = pa.table(columns, schema=schema)
    for name in (*lock_table.KEY, "etag"):  # a location has none
        if pc.any(pc.match_substring_regex(table.column(name), ACCESS_KEY.pattern)).as_py():
            raise errors.AssetError(f"`{name}` of a row contains an access key", hint="a lock is published")
    return table


# The rows of a lock in the making, and what could not become one.


def _summary(rows: Sequence[lock_table.AssetRow], items: int) -> str:
    # like `1,204 assets of 301 items in 3 stores (https 903, s3 301)`
    kinds = Counter(row.location.store for row in rows)
    stores = {(r.location.store, r.location.container, r.location.endpoint) for r in rows}
    shown = ", ".join(f"{store} {count:,}" for store, count in kinds.most_common())
    where = f" in {counted(len(stores), 'store')} ({shown})" if rows else ""
    return f"{counted(len(rows), 'asset')} of {counted(items, 'item')}{where}"


def _check_whole(faults: Sequence[AssetFault]) -> None:
    # one error for all assets that were left out
    if not faults:
        return
    kinds = [errors.AssetError, errors.FetchError, errors.SourceNotFoundError]
    kind = min((type(fault.error) for fault in faults), key=lambda k: kinds.index(k) if k in kinds else 1)
    kind = kind if kind in kinds else errors.FetchError
    said = "; ".join(map(str, faults))
    raise kind(
        f"{counted(len(faults), 'asset')} cannot be recorded: {said}", hint="--keep-going leaves them out"
    )


def _probed(
    rows: Sequence[lock_table.AssetRow],
    stores: Stores,
    faults: list[AssetFault],
    warnings: list[str] | None,
    *,
    jobs: int,
    progress: Progress,
) -> list[lock_table.AssetRow]:
    # these rows with what their stores say; one that is not there is a fault, and so is another size, or a
    # warning where sizes are only claims of documents
    found, probes = list[lock_table.AssetRow](), list[Probe]()
    progress.phase("Asking for facts", len(rows))
    for start in range(0, len(rows), WINDOW):
        window = rows[start : start + WINDOW]
        probes += stores.probes([row.location for row in window], jobs)
        progress.advance(len(window))
    for row, probe in zip(rows, probes, strict=True):
        before, fault = row.facts.size_bytes, functools.partial(AssetFault, row.item_id, row.asset_key)
        if probe.facts is None:
            kind = errors.SourceNotFoundError if probe.missing else errors.FetchError
            faults.append(fault(kind(probe.problem)))
            continue
        if (tag := lock_table.text_fault("etag", probe.facts.etag or "")) is not None:
            faults.append(fault(errors.AssetError(f"its store says what no lock holds: {tag}")))
            continue
        size = probe.facts.size_bytes
        if size is not None and before is not None and size != before:
            if warnings is None:
                faults.append(fault(errors.FetchError(f"{size:,} bytes instead of {before:,}")))
                continue
            warnings.append(f"{one_line(row.label)}: file:size says {before:,}, the store {size:,} bytes")
        found.append(replace(row, facts=replace(probe.facts, file_checksum=row.facts.file_checksum)))
    return found


def _with_checksums(
    rows: Sequence[lock_table.AssetRow],
    stores: Stores,
    method: Method,
    faults: list[AssetFault],
    progress: Progress,
) -> list[lock_table.AssetRow]:
    # one whose bytes cannot be read is left out and is a fault
    found = list[lock_table.AssetRow]()
    progress.phase("Reading objects", len(rows))
    for row in rows:
        checksum = None
        if method in (Method.USE_ETAG, Method.CALCULATE_IF_NEEDED):
            checksum = checksum_of_etag(row.facts.etag)
        try:
            if checksum is None and method in (Method.CALCULATE_ALWAYS, Method.CALCULATE_IF_NEEDED):
                checksum = SHA2_256 + stores.checksum(row.location, "sha256", etag=row.facts.strong_etag)
            found.append(replace(row, facts=replace(row.facts, file_checksum=checksum)))
        except errors.OdfchainError as error:
            faults.append(AssetFault(row.item_id, row.asset_key, error))
        progress.advance()
    return found


_MD5_TAG = re.compile(r'"([0-9A-Fa-f]{32})"')


def checksum_of_etag(etag: str | None) -> str | None:
    """The checksum that an entity tag is: a strong one of 32 hex digits."""
    found = _MD5_TAG.fullmatch(etag or "")
    return MD5 + found[1].lower() if found else None


def _check_asked_for(named: Iterable[NamedAsset], selection: Selection) -> None:
    # a misspelt id must not make an empty lock
    items, assets = {asset.item_id for asset in named}, {asset.asset_key for asset in named}
    if missing := sorted({*selection.items} - items) + sorted({*selection.assets} - assets):
        raise errors.AssetError(f"no item or asset is called {', '.join(map(one_line, missing))}")


def _distinct(named: Iterable[NamedAsset]) -> list[NamedAsset]:
    # documents that say the same twice are no fault
    found, faults, hint = dict[tuple[str, str], NamedAsset](), list[str](), None
    for asset in named:
        first = found.setdefault((asset.item_id, asset.asset_key), asset)
        if first == asset:
            continue
        label = f"{one_line(asset.item_id)} {one_line(asset.asset_key)}"
        if first.collection == asset.collection:
            faults.append(f"{label}: named twice, at different places")
            continue
        one, other = (one_line(each.collection or "no collection") for each in (first, asset))
        faults.append(f"{label}: in two collections, {one} and {other}")
        hint = "ids are unique inside a collection only: make a lock for each collection"
    if faults:
        raise errors.AssetError("; ".join(faults), hint=hint)
    return list(found.values())


def check_rows(
    rows: Iterable[lock_table.AssetRow],
    stores: Stores,
    *,
    jobs: int = JOBS,
    checksums: bool = False,
    total: int | None = None,
    progress: Progress = SILENT,
) -> Iterator[CheckedAsset]:
    """Each row with what its store says today, some thousands in memory; nothing is raised for an asset.

    With `checksums` the objects whose checksums are locked are read, and theirs are compared, too.
    """
    progress.phase("Comparing with the stores", total)
    remaining = iter(rows)
    with ThreadPoolExecutor(jobs) as readers:
        while window := list(itertools.islice(remaining, WINDOW)):
            probes: Iterable[Probe] = stores.probes([row.location for row in window], jobs)
            if checksums:
                probes = readers.map(functools.partial(_with_checksum, stores), window, probes)
            for row, probe in zip(window, probes, strict=True):
                progress.advance()
                yield compared(row, probe)


def _with_checksum(stores: Stores, row: lock_table.AssetRow, probe: Probe) -> Probe:
    # the checksum is by the lock's own algorithm, and only where it can decide anything
    locked = row.facts.file_checksum
    if locked is None or probe.facts is None or row.facts.has_other_size(probe.facts):
        return probe
    if (name := algorithm_of(locked)) is None:
        return probe
    try:
        digest = stores.checksum(row.location, name)
    except errors.OdfchainError as error:
        return Probe(missing=isinstance(error, errors.SourceNotFoundError), problem=str(error))
    start = locked[: len(locked) - len(digest)]
    return replace(probe, facts=replace(probe.facts, file_checksum=start + digest))
