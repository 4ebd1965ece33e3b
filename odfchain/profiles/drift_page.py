"""The page of a comparison: what exceeds its limit first, then every column, last what was not compared.

One file that asks for nothing and runs nothing (`profiles.pages`). Names and values come from the publishers
of the data: they are escaped, cut, and counted where there is no room for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from odfchain.limits import DRIFT_PAGE, DriftPageLimits
from odfchain.profiles.drift_metrics import ComparedColumn, ComparedProfile, common_bins
from odfchain.profiles.pages import Excerpt, excerpt, fitted, moment, one_page, overlaid, paired_bar
from odfchain.text import counted, cut

# Each column: a picture and its numbers.

MARKS = {
    "breach": ("faulty", "limit exceeded"),
    "ok": ("ok", "within its limit"),
    "note": ("none", "no limit"),
}
"""How a verdict is marked, and in words."""
_SHOWN_LANGUAGES = 3
_RARE, _FEW = 0.01, 3
"""Of values that are all rarer than this, few are shown: they are much like keys."""


@dataclass(frozen=True, slots=True)
class LineView:
    """One figure: of what, how much, its limit, and whether it is exceeded."""

    column: str
    place: int | None
    """The number of its column on the page."""
    metric: str
    value: str
    limit: str
    state: str
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A number of both sides."""

    label: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A value, its share on both sides, and the two as bars."""

    value: str
    before: str
    after: str
    bars: object


@dataclass(frozen=True, slots=True)
class ColumnView:
    """A column that both sides have."""

    name: str
    dtype: str
    state: str
    word: str
    lines: tuple[LineView, ...]
    picture: object
    """None where there are no numbers."""
    ends: tuple[str, str]
    middle: bool
    figures: tuple[FigureRow, ...]
    values: Excerpt[ValueRow]


def line_view(line: Mapping[str, Any], places: Mapping[str, int], limits: DriftPageLimits) -> LineView:
    """A line of the document as the page shows it."""
    column = line["column"]
    state, word = MARKS[line["verdict"]]
    return LineView(
        column=cut(column, limits.text) if column is not None else "all rows",
        place=places.get(column),
        metric=line["metric"].replace("_", " "),
        value="" if line["value"] is None else f"{line['value']:,.6g}",
        limit="" if line["limit"] is None or line["value"] is None else f"{line['limit']:,.6g}",
        state=state,
        word=word,
        text=cut(line["text"], limits.text * 2),
    )


def column_view(
    one: ComparedColumn,
    other: ComparedColumn,
    rows: tuple[int, int],
    lines: Sequence[LineView],
    limits: DriftPageLimits,
) -> ColumnView:
    """The view of a column; its lines say whether a limit is exceeded."""
    name, bins = cut(other.name, limits.text), common_bins(one, other)
    states = [line.state for line in lines]
    state = next((mark for mark, _ in MARKS.values() if mark in states), "none")
    word = {"faulty": "limit exceeded", "ok": "within its limits"}.get(state, "not judged")
    label = f"Distribution of {name}: before as bars, after as a dashed line; the table has the numbers"
    return ColumnView(
        name=name,
        dtype=cut(" → ".join(dict.fromkeys((one.dtype, other.dtype))), limits.text),
        state=state,
        word=word,
        lines=tuple(lines),
        picture=overlaid(bins.before, bins.after, label) if bins is not None else None,
        ends=(_number(bins.low), _number(bins.high)) if bins is not None else ("", ""),
        middle=bins is not None and bins.middle,
        figures=tuple(_figures(one, other)),
        values=_values(one, other, rows, limits),
    )


def _figures(one: ComparedColumn, other: ComparedColumn) -> Iterator[FigureRow]:
    for label, of in _FIGURES.items():
        before, after = of(one), of(other)
        if before is not None or after is not None:
            yield FigureRow(label, _shown(before), _shown(after))


def _distinct(column: ComparedColumn) -> str:
    return f"{'about ' if 'num_unique' in column.estimated else ''}{column.num_unique:,}"


def _languages(column: ComparedColumn) -> str | None:
    common = sorted(column.languages.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_LANGUAGES]
    return ", ".join(f"{cut(name, 20)} {part:.0%}" for name, part in common) or None


def _quantile(place: int) -> Callable[[ComparedColumn], float | None]:
    return lambda column: column.quantiles[place] if column.quantiles else None


def _length(name: str) -> Callable[[ComparedColumn], float | None]:
    return lambda column: column.lengths.get(name)


_FIGURES: Mapping[str, Callable[[ComparedColumn], float | str | None]] = {
    "nulls": lambda column: f"{column.null_fraction:.2%}",
    "distinct values": _distinct,
    "least": lambda column: column.low,
    "5th percentile": _quantile(5),
    "median": _quantile(50),
    "95th percentile": _quantile(95),
    "largest": lambda column: column.high,
    "mean": lambda column: column.mean,
    "standard deviation": lambda column: column.std,
    "characters, least": _length("min_char_length"),
    "characters, on average": _length("avg_char_length"),
    "characters, most": _length("max_char_length"),
    "words, on average": _length("avg_token_count"),
    "languages": _languages,
}
"""Parts of a column's view, where its kind has them."""


def _shown(value: float | str | None) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:,.6g}"


