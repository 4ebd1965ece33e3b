"""`odfchain profile`: what the rows in force look like."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import cell_text, count_of, format_option
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo_table
from odfchain.errors import UsageError

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 10
_SHOWN_VALUES = 3


@click.command("profile")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option("--stage", metavar="TEXT", help="Where in a pipeline it is: raw, cleaned, featurized, …")
@click.option("--describe", metavar="TEXT", help="What changed since the parent, in your words.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A label of yours; can be repeated.")
@click.option(
    "--hide", multiple=True, metavar="COLUMN", help="Say only counts of this column; can be repeated."
)
@format_option("table", "json")
def profile_command(
    dataset: str, stage: str | None, describe: str | None, tags: tuple[str, ...], hide: tuple[str, ...],
    output: str,
) -> None:  # fmt: skip
    """Show what the rows in force look like: types, nulls, distributions, common values, duplicates.

    A profile is a function of the rows alone: whoever has them computes the same bytes, whatever the machine.
    JSON is its one text. No Java starts, and slices that were profiled before are not read again.
    """
    labels = dict(_label(tag) for tag in tags)
    from odfchain.api.branch_points import at_point

    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        opened = at_point(workspace, dataset)
        found = opened.profile(stage=stage, description=describe, tags=labels, hide=hide, progress=progress)
    if output == "json":
        sys.stdout.buffer.write(found.content + b"\n")
        return
    document = found.document
    rows = [list(_line(column, document["column_stats"][column["name"]])) for column in document["columns"]]
    echo_table(["column", "type", "nulls", "distinct", "values", ""], rows, right={2, 3})
    number = document["odf"]["sequence_number"]
    say(
        f"{opened.label}, block {number}: {count_of(found.num_rows, 'row')}, "
        f"{_percent(document['duplicate_row_fraction'])} repeat another one"
    )


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--tag {text}: not KEY=VALUE")
    return name, value


def _line(column: Mapping[str, Any], stats: Mapping[str, Any]) -> Iterator[str]:
    about = "about " if "num_unique" in stats.get("estimated", ()) else ""
    yield column["name"]
    yield column["dtype"]
    yield _percent(stats["null_fraction"])
    yield f"{about}{stats['num_unique']:,}"
    yield _values(stats)
    yield bars(stats["histogram"]["counts"]) if "histogram" in stats else ""


def _values(stats: Mapping[str, Any]) -> str:
    if stats.get("top_values"):
        rows = sum(stats["top_values"].values()) / (stats["top_values_coverage"] or 1)
        common = list(stats["top_values"].items())
        common.sort(key=lambda item: -item[1])
        shown = [f"{cell_text(value)} {_percent(count / rows)}" for value, count in common[:_SHOWN_VALUES]]
        return ", ".join(shown) + (", …" if stats["num_unique"] > len(shown) else "")
    if stats.get("min") is None:
        return ""
    if "mean" not in stats:
        return f"{stats['min']} … {stats['max']}"
    return f"{_number(stats['min'])} … {_number(stats['max'])}, mean {_number(stats['mean'])}"


def bars(counts: list[int]) -> str:
    """A histogram as a row of bars; a bin with anything in it has one."""
    if len(counts) < _BINS:
        return _BARS[-1] if sum(counts) else ""
    width = len(counts) // _BINS
    sums = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    most = max(sums)
    return "".join(" " if n == 0 else _BARS[min(n * len(_BARS) // (most + 1), len(_BARS) - 1)] for n in sums)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"
