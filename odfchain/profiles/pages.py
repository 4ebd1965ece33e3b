"""HTML pages that a person sends to a colleague: one file, no script, nothing that is asked for elsewhere.

A page's content security policy lets a browser use nothing but the one style sheet that it carries. All that
a template shows is escaped, and text is shown on one line in which no character acts, unless it is marked as
markup. Names and values are the publishers': they are cut, and counted where there is no room. The same
documents always give the same page. Those of a profile and of the comparison of two are made here, too.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from odfchain.limits import DRIFT_PAGE, AnyPageLimits, DriftPageLimits
from odfchain.profiles.reader import FIGURES, ComparedColumn, ComparedProfile, by_share, share
from odfchain.text import counted, cut, human_size, number, one_line, percent, printable

if TYPE_CHECKING:
    from jinja2 import Environment, Template


L = TypeVar("L", bound=AnyPageLimits)
Render = Callable[..., str]
"""Makes a page of a room, a template there and values: `one_page`, or what `within` gives."""


def one_page(room: str, template: str, **values: Any) -> str:
    """The page that a template makes of some values, as a file that carries the stylesheet.

    The template is a file in a room of the package, such as `audit`. It extends `frame.html.j2`, and finds
    macros in `parts.html.j2`.
    """
    sheet = _packaged("profiles", "style.css")
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    source = f"sha256-{digest}"
    return _template(room, template).render(site=None, h1="h1", style=sheet, style_source=source, **values)


def site_page(template: str, *, root: str, site: Mapping[str, Any], **values: Any) -> str:
    """A page of a node whose addresses begin with `root`, such as `/`; it links stylesheet and icon.

    `site` is what the head and the foot say of the node: `version`, `sql`, and `did` where it has one.
    """
    made = _template("node/templates", f"{template}.html.j2")
    return made.render(site=site, root=root, style=stylesheet()[0], **values)


def compile_template(name: str) -> None:
    """A template of a node's pages, and what it is made of, is compiled from now on."""
    _template("node/templates", f"{name}.html.j2")
    for shared in ("frame", "parts"):
        _environment().get_template(f"{shared}.html.j2")


def within(*, root: str, site: Mapping[str, Any], dataset: Any, tab: str, **frame: Any) -> Render:
    """Makes what is a file in `-o html` a page of a node, on a tab below the head of its dataset."""

    def render(room: str, template: str, **values: Any) -> str:
        known = {"site": site, "root": root, "style": stylesheet()[0], "here": "Datasets", **frame}
        return _template(room, template).render(report_of=dataset, tab=tab, h1="h2", **known, **values)

    return render


@lru_cache(maxsize=1)
def stylesheet() -> tuple[str, bytes]:
    """The stylesheet of every page of a node, and its name: other bytes never have the same one."""
    sheet = _packaged("profiles", "style.css").encode()
    return f"style.{hashlib.sha256(sheet).hexdigest()[:16]}.css", sheet


def icon() -> bytes:
    """The mark of the product, as SVG."""
    return _packaged("profiles", "icon.svg").encode()


def text_of(room: str, template: str, **values: Any) -> str:
    """What a template of a text makes of some values, for people: in no value a character acts."""
    return _template(room, template).render(**values)


