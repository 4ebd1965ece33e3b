"""A lock out of what STAC documents name: each asset once, with the facts that its store says.

Without probing there is no request at all, and the size alone is what the document claims. All faults of a
run come together; they are left out of the rows. Source: RFC-047.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from odfchain import errors
from odfchain.assets import objects, stac
from odfchain.assets.hrefs import (
    REFS,
    STORAGE_SCHEMES,
    named_scheme,
    parse_href,
    placed,
)
from odfchain.assets.lock_table import AssetRow, Facts, text_fault
from odfchain.limits import ASSETS
from odfchain.progress import SILENT, Progress
from odfchain.startup import no_search_for_circles
from odfchain.storage import fsio
from odfchain.storage.locations import escape
from odfchain.text import counted, one_line


@dataclass(frozen=True, slots=True)
class Derived:
    """The rows of a lock in the making, and what could not become one."""

    rows: tuple[AssetRow, ...]
    faults: tuple[stac.AssetFault, ...]
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
        """Check that nothing was left out.

        Raises:
            AssetError: an asset cannot be recorded; the message lists all.
            FetchError, SourceNotFoundError: a store could not be reached, or has no such object; likewise.
        """
        if not self.faults:
            return
        kinds = [errors.AssetError, errors.FetchError, errors.SourceNotFoundError]
        kind = min(
            (type(fault.error) for fault in self.faults), key=lambda k: kinds.index(k) if k in kinds else 1
        )
        kind = kind if kind in kinds else errors.FetchError
        said = "; ".join(map(str, self.faults))
        raise kind(
            f"{counted(len(self.faults), 'asset')} cannot be recorded: {said}",
            hint="--keep-going leaves them out",
        )


def derive(
    sources: Sequence[str],
    stores: objects.Stores,
    selection: stac.Selection,
    *,
    probe: bool = True,
    checksum: objects.Method | None = None,
    jobs: int = objects.JOBS,
    folder: Path | None = None,
    progress: Progress = SILENT,
) -> Derived:
    """The rows of all wanted assets of these sources, for a lock in a folder.

    Raises:
        AssetError: a source is not STAC, two assets have the same item and key, or there are more than a lock
            may have.
    """
    faults = list[stac.AssetFault]()
    reader = stac.StacReader(stores, selection, faults.append)
    progress.phase("Reading STAC")
    with no_search_for_circles():
        every = (asset for source in sources for asset in reader.assets(source))
        named = list(islice(every, ASSETS.rows + 1))
    if len(named) > ASSETS.rows:
        raise errors.AssetError(
            f"more than {ASSETS.rows:,} assets, and a lock has no more rows",
            hint="make a lock for each collection",
        )
    _check_asked_for(named, selection)
    with no_search_for_circles():
        rows: Sequence[AssetRow] = [
            AssetRow(a.item_id, a.asset_key, a.location.relative_to(folder), Facts(a.size))
            for a in _distinct(named)
        ]
    warnings: Sequence[str] = ()
    if probe:
        probed = probed_rows(rows, stores, sizes_are_claims=True, jobs=jobs, progress=progress)
        rows, warnings = probed.rows, probed.warnings
        faults.extend(probed.faults)
    if checksum is not None:
        rows = _with_checksums(rows, stores, checksum, faults, progress)
    return Derived(tuple(rows), tuple(faults), tuple(warnings), reader.items)


def probed_rows(
    rows: Sequence[AssetRow],
    stores: objects.Stores,
    *,
    sizes_are_claims: bool = False,
    jobs: int = objects.JOBS,
    progress: Progress = SILENT,
) -> Derived:
    """These rows with what their stores say; one that is not there is a fault."""
    # another size is a fault, or a warning where sizes are only claims of documents
    found, faults, warnings = list[AssetRow](), list[stac.AssetFault](), list[str]()
    progress.phase("Asking for facts", len(rows))
    probes: list[objects.Probe] = []
    for start in range(0, len(rows), objects.WINDOW):
        window = rows[start : start + objects.WINDOW]
        probes += objects.probes_of([row.location for row in window], stores, jobs)
        progress.advance(len(window))
    for row, probe in zip(rows, probes, strict=True):
        before = row.facts.size_bytes
        if probe.facts is None:
            kind = errors.SourceNotFoundError if probe.missing else errors.FetchError
            faults.append(stac.AssetFault(row.item_id, row.asset_key, kind(probe.problem)))
            continue
        tag = text_fault("etag", probe.facts.etag or "")
        if tag is not None:
            faults.append(
                stac.AssetFault(
                    row.item_id, row.asset_key, errors.AssetError(f"its store says what no lock holds: {tag}")
                )
            )
            continue
        size = probe.facts.size_bytes
        if size is not None and before is not None and size != before:
            if not sizes_are_claims:
                problem = errors.FetchError(f"{size:,} bytes instead of {before:,}")
                faults.append(stac.AssetFault(row.item_id, row.asset_key, problem))
                continue
            warnings.append(f"{one_line(row.label)}: file:size says {before:,}, the store {size:,} bytes")
        found.append(replace(row, facts=replace(probe.facts, file_checksum=row.facts.file_checksum)))
    return Derived(tuple(found), tuple(faults), tuple(warnings), len({row.item_id for row in rows}))


def _with_checksums(
    rows: Iterable[AssetRow],
    stores: objects.Stores,
    method: objects.Method,
    faults: list[stac.AssetFault],
    progress: Progress = SILENT,
) -> list[AssetRow]:
    """These rows with checksums; one whose bytes cannot be read is left out and is a fault."""
    chosen, found = list(rows), list[AssetRow]()
    progress.phase("Reading objects", len(chosen))
    for row in chosen:
        checksum = None
        if method in (objects.Method.USE_ETAG, objects.Method.CALCULATE_IF_NEEDED):
            checksum = objects.of_etag(row.facts.etag)
        try:
            if method is objects.Method.CALCULATE_ALWAYS or (
                method is objects.Method.CALCULATE_IF_NEEDED and checksum is None
            ):
                checksum = objects.SHA2_256 + objects.checksum_of(
                    row.location, stores, "sha256", etag=row.facts.strong_etag
                )
            found.append(replace(row, facts=replace(row.facts, file_checksum=checksum)))
        except errors.OdfchainError as error:
            faults.append(stac.AssetFault(row.item_id, row.asset_key, error))
        progress.advance()
    return found


def _check_asked_for(named: Iterable[stac.NamedAsset], selection: stac.Selection) -> None:
    # a misspelt id must not make an empty lock
    items, assets = {asset.item_id for asset in named}, {asset.asset_key for asset in named}
    missing = sorted(selection.items - items) + sorted(selection.assets - assets)
    if missing:
        raise errors.AssetError(f"no item or asset is called {', '.join(map(one_line, missing))}")


def _distinct(named: Iterable[stac.NamedAsset]) -> list[stac.NamedAsset]:
    # documents that say the same twice are no fault
    found, faults, hint = dict[tuple[str, str], stac.NamedAsset](), list[str](), None
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


# STAC documents with the locations and facts of a lock, as an alternate of each asset or as its href.
# Items and assets are matched by both ids; what has no row stays as it is. A `file:checksum` that the lock
# does not know is removed: it is a claim about bytes that may be others. Documents are written only if all
# are valid (RFC-047; alternate-assets 1.2, file 2.1, storage 2.0).

ORIGINAL = "original"
"""The alternate that an asset's own href becomes."""
Rows = Mapping[tuple[str, str], AssetRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions:
    """Options of writing locations into Items."""

    name: str = "locked"
    """Of the alternate."""
    primary: bool = False
    """True if they become the assets' own hrefs."""
    keep_version: bool = False
    """True if documents of STAC 1.0 stay at 1.0, and their extensions as they are."""
    access: objects.Access
    """The base of relative keys."""


@dataclass(frozen=True, slots=True)
class Projected:
    """Documents that were written."""

    documents: int
    assets: int


def project(source: str, rows: Rows, out: Path, options: ProjectOptions) -> Projected:
    """Write the documents of a file or folder below `out`, with the locations of these rows.

    Raises:
        UsageError: there is no such source, or `out` is in it.
        AssetError: documents are not STAC; the message lists all, and nothing is written.
        NameCollisionError: files are there already; likewise.
        StoreError: one cannot be written.
        EngineError: pystac is not installed.
    """
    root, assets = Path(source).resolve(), 0
    if not root.exists():
        raise errors.UsageError(f"{source}: no such file")
    if out.resolve().is_relative_to(root):
        raise errors.UsageError(f"{out}: in the folder that is read", hint="choose another folder with --out")
    targets = {
        path: out / (path.relative_to(root) if root.is_dir() else path.name) for path in _documents(root)
    }
    documents = _checked(targets, rows, options)
    for path in documents:
        data, count = _projected(path, rows, targets[path].parent, options, set())
        fsio.make_folder(targets[path].parent)
        if not fsio.create_file(targets[path], data):
            raise _taken([targets[path]])
        assets += count
    return Projected(len(documents), assets)


def projected_item(
    item: Mapping[str, Any], rows: Rows, folder: Path, options: ProjectOptions
) -> tuple[dict[str, Any], int]:
    """(an Item that lies in `folder` with the locations of these rows, how many of its assets have one)."""
    found = _brought_up(item, keep_version=options.keep_version)
    _check_item(found)
    written = {key: row for key in found["assets"] if (row := rows.get((found["id"], key))) is not None}
    if any(row.location.is_relative for row in written.values()):
        _move(found)
    used = set[str]()
    for key, row in written.items():
        used |= _write(found, found["assets"][key], row, folder, options)
    for name in (ALTERNATE, FILE, STORAGE):
        if name in used:
            _declare(found, name)
    return found, len(written)


def _move(item: dict[str, Any]) -> None:
    # readers resolve hrefs against the `self` link, and the lock's own file is not at that place
    links = item["links"] if isinstance(item.get("links"), list) else []
    own = [each for each in links if isinstance(each, dict) and each.get("rel") == "self"]
    hrefs = [each.get("href") for each in own]
    base = next((href for href in hrefs if isinstance(href, str) and "://" in href), None)
    if base is None:
        return
    known = any(isinstance(each, dict) and each.get("rel") == "canonical" for each in links)
    item["links"] = [
        {**each, "rel": "canonical"} if each in own else each
        for each in links
        if each not in own or not known
    ]
    for asset in item["assets"].values():
        for place in (asset, *asset.get("alternate", {}).values()):
            href = place.get("href")
            if isinstance(href, str) and "://" not in href:
                with contextlib.suppress(errors.AssetError):  # what no lock could name stays
                    place["href"] = parse_href(href, base).href()


def _checked(targets: Mapping[Path, Path], rows: Rows, options: ProjectOptions) -> list[Path]:
    # files that are no documents have to be those of assets
    faults, files = dict[Path, errors.AssetError](), set[str]()
    for path, target in targets.items():
        try:
            _projected(path, rows, target.parent, options, files)
        except errors.AssetError as error:
            faults[path] = error
    bad = [
        error
        for path, error in faults.items()
        if not isinstance(error, stac.NoDocumentError) or str(path) not in files
    ]
    if len(bad) == 1:
        raise bad[0]
    if bad:
        raise errors.AssetError(f"{len(bad):,} documents are not STAC: {'; '.join(map(str, bad))}")
    documents = [path for path in targets if path not in faults]
    taken = [targets[path] for path in documents if targets[path].exists()]
    if taken:
        raise _taken(taken)
    return documents


def _taken(targets: Sequence[Path]) -> errors.NameCollisionError:
    more = f" and {len(targets) - 1:,} more" if targets[1:] else ""
    return errors.NameCollisionError(
        f"{targets[0]}{more}: already exists", hint="choose an empty folder with --out"
    )


def _documents(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in stac.JSON and path.is_file():
            yield path


def _projected(
    path: Path, rows: Rows, folder: Path, options: ProjectOptions, files: set[str]
) -> tuple[bytes, int]:
    """(the bytes of a document, how many assets have their locations); the message has the path.

    `files` is given the paths of assets that by their names could be documents.
    """

    def item(document: Any) -> tuple[dict[str, Any], int]:
        files.update(stac.files_like_documents(document, str(path)))
        return projected_item(document, rows, folder, options)

    def one(document: Any) -> tuple[dict[str, Any], int]:
        kind = stac.kind_of(document, str(path))
        if kind == "Feature":
            return item(document)
        if kind == "FeatureCollection":
            found = [item(each) for each in stac.features_of(document, str(path))]
            return {**document, "features": [item for item, _ in found]}, sum(count for _, count in found)
        return _brought_up(document, keep_version=options.keep_version), 0

    data = stac.bytes_of(path)
    in_lines = path.suffix.lower() in stac.LINES
    try:
        found = [
            one(each)
            for each in (stac.documents_of(data, str(path)) if in_lines else [stac.parsed(data, str(path))])
        ]
        shown = [
            json.dumps(each, ensure_ascii=False, indent=None if in_lines else 2, allow_nan=False) + "\n"
            for each, _ in found
        ]
        return "".join(shown).encode(), sum(count for _, count in found)
    except errors.AssetError as error:
        message = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise type(error)(message, hint=error.hint) from None
    except ValueError:
        raise errors.AssetError(
            f"{path}: a number that is not finite, or a text that is not Unicode"
        ) from None


def _check_item(item: Mapping[str, Any]) -> None:
    assets, properties = item.get("assets"), item.get("properties")
    if (
        not isinstance(item.get("id"), str)
        or not isinstance(assets, dict)
        or not isinstance(properties, dict)
    ):
        raise stac.NoDocumentError("an Item without an id, without properties or without assets")
    label = one_line(item["id"])
    if not isinstance(properties.get(STORAGE_SCHEMES, {}), dict):
        raise errors.AssetError(f"{label}: its {STORAGE_SCHEMES} are not a map")
    for key, asset in assets.items():
        if not isinstance(asset, dict) or not isinstance(asset.get("href"), str):
            raise errors.AssetError(f"{label} {one_line(key)}: no href")
        others = asset.get("alternate", {})
        if not isinstance(others, dict) or not all(isinstance(each, dict) for each in others.values()):
            raise errors.AssetError(f"{label} {one_line(key)}: its alternates are not a map")


def _write(
    item: dict[str, Any], asset: dict[str, Any], row: AssetRow, folder: Path, options: ProjectOptions
) -> set[str]:
    href = _href(row, folder, options.access)
    if not options.primary:
        place = asset.setdefault("alternate", {}).setdefault(options.name, {})
        if not _is_there(item, place, row, href):
            _without_place(place)
            _put(item, place, row, href)
    elif not _is_there(item, asset, row, href):
        original = {"href": asset["href"], **_without_place(asset)}
        asset.setdefault("alternate", {}).setdefault(ORIGINAL, original)
        _put(item, asset, row, href)
    for claiming in (asset, *asset.get("alternate", {}).values()):
        claiming.pop("file:checksum", None)
    if row.facts.file_checksum is not None:
        asset["file:checksum"] = row.facts.file_checksum
    if row.facts.size_bytes is not None:
        asset["file:size"] = row.facts.size_bytes
    uses = {
        ALTERNATE: "alternate" in asset,
        FILE: bool({"file:size", "file:checksum"} & asset.keys()),
        STORAGE: row.location.endpoint is not None,
    }
    return {name for name, used in uses.items() if used}


def _is_there(item: Mapping[str, Any], place: Mapping[str, Any], row: AssetRow, href: str) -> bool:
    # the href must be equal, and its endpoint
    if place.get("href") != href:
        return False
    if row.location.store not in ("s3", "az"):
        return True
    try:
        return (
            placed(parse_href(href), item["properties"].get(STORAGE_SCHEMES), place.get(REFS)) == row.location
        )
    except errors.AssetError:
        return False


def _without_place(place: dict[str, Any]) -> dict[str, Any]:
    names = [n for n in place if n.startswith("storage:") or n in ("auth:refs", "alternate:name")]
    return {name: place.pop(name) for name in names}


def _put(item: dict[str, Any], place: dict[str, Any], row: AssetRow, href: str) -> None:
    place["href"] = href
    if row.location.endpoint is not None:
        place[REFS] = [named_scheme(row.location, item["properties"].setdefault(STORAGE_SCHEMES, {}))]


def _href(row: AssetRow, folder: Path, access: objects.Access) -> str:
    # relative to the folder of the document that it is written into
    if not row.location.is_relative:
        return row.location.href()
    relative = os.path.relpath(access.folder / row.location.key, folder.resolve())
    return escape(relative if relative.startswith("../") else f"./{relative}")


# Migration of STAC and its extensions by pystac. Fields of extensions that it cannot migrate stay, and so
# does the version that knows them, because the newest one refuses them (RFC-047; alternate-assets 1.2, file
# 2.1, storage 2.0).

_EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
ALTERNATE, FILE, STORAGE = "alternate-assets", "file", "storage"
_VERSIONS = {ALTERNATE: "v1.2.0", FILE: "v2.1.0", STORAGE: "v2.0.0"}
_KNOWN = {
    FILE: {
        "file:byte_order",
        "file:checksum",
        "file:header_size",
        "file:size",
        "file:values",
        "file:local_path",
    },
    STORAGE: {STORAGE_SCHEMES, REFS},
}
"""All that the newest versions know; their schemas refuse what else begins like that."""
_KEPT = re.compile(r"1\.[01]\.[0-9]+")
_ABSENT = ("bbox", "collection")
"""Fields that are left out where unknown; documents that were columns once have null."""


def _brought_up(document: Mapping[str, Any], *, keep_version: bool) -> dict[str, Any]:
    """A copy of a document, in the newest version of STAC and its extensions unless versions are kept."""
    # 1.0 and 1.1 may be kept; older versions are always migrated
    extensions = document.get("stac_extensions") or []
    if not isinstance(extensions, list) or not all(isinstance(each, str) for each in extensions):
        raise errors.AssetError(
            f"{one_line(str(document.get('id')))}: its stac_extensions are not a list of URLs"
        )
    version = str(document.get("stac_version"))
    parts = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    if parts is not None and (int(parts[1]), int(parts[2])) > (1, 1):
        raise errors.AssetError(
            f"{one_line(str(document.get('id')))}: STAC {one_line(version)} is newer than 1.1"
        )
    if keep_version and _KEPT.fullmatch(version):
        return copy.deepcopy(dict(document))
    found = _migrated(document)
    stuck = [
        each
        for each in extensions
        for name in _KNOWN
        if each not in found["stac_extensions"] and f"/{name}/" in each and _is_older(found, name)
    ]
    if stuck:  # what pystac cannot bring up to date stays what it was, and says so
        others = [each for each in extensions if each not in stuck]
        found = _migrated({**document, "stac_extensions": others})
        found["stac_extensions"] += stuck
    return found


def _migrated(document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        import pystac  # noqa: PLC0415 - an optional library
        from pystac.serialization import identify_stac_object, migrate_to_latest  # noqa: PLC0415
    except ImportError:
        raise errors.EngineError(
            "projecting needs pystac, which is not installed", hint="pip install 'odfchain[assets]'"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of fields that it leaves is judged above
            found = migrate_to_latest(dict(document), identify_stac_object(dict(document)))
    except (pystac.STACError, pystac.STACTypeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise stac.NoDocumentError(
            f"{one_line(str(document.get('id', 'no id')))}: not STAC: {one_line(str(error))}"
        ) from None
    known = {name: value for name, value in found.items() if value is not None or name not in _ABSENT}
    return {"links": [], **known}


def _declare(item: dict[str, Any], name: str) -> None:
    """Say that an Item uses an extension, unless it does or has what the newest version refuses."""
    # older versions of `file` have size and checksum, too, and those of `alternate-assets` their map
    declared = item.get("stac_extensions") or []
    newest = _EXTENSION.format(f"{name}/{_VERSIONS[name]}")
    older = any(f"/{name}/v" in str(each) for each in declared) and name != STORAGE
    if newest not in declared and not older and not _is_older(item, name):
        item["stac_extensions"] = [*declared, newest]


def _is_older(document: Mapping[str, Any], name: str) -> bool:
    # it has fields that the newest version of an extension does not know
    known = _KNOWN.get(name)
    if known is None:
        return False
    links, assets = document.get("links"), document.get("assets")
    parts = [document.get("properties"), *(links if isinstance(links, list) else ())]
    parts += assets.values() if isinstance(assets, dict) else ()
    used = {key for part in parts if isinstance(part, dict) for key in part if key.startswith(f"{name}:")}
    return not used <= known
