"""XXH64 of values and rows: the same wherever, however cut and in whatever order rows are seen.

    h(column, value) = XXH64(bytes of the value, seed of the column)     seed = XXH64(name in UTF-8, 42)
    h(row)           = XOR of h over the columns that are not null

Bytes: integers, booleans, dates (days) and times as 8 bytes little-endian, times of day and timestamps in
microseconds; floats as doubles with one zero and one NaN; text in UTF-8, binary as it is; decimals as their
plain text; lists and structures as what the logical hash feeds for them. A column without values changes no
row's hash. For a column of a simple type it is what Spark's `xxhash64('name', column)` says. Source: RFC-040.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types as t

from odfchain.digest.leaf_bytes import value_bytes

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


def splitmix64(numbers: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that spreads each bit over all of them."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def has_words(kind: pa.DataType) -> bool:
    """Whether values of a type are hashed as 8 bytes."""
    return bool(t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_temporal(kind))


def words_of(column: pa.Array) -> Hashes:
    """Values that are hashed as 8 bytes, of a column without nulls."""
    kind = column.type
    if t.is_boolean(kind):
        column = column.cast(pa.uint64())
    elif t.is_floating(kind):
        numbers = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        bits: Hashes = numbers.view(np.uint64)
        return bits
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
    else:
        column = column.cast(pa.uint64())
    found: Hashes = column.to_numpy(zero_copy_only=False)
    return found


def rotated(word: Hashes, by: int) -> Hashes:
    """The bits of each word, turned to the left."""
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


def hashes_of_words(words: Hashes, seed: int) -> Hashes:
    """XXH64 of 8 bytes each, without a loop."""
    first, second, third, fourth, fifth = _PRIMES
    # numbers wrap around on purpose, in arrays silently
    start = np.full(1, (seed + int(fifth) + 8) % (1 << 64), dtype=np.uint64)
    mixed = rotated(words * second, 31) * first
    found = rotated(start ^ mixed, 27) * first + fourth
    found = (found ^ (found >> np.uint64(33))) * second
    found = (found ^ (found >> np.uint64(29))) * third
    return found ^ (found >> np.uint64(32))


def distinct_hashes(values: pa.Array, seed: int) -> Hashes:
    """The hash of each value of a column without nulls."""
    kind = values.type
    if has_words(kind):
        return hashes_of_words(words_of(values), seed)
    if t.is_nested(kind):
        return _each(list(value_bytes(values)), seed)
    if t.is_decimal(kind):
        return _each([format(value, "f").encode() for value in values.to_pylist()], seed)
    if t.is_string(kind) or t.is_large_string(kind):
        return _each(values.cast(pa.large_binary()).to_pylist(), seed)
    return _each(values.to_pylist(), seed)


def _each(texts: list[bytes], seed: int) -> Hashes:
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(text, seed) for text in texts), np.uint64, len(texts))
