"""The raw Arrow schema of a 0.34.1 `SetDataSchema`: a bare FlatBuffers `Schema` table.

Written in the order in which the Rust Arrow library writes it, because the bytes are part of a hashed block
and must be the same as another node's; read through the bounds-checked reader. Encodings that do not change
the meaning of values (large, view, dictionary) are dropped on reading: two schemas that differ only in them
are the same schema. Source: specification "SetDataSchema"; facts in `flatbuffers_blocks.json`
(`raw_arrow_schema`) and the Arrow columnar format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from odfchain.errors import CodecError, SchemaError
from odfchain.lazy import pa
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.events import SetDataSchema
from odfchain.odf.flatbuffers import SCALARS, FieldKind, FlatBuffer, FlatBufferBuilder, TableView, load_fbs
from odfchain.odf.schema import stored

EXTENSION_NAME = "ARROW:extension:name"
"""Key of a field's metadata that names the extension type of the column (Arrow, "Extension types")."""

UUID_EXTENSION = "arrow.uuid"
"""Arrow's canonical extension type for UUIDs."""

DATE_UNIT = "arrow.apache.org/dateUnit"
"""Attribute of a date column that Arrow declares as date64 (milliseconds) and not as date32 (days)."""

_ARROW_UNITS = (TimeUnit.SECOND, TimeUnit.MILLISECOND, TimeUnit.MICROSECOND, TimeUnit.NANOSECOND)
_MILLISECONDS = ds.ExtraAttributes({DATE_UNIT: "Millisecond"})
_SIXTEEN_BYTES = ds.DataTypeBinary(fixed_length=16)
_INTS: dict[Callable[[], ds.DataType], tuple[bool, int]] = {
    ds.DataTypeInt8: (True, 8),
    ds.DataTypeInt16: (True, 16),
    ds.DataTypeInt32: (True, 32),
    ds.DataTypeInt64: (True, 64),
    ds.DataTypeUInt8: (False, 8),
    ds.DataTypeUInt16: (False, 16),
    ds.DataTypeUInt32: (False, 32),
    ds.DataTypeUInt64: (False, 64),
}
_INT_TYPES: dict[tuple[bool, int], ds.DataType] = {key: make() for make, key in _INTS.items()}
_FLOATS: tuple[ds.DataType, ...] = (ds.DataTypeFloat16(), ds.DataTypeFloat32(), ds.DataTypeFloat64())


@lru_cache
def _type_numbers() -> dict[str, int]:
    return {name: number for number, name in enumerate(load_fbs("arrow.fbs").unions["Type"], start=1)}


@lru_cache
def _slots(table: str) -> dict[str, tuple[int, str, int]]:
    """Field name to (slot, struct code of an inline value or "", default)."""
    schema = load_fbs("arrow.fbs")
    result = {}
    for f in schema.tables[table].fields:
        code = ""
        if f.kind is FieldKind.SCALAR:
            code = SCALARS[f.type_name]
        elif f.kind is FieldKind.ENUM:
            code = schema.enums[f.type_name].code
        result[f.name] = (f.slot, code, f.default)
    return result


# --- writing ---------------------------------------------------------------------------------------


def encode_raw_arrow(schema: ds.DataSchema) -> bytes:
    """The raw Arrow schema, byte for byte as the Rust Arrow library writes it; else `SchemaError`."""
    builder = FlatBufferBuilder()
    try:
        # of the attributes Arrow has two: dates in milliseconds, and UUIDs as its canonical extension type
        fields = [_build_field(builder, f) for f in schema.fields]
        vector = builder.offset_vector(fields)
        return builder.finish(_table(builder, "Schema", fields=_Offset(vector)))
    except struct.error as error:
        raise SchemaError(f"the schema cannot be written as Arrow: {error}") from error


class _Offset(int):
    """An offset, to tell it from an inline number."""


