"""Versions of STAC and of its extensions: documents are brought up to date, and name the extensions they use.

pystac brings them up to date, all but the fields of extensions that it cannot; those stay, and so does the
version that knows them, because the newest one refuses them. Source: RFC-047; alternate-assets 1.2, file 2.1,
storage 2.0.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping
from typing import Any

from odfchain.assets.stac_documents import NoDocumentError
from odfchain.assets.storage_schemes import REFS, SCHEMES
from odfchain.errors import AssetError, EngineError
from odfchain.text import one_line

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
    STORAGE: {SCHEMES, REFS},
}
"""All that the newest versions know; their schemas refuse what else begins like that."""
_KEPT = re.compile(r"1\.[01]\.[0-9]+")
_ABSENT = ("bbox", "collection")
"""What is left out where it is not known; null stands there in documents that were columns once."""


def brought_up(document: Mapping[str, Any], *, keep_version: bool) -> dict[str, Any]:
    """A document in the newest version of STAC and of its extensions; a copy of it where versions are kept.

    Kept are 1.0 and 1.1; older ones are brought up to date all the same.

    Raises:
        AssetError: it is not STAC.
    """
    extensions = document.get("stac_extensions") or []
    if not isinstance(extensions, list) or not all(isinstance(each, str) for each in extensions):
        raise AssetError(f"{one_line(str(document.get('id')))}: its stac_extensions are no list of URLs")
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
    except (pystac.STACError, pystac.STACTypeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoDocumentError(
            f"{one_line(str(document.get('id', 'no id')))}: not STAC: {one_line(str(error))}"
        ) from None
    known = {name: value for name, value in found.items() if value is not None or name not in _ABSENT}
    return {"links": [], **known}


def declare(item: dict[str, Any], name: str) -> None:
    """Say that an Item uses an extension, unless it does or has what the newest version refuses.

    Older versions of `file` know size and checksum, too, and those of `alternate-assets` their map.
    """
    declared = item.get("stac_extensions") or []
    newest = _EXTENSION.format(f"{name}/{_VERSIONS[name]}")
    older = any(f"/{name}/v" in str(each) for each in declared) and name != STORAGE
    if newest not in declared and not older and not _is_older(item, name):
        item["stac_extensions"] = [*declared, newest]


def _is_older(document: Mapping[str, Any], name: str) -> bool:
    """Whether a document has fields of an extension that its newest version does not know."""
    known = _KNOWN.get(name)
    if known is None:
        return False
    links, assets = document.get("links"), document.get("assets")
    parts = [document.get("properties"), *(links if isinstance(links, list) else ())]
    parts += assets.values() if isinstance(assets, dict) else ()
    used = {key for part in parts if isinstance(part, dict) for key in part if key.startswith(f"{name}:")}
    return not used <= known
