"""Values of columns encoded, hashed and counted, and sketches of their hashes, for any cut and order.

What is counted are keys: numbers as they are, times in their unit, dates as days, texts as a profile shows
them (long ones cut and distinguished by a hash), everything else by its hash. So no value of megabytes is
held. The smallest row hashes (KMV, bottom-k MinHash) are counted, others estimated (HyperLogLog). Source:
RFC-040.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import datasketches as ds
import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types as t

from odfchain.odf.logical_hash import value_bytes
from odfchain.odf.row_hash import Numbers
from odfchain.profiles.reader import KMV_SIZE
from odfchain.storage import fsio

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
        if (least := _least_of_near(numbers, kind)) is None:
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


# Sketches of a multiset of rows: the same bytes for any cut, order and number of parts.


@dataclass(frozen=True, slots=True, eq=False)
class Kmv:
    """The smallest distinct row hashes, ascending, and how often each occurs."""

    hashes: Hashes
    counts: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, hashes: Hashes) -> Kmv:
        """Of all rows."""
        found, counts = np.unique(hashes, return_counts=True)
        return cls(found[:KMV_SIZE], counts[:KMV_SIZE].astype(np.int64))

    def with_rows(self, hashes: Hashes) -> Kmv:
        """These rows, too."""
        if len(self.hashes) == KMV_SIZE:  # larger ones change nothing
            hashes = hashes[hashes <= self.hashes[-1]]
        return self + Kmv.of(hashes) if len(hashes) else self

    def __add__(self, other: Kmv) -> Kmv:
        together = np.concatenate((self.hashes, other.hashes))
        found, place = np.unique(together, return_inverse=True)
        counts = np.zeros(len(found), dtype=np.int64)
        np.add.at(counts, place, np.concatenate((self.counts, other.counts)))
        return Kmv(found[:KMV_SIZE], counts[:KMV_SIZE])

    @property
    def duplicate_fraction(self) -> float:
        """The share of rows that repeat another one; exact up to 4,096 distinct rows."""
        rows = int(self.counts.sum())
        return 0.0 if rows == 0 else (rows - len(self.hashes)) / rows

    def to_bytes(self) -> bytes:
        """The hashes as little-endian numbers of 8 bytes."""
        return self.hashes.astype("<u8").tobytes()


# HyperLogLog over 64-bit hashes: the same bytes for any partition and order of the rows.
# Published is an Apache DataSketches sketch (HLL_8, 2**12 registers), made canonical by a union. The hash
# with the longest run of zeros per register is found with numpy, and only those go to the library (RFC-040).

_LG_REGISTERS = 12
_KIND = ds.tgt_hll_type.HLL_8
_SEED = 9_001
"""The library's."""
_MURMUR = tuple(
    np.uint64(n)
    for n in (0x87C37B91114253D5, 0x4CF5AD432745937F, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
)  # fmt: skip


class Hll:
    """A HyperLogLog of 64-bit hashes."""

    def __init__(self) -> None:
        self._runs = np.zeros(1 << _LG_REGISTERS, dtype=np.uint8)
        """Of each register; 0 where nothing was seen."""
        self._hashes: Hashes = np.zeros(1 << _LG_REGISTERS, dtype=np.uint64)

    def update(self, hashes: Hashes) -> None:
        """Add hashes."""
        registers, runs = _registers(hashes)
        longer = runs > self._runs[registers]
        if longer.any():
            registers, runs, hashes = registers[longer], runs[longer], hashes[longer]
            order = np.argsort(runs, kind="stable")  # of equal registers the last one stays
            self._runs[registers[order]] = runs[order]
            self._hashes[registers[order]] = hashes[order]

    def merge(self, other: Hll) -> None:
        """Add what another one has seen."""
        longer = other._runs > self._runs
        self._runs[longer] = other._runs[longer]
        self._hashes[longer] = other._hashes[longer]

    @property
    def hashes(self) -> Hashes:
        """The hashes that it follows from, one for each register that saw any."""
        return self._hashes[self._runs > 0]

    @property
    def estimate(self) -> float:
        """Number of distinct hashes."""
        return float(self._union().get_estimate())

    def to_bytes(self) -> bytes:
        """The canonical form; 8 bytes when nothing was seen."""
        return bytes(self._union().get_result(_KIND).serialize_compact())

    def _union(self) -> ds.hll_union:
        union = ds.hll_union(_LG_REGISTERS)
        if self._runs.any():
            part = ds.hll_sketch(_LG_REGISTERS, _KIND, True)  # it starts at its full size
            for value in self.hashes.view(np.int64).tolist():
                part.update(value)
            # fed twice, a part marks the union as out of order: one form for every way
            union.update(part)
            union.update(part)
        return union


def _registers(hashes: Hashes) -> tuple[Numbers, Numbers]:
    # the register, and the run of zeros plus one, by MurmurHash3 of the 8 bytes
    first, second = _MURMUR[:2]
    start = np.uint64(_SEED ^ 8)
    one = (rotated(hashes * first, 31) * second ^ start) + start
    two = _mixed(one + start)
    low = _mixed(one) + two
    high = low + two
    # bits of a double are exact for the upper 53
    top = high >> np.uint64(11)
    bits = np.where(top > 0, np.frexp(top.astype(np.float64))[1] + 11, np.frexp(high.astype(np.float64))[1])
    runs = np.minimum(64 - bits, 62) + 1
    return (low & np.uint64((1 << _LG_REGISTERS) - 1)).astype(np.intp), runs.astype(np.uint8)


def _mixed(words: Hashes) -> Hashes:
    for factor in _MURMUR[2:]:
        words = (words ^ (words >> np.uint64(33))) * factor
    return words ^ (words >> np.uint64(33))


# Share of near-duplicate rows: MinHash with bands, over all rows, because a sample would miss pairs.
# Tokens are the words of texts, case-folded and hashed with the column's seed, and the other values. Minimum
# j = 1…64 is that of T·a + b modulo 2**64; eight minima make one of eight band keys. A row counts if it
# shares a band key with another row: about 3 % of pairs with half their tokens in common, 77 % at 0.8, 99 %
# at 0.9 (RFC-040).

MOST_ROWS = 262_144
"""So many rows are looked at without being asked."""
BANDS = 8
_MINIMA = 64
_BLOCK = 1_024
"""Rows whose minima are found at a time, so that they stay near the processor."""
_FILES = 16
"""Into so many files the keys of each band are put, by their first bits, where they are too many."""
_HELD_ROWS = 1 << 20
"""Rows whose keys are in memory, 64 bytes each."""
_PAIR = np.dtype([("key", "<u8"), ("row", "<u8")])


def _scattered(first: int) -> Hashes:
    return splitmix64(np.arange(first, first + _MINIMA, dtype=np.uint64))


_FACTORS = _scattered(1) | np.uint64(1)
_SUMMANDS = _scattered(1001)
_NO_TOKEN = np.uint64(2**64 - 1)


def band_keys(columns: Sequence[EncodedColumn], seeds: Sequence[int]) -> tuple[Hashes, Numbers]:
    """(eight keys of each row, whether it has tokens at all)."""
    rows = columns[0].rows if columns else 0
    parts = [_tokens_of(column, seed) for column, seed in zip(columns, seeds, strict=True)]
    present = np.zeros(rows, dtype=bool)
    for part in parts:
        present |= part.present
    keys = np.zeros((rows, BANDS), dtype=np.uint64)

    def find(start: int) -> None:
        minima = np.full((_MINIMA, min(_BLOCK, rows - start)), _NO_TOKEN, dtype=np.uint64)
        for part in parts:
            part.lower(minima, slice(start, start + _BLOCK))
        block = np.zeros((BANDS, minima.shape[1]), dtype=np.uint64)
        for minimum in range(BANDS):
            block = splitmix64(block ^ minima[minimum::BANDS])
        keys[start : start + _BLOCK] = block.T

    # arrays are computed in parallel: numpy releases the interpreter meanwhile
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(find, range(0, rows, _BLOCK)))
    return keys, present


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """The tokens of a column: minima of each distinct text, or one for each value."""

    present: Numbers
    codes: Numbers | None
    """The place of each row's text in `minima`."""
    minima: Hashes
    """Of texts, a row for each; of values their hashes."""

    def lower(self, minima: Hashes, rows: slice) -> None:
        if self.codes is not None:
            np.minimum(minima, self.minima[:, self.codes[rows]], out=minima)
            return
        found = self.minima[rows] * _FACTORS[:, None]
        found += _SUMMANDS[:, None]
        if not self.present[rows].all():
            found[:, ~self.present[rows]] = _NO_TOKEN
        np.minimum(minima, found, out=minima)


