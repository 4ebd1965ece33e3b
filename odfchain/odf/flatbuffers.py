"""A bounds-checked FlatBuffers reader that treats every byte as hostile.

Python's flatbuffers package has no verifier: a flipped bit makes it read a wrong value in silence or raise
whatever the interpreter raises. Here every offset is checked before it is followed, depth and the number of
visited objects are bounded, strings must be UTF-8 and zero-terminated, and the only exception that leaves
is `CodecError` (RFC-003).

Invariants:
- no position outside the buffer is ever read, and none is negative;
- a field lies inside its table, a vector's elements inside the buffer;
- visiting costs are counted, so a buffer that refers to the same subtree again and again is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from odfchain.errors import CodecError
from odfchain.limits import LIMITS, Limits

_u32 = struct.Struct("<I").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u16x2 = struct.Struct("<HH").unpack_from


@lru_cache(maxsize=256)
def _slots_struct(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")


class TableView:
    """One table of a buffer: field positions by slot."""

    __slots__ = ("_slots", "_span", "pos")

    def __init__(self, pos: int, span: int, slots: tuple[int, ...]) -> None:
        self.pos = pos
        self._span = span
        self._slots = slots

    def field(self, slot: int, width: int) -> int:
        """Position of the field in `slot`, `width` bytes of which are inside the table; 0 when absent."""
        if slot >= len(self._slots):
            return 0
        offset = self._slots[slot]
        if offset == 0:
            return 0
        # the first four bytes of a table are its distance to the vtable
        if offset < 4 or offset + width > self._span:
            raise CodecError(f"a field at offset {offset} lies outside its table of {self._span} bytes")
        return self.pos + offset


class FlatBuffer:
    """A buffer and what is left of its budget of visits."""

    __slots__ = ("_visits", "data", "limits", "size")

    def __init__(self, data: bytes, limits: Limits = LIMITS) -> None:
        self.data = data
        self.size = len(data)
        self.limits = limits
        self._visits = limits.flatbuffer_visits

    def root_position(self) -> int:
        """Position of the table that the first four bytes point at."""
        # four bytes lead to the root, and a table has four of its own at least
        if self.size < 8:
            raise CodecError(f"a buffer of {self.size} bytes is too short")
        return self.follow(0)

    def visit(self, count: int = 1) -> None:
        """Spend so much of the budget of `limits.flatbuffer_visits`."""
        self._visits -= count
        if self._visits < 0:
            raise CodecError(f"more than {self.limits.flatbuffer_visits:,} objects in one buffer")

    def follow(self, pos: int) -> int:
        """The position that the unsigned offset at `pos` points to (`pos` has been checked by the caller)."""
        target: int = pos + _u32(self.data, pos)[0]
        # an offset of 0 is its own target; tables, vectors and strings all begin with four bytes
        if target + 4 > self.size or target == pos:
            raise CodecError(f"an offset at byte {pos} points outside the buffer")
        return target

    def table(self, pos: int, depth: int) -> TableView:
        """The table at `pos` (four readable bytes are there); depth and vtable are checked."""
        if depth > self.limits.flatbuffer_depth:
            raise CodecError(f"tables nest deeper than {self.limits.flatbuffer_depth}")
        # as `visit`, without a call for each table; the error is raised there
        self._visits -= 1
        if self._visits < 0:
            self.visit(0)
        size = self.size
        vtable: int = pos - _i32(self.data, pos)[0]
        if vtable < 0 or vtable + 4 > size:
            raise CodecError(f"the vtable of the table at byte {pos} lies outside the buffer")
        length, span = _u16x2(self.data, vtable)
        # a vtable is 16-bit numbers: its own length, that of the table, and the slots
        if length < 4 or length & 1 or vtable + length > size or span < 4 or pos + span > size:
            raise CodecError(f"the vtable at byte {vtable} does not fit into the buffer")
        slots = _slots_struct((length - 4) >> 1).unpack_from(self.data, vtable + 4)
        return TableView(pos, span, slots)

    def bytes_at(self, field: int) -> bytes:
        """The `[ubyte]` vector that the offset at `field` points to."""
        start = self.follow(field)
        self._visits -= 1
        if self._visits < 0:
            self.visit(0)
        length: int = _u32(self.data, start)[0]
        end = start + 4 + length
        if end > self.size:
            raise CodecError(f"a vector of {length:,} bytes at byte {start} runs past the end of the buffer")
        return self.data[start + 4 : end]

    def string_at(self, field: int) -> str:
        """The string that the offset at `field` points to, terminated and UTF-8."""
        start = self.follow(field)
        self._visits -= 1
        if self._visits < 0:
            self.visit(0)
        length: int = _u32(self.data, start)[0]
        end = start + 4 + length
        if end >= self.size or self.data[end] != 0:
            raise CodecError(f"a string at byte {start} is not terminated inside the buffer")
        try:
            return self.data[start + 4 : end].decode()
        except UnicodeDecodeError:
            raise CodecError(f"a string at byte {start} is not UTF-8") from None

    def vector_at(self, field: int, width: int) -> tuple[int, int]:
        """(position of the first element, count) of the vector that the offset at `field` points to."""
        start = self.follow(field)
        count: int = _u32(self.data, start)[0]
        if start + 4 + count * width > self.size:
            message = f"a vector of {count:,} elements at byte {start} runs past the end of the buffer"
            raise CodecError(message)
        if count > self.limits.list_items:
            raise CodecError(f"a vector of {count:,} elements (at most {self.limits.list_items:,})")
        # paid for before any element is read, so a long vector fails at once
        self.visit(1 + count)
        return start + 4, count


# A FlatBuffers builder that writes back to front, one push at a time.
#
# The reference bytes depend on every detail of how a builder pads, orders and shares vtables, so this class
# does exactly what the common builders do and no more (`tests/metadata/test_builder.py` holds it against
# Google's). It keeps the pushed pieces in a list and joins them once, which in Python is several times
# faster than filling a byte array (RFC-002).
#
# Positions are counted from the end of the buffer: the "offset" of an object is the number of bytes from
# its start to the end.

_U32 = struct.Struct("<I").pack
_I32 = struct.Struct("<i").pack
_PADDING = tuple(bytes(n) for n in range(16))


class FlatBufferBuilder:
    """Builds one buffer. Call order is the caller's business: children first, then the table."""

    __slots__ = ("_minalign", "_parts", "_vtables", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._vtables: dict[bytes, int] = {}
        self._minalign = 1
        self.size = 0
        """Bytes pushed so far; right after a push this is the offset of what was pushed."""

    def prep(self, alignment: int, following: int) -> None:
        """Pad so that after `following` more bytes the position is a multiple of `alignment`."""
        if alignment > self._minalign:
            self._minalign = alignment
        padding = -(self.size + following) & (alignment - 1)
        if padding:
            self._parts.append(_PADDING[padding])
            self.size += padding

    def push(self, data: bytes, alignment: int) -> None:
        """Push bytes that end up at a multiple of `alignment` (their own length must be one)."""
        if alignment > self._minalign:
            self._minalign = alignment
        padding = -self.size & (alignment - 1)
        if padding:
            self._parts.append(_PADDING[padding])
            self.size += padding
        self._parts.append(data)
        self.size += len(data)

    def push_struct(self, data: bytes, alignment: int) -> None:
        """Push a struct whose start must be a multiple of `alignment`."""
        self.prep(alignment, len(data))
        self._parts.append(data)
        self.size += len(data)

    def push_offset(self, target: int) -> None:
        """Push the distance from here to the object at offset `target`."""
        self.prep(4, 0)
        # an offset counts from its own place, which is four bytes further on once it is pushed
        self._parts.append(_U32(self.size - target + 4))
        self.size += 4

    def byte_vector(self, data: bytes) -> int:
        """Push a length-prefixed `[ubyte]` and return its offset."""
        length = len(data)
        # padding goes behind the bytes, so that the length in front of them is aligned
        self.prep(4, length)
        self._parts.append(_U32(length) + data)
        self.size += length + 4
        return self.size

    def string(self, text: str) -> int:
        """Push a length-prefixed, zero-terminated string and return its offset (never shared)."""
        data = text.encode()
        self.prep(4, len(data) + 1)
        self._parts.append(_U32(len(data)) + data + b"\0")
        self.size += len(data) + 5
        return self.size

    def offset_vector(self, targets: list[int]) -> int:
        """Push a vector of offsets and return its own offset."""
        self.prep(4, 4 * len(targets))
        # back to front, so the first element ends up right behind the count
        for target in reversed(targets):
            self._parts.append(_U32(self.size - target + 4))
            self.size += 4
        self._parts.append(_U32(len(targets)))
        self.size += 4
        return self.size

    def end_table(self, start: int, slots: list[int]) -> int:
        """Close a table whose fields were pushed since position `start`; `slots` holds their offsets or 0."""
        self.prep(4, 0)
        parts = self._parts
        placeholder = len(parts)
        # the distance to the vtable is known only once it is clear whether one is shared
        parts.append(b"")
        table = self.size = self.size + 4
        # a slot past the end of a vtable reads as absent, and other builders cut these as well
        while slots and not slots[-1]:
            slots.pop()
        entries = struct.pack(
            f"<{len(slots) + 2}H",
            4 + 2 * len(slots),
            table - start,
            *[table - offset if offset else 0 for offset in slots],
        )
        # an identical vtable written earlier is shared, as the common builders do
        vtable = self._vtables.get(entries)
        if vtable is None:
            parts.append(entries)
            self.size += len(entries)
            vtable = self._vtables[entries] = self.size
        parts[placeholder] = _I32(vtable - table)
        return table

    def finish(self, root: int) -> bytes:
        """The finished buffer: root offset in front, total length a multiple of the largest alignment."""
        self.prep(self._minalign, 4)
        self.push_offset(root)
        return b"".join(reversed(self._parts))


# Reads a FlatBuffers schema (`.fbs`) into tables, structs, unions and enums.
#
# Only what the schemas of this project use is understood: scalar, string, vector, struct, table, union and
# enum fields, defaults, and `= null` for optional scalars. A union field takes two slots, its type first.

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
class FbsEnum:
    """An enum: names in value order (values count from 0) and the `struct` code of its base type."""

    name: str
    names: tuple[str, ...]
    code: str


@dataclass(frozen=True, slots=True)
class FbsSchema:
    """All declarations of one file."""

    tables: dict[str, FbsTable]
    structs: dict[str, tuple[str, ...]]
    """Struct name to its fields."""
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
    enum_bodies = bodies["enum"].items()
    enums = {name: FbsEnum(name, tuple(_names(body)), SCALARS[base]) for name, (base, body) in enum_bodies}
    unions = {name: tuple(_names(body)) for name, (_, body) in bodies["union"].items()}
    structs = {
        name: tuple(field for field, *_ in _declared_fields(name, body))
        for name, (_, body) in bodies["struct"].items()
    }
    kinds = {
        **dict.fromkeys(bodies["table"], FieldKind.TABLE),
        **dict.fromkeys(structs, FieldKind.STRUCT),
        **dict.fromkeys(unions, FieldKind.UNION),
        **dict.fromkeys(enums, FieldKind.ENUM),
        **dict.fromkeys(SCALARS, FieldKind.SCALAR),
        "string": FieldKind.STRING,
    }
    tables = {name: _table(name, body, kinds, enums) for name, (_, body) in bodies["table"].items()}
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


def _table(name: str, body: str, kinds: dict[str, FieldKind], enums: dict[str, FbsEnum]) -> FbsTable:
    fields, slot = [], 0
    for field, is_vector, type_name, default in _declared_fields(name, body):
        if type_name not in kinds:
            raise CodecError(f"{name}: type {type_name!r} is not declared")
        kind, element = kinds[type_name], None
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
    """Where a schema file is: next to the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "schemas" / name
    return shipped if shipped.exists() else package.parent / "schemas" / name


@lru_cache
def load_fbs(name: str) -> FbsSchema:
    """The parsed schema file `name` of this project (`odf.fbs`, `arrow.fbs`), parsed once."""
    return parse_fbs(schema_path(name).read_text(encoding="utf-8"))
