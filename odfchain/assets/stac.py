"""STAC documents: read, for the assets that they name, and written, with the places and facts of a lock.

Items are read as plain JSON, because only their ids and hrefs are wanted. Catalogs are walked along their
links `item` and `child`; no document is read twice. All of it is untrusted, so documents, their
sizes and their number are bounded, and an asset that cannot be recorded is a fault with its item and key.
Source: STAC 1.0 and 1.1, the storage extension 2.0; RFC-047.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odfchain.assets.hrefs import ACCESS_KEY, REFS, SCHEMES_KEY, named_scheme, parse_href, placed, public_href
from odfchain.assets.lock_table import KIND, AssetRow
from odfchain.assets.objects import Selection, Stores
from odfchain.errors import AssetError, NameCollisionError, OdfchainError, UsageError
from odfchain.limits import ASSETS
from odfchain.slices.reader import open_parquet
from odfchain.storage import fsio
from odfchain.storage.locations import Location, escape, scheme_of
from odfchain.text import one_line

# STAC documents as JSON, read within bounds. A folder holds asset files as well, some of them JSON or
# Parquet: a file that is no document raises an error of its own (STAC 1.0 and 1.1; RFC-047).

LINES = (".ndjson", ".jsonl", ".ndgeojson", ".geojsonl")
"""Files with a document on each line."""
JSON = (".json", ".geojson", *LINES)
TABLES = (".parquet", ".geoparquet")


class NoDocumentError(AssetError):
    """A file is no document of STAC."""


def bytes_of(path: Path) -> bytes:
    """The bytes of a document."""
    return checked_size(fsio.read_named(path, ASSETS.document_bytes), str(path))


def checked_size(data: bytes, name: str) -> bytes:
    """The bytes of a document, as they are."""
    if len(data) > ASSETS.document_bytes:
        raise NoDocumentError(f"{name}: more than {ASSETS.document_bytes:,} bytes")
    return data


def documents_of(data: bytes, name: str) -> Iterator[Any]:
    """The documents of a text with one on each line, or with a single one on several lines."""
    lines = data.splitlines()
    if len(lines) != 1 and (not lines or not lines[0].rstrip().endswith(b"}")):  # one document, indented
        yield parsed(data, name)
        return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield parsed(line, f"{name}, line {number}")


def parsed(data: bytes, name: str) -> Any:
    """The value of a JSON text; NaN and infinities are refused."""
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise NoDocumentError(f"{public_href(name)}: not JSON") from None


def kind_of(document: Any, name: str | None) -> str:
    """`Feature`, `FeatureCollection`, `Catalog` or `Collection`; catalogs before STAC 1.0 did not say so."""
    if isinstance(document, dict):
        old = "Catalog" if "stac_version" in document and isinstance(document.get("links"), list) else None
        kind = document.get("type", old)
        if kind in ("Feature", "Catalog", "Collection"):
            return str(kind)
        if kind == "FeatureCollection" and isinstance(document.get("features"), list):
            return "FeatureCollection"
    raise NoDocumentError(
        f"{public_href(name or 'a document')}: not an Item, an ItemCollection or a catalog of STAC"
    )


def features_of(document: Mapping[str, Any], name: str | None) -> Iterator[Any]:
    """The Items of an ItemCollection."""
    for feature in document["features"]:
        if kind_of(feature, name) != "Feature":
            raise NoDocumentError(f"{public_href(name or 'a document')}: one of its features is not an Item")
        yield feature


def files_like_documents(item: Mapping[str, Any], base: str | None) -> Iterator[str]:
    """The paths of an Item's assets that lie in files which by their names could be documents."""
    for _, href in _hrefs(item):
        if href.lower().endswith((*JSON, *TABLES)):
            with contextlib.suppress(AssetError):
                location = parse_href(href, base)
                if location.store == "file":
                    yield location.key


def _hrefs(document: Mapping[str, Any], links: object = None) -> Iterator[tuple[dict[str, Any], str]]:
    # the assets of a document, their alternates, and the links that are given, each with its href
    assets = document.get("assets")
    places = [*assets.values()] if isinstance(assets, dict) else []
    others = [place.get("alternate") for place in places if isinstance(place, dict)]
    places += [each for named in others if isinstance(named, dict) for each in named.values()]
    for place in (*places, *(links if isinstance(links, list) else ())):
        if isinstance(place, dict) and isinstance(place.get("href"), str):
            yield place, place["href"]


def _no_number(text: str) -> None:
    raise ValueError(text)