def _table(builder: FlatBufferBuilder, table: str, **fields: int | bool | None) -> int:
    """Push a table's fields in the order given; None and inline defaults are left out."""
    slots_of = _slots(table)
    start = builder.size
    slots = [0] * (max((slot for slot, _, _ in slots_of.values()), default=-1) + 1)
    for name, value in fields.items():
        slot, code, default = slots_of[name.removesuffix("_type") if name == "type_type" else name]
        if name == "type_type":
            slot, code, default = slot - 1, "B", 0
        if value is None or (not isinstance(value, _Offset) and value == default):
            continue
        if isinstance(value, _Offset):
            builder.push_offset(value)
        else:
            data = struct.pack("<" + code, value)
            builder.push(data, len(data))
        slots[slot] = builder.size
    return builder.end_table(start, slots)


def _build_field(builder: FlatBufferBuilder, f: ds.DataField) -> int:
    metadata = _Offset(_build_uuid_metadata(builder)) if ds.is_uuid(f.value_type, f.extra) else None
    name = builder.string(f.name)
    type_name, type_offset, children = _build_type(builder, f.value_type, f.extra)
    return _table(
        builder,
        "Field",
        name=_Offset(name),
        type_type=_type_numbers()[type_name],
        nullable=f.optional,
        children=_Offset(children),
        type=_Offset(type_offset),
        custom_metadata=metadata,
    )


def _build_uuid_metadata(builder: FlatBufferBuilder) -> int:
    key, value = builder.string(EXTENSION_NAME), builder.string(UUID_EXTENSION)
    return builder.offset_vector([_table(builder, "KeyValue", key=_Offset(key), value=_Offset(value))])


def _build_type(
    builder: FlatBufferBuilder, data_type: ds.DataType, extra: ds.ExtraAttributes | None = None
) -> tuple[str, int, int]:
    """(name of the union member, offset of its table, offset of the children vector)."""

    def plain(name: str, **fields: int | bool | None) -> tuple[str, int, int]:
        return name, _table(builder, name, **fields), builder.offset_vector([])

    def children_first(name: str, **fields: int | bool | None) -> tuple[str, int, int]:
        children = builder.offset_vector([])  # before the table: what is recorded depends on the order
        return name, _table(builder, name, **fields), children

    def nested(name: str, members: list[ds.DataField], **fields: int | bool | None) -> tuple[str, int, int]:
        built = [_build_field(builder, member) for member in members]
        return name, _table(builder, name, **fields), builder.offset_vector(built)

    def unit_of(unit: TimeUnit | None) -> int:
        return _ARROW_UNITS.index(unit or TimeUnit.MILLISECOND)

    match data_type:
        case ds.DataTypeNull():
            return plain("Null")
        case ds.DataTypeBool():
            return plain("Bool")
        case ds.DataTypeString():
            return plain("Utf8")
        case ds.DataTypeBinary(fixed_length=None):
            return plain("Binary")
        case ds.DataTypeBinary(fixed_length=length):
            return plain("FixedSizeBinary", byteWidth=length)
        case ds.DataTypeDate():
            is_ms = extra is not None and extra.entries.get(DATE_UNIT) == "Millisecond"
            return plain("Date", unit=1 if is_ms else 0)
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            return plain(
                "Decimal", precision=precision, scale=scale, bitWidth=128 if precision <= 38 else 256
            )
        case ds.DataTypeTime(unit=unit):
            number = unit_of(unit)
            return plain("Time", bitWidth=32 if number < 2 else 64, unit=number)
        case ds.DataTypeDuration(unit=unit):
            return plain("Duration", unit=unit_of(unit))
        case ds.DataTypeTimestamp(unit=unit, timezone=zone):
            name = "UTC" if zone is None else zone
            text = _Offset(builder.string(name))
            return plain("Timestamp", unit=unit_of(unit), timezone=text if name else None)
        case ds.DataTypeList(item_type=item, fixed_length=None):
            return nested("List", [ds.DataField(name="item", type=item)])
        case ds.DataTypeList(item_type=item, fixed_length=length):
            return nested("FixedSizeList", [ds.DataField(name="item", type=item)], listSize=length)
        case ds.DataTypeStruct(fields=fields):
            return nested("Struct_", list(fields))
        case ds.DataTypeMap(key_type=key, value_type=value, keys_sorted=keys_sorted):
            entries = ds.DataTypeStruct(
                fields=(ds.DataField(name="key", type=key), ds.DataField(name="value", type=value))
            )
            return nested("Map", [ds.DataField(name="entries", type=entries)], keysSorted=bool(keys_sorted))
        case ds.DataTypeFloat16() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            return children_first("FloatingPoint", precision=_FLOATS.index(data_type))
    if type(data_type) in _INTS:
        signed, width = _INTS[type(data_type)]
        return children_first("Int", is_signed=signed, bitWidth=width)
    raise SchemaError(f"type {data_type.KIND} has no Arrow form here")


