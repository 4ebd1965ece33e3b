"""`DataSchema` and pyarrow schemas, both ways. pyarrow is loaded on use.

In Arrow, dataset columns are plain (not large, not view), timestamps as declared, and a required column is
a non-nullable field. A UUID column is its 16 bytes, and its field says so in its metadata: Arrow's extension
type is for Parquet only (`odfchain.codec.uuids`).
"""

from __future__ import annotations

from typing import Any, cast

from odfchain.codec.raw_arrow import DATE_UNIT
from odfchain.codec.uuids import UUID_MARK, is_uuid, mapped
from odfchain.errors import SchemaError
from odfchain.model import data_schema as ds
from odfchain.model.enums import TimeUnit
from odfchain.model.recordable import stored

_UNITS = {
    TimeUnit.SECOND: "s",
    TimeUnit.MILLISECOND: "ms",
    TimeUnit.MICROSECOND: "us",
    TimeUnit.NANOSECOND: "ns",
}
_FROM_UNITS = {text: unit for unit, text in _UNITS.items()}
_SIMPLE = {
    ds.DataTypeNull: "null",
    ds.DataTypeBool: "bool_",
    ds.DataTypeInt8: "int8",
    ds.DataTypeInt16: "int16",
    ds.DataTypeInt32: "int32",
    ds.DataTypeInt64: "int64",
    ds.DataTypeUInt8: "uint8",
    ds.DataTypeUInt16: "uint16",
    ds.DataTypeUInt32: "uint32",
    ds.DataTypeUInt64: "uint64",
    ds.DataTypeFloat16: "float16",
    ds.DataTypeFloat32: "float32",
    ds.DataTypeFloat64: "float64",
    ds.DataTypeString: "string",
}


def to_arrow(schema: ds.DataSchema) -> Any:
    """The `pyarrow.Schema` of a data schema."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema([_to_field(f) for f in schema.fields])


def slice_schema(schema: ds.DataSchema) -> Any:
    """The `pyarrow.Schema` as which the Parquet file of a slice gives these columns back."""
    return mapped(to_arrow(schema), _as_stored)


def nullable(schema: Any) -> Any:
    """The `pyarrow.Schema` in which everything may be null, members of structs and items of lists, too."""
    return mapped(schema, lambda f: f.with_nullable(True))


def _as_stored(f: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types as t  # noqa: PLC0415

    # members and items were seen to before, and know more than their types
    plain = t.is_date(f.type) or t.is_time(f.type) or t.is_timestamp(f.type)
    kind = to_arrow_type(stored(from_arrow_type(f.type))) if plain else f.type
    return f.with_type(pa.list_(kind.value_field) if t.is_fixed_size_list(kind) else kind)


def _to_field(f: ds.DataField) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    metadata = UUID_MARK if ds.is_uuid(f.value_type, f.extra) else None
    return pa.field(f.name, to_arrow_type(f.value_type, f.extra), nullable=f.optional, metadata=metadata)


def to_arrow_type(data_type: ds.DataType, extra: ds.ExtraAttributes | None = None) -> Any:
    """The `pyarrow.DataType` of a logical type; nullability is the field's business.

    Raises:
        SchemaError: a type that Arrow cannot hold.
    """
    import pyarrow as pa  # noqa: PLC0415

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
    import pyarrow as pa  # noqa: PLC0415

    data_type = from_arrow_type(f.type, f.name)
    extra = None
    if pa.types.is_date64(f.type):
        extra = ds.ExtraAttributes({DATE_UNIT: "Millisecond"})
    elif is_uuid(f):
        extra = ds.UUID
    return ds.DataField(name=f.name, type=ds.optional(data_type) if f.nullable else data_type, extra=extra)


def from_arrow_type(data_type: Any, name: str = "") -> ds.DataType:
    """The logical type of a `pyarrow.DataType`.

    Raises:
        SchemaError: a type without a logical counterpart.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types as t  # noqa: PLC0415

    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if t.is_dictionary(data_type):
        return from_arrow_type(data_type.value_type, name)
    for cls, factory in _SIMPLE.items():
        if data_type == getattr(pa, factory)():
            return cast("ds.DataType", cls())
    if t.is_large_string(data_type) or data_type == pa.string_view():
        return ds.DataTypeString()
    if t.is_fixed_size_binary(data_type):
        return ds.DataTypeBinary(fixed_length=data_type.byte_width)
    if t.is_binary(data_type) or t.is_large_binary(data_type) or data_type == pa.binary_view():
        return ds.DataTypeBinary()
    if t.is_date(data_type):
        return ds.DataTypeDate()
    if t.is_decimal(data_type):
        return ds.DataTypeDecimal(precision=data_type.precision, scale=data_type.scale)
    if t.is_timestamp(data_type):
        return ds.DataTypeTimestamp(unit=_FROM_UNITS[data_type.unit], timezone=data_type.tz or "")
    if t.is_time(data_type):
        return ds.DataTypeTime(unit=_FROM_UNITS[data_type.unit])
    if t.is_duration(data_type):
        return ds.DataTypeDuration(unit=_FROM_UNITS[data_type.unit])
    if t.is_fixed_size_list(data_type):
        return ds.DataTypeList(
            item_type=_from_field(data_type.value_field).type, fixed_length=data_type.list_size
        )
    if t.is_list(data_type) or t.is_large_list(data_type) or t.is_list_view(data_type):
        return ds.DataTypeList(item_type=_from_field(data_type.value_field).type)
    if t.is_map(data_type):
        return ds.DataTypeMap(
            key_type=from_arrow_type(data_type.key_type, name),
            value_type=_from_field(data_type.item_field).type,
            keys_sorted=data_type.keys_sorted,
        )
    if t.is_struct(data_type):
        return ds.DataTypeStruct(
            fields=tuple(_from_field(data_type.field(i)) for i in range(data_type.num_fields))
        )
    raise SchemaError(f"column {name!r}: Arrow type {data_type} has no counterpart in ODF")
