"""Which dataclass a FlatBuffers table stands for, and what its fields mean.

A table and its dataclass have the same name, the same fields in the same order. Tables that exist only
because a vector or a root cannot be a union (`PrepStepWrapper`, `…ResponseRoot`) have no dataclass.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from odfchain.codec.fbs import FbsSchema, FieldKind
from odfchain.errors import CodecError
from odfchain.model import data_schema, enums, events, metadata_block, sources

_MODULES = (events, sources, data_schema, metadata_block)


@lru_cache
def dataclass_of(table: str) -> type[Any] | None:
    """The dataclass with this name, if there is one."""
    return _find(_MODULES, table) or _find((import_module("odfchain.model.engine_messages"),), table)


def _find(modules: Iterable[ModuleType], name: str) -> type[Any] | None:
    # The messages to engines come last and are loaded when asked for: few commands need them.
    for module in modules:
        found = getattr(module, name, None)
        if isinstance(found, type) and dataclasses.is_dataclass(found):
            return found
    return None


def enum_of(name: str) -> type[Enum]:
    """The enumeration with this name."""
    found: type[Enum] = getattr(enums, name)
    return found


def union_members(schema: FbsSchema, union: str) -> dict[int, type[Any]]:
    """Type values of a union and their dataclasses."""
    members = {}
    for number, name in enumerate(schema.unions[union], start=1):
        cls = dataclass_of(name)
        if cls is None:
            raise CodecError(f"no dataclass for the member {name} of the union {union}")
        members[number] = cls
    return members


def wrapped_union(schema: FbsSchema, table: str) -> str | None:
    """The union that `table` exists only to wrap, or None when it is a table in its own right."""
    fields = schema.tables[table].fields
    if len(fields) == 1 and fields[0].kind is FieldKind.UNION and dataclass_of(table) is None:
        return fields[0].type_name
    return None


def field_types(cls: type[Any]) -> dict[str, tuple[Any, bool]]:
    """For each field of a dataclass: its type without None, and whether None is allowed.

    Fields whose metadata says `tree: False` are neither in blocks nor in documents.
    """
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.metadata.get("tree", True)]
    return {f.name: _without_none(hints[f.name]) for f in fields}


def field_defaults(cls: type[Any]) -> dict[str, Any]:
    """Defaults of the fields that have one."""
    found = {}
    for f in dataclasses.fields(cls):
        if f.default is not dataclasses.MISSING:
            found[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            found[f.name] = f.default_factory()
    return found


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    args = typing.get_args(hint)
    rest = tuple(a for a in args if a is not type(None))
    if len(rest) == len(args):
        return hint, False
    return (rest[0] if len(rest) == 1 else typing.Union[rest]), True  # noqa: UP007 - built at run time
