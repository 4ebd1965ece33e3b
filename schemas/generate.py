"""Writes the JSON Schemas of the user-facing manifests beside this file: `python schemas/generate.py`.

They are made from the dataclasses that manifests are read as. Editors can use the files for completion.
"""

from __future__ import annotations

import inspect
import json
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from odfchain.odf.block_codec import field_defaults
from odfchain.odf.events import AddPushSource, DatasetSnapshot, MetadataEvent, SetDataSchema, SetPollingSource
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.manifests import DATASET_SNAPSHOT, FROM_SYSTEM_TIME, METADATA_BLOCK, PROPERTY, ManifestKind
from odfchain.odf.names import HOSTNAME, DatasetAlias, DatasetRefAny
from odfchain.odf.schema import ExtraAttributes
from odfchain.odf.sources import TransformSql, WatermarkRule
from odfchain.odf.times import Duration, Recurrence, Timestamp
from odfchain.odf.transform_options import ALLOWED_LATENESS
from odfchain.odf.tree import (
    SHORT_FORMS,
    properties_of,
    spellings,
    union_variants,
)
from odfchain.transfer.repositories import REPOSITORY
from odfchain.workspace.config import DATASET_CONFIG, USER_CONFIG, WORKSPACE_CONFIG

KINDS = (
    DATASET_SNAPSHOT,
    METADATA_BLOCK,
    ManifestKind("MetadataEvent", MetadataEvent, range(1, 2)),
    WORKSPACE_CONFIG,
    USER_CONFIG,
    DATASET_CONFIG,
    REPOSITORY,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Multihash: {"type": "string", "description": "Multihash in multibase, base16 when printed."},
    DatasetId: {"type": "string", "pattern": "^did:odf:", "description": "Dataset id."},
    DatasetAlias: {
        "type": "string",
        "pattern": f"^({HOSTNAME}/)?{HOSTNAME}$",
        "description": "Dataset alias.",
    },
    Timestamp: {"type": "string", "format": "date-time"},
    Duration: {"type": "string", "description": "A length of time such as 1 day, 36 hours or 90m."},
    Recurrence: {
        "type": "string",
        "description": "A length of time such as 1h, or five fields of cron in UTC.",
    },
    DatasetRefAny: {"type": "string", "description": "Dataset id, alias, remote alias or URL."},
    ExtraAttributes: {"type": "object"},
}
_DDL: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


class _Builder:
    def __init__(self, *, settings: bool) -> None:
        self.defs: dict[str, Any] = {}
        # True if sources may have settings that blocks do not record.
        self._settings = settings

    def schema(self, hint: Any) -> dict[str, Any]:
        if isinstance(hint, range):
            return {"type": "integer", "minimum": hint.start, "maximum": hint.stop - 1}
        if typing.get_origin(hint) is typing.Annotated:
            bound = hint.__metadata__[0]
            if isinstance(bound, range):
                return self.schema(bound)
            description = f"{bound.expected[0].upper()}{bound.expected[1:]}."
            return {**self.schema(hint.__origin__), "description": description}
        if hint in _SCALARS:
            return dict(_SCALARS[hint])
        if typing.get_origin(hint) is dict:
            return {"type": "object", "additionalProperties": self.schema(typing.get_args(hint)[1])}
        if typing.get_origin(hint) is tuple:
            return {"type": "array", "items": self.schema(typing.get_args(hint)[0])}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"type": "string", "enum": _all_spellings([m.value for m in hint])}
        variants = union_variants(hint)
        return self._union(hint, variants) if variants else self._reference(hint)

    def _union(self, hint: Any, variants: dict[str, type[Any]]) -> dict[str, Any]:
        members = list(dict.fromkeys(variants.values()))
        name = _union_name(members)
        if name not in self.defs:
            self.defs[name] = {}
            choice: dict[str, Any] = {
                "type": "object",
                "required": ["kind"],
                "properties": {"kind": {"enum": _all_spellings([m.KIND for m in members])}},
                "allOf": [
                    {
                        "if": {
                            "properties": {"kind": {"enum": _all_spellings([m.KIND])}},
                            "required": ["kind"],
                        },
                        "then": self._reference(m),
                    }
                    for m in members
                ],
            }
            if hint in SHORT_FORMS:
                names = _all_spellings([m.KIND for m in members])
                choice = {"if": {"type": "string"}, "then": {"enum": names}, "else": choice}
            self.defs[name] = choice
        return {"$ref": f"#/$defs/{name}"}

    def _reference(self, cls: type[Any]) -> dict[str, Any]:
        if cls.__name__ not in self.defs:
            self.defs[cls.__name__] = {}
            self.defs[cls.__name__] = self._object(cls)
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _object(self, cls: type[Any]) -> dict[str, Any]:
        defaults = field_defaults(cls)
        properties: dict[str, Any] = {}
        required = []
        if hasattr(cls, "KIND"):
            properties["kind"] = {"enum": _all_spellings([cls.KIND])}
        for key, (name, hint, optional) in properties_of(cls).items():
            schema = self.schema(hint)
            if optional and hint not in (Timestamp, bytes):
                schema = {"anyOf": [schema, {"type": "null"}]}
            properties[key] = schema
            if name not in defaults:
                required.append(key)
        if "ddlSchema" in properties:
            properties["schema"] = {"anyOf": [properties["schema"], _DDL]}
        if cls is TransformSql:
            properties[ALLOWED_LATENESS] = {"type": ["string", "null"], "description": "Such as 1 day."}
        if cls is SetDataSchema:
            properties["schema"] = {"anyOf": [properties["schema"], _SCALARS[bytes]]}
        if self._settings and cls in (SetPollingSource, AddPushSource):
            rule = self.schema(WatermarkRule)
            properties[PROPERTY] = {
                "anyOf": [rule, {"enum": list(spellings(FROM_SYSTEM_TIME))}, {"type": "null"}]
            }
        result = {
            "description": inspect.cleandoc(cls.__doc__ or "").splitlines()[0],
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        result |= {"required": required} if required else {}
        return {"anyOf": [result, {"type": "string"}]} if hasattr(cls, "SHORT") else result


def _all_spellings(names: list[str]) -> list[str]:
    return list(dict.fromkeys(text for name in names for text in spellings(name)))


def _union_name(members: list[type[Any]]) -> str:
    first = members[0]
    prefix = first.__name__.removesuffix(first.KIND)
    return prefix or "MetadataEvent"


def manifest_schema(kind: str, content: Any, versions: range) -> dict[str, Any]:
    """The JSON Schema of the manifests of one kind, whose content is of type `content`."""
    builder = _Builder(settings=content is DatasetSnapshot)
    reference = builder.schema(content)
    return {
        "$schema": DIALECT,
        "title": kind,
        "type": "object",
        "required": ["kind", "version", "content"],
        "additionalProperties": False,
        "properties": {"kind": {"const": kind}, "version": {"enum": list(versions)}, "content": reference},
        "$defs": dict(sorted(builder.defs.items())),
    }


def render() -> dict[str, str]:
    """File name to text of every schema."""
    return {
        f"{kind.name}.json": json.dumps(
            manifest_schema(kind.name, kind.content, kind.versions), indent=2, ensure_ascii=False
        )
        + "\n"
        for kind in KINDS
    }


if __name__ == "__main__":
    for name, text in render().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