# --- reading ---------------------------------------------------------------------------------------


def decode_raw_arrow(data: bytes) -> ds.DataSchema:
    """The schema of a raw Arrow schema."""
    buffer = FlatBuffer(data)
    root = buffer.table(buffer.root_position(), 0)
    return ds.DataSchema(fields=tuple(_read_children(buffer, root, "Schema", "fields", 0)))


def _read_children(
    buffer: FlatBuffer, view: TableView, table: str, name: str, depth: int
) -> list[ds.DataField]:
    pos = view.field(_slots(table)[name][0], 4)
    if not pos:
        return []
    start, count = buffer.vector_at(pos, 4)
    return [_read_field(buffer, buffer.follow(start + 4 * i), depth + 1) for i in range(count)]


class _TypeTable:
    def __init__(self, buffer: FlatBuffer, view: TableView, table: str) -> None:
        self._buffer, self._view, self._table = buffer, view, table

    def __getitem__(self, name: str) -> int:
        slot, code, default = _slots(self._table)[name]
        pos = self._view.field(slot, struct.calcsize(code))
        return int(struct.unpack_from("<" + code, self._buffer.data, pos)[0]) if pos else default

    def text(self, name: str) -> str:
        pos = self._view.field(_slots(self._table)[name][0], 4)
        return self._buffer.string_at(pos) if pos else ""


def _read_field(buffer: FlatBuffer, pos: int, depth: int) -> ds.DataField:
    view = buffer.table(pos, depth)
    slots = _slots("Field")
    name_at, nullable_at = view.field(slots["name"][0], 4), view.field(slots["nullable"][0], 1)
    type_slot = slots["type"][0]
    kind_at, type_at = view.field(type_slot - 1, 1), view.field(type_slot, 4)
    number = buffer.data[kind_at] if kind_at else 0
    kinds = load_fbs("arrow.fbs").unions["Type"]
    if not 1 <= number <= len(kinds) or not type_at:
        raise CodecError(f"Arrow type {number} is not known")
    kind = kinds[number - 1]
    params = _TypeTable(buffer, buffer.table(buffer.follow(type_at), depth + 1), kind)
    data_type = _read_type(kind, params, _read_children(buffer, view, "Field", "children", depth))
    extra = None
    if kind == "Date" and params["unit"] == 1:
        extra = _MILLISECONDS
    elif data_type == _SIXTEEN_BYTES and _extension_name(buffer, view, depth) == UUID_EXTENSION:
        extra = ds.UUID
    return ds.DataField(
        name=buffer.string_at(name_at) if name_at else "",
        type=ds.optional(data_type) if nullable_at and buffer.data[nullable_at] else data_type,
        extra=extra,
    )


