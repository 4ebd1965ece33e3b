"""Metadata blocks as bytes: the manifest around them, their hash, and the header a walk needs.

A block file is a FlatBuffers `Manifest` whose `content` is a finished FlatBuffers `MetadataBlock`; its hash
is SHA3-256 over the whole file as it was received. Manifest version 3 is written; versions 2 and 3 are read.
They differ only in the alignment of the `Timestamp` struct. Source: specification "Metadata Block Hashing",
"Manifest"; RFC-002.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import struct
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, cast

from odfchain.errors import CodecError, InvalidIdError, OdfchainError, UnsupportedVersionError
from odfchain.limits import LIMITS
from odfchain.odf import enums
from odfchain.odf.events import BlockHeader, MetadataBlock
from odfchain.odf.flatbuffers import (
    SCALARS,
    FbsField,
    FbsSchema,
    FieldKind,
    FlatBuffer,
    FlatBufferBuilder,
    TableView,
    load_fbs,
)
from odfchain.odf.identity import DatasetId, Multicodec, Multihash
from odfchain.odf.names import DatasetAlias, DatasetRefAny, parse_ref_any
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.schema import ExtraAttributes
from odfchain.odf.times import Timestamp

# FlatBuffers tables and their dataclasses.
#
# A table and its dataclass have the same name, the same fields in the same order. Tables that exist only
# because a vector or a root cannot be a union (`PrepStepWrapper`, `…ResponseRoot`) have no dataclass.


@lru_cache
def dataclass_of(table: str) -> type[Any] | None:
    """The dataclass with this name, if there is one."""
    # the messages to engines come last and are loaded when asked for: few commands need them
    for module in ("events", "sources", "schema", "engine_messages"):
        found = getattr(import_module(f"odfchain.odf.{module}"), table, None)
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
    """Type without None, and whether None is allowed, of each field without the metadata `tree: False`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [f for f in dataclasses.fields(cls) if f.metadata.get("tree", True)]
    return {f.name: without_none(hints[f.name]) for f in fields}


