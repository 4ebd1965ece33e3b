"""Two profiles side by side: what changed, by how much, and which limits are exceeded.

No data are read. Numbers are rounded to six digits and then held against the limits. Source: RFC-041.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from odfchain.drift import metrics
from odfchain.drift.policy import DriftPolicy, Reaction
from odfchain.profile.row_likeness import jaccard, published_hashes
from odfchain.text import counted

Statistics = Mapping[str, Any]
_NOTED = 5
"""New and removed values that a line names."""


@dataclass(frozen=True, slots=True)
class DriftLine:
    """One thing that was compared."""

    metric: str
    column: str | None
    """None is the whole dataset."""
    value: float | None
    limit: float | None
    """None is none: the line is a note."""
    breach: bool
    text: str
    """What a person should look at."""

    @property
    def verdict(self) -> str:
        """`BREACH`, `ok` or `note`."""
        return "BREACH" if self.breach else "note" if self.limit is None else "ok"

    def to_document(self) -> dict[str, Any]:
        """The line as JSON has it."""
        return {
            "metric": self.metric, "column": self.column, "value": self.value, "limit": self.limit,
            "verdict": self.verdict.lower(), "text": self.text,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparison of two profiles."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    lines: tuple[DriftLine, ...]
    """Breaches first, the furthest beyond their limit before the others."""
    left_out: tuple[str, ...]
    """What was not compared, and why."""
    notes: tuple[str, ...] = ()

    @property
    def breaches(self) -> tuple[DriftLine, ...]:
        """The lines whose limit is exceeded."""
        return tuple(line for line in self.lines if line.breach)

    def to_document(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        return {
            "from": {"snapshotId": self.before["snapshot_id"], "rows": self.before["num_rows"]},
            "to": {"snapshotId": self.after["snapshot_id"], "rows": self.after["num_rows"]},
            "breaches": len(self.breaches),
            "lines": [line.to_document() for line in self.lines],
            "leftOut": list(self.left_out),
            "notes": list(self.notes),
        }


def compare_profiles(
    before: Mapping[str, Any], after: Mapping[str, Any], policy: DriftPolicy | None = None
) -> Drift:
    """What changed from one profile to another."""
    policy = policy or DriftPolicy()
    lines, left_out, notes = [*_schema(before, after, policy)], [], []
    if before["odf"]["dataset_id"] != after["odf"]["dataset_id"]:
        notes.append("the profiles are of two datasets")
    rows = before["num_rows"], after["num_rows"]
    if min(rows) < policy.min_rows:
        left_out.append(f"too few rows: {rows[0]:,} and {rows[1]:,}, fewer than {policy.min_rows:,}")
        if rows[0] >= policy.min_rows > rows[1]:
            # a publication that is all but empty is the loudest of all changes
            lines.append(_rows(*rows, policy))
    else:
        lines.append(_rows(*rows, policy))
        lines += _dataset(before, after, policy)
        types = {c["name"]: c["dtype"] for c in before["columns"]}
        for column in after["columns"]:
            name = column["name"]
            if types.get(name) != column["dtype"]:
                continue
            if policy.skips(name):
                left_out.append(f"{name}: the policy leaves it out")
                continue
            one, other = (side["column_stats"][name] for side in (before, after))
            hidden = {name} & {*before["odf"]["hidden"], *after["odf"]["hidden"]}
            lines += _column(name, one, other, rows, policy)
            if hidden:
                left_out.append(f"{name}: its values are hidden")
    order = sorted(lines, key=lambda line: (not line.breach, -_excess(line)))
    return Drift(before, after, tuple(order), tuple(left_out), tuple(notes))


def _excess(line: DriftLine) -> float:
    if not line.breach or line.value is None or not line.limit:
        return math.inf if line.breach else 0.0
    if line.metric == "rows":
        return math.inf if line.value == 0 else max(line.value, 1 / line.value)
    return abs(line.value) / line.limit


def _schema(before: Mapping[str, Any], after: Mapping[str, Any], policy: DriftPolicy) -> Iterator[DriftLine]:
    one, other = ({c["name"]: c for c in side["columns"]} for side in (before, after))
    changes = [
        *(("removed", name, f"{one[name]['dtype']} is gone") for name in one if name not in other),
        *(
            ("retyped", name, f"{one[name]['dtype']} → {other[name]['dtype']}")
            for name in one
            if name in other and one[name]["dtype"] != other[name]["dtype"]
        ),
        *(("added", name, f"{other[name]['dtype']} is new") for name in other if name not in one),
    ]
    for what, name, text in changes:
        reaction = policy.schema[what]
        if reaction is not Reaction.IGNORE:
            fails = reaction is Reaction.FAIL
            yield DriftLine(f"schema {what}", name, None, 0.0 if fails else None, fails, text)
    for name in one:
        if name in other and one[name]["nullable"] != other[name]["nullable"]:
            now = "may be null now" if other[name]["nullable"] else "may not be null any more"
            yield DriftLine("schema nullable", name, None, None, False, now)


def _rows(before: int, after: int, policy: DriftPolicy) -> DriftLine:
    ratio = rounded(after / before) if before else None
    low, high = policy.rows
    breach = ratio is not None and ((low is not None and ratio < low) or (high is not None and ratio > high))
    limit = low if ratio is not None and ratio < 1 else high
    return DriftLine("rows", None, ratio, limit, breach, f"{before:,} → {after:,} rows")


def _dataset(before: Mapping[str, Any], after: Mapping[str, Any], policy: DriftPolicy) -> Iterator[DriftLine]:
    fractions = before["duplicate_row_fraction"], after["duplicate_row_fraction"]
    yield _judged("duplicate_row_fraction", None, fractions[1] - fractions[0], policy, _percents(*fractions))
    hashes = [published_hashes(base64.b64decode(side["row_minhash"])) for side in (before, after)]
    alike = rounded(jaccard(*hashes))
    limit = policy.limit("jaccard")  # a likeness: it must not fall below
    breach = limit is not None and alike < limit
    yield DriftLine("jaccard", None, alike, limit, breach, f"{alike:.1%} of all rows are in both")


def _column(
    name: str, one: Statistics, other: Statistics, rows: tuple[int, int], policy: DriftPolicy
) -> Iterator[DriftLine]:
    fractions = one["null_fraction"], other["null_fraction"]
    yield _judged("null_fraction", name, fractions[1] - fractions[0], policy, _percents(*fractions))
    if one.get("quantiles") and other.get("quantiles"):
        before, after = one["quantiles"], other["quantiles"]
        middle = f"median {before[50]:g} → {after[50]:g}"
        yield _judged("ks", name, metrics.ks(before, after), policy, middle)
        if one["std"]:
            yield _judged("w1", name, metrics.w1(before, after) / one["std"], policy, middle)
        yield _judged("psi", name, metrics.psi_of_quantiles(before, after), policy, middle)
    if "top_values" in one and "top_values" in other:
        yield from _values(name, one, other, rows, policy)
    if one.get("detected_languages") and other.get("detected_languages"):
        before, after = one["detected_languages"], other["detected_languages"]
        names = sorted({*before, *after})
        apart = metrics.largest_difference(*([side.get(n, 0.0) for n in names] for side in (before, after)))
        yield _judged("languages", name, apart, policy, ", ".join(names[:_NOTED]))


def _values(
    name: str, one: Statistics, other: Statistics, rows: tuple[int, int], policy: DriftPolicy
) -> Iterator[DriftLine]:
    whole = one["top_values_coverage"] == 1, other["top_values_coverage"] == 1
    totals = [count - side["null_count"] for count, side in zip(rows, (one, other), strict=True)]
    if not all(totals):
        return
    before, after = one["top_values"], other["top_values"]
    shares = metrics.shares_of_values(before, totals[0], after, totals[1], whole=whole)
    apart = {
        value: abs(after.get(value, 0) / totals[1] - before.get(value, 0) / totals[0])
        for value in {*before, *after}
    }
    most = max(apart, key=lambda value: (apart[value], value), default="")
    text = f"{most} {_percents(before.get(most, 0) / totals[0], after.get(most, 0) / totals[1])}"
    yield _judged("js", name, metrics.jensen_shannon(*shares), policy, text)
    yield _judged("linf", name, metrics.largest_difference(*shares), policy, text)
    yield _judged("psi", name, metrics.psi(*shares), policy, text)
    for what, some, others, exact in (
        ("new values", after, before, whole[0]), ("removed values", before, after, whole[1]),
    ):  # fmt: skip
        if found := [value for value in some if value not in others]:
            among = "" if exact else f" (within the {counted(len(others), 'commonest', 'commonest')})"
            listed = ", ".join(found[:_NOTED]) + (", …" if len(found) > _NOTED else "")
            yield DriftLine(what, name, float(len(found)), None, False, f"{listed}{among}")


def _judged(metric: str, column: str | None, value: float, policy: DriftPolicy, text: str) -> DriftLine:
    found, limit = rounded(value), policy.limit(metric, column)
    return DriftLine(metric, column, found, limit, limit is not None and abs(found) > limit, text)


def rounded(value: float) -> float:
    """A number to six digits behind the point, as it is compared and shown."""
    return round(value, 6) + 0.0


def _percents(before: float, after: float) -> str:
    return f"{before * 100:.1f} % → {after * 100:.1f} %"