def _extension_name(buffer: FlatBuffer, field: TableView, depth: int) -> str | None:
    pos = field.field(_slots("Field")["custom_metadata"][0], 4)
    if not pos:
        return None
    slots = _slots("KeyValue")
    start, count = buffer.vector_at(pos, 4)
    for index in range(count):
        pair = buffer.table(buffer.follow(start + 4 * index), depth + 1)
        key, value = pair.field(slots["key"][0], 4), pair.field(slots["value"][0], 4)
        if key and value and buffer.string_at(key) == EXTENSION_NAME:
            return buffer.string_at(value)
    return None


def _unit(number: int) -> TimeUnit:
    if not 0 <= number < len(_ARROW_UNITS):
        raise CodecError(f"Arrow time unit {number} is not known")
    return _ARROW_UNITS[number]


def _only(children: list[ds.DataField], kind: str) -> ds.DataField:
    if len(children) != 1:
        raise CodecError(f"an Arrow {kind} has {len(children)} children (must be 1)")
    return children[0]


def _read_int(p: _TypeTable) -> ds.DataType:
    found = _INT_TYPES.get((bool(p["is_signed"]), p["bitWidth"]))
    if found is None:
        raise CodecError(f"an Arrow integer of {p['bitWidth']} bits")
    return found


def _read_float(p: _TypeTable) -> ds.DataType:
    if not 0 <= p["precision"] < len(_FLOATS):
        raise CodecError(f"Arrow floating-point precision {p['precision']} is not known")
    return _FLOATS[p["precision"]]


def _read_map(p: _TypeTable, children: list[ds.DataField]) -> ds.DataType:
    entries = _only(children, "Map").value_type
    if not isinstance(entries, ds.DataTypeStruct) or len(entries.fields) != 2:
        raise CodecError("the entries of an Arrow Map are not a struct of two fields")
    key, value = entries.fields
    return ds.DataTypeMap(key_type=key.type, value_type=value.type, keys_sorted=bool(p["keysSorted"]))


def _non_negative(number: int, what: str) -> int:
    if number < 0:
        raise CodecError(f"an Arrow {what} of {number}")
    return number


_READERS: dict[str, Callable[[_TypeTable, list[ds.DataField]], ds.DataType]] = {
    "Null": lambda _p, _c: ds.DataTypeNull(),
    "Int": lambda p, _c: _read_int(p),
    "FloatingPoint": lambda p, _c: _read_float(p),
    "Binary": lambda _p, _c: ds.DataTypeBinary(),
    "LargeBinary": lambda _p, _c: ds.DataTypeBinary(),
    "BinaryView": lambda _p, _c: ds.DataTypeBinary(),
    "FixedSizeBinary": lambda p, _c: ds.DataTypeBinary(
        fixed_length=_non_negative(p["byteWidth"], "byteWidth")
    ),
    "Utf8": lambda _p, _c: ds.DataTypeString(),
    "LargeUtf8": lambda _p, _c: ds.DataTypeString(),
    "Utf8View": lambda _p, _c: ds.DataTypeString(),
    "Bool": lambda _p, _c: ds.DataTypeBool(),
    "Decimal": lambda p, _c: ds.DataTypeDecimal(
        precision=_non_negative(p["precision"], "precision"), scale=p["scale"]
    ),
    "Date": lambda _p, _c: ds.DataTypeDate(),
    "Time": lambda p, _c: ds.DataTypeTime(unit=_unit(p["unit"])),
    "Timestamp": lambda p, _c: ds.DataTypeTimestamp(unit=_unit(p["unit"]), timezone=p.text("timezone")),
    "Duration": lambda p, _c: ds.DataTypeDuration(unit=_unit(p["unit"])),
    "List": lambda _p, c: ds.DataTypeList(item_type=_only(c, "List").type),
    "LargeList": lambda _p, c: ds.DataTypeList(item_type=_only(c, "LargeList").type),
    "ListView": lambda _p, c: ds.DataTypeList(item_type=_only(c, "ListView").type),
    "LargeListView": lambda _p, c: ds.DataTypeList(item_type=_only(c, "LargeListView").type),
    "FixedSizeList": lambda p, c: ds.DataTypeList(
        item_type=_only(c, "FixedSizeList").type, fixed_length=_non_negative(p["listSize"], "listSize")
    ),
    "Struct_": lambda _p, c: ds.DataTypeStruct(fields=tuple(c)),
    "Map": _read_map,
}


