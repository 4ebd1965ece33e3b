"""Dataclasses to FlatBuffers: the two passes of the specification, table by table.

First every child that is present is built, in declaration order and depth first; then all fields are pushed
in declaration order, scalars and offsets interleaved. A plain scalar equal to its default is left out, an
optional one is written whenever it is present. Source: specification "Metadata Block Hashing"; RFC-002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from odfchain.codec.binding import union_members, wrapped_union
from odfchain.codec.extra import dump_attributes
from odfchain.codec.fbs import SCALARS, FbsField, FbsSchema, FieldKind
from odfchain.errors import CodecError

if TYPE_CHECKING:
    from flatbuffers import Builder

_NUMBERS = {
    "?": "Bool", "b": "Int8", "B": "Uint8", "h": "Int16", "H": "Uint16", "i": "Int32", "I": "Uint32",
    "q": "Int64", "Q": "Uint64",
}  # fmt: skip

BuildChild = Callable[["Builder", Any], int]
"""Builds one object and returns its offset."""
PushField = Callable[["Builder", Any, int], None]
"""Pushes one field of a table: its value, or the offset of what was built for it."""


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
        builder = new_builder()
        try:
            root = self._table(table)(builder, value)
        except (UnicodeEncodeError, KeyError, TypeError, AttributeError) as error:
            raise CodecError(f"{table}: a value does not fit its field: {error}") from error
        return finished(builder, root)

    def _table(self, table: str) -> BuildChild:
        """The encoder of a table, put together on first use so that recursive types end."""
        tables = self._tables

        def build(builder: Builder, value: Any) -> int:
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
        values_of = _values_getter([f.name for f in declared.fields])
        children = [
            (index, child) for index, f in enumerate(declared.fields) if (child := self._child(f)) is not None
        ]
        pushes = [(index, self._push(f)) for index, f in enumerate(declared.fields)]
        slot_count = declared.slots

        def build(builder: Builder, value: Any) -> int:
            values = values_of(value)
            offsets: dict[int, int] = {}
            for index, child in children:
                item = values[index]
                if item is not None:
                    offsets[index] = child(builder, item)
            builder.StartObject(slot_count)
            for index, push in pushes:
                item = values[index]
                if item is not None:
                    push(builder, item, offsets.get(index, 0))
            return int(builder.EndObject())

        return build

    def _wrapper(self, union: str) -> BuildChild:
        member, types = self._union(union), self._union_types(union)

        def build(builder: Builder, item: Any) -> int:
            offset = member(builder, item)
            builder.StartObject(2)
            builder.PrependUint8Slot(0, types[type(item)], 0)
            builder.PrependUOffsetTRelativeSlot(1, offset, 0)
            return int(builder.EndObject())

        return build

    def _union(self, union: str) -> BuildChild:
        members = {cls: self._table(cls.__name__) for cls in union_members(self._schema, union).values()}
        return lambda builder, item: members[type(item)](builder, item)

    def _union_types(self, union: str) -> dict[type[Any], int]:
        return {cls: number for number, cls in union_members(self._schema, union).items()}

    def _child(self, f: FbsField) -> BuildChild | None:
        """How to build what the field's offset points to; None for inline fields."""
        match f.kind:
            case FieldKind.STRING:
                return lambda builder, item: builder.CreateString(str(item))
            case FieldKind.BYTES:
                return lambda builder, item: builder.CreateByteVector(
                    item if type(item) is bytes else item.to_bytes()
                )
            case FieldKind.TABLE:
                return self._table(f.type_name)
            case FieldKind.UNION:
                return self._union(f.type_name)
            case FieldKind.VECTOR if f.element is FieldKind.STRING:
                return lambda builder, items: offset_vector(builder, [builder.CreateString(i) for i in items])
            case FieldKind.VECTOR:
                element = self._table(f.type_name)
                return lambda builder, items: offset_vector(builder, [element(builder, i) for i in items])
        return None

    def _push(self, f: FbsField) -> PushField:
        slot = f.slot
        if f.kind is FieldKind.SCALAR:
            code, default = SCALARS[f.type_name], None if f.optional_scalar else f.default
            return lambda b, item, _: push_number(b, code, slot, item, default)
        if f.kind is FieldKind.ENUM:
            declared = self._schema.enums[f.type_name]
            default = None if f.optional_scalar else f.default
            numbers = {name: number for number, name in enumerate(declared.names)}
            return lambda b, item, _: push_number(b, declared.code, slot, numbers[item.value], default)
        if f.kind is FieldKind.STRUCT:
            alignment = self._timestamp_alignment
            return lambda b, item, _: _timestamp(b, slot, alignment, item.to_parts())
        if f.kind is FieldKind.UNION:
            types = self._union_types(f.type_name)

            def push_union(builder: Builder, item: Any, offset: int) -> None:
                builder.PrependUint8Slot(slot - 1, types[type(item)], 0)
                builder.PrependUOffsetTRelativeSlot(slot, offset, 0)

            return push_union
        return lambda b, _, offset: b.PrependUOffsetTRelativeSlot(slot, offset, 0)


def new_builder(size: int = 1024) -> Builder:
    """An empty buffer. The library is loaded here, because it loads numpy, and few commands write blocks."""
    from flatbuffers import Builder  # noqa: PLC0415

    return Builder(size)


def finished(builder: Builder, root: int) -> bytes:
    """The finished buffer whose root is the table at `root`."""
    builder.Finish(root)
    return bytes(builder.Output())


def push_number(builder: Builder, code: str, slot: int, value: int, default: int | None) -> None:
    """Writes a number of the type that `struct` calls `code`; it is left out when it is the default."""
    getattr(builder, f"Prepend{_NUMBERS[code]}Slot")(slot, value, default)


def offset_vector(builder: Builder, offsets: list[int]) -> int:
    """Writes a vector of offsets and returns its own offset."""
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _timestamp(builder: Builder, slot: int, alignment: int, parts: tuple[int, int, int, int]) -> None:
    from flatbuffers import number_types  # noqa: PLC0415 - loaded by now

    year, day, second, nanosecond = parts
    builder.Prep(alignment, 16)
    builder.Place(nanosecond, number_types.Uint32Flags)
    builder.Place(second, number_types.Uint32Flags)
    builder.Pad(2)
    builder.Place(day, number_types.Uint16Flags)
    builder.Place(year, number_types.Int32Flags)
    builder.Slot(slot)


def _values_getter(names: list[str]) -> Callable[[Any], Sequence[Any]]:
    # with one name or none attrgetter gives no tuple
    return attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]


def _build_extra_attributes(builder: Builder, value: Any) -> int:
    text = builder.CreateString(dump_attributes(value.entries))
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    return int(builder.EndObject())
