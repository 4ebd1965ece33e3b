"""From totals to what a profile says of each column (ADR-0001, "Per-Column Statistics").

What is counted is exact; what is not comes from the sample of rows, scaled to all of them so that counts add
up, and is named in `estimated`. Numbers are doubles that were rounded once; integers stay integers. Source:
RFC-040.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from odfchain.odf.times import Timestamp
from odfchain.profiles.totals import ColumnKind, ColumnTotals, Distribution, rounded, unscaled
from odfchain.profiles.value_counts import shown_of_sampled
from odfchain.slices.reader import PER_SECOND

PERCENTILES = (5, 25, 50, 75, 95, 99)
TOP_VALUES = 50
LEAST_HITS = 16
"""So often a value must be in the sample to be a top value."""


def column_statistics(totals: ColumnTotals, sample: pa.ChunkedArray) -> dict[str, Any]:
    """The statistics of one column; `sample` has its values in the sample of rows."""
    found: dict[str, Any] = {
        "kind": totals.kind.value,
        "null_count": totals.nulls,
        "null_fraction": totals.nulls / totals.rows if totals.rows else 0.0,
        "num_unique": totals.distinct,
    }
    counted = totals.counts is not None
    estimated = [] if counted else ["num_unique"]
    match totals.kind:
        case ColumnKind.NUMERIC:
            found |= _numeric(totals, sample)
            estimated += [] if counted else ["percentiles", "quantiles", "histogram"]
        case ColumnKind.STRING:
            found |= _top_values(totals, sample) | _texts(totals)
            estimated += [] if counted else ["top_values", "top_values_coverage"]
        case ColumnKind.BOOLEAN:
            found |= _top_values(totals, sample)
        case ColumnKind.DATETIME:
            found |= _times(totals)
    return found | ({"estimated": sorted(estimated)} if estimated else {})


def _numeric(totals: ColumnTotals, sample: pa.ChunkedArray) -> dict[str, Any]:
    found: dict[str, Any] = {
        "mean": totals.sums.mean,
        "std": totals.sums.deviation,
        "min": _published(totals.low),
        "max": _published(totals.high),
        "percentiles": {},
        "quantiles": [],
        "histogram": {"bin_edges": [], "counts": []},
    }
    if t.is_floating(totals.type):
        found["non_finite_count"] = totals.non_finite
    order = _distribution(totals, sample)
    if order is None:
        return found
    found["quantiles"] = order.quantiles(range(101))
    found["percentiles"] = {f"p{p}": found["quantiles"][p] for p in PERCENTILES}
    edges, bins = order.histogram(Fraction(totals.low), Fraction(totals.high))
    found["histogram"] = {"bin_edges": edges, "counts": scaled(bins, totals.sums.count)}
    return found


def _distribution(totals: ColumnTotals, sample: pa.ChunkedArray) -> Distribution | None:
    # None without finite numbers
    if totals.counts is not None:
        keys, counts = totals.counts.keys, totals.counts.numbers
    else:
        keys = sample.drop_null().combine_chunks()
        counts = np.ones(len(keys), dtype=np.int64)
    unit = Fraction(1)
    if t.is_decimal(keys.type):
        numbers, unit = unscaled(keys), Fraction(1, 10) ** int(keys.type.scale)
    else:
        numbers = keys.to_numpy(zero_copy_only=False)
    if t.is_floating(keys.type):
        numbers = numbers.astype(np.float64)
        finite = np.isfinite(numbers)
        numbers, counts = numbers[finite], counts[finite]
    return Distribution.of(numbers, counts, unit) if len(numbers) else None


def _published(value: Any) -> int | float | None:
    return rounded(value) if isinstance(value, Fraction) else value


def _top_values(totals: ColumnTotals, sample: pa.ChunkedArray) -> dict[str, Any]:
    values = totals.values
    if totals.counts is not None:
        keys, numbers = totals.counts.keys, totals.counts.numbers
        if len(numbers) > TOP_VALUES:  # those that are rarer than the last one that is listed need no order
            common = numbers >= np.partition(numbers, -TOP_VALUES)[-TOP_VALUES]
            keys, numbers = keys.filter(pa.array(common)), numbers[common]
        listed = _ordered(dict(zip(_shown(keys, totals), numbers.tolist(), strict=True)))
    else:
        texts = shown_of_sampled(sample.drop_null().combine_chunks())
        in_sample = _ordered(Counter(texts.to_pylist()))
        hits = [n for _, n in in_sample]
        listed = [
            (text, number)
            for (text, hit), number in zip(in_sample, scaled(hits, values), strict=True)
            if hit >= LEAST_HITS
        ]
    top = listed[:TOP_VALUES]
    return {
        "top_values": dict(top),
        "top_values_coverage": sum(count for _, count in top) / values if values else 0.0,
    }


def _shown(keys: pa.Array, totals: ColumnTotals) -> list[str]:
    found: list[Any] = keys.to_pylist()
    return ["true" if key else "false" for key in found] if totals.kind is ColumnKind.BOOLEAN else found


def _ordered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0].encode(errors="surrogatepass")))


def scaled(counts: Sequence[int], total: int) -> list[int]:
    """Counts of a sample as counts of so many: by cumulative floors, so that they add up."""
    rows, seen, before = sum(counts), 0, 0
    found = []
    for count in counts:
        seen += count
        upto = seen * total // rows
        found.append(upto - before)
        before = upto
    return found


def _texts(totals: ColumnTotals) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, lengths in (("char_length", totals.characters), ("token_count", totals.tokens)):
        found[f"avg_{name}"] = lengths.total / totals.values if totals.values else None
        found[f"min_{name}"], found[f"max_{name}"] = lengths.least, lengths.largest
    return found


def _times(totals: ColumnTotals) -> dict[str, Any]:
    if totals.low is None:
        return {"min": None, "max": None, "range_days": None}
    low, high = (_nanoseconds(value, totals.type) for value in (totals.low, totals.high))
    days = rounded(Fraction(high - low, 86_400 * 10**9))
    return {"min": str(Timestamp(low)), "max": str(Timestamp(high)), "range_days": days}


def _nanoseconds(value: int, kind: pa.DataType) -> int:
    return value * (86_400 * 10**9 if t.is_date(kind) else 10**9 // PER_SECOND[kind.unit])
