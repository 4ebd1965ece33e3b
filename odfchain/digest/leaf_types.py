"""Types as the logical hash sees them: what a leaf starts with, and which kinds of values there are."""

from __future__ import annotations

import struct

import pyarrow as pa
from pyarrow import types as t

from odfchain.errors import SchemaError

_u16 = struct.Struct("<H").pack
_u64 = struct.Struct("<Q").pack
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}

# asked of each column of each batch, and quicker to look up than to ask of the type
_TEXT = frozenset(data_type.id for data_type in (pa.string(), pa.large_string(), pa.string_view()))
_BINARY = frozenset(
    data_type.id for data_type in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
)
_PLAIN_FIXED = frozenset(
    data_type.id
    for data_type in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("s")),
    )
)


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type that is hashed: storage of an extension, values of a dictionary or run-end encoding."""
    while True:
        if isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        elif t.is_dictionary(data_type) or t.is_run_end_encoded(data_type):
            data_type = data_type.value_type
        else:
            return data_type


def is_text(data_type: pa.DataType) -> bool:
    """Whether values are text, however they are stored."""
    return data_type.id in _TEXT


def is_binary(data_type: pa.DataType) -> bool:
    """Whether values are bytes, however they are stored."""
    return data_type.id in _BINARY


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        t.is_list(data_type)
        or t.is_large_list(data_type)
        or t.is_fixed_size_list(data_type)
        or t.is_list_view(data_type)
        or t.is_large_list_view(data_type)
    )


def is_plain_fixed(data_type: pa.DataType) -> bool:
    """Whether values are fed as their memory: every fixed-size type but booleans and binary."""
    return data_type.id in _PLAIN_FIXED or bool(t.is_decimal(data_type))


def type_header(data_type: pa.DataType, name: str) -> bytes:
    """What a leaf's hasher starts with: type id (u16 LE) and the type's parameters."""
    data_type = plain_type(data_type)
    if t.is_null(data_type):
        return _u16(0)
    if t.is_integer(data_type):
        return _u16(1) + bytes([t.is_signed_integer(data_type)]) + _u64(data_type.bit_width)
    if t.is_floating(data_type):
        return _u16(2) + _u64(data_type.bit_width)
    if is_binary(data_type):
        return _u16(3)
    if is_text(data_type):
        return _u16(4)
    if t.is_boolean(data_type):
        return _u16(5)
    if t.is_decimal(data_type):
        scale = data_type.scale & 0xFFFF_FFFF_FFFF_FFFF  # a negative scale is sign-extended
        return _u16(6) + _u64(data_type.bit_width) + _u64(data_type.precision) + _u64(scale)
    if t.is_date(data_type):
        return _u16(7) + _u64(data_type.bit_width) + _u16(1 if t.is_date64(data_type) else 0)
    if t.is_time(data_type):
        return _u16(8) + _u64(data_type.bit_width) + _u16(_UNITS[data_type.unit])
    if t.is_timestamp(data_type):
        zone = data_type.tz.encode() if data_type.tz else None
        return _u16(9) + _u16(_UNITS[data_type.unit]) + (b"\0" if zone is None else _u64(len(zone)) + zone)
    if _is_list(data_type):
        return _u16(11) + type_header(data_type.value_type, name)
    raise SchemaError(
        f"column {name!r}: no logical hash is defined for type {data_type}",
        hint="arrow0 covers numbers, text, binary, booleans, decimals, dates, times, timestamps, "
        "lists of these, and structs outside lists",
    )
