"""The bytes that the logical hash feeds for the values of a leaf, made by numpy a piece at a time.

A piece is so small that all that is made on the way stays in the processor's cache: fresh memory would cost
more than the work. Numbers without nulls are fed as they lie in memory. For everything else the values are
copied as blocks of one size, first to last, to where they begin in the result: what a block has beyond its
value is overwritten by the blocks after it. This relies on numpy assigning in the order of the indices, as
it promises for an index that comes twice; the tests hold every byte to a plain reading of the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.digest.leaf_types import is_binary, is_plain_fixed, is_text

NullRule: TypeAlias = Literal["correct", "reference"]
Numbers: TypeAlias = np.ndarray[Any, Any]
Bounds: TypeAlias = Numbers | int
"""Where each element begins, and the end of the last; a number when all are of that size."""

_PIECE_BYTES, _PIECE_ROWS, _FEWEST_ROWS = 1 << 19, 1 << 14, 1 << 6
_BLOCK, _LARGEST_BLOCK = 128, 1 << 13
"""Bytes of a value that are copied with its length (few values are longer), and at once of what is left."""
_FEW = 16
"""So few rows are copied one by one."""
_WORDS, _WORD_ROWS = 3, 256
"""So few words of up to eight bytes are copied sooner than values as a whole, from so many rows on."""
_POOLED = 1 << 16
"""Memory of so many bytes is Arrow's, whose pool keeps the pages; others would be asked for anew."""
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


def leaf_bytes(
    array: pa.Array, parent_valid: Numbers | None, rule: NullRule
) -> list[Callable[[], memoryview]]:
    """What is fed for a leaf: calls that make the pieces, to be fed one after the other."""
    rows = len(array)
    if rows == 0:
        return []
    valid = _combined(array, parent_valid, rule)
    if valid is None and is_plain_fixed(data_type := array.type):
        width = data_type.bit_width // 8
        memory = memoryview(array.buffers()[1])[array.offset * width : (array.offset + rows) * width]
        return [lambda: memory]
    step = min(_PIECE_ROWS, max(_FEWEST_ROWS, rows * _PIECE_BYTES // max(1, array.nbytes)))
    if step >= rows:
        return [lambda: _elements(array, valid)[0].data]
    return [partial(_piece, array, valid, start, step) for start in range(0, rows, step)]


def value_bytes(array: pa.Array) -> Iterator[bytes]:
    """What is fed for each value of an array; of a structure for one leaf after the other."""
    leaves = [_elements(leaf, _combined(leaf, valid, "correct")) for leaf, valid in walk_columns([array])]
    rows = np.arange(len(array) + 1)
    bounds = [rows * begins if isinstance(begins, int) else begins for _, begins in leaves]
    for number in range(len(array)):
        yield b"".join(
            data[begins[number] : begins[number + 1]].tobytes()
            for (data, _), begins in zip(leaves, bounds, strict=True)
        )


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
    if rule == "correct" or array.buffers()[0] is None:
        return _both(parent_valid, own)
    return parent_valid | own if own is not None and not parent_valid.all() else None


# --- elements --------------------------------------------------------------------------------------


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
        if data_type in (pa.string_view(), pa.binary_view()):
            array = array.cast(pa.large_binary())
        bounds = _offsets(array)
        return _framed(_memory(array.buffers()[2]), bounds, bounds[1:] - bounds[:-1], valid)
    return _list_elements(array, valid)


def _list_elements(array: pa.Array, valid: Numbers | None) -> tuple[Numbers, Bounds]:
    data_type = array.type
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
    """The offsets of the window of an array of text, binary or lists."""
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
    data: Numbers, begins: Numbers, sizes: Numbers, result: Numbers, places: Numbers, done: int
) -> None:
    """What of each row is beyond its first `done` bytes, in blocks twice as large each time."""
    if done < _BLOCK:
        return
    rows = np.flatnonzero(sizes > done)
    while len(rows) > _FEW and done <= _LARGEST_BLOCK:
        at = np.minimum(sizes[rows] - done, done).astype(np.int64)  # a block ends where its row does
        _windows(result, done)[places[rows] + at + _HEAD] = _windows(data, done)[begins[rows] + at]
        done *= 2
        rows = rows[sizes[rows] > done]
    for row in rows.tolist():
        begin, end, place = int(begins[row]) + done, int(begins[row] + sizes[row]), int(places[row]) + _HEAD
        result[place + done : place + int(sizes[row])] = data[begin:end]