@dataclass(frozen=True, slots=True)
class NamedAsset:
    """An asset of an Item, and where it is."""

    item_id: str
    asset_key: str
    collection: str | None
    location: Location
    size: int | None = None
    """`file:size`, which is a claim."""


@dataclass(frozen=True, slots=True)
class AssetFault:
    """An asset that cannot be recorded."""

    item_id: str
    asset_key: str
    error: OdfchainError

    def __str__(self) -> str:
        return f"{one_line(self.item_id)} {one_line(self.asset_key)}: {self.error}"


@dataclass(slots=True)
class StacReader:
    """Reads sources, one after another: each document once, none above the limits."""

    stores: Stores
    selection: Selection
    fault: Callable[[AssetFault], None]
    """Is given each asset that cannot be recorded; it is left out."""
    items: int = 0
    _seen: set[str] = field(default_factory=set)
    _files: set[str] = field(default_factory=set)
    """Of assets, where their names are like those of documents."""

    def assets(self, source: str) -> Iterator[NamedAsset]:
        """The wanted assets of a file, a folder of files, a URL, or `-` for standard input."""
        if source == "-":
            yield from self._lines(sys.stdin.buffer.read(ASSETS.document_bytes + 1), None)
        elif "://" in source:
            yield from self._document(source, depth=0)
        elif Path(source).is_dir():
            yield from self._folder(Path(source))
        elif Path(source).exists():
            yield from self._document(str(Path(source).resolve()), depth=0)
        else:
            raise fsio.no_file(source)

    def _folder(self, folder: Path) -> Iterator[NamedAsset]:
        # a file that is no document has to be that of an asset
        strays = dict[str, NoDocumentError]()
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in (*JSON, *TABLES) and path.is_file() and not _is_lock(path):
                place = str(path.resolve())
                try:
                    yield from self._document(place, depth=0)
                except NoDocumentError as error:
                    strays[place] = error
        for place, stray in strays.items():
            if place not in self._files:
                raise stray

    def _document(self, place: str, depth: int) -> Iterator[NamedAsset]:
        if place in self._seen:
            return
        if len(self._seen) >= ASSETS.documents or depth > ASSETS.catalog_depth:
            raise AssetError(
                f"{public_href(place)}: more than {ASSETS.documents:,} documents, or "
                f"{ASSETS.catalog_depth} catalogs within each other",
                hint="derive from a part of the catalog at a time",
            )
        self._seen.add(place)
        name = place.lower()
        if name.endswith(TABLES):
            if "://" in place:
                raise AssetError(
                    f"{public_href(place)}: STAC GeoParquet is read from files",
                    hint="download it, then derive",
                )
            yield from self._parquet(Path(place))
            return
        data = self._bytes(place)
        if name.endswith(LINES):
            yield from self._lines(data, place)
        else:
            yield from self._tree(parsed(data, place), place, depth)

    def _bytes(self, place: str) -> bytes:
        if "://" in place:
            return self.stores.read_small(parse_href(place, servers=True), ASSETS.document_bytes)
        return bytes_of(Path(place))

    def _lines(self, data: bytes, place: str | None) -> Iterator[NamedAsset]:
        name = place or "standard input"
        for document in documents_of(checked_size(data, name), name):
            yield from self._tree(document, place, 0)

    def _tree(self, document: Any, place: str | None, depth: int) -> Iterator[NamedAsset]:
        kind = kind_of(document, place)
        if kind == "Feature":
            yield from self._item(document, place)
        elif kind == "FeatureCollection":
            if place is not None and "://" in place and any(rel == "next" for rel, _ in _links(document)):
                raise AssetError(
                    f"{public_href(place)}: a page of a search that goes on on another one",
                    hint="search with a client, and derive from its output with -",
                )
            for feature in features_of(document, place):
                yield from self._item(feature, place)
        else:
            for rel, href in _links(document):
                if rel in ("item", "child", "items"):
                    base = place if place is not None else _self_link(document)
                    yield from self._document(_allowed(parse_href(href, base), place).text, depth + 1)

    def _item(self, item: Mapping[str, Any], place: str | None) -> Iterator[NamedAsset]:
        name, assets = item.get("id"), item.get("assets")
        if not isinstance(name, str) or not name or not isinstance(assets, dict):
            raise NoDocumentError(
                f"{public_href(place or 'a document')}: an Item without an id or without assets"
            )
        self.items += 1
        base = _self_link(item) or place
        self._files.update(files_like_documents(item, base))
        collection, properties = item.get("collection"), item.get("properties")
        collection = collection if isinstance(collection, str) else None
        # the columns of STAC GeoParquet are the properties themselves
        schemes = (properties if isinstance(properties, dict) else item).get(SCHEMES_KEY)
        for key, asset in assets.items():
            if self.selection.wants(name, key):
                try:
                    location, size = self._located(name, key, asset, base, schemes)
                    _allowed(location, place)
                except AssetError as error:
                    self.fault(AssetFault(name, key, error))
                else:
                    yield NamedAsset(name, key, collection, location, size)

    def _located(
        self, item: str, key: str, asset: object, base: str | None, schemes: object
    ) -> tuple[Location, int | None]:
        _check_name("the Item's id", item)
        _check_name("the asset's key", key)
        chosen, href, size = _chosen(asset if isinstance(asset, dict) else {}, self.selection.alternate)
        location = parse_href(href, base, strip_query=self.selection.strip_query)
        return placed(location, schemes, chosen.get(REFS)), size

    def _parquet(self, path: Path) -> Iterator[NamedAsset]:
        wanted = ("type", "id", "collection", "links", "assets", SCHEMES_KEY)
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            if "id" not in names or "assets" not in names:
                raise NoDocumentError(f"{path}: not STAC GeoParquet: column `id` or `assets` is missing")
            for batch in file.batches([name for name in wanted if name in names]):
                for row in batch.to_pylist():
                    row["assets"] = {k: v for k, v in _members(row["assets"]) if _is_said(v)}
                    yield from self._item(row, str(path))


