"""STAC documents with the locations and facts of a lock, as an alternate of each asset or as its href.

Items and assets are matched by both ids; what has no row stays as it is. A `file:checksum` that the lock
does not know is removed: it is a claim about bytes that may be others. Documents are written only if all are
valid. Source: RFC-047; alternate-assets 1.2, file 2.1, storage 2.0.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain import errors
from odfchain.assets import stac
from odfchain.assets.hrefs import (
    REFS,
    STORAGE_SCHEMES,
    named_scheme,
    parse_href,
    placed,
)
from odfchain.assets.lock_table import AssetRow
from odfchain.storage import fsio
from odfchain.storage.locations import escape
from odfchain.text import one_line

ORIGINAL = "original"
"""The alternate that an asset's own href becomes."""


@dataclass(frozen=True, slots=True)
class Projected:
    """Documents that were written."""

    documents: int
    assets: int


@dataclass(frozen=True, slots=True)
class Projection:
    """Rows of a lock that are written into documents, and how."""

    rows: Mapping[tuple[str, str], AssetRow]
    base: Path
    """The folder of relative keys: that of the lock."""
    name: str = "locked"
    """Of the alternate."""
    primary: bool = False
    """True if they become the assets' own hrefs."""
    keep_version: bool = False
    """True if documents of STAC 1.0 stay at 1.0, and their extensions as they are."""

    def write(self, source: str, out: Path) -> Projected:
        """Write the documents of a file or folder below `out`, or none; errors as `AssetLock.project`."""
        root, assets = Path(source).resolve(), 0
        if not root.exists():
            raise errors.UsageError(f"{source}: no such file")
        if out.resolve().is_relative_to(root):
            raise errors.UsageError(
                f"{out}: in the folder that is read", hint="choose another folder with --out"
            )
        targets = {
            path: out / (path.relative_to(root) if root.is_dir() else path.name) for path in _documents(root)
        }
        documents = self._checked(targets)
        for path in documents:
            data, count = self._projected(path, targets[path].parent, set())
            fsio.make_folder(targets[path].parent)
            if not fsio.create_file(targets[path], data):
                raise _taken([targets[path]])
            assets += count
        return Projected(len(documents), assets)

    def _checked(self, targets: Mapping[Path, Path]) -> list[Path]:
        # files that are no documents have to be those of assets
        faults, files = dict[Path, errors.AssetError](), set[str]()
        for path, target in targets.items():
            try:
                self._projected(path, target.parent, files)
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

    def _projected(self, path: Path, folder: Path, files: set[str]) -> tuple[bytes, int]:
        # (the bytes of a document, how many assets have their locations); `files` is given the paths of
        # assets that by their names could be documents
        def item(document: Any) -> tuple[dict[str, Any], int]:
            files.update(stac.files_like_documents(document, str(path)))
            return self.item(document, folder)

        def one(document: Any) -> tuple[dict[str, Any], int]:
            kind = stac.kind_of(document, str(path))
            if kind == "Feature":
                return item(document)
            if kind == "FeatureCollection":
                found = [item(each) for each in stac.features_of(document, str(path))]
                return {**document, "features": [item for item, _ in found]}, sum(n for _, n in found)
            return _brought_up(document, keep_version=self.keep_version), 0

        data = stac.bytes_of(path)
        in_lines = path.suffix.lower() in stac.LINES
        try:
            documents = stac.documents_of(data, str(path)) if in_lines else [stac.parsed(data, str(path))]
            found = [one(each) for each in documents]
            shown = [
                json.dumps(each, ensure_ascii=False, indent=None if in_lines else 2, allow_nan=False) + "\n"
                for each, _ in found
            ]
            return "".join(shown).encode(), sum(count for _, count in found)
        except errors.AssetError as error:  # the message has the path
            message = error.message if str(path) in error.message else f"{path}: {error.message}"
            raise type(error)(message, hint=error.hint) from None
        except ValueError:
            raise errors.AssetError(
                f"{path}: a number that is not finite, or a text that is not Unicode"
            ) from None

    def item(self, item: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], int]:
        """(an Item that lies in `folder` with these locations, how many of its assets have one)."""
        found = _brought_up(item, keep_version=self.keep_version)
        _check_item(found)
        written = {
            key: row for key in found["assets"] if (row := self.rows.get((found["id"], key))) is not None
        }
        if any(row.location.is_relative for row in written.values()):
            _move(found)
        used = set[str]()
        for key, row in written.items():
            used |= self._write(found, found["assets"][key], row, folder)
        for name in (ALTERNATE, FILE, STORAGE):
            if name in used:
                _declare(found, name)
        return found, len(written)

    def _write(self, item: dict[str, Any], asset: dict[str, Any], row: AssetRow, folder: Path) -> set[str]:
        href = self._href(row, folder)
        if not self.primary:
            place = asset.setdefault("alternate", {}).setdefault(self.name, {})
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

    def _href(self, row: AssetRow, folder: Path) -> str:
        # relative to the folder of the document that it is written into
        if not row.location.is_relative:
            return row.location.href()
        relative = os.path.relpath(self.base / row.location.key, folder.resolve())
        return escape(relative if relative.startswith("../") else f"./{relative}")


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
