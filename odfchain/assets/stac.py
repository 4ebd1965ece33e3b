"""Assets of STAC documents: Items, ItemCollections, catalogs, ndjson and STAC GeoParquet.

Items are read as plain JSON, because only their ids and hrefs are wanted. Catalogs are walked along their
links `item` and `child`; no document is read twice. All of it is untrusted, so documents, their
sizes and their number are bounded, and an asset that cannot be recorded is a fault with its item and key.
Source: STAC 1.0 and 1.1, the storage extension 2.0; RFC-047.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odfchain.assets import hrefs
from odfchain.assets.lock_table import KIND
from odfchain.assets.objects import Stores
from odfchain.errors import AssetError, OdfchainError, UsageError
from odfchain.limits import ASSETS
from odfchain.slices.reader import open_parquet
from odfchain.storage import fsio
from odfchain.storage.locations import Location
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
    data = fsio.read_start(path, ASSETS.document_bytes + 1)
    if data is None:
        raise UsageError(f"{path}: no such file")
    return checked_size(data, str(path))


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
        raise NoDocumentError(f"{hrefs.public_href(name)}: not JSON") from None


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
        f"{hrefs.public_href(name or 'a document')}: not an Item, an ItemCollection or a catalog of STAC"
    )


def features_of(document: Mapping[str, Any], name: str | None) -> Iterator[Any]:
    """The Items of an ItemCollection."""
    for feature in document["features"]:
        if kind_of(feature, name) != "Feature":
            raise NoDocumentError(
                f"{hrefs.public_href(name or 'a document')}: one of its features is not an Item"
            )
        yield feature


def files_like_documents(item: Mapping[str, Any], base: str | None) -> Iterator[str]:
    """The paths of an Item's assets that lie in files which by their names could be documents."""
    assets = item.get("assets")
    for asset in assets.values() if isinstance(assets, dict) else ():
        href = asset.get("href") if isinstance(asset, dict) else None
        if isinstance(href, str) and href.lower().endswith((*JSON, *TABLES)):
            try:
                location = hrefs.parse_href(href, base)
            except AssetError:
                continue
            if location.store == "file":
                yield location.key


def _no_number(text: str) -> None:
    raise ValueError(text)


METADATA = "metadata"
"""The key of an asset that describes others; left out unless it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The wanted assets, and the choice of their hrefs."""

    items: frozenset[str] = frozenset()
    """Only these; empty: all."""
    assets: frozenset[str] = frozenset()
    include_metadata: bool = False
    alternate: str | None = None
    """The key of the alternate href to take in place of the asset's own."""
    strip_query: bool = False

    def wants(self, item: str, asset: str) -> bool:
        """True if an asset is wanted."""
        if (self.items and item not in self.items) or (self.assets and asset not in self.assets):
            return False
        return asset != METADATA or self.include_metadata or asset in self.assets


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
            raise UsageError(f"{source}: no such file")

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
                f"{hrefs.public_href(place)}: more than {ASSETS.documents:,} documents, or "
                f"{ASSETS.catalog_depth} catalogs within each other",
                hint="derive from a part of the catalog at a time",
            )
        self._seen.add(place)
        name = place.lower()
        if name.endswith(TABLES):
            if "://" in place:
                raise AssetError(
                    f"{hrefs.public_href(place)}: STAC GeoParquet is read from files",
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
            return self.stores.read_small(hrefs.parse_href(place, servers=True), ASSETS.document_bytes)
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
                    f"{hrefs.public_href(place)}: a page of a search that goes on on another one",
                    hint="search with a client, and derive from its output with -",
                )
            for feature in features_of(document, place):
                yield from self._item(feature, place)
        else:
            for rel, href in _links(document):
                if rel in ("item", "child", "items"):
                    base = place if place is not None else _self_link(document)
                    yield from self._document(_allowed(hrefs.parse_href(href, base), place).text, depth + 1)

    def _item(self, item: Mapping[str, Any], place: str | None) -> Iterator[NamedAsset]:
        name, assets = item.get("id"), item.get("assets")
        if not isinstance(name, str) or not name or not isinstance(assets, dict):
            raise NoDocumentError(
                f"{hrefs.public_href(place or 'a document')}: an Item without an id or without assets"
            )
        self.items += 1
        base = _self_link(item) or place
        self._files.update(files_like_documents(item, base))
        collection, properties = item.get("collection"), item.get("properties")
        collection = collection if isinstance(collection, str) else None
        # the columns of STAC GeoParquet are the properties themselves
        schemes = (properties if isinstance(properties, dict) else item).get(hrefs.STORAGE_SCHEMES)
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
        location = hrefs.parse_href(href, base, strip_query=self.selection.strip_query)
        return hrefs.placed(location, schemes, chosen.get(hrefs.REFS)), size

    def _parquet(self, path: Path) -> Iterator[NamedAsset]:
        wanted = ("type", "id", "collection", "links", "assets", hrefs.STORAGE_SCHEMES)
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
    if "AKIA" in text and hrefs.ACCESS_KEY.search(text):
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
        raise AssetError(f"{hrefs.public_href(place)}: names a file of this machine, and came from a server")
    return location