def _is_lock(path: Path) -> bool:
    if path.suffix.lower() not in TABLES:
        return False
    with open_parquet(path) as file:
        return KIND in (file.metadata.metadata or {})


def _check_name(what: str, text: str) -> None:
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    if not size or not text.isprintable() or size > ASSETS.text_bytes:
        raise AssetError(f"{what} is empty, has control characters, or more than {ASSETS.text_bytes:,} bytes")
    if "AKIA" in text and ACCESS_KEY.search(text):
        raise AssetError(f"{what} contains an access key", hint="a lock is published")


def _members(assets: Any) -> list[tuple[str, Any]]:
    # a struct or a map, by the writer of the Parquet file
    return list(assets.items()) if isinstance(assets, dict) else list(assets or ())


def _is_said(asset: Any) -> bool:
    # a column of structs has a place for each asset of any row, so many are absent
    return any(value is not None for value in asset.values()) if isinstance(asset, dict) else bool(asset)


def _chosen(asset: Mapping[str, Any], alternate: str | None) -> tuple[Mapping[str, Any], str, int | None]:
    """(the asset or its alternate, href, `file:size`); an alternate is as long as its asset."""
    chosen: Any = asset
    if alternate is not None:
        others = asset.get("alternate")
        chosen = others.get(alternate) if isinstance(others, dict) else None
        if not isinstance(chosen, dict):
            raise AssetError(f"no alternate {one_line(alternate)}")
    href = chosen.get("href")
    if not isinstance(href, str):
        raise AssetError("no href")
    size = chosen.get("file:size", asset.get("file:size"))
    is_whole = type(size) is int or (isinstance(size, float) and size.is_integer())
    return chosen, href, int(size) if is_whole and 0 <= size < 1 << 63 else None


def _links(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    links = document.get("links")
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict) and isinstance(link.get("rel"), str) and isinstance(link.get("href"), str):
            yield link["rel"], link["href"]


def _self_link(document: Mapping[str, Any]) -> str | None:
    return next((href for rel, href in _links(document) if rel == "self" and "://" in href), None)


def _allowed(location: Location, place: str | None) -> Location:
    # a document of a server must not name files of this machine
    if location.store == "file" and place is not None and "://" in place and not place.startswith("file:"):
        raise AssetError(f"{public_href(place)}: names a file of this machine, and came from a server")
    return location


