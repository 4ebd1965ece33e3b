"""Sums, means, deviations and quantiles that are computed exactly and rounded once.

A sum of floats in another order is another number, so sums are integers here: every double is a multiple of
2**-1074. What is published is rounded once, to the nearest double. Source: RFC-040.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]

_AT_ONCE = 65_536
"""So many products of halves add up exactly in a double."""
_LOW = 27
_UNIT = 1074
"""Sums are in multiples of 2**-1074, squares of its square."""
BINS = 50


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


def sums_of_fractions(values: Sequence[Fraction], counts: Sequence[int]) -> ExactSums:
    """The exact sums of numbers that occur so many times each."""
    pairs = list(zip(values, counts, strict=True))
    return ExactSums(
        sum(counts),
        sum((v * n for v, n in pairs), Fraction(0)),
        sum((v * v * n for v, n in pairs), Fraction(0)),
    )


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


@dataclass(frozen=True, slots=True)
class Distribution:
    """Numbers in order, and how many of each there are."""

    values: Sequence[Fraction]
    counts: Sequence[int]

    def quantiles(self, percents: Sequence[int]) -> list[float]:
        """The percentiles: between two neighbours in proportion, exactly, rounded once."""
        ends = np.cumsum(np.array(self.counts, dtype=np.int64))
        rows = int(ends[-1])
        found = []
        for percent in percents:
            rank = Fraction(percent * (rows - 1), 100)
            below = math.floor(rank)
            low = self.values[int(np.searchsorted(ends, below, side="right"))]
            high = self.values[int(np.searchsorted(ends, min(below + 1, rows - 1), side="right"))]
            found.append(rounded(low + (rank - below) * (high - low)))
        return found

    def histogram(self, low: Fraction, high: Fraction) -> tuple[list[float], list[int]]:
        """(edges, counts) of 50 bins between two bounds; one bin where they are equal.

        A value is in the last bin whose edge, as it is published, is not above it.
        """
        if low == high:
            return [rounded(low), rounded(high)], [sum(self.counts)]
        edges = [rounded(low + (high - low) * i / BINS) for i in range(BINS + 1)]
        starts = [Fraction(edge) for edge in edges[:-1]]
        bins = [0] * BINS
        for value, count in zip(self.values, self.counts, strict=True):
            bins[max(bisect.bisect_right(starts, value) - 1, 0)] += count
        return edges, bins
