"""Distances between the distributions of a column in two profiles: effect sizes, no p-values.

    ks     largest distance of the two cumulative curves through 101 quantiles, both limits at jumps
    w1     Wasserstein-1, in standard deviations of the first
    js     Jensen-Shannon distance, base 2
    linf   largest difference of the share of one value
    psi    population stability index, on deciles of the first, or on values

They follow from two profiles alone. Source: RFC-041.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

_LEAST_SHARE = 1e-4
"""Shares below are counted as this much, so that one empty bin is not infinite."""
_DECILES = range(0, 101, 10)


def ks(one: Sequence[float], other: Sequence[float]) -> float:
    """Kolmogorov-Smirnov on two lists of 101 quantiles."""
    points = sorted({*one, *other})
    return max(
        max(abs(share(one, x, below=side) - share(other, x, below=side)) for side in (True, False))
        for x in points
    )


def w1(one: Sequence[float], other: Sequence[float]) -> float:
    """Wasserstein-1: the mean distance of two quantile curves."""
    found = []
    for (a, b), (c, d) in zip(pairwise(one), pairwise(other), strict=True):
        left, right = a - c, b - d
        if left * right >= 0:
            found.append((abs(left) + abs(right)) / 2)
        else:  # the curves cross within the step
            found.append((left * left + right * right) / (2 * (abs(left) + abs(right))))
    return math.fsum(found) / (len(one) - 1)


def share(quantiles: Sequence[float], x: float, *, below: bool) -> float:
    """The share of values that are below x, or not above it: linear between two quantiles."""
    steps = len(quantiles) - 1
    first, after = bisect.bisect_left(quantiles, x), bisect.bisect_right(quantiles, x)
    if first == after:  # between two quantiles
        if first == 0:
            return 0.0
        if first > steps:
            return 1.0
        low, high = quantiles[first - 1], quantiles[first]
        return (first - 1 + (x - low) / (high - low)) / steps
    if below:
        return 0.0 if first == 0 else first / steps
    return (after - 1) / steps


def psi_of_quantiles(one: Sequence[float], other: Sequence[float]) -> float:
    """Population stability on the deciles of the first."""
    edges = [one[index] for index in _DECILES]
    inner = edges[1:-1]
    shares = []
    for quantiles in (one, other):
        ends = [0.0, *(share(quantiles, edge, below=False) for edge in inner), 1.0]
        shares.append([high - low for low, high in pairwise(ends)])
    return psi(*shares)


def psi(one: Sequence[float], other: Sequence[float]) -> float:
    """Population stability of two lists of shares."""
    found = 0.0
    for p, q in zip(one, other, strict=True):
        a, b = max(p, _LEAST_SHARE), max(q, _LEAST_SHARE)
        found += (b - a) * math.log(b / a)
    return found


def jensen_shannon(one: Sequence[float], other: Sequence[float]) -> float:
    """The Jensen-Shannon distance of two lists of shares, between 0 and 1."""
    total = 0.0
    for p, q in zip(one, other, strict=True):
        middle = (p + q) / 2
        total += sum(x * math.log2(x / middle) for x in (p, q) if x > 0) / 2
    return math.sqrt(max(total, 0.0))


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two lists of shares."""
    return max((abs(p - q) for p, q in zip(one, other, strict=True)), default=0.0)


def shares_of_values(
    one: Mapping[str, int], of_one: int, other: Mapping[str, int], of_other: int, *, whole: tuple[bool, bool]
) -> tuple[list[float], list[float]]:
    """Two lists of shares, by the values that are known on both sides; the rest is one bucket.

    `whole` says of each side whether all of its values are listed, so that what is not there is absent.
    """
    known = known_values(one, other, whole=whole)
    shares = []
    for counts, total in ((one, of_one), (other, of_other)):
        found = [counts.get(name, 0) / total if total else 0.0 for name in known]
        shares.append([*found, max(0.0, 1.0 - math.fsum(found)) if total else 0.0])
    return shares[0], shares[1]


def known_values(one: Mapping[str, int], other: Mapping[str, int], *, whole: tuple[bool, bool]) -> list[str]:
    """The values whose number is known on both sides: listed, or absent from a list that is whole."""
    names = sorted({*one, *other})
    return [name for name in names if (name in one or whole[0]) and (name in other or whole[1])]
