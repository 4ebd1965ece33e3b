"""pystac's validation, with schemas that are here: nothing is fetched."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pystac
from pystac.validation import validate_dict
from pystac.validation.stac_validator import JsonSchemaSTACValidator

_OURS = Path("fixtures/assets/stac_schemas.json")


class OfflineValidator(JsonSchemaSTACValidator):
    """Knows the schemas of STAC 1.0 and 1.1 and of the extensions that are written; refuses to get others."""

    def __init__(self) -> None:
        super().__init__()
        self.schema_cache |= {schema["$id"]: schema for schema in json.loads(_OURS.read_text())["schemas"]}

    def _get_schema(self, schema_uri: str) -> dict[str, Any]:
        if schema_uri not in self.schema_cache:
            raise LookupError(f"{schema_uri} is not here, and nothing is fetched")
        return self.schema_cache[schema_uri]


@cache
def _validator() -> OfflineValidator:
    return OfflineValidator()


def check_stac(document: dict[str, Any]) -> None:
    """Pass if a document is valid, by its own version and those of its extensions.

    Beyond the schemas: each `storage:refs` names a scheme of its document.
    """
    if document["type"] == "FeatureCollection":
        for item in document["features"]:
            check_stac(item)
        return
    # what pystac takes out of a document is not asked: it would judge an unknown version by the newest
    kind = pystac.STACObjectType(document["type"])
    version, extensions = document["stac_version"], document["stac_extensions"]
    found = validate_dict(document, kind, version, extensions, validator=_validator())
    assert len(found) == 1 + len(extensions), "the core and each extension were looked at"
    schemes = document.get("properties", document).get("storage:schemes", {})
    for asset in document.get("assets", {}).values():
        for place in (asset, *asset.get("alternate", {}).values()):
            assert set(place.get("storage:refs", ())) <= schemes.keys()