def fitted(render: Callable[[L], str], limits: L) -> str:
    """The page that is made within these limits, halved again and again until it is small enough."""
    page = render(limits)
    while len(page.encode()) > limits.page_bytes:
        names = [f.name for f in fields(limits) if f.name != "page_bytes"]
        halved = replace(limits, **{name: max(1, getattr(limits, name) // 2) for name in names})
        if halved == limits:
            break
        limits = halved
        page = render(limits)
    return page


@lru_cache(maxsize=64)
def _packaged(room: str, name: str) -> str:
    return resources.files("odfchain").joinpath(room, name).read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def _template(room: str, name: str) -> Template:
    return _environment().from_string(_packaged(room, name))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # "audit/page.html.j2" is that file of another room
        loader=FunctionLoader(lambda name: _packaged("" if "/" in name else "profiles", name)),
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {
        f.__name__: f for f in (counted, cut, human_size, moment, number, one_line, percent)
    }
    return environment


# Formatting of numbers, times and lists of blocks.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[T]):
    """The first of many things, and how many were left out."""

    shown: tuple[T, ...]
    rest: int = 0


def excerpt(things: Sequence[T], limit: int) -> Excerpt[T]:
    """At most `limit` of the things."""
    return Excerpt(tuple(things[:limit]), max(0, len(things) - limit))


def listed(words: Sequence[str]) -> str:
    """Words as in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def moment(text: str) -> str:
    """A time of RFC 3339 in UTC, to the second; text that is no time stays as it is."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


# Unescaped text of one column: callers escape it.

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 10
_SHOWN_VALUES = 3
_ALMOST = 0.9
"""Where more of the rows have a value that is not repeated, all are said to differ."""


def line_of(column: Mapping[str, Any], stats: Mapping[str, Any]) -> list[str]:
    """A column in a row of a table: name, type, nulls, distinct values, values, and its histogram in bars."""
    counts = stats.get("histogram", {}).get("counts", ())
    shown = [percent(stats["null_fraction"]), _distinct(stats), _range(stats), _in_bars(counts)]
    return [column["name"], column["dtype"], *shown]


def _rows(stats: Mapping[str, Any]) -> float:
    # with the common values
    values = stats.get("top_values")
    return sum(values.values()) / (stats["top_values_coverage"] or 1) if values else 0


def all_differ(stats: Mapping[str, Any]) -> bool:
    """Whether nearly every row has a value of its own, or every value is rare: no share says anything."""
    values, rows, distinct = stats.get("top_values") or {}, _rows(stats), stats["num_unique"]
    if not values or distinct <= _BINS:
        return False
    return bool(distinct > _ALMOST * rows or max(values.values()) < _RARE * rows)


def lengths(stats: Mapping[str, Any], of: str = "char_length", unit: str = "") -> str:
    """The least and the largest number of characters of a column, or of words, and how many on average."""
    least, most, mean = (stats.get(f"{name}_{of}") for name in ("min", "max", "avg"))
    if least is None or most is None or mean is None:
        return ""
    return f"{least:,} … {most:,}{unit}, {mean:,.1f} on average" if least != most else f"{least:,}{unit}"


def _range(stats: Mapping[str, Any]) -> str:
    # the commonest values; lengths and examples where all differ; or the least and the largest, if said
    if all_differ(stats):
        such = ", ".join(cut(value, 40) for value, _ in by_share(stats["top_values"])[:_SHOWN_VALUES])
        return ": ".join(filter(None, (lengths(stats, unit=" characters"), f"{such}, …")))
    if stats.get("top_values"):
        rows, common = _rows(stats), by_share(stats["top_values"])[:_SHOWN_VALUES]
        shown = [f"{value} {percent(count / rows)}" for value, count in common]
        return ", ".join(shown) + (", …" if stats["num_unique"] > len(shown) else "")
    if stats.get("min") is None:
        return ""
    mean = f", mean {number(stats['mean'])}" if "mean" in stats else ""
    return f"{number(stats['min'])} … {number(stats['max'])}{mean}"


def _distinct(stats: Mapping[str, Any]) -> str:
    return _about(stats["num_unique"], stats.get("estimated", ()))


def _about(distinct: int, estimated: Collection[str]) -> str:
    return f"{'about ' if 'num_unique' in estimated else ''}{distinct:,}"


def _in_bars(counts: Sequence[int]) -> str:
    # a bin with anything in it has a bar
    if len(counts) < _BINS:
        return _BARS[-1] if sum(counts) else ""
    width = len(counts) // _BINS
    sums = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    most = max(sums)
    return "".join(" " if n == 0 else _BARS[min(n * len(_BARS) // (most + 1), len(_BARS) - 1)] for n in sums)


# The page of a profile.


def profile_page(
    document: Mapping[str, Any], limits: DriftPageLimits = DRIFT_PAGE, render: Render = one_page
) -> str:
    """The page of a profile, no larger than `limits` allow."""

    def rendered(limits: DriftPageLimits) -> str:
        return render(
            "profiles",
            "profile.html.j2",
            document=document,
            columns=document["columns"][: limits.columns],
            summary=_range,
            distinct=_distinct,
            rows=_rows,
            by_share=by_share,
            all_differ=all_differ,
            lengths=lengths,
            figures=FIGURES,
        )

    return fitted(rendered, replace(limits, columns=len(document["columns"])))


# The page of a comparison: what exceeds its limit first, then every column, last what was not compared.

_SHOWN_LANGUAGES = 3
_RARE, _FEW = 0.01, 3
"""Of values that are all rarer than this, few are shown: they are much like keys."""
_VERDICTS = ("breach", "ok", "note")
"""The worst first."""


def drift_page(
    document: Mapping[str, Any],
    before: ComparedProfile,
    after: ComparedProfile,
    limits: DriftPageLimits = DRIFT_PAGE,
    render: Render = one_page,
) -> str:
    """The page of a comparison (`Drift.to_document`) of two profiles, no larger than `limits` allow."""
    state, title, lead = _verdict(document)
    verdicts: dict[str | None, list[str]] = {}
    for line in document["lines"]:
        verdicts.setdefault(line["column"], []).append(line["verdict"])
    breaches = [line for line in document["lines"] if line["verdict"] == "breach"]
    # columns with breaches in the order of the lines, then the others
    both = [name for name in after.columns if name in before.columns]
    ordered = list(dict.fromkeys([*(line["column"] for line in breaches if line["column"] in both), *both]))

    def rendered(limits: DriftPageLimits) -> str:
        names = excerpt(ordered, limits.columns)
        columns = []
        for name in names.shown:
            one, other = before.columns[name], after.columns[name]
            columns.append({
                "one": one,
                "other": other,
                "verdict": min(verdicts.get(name, ["note"]), key=_VERDICTS.index),
                "bins": common_bins(one, other),
                "common": _common_values(one, other, (before.rows, after.rows), limits),
            })  # fmt: skip
        return render(
            "profiles",
            "drift.html.j2",
            document=document,
            limits=limits,
            state=state,
            title=title,
            lead=lead,
            notes=excerpt(document["notes"], limits.lines),
            breaches=excerpt(breaches, limits.lines),
            columns=columns,
            columns_rest=names.rest,
            places={name: place for place, name in enumerate(names.shown)},
            lines=excerpt(document["lines"], limits.lines),
            missing=excerpt(document["notCompared"], limits.lines),
            figures=_FIGURES,
        )

    return fitted(rendered, limits)


def _verdict(document: Mapping[str, Any]) -> tuple[str, str, str]:
    # the headline must not claim more than was compared
    if breaches := document["breaches"]:
        return "faulty", "Limits exceeded", f"{counted(breaches, 'figure')} beyond what the limits allow."
    if not any(line["verdict"] == "ok" and line["column"] is not None for line in document["lines"]):
        return "unchecked", "Not judged", "No distribution was held against a limit; the last part says why."
    rest = " by what was compared; the last part says what was not" if document["notCompared"] else ""
    return "ok", "Within the limits", f"No limit is exceeded{rest}."


def _languages(column: ComparedColumn) -> str | None:
    common = by_share(column.languages)[:_SHOWN_LANGUAGES]
    return ", ".join(f"{cut(name, 20)} {percent(part, 0)}" for name, part in common) or None


def _quantile(place: int) -> Callable[[ComparedColumn], float | None]:
    return lambda column: column.quantiles[place] if column.quantiles else None


def _figure(name: str) -> Callable[[ComparedColumn], float | None]:
    return lambda column: column.figures.get(name)


_FIGURES: Mapping[str, Callable[[ComparedColumn], float | str | None]] = {
    "nulls": lambda column: percent(column.null_fraction, 2),
    "distinct values": lambda column: _about(column.num_unique, column.estimated),
    "least": lambda column: column.low,
    "5th percentile": _quantile(5),
    "median": _quantile(50),
    "95th percentile": _quantile(95),
    "largest": lambda column: column.high,
    **{label: _figure(name) for name, label in FIGURES.items()},
    "characters, least": _figure("min_char_length"),
    "characters, on average": _figure("avg_char_length"),
    "characters, most": _figure("max_char_length"),
    "words, on average": _figure("avg_token_count"),
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
            word if part is None else percent(part, 2)
            for part, word in zip(shares[value], unknown, strict=True)
        )
        return {
            "value": value, "before": before, "after": after,
            "bars": [(part or 0.0) / most for part in shares[value]],
        }  # fmt: skip

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
