"""Distances between the distributions of a column in two profiles: effect sizes, no p-values.

    ks     largest distance of the two cumulative curves through 101 quantiles, both limits at jumps
    w1     Wasserstein-1, in standard deviations of the first
    js     Jensen-Shannon distance, base 2
    linf   largest difference of the share of one value
    psi    population stability index, on deciles of the first, or on values

They follow from two profiles alone. Source: RFC-041.
"""

from __future__ import annotations

import base64
import bisect
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from odfchain.text import TEXT_CHARACTERS, cut

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


# Overlap of rows, estimated by the smallest hashes that each profile publishes. Plain Python: comparing
# profiles must not load numpy (RFC-040).

KMV_SIZE = 4_096
"""The smallest distinct row hashes that a profile has."""


def published_hashes(data: bytes) -> tuple[int, ...]:
    """The row hashes of a profile, from little-endian numbers of 8 bytes.

    Raises:
        ValueError: they are no ascending hashes, or too many.
    """
    if len(data) % 8 or len(data) > 8 * KMV_SIZE:
        raise ValueError("not the smallest hashes of rows")
    found = struct.unpack(f"<{len(data) // 8}Q", data)
    if any(after <= before for before, after in pairwise(found)):
        raise ValueError("hashes of rows are not in order")
    return found


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """The share of the 4,096 smallest hashes of both that both have; two empty sets are equal."""
    here, there = set(one), set(other)
    union = sorted(here | there)[:KMV_SIZE]
    return sum(value in here and value in there for value in union) / len(union) if union else 1.0


# The fields of a profile that are compared. Numbers beyond the exact range of doubles are strings in profiles
# and doubles here (RFC-040, RFC-041).

_LENGTHS = tuple(f"{what}_{of}" for of in ("char_length", "token_count") for what in ("avg", "min", "max"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """The statistics of a column; what its kind has none of is empty, or None."""

    name: str
    dtype: str
    nullable: bool
    kind: str
    """`numeric`, `string`, `datetime`, `boolean` or `other`."""
    hidden: bool = False
    null_count: int = 0
    null_fraction: float = 0.0
    num_unique: int = 0
    estimated: frozenset[str] = frozenset()
    quantiles: tuple[float, ...] = ()
    """Of 0, 1, … 100 %, or none."""
    mean: float | None = None
    std: float | None = None
    low: float | str | None = None
    high: float | str | None = None
    """Text is a time."""
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """The bins of a histogram, and how many values each has."""
    top_values: Mapping[str, int] = field(default_factory=dict)
    coverage: float | None = None
    """The share of all values that the common ones are; None where there are no such."""
    lengths: Mapping[str, float] = field(default_factory=dict)
    languages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedProfile:
    """A profile: what it is of, and its columns in their order."""

    dataset_id: str
    name: str
    snapshot_id: str
    sequence_number: int
    created_at: str
    rows: int
    duplicate_row_fraction: float
    row_hashes: tuple[int, ...]
    columns: Mapping[str, ComparedColumn]


def compared_profile(document: Mapping[str, Any]) -> ComparedProfile:
    """The compared fields of a profile that was computed here or checked by `read_profile`."""
    odf, statistics = document["odf"], document["column_stats"]
    hidden = {*odf["hidden"]}
    return ComparedProfile(
        dataset_id=cut(odf["dataset_id"], TEXT_CHARACTERS),
        name=cut(document["dataset_name"], TEXT_CHARACTERS),
        snapshot_id=cut(document["snapshot_id"], TEXT_CHARACTERS),
        sequence_number=odf["sequence_number"],
        created_at=cut(document["created_at"], TEXT_CHARACTERS),
        rows=document["num_rows"],
        duplicate_row_fraction=document["duplicate_row_fraction"],
        row_hashes=published_hashes(base64.b64decode(document["row_minhash"])),
        columns={
            column["name"]: _column(column, statistics[column["name"]], hidden=column["name"] in hidden)
            for column in document["columns"]
        },
    )


def _column(declared: Mapping[str, Any], found: Mapping[str, Any], *, hidden: bool) -> ComparedColumn:
    histogram = found.get("histogram") or {"bin_edges": (), "counts": ()}
    numeric = found["kind"] == "numeric"
    low, high = found.get("min"), found.get("max")
    return ComparedColumn(
        name=declared["name"],
        dtype=declared["dtype"],
        nullable=declared["nullable"],
        kind=found["kind"],
        hidden=hidden,
        null_count=found["null_count"],
        null_fraction=found["null_fraction"],
        num_unique=found["num_unique"],
        estimated=frozenset(found.get("estimated", ())),
        quantiles=tuple(map(float, found.get("quantiles", ()))),
        mean=_number(found.get("mean")),
        std=_number(found.get("std")),
        low=_number(low) if numeric else low,
        high=_number(high) if numeric else high,
        edges=tuple(map(float, histogram["bin_edges"])),
        counts=tuple(histogram["counts"]),
        top_values=found.get("top_values", {}),
        coverage=found.get("top_values_coverage"),
        lengths={name: found[name] for name in _LENGTHS if found.get(name) is not None},
        languages=found.get("detected_languages", {}),
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


# Two histograms rebinned to common edges, for a picture. Counts are spread evenly within a bin, quantiles
# within a step; with far outliers only the 1st to the 99th percentile is drawn (RFC-041).

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
    # every value falls into a bin, unless only the middle is shown
    heights = [curve(edge) for edge in edges]
    if not middle:
        heights[0], heights[-1] = 0.0, 1.0
    return tuple(max(0.0, high - low) for low, high in pairwise(heights))


def _curve(column: ComparedColumn, *, quantiles: bool) -> Callable[[float], float]:
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
