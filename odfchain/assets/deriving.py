"""A lock out of what STAC documents name: each asset once, with the facts that its store says.

Without probing there is no request at all, and the size alone is what the document claims. All faults of a
run come together; they are left out of the rows. Source: RFC-047.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from odfchain.assets.access import Stores
from odfchain.assets.checksums import Method, with_checksums
from odfchain.assets.lock_rules import text_fault
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.assets.probing import JOBS, probe_all
from odfchain.assets.stac import AssetFault, NamedAsset, Selection, StacReader
from odfchain.collector import no_search_for_circles
from odfchain.errors import AssetError, FetchError, SourceNotFoundError
from odfchain.limits import ASSETS
from odfchain.progress import SILENT, Progress
from odfchain.store.locations import Location
from odfchain.text import counted, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveOptions:
    """How a lock is made."""

    selection: Selection = field(default_factory=Selection)
    probe: bool = True
    checksum: Method | None = None
    jobs: int = JOBS
    relative_to: Path | None = None
    """The folder of the lock: files in it are named relative to it, so that the folder can move."""


@dataclass(frozen=True, slots=True)
class Derived:
    """The rows of a lock in the making, and what could not become one."""

    rows: tuple[AssetRow, ...]
    faults: tuple[AssetFault, ...]
    warnings: tuple[str, ...]
    items: int

    @property
    def summary(self) -> str:
        """Like `1,204 assets of 301 items in 3 stores (https 903, s3 301)`."""
        kinds = Counter(row.location.store for row in self.rows)
        stores = {(r.location.store, r.location.container, r.location.endpoint) for r in self.rows}
        shown = ", ".join(f"{store} {count:,}" for store, count in kinds.most_common())
        where = f" in {counted(len(stores), 'store')} ({shown})" if self.rows else ""
        return f"{counted(len(self.rows), 'asset')} of {counted(self.items, 'item')}{where}"

    def check(self) -> None:
        """Pass if nothing was left out.

        Raises:
            AssetError: an asset cannot be recorded; the message lists all.
            FetchError, SourceNotFoundError: a store could not be reached, or has no such object; likewise.
        """
        if not self.faults:
            return
        kinds = [AssetError, FetchError, SourceNotFoundError]
        kind = min(
            (type(fault.error) for fault in self.faults), key=lambda k: kinds.index(k) if k in kinds else 1
        )
        kind = kind if kind in kinds else FetchError
        said = "; ".join(map(str, self.faults))
        raise kind(
            f"{counted(len(self.faults), 'asset')} cannot be recorded: {said}",
            hint="--keep-going leaves them out",
        )


def derive(
    sources: Sequence[str], stores: Stores, options: DeriveOptions, progress: Progress = SILENT
) -> Derived:
    """The rows of all wanted assets of these sources.

    Raises:
        AssetError: a source is not STAC, two assets have the same item and key, or there are more than a lock
            may have.
    """
    faults = list[AssetFault]()
    reader = StacReader(stores, options.selection, faults.append)
    progress.phase("Reading STAC")
    with no_search_for_circles():
        every = (asset for source in sources for asset in reader.assets(source))
        named = list(islice(every, ASSETS.rows + 1))
    if len(named) > ASSETS.rows:
        raise AssetError(
            f"more than {ASSETS.rows:,} assets, and a lock has no more rows",
            hint="make a lock for each collection",
        )
    _check_asked_for(named, options.selection)
    with no_search_for_circles():
        rows: Sequence[AssetRow] = [
            AssetRow(a.item_id, a.asset_key, beside(a.location, options.relative_to), Facts(a.size))
            for a in _distinct(named)
        ]
    warnings: Sequence[str] = ()
    if options.probe:
        probed = probed_rows(rows, stores, sizes_are_claims=True, jobs=options.jobs, progress=progress)
        rows, warnings = probed.rows, probed.warnings
        faults.extend(probed.faults)
    if options.checksum is not None:
        rows = with_checksums(rows, stores, options.checksum, faults, progress)
    return Derived(tuple(rows), tuple(faults), tuple(warnings), reader.items)


def probed_rows(
    rows: Sequence[AssetRow],
    stores: Stores,
    *,
    sizes_are_claims: bool = False,
    jobs: int = JOBS,
    progress: Progress = SILENT,
) -> Derived:
    """These rows with what their stores say; one that is not there is a fault.

    One of another size is a fault, too, or a warning where the sizes are only what documents claim.
    """
    found, faults, warnings = list[AssetRow](), list[AssetFault](), list[str]()
    probes = probe_all([row.location for row in rows], stores, jobs=jobs, progress=progress)
    for row, probe in zip(rows, probes, strict=True):
        before = row.facts.size_bytes
        if probe.facts is None:
            kind = SourceNotFoundError if probe.missing else FetchError
            faults.append(AssetFault(row.item_id, row.asset_key, kind(probe.problem)))
            continue
        tag = text_fault("etag", probe.facts.etag or "")
        if tag is not None:
            faults.append(
                AssetFault(
                    row.item_id, row.asset_key, AssetError(f"its store says what no lock holds: {tag}")
                )
            )
            continue
        size = probe.facts.size_bytes
        if size is not None and before is not None and size != before:
            if not sizes_are_claims:
                problem = FetchError(f"{size:,} bytes instead of {before:,}")
                faults.append(AssetFault(row.item_id, row.asset_key, problem))
                continue
            warnings.append(f"{one_line(row.label)}: file:size says {before:,}, the store {size:,} bytes")
        found.append(replace(row, facts=replace(probe.facts, file_checksum=row.facts.file_checksum)))
    return Derived(tuple(found), tuple(faults), tuple(warnings), len({row.item_id for row in rows}))


def _check_asked_for(named: Iterable[NamedAsset], selection: Selection) -> None:
    """Pass if each id that was asked for is there: a slip of the pen makes no empty lock."""
    items, assets = {asset.item_id for asset in named}, {asset.asset_key for asset in named}
    missing = sorted(selection.items - items) + sorted(selection.assets - assets)
    if missing:
        raise AssetError(f"there is no item or asset called {', '.join(map(one_line, missing))}")


def _distinct(named: Iterable[NamedAsset]) -> list[NamedAsset]:
    """Each asset once: documents that say the same twice are no fault."""
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
        raise AssetError("; ".join(faults), hint=hint)
    return list(found.values())


def beside(location: Location, folder: Path | None) -> Location:
    """A location as the lock in a folder has it: a file below that is named relative to it."""
    if location.store != "file" or folder is None:
        return location
    path = Path(location.key)
    return (
        replace(location, key=path.relative_to(folder).as_posix())
        if path.is_relative_to(folder)
        else location
    )