def field_defaults(cls: type[Any]) -> dict[str, Any]:
    """Defaults of the fields that have one."""
    found = {}
    for f in dataclasses.fields(cls):
        if f.default is not dataclasses.MISSING:
            found[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            found[f.name] = f.default_factory()
    return found


def without_none(hint: Any) -> tuple[Any, bool]:
    """The type without None, and whether None is allowed."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    args = typing.get_args(hint)
    rest = tuple(a for a in args if a is not type(None))
    if len(rest) == len(args):
        return hint, False
    return (rest[0] if len(rest) == 1 else typing.Union[rest]), True  # noqa: UP007 - built at run time


# The JSON text of `ExtraAttributes`.
#
# The text is part of what is hashed, so its form is fixed: no spaces, keys sorted at every level, non-ASCII
# left as it is, floats in the shortest form the reference implementation's library prints.


def dump_attributes(value: Mapping[str, Any]) -> str:
    """The canonical text of an attribute map."""
    return _dump(value, 0)


def _dump(value: Any, depth: int) -> str:
    if depth > LIMITS.manifest_depth:
        raise CodecError(f"attributes nest deeper than {LIMITS.manifest_depth}")
    match value:
        case None | bool() | str() | int():
            return json.dumps(value, ensure_ascii=False)
        case float():
            if not math.isfinite(value):
                raise CodecError(f"{value} is not JSON")
            # as the reference implementation: plain up to 16 digits before the point, or 4 zeros after it
            return shortest_text(value, repr(abs(value)), -5, 15)
        case Mapping():
            items = (
                f"{json.dumps(k, ensure_ascii=False)}:{_dump(value[k], depth + 1)}" for k in sorted(value)
            )
            return "{" + ",".join(items) + "}"
        case list() | tuple():
            return "[" + ",".join(_dump(item, depth + 1) for item in value) + "]"
    raise CodecError(f"an attribute of type {type(value).__name__} is not JSON")


def shortest_text(value: float, text: str, least: int, most: int, *, plus: str = "") -> str:
    """A finite number by the digits of `text`, plain within two exponents; `plus` goes before larger ones."""
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    exponent = len(whole) - 1 - leading + int(power or 0)
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0"
    if not least <= exponent <= most:
        point = "." if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{point}{digits[1:]}e{plus if exponent > 0 else ''}{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    padded = digits.ljust(exponent + 1, "0")
    return f"{sign}{padded[: exponent + 1]}.{padded[exponent + 1 :] or '0'}"


def load_attributes(text: str) -> dict[str, Any]:
    """The attribute map that a text holds; `CodecError` unless it is a JSON object within the bounds."""

    def refuse(constant: str) -> NoReturn:
        raise CodecError(f"attributes hold {constant}, which is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
        dump_attributes(value).encode()
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise CodecError(f"attributes are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CodecError("attributes are not a JSON object")
    return value


# Dataclasses to FlatBuffers: the two passes of the specification, table by table.
#
# First every child that is present is built, in declaration order and depth first; then all fields are
# pushed in declaration order, scalars and offsets interleaved. A plain scalar equal to its default is left
# out, an optional one is written whenever it is present. Source: specification "Metadata Block Hashing";
# RFC-002.

_TIMESTAMP = struct.Struct("<iH2xII").pack

BuildChild = Callable[[FlatBufferBuilder, Any], int]
"""Builds one object and returns its offset."""
PushInline = Callable[[FlatBufferBuilder, Any], None]


class Encoder:
    """Encoders for every table of a schema; `timestamp_alignment` is that of the manifest version."""

    def __init__(self, schema: FbsSchema, timestamp_alignment: int) -> None:
        self._schema = schema
        self._timestamp_alignment = timestamp_alignment
        self._tables: dict[str, BuildChild] = {}

    def encode(self, table: str, value: Any) -> bytes:
        """The finished buffer whose root is `value`, laid out as `table`, if all values fit."""
        builder = FlatBufferBuilder()
        try:
            root = self._table(table)(builder, value)
        except (struct.error, UnicodeEncodeError, KeyError, TypeError, AttributeError) as error:
            raise CodecError(f"{table}: a value does not fit its field: {error}") from error
        return builder.finish(root)

    def _table(self, table: str) -> BuildChild:
        tables = self._tables

        # compiled on first use: a table that contains itself would be compiled for ever
        def build(builder: FlatBufferBuilder, value: Any) -> int:
            encoder = tables.get(table)
            if encoder is None:
                encoder = tables[table] = self._compile(table)
            return encoder(builder, value)

        return tables.get(table, build)

    def _compile(self, table: str) -> BuildChild:
        declared = self._schema.tables[table]
        if table == "ExtraAttributes":
            return _build_extra_attributes
        if union := wrapped_union(self._schema, table):
            return self._wrapper(union)
        if not declared.fields:
            return lambda builder, _value: builder.end_table(builder.size, [])
        getter = attrgetter(*(f.name for f in declared.fields))
        values_of = getter if len(declared.fields) > 1 else lambda value: (getter(value),)
        children = [
            (index, child) for index, f in enumerate(declared.fields) if (child := self._child(f)) is not None
        ]
        pushes = [(index, f.slot, *self._push(f)) for index, f in enumerate(declared.fields)]
        slot_count = declared.slots

        def build(builder: FlatBufferBuilder, value: Any) -> int:
            values = values_of(value)
            offsets: dict[int, int] = {}
            for index, child in children:
                item = values[index]
                if item is not None:
                    offsets[index] = child(builder, item)
            start = builder.size
            slots = [0] * slot_count
            for index, slot, push, default, union_types in pushes:
                item = values[index]
                if item is None:
                    continue
                if push is not None:
                    if item == default:
                        continue
                    push(builder, item)
                else:
                    if union_types is not None:
                        builder.push(union_types[type(item)], 1)
                        slots[slot - 1] = builder.size
                    builder.push_offset(offsets[index])
                slots[slot] = builder.size
            return builder.end_table(start, slots)

        return build

    def _wrapper(self, union: str) -> BuildChild:
        member, types = self._union(union), self._union_types(union)

        def build(builder: FlatBufferBuilder, item: Any) -> int:
            offset = member(builder, item)
            start = builder.size
            builder.push(types[type(item)], 1)
            type_slot = builder.size
            builder.push_offset(offset)
            return builder.end_table(start, [type_slot, builder.size])

        return build

    def _union(self, union: str) -> BuildChild:
        members = {cls: self._table(cls.__name__) for cls in union_members(self._schema, union).values()}
        return lambda builder, item: members[type(item)](builder, item)

    def _union_types(self, union: str) -> dict[type[Any], bytes]:
        return {cls: bytes([number]) for number, cls in union_members(self._schema, union).items()}

    def _child(self, f: FbsField) -> BuildChild | None:
        """How to build what the field's offset points to; None for inline fields."""
        match f.kind:
            case FieldKind.STRING:
                return lambda builder, item: builder.string(str(item))
            case FieldKind.BYTES:
                return lambda builder, item: builder.byte_vector(
                    item if type(item) is bytes else item.to_bytes()
                )
            case FieldKind.TABLE:
                return self._table(f.type_name)
            case FieldKind.UNION:
                return self._union(f.type_name)
            case FieldKind.VECTOR if f.element is FieldKind.STRING:
                return lambda builder, items: builder.offset_vector([builder.string(i) for i in items])
            case FieldKind.VECTOR:
                element = self._table(f.type_name)
                return lambda builder, items: builder.offset_vector([element(builder, i) for i in items])
        return None

    def _push(self, f: FbsField) -> tuple[PushInline | None, Any, dict[type[Any], bytes] | None]:
        """(how to push an inline value, the default that is left out, type bytes of a union)."""
        if f.kind is FieldKind.SCALAR:
            scalar = struct.Struct("<" + SCALARS[f.type_name])
            size, pack = scalar.size, scalar.pack
            return lambda b, item: b.push(pack(item), size), None if f.optional_scalar else f.default, None
        if f.kind is FieldKind.ENUM:
            declared = self._schema.enums[f.type_name]
            scalar = struct.Struct("<" + declared.code)
            width = scalar.size
            numbers = {name: scalar.pack(number) for number, name in enumerate(declared.names)}
            default = None if f.optional_scalar else enum_of(f.type_name)(declared.names[f.default])
            return lambda b, item: b.push(numbers[item.value], width), default, None
        if f.kind is FieldKind.STRUCT:
            alignment = self._timestamp_alignment
            return lambda b, item: b.push_struct(_TIMESTAMP(*item.to_parts()), alignment), None, None
        return None, None, self._union_types(f.type_name) if f.kind is FieldKind.UNION else None


def _build_extra_attributes(builder: FlatBufferBuilder, value: Any) -> int:
    text = builder.string(dump_attributes(value.entries))
    start = builder.size
    builder.push_offset(text)
    return builder.end_table(start, [builder.size])


# FlatBuffers to dataclasses, through the bounds-checked reader.
#
# Absent optional fields become None, absent plain scalars their default; an absent field that ODF requires
# is an error. Slots beyond those of the schema are ignored, as FlatBuffers intends for newer writers;
# unknown union members and enum values are errors, because their meaning would be lost.

_TIMESTAMP_STRUCT = struct.Struct("<iH2xII").unpack_from

DecodeTable = Callable[[FlatBuffer, int, int], Any]
"""(buffer, position of the table, depth) to a dataclass."""
ReadField = Callable[[FlatBuffer, TableView, int, int], Any]
"""(buffer, table, position of the field, depth) to a value."""

_BYTES_TYPES: dict[Any, Callable[[bytes], Any]] = {
    bytes: bytes,
    Multihash: Multihash.from_bytes,
    DatasetId: DatasetId.from_bytes,
}
_TEXT_TYPES: dict[Any, Callable[[str], Any]] = {
    str: str,
    DatasetAlias: DatasetAlias.parse,
    DatasetRefAny: parse_ref_any,
}


class Decoder:
    """Decoders for every table of a schema."""

    def __init__(self, schema: FbsSchema) -> None:
        self._schema = schema
        self._tables: dict[str, DecodeTable] = {}

    def decode(self, table: str, data: bytes) -> Any:
        """The dataclass that a buffer with root `table` holds."""
        buffer = FlatBuffer(data)
        return self._table(table)(buffer, buffer.root_position(), 0)

    def compile_all(self) -> None:
        """Every table has its decoder from now on."""
        for table in self._schema.tables:
            with contextlib.suppress(CodecError):  # it is none of ours
                self._tables[table] = self._compile(table)

    def _table(self, table: str) -> DecodeTable:
        tables = self._tables

        # compiled on first use: a table that contains itself would be compiled for ever
        def decode(buffer: FlatBuffer, pos: int, depth: int) -> Any:
            decoder = tables.get(table)
            if decoder is None:
                decoder = tables[table] = self._compile(table)
            return decoder(buffer, pos, depth)

        return tables.get(table, decode)

    def _compile(self, table: str) -> DecodeTable:
        if table == "ExtraAttributes":
            return _decode_extra_attributes
        declared = self._schema.tables[table]
        if wrapped_union(self._schema, table):
            only = declared.fields[0]
            read_only = self._union(only)

            def decode_wrapped(buffer: FlatBuffer, pos: int, depth: int) -> Any:
                view = buffer.table(pos, depth)
                field = view.field(only.slot, 4)
                if not field:
                    raise CodecError(f"{table}.{only.name} is required but absent")
                return read_only(buffer, view, field, depth)

            return decode_wrapped
        cls = dataclass_of(table)
        if cls is None:
            raise CodecError(f"no dataclass for table {table}")
        plan = self._plan(table, cls)

        def decode(buffer: FlatBuffer, pos: int, depth: int) -> Any:
            view = buffer.table(pos, depth)
            values = {}
            for name, slot, width, read, default, required in plan:
                field = view.field(slot, width)
                if field:
                    values[name] = read(buffer, view, field, depth)
                elif required:
                    raise CodecError(f"{table}.{name} is required but absent")
                else:
                    values[name] = default
            return cls(**values)

        return decode

    def _plan(self, table: str, cls: type[Any]) -> list[tuple[str, int, int, ReadField, Any, bool]]:
        """For each field: name, slot, inline width, how to read it, default, whether ODF requires it."""
        types, defaults = field_types(cls), field_defaults(cls)
        plan = []
        for f in self._schema.tables[table].fields:
            hint, may_be_none = types[f.name]
            width, read = self._reader(f, hint)
            default = defaults.get(f.name)
            if f.kind is FieldKind.SCALAR and not f.optional_scalar:
                default = bool(f.default) if f.type_name == "bool" else f.default
            elif f.kind is FieldKind.ENUM and not f.optional_scalar:
                default = enum_of(f.type_name)(self._schema.enums[f.type_name].names[f.default])
            plan.append(
                (
                    f.name,
                    f.slot,
                    width,
                    _named(f"{table}.{f.name}", read),
                    default,
                    default is None and not may_be_none,
                )
            )
        return plan

    def _reader(self, f: FbsField, hint: Any) -> tuple[int, ReadField]:
        match f.kind:
            case FieldKind.SCALAR:
                scalar = struct.Struct("<" + SCALARS[f.type_name])
                unpack = scalar.unpack_from
                return scalar.size, lambda buffer, _view, pos, _depth: unpack(buffer.data, pos)[0]
            case FieldKind.ENUM:
                return self._enum(f)
            case FieldKind.STRUCT:
                return 16, lambda buffer, _view, pos, _depth: Timestamp.from_parts(
                    *_TIMESTAMP_STRUCT(buffer.data, pos)
                )
            case FieldKind.STRING:
                parse = _TEXT_TYPES[hint]
                if parse is str:
                    return 4, lambda buffer, _view, pos, _depth: buffer.string_at(pos)
                return 4, lambda buffer, _view, pos, _depth: parse(buffer.string_at(pos))
            case FieldKind.BYTES:
                convert = _BYTES_TYPES[hint]
                return 4, lambda buffer, _view, pos, _depth: convert(buffer.bytes_at(pos))
            case FieldKind.TABLE:
                table = self._table(f.type_name)
                return 4, lambda buffer, _view, pos, depth: table(buffer, buffer.follow(pos), depth + 1)
            case FieldKind.UNION:
                return 4, self._union(f)
            case FieldKind.VECTOR:
                return 4, self._vector(f)

    def _enum(self, f: FbsField) -> tuple[int, ReadField]:
        declared, cls = self._schema.enums[f.type_name], enum_of(f.type_name)
        members = [cls(name) for name in declared.names]
        scalar = struct.Struct("<" + declared.code)
        unpack = scalar.unpack_from

        def read(buffer: FlatBuffer, _view: TableView, pos: int, _depth: int) -> Any:
            number = unpack(buffer.data, pos)[0]
            if not 0 <= number < len(members):
                raise UnsupportedVersionError(f"{f.type_name} {number} is not known to this version")
            return members[number]

        return scalar.size, read

    def _union(self, f: FbsField) -> ReadField:
        variants = union_members(self._schema, f.type_name).items()
        members = {number: self._table(cls.__name__) for number, cls in variants}
        type_slot = f.slot - 1

        def read(buffer: FlatBuffer, view: TableView, pos: int, depth: int) -> Any:
            type_pos = view.field(type_slot, 1)
            number = buffer.data[type_pos] if type_pos else 0
            member = members.get(number)
            if member is None:
                message = f"{f.type_name} variant {number} is not known to this version of odfchain"
                raise UnsupportedVersionError(message)
            return member(buffer, buffer.follow(pos), depth + 1)

        return read

    def _vector(self, f: FbsField) -> ReadField:
        if f.element is FieldKind.STRING:

            def read_strings(buffer: FlatBuffer, _view: TableView, pos: int, _depth: int) -> Any:
                start, count = buffer.vector_at(pos, 4)
                return tuple([buffer.string_at(p) for p in range(start, start + 4 * count, 4)])

            return read_strings
        table = self._table(f.type_name)

        def read_tables(buffer: FlatBuffer, _view: TableView, pos: int, depth: int) -> Any:
            start, count = buffer.vector_at(pos, 4)
            return tuple(
                [table(buffer, buffer.follow(p), depth + 1) for p in range(start, start + 4 * count, 4)]
            )

        return read_tables


def _named(where: str, read: ReadField) -> ReadField:
    def read_named(buffer: FlatBuffer, view: TableView, pos: int, depth: int) -> Any:
        try:
            return read(buffer, view, pos, depth)
        except CodecError:
            raise
        except OdfchainError as error:
            raise CodecError(f"{where}: {error}") from None

    return read_named


def _decode_extra_attributes(buffer: FlatBuffer, pos: int, depth: int) -> ExtraAttributes:
    field = buffer.table(pos, depth).field(0, 4)
    if not field:
        raise CodecError("ExtraAttributes.entries is required but absent")
    return ExtraAttributes(load_attributes(buffer.string_at(field)))


MANIFEST_VERSION = 3
"""The manifest version that is written unless another is asked for."""

TIMESTAMP_ALIGNMENT = {2: 1, 3: 4}
"""Manifest versions that are read, and the alignment of `Timestamp` in each."""

_i64 = struct.Struct("<q").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u64 = struct.Struct("<Q").unpack_from


class _Manifest(NamedTuple):
    kind: int
    version: int
    content: bytes


@lru_cache
def _encoder(version: int) -> Encoder:
    return Encoder(load_fbs("odf.fbs"), TIMESTAMP_ALIGNMENT[version])


@lru_cache
def decoder() -> Decoder:
    """The decoder of blocks."""
    return Decoder(load_fbs("odf.fbs"))


@lru_cache
def _event_names() -> dict[int, str]:
    return dict(enumerate(load_fbs("odf.fbs").unions["MetadataEvent"], start=1))


def encode_block(block: MetadataBlock, version: int = MANIFEST_VERSION) -> bytes:
    """The bytes of a block file in the given manifest version; the same block always gives the same bytes."""
    if version not in TIMESTAMP_ALIGNMENT:
        raise UnsupportedVersionError(f"manifest version {version} cannot be written (2 and 3 can)")
    encoder = _encoder(version)
    content = encoder.encode("MetadataBlock", block)
    return encoder.encode("Manifest", _Manifest(Multicodec.ODF_METADATA_BLOCK, version, content))


def block_hash(data: bytes) -> Multihash:
    """The hash of a block file: over the bytes as they are."""
    return Multihash.sha3_256(sha3_256(data).digest())


def open_manifest(data: bytes) -> tuple[int, bytes]:
    """(manifest version, content) of a block file, within the bounds; errors as `decode_block`."""
    if len(data) > LIMITS.block_bytes:
        raise CodecError(f"a block of {len(data):,} bytes (at most {LIMITS.block_bytes:,})")
    buffer = FlatBuffer(data)
    manifest = buffer.table(buffer.root_position(), 0)
    kind_at, version_at, content_at = manifest.field(0, 8), manifest.field(1, 4), manifest.field(2, 4)
    kind = _i64(data, kind_at)[0] if kind_at else 0
    if kind != Multicodec.ODF_METADATA_BLOCK:
        raise CodecError(f"a manifest of kind 0x{kind & 0xFFFF_FFFF_FFFF_FFFF:x} is not a metadata block")
    version = _i32(data, version_at)[0] if version_at else 0
    if version not in TIMESTAMP_ALIGNMENT:
        raise UnsupportedVersionError(f"manifest version {version} is not supported (2 and 3 are read)")
    if not content_at:
        raise CodecError("the manifest has no content")
    return version, buffer.bytes_at(content_at)


def decode_block(data: bytes) -> MetadataBlock:
    """The block that a file holds; `CodecError`, of a newer version or event `UnsupportedVersionError`."""
    _, content = open_manifest(data)
    return cast("MetadataBlock", decoder().decode("MetadataBlock", content))


def decode_header(data: bytes) -> BlockHeader:
    """Previous hash, sequence number and event kind, without decoding the event; errors as `decode_block`."""
    _, content = open_manifest(data)
    buffer = FlatBuffer(content)
    block = buffer.table(buffer.root_position(), 0)
    prev_at, sequence_at, kind_at = block.field(1, 4), block.field(2, 8), block.field(3, 1)
    kind = _event_names().get(content[kind_at] if kind_at else 0)
    if kind is None:
        raise UnsupportedVersionError("an event of a kind that this version of odfchain does not know")
    try:
        prev = Multihash.from_bytes(buffer.bytes_at(prev_at)) if prev_at else None
    except InvalidIdError as error:
        raise CodecError(f"MetadataBlock.prev_block_hash: {error}") from None
    number = _u64(content, sequence_at)[0] if sequence_at else 0
    return BlockHeader(prev, number, kind)
