"""The columns of an answer as the reference node writes them: Arrow's schema as its Rust library has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odfchain.errors import QueryError
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_FORMAT = "ArrowJson"

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_INTERVALS = {
    "month_interval": "YearMonth",
    "day_time_interval": "DayTime",
    "month_day_nano_interval": "MonthDayNano",
}
"""What Arrow's library calls them, by the names of their types in Python."""


def arrow_json(schema: pa.Schema) -> dict[str, Any]:
    """The schema in the form `ArrowJson`."""
    return {"fields": [_field(column) for column in schema], "metadata": {}}


def _field(column: pa.Field) -> dict[str, Any]:
    return {
        "data_type": _type(column.type),
        "dict_id": 0,
        "dict_is_ordered": False,
        "metadata": {},
        "name": column.name,
        "nullable": column.nullable,
    }


def _type(kind: pa.DataType) -> Any:
    from pyarrow import types as t

    if plain := _plain_names().get(kind):
        return plain
    if t.is_timestamp(kind):
        return {"Timestamp": [_UNITS[kind.unit], kind.tz]}
    if t.is_time(kind):
        return {"Time32" if t.is_time32(kind) else "Time64": _UNITS[kind.unit]}
    if t.is_duration(kind):
        return {"Duration": _UNITS[kind.unit]}
    if t.is_decimal(kind):
        return {f"Decimal{kind.bit_width}": [kind.precision, kind.scale]}
    if t.is_fixed_size_binary(kind):
        return {"FixedSizeBinary": kind.byte_width}
    if t.is_list(kind) or t.is_large_list(kind):
        return {"List" if t.is_list(kind) else "LargeList": _field(kind.value_field)}
    if t.is_list_view(kind) or t.is_large_list_view(kind):
        return {"ListView" if t.is_list_view(kind) else "LargeListView": _field(kind.value_field)}
    if (interval := _INTERVALS.get(str(kind))) is not None:
        return {"Interval": interval}
    if t.is_fixed_size_list(kind):
        return {"FixedSizeList": [_field(kind.value_field), kind.list_size]}
    if t.is_struct(kind):
        return {"Struct": [_field(kind.field(i)) for i in range(kind.num_fields)]}
    if t.is_map(kind):
        import pyarrow as pa

        entry = pa.field("entries", pa.struct([kind.key_field, kind.item_field]), nullable=False)
        return {"Map": [_field(entry), kind.keys_sorted]}
    if t.is_dictionary(kind):
        return {"Dictionary": [_type(kind.index_type), _type(kind.value_type)]}
    raise QueryError(
        f"the type {one_line(str(kind), 80)} has no name in {SCHEMA_FORMAT}",
        hint="cast the column to another",
    )


def _plain_names() -> dict[pa.DataType, str]:
    import pyarrow as pa

    named = {
        "Null": pa.null(), "Boolean": pa.bool_(),
        "Int8": pa.int8(), "Int16": pa.int16(), "Int32": pa.int32(), "Int64": pa.int64(),
        "UInt8": pa.uint8(), "UInt16": pa.uint16(), "UInt32": pa.uint32(), "UInt64": pa.uint64(),
        "Float16": pa.float16(), "Float32": pa.float32(), "Float64": pa.float64(),
        "Utf8": pa.string(), "LargeUtf8": pa.large_string(),
        "Binary": pa.binary(), "LargeBinary": pa.large_binary(),
        "Utf8View": pa.string_view(), "BinaryView": pa.binary_view(),
        "Date32": pa.date32(), "Date64": pa.date64(),
    }  # fmt: skip
    return {kind: name for name, kind in named.items()}
