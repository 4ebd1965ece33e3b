"""When values and rows are equal: forms that are compared as they are, and a hash where rows cannot be kept.

Values are compared as Spark compares them, at any depth: there is one zero and one NaN, and a map has no
order. No loop runs over values.

The hash has 128 bits. It is the sum of one hash for each column, so the order of columns does not matter, and
a null adds nothing: rows from before a column was added are equal to later ones without a value in it. It is
keyed with random bytes of this process, so that collisions cannot be prepared, and it is never stored.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.odf.logical_hash import is_binary, is_text

Numbers = np.ndarray[Any, Any]

PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])
"""The hash of a row as one value."""

_KEY = secrets.token_bytes(32)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# Words of eight bytes that are hashed at a time, so that all that is made of them stays in the cache.
_WORDS = 1 << 15
# Of a word whose first n bytes are a value's: those bytes, and the bit behind them that ends the value.
_KEPT = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
_END = np.array([1 << 8 * size for size in range(8)] + [0], dtype=np.uint64)


def comparable(column: pa.Array, *, exact: bool = False) -> pa.Array:
    """A column of numbers of 64 bits, texts, bytes or decimals that are equal where the values are.

    A wider type of one kind holds the same values. What has members becomes bytes. `exact` ones tell zeros
    apart, and the NaN of different bits.
    """
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if t.is_nested(kind):
        return pc.if_else(column.is_valid(), _packed(column, exact), None)
    if is_text(kind):
        return column.cast(pa.large_string())
    if is_binary(kind):
        return column.cast(pa.large_binary())
    if t.is_decimal(kind):
        return column if t.is_decimal256(kind) else column.cast(pa.decimal128(38, kind.scale))
    if t.is_floating(kind):
        number = column.cast(pa.float64())
        return (number if exact else _one_nan(pc.add(number, 0.0))).view(pa.int64())
    if t.is_temporal(kind) or t.is_uint64(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column.cast(pa.int64())


def same_cells(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Numbers:
    """A mask of equal values of two columns of one type and length; null equals null."""
    one, other = (comparable(column.combine_chunks()) for column in (one, other))
    equal = pc.or_(pc.equal(one, other).fill_null(False), pc.and_(one.is_null(), other.is_null()))
    found: Numbers = equal.to_numpy(zero_copy_only=False)
    return found


def _one_nan(numbers: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(numbers), float("nan"), numbers)


def _packed(column: pa.Array, exact: bool) -> pa.Array:
    # each value, and each null, as bytes that say where they end
    kind = column.type
    absent, present, nothing = (pa.scalar(data, pa.large_binary()) for data in (b"\0", b"\1", b""))
    if t.is_struct(kind):
        parts = [_packed(member, exact) for member in column.flatten()]
    elif t.is_nested(kind):
        if t.is_map(kind):
            column = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        counts, items = pc.list_value_length(column).cast(pa.int64()), _packed(column.flatten(), exact)
        sizes = counts.fill_null(0).to_numpy()
        if t.is_map(kind):
            entries = pa.table({"row": np.repeat(np.arange(len(sizes)), sizes), "entry": items})
            items = items.take(pc.sort_indices(entries, [("row", "ascending"), ("entry", "ascending")]))
        ends = pa.array(np.concatenate(([0], np.cumsum(sizes))))
        parts = [_octets(counts), pc.binary_join(pa.LargeListArray.from_arrays(ends, items), nothing)]
    else:
        if t.is_floating(kind):  # members have one NaN, exact or not
            column = _one_nan(column.cast(pa.float64()))
        value = _octets(comparable(column, exact=exact))
        parts = [_octets(pc.binary_length(value)), value]
    there = pc.binary_join_element_wise(present, *parts, nothing)
    return pc.if_else(column.is_valid(), there, absent)


def _octets(column: pa.Array) -> pa.Array:
    if t.is_integer(column.type) or t.is_decimal(column.type):
        column = column.view(pa.binary(column.type.bit_width // 8))
    return column.cast(pa.large_binary())


def hash_rows(
    batch: pa.RecordBatch, leave_out: Collection[str], *, exact: bool = False, key: bytes | None = None
) -> Numbers:
    """The hash of each row as a `PAIR`, by all columns but those left out; `exact` as `comparable`.

    With a `key` of one's own it is the same in every process, and collisions can be prepared.
    """
    total = np.zeros((batch.num_rows, 2), dtype=np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in leave_out and column.null_count < len(column):
            valid = column.is_valid().to_numpy(zero_copy_only=False)[:, None]
            total += valid * _hash_column(
                name, comparable(column, exact=exact), key or _KEY
            )  # modulo 2**64, both halves
    return total.view(PAIR).reshape(-1)


def numbered(hashes: Numbers) -> Numbers:
    """A number for each of some hashes, from 0 on, equal where they are."""
    memory = pa.py_buffer(np.ascontiguousarray(hashes))
    values = pa.Array.from_buffers(pa.binary(hashes.itemsize), len(hashes), [None, memory])
    return np.asarray(values.dictionary_encode().indices)


def _hash_column(name: str, column: pa.Array, key: bytes) -> Numbers:
    own = hashlib.blake2b(f"{column.type} {name}".encode(errors="surrogatepass"), digest_size=16, key=key)
    keys = np.frombuffer(own.digest(), np.uint64)
    if t.is_int64(column.type):
        return _mixed(column.fill_null(0).to_numpy().view(np.uint64), np.uint64(0), keys)
    encoded = _octets(column).dictionary_encode()
    found: Numbers = _hash_bytes(encoded.dictionary, keys)[encoded.indices.fill_null(0)]
    return found


def _hash_bytes(values: pa.Array, keys: Numbers) -> Numbers:
    bounds = np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1]
    memory = np.frombuffer(values.buffers()[2] or b"", np.uint8)[bounds[0] : bounds[-1]]
    data = np.concatenate([memory, np.zeros(8, np.uint8)])
    words_at = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    sizes, begins = np.diff(bounds), bounds[:-1] - bounds[0]
    # the last word of each value has room for its end
    ends = np.cumsum(sizes // 8 + 1)
    starts = ends - sizes // 8 - 1
    found = np.zeros((len(values), 2), dtype=np.uint64)
    for start in range(0, int(ends[-1]), _WORDS):
        stop = min(start + _WORDS, int(ends[-1]))
        low, high = np.searchsorted(ends, [start, stop - 1], side="right")
        mine = slice(low, high + 1)
        edges = np.maximum(starts[mine], start)
        value = np.repeat(np.arange(low, high + 1), np.minimum(ends[mine], stop) - edges)
        place = np.arange(start, stop) - starts[value]
        size = np.minimum(sizes[value] - 8 * place, 8)
        words = words_at[begins[value] + 8 * place] & _KEPT[size] | _END[size]
        found[mine] += np.add.reduceat(_mixed(words, place.astype(np.uint64), keys), edges - start)
    return found


def _mixed(words: Numbers, place: Numbers | np.uint64, keys: Numbers) -> Numbers:
    # a bijection that spreads each bit over all: the finalizer of splitmix64, twice, with a key
    halves = []
    for key, other in (keys, keys[::-1]):
        values = (words ^ key) + place * (other | np.uint64(1))
        for _ in range(2):
            values = (values ^ (values >> np.uint64(30))) * _MIX[0]
            values = (values ^ (values >> np.uint64(27))) * _MIX[1]
            values = (values ^ (values >> np.uint64(31))) + other
        halves.append(values)
    return np.stack(halves, axis=1)
