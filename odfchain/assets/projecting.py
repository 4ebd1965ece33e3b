"""STAC with the locations and facts of a lock: an alternate of each asset, or its href itself.

Items and assets are matched by both ids. Documents keep their folders below the new one; what has no row
stays as it is. A `file:checksum` that the lock does not know is removed, because it is a claim about bytes
that may be others. pystac brings older versions of STAC up to date, all but those of extensions that it
cannot; nothing is written unless every document is in order. Source: RFC-047; the extensions alternate-assets
1.2, file 2.1 and storage 2.0.
"""

from __future__ import annotations

import copy
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from odfchain.assets.access import Access
from odfchain.assets.hrefs import href_of, parse_href, relative_to_lock
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.stac_documents import JSON, LINES, bytes_of, documents_of, features_of, kind_of, parsed
from odfchain.assets.storage_schemes import REFS, SCHEMES, named_scheme, placed
from odfchain.errors import AssetError, EngineError, NameCollisionError, UsageError
from odfchain.store import fsio
from odfchain.text import one_line

_EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
_ALTERNATE, _FILE, _STORAGE = "alternate-assets", "file", "storage"
_VERSIONS = {_ALTERNATE: "v1.2.0", _FILE: "v2.1.0", _STORAGE: "v2.0.0"}
_KNOWN = {
    _FILE: {
        "file:byte_order",
        "file:checksum",
        "file:header_size",
        "file:size",
        "file:values",
        "file:local_path",
    },
    _STORAGE: {SCHEMES, REFS},
}
"""All that the newest versions know; their schemas refuse what else begins like that."""
_KEPT = re.compile(r"1\.[01]\.[0-9]+")
_ABSENT = ("bbox", "collection")
"""What is left out where it is not known; null stands there in documents that were columns once."""
ORIGINAL = "original"
"""The alternate that an asset's own href becomes."""
Rows = Mapping[tuple[str, str], AssetRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions:
    """How locations are written into Items."""

    name: str = "locked"
    """Of the alternate."""
    primary: bool = False
    """Whether they become the assets' own hrefs."""
    keep_version: bool = False
    """Whether documents of STAC 1.0 stay at 1.0, and their extensions as they are."""
    access: Access
    """Where relative keys begin."""


@dataclass(frozen=True, slots=True)
class Projected:
    """What was written."""

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
        raise UsageError(f"{source}: there is no such file")
    if out.resolve().is_relative_to(root):
        raise UsageError(f"{out}: in the folder that is read", hint="choose another folder with --out")
    targets = {
        path: out / (path.relative_to(root) if root.is_dir() else path.name) for path in _documents(root)
    }
    _check(targets, rows, options)
    for path, target in targets.items():
        data, count = _projected(path, rows, target.parent, options)
        fsio.make_folder(target.parent)
        if not fsio.create_file(target, data):
            raise _taken([target])
        assets += count
    return Projected(len(targets), assets)


def projected_item(
    item: Mapping[str, Any], rows: Rows, folder: Path, options: ProjectOptions
) -> tuple[dict[str, Any], int]:
    """(an Item that lies in `folder` with the locations of these rows, how many of its assets have one).

    Raises:
        AssetError: it is not an Item.
        EngineError: pystac is not installed.
    """
    found = _brought_up(item, options)
    _check_item(found)
    count, used = 0, set[str]()
    for key, asset in found["assets"].items():
        row = rows.get((found["id"], key))
        if row is not None:
            used |= _write(found, asset, row, folder, options)
            count += 1
    for name in (_ALTERNATE, _FILE, _STORAGE):
        if name in used:
            _declare(found, name)
    return found, count


def _check(targets: Mapping[Path, Path], rows: Rows, options: ProjectOptions) -> None:
    taken = [target for target in targets.values() if target.exists()]
    if taken:
        raise _taken(taken)
    faults = list[AssetError]()
    for path, target in targets.items():
        try:
            _projected(path, rows, target.parent, options)
        except AssetError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise AssetError(
            f"{len(faults):,} documents are not STAC:\n" + "\n".join(f"  {each}" for each in faults)
        )


def _taken(targets: Iterable[Path]) -> NameCollisionError:
    shown = ", ".join(map(str, targets))
    return NameCollisionError(f"{shown}: there already", hint="choose an empty folder with --out")


def _documents(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in JSON and path.is_file():
            yield path


def _projected(path: Path, rows: Rows, folder: Path, options: ProjectOptions) -> tuple[bytes, int]:
    """(the bytes of a document, how many assets have their locations); the message has the path."""

    def one(document: Any) -> tuple[Any, int]:
        kind = kind_of(document, str(path))
        if kind == "Feature":
            return projected_item(document, rows, folder, options)
        if kind == "FeatureCollection":
            found = [projected_item(each, rows, folder, options) for each in features_of(document, str(path))]
            return {**document, "features": [item for item, _ in found]}, sum(count for _, count in found)
        return _brought_up(document, options), 0

    data = bytes_of(path)
    in_lines = path.suffix.lower() in LINES
    try:
        found = [one(each) for each in (documents_of if in_lines else _alone)(data, str(path))]
        shown = [
            json.dumps(each, ensure_ascii=False, indent=None if in_lines else 2, allow_nan=False) + "\n"
            for each, _ in found
        ]
        return "".join(shown).encode(), sum(count for _, count in found)
    except AssetError as error:
        message = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise AssetError(message, hint=error.hint) from None
    except ValueError:
        raise AssetError(f"{path}: a number that is not finite, or a text that is not Unicode") from None


def _alone(data: bytes, name: str) -> Iterator[Any]:
    yield parsed(data, name)


def _brought_up(document: Mapping[str, Any], options: ProjectOptions) -> dict[str, Any]:
    """A document in the newest version of STAC and of its extensions, or as it is."""
    extensions = document.get("stac_extensions") or []
    if not isinstance(extensions, list) or not all(isinstance(each, str) for each in extensions):
        raise AssetError(f"{one_line(str(document.get('id')))}: its stac_extensions are no list of URLs")
    if options.keep_version and _KEPT.fullmatch(str(document.get("stac_version"))):
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
        raise EngineError(
            "projecting needs pystac, which is not installed", hint="pip install 'odfchain[assets]'"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of fields that it leaves is judged above
            found = migrate_to_latest(dict(document), identify_stac_object(dict(document)))
    except (pystac.STACError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise AssetError(f"{one_line(str(document.get('id')))}: not STAC: {one_line(str(error))}") from None
    absent = {"stac_version": pystac.version.STACVersion.DEFAULT_STAC_VERSION, "links": []}
    return {**absent, **{k: v for k, v in found.items() if v is not None or k not in _ABSENT}}


def _check_item(item: Mapping[str, Any]) -> None:
    """Pass if an Item is one in all that is written to."""
    assets, properties = item.get("assets"), item.get("properties")
    if (
        not isinstance(item.get("id"), str)
        or not isinstance(assets, dict)
        or not isinstance(properties, dict)
    ):
        raise AssetError("an Item without an id, without properties or without assets")
    label = one_line(item["id"])
    if not isinstance(properties.get(SCHEMES, {}), dict):
        raise AssetError(f"{label}: its {SCHEMES} are no map")
    for key, asset in assets.items():
        if not isinstance(asset, dict) or not isinstance(asset.get("href"), str):
            raise AssetError(f"{label} {one_line(key)}: there is no href")
        others = asset.get("alternate", {})
        if not isinstance(others, dict) or not all(isinstance(each, dict) for each in others.values()):
            raise AssetError(f"{label} {one_line(key)}: its alternates are no map")


def _write(
    item: dict[str, Any], asset: dict[str, Any], row: AssetRow, folder: Path, options: ProjectOptions
) -> set[str]:
    """Write what a row says of an asset; the extensions that it takes."""
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
        _ALTERNATE: "alternate" in asset,
        _FILE: bool({"file:size", "file:checksum"} & asset.keys()),
        _STORAGE: row.location.endpoint is not None,
    }
    return {name for name, used in uses.items() if used}


def _is_there(item: Mapping[str, Any], place: Mapping[str, Any], row: AssetRow, href: str) -> bool:
    """Whether a document says already that an asset is where its row says: the href, and its endpoint."""
    if place.get("href") != href:
        return False
    if row.location.store not in ("s3", "az"):
        return True
    try:
        return placed(parse_href(href), item["properties"].get(SCHEMES), place.get(REFS)) == row.location
    except AssetError:
        return False


def _without_place(place: dict[str, Any]) -> dict[str, Any]:
    """What an asset says of the place of its href, taken out of it."""
    names = [n for n in place if n.startswith("storage:") or n in ("auth:refs", "alternate:name")]
    return {name: place.pop(name) for name in names}


def _put(item: dict[str, Any], place: dict[str, Any], row: AssetRow, href: str) -> None:
    place["href"] = href
    if row.location.endpoint is not None:
        place[REFS] = [named_scheme(row.location, item["properties"].setdefault(SCHEMES, {}))]


def _declare(item: dict[str, Any], name: str) -> None:
    """Say that an Item uses an extension, unless it does or has what the newest version refuses.

    Older versions of `file` know size and checksum, too, and those of `alternate-assets` their map.
    """
    declared = item.get("stac_extensions") or []
    newest = _EXTENSION.format(f"{name}/{_VERSIONS[name]}")
    older = any(f"/{name}/v" in str(each) for each in declared) and name != _STORAGE
    if newest not in declared and not older and not _is_older(item, name):
        item["stac_extensions"] = [*declared, newest]


def _is_older(document: Mapping[str, Any], name: str) -> bool:
    """Whether a document has fields of an extension that its newest version does not know."""
    known = _KNOWN.get(name)
    if known is None:
        return False
    parts = [
        document.get("properties"),
        *(document.get("links") or ()),
        *(document.get("assets") or {}).values(),
    ]
    used = {key for part in parts if isinstance(part, dict) for key in part if key.startswith(f"{name}:")}
    return not used <= known


def _href(row: AssetRow, folder: Path, access: Access) -> str:
    """The href as it is right in a document in `folder`."""
    if not relative_to_lock(row.location):
        return href_of(row.location)
    relative = os.path.relpath(access.folder / row.location.key, folder.resolve())
    return quote(relative if relative.startswith("../") else f"./{relative}", "/-._~")