def _values(
    one: ComparedColumn, other: ComparedColumn, rows: tuple[int, int], limits: DriftPageLimits
) -> Excerpt[ValueRow]:
    # the values whose shares are furthest apart, then the commonest
    shares = {
        value: (_share(value, one, rows[0]), _share(value, other, rows[1]))
        for value in {*one.top_values, *other.top_values}
    }

    def order(value: str) -> tuple[float, float, str]:
        before, after = shares[value]
        apart = abs(after - before) if before is not None and after is not None else 0.0
        return (-apart, -max(before or 0.0, after or 0.0), value)

    rare = all((part or 0.0) < _RARE for parts in shares.values() for part in parts)
    kept = excerpt(sorted(shares, key=order), min(limits.values, _FEW) if rare else limits.values)
    most = max((part for value in kept.shown for part in shares[value] if part), default=1.0)
    words = [
        "none" if n <= side.null_count else "not listed" for side, n in zip((one, other), rows, strict=True)
    ]
    unknown = (words[0], words[1])
    return Excerpt(
        tuple(_value(cut(value, limits.text), shares[value], unknown, most) for value in kept.shown),
        kept.rest,
    )


def _share(value: str, column: ComparedColumn, rows: int) -> float | None:
    # None where the value is not listed but may occur, or no values are listed
    total = rows - column.null_count
    if total <= 0:
        return None
    if value in column.top_values:
        return min(column.top_values[value] / total, 1.0)
    return 0.0 if column.coverage == 1 else None


def _value(
    value: str, shares: tuple[float | None, float | None], unknown: tuple[str, str], most: float
) -> ValueRow:
    before, after = (
        word if part is None else f"{part:.2%}" for part, word in zip(shares, unknown, strict=True)
    )
    one, other = ((part or 0.0) / most for part in shares)
    return ValueRow(value or "(empty text)", before, after, paired_bar(one, other))


def shared_columns(
    one: ComparedProfile, other: ComparedProfile, lines: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The columns that both have: those with breaches in the order of the lines, then the others."""
    both = [name for name in other.columns if name in one.columns]
    first = [line["column"] for line in lines if line["verdict"] == "breach" and line["column"] in both]
    return [*dict.fromkeys(first), *(name for name in both if name not in first)]


class Fact(NamedTuple):
    """A line of a list of facts; a `code` is there to be copied."""

    label: str
    value: str
    code: bool = False


def drift_page(
    document: Mapping[str, Any],
    before: ComparedProfile,
    after: ComparedProfile,
    limits: DriftPageLimits = DRIFT_PAGE,
) -> str:
    """One self-contained HTML page about a comparison, no larger than `limits` allow."""
    return fitted(lambda limits: _render(document, before, after, limits), limits)


def _render(
    document: Mapping[str, Any], before: ComparedProfile, after: ComparedProfile, limits: DriftPageLimits
) -> str:
    names = excerpt(shared_columns(before, after, document["lines"]), limits.columns)
    places = {name: place for place, name in enumerate(names.shown)}
    lines = [line_view(line, places, limits) for line in document["lines"]]
    by_column: dict[int, list[Any]] = {}
    for line in lines:
        if line.place is not None:
            by_column.setdefault(line.place, []).append(line)
    rows = before.rows, after.rows
    columns = [
        column_view(before.columns[name], after.columns[name], rows, by_column.get(place, []), limits)
        for name, place in places.items()
    ]
    state, title, lead = _verdict(document)
    missing = [
        (cut(each["column"], limits.text) if each["column"] is not None else "all rows", each["reason"])
        for each in document["notCompared"]
    ]
    return one_page(
        "profiles",
        "drift.html.j2",
        "drift.css",
        state=state,
        title=title,
        lead=lead,
        name=_name(before, after, limits),
        facts=_facts(document, before, after),
        notes=excerpt(document["notes"], limits.lines),
        breaches=excerpt([line for line in lines if line.state == "faulty"], limits.lines),
        columns=columns,
        columns_rest=names.rest,
        lines=excerpt(lines, limits.lines),
        missing=excerpt(missing, limits.lines),
        sides=(f"before: block {before.sequence_number:,}", f"after: block {after.sequence_number:,}"),
    )


def _verdict(document: Mapping[str, Any]) -> tuple[str, str, str]:
    # the headline must not claim more than was compared
    number = document["breaches"]
    if number:
        return "faulty", "Limits exceeded", f"{counted(number, 'figure')} beyond what the limits allow."
    if not any(line["verdict"] == "ok" and line["column"] is not None for line in document["lines"]):
        return "unchecked", "Not judged", "No distribution was held against a limit; the last part says why."
    rest = " by what was compared; the last part says what was not" if document["notCompared"] else ""
    return "ok", "Within the limits", f"No limit is exceeded{rest}."


def _name(before: ComparedProfile, after: ComparedProfile, limits: DriftPageLimits) -> str:
    names = dict.fromkeys(cut(side.name, limits.text) for side in (before, after))
    return " → ".join(names)


def _facts(document: Mapping[str, Any], before: ComparedProfile, after: ComparedProfile) -> list[Fact]:
    whole = {line["metric"]: line for line in document["lines"] if line["column"] is None}
    facts = [Fact("Rows", f"{before.rows:,} → {after.rows:,}")]
    if "jaccard" in whole:
        facts.append(Fact("In common", whole["jaccard"]["text"]))
    for label, side in (("Before", before), ("After", after)):
        facts += [
            Fact(label, f"block {side.sequence_number:,} of {side.name}, {moment(side.created_at)}"),
            Fact("", side.snapshot_id, code=True),
        ]
    if before.dataset_id != after.dataset_id:
        facts += [Fact("Datasets", side.dataset_id, code=True) for side in (before, after)]
    else:
        facts.append(Fact("Dataset", after.dataset_id, code=True))
    return facts
