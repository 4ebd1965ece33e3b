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

No loop runs over rows (`leaf_bytes`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import zip_longest
from operator import length_hint
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.errors import SchemaError
from odfchain.odf.identity import Multicodec, Multihash
from odfchain.odf.physical_hash import Hasher, sha3_256

# Types as the logical hash sees them: what a leaf starts with, and which kinds of values there are.

_u16 = struct.Struct("<H").pack
_u64 = struct.Struct("<Q").pack
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}

# asked of each column of each batch, and quicker to look up than to ask of the type
_TEXT = frozenset(data_type.id for data_type in (pa.string(), pa.large_string(), pa.string_view()))
_BINARY = frozenset(each.id for each in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)))
_LISTS = frozenset(of(pa.null()).id for of in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)) | {
    pa.list_(pa.null(), 1).id
}
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
    """True if values are text, however they are stored."""
    return data_type.id in _TEXT


def is_binary(data_type: pa.DataType) -> bool:
    """True if values are bytes, however they are stored."""
    return data_type.id in _BINARY


def is_plain_fixed(data_type: pa.DataType) -> bool:
    """True if values are fed as their memory: every fixed-size type but booleans and binary."""
    return data_type.id in _PLAIN_FIXED or bool(t.is_decimal(data_type))


def type_header(data_type: pa.DataType, name: str) -> bytes:
    """First bytes of a leaf's hasher: type id (u16 LE) and the type's parameters."""
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
    if data_type.id in _LISTS:
        return _u16(11) + type_header(data_type.value_type, name)
    raise SchemaError(
        f"column {name!r}: no logical hash is defined for type {data_type}",
        hint="arrow0 covers numbers, text, binary, booleans, decimals, dates, times, timestamps, "
        "lists of these, and structs outside lists",
    )


# The bytes that the logical hash feeds for the values of a leaf, made by numpy a piece at a time.
#
# A piece is so small that all that is made on the way stays in the processor's cache: fresh memory would
# cost more than the work. Numbers without nulls are fed as they lie in memory. For everything else the
# values are copied as blocks of one size, first to last, to where they begin in the result: what a block
# has beyond its value is overwritten by the blocks after it. This relies on numpy assigning in the order of
# the indices, as it promises for an index that comes twice; the tests hold every byte to a plain reading of
# the algorithm.

NullRule: TypeAlias = Literal["correct", "reference"]
Numbers: TypeAlias = np.ndarray[Any, Any]
Bounds: TypeAlias = Numbers | int
"""Where each element begins, and the end of the last; a number when all are of that size."""

_PIECE_BYTES, _PIECE_ROWS, _FEWEST_ROWS = 1 << 19, 1 << 14, 1 << 6
# Bytes of a value that are copied with its length (few values are longer), and at once of what is left.
_BLOCK, _LARGEST_BLOCK = 128, 1 << 13
# So few rows are copied one by one.
_FEW = 16
# So few words of up to eight bytes are copied sooner than values as a whole, from so many rows on.
_WORDS, _WORD_ROWS = 3, 256
# Memory of so many bytes is Arrow's, whose pool keeps the pages; others would be asked for anew.
_POOLED = 1 << 16
_HEAD = 8
_HEADS = np.arange(_PIECE_ROWS + 1, dtype=np.int64) * _HEAD
_NOTHING = np.empty(0, np.uint8)


def walk_columns(
    columns: list[pa.Array], parent_valid: Numbers | None = None
) -> Iterator[tuple[pa.Array, Numbers | None]]:
    """(leaf array, validity inherited from its structs) in schema order."""
    for column in columns:
        array = column if is_plain_fixed(column.type) else _decoded(column)
        if not t.is_struct(array.type):
            yield array, parent_valid
            continue
        # `field` is the child as it is stored, cut to this array's window
        children = [array.field(i) for i in range(array.type.num_fields)]
        yield from walk_columns(children, _both(parent_valid, _validity(array)))


