"""The logical hash of records: arrow-digest version 0 with SHA3-256 (`arrow0-sha3-256`).

The hash depends on names, types, values and row order, and on nothing else: not on how rows are cut into
batches, on nullability flags, or on encodings (large, view, fixed-size and dictionary arrays hash like their
plain kin). Source: specification "Physical and Logical Hashes"; the algorithm is that of arrow-digest:

- the schema part: for every field, depth first, the length of its name (u64 LE), the name, its nesting level
  (u64 LE);
- every field that is not a struct is a leaf with a hasher of its own, started with the leaf's data type;
- a value is fed as its little-endian memory when it has a fixed size, as one byte 1 or 2 for false or true,
  as length (u64 LE) and bytes for text and binary, as length and items for a list; a null is one 0 byte;
- the hash is SHA3-256 over the schema part and then every leaf's digest, in order.

A null struct makes all its leaves null. The reference implementation combines the two validities otherwise
and loses nulls; `null_rule="reference"` reproduces that, for comparing only (RFC-006).

No loop runs over rows: each batch of a leaf becomes one contiguous byte stream through Arrow's kernels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.digest.sha3 import Hasher, sha3_256
from odfchain.errors import SchemaError
from odfchain.ids.multicodec import Multicodec
from odfchain.ids.multihash import Multihash

NullRule: TypeAlias = Literal["correct", "reference"]

_u16 = struct.Struct("<H").pack
_u64 = struct.Struct("<Q").pack
_NULL_BYTE = pa.scalar(b"\0", pa.large_binary())
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


class LogicalDigest:
    """A running logical hash: feed batches of one schema, then `finish`.

    With an `executor`, the leaves of a batch are hashed side by side (SHA3 releases the interpreter lock);
    `update` returns only when all of them are done, so memory stays at one batch.

    Raises (at construction):
        SchemaError: a column type for which the algorithm defines no hash (maps, unions, intervals,
            durations, structs inside lists).
    """

    def __init__(
        self, schema: pa.Schema, *, null_rule: NullRule = "correct", executor: Executor | None = None
    ) -> None:
        self._null_rule = null_rule
        self._executor = executor
        self._hasher = sha3_256()
        self._leaves: list[Hasher] = []
        self._names = schema.names
        for name, level, data_type in _walk_fields(list(schema), 0):
            encoded = name.encode()
            self._hasher.update(_u64(len(encoded)) + encoded + _u64(level))
            if not t.is_struct(data_type):
                self._leaves.append(sha3_256(_type_header(data_type, name)))

    def update(self, batch: pa.RecordBatch) -> None:
        """Feed the rows of a batch (its columns must be those of the schema, in order)."""
        leaves = list(_walk_columns(batch.columns, None))
        jobs: list[Future[None]] = []
        for hasher, (array, parent_valid) in zip(self._leaves, leaves, strict=True):
            if self._executor is None:
                _feed(hasher, array, parent_valid, self._null_rule)
            else:
                jobs.append(self._executor.submit(_feed, hasher, array, parent_valid, self._null_rule))
        for job in jobs:
            job.result()

    def finish(self) -> Multihash:
        """The multihash (`arrow0-sha3-256`) of everything fed so far; feeding may go on."""
        final = self._hasher.copy()
        for leaf in self._leaves:
            final.update(leaf.digest())
        return Multihash(Multicodec.ARROW0_SHA3_256, final.digest())


def check_hashable(schema: pa.Schema) -> None:
    """Nothing when rows of this schema have a logical hash.

    Raises:
        SchemaError: as `LogicalDigest`.
    """
    LogicalDigest(schema)


def hash_table(table: pa.Table, *, null_rule: NullRule = "correct") -> Multihash:
    """The logical hash of a table in memory.

    Raises:
        SchemaError: a column type without a defined hash.
    """
    digest = LogicalDigest(table.schema, null_rule=null_rule)
    for batch in table.to_batches():
        digest.update(batch)
    return digest.finish()


# --- schema ----------------------------------------------------------------------------------------


def _plain(data_type: pa.DataType) -> pa.DataType:
    """The type that is hashed: storage of an extension, values of a dictionary or run-end encoding."""
    while True:
        if isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        elif t.is_dictionary(data_type) or t.is_run_end_encoded(data_type):
            data_type = data_type.value_type
        else:
            return data_type


def _walk_fields(fields: list[pa.Field], level: int) -> Iterator[tuple[str, int, pa.DataType]]:
    for field in fields:
        data_type = _plain(field.type)
        yield field.name, level, data_type
        if t.is_struct(data_type):
            yield from _walk_fields([data_type.field(i) for i in range(data_type.num_fields)], level + 1)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(t.is_string(data_type) or t.is_large_string(data_type) or data_type == pa.string_view())


def _is_binary(data_type: pa.DataType) -> bool:
    return bool(
        t.is_binary(data_type)
        or t.is_large_binary(data_type)
        or t.is_fixed_size_binary(data_type)
        or data_type == pa.binary_view()
    )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        t.is_list(data_type)
        or t.is_large_list(data_type)
        or t.is_fixed_size_list(data_type)
        or t.is_list_view(data_type)
        or t.is_large_list_view(data_type)
    )


def _type_header(data_type: pa.DataType, name: str) -> bytes:
    """What a leaf's hasher starts with: type id (u16 LE) and the type's parameters."""
    data_type = _plain(data_type)
    if t.is_null(data_type):
        return _u16(0)
    if t.is_integer(data_type):
        return _u16(1) + bytes([t.is_signed_integer(data_type)]) + _u64(data_type.bit_width)
    if t.is_floating(data_type):
        return _u16(2) + _u64(data_type.bit_width)
    if _is_binary(data_type):
        return _u16(3)
    if _is_text(data_type):
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
        return _u16(11) + _type_header(data_type.value_type, name)
    raise SchemaError(
        f"column {name!r}: no logical hash is defined for type {data_type}",
        hint="arrow0 covers numbers, text, binary, booleans, decimals, dates, times, timestamps, "
        "lists of these, and structs outside lists",
    )


# --- values ----------------------------------------------------------------------------------------


def _walk_columns(
    columns: list[pa.Array], parent_valid: pa.BooleanArray | None
) -> Iterator[tuple[pa.Array, pa.BooleanArray | None]]:
    """(leaf array, validity inherited from its structs) in schema order."""
    for column in columns:
        array = _decoded(column)
        if not t.is_struct(array.type):
            yield array, parent_valid
            continue
        valid = parent_valid
        if array.null_count:
            own = array.is_valid()
            valid = own if valid is None else pc.and_(valid, own)
        # `field` is the child as it is stored, cut to this array's window
        children = [array.field(i) for i in range(array.type.num_fields)]
        yield from _walk_columns(children, valid)


def _decoded(array: pa.Array) -> pa.Array:
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif t.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif t.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def _feed(hasher: Hasher, array: pa.Array, parent_valid: pa.BooleanArray | None, rule: NullRule) -> None:
    if len(array) == 0:
        return
    array = _with_parent_nulls(array, parent_valid, rule)
    if array.null_count == 0 and _is_plain_fixed(array.type):
        hasher.update(_fixed_memory(array))
        return
    stream = _element_bytes(array)
    hasher.update(_content(stream))


def _with_parent_nulls(array: pa.Array, parent_valid: pa.BooleanArray | None, rule: NullRule) -> pa.Array:
    """The array with the nulls that its structs impose."""
    if parent_valid is None:
        return array
    if rule == "correct":
        return pc.if_else(parent_valid, array, pa.scalar(None, array.type))
    if array.buffers()[0] is None:  # no bitmap of its own: the parent's alone decides
        return pc.if_else(parent_valid, array, pa.scalar(None, array.type))
    parent_has_nulls = pc.any(pc.invert(parent_valid)).as_py()
    if array.null_count and parent_has_nulls:
        return _set_validity(array, pc.or_(parent_valid, array.is_valid()))
    return _set_validity(array, None)


def _set_validity(array: pa.Array, valid: pa.BooleanArray | None) -> pa.Array:
    """The same memory under another validity (used to reproduce the reference's rule)."""
    if array.offset:
        array = pa.concat_arrays([array])
    bitmap = None if valid is None else pa.concat_arrays([valid]).buffers()[1]
    children = []
    if _is_list(array.type):
        children = [array.values]
    return pa.Array.from_buffers(
        array.type, len(array), [bitmap, *array.buffers()[1 : 3 if not children else 2]], children=children
    )


def _is_plain_fixed(data_type: pa.DataType) -> bool:
    """Whether values are fed as their memory: every fixed-size type but booleans and binary."""
    return bool(
        t.is_integer(data_type)
        or t.is_floating(data_type)
        or t.is_decimal(data_type)
        or t.is_temporal(data_type)
    )


def _fixed_memory(array: pa.Array) -> memoryview:
    width = array.type.bit_width // 8
    start = array.offset * width
    return memoryview(array.buffers()[1])[start : start + len(array) * width]


def _content(stream: pa.LargeBinaryArray) -> memoryview:
    """The bytes of all elements of a binary array without nulls, which lie one after the other."""
    offsets = _offsets(stream)
    data = stream.buffers()[2]
    return memoryview(data)[offsets[0] : offsets[-1]] if data is not None else memoryview(b"")


def _offsets(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The offsets of a large binary array's window."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return offsets[array.offset : array.offset + len(array) + 1]


def _large_binary(offsets: np.ndarray[Any, np.dtype[np.int64]], data: Any, valid: Any = None) -> pa.Array:
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _rows_of_width(array: pa.Array, data: Any, width: int, first: int) -> pa.Array:
    """Fixed-width values as a binary array with the same nulls."""
    offsets = (np.arange(len(array) + 1, dtype=np.int64) + first) * width
    rows = _large_binary(offsets, data)
    return rows if array.null_count == 0 else pc.if_else(array.is_valid(), rows, pa.scalar(None, rows.type))


def _element_bytes(array: pa.Array) -> pa.Array:
    """For every element the bytes that are fed for it, as a binary array without nulls."""
    array = _decoded(array)
    data_type = array.type
    if t.is_null(data_type):
        return _large_binary(np.arange(len(array) + 1, dtype=np.int64), pa.py_buffer(bytes(len(array))))
    if t.is_boolean(data_type):
        # 1 for false, 2 for true, and already 0 where null
        number = pc.add(array.cast(pa.uint8()), pa.scalar(1, pa.uint8())).fill_null(0)
        return _rows_of_width(number, number.buffers()[1], 1, number.offset)
    if _is_plain_fixed(data_type):
        rows = _rows_of_width(array, array.buffers()[1], data_type.bit_width // 8, array.offset)
        return rows.fill_null(_NULL_BYTE)
    if t.is_fixed_size_binary(data_type):
        rows = _rows_of_width(array, array.buffers()[1], data_type.byte_width, array.offset)
    elif _is_text(data_type) or _is_binary(data_type):
        rows = array.cast(pa.large_binary())
    else:
        return _list_bytes(array)
    return _prefixed(pc.binary_length(rows), rows)


def _list_bytes(array: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(array).cast(pa.int64())
    bounds = np.concatenate(([0], np.cumsum(lengths.fill_null(0).to_numpy())))
    items = _element_bytes(array.flatten())  # of the rows that are not null, one after the other
    rows = _large_binary(_offsets(items)[bounds], items.buffers()[2])
    if array.null_count:
        rows = pc.if_else(array.is_valid(), rows, pa.scalar(None, rows.type))
    return _prefixed(lengths, rows)


def _prefixed(lengths: pa.Array, rows: pa.Array) -> pa.Array:
    """Each row behind its length as u64 LE; a null row is one 0 byte."""
    header = pa.array(lengths.fill_null(0).cast(pa.uint64()).to_numpy(zero_copy_only=False).astype("<u8"))
    heads = _rows_of_width(header, header.buffers()[1], 8, 0)
    joined = pc.binary_join_element_wise(heads, rows, pa.scalar(b"", pa.large_binary()))
    return joined.fill_null(_NULL_BYTE)
