"""STAC with the locations and facts of a lock: an alternate of each asset, or its href itself.

Items and assets are matched by both ids. Documents keep their folders below the new one; what has no row
stays as it is. A `file:checksum` that the lock does not know is removed, because it is a claim about bytes
that may be others. pystac brings older versions of STAC up to date. Source: RFC-047; the extensions
alternate-assets 1.2, file 2.1 and storage 2.0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from odfchain.assets.access import Access
from odfchain.assets.hrefs import href_of, relative_to_lock
from odfchain.assets.lock_table import AssetRow
from odfchain.errors import AssetError, StoreError, UsageError
from odfchain.limits import ASSETS
from odfchain.store import fsio

_EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
_ALTERNATE, _FILE, _STORAGE = (
    _EXTENSION.format(name) for name in ("alternate-assets/v1.2.0", "file/v2.1.0", "storage/v2.0.0")
)
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
        AssetError: a document is not STAC.
        StoreError: one cannot be written, or is there already.
    """
    root, documents, assets = Path(source).resolve(), 0, 0
    if not root.exists():
        raise UsageError(f"{source}: there is no such file")
    if out.resolve().is_relative_to(root):
        raise UsageError(f"{out}: in the folder that is read", hint="choose another folder with --out")
    for path in _documents(root):
        target = out / (path.relative_to(root) if root.is_dir() else path.name)
        document, count = _projected(_read(path), rows, target.parent, options)
        fsio.make_folder(target.parent)
        text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        if not fsio.create_file(target, text.encode()):
            raise StoreError(f"{target}: the file exists already", hint="choose an empty folder with --out")
        documents, assets = documents + 1, assets + count
    return Projected(documents, assets)


def projected_item(
    item: Mapping[str, Any], rows: Rows, folder: Path, options: ProjectOptions
) -> tuple[Any, int]:
    """(an Item that lies in `folder` with the locations of these rows, how many of its assets have one)."""
    import pystac  # noqa: PLC0415 - an optional library

    try:
        # the assets stay as they are: pystac knows not all of what extensions say of them
        found = pystac.Item.from_dict(dict(item), migrate=True, preserve_dict=True).to_dict(
            include_self_link=True, transform_hrefs=False
        )
    except (pystac.STACError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise AssetError(f"{item.get('id')}: not an Item: {error}") from None
    count = 0
    for key, asset in found["assets"].items():
        row = rows.get((found["id"], key))
        if row is not None:
            _write(found, asset, row, folder, options)
            count += 1
    return found, count


def _write(
    item: dict[str, Any], asset: dict[str, Any], row: AssetRow, folder: Path, options: ProjectOptions
) -> None:
    extensions = {*item.get("stac_extensions", ())}
    href = _href(row, folder, options.access)
    place: dict[str, Any] = asset
    if not options.primary:
        place = asset.setdefault("alternate", {}).setdefault(options.name, {})
    elif asset["href"] != href:
        asset.setdefault("alternate", {}).setdefault(ORIGINAL, {"href": asset["href"]})
    place["href"] = href
    if "alternate" in asset:
        extensions.add(_ALTERNATE)
    asset.pop("file:checksum", None)
    if row.facts.file_checksum is not None:
        asset["file:checksum"] = row.facts.file_checksum
    if row.facts.size_bytes is not None:
        asset["file:size"] = row.facts.size_bytes
    if {"file:size", "file:checksum"} & asset.keys():
        extensions.add(_FILE)
    if row.location.endpoint is not None:
        name, scheme = _scheme(row)
        item["properties"].setdefault("storage:schemes", {})[name] = scheme
        place["storage:refs"] = [name]
        extensions.add(_STORAGE)
    item["stac_extensions"] = sorted(extensions)


def _scheme(row: AssetRow) -> tuple[str, dict[str, Any]]:
    """(name, what the storage extension says of an endpoint)."""
    endpoint = row.location.endpoint or ""
    kind = "ms-azure" if row.location.store == "az" else "custom-s3"
    return (urlsplit(endpoint).netloc or endpoint), {"type": kind, "platform": endpoint}


def _href(row: AssetRow, folder: Path, access: Access) -> str:
    """The href as it is right in a document in `folder`."""
    if not relative_to_lock(row.location):
        return href_of(row.location)
    relative = os.path.relpath(access.folder / row.location.key, folder.resolve())
    return quote(relative if relative.startswith("../") else f"./{relative}", "/-._~")


def _documents(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in (".json", ".geojson") and path.is_file():
            yield path


def _read(path: Path) -> Any:
    data = fsio.read_start(path, ASSETS.document_bytes + 1) or b""
    if len(data) > ASSETS.document_bytes:
        raise AssetError(f"{path}: more than {ASSETS.document_bytes:,} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise AssetError(f"{path}: not JSON") from None


def _projected(document: Any, rows: Rows, folder: Path, options: ProjectOptions) -> tuple[Any, int]:
    kind = document.get("type") if isinstance(document, dict) else None
    if kind == "Feature":
        return projected_item(document, rows, folder, options)
    if kind == "FeatureCollection" and isinstance(document.get("features"), list):
        found = [_projected(feature, rows, folder, options) for feature in document["features"]]
        return {**document, "features": [item for item, _ in found]}, sum(count for _, count in found)
    if kind in ("Catalog", "Collection"):
        return document, 0
    raise AssetError("a document is neither an Item, an ItemCollection, nor a catalog of STAC")
