"""Documents of STAC as JSON: read within bounds, and told apart.

In a folder of documents lie files of assets, too, and some of those are JSON or Parquet. What is no document
is told by an error of its own, so that who reads a folder can see whether an Item names it.
Source: STAC 1.0 and 1.1; RFC-047.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from odfchain.assets.hrefs import parse_href, public_href
from odfchain.errors import AssetError, UsageError
from odfchain.limits import ASSETS
from odfchain.store import fsio

LINES = (".ndjson", ".jsonl", ".ndgeojson", ".geojsonl")
"""Files with a document on each line."""
JSON = (".json", ".geojson", *LINES)
TABLES = (".parquet", ".geoparquet")


class NoDocumentError(AssetError):
    """A file is no document of STAC."""


def bytes_of(path: Path) -> bytes:
    """The bytes of a document.

    Raises:
        UsageError: there is no such file.
    """
    data = fsio.read_start(path, ASSETS.document_bytes + 1)
    if data is None:
        raise UsageError(f"{path}: there is no such file")
    return checked_size(data, str(path))


def checked_size(data: bytes, name: str) -> bytes:
    """The bytes of a document, as they are.

    Raises:
        NoDocumentError: more than a document may have.
    """
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
    """What a JSON text says; NaN and its kin are none.

    Raises:
        NoDocumentError: it is not JSON.
    """
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise NoDocumentError(f"{public_href(name)}: not JSON") from None


def kind_of(document: Any, name: str | None) -> str:
    """`Feature`, `FeatureCollection`, `Catalog` or `Collection`; catalogs before STAC 1.0 did not say so.

    Raises:
        NoDocumentError: not a document of STAC.
    """
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
    """The Items of an ItemCollection.

    Raises:
        NoDocumentError: one of its features is none.
    """
    for feature in document["features"]:
        if kind_of(feature, name) != "Feature":
            raise NoDocumentError(f"{public_href(name or 'a document')}: one of its features is not an Item")
        yield feature


def files_like_documents(item: Mapping[str, Any], base: str | None) -> Iterator[str]:
    """The paths of an Item's assets that lie in files which by their names could be documents."""
    assets = item.get("assets")
    for asset in assets.values() if isinstance(assets, dict) else ():
        href = asset.get("href") if isinstance(asset, dict) else None
        if isinstance(href, str) and href.lower().endswith((*JSON, *TABLES)):
            try:
                location = parse_href(href, base)
            except AssetError:
                continue
            if location.store == "file":
                yield location.key


def _no_number(text: str) -> None:
    raise ValueError(text)
