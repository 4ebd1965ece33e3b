"""FlatBuffers to dataclasses, through the bounds-checked reader.

Absent optional fields become None, absent plain scalars their default; an absent field that ODF requires is
an error. Slots beyond those of the schema are ignored, as FlatBuffers intends for newer writers; unknown
union members and enum values are errors, because their meaning would be lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from odfchain.codec.binding import (
    dataclass_of,
    enum_of,
    field_defaults,
    field_types,
    union_members,
    wrapped_union,
)
from odfchain.codec.extra import load_attributes
from odfchain.codec.fbs import SCALARS, FbsField, FbsSchema, FieldKind
from odfchain.codec.flatbuffer import FlatBuffer, TableView
from odfchain.errors import CodecError, DecodeError, OdfchainError, UnsupportedVersionError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.ids.refs import DatasetRefAny, parse_ref_any
from odfchain.model.data_schema import ExtraAttributes
from odfchain.model.timestamp import Timestamp

_TIMESTAMP = struct.Struct("<iH2xII").unpack_from

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

    def _table(self, table: str) -> DecodeTable:
        """The decoder of a table, put together on first use so that recursive types end."""
        tables = self._tables

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
                    raise DecodeError(f"{table}.{only.name} is required but absent")
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
                    raise DecodeError(f"{table}.{name} is required but absent")
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
                    *_TIMESTAMP(buffer.data, pos)
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
        members = {
            number: self._table(cls.__name__)
            for number, cls in union_members(self._schema, f.type_name).items()
        }
        type_slot = f.slot - 1

        def read(buffer: FlatBuffer, view: TableView, pos: int, depth: int) -> Any:
            type_pos = view.field(type_slot, 1)
            number = buffer.data[type_pos] if type_pos else 0
            member = members.get(number)
            if member is None:
                raise UnsupportedVersionError(
                    f"{f.type_name} variant {number} is not known to this version of odfchain"
                )
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
    """`read`, with the field's name in front of the errors of value types."""

    def read_named(buffer: FlatBuffer, view: TableView, pos: int, depth: int) -> Any:
        try:
            return read(buffer, view, pos, depth)
        except CodecError:
            raise
        except OdfchainError as error:
            raise DecodeError(f"{where}: {error}") from None

    return read_named


def _decode_extra_attributes(buffer: FlatBuffer, pos: int, depth: int) -> ExtraAttributes:
    view = buffer.table(pos, depth)
    field = view.field(0, 4)
    if not field:
        raise DecodeError("ExtraAttributes.entries is required but absent")
    return ExtraAttributes(load_attributes(buffer.string_at(field)))