def _read_type(kind: str, params: _TypeTable, children: list[ds.DataField]) -> ds.DataType:
    reader = _READERS.get(kind)
    if reader is None:
        raise CodecError(f"Arrow type {kind} has no counterpart in ODF")
    return reader(params, children)


def schema_event(schema: ds.DataSchema, *, odf_form: bool) -> SetDataSchema:
    """The event that declares a schema, in the ODF form or as raw Arrow: as the dataset has it already."""
    return (
        SetDataSchema(schema=schema) if odf_form else SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema))
    )


def schema_of_event(raw_arrow_schema: bytes | None, schema: ds.DataSchema | None) -> ds.DataSchema:
    """The schema that a `SetDataSchema` declares in either form; else `CodecError`."""
    if schema is not None:
        return schema
    if raw_arrow_schema is None:
        raise CodecError("SetDataSchema carries no schema")
    try:
        return decode_raw_arrow(raw_arrow_schema)
    except CodecError as error:
        raise CodecError(f"SetDataSchema: {error}") from None


# UUID columns of Parquet: annotated in the file, 16 bytes with a mark in memory.
#
# Arrow reads and writes Parquet's annotation as an extension type. Nothing compares, casts or hashes that,
# so a column has it only on its way into a file. pyarrow is loaded on use.

UUID_MARK = {b"odfchain:type": b"uuid"}
"""Metadata of a `pyarrow.Field` of 16 bytes that is a UUID; with Arrow's own key it would be another type."""


def is_uuid(f: Any) -> bool:
    """True if a `pyarrow.Field` is a UUID, in either form."""
    marked = f.metadata is not None and UUID_MARK.items() <= f.metadata.items()
    return isinstance(f.type, pa.UuidType) or (marked and f.type == pa.binary(16))


def with_extensions(schema: Any) -> Any:
    """The `pyarrow.Schema` with Arrow's extension type for UUIDs, which is what Parquet annotates."""
    return mapped(schema, lambda f: f.with_type(pa.uuid()) if is_uuid(f) else f)


def castable(kind: Any) -> Any:
    """The `pyarrow.DataType` that numbers of 64 bits can be cast to, and structs that are null themselves."""
    from pyarrow import types as t  # noqa: PLC0415

    # Arrow casts no 64-bit numbers to times of day of 32 bits, and no null structs with required members
    def change(f: Any) -> Any:
        return pa.field(f.name, pa.int32() if t.is_time32(f.type) else f.type)

    return mapped(pa.schema([("", kind)]), change).field(0).type


def mapped(schema: Any, change: Callable[[Any], Any]) -> Any:
    """The `pyarrow.Schema` whose columns, members of structs and items of lists and maps are changed."""
    from pyarrow import types as t  # noqa: PLC0415

    def of(f: Any) -> Any:
        if t.is_struct(f.type):
            f = f.with_type(pa.struct([of(f.type.field(i)) for i in range(f.type.num_fields)]))
        elif t.is_list(f.type):
            f = f.with_type(pa.list_(of(f.type.value_field)))
        elif t.is_large_list(f.type):
            f = f.with_type(pa.large_list(of(f.type.value_field)))
        elif t.is_fixed_size_list(f.type):
            f = f.with_type(pa.list_(of(f.type.value_field), f.type.list_size))
        elif t.is_map(f.type):
            kind = pa.map_(
                of(f.type.key_field).with_nullable(False),
                of(f.type.item_field),
                keys_sorted=f.type.keys_sorted,
            )
            f = f.with_type(kind)
        return change(f)

    return pa.schema([of(f) for f in schema], metadata=schema.metadata)