# Documents with the places and facts of a lock, as an alternate of each asset or as its href. Items and
# assets are matched by both ids; what has no row stays as it is. A `file:checksum` that the lock does not
# know is removed: it is a claim about bytes that may be others. Documents are written only if all are valid
# (RFC-047; alternate-assets 1.2, file 2.1, storage 2.0).

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
    primary: bool = False
    """True if they become the assets' own hrefs."""
    keep_version: bool = False
    """True if documents of STAC 1.0 stay at 1.0, and their extensions as they are."""

    def write(self, source: str, out: Path) -> Projected:
        """Write the documents of a file or folder below `out`, or none; errors as `AssetLock.project`."""
        root, assets = Path(source).resolve(), 0
        if not root.exists():
            raise fsio.no_file(source)
        if out.resolve().is_relative_to(root):
            raise UsageError(f"{out}: in the folder that is read", hint="choose another folder with --output")
        paths = _documents(root)
        targets = {path: out / (path.relative_to(root) if root.is_dir() else path.name) for path in paths}
        documents = self._checked(targets)
        for path in documents:
            data, count = self._projected(path, targets, set())
            fsio.make_folder(targets[path].parent)
            if not fsio.create_file(targets[path], data):
                raise _taken([targets[path]])
            assets += count
        return Projected(len(documents), assets)

    def _checked(self, targets: Mapping[Path, Path]) -> list[Path]:
        # files that are no documents have to be those of assets
        faults, files = dict[Path, AssetError](), set[str]()
        for path in targets:
            try:
                self._projected(path, targets, files)
            except AssetError as error:
                faults[path] = error
        bad = [
            error
            for path, error in faults.items()
            if not isinstance(error, NoDocumentError) or str(path) not in files
        ]
        if len(bad) == 1:
            raise bad[0]
        if bad:
            raise AssetError(f"{len(bad):,} documents are not STAC: {'; '.join(map(str, bad))}")
        documents = [path for path in targets if path not in faults]
        if taken := [targets[path] for path in documents if targets[path].exists()]:
            raise _taken(taken)
        return documents

    def _projected(self, path: Path, targets: Mapping[Path, Path], files: set[str]) -> tuple[bytes, int]:
        # (the bytes of a document, how many assets have their locations); `files` is given the paths of
        # assets that by their names could be documents
        folder = targets[path].parent.resolve()

        def item(document: Any) -> tuple[dict[str, Any], int]:
            files.update(files_like_documents(document, str(path)))
            _rebase(document, path, folder, targets)
            return self.item(document, folder)

        def one(document: Any) -> tuple[dict[str, Any], int]:
            kind = kind_of(document, str(path))
            if kind == "Feature":
                return item(document)
            _rebase(document, path, folder, targets)
            if kind == "FeatureCollection":
                found = [item(each) for each in features_of(document, str(path))]
                return {**document, "features": [item for item, _ in found]}, sum(n for _, n in found)
            return _brought_up(document, keep_version=self.keep_version), 0

        data = bytes_of(path)
        in_lines = path.suffix.lower() in LINES
        try:
            documents = documents_of(data, str(path)) if in_lines else [parsed(data, str(path))]
            found = [one(each) for each in documents]
            shown = [
                json.dumps(each, ensure_ascii=False, indent=None if in_lines else 2, allow_nan=False) + "\n"
                for each, _ in found
            ]
            return "".join(shown).encode(), sum(count for _, count in found)
        except AssetError as error:  # the message has the path
            message = error.message if str(path) in error.message else f"{path}: {error.message}"
            raise type(error)(message, hint=error.hint) from None
        except ValueError:
            raise AssetError(f"{path}: a number that is not finite, or a text that is not Unicode") from None

    def item(self, item: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], int]:
        """(an Item that lies in `folder` with these locations, how many of its assets have one)."""
        found = _brought_up(item, keep_version=self.keep_version)
        _check_item(found)
        rows = {key: row for key in found["assets"] if (row := self.rows.get((found["id"], key))) is not None}
        if any(row.location.is_relative for row in rows.values()):
            _move(found)
        used = set[str]()
        for key, row in rows.items():
            used |= self._write(found, found["assets"][key], row, folder)
        for name in (ALTERNATE, FILE, STORAGE):
            if name in used:
                _declare(found, name)
        return found, len(rows)

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
        return _relative(self.base / row.location.key, folder.resolve())


def _relative(path: Path, folder: Path) -> str:
    found = os.path.relpath(path, folder)
    return escape(found if found.startswith("../") else f"./{found}")


def _rebase(document: dict[str, Any], path: Path, folder: Path, written: Container[Path]) -> None:
    # relative hrefs still name what they named, when the document goes to another folder: files of assets
    # stay where they are, and so does what a link names unless it is written, too
    if _self_link(document) is not None:  # they are relative to that
        return
    for place, href in _hrefs(document, document.get("links")):
        if not scheme_of(href) and not href.startswith("/"):
            with contextlib.suppress(AssetError):  # what no lock could name stays
                there = Path(parse_href(href, str(path)).key)
                if "rel" not in place or there not in written:
                    place["href"] = _relative(there, folder)