def leaf_bytes(array: pa.Array, parent: Numbers | None, rule: NullRule) -> list[Callable[[], memoryview]]:
    """The bytes that a leaf feeds: calls that make the pieces, to be fed one after the other."""
    rows = len(array)
    if rows == 0:
        return []
    valid = _combined(array, parent, rule)
    if valid is None and is_plain_fixed(data_type := array.type):
        width = data_type.bit_width // 8
        memory = memoryview(array.buffers()[1])[array.offset * width : (array.offset + rows) * width]
        return [lambda: memory]
    step = min(_PIECE_ROWS, max(_FEWEST_ROWS, rows * _PIECE_BYTES // max(1, array.nbytes)))
    if step >= rows:
        return [lambda: _elements(array, valid)[0].data]
    return [partial(_piece, array, valid, start, step) for start in range(0, rows, step)]


def value_bytes(array: pa.Array) -> Iterator[bytes]:
    """The bytes fed for each value of an array; of a structure for one leaf after the other."""
    leaves = [_elements(leaf, _combined(leaf, valid, "correct")) for leaf, valid in walk_columns([array])]
    rows = np.arange(len(array) + 1)
    bounds = [rows * begins if isinstance(begins, int) else begins for _, begins in leaves]
    for number in range(len(array)):
        pairs = zip(leaves, bounds, strict=True)
        yield b"".join(data[begins[number] : begins[number + 1]].tobytes() for (data, _), begins in pairs)


def _piece(array: pa.Array, valid: Numbers | None, start: int, rows: int) -> memoryview:
    part = None if valid is None else valid[start : start + rows]
    return _elements(array.slice(start, rows), part)[0].data


# --- validity --------------------------------------------------------------------------------------


def _validity(array: pa.Array) -> Numbers | None:
    """1 where there is a value, 0 where there is a null; None without nulls."""
    if array.null_count == 0 or t.is_null(array.type):
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(buffer: pa.Buffer, first: int, count: int) -> Numbers:
    # only the bytes of the window are unpacked
    octets = np.frombuffer(buffer, np.uint8)[first >> 3 : (first + count + 7) >> 3]
    return np.unpackbits(octets, bitorder="little")[first & 7 : (first & 7) + count]


def _both(one: Numbers | None, other: Numbers | None) -> Numbers | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _combined(array: pa.Array, parent_valid: Numbers | None, rule: NullRule) -> Numbers | None:
    """The validity of a leaf under that of its structs (RFC-006)."""
    if parent_valid is None:
        return _validity(array)
    own = _validity(array)
    # the other rule is that of the reference implementation (RFC-006)
    if rule == "correct" or array.buffers()[0] is None:
        return _both(parent_valid, own)
    return parent_valid | own if own is not None and not parent_valid.all() else None


# --- elements --------------------------------------------------------------------------------------


def _decoded(array: pa.Array) -> pa.Array:
    # an encoding is not part of the value: equal values have one hash
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif t.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif t.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def _elements(array: pa.Array, valid: Numbers | None) -> tuple[Numbers, Bounds]:
    """The bytes of all elements, one after the other, and where each begins."""
    data_type, rows = array.type, len(array)
    if rows == 0:
        return _NOTHING, 0
    if t.is_null(data_type):
        return np.zeros(rows, np.uint8), 1
    if t.is_boolean(data_type):  # 1 for false, 2 for true, and 0 where null
        numbers = _bits(array.buffers()[1], array.offset, rows) + np.uint8(1)
        return (numbers if valid is None else numbers * valid), 1
    if is_plain_fixed(data_type):
        width = data_type.bit_width // 8
        memory = _fixed_memory(array, width)
        return (memory, width) if valid is None else _without_nulls(memory, width, valid)
    if t.is_fixed_size_binary(data_type):
        width = data_type.byte_width
        sizes = np.full(rows, width, np.int64)
        return _framed(_fixed_memory(array, width), np.arange(rows + 1) * width, sizes, valid)
    if is_text(data_type) or is_binary(data_type):
        # views have no offsets that lie one after the other
        if data_type in (pa.string_view(), pa.binary_view()):
            array = array.cast(pa.large_binary())
        bounds = _offsets(array)
        return _framed(_memory(array.buffers()[2]), bounds, bounds[1:] - bounds[:-1], valid)
    return _list_elements(array, valid)


def _list_elements(array: pa.Array, valid: Numbers | None) -> tuple[Numbers, Bounds]:
    data_type = array.type
    # the items of views may lie in any order, or overlap: they are gathered first
    if t.is_list_view(data_type) or t.is_large_list_view(data_type):
        counts = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
        bounds, items = np.concatenate(([0], np.cumsum(counts))), array.flatten()
    elif t.is_fixed_size_list(data_type):
        bounds = (np.arange(len(array) + 1) + array.offset) * data_type.list_size
        items = array.values
    else:
        bounds, items = _offsets(array), array.values
    first = int(bounds[0])
    items = _decoded(items.slice(first, int(bounds[-1]) - first))
    data, begins = _elements(items, _validity(items))
    counts, bounds = bounds[1:] - bounds[:-1], bounds - first
    return _framed(data, bounds * begins if isinstance(begins, int) else begins[bounds], counts, valid)


def _memory(buffer: pa.Buffer | None) -> Numbers:
    return _NOTHING if buffer is None else np.frombuffer(buffer, np.uint8)


def _fixed_memory(array: pa.Array, width: int) -> Numbers:
    return _memory(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _offsets(array: pa.Array) -> Numbers:
    wide = t.is_large_string(array.type) or t.is_large_binary(array.type) or t.is_large_list(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


# --- copying ---------------------------------------------------------------------------------------


def _octets(count: int) -> Numbers:
    if count < _POOLED:
        return np.empty(count, np.uint8)
    return np.frombuffer(pa.allocate_buffer(count), np.uint8)


def _windows(data: Numbers, width: int) -> Numbers:
    """At each index the `width` bytes that begin there."""
    return np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))


def _places(sizes: Numbers) -> Numbers:
    places = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=places[1:])
    return places


def _without_nulls(memory: Numbers, width: int, valid: Numbers) -> tuple[Numbers, Bounds]:
    """Values of one width, with a single 0 byte for each null."""
    places = _places(valid * np.uint8(width - 1) + np.uint8(1))
    values = _octets(len(memory))
    values[:] = memory
    values[::width] *= valid
    result = _octets(int(places[-1]) + width)
    _windows(result, width)[places[:-1]] = values.view(f"V{width}")
    return result[: places[-1]], places


def _framed(data: Numbers, bounds: Numbers, counts: Numbers, valid: Numbers | None) -> tuple[Numbers, Bounds]:
    """Each row behind its count as u64 LE; a null row is one 0 byte."""
    first, size = int(bounds[0]), int(bounds[1] - bounds[0])
    data, rows = data[first : int(bounds[-1])], len(counts)
    sizes = bounds[1:] - bounds[:-1]
    if valid is None and len(data) == size * rows and int(sizes.max()) == size:
        return _framed_alike(data, size, counts)
    begins = np.subtract(bounds[:-1], first, dtype=np.int64)
    if valid is None:
        places = _octets(_HEAD * (rows + 1)).view(np.int64)
        np.add(begins, _heads(rows), out=places[:-1])
        places[-1] = len(data) + _HEAD * rows
    else:
        sizes, counts = sizes * valid, counts * valid
        places = _places(np.add(sizes, valid * np.uint8(_HEAD - 1) + np.uint8(1), dtype=np.int64))
    # a block begins eight bytes before its value, where its length is to stand
    block = min(_BLOCK, int(sizes.max()))
    source = _octets(_HEAD + len(data) + block)
    source[_HEAD : _HEAD + len(data)] = data
    blocks = _windows(source, _HEAD + block)[begins]
    np.ndarray((rows,), "<u8", blocks, strides=(_HEAD + block,))[:] = counts
    result = _octets(int(places[-1]) + _HEAD + block)
    _windows(result, _HEAD + block)[places[:-1]] = blocks
    result = result[: places[-1]]
    _copy_rest(data, begins, sizes, result, places, block)
    return result, places


def _heads(rows: int) -> Numbers:
    return _HEADS[:rows] if rows < len(_HEADS) else np.arange(rows, dtype=np.int64) * _HEAD


def _framed_alike(data: Numbers, size: int, counts: Numbers) -> tuple[Numbers, Bounds]:
    """Rows that are all of one size (and of one count: items of one size, or no items)."""
    rows, width = len(counts), _HEAD + size
    result = _octets(rows * width)
    np.ndarray((rows,), "<u8", result, strides=(width,))[:] = counts
    word = min(8, 1 << size.bit_length() >> 1)
    places = sorted({*range(0, size - word + 1, word), size - word}) if size else []
    if len(places) > _WORDS or (rows < _WORD_ROWS and size):
        np.ndarray((rows,), f"V{size}", result, _HEAD, (width,))[:] = data.view(f"V{size}")
        return result, width
    for place in places:  # signed to unsigned: numpy converts words anywhere in bulk, but copies them singly
        words = np.ndarray((rows,), f"i{word}", data, place, (size,))
        np.ndarray((rows,), f"u{word}", result, _HEAD + place, (width,))[:] = words
    return result, width


def _copy_rest(
    data: Numbers, begins: Numbers, sizes: Numbers, into: Numbers, places: Numbers, done: int
) -> None:
    if done < _BLOCK:
        return
    # blocks are twice as large each time, so few rounds copy long values and short ones cost little
    rows = np.flatnonzero(sizes > done)
    while len(rows) > _FEW and done <= _LARGEST_BLOCK:
        at = np.minimum(sizes[rows] - done, done).astype(np.int64)  # a block ends where its row does
        _windows(into, done)[places[rows] + at + _HEAD] = _windows(data, done)[begins[rows] + at]
        done *= 2
        rows = rows[sizes[rows] > done]
    for row in rows.tolist():
        begin, end, place = int(begins[row]) + done, int(begins[row] + sizes[row]), int(places[row]) + _HEAD
        into[place + done : place + int(sizes[row])] = data[begin:end]


# Bytes of a batch that is hashed sooner than threads could be started for it.
_SMALL = 1 << 16

Result = TypeVar("Result")


class LogicalDigest:
    """A running logical hash: feed batches of one schema, then `finish`.

    With an `executor`, its threads and the one that calls `update` share the leaves of a batch, and a leaf's
    next piece is made while the one before it is hashed (SHA3 and numpy release the interpreter lock).
    `update` returns only when all is done, so memory stays at one batch; it may run on the executor itself.

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
        for name, level, data_type in _walk_fields(list(schema), 0):
            encoded = name.encode()
            self._hasher.update(_u64(len(encoded)) + encoded + _u64(level))
            if not t.is_struct(data_type):
                self._leaves.append(sha3_256(type_header(data_type, name)))

    def update(self, batch: pa.RecordBatch) -> None:
        """Feed the rows of a batch (its columns must be those of the schema, in order)."""
        leaves = walk_columns(batch.columns)
        if self._executor is None or batch.nbytes < _SMALL:
            for hasher, (array, parent_valid) in zip(self._leaves, leaves, strict=True):
                for make in leaf_bytes(array, parent_valid, self._null_rule):
                    hasher.update(make())
        else:
            self._share(list(leaves), self._executor)

    def _share(self, leaves: list[tuple[pa.Array, Numbers | None]], executor: Executor) -> None:
        # the largest first, so that no thread is left with one when the others are done
        order = sorted(range(len(leaves)), key=lambda index: -leaves[index][0].nbytes)
        untaken = iter(order)

        def work() -> None:
            for index in untaken:  # each thread takes the next
                pieces = leaf_bytes(*leaves[index], self._null_rule)
                _feed_ahead(self._leaves[index], pieces, executor, untaken)

        tasks = [_Task(work, executor) for _ in order[1:]]
        work()
        for task in tasks:
            task.result()

    def finish(self) -> Multihash:
        """The multihash (`arrow0-sha3-256`) of everything fed so far; feeding may go on."""
        final = self._hasher.copy()
        for leaf in self._leaves:
            final.update(leaf.digest())
        return Multihash(Multicodec.ARROW0_SHA3_256, final.digest())


# --- schema ----------------------------------------------------------------------------------------


def _walk_fields(fields: list[pa.Field], level: int) -> Iterator[tuple[str, int, pa.DataType]]:
    for field in fields:
        data_type = plain_type(field.type)
        yield field.name, level, data_type
        if t.is_struct(data_type):
            yield from _walk_fields([data_type.field(i) for i in range(data_type.num_fields)], level + 1)


# --- threads ---------------------------------------------------------------------------------------


class _Task(Generic[Result]):
    """Work for an executor; the thread that needs the result does it itself unless it has begun."""

    def __init__(self, work: Callable[[], Result], executor: Executor) -> None:
        self._work, self._future = work, executor.submit(work)

    def result(self) -> Result:
        return self._work() if self._future.cancel() else self._future.result()


def _feed_ahead(
    hasher: Hasher, pieces: Sequence[Callable[[], memoryview]], executor: Executor, untaken: Iterator[int]
) -> None:
    ahead: _Task[memoryview] | None = None
    for make, following in zip_longest(pieces, pieces[1:]):
        piece = make() if ahead is None else ahead.result()
        # only once each leaf has a thread may another one make the next piece while this one is hashed
        ahead = _Task(following, executor) if following and not length_hint(untaken) else None
        hasher.update(piece)
