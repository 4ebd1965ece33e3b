"""Counts of a column's values, as long as there are few enough of them.

What is counted are keys: numbers as they are, times in their unit, dates as days, texts as a profile shows
them (long ones cut and distinguished by a hash), everything else by its hash. So no value of megabytes is
held.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types as t

from odfchain.odf.logical_hash import value_bytes
from odfchain.odf.row_hash import Numbers

MOST_VALUES = 16_384
"""So many distinct values are counted one by one; beyond that there are estimates."""
_GATHERED = 3 * MOST_VALUES
"""Counts that are gathered before equal keys are added up."""
_NO_NUMBERS = np.zeros(0, dtype=np.int64)


class ValueCounts:
    """Counts of keys; `add` in any order."""

    def __init__(self, kind: pa.DataType) -> None:
        self._keys = [pa.array([], kind)]
        self._numbers = [_NO_NUMBERS]
        self._gathered = 0

    def add(self, keys: pa.Array, numbers: Numbers) -> None:
        """These keys occur so many times more, each at least once; a key may be there twice."""
        self._keys.append(keys)
        self._numbers.append(numbers.astype(np.int64, copy=False))
        self._gathered += len(keys)

    @property
    def may_be_too_many(self) -> bool:
        """True if the gathered values should be added up now."""
        return self._gathered > _GATHERED

    @property
    def too_many(self) -> bool:
        """True if there are more distinct keys than are counted."""
        return len(self.keys) > MOST_VALUES

    @property
    def keys(self) -> pa.Array:
        """The distinct keys."""
        self._settle()
        return self._keys[0]

    @property
    def numbers(self) -> Numbers:
        """Count by key."""
        self._settle()
        return self._numbers[0]

    def _settle(self) -> None:
        if len(self._keys) > 1:
            both = pa.concat_arrays(self._keys).dictionary_encode()
            codes = both.indices.to_numpy(zero_copy_only=False)
            found = np.zeros(len(both.dictionary), dtype=np.int64)
            np.add.at(found, codes, np.concatenate(self._numbers))
            self._keys, self._numbers, self._gathered = [both.dictionary], [found], 0


# Hashes of values and rows, independent of partition and order (RFC-040):
#
#     h(column, value) = XXH64(bytes of the value, seed of the column)     seed = XXH64(name in UTF-8, 42)
#     h(row)           = XOR of h over the columns that are not null
#
# Bytes: integers, booleans, dates (days) and times as 8 bytes little-endian, times of day and timestamps in
# microseconds; floats as doubles with one zero and one NaN; text in UTF-8, binary as it is; decimals as plain
# text; lists and structs as for the logical hash. For simple types it equals Spark's `xxhash64('name',
# column)`.

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_PRIMES = tuple(
    np.uint64(p)
    for p in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip


def splitmix64(numbers: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that spreads each bit over all of them."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def has_words(kind: pa.DataType) -> bool:
    """True if values of a type are hashed as 8 bytes."""
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


# A column with the hashes of its values, each distinct value hashed once where that is cheap: integers in a
# small range by their distance from the least, texts, binaries and decimals by Arrow dictionaries. Other
# numbers are faster hashed one by one.

_NEAR = 4
"""Whole numbers are near each other where so many could lie between any two of as many rows [multiple]."""


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """A column without its nulls."""

    type: pa.DataType
    rows: int
    valid: Numbers | None
    """A mask of the rows that are not null; None where all are not."""
    numbers: Numbers | None
    """Values as numbers of 64 bits: floats as doubles with one zero and one NaN, times in their unit."""
    distinct: pa.Array | None
    """Other values, each once; None for nested ones."""
    least: int | None
    """The first of whole numbers that are near each other."""
    codes: Numbers | None
    """The place of each value among the distinct ones, or from the least on."""
    words: Hashes
    """The hash of each of those, or of each value."""

    @classmethod
    def of(cls, column: pa.Array, seed: int) -> EncodedColumn:
        """The values of a column, with their hashes by the column's seed."""
        kind = column.type
        if t.is_dictionary(kind):
            column, kind = column.dictionary_decode(), kind.value_type
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        rows, given = len(column), column.drop_null()
        if t.is_nested(kind) or t.is_null(kind):
            return cls(kind, rows, valid, None, None, None, None, distinct_hashes(given, seed))
        if not has_words(kind):
            of_all = given.dictionary_encode()
            words = distinct_hashes(of_all.dictionary, seed)
            codes = of_all.indices.to_numpy(zero_copy_only=False)
            return cls(kind, rows, valid, None, of_all.dictionary, None, codes, words)
        bits = words_of(given)
        numbers = _numbers(given, bits)
        least = _least_of_near(numbers, kind)
        if least is None:
            return cls(kind, rows, valid, numbers, None, None, None, hashes_of_words(bits, seed))
        codes = (numbers - numbers.dtype.type(least)).astype(np.intp)
        all_near = np.arange(int(codes.max()) + 1, dtype=np.uint64) + np.uint64(least % 2**64)
        return cls(kind, rows, valid, numbers, None, least, codes, hashes_of_words(all_near, seed))

    @cached_property
    def values(self) -> int:
        """Number of values that are not null."""
        return self.rows if self.valid is None else int(self.valid.sum())

    @cached_property
    def hashes(self) -> Hashes:
        """The hash of each row; 0 where it is null."""
        given = self.words if self.codes is None else self.words[self.codes]
        if self.valid is None:
            return given
        found = np.zeros(self.rows, dtype=np.uint64)
        found[self.valid] = given
        return found

    @cached_property
    def counts(self) -> Numbers:
        """Count of each distinct value."""
        assert self.codes is not None  # noqa: S101 - asked by the caller
        return np.bincount(self.codes, minlength=len(self.words))


def _numbers(given: pa.Array, bits: Hashes) -> Numbers:
    kind = given.type
    if t.is_floating(kind):
        return bits.view(np.float64)
    if t.is_temporal(kind) and not t.is_date(kind):  # their hashes are of microseconds
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        times: Numbers = given.cast(width).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return times
    return bits if t.is_boolean(kind) or t.is_unsigned_integer(kind) else bits.view(np.int64)


def _least_of_near(numbers: Numbers, kind: pa.DataType) -> int | None:
    if not len(numbers) or not (t.is_integer(kind) or t.is_boolean(kind) or t.is_date(kind)):
        return None
    least = int(numbers.min())
    return least if int(numbers.max()) - least < _NEAR * len(numbers) else None