def _move(item: dict[str, Any]) -> None:
    # readers resolve hrefs against the `self` link, and the lock's own file is not at that place
    if (base := _self_link(item)) is None:
        return
    own = [each for each in item["links"] if isinstance(each, dict) and each.get("rel") == "self"]
    known = any(rel == "canonical" for rel, _ in _links(item))
    canonical = [] if known else [{**each, "rel": "canonical"} for each in own]
    item["links"] = [*canonical, *(each for each in item["links"] if each not in own)]
    for place, href in _hrefs(item):
        if "://" not in href:
            with contextlib.suppress(AssetError):  # what no lock could name stays
                place["href"] = parse_href(href, base).href()


def _taken(targets: Sequence[Path]) -> NameCollisionError:
    more = f" and {len(targets) - 1:,} more" if targets[1:] else ""
    return NameCollisionError(
        f"{targets[0]}{more}: already exists", hint="choose an empty folder with --output"
    )


def _documents(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in JSON and path.is_file():
            yield path


def _check_item(item: Mapping[str, Any]) -> None:
    name, assets, properties = item.get("id"), item.get("assets"), item.get("properties")
    if not isinstance(name, str) or not isinstance(assets, dict) or not isinstance(properties, dict):
        raise NoDocumentError("an Item without an id, without properties or without assets")
    label = one_line(name)
    if not isinstance(properties.get(SCHEMES_KEY, {}), dict):
        raise AssetError(f"{label}: its {SCHEMES_KEY} are not a map")
    for key, asset in assets.items():
        if not isinstance(asset, dict) or not isinstance(asset.get("href"), str):
            raise AssetError(f"{label} {one_line(key)}: no href")
        others = asset.get("alternate", {})
        if not isinstance(others, dict) or not all(isinstance(each, dict) for each in others.values()):
            raise AssetError(f"{label} {one_line(key)}: its alternates are not a map")


def _is_there(item: Mapping[str, Any], place: Mapping[str, Any], row: AssetRow, href: str) -> bool:
    # the href must be equal, and its endpoint
    if place.get("href") != href:
        return False
    if row.location.store not in ("s3", "az"):
        return True
    try:
        schemes = item["properties"].get(SCHEMES_KEY)
        return placed(parse_href(href), schemes, place.get(REFS)) == row.location
    except AssetError:
        return False


def _without_place(place: dict[str, Any]) -> dict[str, Any]:
    names = [n for n in place if n.startswith("storage:") or n in ("auth:refs", "alternate:name")]
    return {name: place.pop(name) for name in names}


def _put(item: dict[str, Any], place: dict[str, Any], row: AssetRow, href: str) -> None:
    place["href"] = href
    if row.location.endpoint is not None:
        place[REFS] = [named_scheme(row.location, item["properties"].setdefault(SCHEMES_KEY, {}))]


# Migration of STAC and its extensions by pystac. Fields of extensions that it cannot migrate stay, and so
# does the version that knows them, because the newest one refuses them (RFC-047; alternate-assets 1.2, file
# 2.1, storage 2.0).

_EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
ALTERNATE, FILE, STORAGE = "alternate-assets", "file", "storage"
_VERSIONS = {ALTERNATE: "v1.2.0", FILE: "v2.1.0", STORAGE: "v2.0.0"}
_KNOWN = {
    FILE: {f"file:{n}" for n in ("byte_order", "checksum", "header_size", "size", "values", "local_path")},
    STORAGE: {SCHEMES_KEY, REFS},
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
        raise AssetError(f"{one_line(str(document.get('id')))}: its stac_extensions are not a list of URLs")
    version = str(document.get("stac_version"))
    parts = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    if parts is not None and (int(parts[1]), int(parts[2])) > (1, 1):
        raise AssetError(f"{one_line(str(document.get('id')))}: STAC {one_line(version)} is newer than 1.1")
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
    import pystac  # noqa: PLC0415 - a large library, for documents that are written
    from pystac.serialization import identify_stac_object, migrate_to_latest  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of fields that it leaves is judged above
            found = migrate_to_latest(dict(document), identify_stac_object(dict(document)))
    except (pystac.STACError, pystac.STACTypeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoDocumentError(
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
    if (known := _KNOWN.get(name)) is None:
        return False
    links, assets = document.get("links"), document.get("assets")
    parts = [document.get("properties"), *(links if isinstance(links, list) else ())]
    parts += assets.values() if isinstance(assets, dict) else ()
    used = {key for part in parts if isinstance(part, dict) for key in part if key.startswith(f"{name}:")}
    return not used <= known