def _tokens_of(column: EncodedColumn, seed: int) -> _Tokens:
    valid = np.ones(column.rows, dtype=bool) if column.valid is None else column.valid
    if not (t.is_string(column.type) or t.is_large_string(column.type)):
        return _Tokens(valid, None, column.hashes)
    assert column.distinct is not None  # noqa: S101 - texts are counted by value
    assert column.codes is not None  # noqa: S101
    words = [_words(text, seed) for text in column.distinct.to_pylist()]
    sizes = np.array([len(each) for each in words], dtype=np.int64)
    # the last one is of rows without words
    of_texts = np.full((_MINIMA, len(sizes) + 1), _NO_TOKEN, dtype=np.uint64)
    if sizes.any():
        tokens, starts = np.concatenate(words), (np.cumsum(sizes) - sizes)[sizes > 0]
        there = np.flatnonzero(sizes)
        for minima, factor, summand in zip(of_texts, _FACTORS, _SUMMANDS, strict=True):
            minima[there] = np.minimum.reduceat(tokens * factor + summand, starts)
    codes = np.full(column.rows, len(sizes), dtype=np.intp)
    codes[valid] = column.codes
    return _Tokens(np.append(sizes > 0, False)[codes], codes, of_texts)


def _words(text: str, seed: int) -> Hashes:
    words = set(text.casefold().split())
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(w.encode(errors="surrogatepass"), seed) for w in words), np.uint64, len(words))


