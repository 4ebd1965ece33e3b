"""Two profiles side by side: what changed, by how much, and which limits are exceeded.

No data are read. Numbers are rounded to six digits and then held against the limits. What cannot be computed
in doubles is a breach where it has a limit: nobody passes by numbers of 300 digits. Source: RFC-041.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from odfchain.drift import metrics
from odfchain.drift.compared_profile import ComparedColumn, ComparedProfile, compared_profile
from odfchain.drift.drift_values import Drift, DriftLine, NotCompared
from odfchain.drift.policy import DriftPolicy, Reaction
from odfchain.profile.row_likeness import jaccard
from odfchain.text import counted, cut

_NOTED = 5
"""New and removed values that a line names."""
_SHOWN = 40
"""Characters of a value that a line shows."""
_COMPARED = ("numeric", "string", "boolean")
"""Kinds of columns whose distributions are compared."""

Found = DriftLine | NotCompared


def compare_profiles(
    before: Mapping[str, Any], after: Mapping[str, Any], policy: DriftPolicy | None = None
) -> Drift:
    """What changed from one profile to another."""
    policy = policy or DriftPolicy()
    one, other = compared_profile(before), compared_profile(after)
    found: list[Found] = [*_schema(one, other, policy)]
    fewest = min(one.rows, other.rows)
    # a publication that is all but empty is the loudest of all changes
    judged = fewest >= policy.min_rows or one.rows >= policy.min_rows
    found.append(_rows(one.rows, other.rows, policy if judged else policy.without_limits()))
    if fewest < policy.min_rows:
        numbers = f"{one.rows:,} and {other.rows:,}, fewer than {policy.min_rows:,}"
        found.append(NotCompared(None, f"too few rows: {numbers}, so no distribution is judged"))
        policy = policy.without_limits()
    if fewest:
        found += _dataset(one, other, policy)
    else:
        found.append(NotCompared(None, "one side has no rows, so no column is compared"))
    for name, column in other.columns.items():
        if name in one.columns and fewest:
            found += _shared_column(one.columns[name], column, (one.rows, other.rows), policy)
    lines = sorted((each for each in found if isinstance(each, DriftLine)), key=_order)
    notes = [] if one.dataset_id == other.dataset_id else ["the profiles are of two datasets"]
    left_out = tuple(each for each in found if isinstance(each, NotCompared))
    return Drift(one, other, tuple(lines), left_out, tuple(notes))


def _order(line: DriftLine) -> tuple[int, float]:
    """Breaches, then what is within its limit, then notes; the nearest to its limit, or beyond, first."""
    rank = ("BREACH", "ok", "note").index(line.verdict)
    if line.metric == "rows" and line.value == 0 and line.breach:
        return -1, 0.0
    if line.limit is None:
        return rank, 0.0
    return rank, -_excess(line)


def _excess(line: DriftLine) -> float:
    """How many times its limit a value is; of the schema infinitely."""
    if line.value is None or not line.limit:
        return math.inf if line.breach else 0.0
    if line.metric in ("rows", "jaccard"):  # the farther from 1, the more
        return max(line.value / line.limit, line.limit / line.value) if line.breach and line.value else 0.0
    return abs(line.value) / line.limit


def _schema(one: ComparedProfile, other: ComparedProfile, policy: DriftPolicy) -> Iterator[DriftLine]:
    before, after = one.columns, other.columns
    changes = [
        *(("removed", name, f"{before[name].dtype} is gone") for name in before if name not in after),
        *(
            ("retyped", name, f"{before[name].dtype} → {after[name].dtype}")
            for name in before
            if name in after and before[name].dtype != after[name].dtype
        ),
        *(("added", name, f"{after[name].dtype} is new") for name in after if name not in before),
    ]
    for what, name, text in changes:
        reaction = policy.schema[what]
        if reaction is not Reaction.IGNORE:
            fails = reaction is Reaction.FAIL
            yield DriftLine(f"schema {what}", name, None, 0.0 if fails else None, fails, text)
    for name in before:
        if name in after and before[name].nullable != after[name].nullable:
            now = "may be null now" if after[name].nullable else "may not be null any more"
            yield DriftLine("schema nullable", name, None, None, False, now)


def _rows(before: int, after: int, policy: DriftPolicy) -> DriftLine:
    ratio = rounded(after / before) if before else None
    low, high = policy.rows
    breach = ratio is not None and ((low is not None and ratio < low) or (high is not None and ratio > high))
    limit = low if ratio is not None and ratio < 1 else high
    return DriftLine("rows", None, ratio, limit, breach, f"{before:,} → {after:,} rows")


def _dataset(one: ComparedProfile, other: ComparedProfile, policy: DriftPolicy) -> Iterator[DriftLine]:
    fractions = one.duplicate_row_fraction, other.duplicate_row_fraction
    yield _judged("duplicate_row_fraction", None, fractions[1] - fractions[0], policy, _percents(*fractions))
    alike = rounded(jaccard(one.row_hashes, other.row_hashes))
    limit = policy.limit("jaccard")  # a likeness: it must not fall below
    breach = limit is not None and alike < limit
    yield DriftLine("jaccard", None, alike, limit, breach, f"{alike:.1%} of all rows are in both")


def _shared_column(
    one: ComparedColumn, other: ComparedColumn, rows: tuple[int, int], policy: DriftPolicy
) -> Iterator[Found]:
    name = other.name
    if one.dtype != other.dtype:
        yield NotCompared(name, "its type is another one")
    elif policy.skips(name):
        yield NotCompared(name, "the policy leaves it out")
    else:
        fractions = one.null_fraction, other.null_fraction
        change = fractions[1] - fractions[0]
        yield _judged("null_fraction", name, change, policy, f"nulls {_percents(*fractions)}")
        yield from _distribution(one, other, rows, policy)


def _distribution(
    one: ComparedColumn, other: ComparedColumn, rows: tuple[int, int], policy: DriftPolicy
) -> Iterator[Found]:
    name = other.name
    totals = [count - side.null_count for count, side in zip(rows, (one, other), strict=True)]
    if one.hidden or other.hidden:
        yield NotCompared(name, "its values are hidden")
    elif other.kind not in _COMPARED or one.kind != other.kind:
        yield NotCompared(name, f"distributions of {cut(other.dtype, _SHOWN)} are not compared, only nulls")
    elif min(totals) <= 0:
        yield NotCompared(name, "one side has no values")
    elif one.quantiles and other.quantiles:
        yield from _numbers(one, other, policy)
    elif one.top_values or other.top_values:
        yield from _values(one, other, (totals[0], totals[1]), policy)
    else:
        yield NotCompared(name, "no value is common enough to be listed")
    if one.languages and other.languages:
        names = sorted({*one.languages, *other.languages})
        shares = ([side.languages.get(n, 0.0) for n in names] for side in (one, other))
        shown = ", ".join(cut(n, _SHOWN) for n in names[:_NOTED])
        yield _judged("languages", name, metrics.largest_difference(*shares), policy, shown)
    elif one.languages or other.languages:
        yield NotCompared(name, "only one side knows its languages")


def _numbers(one: ComparedColumn, other: ComparedColumn, policy: DriftPolicy) -> Iterator[DriftLine]:
    name, before, after = other.name, one.quantiles, other.quantiles
    middle = f"median {before[50]:,.6g} → {after[50]:,.6g}"
    yield _judged("ks", name, metrics.ks(before, after), policy, middle)
    if one.std:
        yield _judged("w1", name, metrics.w1(before, after) / one.std, policy, middle)
    yield _judged("psi", name, metrics.psi_of_quantiles(before, after), policy, middle)


def _values(
    one: ComparedColumn, other: ComparedColumn, totals: tuple[int, int], policy: DriftPolicy
) -> Iterator[Found]:
    name, before, after = other.name, one.top_values, other.top_values
    whole = one.coverage == 1, other.coverage == 1
    if both := metrics.known_values(before, after, whole=whole):
        parts = [
            [side.get(v, 0) / total for v in both]
            for side, total in zip((before, after), totals, strict=True)
        ]
        most = max(range(len(both)), key=lambda place: (abs(parts[1][place] - parts[0][place]), both[place]))
        text = f"{cut(both[most], _SHOWN) or '(empty)'} {_percents(parts[0][most], parts[1][most])}"
        shares = metrics.shares_of_values(before, totals[0], after, totals[1], whole=whole)
        yield _judged("js", name, metrics.jensen_shannon(*shares), policy, text)
        yield _judged("linf", name, metrics.largest_difference(*shares), policy, text)
        yield _judged("psi", name, metrics.psi(*shares), policy, text)
    else:
        yield NotCompared(name, "no value is known on both sides")
    for what, some, others, exact in (
        ("new values", after, before, whole[0]), ("removed values", before, after, whole[1]),
    ):  # fmt: skip
        if found := sorted((v for v in some if v not in others), key=lambda v: (-some[v], v)):
            among = "" if exact else f" (within the {counted(len(others), 'commonest', 'commonest')})"
            listed = ", ".join(cut(v, _SHOWN) for v in found[:_NOTED]) + (
                ", …" if len(found) > _NOTED else ""
            )
            yield DriftLine(what, name, float(len(found)), None, False, f"{listed}{among}")


def _judged(metric: str, column: str | None, value: float, policy: DriftPolicy, text: str) -> DriftLine:
    limit = policy.limit(metric, column)
    if not math.isfinite(value):
        return DriftLine(metric, column, None, limit, limit is not None, f"beyond what doubles hold: {text}")
    found = rounded(value)
    return DriftLine(metric, column, found, limit, limit is not None and abs(found) > limit, text)


def rounded(value: float) -> float:
    """A number to six digits behind the point, as it is compared and shown."""
    return round(value, 6) + 0.0


def _percents(before: float, after: float) -> str:
    return f"{before * 100:.1f} % → {after * 100:.1f} %"
