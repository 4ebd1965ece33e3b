"""Totals of the rows of a state, part by part: parts merge, so the next profile reads new slices only.

A profile is a function of the multiset of rows. What is held is bounded for any rows: totals and
at most 16,384 counted values of each column, sketches of whole rows, and a sample of 16,384 rows, of which
numbers and the first 1,000 characters of texts are kept. Source: RFC-040.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from decimal import Context
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import types as t

from odfchain.odf.row_hash import Numbers
from odfchain.profiles import sketches
from odfchain.profiles.reader import BINS

# Exact sums, means, deviations and quantiles, rounded once at the end. Sums are integers, because a sum of
# floats depends on the order: every double is a multiple of 2**-1074 (RFC-040).

NumberArray = np.ndarray[Any, Any]

_AT_ONCE = 65_536
"""So many products of halves add up exactly in a double."""
_LOW = 27
_ALL_DIGITS = Context(prec=100)


@dataclass(frozen=True, slots=True)
class ExactSums:
    """Number of values, their sum and the sum of their squares, exactly."""

    count: int = 0
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)

    def __add__(self, other: ExactSums) -> ExactSums:
        return ExactSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float | None:
        """The mean, rounded once."""
        return None if self.count == 0 else rounded(self.total / self.count)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the population, rounded once."""
        if self.count == 0:
            return None
        return rounded_root(self.squares / self.count - (self.total / self.count) ** 2)


def sums_of_doubles(values: NumberArray) -> ExactSums:
    """The exact sums of finite doubles."""
    found = ExactSums()
    for start in range(0, len(values), _AT_ONCE):
        found += _sums(values[start : start + _AT_ONCE])
    return found


def sums_of_integers(values: NumberArray) -> ExactSums:
    """The exact sums of integers of 64 bits."""
    small = np.abs(values.astype(np.float64)) < 2.0**53
    found = sums_of_doubles(values[small].astype(np.float64))
    large = [int(value) for value in values[~small]]
    return found + ExactSums(len(large), Fraction(sum(large)), Fraction(sum(v * v for v in large)))


def sums_of_near(least: int, counts: NumberArray) -> ExactSums:
    """The exact sums of integers from the least on, by how often each occurs."""
    # places are small: their squares times the number of rows are less than 2**63
    places = np.arange(len(counts), dtype=np.int64)
    rows, total, squares = (int(found) for found in (counts.sum(), places @ counts, places * places @ counts))
    shifted = rows * least * least + 2 * least * total + squares
    return ExactSums(rows, Fraction(rows * least + total), Fraction(shifted))


def sums_of_decimals(values: pa.Array, counts: NumberArray) -> ExactSums:
    """The exact sums of decimals that occur so many times each."""
    numbers, unit = unscaled(values), Fraction(1, 10) ** int(values.type.scale)
    pairs = list(zip(numbers.tolist(), counts.tolist(), strict=True))
    total, squares = sum(v * n for v, n in pairs), sum(v * v * n for v, n in pairs)
    return ExactSums(int(counts.sum()), total * unit, squares * unit * unit)


def unscaled(values: pa.Array) -> NumberArray:
    """Decimals without their point: integers, of 64 bits where all are."""
    kind = values.type
    if kind.bit_width <= 128:
        wide = values.cast(pa.decimal128(38, kind.scale))
        pairs = np.frombuffer(wide.buffers()[1], dtype="<i8").reshape(-1, 2)
        low, high = pairs[wide.offset : wide.offset + len(wide)].T
        if (high == low >> 63).all():
            return np.ascontiguousarray(low)
    digits = [int(value.scaleb(kind.scale, _ALL_DIGITS)) for value in values.to_pylist()]
    found = np.empty(len(digits), dtype=object)
    found[:] = digits
    return found


def _sums(values: NumberArray) -> ExactSums:
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(np.abs(mantissas), 53).astype(np.int64)
    sign = np.where(mantissas < 0, -1.0, 1.0)
    high, low = whole >> _LOW, whole & ((1 << _LOW) - 1)
    lowest = int(exponents.min(initial=0))
    bins = exponents - lowest
    total = _by_exponent(bins, high * sign, lowest, _LOW - 53) + _by_exponent(bins, low * sign, lowest, -53)
    squares = Fraction(0)
    for product, shift in ((high * high, 2 * _LOW), (2 * high * low, _LOW), (low * low, 0)):
        for part, more in ((product >> _LOW, _LOW), (product & ((1 << _LOW) - 1), 0)):
            squares += _by_exponent(bins, part.astype(np.float64), lowest, shift + more - 106, twice=True)
    return ExactSums(len(values), total, squares)


