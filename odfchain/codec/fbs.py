"""Reads a FlatBuffers schema (`.fbs`) into tables, structs, unions and enums.

Only what the schemas of this project use is understood: scalar, string, vector, struct, table, union and
enum fields, defaults, and `= null` for optional scalars. A union field takes two slots, its type first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from odfchain.errors import CodecError

SCALARS: dict[str, str] = {
    "bool": "?",
    "ubyte": "B",
    "byte": "b",
    "int16": "h",
    "short": "h",
    "uint16": "H",
    "int32": "i",
    "int": "i",
    "uint32": "I",
    "int64": "q",
    "long": "q",
    "uint64": "Q",
}
"""Scalar type names and their `struct` codes."""


class FieldKind(Enum):
    """How a field is stored."""

    SCALAR = "scalar"
    ENUM = "enum"
    STRING = "string"
    BYTES = "bytes"
    STRUCT = "struct"
    TABLE = "table"
    UNION = "union"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class FbsField:
    """A field of a table: `slot` is its vtable position (for a union that of the value, type before it)."""

    name: str
    kind: FieldKind
    type_name: str
    slot: int
    default: int = 0
    optional_scalar: bool = False
    element: FieldKind | None = None


@dataclass(frozen=True, slots=True)
class FbsTable:
    """A table and the number of its slots."""

    name: str
    fields: tuple[FbsField, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class FbsStruct:
    """A struct: fixed layout with natural alignment, `format` for the `struct` module."""

    name: str
    fields: tuple[str, ...]
    format: str
    alignment: int


@dataclass(frozen=True, slots=True)
class FbsEnum:
    """An enum: names in value order (values count from 0) and the `struct` code of its base type."""

    name: str
    names: tuple[str, ...]
    code: str


@dataclass(frozen=True, slots=True)
class FbsSchema:
    """All declarations of one file."""

    tables: dict[str, FbsTable]
    structs: dict[str, FbsStruct]
    unions: dict[str, tuple[str, ...]]
    """Union name to member tables; type values count from 1 in this order."""
    enums: dict[str, FbsEnum]


_COMMENT = re.compile(r"//[^\n]*")
_DECLARATION = re.compile(r"(table|struct|union|enum)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)\s*(\w+)\s*\]?\s*(?:=\s*(\w+))?\s*")


def parse_fbs(text: str) -> FbsSchema:
    """Parse schema text."""
    plain = _COMMENT.sub("", text)
    bodies: dict[str, dict[str, tuple[str, str]]] = {"table": {}, "struct": {}, "union": {}, "enum": {}}
    for keyword, name, base, body in _DECLARATION.findall(plain):
        bodies[keyword][name] = (base, body)
    enums = {
        name: FbsEnum(name, tuple(_names(body)), SCALARS[base])
        for name, (base, body) in bodies["enum"].items()
    }
    unions = {name: tuple(_names(body)) for name, (_, body) in bodies["union"].items()}
    structs = {name: _struct(name, body) for name, (_, body) in bodies["struct"].items()}
    tables = {
        name: _table(name, body, enums, unions, structs, bodies["table"])
        for name, (_, body) in bodies["table"].items()
    }
    return FbsSchema(tables, structs, unions, enums)


def _names(body: str) -> Iterator[str]:
    return (part.strip() for part in body.split(",") if part.strip())


def _declared_fields(name: str, body: str) -> Iterator[tuple[str, bool, str, str | None]]:
    for part in body.split(";"):
        if not part.strip():
            continue
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            raise CodecError(f"{name}: cannot read the field declaration {part.strip()!r}")
        field, bracket, type_name, default = match.groups()
        yield field, bool(bracket), type_name, default


def _struct(name: str, body: str) -> FbsStruct:
    fields, layout, size, alignment = [], "<", 0, 1
    for field, _, type_name, _default in _declared_fields(name, body):
        code = SCALARS[type_name]
        width = {"?": 1, "b": 1, "h": 2, "i": 4, "q": 8}[code.lower()]
        padding = -size % width
        layout += f"{padding}x{code}" if padding else code
        size += padding + width
        alignment = max(alignment, width)
        fields.append(field)
    return FbsStruct(name, tuple(fields), layout, alignment)


def _table(
    name: str,
    body: str,
    enums: dict[str, FbsEnum],
    unions: dict[str, tuple[str, ...]],
    structs: dict[str, FbsStruct],
    tables: dict[str, tuple[str, str]],
) -> FbsTable:
    def kind_of(type_name: str) -> FieldKind:
        if type_name in SCALARS:
            return FieldKind.SCALAR
        if type_name == "string":
            return FieldKind.STRING
        for kind, declared in (
            (FieldKind.ENUM, enums),
            (FieldKind.UNION, unions),
            (FieldKind.STRUCT, structs),
            (FieldKind.TABLE, tables),
        ):
            if type_name in declared:
                return kind
        raise CodecError(f"{name}: type {type_name!r} is not declared")

    fields, slot = [], 0
    for field, is_vector, type_name, default in _declared_fields(name, body):
        kind, element = kind_of(type_name), None
        if is_vector:
            kind, element = (FieldKind.BYTES, None) if type_name == "ubyte" else (FieldKind.VECTOR, kind)
        if kind is FieldKind.UNION:
            slot += 1
        number = 0
        if default is not None and default != "null":
            number = enums[type_name].names.index(default) if kind is FieldKind.ENUM else int(default)
        fields.append(FbsField(field, kind, type_name, slot, number, default == "null", element))
        slot += 1
    return FbsTable(name, tuple(fields), slot)


def schema_path(name: str) -> Path:
    """Where a schema file is: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "schemas" / name
    return shipped if shipped.exists() else package.parent / "schemas" / name


@lru_cache
def load_fbs(name: str) -> FbsSchema:
    """The parsed schema file `name` of this project (`odf.fbs`, `arrow.fbs`), parsed once."""
    return parse_fbs(schema_path(name).read_text(encoding="utf-8"))
