"""A profile, and the comparison of two, as HTML pages: column by column, with pictures and their numbers.

A page is one file that asks for nothing and runs nothing (`profiles.pages`). Names and values are the
publishers': they are escaped, cut, and counted where there is no room. The same documents always give the
same page.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from markupsafe import Markup, escape

from odfchain.limits import DRIFT_PAGE, PAGE, DriftPageLimits
from odfchain.profiles import pages
from odfchain.profiles.pages import Excerpt, LabelledValue, excerpt
from odfchain.profiles.reader import ComparedColumn, ComparedProfile, by_share, share
from odfchain.text import counted, cut

# Unescaped text of one column: callers escape it.

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 10
_SHOWN_VALUES = 3


def line_of(column: Mapping[str, Any], stats: Mapping[str, Any]) -> list[str]:
    """A column in a row of a table: name, type, nulls, distinct values, values, and its histogram in bars."""
    counts = stats.get("histogram", {}).get("counts", ())
    shown = [percent(stats["null_fraction"]), _distinct(stats), _range(stats), _in_bars(counts)]
    return [column["name"], column["dtype"], *shown]


def percent(fraction: float) -> str:
    """A fraction for people: `12.5 %`."""
    return f"{fraction * 100:.1f} %"


def _rows(stats: Mapping[str, Any]) -> float:
    # with the common values
    values = stats.get("top_values")
    return sum(values.values()) / (stats["top_values_coverage"] or 1) if values else 0


def _range(stats: Mapping[str, Any]) -> str:
    # the commonest values, or the least and the largest; empty where none is said
    if stats.get("top_values"):
        rows, common = _rows(stats), by_share(stats["top_values"])[:_SHOWN_VALUES]
        shown = [f"{value} {percent(count / rows)}" for value, count in common]
        return ", ".join(shown) + (", …" if stats["num_unique"] > len(shown) else "")
    if stats.get("min") is None:
        return ""
    mean = f", mean {_number(stats['mean'])}" if "mean" in stats else ""
    return f"{_number(stats['min'])} … {_number(stats['max'])}{mean}"


def _distinct(stats: Mapping[str, Any]) -> str:
    return _about(stats["num_unique"], stats.get("estimated", ()))


def _about(distinct: int, estimated: Collection[str]) -> str:
    return f"{'about ' if 'num_unique' in estimated else ''}{distinct:,}"


def _number(value: Any) -> str:
    # a number, or a time, for people
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _in_bars(counts: Sequence[int]) -> str:
    # a bin with anything in it has a bar
    if len(counts) < _BINS:
        return _BARS[-1] if sum(counts) else ""
    width = len(counts) // _BINS
    sums = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    most = max(sums)
    return "".join(" " if n == 0 else _BARS[min(n * len(_BARS) // (most + 1), len(_BARS) - 1)] for n in sums)


# The page of a profile.

_TOP_VALUES = 10
_TEXT = 120
"""A value or a name [characters]."""
_TAGS = 20


@dataclass(frozen=True, slots=True)
class ProfilePage:
    """The page of a profile."""

    document: Mapping[str, Any]

    def html(self, most_bytes: int = PAGE.page_bytes) -> str:
        """The page of a profile, at most as large as pages are."""
        shown = len(self.document["columns"])
        page = self._rendered(shown)
        while len(page.encode()) > most_bytes and shown:
            shown //= 2
            page = self._rendered(shown)
        return page

    def _rendered(self, shown: int) -> str:
        columns, repeated = self.document["columns"], percent(self.document["duplicate_row_fraction"])
        size = (
            f"{counted(self.document['num_rows'], 'row')}, {counted(self.document['num_columns'], 'column')}"
        )
        return pages.one_page(
            "profiles",
            "profile.html.j2",
            "profile.css",
            name=cut(self.document["dataset_name"], _TEXT),
            lead=f"{size}; {repeated} of the rows repeat another one.",
            facts=list(self._facts()),
            columns=[
                _column(column, self.document["column_stats"][column["name"]]) for column in columns[:shown]
            ],
            rest=len(columns) - shown,
            hidden=self.document["odf"]["hidden"],
        )

    def _facts(self) -> Iterator[LabelledValue]:
        odf, near = self.document["odf"], self.document["near_duplicate_estimate"]
        yield LabelledValue("Block", f"{odf['sequence_number']:,} of {self.document['created_at']}")
        yield LabelledValue("Snapshot", self.document["snapshot_id"], code=True)
        yield LabelledValue("Dataset", odf["dataset_id"], code=True)
        for label, key, most in (
            ("Description", "description", PAGE.message), ("Stage", "pipeline_stage", _TEXT),
            ("What changed", "transform_description", PAGE.message),
        ):  # fmt: skip
            if self.document[key]:
                yield LabelledValue(label, cut(self.document[key], most))
        for key, value in list(self.document["tags"].items())[:_TAGS]:
            yield LabelledValue(cut(f"Tag {key}", _TEXT), cut(value, _TEXT))
        yield LabelledValue(
            "Near duplicates", "not looked for" if near is None else f"{percent(near)} of the rows"
        )
        for label, key in (("Constant", "constant_columns"), ("Mostly null", "high_null_columns")):
            if self.document[key]:
                yield LabelledValue(label, cut(", ".join(self.document[key]), PAGE.message))
        yield LabelledValue("Languages", odf["languages"] or "not detected")


def _column(column: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    counts, values, rows = stats.get("histogram", {}).get("counts", []), stats.get("top_values"), _rows(stats)
    top = by_share(values or {})[:_TOP_VALUES]
    rest = stats["num_unique"] - len(top)
    return {
        "name": cut(column["name"], _TEXT),
        "dtype": cut(column["dtype"], _TEXT),
        "nulls": f"{stats['null_count']:,} ({percent(stats['null_fraction'])})",
        "distinct": _distinct(stats),
        "summary": _range(stats),
        "estimated": ", ".join(name.replace("_", " ") for name in stats.get("estimated", ())),
        "picture": histogram(counts, _label(column["name"], stats)) if counts else None,
        "ends": (_number(stats.get("min")), _number(stats.get("max"))),
        "facts": list(_column_facts(stats)),
        "top": [_share_row(value, count, count / rows if rows else 0.0) for value, count in top],
        "rest": counted(rest, "other value") if top and rest > 0 else "",
    }


def _share_row(value: str, count: float, part: float) -> dict[str, Any]:
    return {
        "name": cut(value, _TEXT), "count": f"{count:,}", "share": percent(part), "picture": _bar(part),
    }  # fmt: skip


def _label(name: str, stats: Mapping[str, Any]) -> str:
    counts, edges = stats["histogram"]["counts"], stats["histogram"]["bin_edges"]
    tallest = counts.index(max(counts))
    low, high = _number(edges[tallest]), _number(edges[tallest + 1])
    return (
        f"Histogram of {cut(name, _TEXT)} in {counted(len(counts), 'bin')}; "
        f"the tallest has {counted(counts[tallest], 'value')} between {low} and {high}"
    )


def _column_facts(stats: Mapping[str, Any]) -> Iterator[LabelledValue]:
    for label, key in (("Mean", "mean"), ("Standard deviation", "std"), ("Days", "range_days")):
        if stats.get(key) is not None:
            yield LabelledValue(label, _number(stats[key]))
    for key, value in (stats.get("percentiles") or {}).items():
        yield LabelledValue(f"{key[1:]} %", _number(value))
    if stats.get("non_finite_count"):
        yield LabelledValue("Not finite", f"{stats['non_finite_count']:,}")
    for label, key in (("Characters", "char_length"), ("Words", "token_count")):
        if stats.get(f"avg_{key}") is not None:
            least, most = stats[f"min_{key}"], stats[f"max_{key}"]
            yield LabelledValue(label, f"{least:,} to {most:,}, on average {_number(stats[f'avg_{key}'])}")
    if languages := stats.get("detected_languages"):
        shares = (f"{name} {percent(part)}" for name, part in by_share(languages))
        yield LabelledValue("Languages", ", ".join(shares))


# The page of a comparison: what exceeds its limit first, then every column, last what was not compared.

_MARKS = {
    "breach": ("faulty", "limit exceeded"),
    "ok": ("ok", "within its limit"),
    "note": ("none", "no limit"),
}
"""How a verdict is marked, and in words."""
_SHOWN_LANGUAGES = 3
_RARE, _FEW = 0.01, 3
"""Of values that are all rarer than this, few are shown: they are much like keys."""


@dataclass(frozen=True, slots=True)
class DriftPage:
    """The page of a comparison of two profiles."""

    document: Mapping[str, Any]
    """Of the comparison (`Drift.to_document`)."""
    before: ComparedProfile
    after: ComparedProfile

    def html(self, limits: DriftPageLimits = DRIFT_PAGE) -> str:
        """One self-contained HTML page about a comparison, no larger than `limits` allow."""
        return pages.fitted(self._rendered, limits)

    def _rendered(self, limits: DriftPageLimits) -> str:
        names = excerpt(self._shared_columns(), limits.columns)
        places = {name: place for place, name in enumerate(names.shown)}
        lines = [_line(line, places, limits) for line in self.document["lines"]]
        by_column: dict[int | None, list[Any]] = {}
        for line in lines:
            by_column.setdefault(line["place"], []).append(line)
        rows = self.before.rows, self.after.rows
        columns = [
            _drifted(
                self.before.columns[name], self.after.columns[name], rows, by_column.get(place, ()), limits
            )
            for name, place in places.items()
        ]
        state, title, lead = self._verdict()
        missing = [
            (cut(each["column"], limits.text) if each["column"] is not None else "all rows", each["reason"])
            for each in self.document["notCompared"]
        ]
        sides = dict.fromkeys(cut(side.name, limits.text) for side in (self.before, self.after))
        return pages.one_page(
            "profiles",
            "drift.html.j2",
            "drift.css",
            state=state,
            title=title,
            lead=lead,
            name=" → ".join(sides),
            facts=self._facts(),
            notes=excerpt(self.document["notes"], limits.lines),
            breaches=excerpt([line for line in lines if line["state"] == "faulty"], limits.lines),
            columns=columns,
            columns_rest=names.rest,
            lines=excerpt(lines, limits.lines),
            missing=excerpt(missing, limits.lines),
            sides=(
                f"before: block {self.before.sequence_number:,}",
                f"after: block {self.after.sequence_number:,}",
            ),
        )

    def _shared_columns(self) -> list[str]:
        # those with breaches in the order of the lines, then the others
        both = [name for name in self.after.columns if name in self.before.columns]
        first = [
            line["column"]
            for line in self.document["lines"]
            if line["verdict"] == "breach" and line["column"] in both
        ]
        return list(dict.fromkeys([*first, *both]))

    def _verdict(self) -> tuple[str, str, str]:
        # the headline must not claim more than was compared
        breaches = self.document["breaches"]
        if breaches:
            return "faulty", "Limits exceeded", f"{counted(breaches, 'figure')} beyond what the limits allow."
        if not any(line["verdict"] == "ok" and line["column"] is not None for line in self.document["lines"]):
            return (
                "unchecked",
                "Not judged",
                "No distribution was held against a limit; the last part says why.",
            )
        rest = (
            " by what was compared; the last part says what was not" if self.document["notCompared"] else ""
        )
        return "ok", "Within the limits", f"No limit is exceeded{rest}."

    def _facts(self) -> list[LabelledValue]:
        whole = {line["metric"]: line for line in self.document["lines"] if line["column"] is None}
        facts = [LabelledValue("Rows", f"{self.before.rows:,} → {self.after.rows:,}")]
        if "jaccard" in whole:
            facts.append(LabelledValue("In common", whole["jaccard"]["text"]))
        for label, side in (("Before", self.before), ("After", self.after)):
            where = f"block {side.sequence_number:,} of {side.name}, {pages.moment(side.created_at)}"
            facts += [LabelledValue(label, where), LabelledValue("", side.snapshot_id, code=True)]
        if self.before.dataset_id == self.after.dataset_id:
            return [*facts, LabelledValue("Dataset", self.after.dataset_id, code=True)]
        return facts + [
            LabelledValue("Datasets", side.dataset_id, code=True) for side in (self.before, self.after)
        ]


def _line(line: Mapping[str, Any], places: Mapping[str, int], limits: DriftPageLimits) -> dict[str, Any]:
    column, value = line["column"], line["value"]
    state, word = _MARKS[line["verdict"]]
    return {
        "column": cut(column, limits.text) if column is not None else "all rows",
        "place": places.get(column),
        "metric": line["metric"].replace("_", " "),
        "value": _number(value),
        "limit": "" if value is None else _number(line["limit"]),
        "state": state,
        "word": word,
        "text": cut(line["text"], limits.text * 2),
    }


def _drifted(
    one: ComparedColumn,
    other: ComparedColumn,
    rows: tuple[int, int],
    lines: Sequence[Mapping[str, Any]],
    limits: DriftPageLimits,
) -> dict[str, Any]:
    name, bins = cut(other.name, limits.text), common_bins(one, other)
    states = [line["state"] for line in lines]
    state = next((mark for mark, _ in _MARKS.values() if mark in states), "none")
    word = {"faulty": "limit exceeded", "ok": "within its limits"}.get(state, "not judged")
    label = f"Distribution of {name}: before as bars, after as a dashed line; the table has the numbers"
    return {
        "name": name,
        "dtype": cut(" → ".join(dict.fromkeys((one.dtype, other.dtype))), limits.text),
        "state": state,
        "word": word,
        "picture": _overlaid(bins.before, bins.after, label) if bins is not None else None,
        "ends": (_number(bins.low), _number(bins.high)) if bins is not None else ("", ""),
        "middle": bins is not None and bins.middle,
        "figures": list(_figures(one, other)),
        "common": _common_values(one, other, rows, limits),
    }


def _figures(one: ComparedColumn, other: ComparedColumn) -> Iterator[tuple[str, str, str]]:
    for label, of in _FIGURES.items():
        before, after = of(one), of(other)
        if before is not None or after is not None:
            yield label, _figure(before), _figure(after)


def _figure(value: float | str | None) -> str:
    return "none" if value is None else _number(value if isinstance(value, str) else float(value))


def _languages(column: ComparedColumn) -> str | None:
    common = by_share(column.languages)[:_SHOWN_LANGUAGES]
    return ", ".join(f"{cut(name, 20)} {part:.0%}" for name, part in common) or None


def _quantile(place: int) -> Callable[[ComparedColumn], float | None]:
    return lambda column: column.quantiles[place] if column.quantiles else None


def _length(name: str) -> Callable[[ComparedColumn], float | None]:
    return lambda column: column.lengths.get(name)


_FIGURES: Mapping[str, Callable[[ComparedColumn], float | str | None]] = {
    "nulls": lambda column: f"{column.null_fraction:.2%}",
    "distinct values": lambda column: _about(column.num_unique, column.estimated),
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


def _common_values(
    one: ComparedColumn, other: ComparedColumn, rows: tuple[int, int], limits: DriftPageLimits
) -> Excerpt[dict[str, Any]]:
    # the values whose shares are furthest apart, then the commonest
    shares = {
        value: (_share_of(value, one, rows[0]), _share_of(value, other, rows[1]))
        for value in {*one.top_values, *other.top_values}
    }

    def order(value: str) -> tuple[float, float, str]:
        before, after = shares[value]
        apart = abs(after - before) if before is not None and after is not None else 0.0
        return (-apart, -max(before or 0.0, after or 0.0), value)

    rare = all((part or 0.0) < _RARE for parts in shares.values() for part in parts)
    kept = excerpt(sorted(shares, key=order), min(limits.values, _FEW) if rare else limits.values)
    most = max((part for value in kept.shown for part in shares[value] if part), default=1.0)
    unknown = [
        "none" if n <= side.null_count else "not listed" for side, n in zip((one, other), rows, strict=True)
    ]

    def row(value: str) -> dict[str, Any]:
        before, after = (
            word if part is None else f"{part:.2%}" for part, word in zip(shares[value], unknown, strict=True)
        )
        bars = _paired_bar(*((part or 0.0) / most for part in shares[value]))
        name = cut(value, limits.text) or "(empty text)"
        return {"value": name, "before": before, "after": after, "bars": bars}

    return Excerpt(tuple(map(row, kept.shown)), kept.rest)


def _share_of(value: str, column: ComparedColumn, rows: int) -> float | None:
    # None where the value is not listed but may occur, or no values are listed
    total = rows - column.null_count
    if total <= 0:
        return None
    if value in column.top_values:
        return min(column.top_values[value] / total, 1.0)
    return 0.0 if column.coverage == 1 else None


# Two histograms rebinned to common edges, for a picture. Counts are spread evenly within a bin, quantiles
# within a step; with far outliers only the 1st to the 99th percentile is drawn (RFC-041).

_COMMON_BINS = 40
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
    count = _COMMON_BINS if high > low else 1
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


# Inline SVG of distributions, distinguished by shape and outline, not by colour alone; without script, style
# or text but an accessible label. The classes are defined in `base.css`.

_WIDTH, _HEIGHT = 500, 90
_BAR_WIDTH, _BAR_HEIGHT = 100, 12


def histogram(counts: Sequence[float], label: str) -> Markup:
    """Bars side by side, the tallest as tall as the picture; a bin with anything in it is seen."""
    return _drawn(label, Markup("").join(_filled(counts, max(counts, default=0))))


def _overlaid(one: Sequence[float], other: Sequence[float], label: str) -> Markup:
    """Two distributions over the same bins: shares of the first as bars, of the second as a dashed line."""
    most = max(*one, *other, 0)
    return _drawn(label, Markup("").join([*_filled(one, most), _outline(other, most)]))


def _bar(share: float) -> Markup:
    # the page shows the number next to it
    return _bars(_share_rect(share, _BAR_HEIGHT))


def _paired_bar(one: float, other: float) -> Markup:
    # one below the other: the second is an outline with dashes
    half = _BAR_HEIGHT // 2
    outline = Markup('<rect class="outline" y="{}" width="{}" height="{}"/>')
    return _bars(_share_rect(one, half), outline.format(half + 1, _bar_length(other), half - 1))


def _share_rect(share: float, height: int) -> Markup:
    return Markup('<rect class="bars" width="{}" height="{}"/>').format(_bar_length(share), height)


def _drawn(label: str, inside: Markup) -> Markup:
    return Markup(
        '<svg class="picture" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '{}<path class="floor" d="M0 {}H{}"/></svg>'
    ).format(escape(label), _WIDTH, _HEIGHT + 1, inside, _HEIGHT + 0.5, _WIDTH)


def _bars(*inside: Markup) -> Markup:
    return Markup('<svg class="share" aria-hidden="true" viewBox="0 0 {} {}">{}</svg>').format(
        _BAR_WIDTH, _BAR_HEIGHT, Markup("").join(inside)
    )


def _filled(counts: Sequence[float], most: float) -> Iterator[Markup]:
    # a bar for each bin that is not empty
    edges = _edges(len(counts))
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        if count > 0 and most > 0:
            height = _height(count, most)
            yield Markup('<rect class="bars" x="{}" y="{}" width="{}" height="{}"/>').format(
                left, _HEIGHT - height, round(right - left - 0.5, 2), height
            )


def _outline(counts: Sequence[float], most: float) -> Markup:
    # the upper edge of the bars as one line
    steps = [f"M0 {_HEIGHT}"]
    edges = _edges(len(counts))
    for (_, right), count in zip(pairwise(edges), counts, strict=True):
        height = _height(count, most) if count > 0 and most > 0 else 0
        steps.append(f"V{_HEIGHT - height:g}H{right:g}")
    return Markup('<path class="outline" d="{}V{}"/>').format("".join(steps), _HEIGHT)


def _edges(bins: int) -> list[float]:
    return [round(_WIDTH * number / bins, 2) for number in range(bins + 1)] if bins else [0]


def _height(count: float, most: float) -> float:
    return max(1.0, round(_HEIGHT * count / most, 2))


def _bar_length(share: float) -> float:
    return round(_BAR_WIDTH * min(max(share, 0.0), 1.0), 2)