def _by_exponent(
    bins: NumberArray, parts: NumberArray, lowest: int, shift: int, *, twice: bool = False
) -> Fraction:
    # the sum of parts times two to the (once or twice their) exponent and a shift
    found = Fraction(0)
    for index, part in enumerate(np.bincount(bins, weights=parts)):
        if part:
            found += int(part) * Fraction(2) ** ((1 + twice) * (index + lowest) + shift)
    return found


def rounded(value: Fraction) -> float:
    """The nearest double; beyond the largest one it is infinite."""
    try:
        return value.numerator / value.denominator + 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def rounded_root(value: Fraction) -> float:
    """The nearest double to a square root."""
    # an integer root of 130 bits, and one bit that says whether there is a rest
    if value <= 0:
        return 0.0
    shift = max(0, 130 - value.numerator.bit_length() + value.denominator.bit_length())
    shift += shift % 2
    scaled = (value.numerator << shift) // value.denominator
    exact = scaled * value.denominator == value.numerator << shift
    root = math.isqrt(scaled)
    sticky = 0 if exact and root * root == scaled else 1
    return rounded(Fraction((root << 1) | sticky, 1 << (shift // 2 + 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Numbers in order, and how many of each there are."""

    values: Sequence[int | float]
    """Ascending, in units."""
    counts: NumberArray
    unit: Fraction = Fraction(1)

    @classmethod
    def of(cls, numbers: NumberArray, counts: NumberArray, unit: Fraction = Fraction(1)) -> Distribution:
        """Of numbers in any order."""
        order = np.argsort(numbers, kind="stable")
        return cls(numbers[order].tolist(), counts[order].astype(np.int64), unit)

    def quantiles(self, percents: Sequence[int]) -> list[float]:
        """The percentiles: between two neighbours in proportion, exactly, rounded once."""
        ends = np.cumsum(self.counts)
        rows = int(ends[-1])
        found = []
        for percent in percents:
            below, rest = divmod(percent * (rows - 1), 100)
            places = np.searchsorted(ends, [below, min(below + 1, rows - 1)], side="right").tolist()
            low, high = (Fraction(self.values[place]) for place in places)
            found.append(rounded((low + Fraction(rest, 100) * (high - low)) * self.unit))
        return found

    def histogram(self, low: Fraction, high: Fraction) -> tuple[list[float], list[int]]:
        """(edges, counts) of 50 bins between two bounds; one bin where they are equal."""
        # by the published (rounded) edges, so that readers count alike
        if low == high:
            return [rounded(low), rounded(high)], [int(self.counts.sum())]
        edges = [rounded(low + (high - low) * i / BINS) for i in range(BINS + 1)]
        ends = [0, *np.cumsum(self.counts).tolist()]
        below = [ends[bisect.bisect_left(self.values, self._least(edge))] for edge in edges[1:-1]]
        return edges, [after - before for before, after in pairwise([0, *below, ends[-1]])]

    def _least(self, edge: float) -> int | float:
        # the least value that is not below an edge
        if isinstance(self.values[0], float):
            return edge
        return math.ceil(Fraction(edge) / self.unit) if math.isfinite(edge) else edge


# Totals of one column: exact, in bounded memory, the same for any partition and order.

LONGEST_SHOWN = 200
"""Characters of a text that a profile shows."""
LONGEST_SAMPLED = 1_000
"""Characters of a text that are kept in the sample of rows."""
_NAMES_SEED = 42


def column_seed(name: str) -> int:
    """The seed of a column's values."""
    return int(xxhash.xxh64_intdigest(name.encode(errors="surrogatepass"), seed=_NAMES_SEED))


def cut_texts(texts: pa.Array, most: int) -> pa.Array:
    """Texts as a profile shows or keeps them: of long ones the beginning, and a mark of the whole text."""
    long = pc.greater(pc.utf8_length(texts), most).fill_null(False)
    if not pc.any(long).as_py():
        return texts
    found = [text[:most] + mark_of(text) for text in texts.filter(long).to_pylist()]
    return pc.replace_with_mask(texts, long, pa.array(found, texts.type))


def mark_of(text: str) -> str:
    """What distinguishes a long text from others that begin alike."""
    return "…#" + xxhash.xxh64_hexdigest(text.encode(errors="surrogatepass"))


class ColumnKind(Enum):
    """Shape of a column's statistics (ADR-0001)."""

    NUMERIC = "numeric"
    STRING = "string"
    DATETIME = "datetime"
    BOOLEAN = "boolean"
    OTHER = "other"

    @classmethod
    def of(cls, kind: pa.DataType) -> ColumnKind:
        """The shape for values of an Arrow type."""
        if t.is_dictionary(kind):
            kind = kind.value_type
        if t.is_boolean(kind):
            return cls.BOOLEAN
        if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
            return cls.NUMERIC
        if t.is_string(kind) or t.is_large_string(kind):
            return cls.STRING
        return cls.DATETIME if t.is_timestamp(kind) or t.is_date(kind) else cls.OTHER


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type as which values are counted (`odfchain.profiles.sketches`)."""
    match ColumnKind.of(kind):
        case ColumnKind.STRING:
            return pa.string()
        case ColumnKind.DATETIME:
            return pa.int64()
        case ColumnKind.NUMERIC if t.is_floating(kind):
            return pa.float64()
        case ColumnKind.NUMERIC if t.is_decimal(kind):
            return kind
        case ColumnKind.NUMERIC if t.is_signed_integer(kind):
            return pa.int64()
    return pa.uint64()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sum, least and largest of some lengths; the sum counts each value as often as it occurs."""

    total: int = 0
    least: int | None = None
    largest: int | None = None

    def __add__(self, other: Lengths) -> Lengths:
        least = [n for n in (self.least, other.least) if n is not None]
        largest = [n for n in (self.largest, other.largest) if n is not None]
        return Lengths(self.total + other.total, min(least, default=None), max(largest, default=None))


class ColumnTotals:
    """The totals of one column; `update` and `merge` in any order end in the same."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name, self.type = name, kind
        self.kind = ColumnKind.of(kind)
        self.seed = column_seed(name)
        self.rows = self.nulls = self.non_finite = 0
        self.sums = ExactSums()
        self.low: Any = None
        """The least finite value; times as numbers of their unit, dates as days."""
        self.high: Any = None
        self.characters, self.tokens = Lengths(), Lengths()
        self._counts: sketches.ValueCounts | None = sketches.ValueCounts(key_type(kind))
        self.hll = sketches.Hll()
        """Of texts all values; of others those that are not counted any more."""

    @property
    def values(self) -> int:
        """Rows that are not null."""
        return self.rows - self.nulls

    @property
    def counts(self) -> sketches.ValueCounts | None:
        """Count by value; None where they are too many."""
        if self._counts is not None and self._counts.too_many:
            self._estimate(self._counts)
        return self._counts

    @property
    def distinct(self) -> int:
        """Number of distinct values without null; estimated where they are not counted."""
        counts = self.counts
        return round(self.hll.estimate) if counts is None else len(counts.keys)

    def update(self, column: sketches.EncodedColumn) -> None:
        """Add values."""
        self.rows += column.rows
        self.nulls += column.rows - column.values
        if not column.values:
            return
        match self.kind:
            case ColumnKind.NUMERIC:
                self._add_numbers(column)
            case ColumnKind.STRING:
                counts = column.counts
                self.characters += _length_totals(pc.utf8_length(column.distinct), counts)
                self.tokens += _length_totals(_tokens(column.distinct), counts)
                self.hll.update(column.words)
            case ColumnKind.DATETIME:
                assert column.numbers is not None  # noqa: S101 - of this kind
                self._bound(int(column.numbers.min()), int(column.numbers.max()))
        self._count(column)

    def _add_numbers(self, column: sketches.EncodedColumn) -> None:
        if column.numbers is None:
            assert column.distinct is not None  # noqa: S101 - decimals
            self.sums += sums_of_decimals(column.distinct, column.counts)
            bounds = pc.min_max(column.distinct)
            self._bound(Fraction(bounds["min"].as_py()), Fraction(bounds["max"].as_py()))
            return
        numbers = column.numbers
        if column.least is not None:
            self.sums += sums_of_near(column.least, column.counts)
        elif t.is_floating(self.type):
            finite = np.isfinite(numbers)
            if not finite.all():
                numbers = numbers[finite]
                self.non_finite += len(finite) - len(numbers)
            self.sums += sums_of_doubles(numbers)
        else:
            self.sums += sums_of_integers(numbers)
        if len(numbers):
            self._bound(numbers.min().item(), numbers.max().item())

    def _bound(self, low: Any, high: Any) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def _count(self, column: sketches.EncodedColumn) -> None:
        if self._counts is not None:
            self._counts.add(*_keys(column, self.kind))
            if self._counts.may_be_too_many and self._counts.too_many:
                self._estimate(self._counts)
        elif self.kind is not ColumnKind.STRING:
            self.hll.update(column.words)

    def _estimate(self, counts: sketches.ValueCounts) -> None:
        # too many distinct values to count: a sketch goes on from those that were counted
        self._see(counts)
        self._counts = None

    def _see(self, counts: sketches.ValueCounts) -> None:
        if self.kind is not ColumnKind.STRING:
            self.hll.update(self._hashes_of(counts.keys))

    def _hashes_of(self, keys: pa.Array) -> sketches.Hashes:
        if self.kind is ColumnKind.OTHER:
            found: sketches.Hashes = keys.to_numpy()
            return found
        if t.is_timestamp(self.type):
            return sketches.distinct_hashes(keys.cast(self.type), self.seed)
        if t.is_date(self.type):
            return sketches.hashes_of_words(keys.to_numpy().view(np.uint64), self.seed)
        return sketches.distinct_hashes(keys, self.seed)

    def merge(self, other: ColumnTotals) -> None:
        """Add what another part of the column has."""
        self.rows += other.rows
        self.nulls += other.nulls
        self.non_finite += other.non_finite
        self.sums += other.sums
        if other.low is not None:
            self._bound(other.low, other.high)
        self.characters += other.characters
        self.tokens += other.tokens
        self.hll.merge(other.hll)
        ours, theirs = self._counts, other._counts
        if ours is not None and theirs is not None:
            ours.add(theirs.keys, theirs.numbers)
            if ours.may_be_too_many and ours.too_many:
                self._estimate(ours)
        elif ours is not None:
            self._estimate(ours)
        elif theirs is not None:
            self._see(theirs)

    def scalars(self) -> dict[str, Any]:
        """What is not counts or sketches, as JSON has it."""
        return {
            "rows": self.rows, "nulls": self.nulls, "nonFinite": self.non_finite,
            "sums": [self.sums.count, str(self.sums.total), str(self.sums.squares)],
            "low": _written(self.low), "high": _written(self.high),
            "characters": astuple(self.characters), "tokens": astuple(self.tokens),
        }  # fmt: skip

    def restore(self, given: Mapping[str, Any], counts: tuple[pa.Array, Numbers] | None) -> None:
        """Take over scalars and counts of totals that were written; without counts there are estimates."""
        self.rows, self.nulls, self.non_finite = given["rows"], given["nulls"], given["nonFinite"]
        number, total, squares = given["sums"]
        self.sums = ExactSums(number, Fraction(total), Fraction(squares))
        bounds = (given["low"], given["high"])
        self.low, self.high = (None if each is None else _BOUNDS[each[0]](each[1]) for each in bounds)
        self.characters, self.tokens = Lengths(*given["characters"]), Lengths(*given["tokens"])
        self._counts = None if counts is None else sketches.ValueCounts(key_type(self.type))
        if self._counts is not None and counts is not None:
            self._counts.add(*counts)


_BOUNDS: dict[str, Callable[[str], Any]] = {"fraction": Fraction, "float": float.fromhex, "int": int}


def _written(bound: Any) -> list[str] | None:
    if bound is None:
        return None
    if isinstance(bound, float):
        return ["float", bound.hex()]
    return ["fraction" if isinstance(bound, Fraction) else "int", str(bound)]


def _keys(column: sketches.EncodedColumn, kind: ColumnKind) -> tuple[pa.Array, Numbers]:
    """(keys that occur, how often), as they are counted."""
    if column.least is not None:
        counts = column.counts
        there = np.flatnonzero(counts)
        assert column.numbers is not None  # noqa: S101 - there are some
        width = column.numbers.dtype
        return pa.array(there.astype(width) + width.type(column.least)), counts[there]
    if kind is ColumnKind.OTHER or (column.numbers is None and column.distinct is None):
        words = column.words
        if column.codes is not None:
            return pa.array(words), column.counts
        found, numbers = np.unique(words, return_counts=True)
        return pa.array(found), numbers
    if column.numbers is not None:
        found = pa.array(column.numbers).dictionary_encode()
        return found.dictionary, np.bincount(found.indices.to_numpy(zero_copy_only=False))
    assert column.distinct is not None  # noqa: S101 - texts and decimals
    if kind is ColumnKind.STRING:
        return cut_texts(column.distinct.cast(pa.string()), LONGEST_SHOWN), column.counts
    return column.distinct, column.counts


def _tokens(texts: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(texts)
    parts = pc.list_value_length(pc.utf8_split_whitespace(trimmed))
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), 0, parts)


def _length_totals(lengths: pa.Array, counts: Numbers) -> Lengths:
    numbers = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return Lengths(int(numbers @ counts), int(numbers.min()), int(numbers.max()))


_NONE = np.zeros(0, dtype=np.uint64)
_SAMPLED = (ColumnKind.NUMERIC, ColumnKind.STRING)
SAMPLE_ROWS = 16_384


def sampled(offsets: sketches.Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of the rows that are in the sample, those with the smallest hash of their offset first.

    It needs no seed, does not depend on cuts, and survives a compaction, which keeps offsets.
    """
    keys = sketches.splitmix64(offsets.astype(np.uint64))
    if len(keys) > SAMPLE_ROWS:
        nearest = np.argpartition(keys, SAMPLE_ROWS)[:SAMPLE_ROWS]
        return nearest[np.argsort(keys[nearest], kind="stable")]
    return np.argsort(keys, kind="stable")


class Totals:
    """The totals of some rows, by the data columns of a schema; `update` and `merge` in any order."""

    def __init__(self, schema: pa.Schema, *, near_duplicates: bool = False) -> None:
        self.schema = schema
        self.rows = 0
        self.columns = [ColumnTotals(field.name, field.type) for field in schema]
        self.kmv = sketches.Kmv(_NONE, np.zeros(0, dtype=np.int64))
        self.hll = sketches.Hll()
        self.bands = sketches.BandKeys() if near_duplicates else None
        """By what rows nearly repeat others; None where that is not asked."""
        self._chosen = [n for n, column in enumerate(self.columns) if column.kind in _SAMPLED]
        self.sample = pa.schema([schema.field(n) for n in self._chosen]).empty_table()
        """Numbers and texts of the rows of the sample, those with the smallest hash of their offset first."""
        self.sample_offsets: sketches.Hashes = _NONE

    def sampled_values(self, column: ColumnTotals) -> pa.ChunkedArray:
        """The values of a column in the sample, nearest first; none of columns that need none."""
        if column.kind in _SAMPLED:
            return self.sample.column(self._chosen.index(self.columns.index(column)))
        return pa.chunked_array([], column.type)

    @property
    def near_duplicates(self) -> float | None:
        """The share of rows that nearly repeat another one; None where that was not asked."""
        return None if self.bands is None else self.bands.share

    def update(self, rows: pa.RecordBatch, offsets: sketches.Hashes) -> None:
        """Add rows with the columns of the schema, and their offsets."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        pairs = zip(rows.columns, self.columns, strict=True)
        columns = [sketches.EncodedColumn.of(values, own.seed) for values, own in pairs]
        hashes = np.zeros(rows.num_rows, dtype=np.uint64)
        for totals, column in zip(self.columns, columns, strict=True):
            totals.update(column)
            hashes ^= column.hashes
        self.kmv = self.kmv.with_rows(hashes)
        self.hll.update(hashes)
        if self.bands is not None:
            self.bands.update(columns, [own.seed for own in self.columns])
        self._look_at(rows.select(self._chosen), offsets.astype(np.uint64, copy=False))

    def _look_at(self, rows: pa.RecordBatch, offsets: sketches.Hashes) -> None:
        # only rows whose offsets hash low enough enter the sample
        if len(self.sample_offsets) == SAMPLE_ROWS:
            near = np.flatnonzero(
                sketches.splitmix64(offsets) < sketches.splitmix64(self.sample_offsets[-1:])
            )
        else:
            near = sampled(offsets)
        if len(near):
            kept = rows.take(pa.array(near))
            texts = [self.columns[n].kind is ColumnKind.STRING for n in self._chosen]
            values = [
                cut_texts(c, LONGEST_SAMPLED) if is_text else c
                for c, is_text in zip(kept.columns, texts, strict=True)
            ]
            self._sample(pa.Table.from_arrays(values, schema=self.sample.schema), offsets[near])

    def _sample(self, rows: pa.Table, offsets: sketches.Hashes) -> None:
        both = pa.concat_tables([self.sample, rows])
        together = np.concatenate((self.sample_offsets, offsets))
        at = sampled(together)
        # a copy: what is left out must not stay in memory
        self.sample = both.take(pa.array(at)).combine_chunks()
        self.sample_offsets = together[at]

    def merge(self, other: Totals) -> None:
        """Add what another part of the rows has."""
        self.rows += other.rows
        for totals, more in zip(self.columns, other.columns, strict=True):
            totals.merge(more)
        self.kmv += other.kmv
        self.hll.merge(other.hll)
        if self.bands is not None:
            assert other.bands is not None  # noqa: S101 - parts are asked alike
            self.bands.merge(other.bands)
        if other.sample.num_rows:
            self._sample(other.sample, other.sample_offsets)
