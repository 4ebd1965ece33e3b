"""A profile as one HTML page: what the rows look like, column by column, with pictures and their numbers.

The page is one file that asks for nothing and runs nothing (`profiles.pages`). What there is no room for is
counted. The same profile always gives the same page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.limits import PAGE
from odfchain.profiles.pages import LabelledValue, bar, histogram, one_page
from odfchain.text import counted, cut

if TYPE_CHECKING:
    from markupsafe import Markup


# Unescaped text of one column: callers escape it.

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 10
_SHOWN_VALUES = 3


def line_of(column: Mapping[str, Any], stats: Mapping[str, Any]) -> list[str]:
    """A column in a row of a table: name, type, nulls, distinct values, values, and its histogram in bars."""
    counts = stats.get("histogram", {}).get("counts", ())
    shown = [percent(stats["null_fraction"]), distinct_in_words(stats), range_in_words(stats), bars(counts)]
    return [column["name"], column["dtype"], *shown]


def rows_of(stats: Mapping[str, Any]) -> float:
    """Number of rows with the common values."""
    return (
        sum(stats["top_values"].values()) / (stats["top_values_coverage"] or 1)
        if stats.get("top_values")
        else 0
    )


def by_share(counts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Values and their numbers, the commonest first: the text of a profile has them by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0].encode(errors="surrogatepass")))


def range_in_words(stats: Mapping[str, Any]) -> str:
    """Values of a column in a line: the commonest, or the least and the largest; empty where none is said."""
    if stats.get("top_values"):
        rows, common = rows_of(stats), by_share(stats["top_values"])[:_SHOWN_VALUES]
        shown = [f"{value} {percent(count / rows)}" for value, count in common]
        return ", ".join(shown) + (", …" if stats["num_unique"] > len(shown) else "")
    if stats.get("min") is None:
        return ""
    mean = f", mean {number(stats['mean'])}" if "mean" in stats else ""
    return f"{number(stats['min'])} … {number(stats['max'])}{mean}"


def distinct_in_words(stats: Mapping[str, Any]) -> str:
    """Number of distinct values: `3`, `about 48,000`."""
    return f"{'about ' if 'num_unique' in stats.get('estimated', ()) else ''}{stats['num_unique']:,}"


def number(value: Any) -> str:
    """A number, or a time, for people."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def percent(fraction: float) -> str:
    """A fraction for people: `12.5 %`."""
    return f"{fraction * 100:.1f} %"