class BandKeys:
    """The band keys of rows, however many: beyond a million rows they are in files."""

    def __init__(self) -> None:
        self.rows = 0
        """With those that have no token, and so are like none."""
        self._held: list[Hashes] = []
        self._numbered = self._first_held = 0
        self._folder: Path | None = None

    @property
    def held(self) -> Hashes:
        """The keys of all rows that have some, where none are in files."""
        return np.concatenate([np.zeros((0, BANDS), dtype=np.uint64), *self._held])

    @property
    def is_small(self) -> bool:
        """True if none are in files."""
        return self._folder is None

    def add(self, keys: Hashes, present: Numbers) -> None:
        """Add rows: their keys, and whether they have any."""
        self.rows += len(keys)
        self._hold(keys if present.all() else keys[present])

    def update(self, columns: Sequence[EncodedColumn], seeds: Sequence[int]) -> None:
        """Add rows by their columns, and the columns' seeds."""
        self.add(*band_keys(columns, seeds))

    def merge(self, other: BandKeys) -> None:
        """Add the rows of another part, which is small."""
        self.rows += other.rows
        self._hold(other.held)

    def _hold(self, keys: Hashes) -> None:
        self._held.append(keys)
        self._numbered += len(keys)
        if self._numbered - self._first_held > _HELD_ROWS:
            self._write()

    def _write(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="odfchain-"))
            fsio.remove_at_end(self, self._folder)
        keys = self.held
        pairs = np.empty(len(keys), dtype=_PAIR)
        pairs["row"] = np.arange(self._first_held, self._numbered)
        for band in range(BANDS):
            pairs["key"] = keys[:, band]
            places = (keys[:, band] >> np.uint64(60)).astype(np.intp)
            ordered = pairs[np.argsort(places, kind="stable")]
            ends = np.cumsum(np.bincount(places, minlength=_FILES))
            for place, part in enumerate(np.split(ordered, ends[:-1])):
                with self._file(band, place).open("ab") as stream:
                    part.tofile(stream)
        self._held, self._first_held = [], self._numbered

    def _file(self, band: int, place: int) -> Path:
        assert self._folder is not None  # noqa: S101 - asked by the caller
        return self._folder / f"{band}-{place}"

    def _groups(self) -> Iterator[tuple[Hashes, Numbers]]:
        """(keys, rows that have them): those of equal keys of a band come together."""
        if self._folder is None:
            keys = self.held
            for band in range(BANDS):
                yield keys[:, band], np.arange(len(keys))
            return
        if self._held:
            self._write()
        for band in range(BANDS):
            for place in range(_FILES):
                pairs = np.fromfile(self._file(band, place), dtype=_PAIR)
                yield pairs["key"], pairs["row"].astype(np.intp)

    @property
    def share(self) -> float:
        """The share of rows that have a band key in common with another one."""
        alike = np.zeros(self._numbered, dtype=bool)
        for keys, rows in self._groups():
            order = np.argsort(keys, kind="stable")
            ordered = keys[order]
            same = ordered[1:] == ordered[:-1]
            alike[rows[order[1:][same]]] = True
            alike[rows[order[:-1][same]]] = True
        return float(alike.sum()) / self.rows if self.rows else 0.0
