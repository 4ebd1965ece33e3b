"""What a profile says of a column, in the words and signs of a line; whoever shows it makes it harmless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 10
_SHOWN_VALUES = 3


def line_of(column: Mapping[str, Any], stats: Mapping[str, Any]) -> list[str]:
    """A column in a row of a table: name, type, nulls, distinct values, values, and its histogram in bars."""
    counts = stats.get("histogram", {}).get("counts", ())
    shown = [percent(stats["null_fraction"]), distinct_in_words(stats), range_in_words(stats), bars(counts)]
    return [column["name"], column["dtype"], *shown]


def rows_of(stats: Mapping[str, Any]) -> float:
    """How many rows the common values are of."""
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
    """How many different values there are: `3`, `about 48,000`."""
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