def bars(counts: Sequence[int]) -> str:
    """A histogram as a row of bars; a bin with anything in it has one."""
    if len(counts) < _BINS:
        return _BARS[-1] if sum(counts) else ""
    width = len(counts) // _BINS
    sums = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    most = max(sums)
    return "".join(" " if n == 0 else _BARS[min(n * len(_BARS) // (most + 1), len(_BARS) - 1)] for n in sums)


_TOP_VALUES = 10
_TEXT = 120
"""A value or a name [characters]."""
_TAGS = 20


@dataclass(frozen=True, slots=True)
class Share:
    """A value and how often it occurs."""

    name: str
    count: str
    share: str
    picture: Markup


@dataclass(frozen=True, slots=True)
class ColumnView:
    """One column of the page."""

    name: str
    dtype: str
    nulls: str
    distinct: str
    summary: str
    estimated: str
    picture: Markup | None
    ends: tuple[str, str]
    facts: Sequence[LabelledValue]
    top: Sequence[Share]
    rest: str


def profile_page(
    document: Mapping[str, Any], name: str | None = None, most_bytes: int = PAGE.page_bytes
) -> str:
    """The page of a profile, at most as large as pages are; `name` is what the reader calls the dataset."""
    shown = len(document["columns"])
    page = _rendered(document, name, shown)
    while len(page.encode()) > most_bytes and shown:
        shown //= 2
        page = _rendered(document, name, shown)
    return page


def _rendered(document: Mapping[str, Any], name: str | None, shown: int) -> str:
    columns = document["columns"]
    return one_page(
        "profiles",
        "profile.html.j2",
        "profile.css",
        name=cut(name or document["dataset_name"], _TEXT),
        lead=_lead(document),
        facts=list(_facts(document)),
        columns=[_column(document, column) for column in columns[:shown]],
        rest=len(columns) - shown,
        hidden=document["odf"]["hidden"],
    )


def _lead(document: Mapping[str, Any]) -> str:
    repeated = percent(document["duplicate_row_fraction"])
    rows, columns = document["num_rows"], document["num_columns"]
    return f"{counted(rows, 'row')}, {counted(columns, 'column')}; {repeated} of the rows repeat another one."


def _facts(document: Mapping[str, Any]) -> Iterator[LabelledValue]:
    odf, near = document["odf"], document["near_duplicate_estimate"]
    yield LabelledValue("Block", f"{odf['sequence_number']:,} of {document['created_at']}")
    yield LabelledValue("Snapshot", document["snapshot_id"], code=True)
    yield LabelledValue("Dataset", odf["dataset_id"], code=True)
    if document["description"]:
        yield LabelledValue("Description", cut(document["description"], PAGE.message))
    if document["pipeline_stage"]:
        yield LabelledValue("Stage", cut(document["pipeline_stage"], _TEXT))
    if document["transform_description"]:
        yield LabelledValue("What changed", cut(document["transform_description"], PAGE.message))
    for key, value in list(document["tags"].items())[:_TAGS]:
        yield LabelledValue(cut(f"Tag {key}", _TEXT), cut(value, _TEXT))
    yield LabelledValue(
        "Near duplicates", "not looked for" if near is None else f"{percent(near)} of the rows"
    )
    for label, names in (
        ("Constant", document["constant_columns"]), ("Mostly null", document["high_null_columns"]),
    ):  # fmt: skip
        if names:
            yield LabelledValue(label, cut(", ".join(names), PAGE.message))
    yield LabelledValue("Languages", odf["languages"] or "not told")


def _column(document: Mapping[str, Any], column: Mapping[str, Any]) -> ColumnView:
    stats = document["column_stats"][column["name"]]
    counts = stats.get("histogram", {}).get("counts", [])
    top = list(_top(stats))
    return ColumnView(
        name=cut(column["name"], _TEXT),
        dtype=cut(column["dtype"], _TEXT),
        nulls=f"{stats['null_count']:,} ({percent(stats['null_fraction'])})",
        distinct=distinct_in_words(stats),
        summary=range_in_words(stats),
        estimated=", ".join(name.replace("_", " ") for name in stats.get("estimated", ())),
        picture=histogram(counts, _label(column["name"], stats)) if counts else None,
        ends=(number(stats.get("min")), number(stats.get("max"))),
        facts=list(_column_facts(stats)),
        top=top[:_TOP_VALUES],
        rest=_rest(stats, len(top)),
    )


def _label(name: str, stats: Mapping[str, Any]) -> str:
    counts, edges = stats["histogram"]["counts"], stats["histogram"]["bin_edges"]
    tallest = counts.index(max(counts))
    low, high = number(edges[tallest]), number(edges[tallest + 1])
    return (
        f"Histogram of {cut(name, _TEXT)} in {counted(len(counts), 'bin')}; "
        f"the tallest has {counted(counts[tallest], 'value')} between {low} and {high}"
    )


def _column_facts(stats: Mapping[str, Any]) -> Iterator[LabelledValue]:
    for label, key in (("Mean", "mean"), ("Standard deviation", "std"), ("Days", "range_days")):
        if stats.get(key) is not None:
            yield LabelledValue(label, number(stats[key]))
    for key, value in (stats.get("percentiles") or {}).items():
        yield LabelledValue(f"{key[1:]} %", number(value))
    if stats.get("non_finite_count"):
        yield LabelledValue("Not finite", f"{stats['non_finite_count']:,}")
    for label, key in (("Characters", "char_length"), ("Words", "token_count")):
        if stats.get(f"avg_{key}") is not None:
            least, most = stats[f"min_{key}"], stats[f"max_{key}"]
            yield LabelledValue(label, f"{least:,} to {most:,}, on average {number(stats[f'avg_{key}'])}")
    if languages := stats.get("detected_languages"):
        yield LabelledValue(
            "Languages", ", ".join(f"{name} {percent(share)}" for name, share in by_share(languages))
        )


def _top(stats: Mapping[str, Any]) -> Iterator[Share]:
    values = stats.get("top_values") or {}
    rows = rows_of(stats)
    for value, count in by_share(values)[:_TOP_VALUES]:
        share = count / rows if rows else 0.0
        yield Share(cut(value, _TEXT), f"{count:,}", percent(share), bar(share))


def _rest(stats: Mapping[str, Any], shown: int) -> str:
    values = stats["num_unique"] - shown
    return f"{counted(values, 'other value')}" if shown and values > 0 else ""
