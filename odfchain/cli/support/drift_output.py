"""What `diff --profile` prints: the limits that are exceeded and how near the others are, JSON, or a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.drifting import drift_between
from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo, echo_json, echo_page
from odfchain.errors import OdfchainError, UsageError
from odfchain.text import counted, printable

if TYPE_CHECKING:
    from odfchain import Drift, DriftLine

_FORMATS = ("table", "json", "html")
_EXCEEDED = 3
_LINES = 60
_SAID = 10


def print_drift(a: str, b: str | None, policy: Path | None, output: str, *, compute: bool) -> int:
    """Compare two profiles, print what was found, and return the exit code; errors as `drift_between`."""
    if output not in _FORMATS:
        raise UsageError(f"--profile prints {', '.join(_FORMATS)}, not {output}")
    with TerminalProgress(quiet=options().quiet) as progress:
        found = drift_between(a, b, open_workspace, policy=policy, compute=compute, progress=progress)
    if output == "json":
        echo_json(found.to_document())
    elif output == "html":
        echo_page(found.to_html())
    else:
        _print_table(found)
    if not found.breaches:
        return 0
    number = len(found.breaches)
    page = "" if output == "html" else "look at the page (-o html), or "
    report_error(
        OdfchainError(
            "1 limit is exceeded" if number == 1 else f"{number:,} limits are exceeded",
            hint=f"{page}raise the limits in a policy (--policy)",
        )
    )
    return _EXCEEDED


def _print_table(found: Drift) -> None:
    before, after = found.before, found.after
    names = [before.name] if before.dataset_id == after.dataset_id else [before.name, after.name]
    likeness = [f"Jaccard {line.value:.3f}" for line in found.lines if line.metric == "jaccard"]
    heading = [
        " → ".join(names),
        f"block {before.sequence_number:,} → {after.sequence_number:,}",
        f"{before.rows:,} → {after.rows:,} rows",
        *likeness,
    ]
    echo("   ".join(heading))
    shown = list(_shown(found.lines))
    _print_aligned(_cells(line) for line in shown[:_LINES])
    if len(shown) > _LINES:
        say(f"{counted(len(shown) - _LINES, 'more line')}; -o json has all")
    for note in [*found.notes, *(f"not compared: {each}" for each in found.not_compared)][:_SAID]:
        say(f"note: {note}")
    if len(found.not_compared) > _SAID:
        say("note: -o json says of all what was not compared, and why")


def _shown(lines: Iterable[DriftLine]) -> Iterator[DriftLine]:
    """Every breach, changes of the schema, and of each other column what is nearest to its limit."""
    seen: set[str | None] = set()
    for line in lines:
        near = line.limit is not None and line.value and line.metric != "rows" and line.column not in seen
        if line.breach or near or line.metric.startswith("schema"):
            yield line
            seen.add(line.column)


def _cells(line: DriftLine) -> tuple[str, ...]:
    value = "" if line.value is None else f" {_number(line.value, line.limit)}"
    limit = "" if line.value is None or line.limit is None else f"limit {line.limit:g}"
    return (
        "(dataset)" if line.column is None else line.column,
        f"{line.metric}{value}",
        limit,
        line.verdict,
        line.text,
    )


def _number(value: float, limit: float | None) -> str:
    """Three digits behind the point; more where a limit would not be seen to be exceeded."""
    short = f"{value:.3f}"
    return short if limit is None or abs(float(short)) != limit or abs(value) == limit else f"{value:g}"


def _print_aligned(rows: Iterable[tuple[str, ...]]) -> None:
    cells = [[printable(cell, 80) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        echo("   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
