"""XXH64 of values and rows: the same wherever, however cut and in whatever order rows are seen.

    h(column, value) = XXH64(bytes of the value, seed of the column)     seed = XXH64(name in UTF-8, 42)
    h(row)           = XOR of h over the columns that are not null

Bytes: integers, booleans, dates (days) and times as 8 bytes little-endian, times of day and timestamps in
microseconds; floats as doubles with one zero and one NaN; text in UTF-8, binary as it is; decimals as their
plain text; nested values as the logical hash feeds them. A column without values changes no row's hash. For a
column of these kinds it is what Spark's `xxhash64('name', column)` says. Source: RFC-040.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import types as t

from odfchain.digest.logical import LogicalDigest

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_PRIMES = tuple(
    np.uint64(p)
    for p in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
_NAMES_SEED = 42


def column_seed(name: str) -> int:
    """The seed of a column's values."""
    return int(xxhash.xxh64_intdigest(name.encode(errors="surrogatepass"), seed=_NAMES_SEED))


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """The hash of each row."""
    found = np.zeros(batch.num_rows, dtype=np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        found ^= value_hashes(column, column_seed(name))
    return found


def value_hashes(column: pa.Array, seed: int) -> Hashes:
    """The hash of each value; 0 where it is null."""
    if t.is_dictionary(column.type):
        words = value_hashes(column.dictionary, seed)
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found = words[codes] if len(words) else np.zeros(len(column), np.uint64)
    elif t.is_null(column.type):
        return np.zeros(len(column), dtype=np.uint64)
    else:
        words64 = _words(column)
        found = _of_words(words64, seed) if words64 is not None else _of_bytes(column, seed)
    if column.null_count:
        found = np.where(column.is_valid().to_numpy(zero_copy_only=False), found, np.uint64(0))
    return found


def splitmix64(numbers: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that spreads each bit over all of them."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _words(column: pa.Array) -> Hashes | None:
    """Values that are hashed as 8 bytes; None for other kinds."""
    kind = column.type
    if t.is_boolean(kind):
        column = column.cast(pa.uint64())
    elif t.is_floating(kind):
        number = pc.add(column.cast(pa.float64()), 0.0)
        column = pc.if_else(pc.is_nan(number), pa.scalar(float("nan")), number).view(pa.uint64())
    elif t.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()).view(pa.uint64())
    elif t.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False)
        column = micros.cast(pa.int64()).view(pa.uint64())
    elif t.is_time(kind):
        column = column.cast(pa.time64("us"), safe=False).cast(pa.int64()).view(pa.uint64())
    elif t.is_duration(kind):
        column = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).view(pa.uint64())
    elif t.is_signed_integer(kind):
        column = column.cast(pa.int64()).view(pa.uint64())
    elif t.is_integer(kind):
        column = column.cast(pa.uint64())
    else:
        return None
    found: Hashes = column.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _rotated(word: Hashes, by: int) -> Hashes:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


def _of_words(words: Hashes, seed: int) -> Hashes:
    """XXH64 of 8 bytes each, without a loop."""
    first, second, third, fourth, fifth = _PRIMES
    # numbers wrap around on purpose, in arrays silently
    start = np.full(1, (seed + int(fifth) + 8) % (1 << 64), dtype=np.uint64)
    mixed = _rotated(words * second, 31) * first
    found = _rotated(start ^ mixed, 27) * first + fourth
    found = (found ^ (found >> np.uint64(33))) * second
    found = (found ^ (found >> np.uint64(29))) * third
    return found ^ (found >> np.uint64(32))


def _of_bytes(column: pa.Array, seed: int) -> Hashes:
    """Each distinct value is hashed once, where Arrow can tell which are."""
    kind = column.type
    if t.is_nested(kind):
        texts = [_nested(column.slice(i, 1)) if column[i].is_valid else b"" for i in range(len(column))]
        return _each(texts, seed)
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    if t.is_decimal(kind):
        texts = [format(value, "f").encode() for value in values.to_pylist()]
    elif t.is_string(kind) or t.is_large_string(kind):
        texts = values.cast(pa.large_binary()).to_pylist()
    else:
        texts = values.to_pylist()
    words = _each(texts, seed)
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return words[codes] if len(words) else np.zeros(len(column), dtype=np.uint64)


def _each(texts: list[bytes], seed: int) -> Hashes:
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(text, seed) for text in texts), np.uint64, len(texts))


def _nested(value: pa.Array) -> bytes:
    """A nested value as bytes that follow from it alone: its logical hash."""
    digest = LogicalDigest(pa.schema([pa.field("v", value.type)]))
    digest.update(pa.RecordBatch.from_arrays([value], ["v"]))
    return digest.finish().digest
