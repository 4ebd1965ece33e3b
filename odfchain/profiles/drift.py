"""Two profiles side by side: what changed, by how much, and which limits are exceeded.

No data are read. Numbers are rounded to six digits and then held against the limits. What cannot be computed
in doubles is a breach where it has a limit: numbers of 300 digits do not evade the limit. Source: RFC-041.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from odfchain.errors import EngineError, ManifestError, child_path
from odfchain.odf.tree import Form, Rule, camel_case, from_tree, record_of
from odfchain.profiles.reader import KMV_SIZE, ComparedColumn, ComparedProfile, share
from odfchain.profiles.reader import library as installed_library
from odfchain.text import counted, cut, number, one_line, percent

# The result of a comparison as JSON and as a page (RFC-041):
#
#     {"format": "odfchain-drift/1",
#      "from": {"datasetId", "name", "sequenceNumber", "snapshotId", "systemTime", "rows"}, "to": {the same},
#      "verdict": "breach" | "ok", "breaches": 2,
#      "lines": [{"metric", "column", "value", "limit", "verdict": "breach" | "ok" | "note", "text"}],
#      "notCompared": [{"column", "reason"}], "notes": ["…"]}

FORMAT = "odfchain-drift/1"


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

    @property
    def verdict(self) -> str:
        """`BREACH`, `ok` or `note`."""
        return "BREACH" if self.breach else "note" if self.limit is None else "ok"

    def to_document(self) -> dict[str, Any]:
        """The line as JSON has it."""
        found = record_of(self, "metric", "column", "value", "limit")
        return found | {"verdict": self.verdict.lower(), "text": self.text}


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A column that was not compared, and the reason."""

    column: str | None
    """None is the whole dataset."""
    reason: str

    def __str__(self) -> str:
        return self.reason if self.column is None else f"{self.column}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparison of two profiles."""

    before: ComparedProfile
    after: ComparedProfile
    lines: tuple[DriftLine, ...]
    """Breaches first, the furthest beyond their limit before the others; notes last."""
    not_compared: tuple[NotCompared, ...]
    notes: tuple[str, ...] = ()

    @property
    def breaches(self) -> tuple[DriftLine, ...]:
        """The lines whose limit is exceeded."""
        return tuple(line for line in self.lines if line.breach)

    def to_document(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        return {
            "format": FORMAT,
            "from": _side(self.before),
            "to": _side(self.after),
            "verdict": "breach" if self.breaches else "ok",
            "breaches": len(self.breaches),
            "lines": [line.to_document() for line in self.lines],
            "notCompared": [record_of(each, "column", "reason") for each in self.not_compared],
            "notes": list(self.notes),
        }

    def to_html(self) -> str:
        """The comparison as one page with pictures, which asks for nothing and runs nothing."""
        from odfchain.profiles.pages import drift_page

        return drift_page(self.to_document(), self.before, self.after)


def _side(profile: ComparedProfile) -> dict[str, Any]:
    own = ("dataset_id", "name", "sequence_number", "snapshot_id")
    return record_of(profile, *own, "systemTime:created_at", "rows")


# Limits of effect sizes, for all columns and for single ones; `snapshots.guard` uses the same file (RFC-041):
#
#     kind: DriftPolicy
#     version: 1
#     content:
#       minRows: 100
#       rows: {min: 0.5, max: 2}
#       schema: {removed: fail, retyped: fail, added: note}
#       defaults: {nullFraction: 0.05, ks: 0.1, js: 0.1}
#       columns: {lon: {ks: 0.15}, iata: skip}
#
# An omitted limit has the value above; `null` is no limit.


class Reaction(Enum):
    """Reaction to a change of the schema."""

    FAIL = "fail"
    NOTE = "note"
    IGNORE = "ignore"


METRICS = ("nullFraction", "duplicateRowFraction", "ks", "w1", "js", "linf", "psi", "languages", "jaccard")
"""Names in a policy; those of the metrics are the same in snake case."""
_LIMITS: Mapping[str, float | None] = {
    "nullFraction": 0.05, "duplicateRowFraction": 0.01, "ks": 0.1, "js": 0.1,
}  # fmt: skip
_OF_COLUMNS = tuple(name for name in METRICS if name not in ("duplicateRowFraction", "jaccard"))
_Limit = Annotated[float, Rule("a number that is not negative", lambda value: value >= 0)]
_Limits = Mapping[Annotated[str, Rule(f"one of {', '.join(METRICS)}", METRICS.__contains__)], _Limit | None]
_ColumnLimits = dict[
    Annotated[str, Rule(f"one of {', '.join(_OF_COLUMNS)}", _OF_COLUMNS.__contains__)], _Limit | None
]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Least and largest ratio of the numbers of rows."""

    FORM: ClassVar = Form(nulls=True)
    min: _Limit | None = 0.5
    max: _Limit | None = 2.0


@dataclass(frozen=True, slots=True)
class Reactions:
    """Reactions to columns that are gone, have another type, or are new."""

    removed: Reaction = Reaction.FAIL
    retyped: Reaction = Reaction.FAIL
    added: Reaction = Reaction.NOTE


@dataclass(frozen=True, slots=True)
class DriftPolicy:
    """Limits; a metric without one is a note."""

    FORM: ClassVar = Form(nulls=True, names={"limits": "defaults"})
    min_rows: _Limit | None = 100
    """Under so many rows on a side nothing but the schema is judged."""
    rows: Ratio = Ratio()
    schema: Reactions = Reactions()
    limits: _Limits = field(default_factory=dict)
    """Instead of the limits that are used by default."""
    columns: Mapping[str, Any] | None = None
    """Limits of some columns, by name; `skip` leaves a column out."""

    def limit(self, metric: str, column: str | None = None) -> float | None:
        """The limit of a metric; None is none."""
        own = {} if column is None else (self.columns or {}).get(column, {})
        name = camel_case(metric)
        return next((known[name] for known in (own, self.limits, _LIMITS) if name in known), None)

    def check_languages(self, library: str | None, where: str) -> None:
        """No limit is passed over because the package that tells languages is not installed.

        `library` is the one by which they are told in the place; None tells none.

        Raises:
            EngineError: the policy limits `languages`, and they are not told.
        """
        limits = (self.limits, *(own for own in (self.columns or {}).values() if own != "skip"))
        if library is None and any(own.get("languages") is not None for own in limits):
            again = "compute the profile again, and not with --no-languages"
            raise EngineError(
                f"{where} without the package that tells languages, for which the policy has a limit",
                hint="pip install 'odfchain[languages]'" if installed_library() is None else again,
            )

    def without_limits(self) -> DriftPolicy:
        """The same columns, and nothing that is judged but the schema."""
        columns = {name: own if own == "skip" else {} for name, own in (self.columns or {}).items()}
        none = dict.fromkeys(METRICS)
        return dataclasses.replace(self, rows=Ratio(None, None), limits=none, columns=columns)

    def skips(self, column: str) -> bool:
        """True if a column is left out."""
        return (self.columns or {}).get(column) == "skip"


@dataclass(frozen=True, slots=True)
class _Document:
    kind: Literal["DriftPolicy"]
    version: Literal[1]
    content: DriftPolicy | None = None


def read_policy(text: str | bytes, *, source: str | None = None) -> DriftPolicy:
    """The policy of a YAML or JSON document."""
    from odfchain.odf.yaml import read_document

    document = read_document(text, source=source)
    try:
        policy = from_tree(_Document, document.value).content or DriftPolicy()
        columns = {
            name: own if own == "skip" else from_tree(_ColumnLimits, own, child_path("content.columns", name))
            for name, own in (policy.columns or {}).items()
        }
        least = int(min(policy.min_rows or 0, 1 << 62))  # text may say a number without end
        return dataclasses.replace(policy, min_rows=least, columns=columns)
    except ManifestError as error:
        raise error.located(source=source, line=document.line_of(error.path)) from None


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
    """The drift between two profiles."""
    policy = policy or DriftPolicy()
    one, other = ComparedProfile(before), ComparedProfile(after)
    for side in (one, other):
        policy.check_languages(side.library, f"the profile of block {side.sequence_number} was made")
    found: list[Found] = [*_schema(one, other, policy)]
    fewest = min(one.rows, other.rows)
    # a publication that is all but empty is the loudest of all changes
    least = policy.min_rows or 0
    judged = fewest >= least or one.rows >= least
    found.append(_rows(one.rows, other.rows, policy if judged else policy.without_limits()))
    if fewest < least:
        numbers = f"{one.rows:,} and {other.rows:,}, fewer than {least:,}"
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
    notes += (
        f"the policy limits a column {one_line(name, 60)!r} that neither profile has"
        for name in sorted({*(policy.columns or {})} - one.columns.keys() - other.columns.keys())
    )
    left_out = tuple(each for each in found if isinstance(each, NotCompared))
    return Drift(one, other, tuple(lines), left_out, tuple(notes))


def _order(line: DriftLine) -> tuple[int, float]:
    # breaches, then lines within their limit, then notes; the nearest to its limit, or beyond, first
    rank = ("BREACH", "ok", "note").index(line.verdict)
    if line.metric == "rows" and line.value == 0 and line.breach:
        return -1, 0.0
    if line.limit is None:
        return rank, 0.0
    return rank, -_excess(line)


def _excess(line: DriftLine) -> float:
    # a value divided by its limit; infinite for the schema
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
        if (reaction := getattr(policy.schema, what)) is not Reaction.IGNORE:
            fails = reaction is Reaction.FAIL
            yield DriftLine(f"schema {what}", name, None, 0.0 if fails else None, fails, text)
    for name in before:
        if name in after and before[name].nullable != after[name].nullable:
            now = "may be null now" if after[name].nullable else "may not be null any more"
            yield DriftLine("schema nullable", name, None, None, False, now)


def _rows(before: int, after: int, policy: DriftPolicy) -> DriftLine:
    ratio = rounded(after / before) if before else None
    low, high = policy.rows.min, policy.rows.max
    breach = ratio is not None and ((low is not None and ratio < low) or (high is not None and ratio > high))
    limit = low if ratio is not None and ratio < 1 else high
    return DriftLine("rows", None, ratio, limit, breach, f"{before:,} → {after:,} rows")


def _dataset(one: ComparedProfile, other: ComparedProfile, policy: DriftPolicy) -> Iterator[DriftLine]:
    fractions = one.duplicate_row_fraction, other.duplicate_row_fraction
    yield _judged("duplicate_row_fraction", None, fractions[1] - fractions[0], policy, _percents(*fractions))
    alike = rounded(jaccard(one.row_hashes, other.row_hashes))
    limit = policy.limit("jaccard")  # a likeness: it must not fall below
    breach = limit is not None and alike < limit
    yield DriftLine("jaccard", None, alike, limit, breach, f"{percent(alike)} of all rows are in both")


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
        yield _judged("languages", name, largest_difference(*shares), policy, shown)
    elif one.languages or other.languages:
        yield NotCompared(name, "only one side knows its languages")


def _numbers(one: ComparedColumn, other: ComparedColumn, policy: DriftPolicy) -> Iterator[DriftLine]:
    name, before, after = other.name, one.quantiles, other.quantiles
    middle = f"median {number(before[50])} → {number(after[50])}"
    yield _judged("ks", name, ks(before, after), policy, middle)
    if deviation := one.figures.get("std"):
        yield _judged("w1", name, w1(before, after) / deviation, policy, middle)
    yield _judged("psi", name, psi_of_quantiles(before, after), policy, middle)


def _values(
    one: ComparedColumn, other: ComparedColumn, totals: tuple[int, int], policy: DriftPolicy
) -> Iterator[Found]:
    name, before, after = other.name, one.top_values, other.top_values
    whole = one.coverage == 1, other.coverage == 1
    if both := known_values(before, after, whole=whole):
        sides = zip((before, after), totals, strict=True)
        parts = [[side.get(v, 0) / total for v in both] for side, total in sides]
        most = max(range(len(both)), key=lambda place: (abs(parts[1][place] - parts[0][place]), both[place]))
        text = f"{cut(both[most], _SHOWN) or '(empty)'} {_percents(parts[0][most], parts[1][most])}"
        shares = shares_of_values(before, totals[0], after, totals[1], whole=whole)
        yield _judged("js", name, jensen_shannon(*shares), policy, text)
        yield _judged("linf", name, largest_difference(*shares), policy, text)
        yield _judged("psi", name, psi(*shares), policy, text)
    else:
        yield NotCompared(name, "no value is known on both sides")
    for what, some, others, exact in (
        ("new values", after, before, whole[0]), ("removed values", before, after, whole[1]),
    ):  # fmt: skip
        if found := sorted((v for v in some if v not in others), key=lambda v: (-some[v], v)):
            among = "" if exact else f" (within the {counted(len(others), 'commonest', 'commonest')})"
            listed = ", ".join(cut(v, _SHOWN) for v in found[:_NOTED])
            more = ", …" if len(found) > _NOTED else ""
            yield DriftLine(what, name, float(len(found)), None, False, f"{listed}{more}{among}")


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


# Distances between the distributions of a column: effect sizes, no p-values (RFC-041).
#
#     ks     largest distance of the two cumulative curves through 101 quantiles, both limits at jumps
#     w1     Wasserstein-1, in standard deviations of the first
#     js     Jensen-Shannon distance, base 2
#     linf   largest difference of the share of one value
#     psi    population stability index, on deciles of the first, or on values

_LEAST_SHARE = 1e-4
"""Shares below are counted as this much, so that one empty bin is not infinite."""
_DECILES = range(0, 101, 10)


def ks(one: Sequence[float], other: Sequence[float]) -> float:
    """Kolmogorov-Smirnov on two lists of 101 quantiles."""
    points = sorted({*one, *other})
    places = [(x, below) for x in points for below in (True, False)]
    return max(abs(share(one, x, below=below) - share(other, x, below=below)) for x, below in places)


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


def psi_of_quantiles(one: Sequence[float], other: Sequence[float]) -> float:
    """Population stability on the deciles of the first."""
    inner = [one[index] for index in _DECILES][1:-1]
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


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """The share of the 4,096 smallest hashes of both that both have; two empty sets are equal."""
    here, there = set(one), set(other)
    union = sorted(here | there)[:KMV_SIZE]
    return sum(value in here and value in there for value in union) / len(union) if union else 1.0