# `DataSchema` and pyarrow schemas, both ways. pyarrow is loaded on use.
#
# In Arrow, dataset columns are plain (not large, not view), timestamps as declared, and a required column
# is a non-nullable field. A UUID column is its 16 bytes, and its field says so in its metadata: Arrow's
# extension type is for Parquet only (`odfchain.odf.arrow_schema`).

_UNITS = dict(zip(TimeUnit, ("s", "ms", "us", "ns"), strict=True))
_FROM_UNITS = {text: unit for unit, text in _UNITS.items()}
# Types whose name in pyarrow is that of the kind, but for one.
_PLAIN = (
    *(
        ds.DataTypeNull,
        ds.DataTypeBool,
        ds.DataTypeInt8,
        ds.DataTypeInt16,
        ds.DataTypeInt32,
        ds.DataTypeInt64,
    ),
    *(ds.DataTypeUInt8, ds.DataTypeUInt16, ds.DataTypeUInt32, ds.DataTypeUInt64),
    *(ds.DataTypeFloat16, ds.DataTypeFloat32, ds.DataTypeFloat64, ds.DataTypeString),
)
_SIMPLE: dict[Any, str] = {cls: cls.KIND.lower() for cls in _PLAIN} | {ds.DataTypeBool: "bool_"}


def to_arrow(schema: ds.DataSchema) -> Any:
    """The `pyarrow.Schema` of a data schema."""
    return pa.schema([_to_field(f) for f in schema.fields])


def slice_schema(schema: ds.DataSchema) -> Any:
    """The `pyarrow.Schema` as which the Parquet file of a slice gives these columns back."""
    return mapped(to_arrow(schema), _as_stored)


def nullable(schema: Any) -> Any:
    """The `pyarrow.Schema` in which everything may be null, members of structs and items of lists, too."""
    return mapped(schema, lambda f: f.with_nullable(True))


def _as_stored(f: Any) -> Any:
    from pyarrow import types as t  # noqa: PLC0415

    # members and items were seen to before, and know more than their types
    plain = t.is_date(f.type) or t.is_time(f.type) or t.is_timestamp(f.type)
    kind = to_arrow_type(stored(from_arrow_type(f.type))) if plain else f.type
    return f.with_type(pa.list_(kind.value_field) if t.is_fixed_size_list(kind) else kind)


def _to_field(f: ds.DataField) -> Any:
    metadata = UUID_MARK if ds.is_uuid(f.value_type, f.extra) else None
    return pa.field(f.name, to_arrow_type(f.value_type, f.extra), nullable=f.optional, metadata=metadata)


def to_arrow_type(data_type: ds.DataType, extra: ds.ExtraAttributes | None = None) -> Any:
    """The `pyarrow.DataType` of a logical type without its nullability; `SchemaError` where there is none."""
    simple = _SIMPLE.get(type(data_type))
    if simple is not None:
        return getattr(pa, simple)()
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return to_arrow_type(inner, extra)
        case ds.DataTypeBinary(fixed_length=length):
            return pa.binary() if length is None else pa.binary(length)
        case ds.DataTypeDate():
            is_ms = extra is not None and extra.entries.get(DATE_UNIT) == "Millisecond"
            return pa.date64() if is_ms else pa.date32()
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            make = pa.decimal128 if precision <= 38 else pa.decimal256
            try:
                return make(precision, scale)
            except (ValueError, pa.ArrowInvalid) as error:
                raise SchemaError(f"DECIMAL({precision},{scale}): {error}") from None
        case ds.DataTypeTimestamp(unit=unit, timezone=zone):
            return pa.timestamp(_UNITS[unit or TimeUnit.MILLISECOND], "UTC" if zone is None else zone or None)
        case ds.DataTypeTime(unit=unit):
            text = _UNITS[unit or TimeUnit.MILLISECOND]
            return pa.time32(text) if text in ("s", "ms") else pa.time64(text)
        case ds.DataTypeDuration(unit=unit):
            return pa.duration(_UNITS[unit or TimeUnit.MILLISECOND])
        case ds.DataTypeList(item_type=item, fixed_length=length):
            child = _to_field(ds.DataField(name="item", type=item))
            return pa.list_(child) if length is None else pa.list_(child, length)
        case ds.DataTypeMap(key_type=key, value_type=value, keys_sorted=keys_sorted):
            return pa.map_(
                _to_field(ds.DataField(name="key", type=key)),
                _to_field(ds.DataField(name="value", type=value)),
                keys_sorted=bool(keys_sorted),
            )
        case ds.DataTypeStruct(fields=fields):
            return pa.struct([_to_field(f) for f in fields])
    raise SchemaError(f"type {data_type.KIND} has no Arrow form")


