"""Dataclasses to FlatBuffers: the two passes of the specification, table by table.

First every child that is present is built, in declaration order and depth first; then all fields are pushed
in declaration order, scalars and offsets interleaved. A plain scalar equal to its default is left out, an
optional one is written whenever it is present. Source: specification "Metadata Block Hashing"; RFC-002.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from odfchain.codec.binding import enum_of, union_members, wrapped_union
from odfchain.codec.builder import FlatBufferBuilder
from odfchain.codec.extra import dump_attributes
from odfchain.codec.fbs import SCALARS, FbsField, FbsSchema, FieldKind
from odfchain.errors import CodecError

_TIMESTAMP = struct.Struct("<iH2xII").pack

BuildChild = Callable[[FlatBufferBuilder, Any], int]
"""Builds one object and returns its offset."""
PushInline = Callable[[FlatBufferBuilder, Any], None]
"""Pushes one inline value."""


class Encoder:
    """Encoders for every table of a schema; `timestamp_alignment` is that of the manifest version."""

    def __init__(self, schema: FbsSchema, timestamp_alignment: int) -> None:
        self._schema = schema
        self._timestamp_alignment = timestamp_alignment
        self._tables: dict[str, BuildChild] = {}

    def encode(self, table: str, value: Any) -> bytes:
        """The finished buffer whose root is `value`, laid out as `table`.

        Raises:
            CodecError: a value does not fit its field.
        """
        builder = FlatBufferBuilder()
        try:
            root = self._table(table)(builder, value)
        except (struct.error, UnicodeEncodeError, KeyError, TypeError, AttributeError) as error:
            raise CodecError(f"{table}: a value does not fit its field: {error}") from error
        return builder.finish(root)

    def _table(self, table: str) -> BuildChild:
        """The encoder of a table, put together on first use so that recursive types end."""
        tables = self._tables

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
        values_of = _values_getter([f.name for f in declared.fields])
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


def _values_getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    getter = attrgetter(*names)
    return getter if len(names) > 1 else lambda value: (getter(value),)


def _build_extra_attributes(builder: FlatBufferBuilder, value: Any) -> int:
    text = builder.string(dump_attributes(value.entries))
    start = builder.size
    builder.push_offset(text)
    return builder.end_table(start, [builder.size])
