"""Sketches of a multiset of rows: the same bytes for any cut, order and number of parts.

The smallest row hashes (KMV, bottom-k MinHash) are counted, others estimated (HyperLogLog). Source: RFC-040.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasketches as ds
import numpy as np
import xxhash
from pyarrow import types as t

from odfchain.odf.row_hash import Numbers
from odfchain.profiles.reader import KMV_SIZE
from odfchain.profiles.value_counts import EncodedColumn, Hashes, rotated, splitmix64
from odfchain.storage import fsio


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


def _numbers(first: int) -> Hashes:
    return splitmix64(np.arange(first, first + _MINIMA, dtype=np.uint64))


_FACTORS = _numbers(1) | np.uint64(1)
_SUMMANDS = _numbers(1001)
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
    present = np.append(sizes > 0, False)[codes]
    return _Tokens(present, codes, of_texts)


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
