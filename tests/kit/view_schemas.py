"""The JSON Schema of what a page shows, made from its dataclass."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from odfchain.odf.tree import properties_of

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(hint: Any) -> dict[str, Any]:
    """The schema of the tree (`odf.tree.to_tree`) of a value of this type."""
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(each) for each in inner]}
    if origin is tuple:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    hints = typing.get_type_hints(hint)
    known = properties_of(hint)
    required = [key for key, (name, _, _) in known.items() if type(None) not in typing.get_args(hints[name])]
    assert {name for name, *_ in known.values()} == {each.name for each in dataclasses.fields(hint)}
    return {
        "type": "object",
        "properties": {key: schema_of(hints[name]) for key, (name, _, _) in known.items()},
        "required": required,
        "additionalProperties": False,
    }
