"""Sums, means, deviations and quantiles that are computed exactly and rounded once.

A sum of floats in another order is another number, so sums are integers here: every double is a multiple of
2**-1074. What is published is rounded once, to the nearest double. Source: RFC-040.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, Any]

_AT_ONCE = 65_536
"""So many products of halves add up exactly in a double."""
_LOW = 27
_UNIT = 1074
"""Sums are in multiples of 2**-1074, squares of its square."""
BINS = 50
_ALL_DIGITS = Context(prec=100)


@dataclass(frozen=True, slots=True)
class ExactSums:
    """How many numbers, their sum and the sum of their squares, without an error."""

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


def sums_of_doubles(values: Numbers) -> ExactSums:
    """The exact sums of finite doubles."""
    found = ExactSums()
    for start in range(0, len(values), _AT_ONCE):
        found += _sums(values[start : start + _AT_ONCE])
    return found


def sums_of_integers(values: Numbers) -> ExactSums:
    """The exact sums of integers of 64 bits."""
    small = np.abs(values.astype(np.float64)) < 2.0**53
    found = sums_of_doubles(values[small].astype(np.float64))
    large = [int(value) for value in values[~small]]
    return found + ExactSums(len(large), Fraction(sum(large)), Fraction(sum(v * v for v in large)))


def sums_of_near(least: int, counts: Numbers) -> ExactSums:
    """The exact sums of integers from the least on, by how often each occurs."""
    # places are small: their squares times the number of rows are less than 2**63
    places = np.arange(len(counts), dtype=np.int64)
    rows, total, squares = (int(found) for found in (counts.sum(), places @ counts, places * places @ counts))
    return ExactSums(
        rows,
        Fraction(rows * least + total),
        Fraction(rows * least * least + 2 * least * total + squares),
    )


def sums_of_decimals(values: pa.Array, counts: Numbers) -> ExactSums:
    """The exact sums of decimals that occur so many times each."""
    numbers, unit = unscaled(values), Fraction(1, 10) ** int(values.type.scale)
    pairs = list(zip(numbers.tolist(), counts.tolist(), strict=True))
    total, squares = sum(v * n for v, n in pairs), sum(v * v * n for v, n in pairs)
    return ExactSums(int(counts.sum()), total * unit, squares * unit * unit)


def unscaled(values: pa.Array) -> Numbers:
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


def _sums(values: Numbers) -> ExactSums:
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


def _by_exponent(bins: Numbers, parts: Numbers, lowest: int, shift: int, *, twice: bool = False) -> Fraction:
    """The sum of parts times two to the (once or twice their) exponent and a shift."""
    found = Fraction(0)
    for index, part in enumerate(np.bincount(bins, weights=parts)):
        if part:
            power = (2 if twice else 1) * (index + lowest) + shift
            found += int(part) * Fraction(2) ** power
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
    bits = value.numerator.bit_length() - value.denominator.bit_length()
    shift = max(0, 130 - bits)
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
    counts: Numbers
    unit: Fraction = Fraction(1)

    @classmethod
    def of(cls, numbers: Numbers, counts: Numbers, unit: Fraction = Fraction(1)) -> Distribution:
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
        """(edges, counts) of 50 bins between two bounds; one bin where they are equal.

        A value is in the last bin whose edge, as it is published, is not above it.
        """
        if low == high:
            return [rounded(low), rounded(high)], [int(self.counts.sum())]
        edges = [rounded(low + (high - low) * i / BINS) for i in range(BINS + 1)]
        ends = [0, *np.cumsum(self.counts).tolist()]
        below = [ends[bisect.bisect_left(self.values, self._least(edge))] for edge in edges[1:-1]]
        return edges, [after - before for before, after in pairwise([0, *below, ends[-1]])]

    def _least(self, edge: float) -> int | float:
        """The least value that is not below an edge."""
        if isinstance(self.values[0], float):
            return edge
        return math.ceil(Fraction(edge) / self.unit) if math.isfinite(edge) else edge
