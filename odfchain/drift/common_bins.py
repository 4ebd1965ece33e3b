"""Two distributions over the same bins, for a picture: each profile has bins of its own.

Counts are spread evenly within a bin, and quantiles within a step. Where a few far values would leave all the
others in one bin, the picture shows what lies between the 1st and the 99th percentile. Source: RFC-041.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from odfchain.drift.compared_profile import ComparedColumn
from odfchain.drift.metrics import share

BINS = 40
_FAR = 5
"""So many times the range of the middle 98 % is too wide to be shown."""


@dataclass(frozen=True, slots=True)
class CommonBins:
    """The shares of the values of two columns in bins of one width."""

    low: float
    high: float
    before: tuple[float, ...]
    after: tuple[float, ...]
    middle: bool
    """Only what lies between the 1st and the 99th percentile of both is shown."""


def common_bins(one: ComparedColumn, other: ComparedColumn) -> CommonBins | None:
    """Both columns over the same bins; None where one has no numbers, or the range is beyond doubles."""
    if not one.quantiles or not other.quantiles:
        return None
    low, high = min(one.quantiles[0], other.quantiles[0]), max(one.quantiles[-1], other.quantiles[-1])
    inner = min(one.quantiles[1], other.quantiles[1]), max(one.quantiles[-2], other.quantiles[-2])
    if not math.isfinite(high - low):
        return None
    middle = 0 < inner[1] - inner[0] < (high - low) / _FAR
    if middle:
        low, high = inner
    count = BINS if high > low else 1
    edges = [low + (high - low) * number / count for number in range(count)] + [high]
    if not middle and one.edges == other.edges and len(one.edges) > 1 and one.edges[-1] > one.edges[0]:
        edges = list(one.edges)
    before, after = (_shares(_curve(side, quantiles=middle), edges, middle=middle) for side in (one, other))
    return CommonBins(low, high, before, after, middle)


def _shares(curve: Callable[[float], float], edges: list[float], *, middle: bool) -> tuple[float, ...]:
    """The share of values in each bin; all are in one of them, unless the middle alone is shown."""
    heights = [curve(edge) for edge in edges]
    if not middle:
        heights[0], heights[-1] = 0.0, 1.0
    return tuple(max(0.0, high - low) for low, high in pairwise(heights))


def _curve(column: ComparedColumn, *, quantiles: bool) -> Callable[[float], float]:
    """The share of values that are not above a number."""
    total = sum(column.counts)
    if quantiles or not total:
        return lambda x: share(column.quantiles, x, below=False)
    edges, heights = column.edges, [0.0, *(count / total for count in accumulate(column.counts))]

    def found(x: float) -> float:
        place = bisect.bisect_right(edges, x)
        if place == 0:
            return 0.0
        if place == len(edges):
            return 1.0
        left, right = edges[place - 1], edges[place]
        part = (x - left) / (right - left)
        return heights[place - 1] + part * (heights[place] - heights[place - 1])

    return found