def from_arrow(schema: Any) -> ds.DataSchema:
    """The data schema of a `pyarrow.Schema`; encodings (large, view, dictionary) and metadata are dropped."""
    return ds.DataSchema(fields=tuple(_from_field(f) for f in schema))


def _from_field(f: Any) -> ds.DataField:
    data_type = from_arrow_type(f.type, f.name)
    extra = None
    if pa.types.is_date64(f.type):
        extra = _MILLISECONDS
    elif is_uuid(f):
        extra = ds.UUID
    return ds.DataField(name=f.name, type=ds.optional(data_type) if f.nullable else data_type, extra=extra)


def from_arrow_type(arrow: Any, name: str = "") -> ds.DataType:
    """The logical type of a `pyarrow.DataType`; `SchemaError` where there is none."""
    from pyarrow import types as t  # noqa: PLC0415

    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if t.is_dictionary(arrow):
        return from_arrow_type(arrow.value_type, name)
    for cls, factory in _SIMPLE.items():
        if arrow == getattr(pa, factory)():
            return cast("ds.DataType", cls())
    if t.is_large_string(arrow) or arrow == pa.string_view():
        return ds.DataTypeString()
    if t.is_fixed_size_binary(arrow):
        return ds.DataTypeBinary(fixed_length=arrow.byte_width)
    if t.is_binary(arrow) or t.is_large_binary(arrow) or arrow == pa.binary_view():
        return ds.DataTypeBinary()
    if t.is_date(arrow):
        return ds.DataTypeDate()
    if t.is_decimal(arrow):
        return ds.DataTypeDecimal(precision=arrow.precision, scale=arrow.scale)
    if t.is_timestamp(arrow):
        return ds.DataTypeTimestamp(unit=_FROM_UNITS[arrow.unit], timezone=arrow.tz or "")
    if t.is_time(arrow):
        return ds.DataTypeTime(unit=_FROM_UNITS[arrow.unit])
    if t.is_duration(arrow):
        return ds.DataTypeDuration(unit=_FROM_UNITS[arrow.unit])
    if t.is_fixed_size_list(arrow):
        return ds.DataTypeList(item_type=_from_field(arrow.value_field).type, fixed_length=arrow.list_size)
    if t.is_list(arrow) or t.is_large_list(arrow) or t.is_list_view(arrow):
        return ds.DataTypeList(item_type=_from_field(arrow.value_field).type)
    if t.is_map(arrow):
        return ds.DataTypeMap(
            key_type=from_arrow_type(arrow.key_type, name),
            value_type=_from_field(arrow.item_field).type,
            keys_sorted=arrow.keys_sorted,
        )
    if t.is_struct(arrow):
        return ds.DataTypeStruct(fields=tuple(_from_field(arrow.field(i)) for i in range(arrow.num_fields)))
    raise SchemaError(f"column {name!r}: Arrow type {arrow} has no counterpart in ODF")
