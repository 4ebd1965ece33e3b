"""Output of `diff` for rows: a line for each value that changed, or for each row, or counts."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.queries import check_conflict_file, conflict_records, write_conflicts
from odfchain.api.snapshots import drift_between
from odfchain.cli.context import open_workspace, options, report_error, say
from odfchain.cli.output import cell_text, count_of, numeric_columns, print_records, python_values
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.result_output import TABLE_ROWS, reader_stays, write_rows
from odfchain.cli.screen import echo, echo_csv, echo_json, echo_page, echo_table, standard_output
from odfchain.errors import MergeConflictError, OdfchainError, UsageError
from odfchain.text import counted, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain import Profile
    from odfchain.results import ChangeOutcome, Diff, Drift, DriftLine, IngestOutcome


_Row = dict[str, Any] | None

# Characters of a hash that say which one is meant.
_SHORT = 12


def print_row_diff(dataset: str, a: str, b: str | None, output: str, *, stat: bool, keys_only: bool) -> None:
    """Compare the states at two points, and print what differs and how far they are from each other."""
    if stat and keys_only:
        raise UsageError("--stat and --keys-only show different things: give one of them")
    with open_workspace() as workspace:
        found = workspace[dataset].diff(a, b)
    if keys_only and not found.key:
        raise UsageError(f"{dataset} has no primary key", hint="leave --keys-only out to see the records")
    if stat:
        _print_stat(found, output)
    elif output in ("json", "ndjson"):
        shown = found.changes.select(range(len(found.key) + 1)) if keys_only else found.changes
        with reader_stays():
            stream = standard_output()
            write_rows(shown.schema, shown.to_batches(), output, stream, shown=sys.stdout.isatty())
            stream.flush()
    else:
        _print_lines(found, output, keys_only=keys_only)
    say(_summary(found, *(("head", a) if b is None else (a, b))))
    if found.on_trust:
        say(
            f"note: slices before these blocks are not here, so the blocks say what was before them; "
            f"`odfchain fetch {dataset}` brings them"
        )


def _print_stat(found: Diff, output: str) -> None:
    rows: list[dict[str, Any]] = [
        {"change": change.value, "column": None, "records": count}
        for change, count in found.counts.items()
        if count
    ]
    rows += [
        {"change": "changed", "column": name, "records": count}
        for name, count in found.changed_columns.items()
    ]
    print_records(rows, ["change", "column", "records"], output, right=["records"])


def _print_lines(found: Diff, output: str, *, keys_only: bool) -> None:
    people = output == "table"
    data = [field.name for field in found.changes.schema.field(-2).type]
    names = [*found.key, "change"]
    if not keys_only:
        names += ["column", "from", "to"] if found.key else data
    with reader_stays():
        lines = _lines(found, data, people=people, keys_only=keys_only)
        if not people:
            echo_csv(names, lines)
            return
        shown = list(itertools.islice(lines, TABLE_ROWS))
        right = {names.index(name) for name in numeric_columns(found.changes.schema) if name in found.key}
        echo_table(names, shown, right=right)
        left = sum(1 for _ in lines)
    if left:
        say(f"{count_of(left, 'line')} more; -o csv shows all, --stat how many there are")


def _lines(found: Diff, data: list[str], *, people: bool, keys_only: bool) -> Iterator[list[str]]:
    for key, change, before, after, columns in _rows(found):
        if keys_only:
            yield [*key, change]
        elif not found.key:
            row = before or after or {}
            yield [change, *(cell_text(row[name]) for name in data)]
        elif columns:
            for name in columns:
                yield [*key, change, name, *(cell_text(row[name]) for row in (before, after) if row)]
        else:
            yield from _of_one_side([*key, change], before, after, data, people=people)


def _of_one_side(
    start: list[str], before: _Row, after: _Row, data: list[str], *, people: bool
) -> Iterator[list[str]]:
    row = before or after or {}
    given = [name for name in data if row[name] is not None]
    # people need no values of a removed record
    if (people and before is not None) or not given:
        yield [*start, "", "", ""]
        return
    for name in given:
        text = cell_text(row[name])
        yield [*start, name, *((text, "") if before is not None else ("", text))]


def _rows(found: Diff) -> Iterator[tuple[list[str], str, _Row, _Row, list[str]]]:
    for batch in found.changes.to_batches():
        *keys, changes, before, after, columns = (python_values(column) for column in batch.columns)
        texts = [[cell_text(value) for value in values] for values in keys]
        rows = zip(*texts, strict=True) if texts else itertools.repeat((), batch.num_rows)
        for key, *rest in zip(rows, changes, before, after, columns, strict=True):
            yield list(key), *rest


def _summary(found: Diff, a: str, b: str) -> str:
    # long hashes are shortened
    a, b = (f"{name[:_SHORT]}…" if len(name) > 64 else name for name in (a, b))
    counts = [f"{count:,} {change.value}" for change, count in found.counts.items() if count]
    number = sum(found.counts.values())
    what = f"{count_of(number, 'record')}: {', '.join(counts)}" if counts else "no records differ"
    return (
        f"{what}. {b} has {count_of(found.ahead, 'block')} since block {found.base:,}, "
        f"{a} {found.behind:,} that {b} lacks"
    )


# Output of `diff --profile`: exceeded limits and how near the others are, JSON, or a page.

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
    seen: set[str | None] = set()
    for line in lines:
        # of each column only the value that is nearest to its limit
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
    short = f"{value:.3f}"
    # three digits, or more where rounding would hide a breach
    return short if limit is None or abs(float(short)) != limit or abs(value) == limit else f"{value:g}"


def _print_aligned(rows: Iterable[tuple[str, ...]]) -> None:
    cells = [[printable(cell, 80) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        echo("   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


# Commands that may end in conflicts: how they are decided, written and printed.


def check_conflict_options(resolve: str | None, conflicts: Path | None) -> None:
    """Nothing where conflicts can be written to a file, if there is one, and that is not the one to be read.

    Raises:
        UsageError: they cannot.
    """
    if conflicts is None:
        return
    check_conflict_file(conflicts)
    if resolve is not None and Path(resolve) == conflicts:
        raise UsageError("--conflicts writes to a file that --resolve does not read")


@contextlib.contextmanager
def conflicts_shown(conflicts: Path | None, output: str, progress: TerminalProgress) -> Iterator[None]:
    """Write and print the conflicts that end what is done within; the error goes on."""
    try:
        yield
    except MergeConflictError as error:
        progress.stop()
        if conflicts is not None:
            write_conflicts(error.conflicts, conflicts)
        print_conflicts(error.conflicts, output)
        raise


def print_conflicts(conflicts: pa.Table, output: str) -> None:
    """Print what is open of the conflicts that an error has, as records."""
    columns = conflicts.column_names[: conflicts.column_names.index("theirs") + 1]
    print_records(conflict_records(conflicts), columns, output)


# Changes of a block, for people and programs.


def print_changes(dataset: str, outcome: ChangeOutcome, output: str) -> None:
    """Print what was committed, or that there was nothing to commit."""
    operations = {op: outcome.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")}
    if output != "table":
        row = {"dataset": dataset, **operations, "block": outcome.number, "head": str(outcome.head)}
        print_records([row], list(row), output)
    elif outcome.up_to_date:
        if not options().quiet:
            echo("nothing to commit: the values are already recorded", fg="yellow", err=True)
    else:
        echo(f"{dataset}: {outcome.summary}; it is block {outcome.number:,}")


# Results of ingestion, for people and programs.


def print_outcome(outcome: IngestOutcome, output: str) -> None:
    """Print what each file brought, and what was committed."""
    columns = ["file", "rows", "+A", "-R", "-C", "+C", "offsets"]
    rows = [
        {
            "file": Path(item.file).name if output == "table" else item.file,
            "rows": item.input_rows,
            **{op: item.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")},
            "offsets": f"{item.offsets[0]}-{item.offsets[1]}" if item.offsets else None,
        }
        for item in outcome.inputs
    ]
    print_records(rows, columns, output, right=columns[1:])
    if options().quiet:
        return
    if outcome.up_to_date:
        echo("up to date: nothing new to commit", fg="yellow", err=True)
    else:
        plural = "s" if outcome.blocks > 1 else ""
        echo(f"committed {outcome.blocks} block{plural}, head is {outcome.head}", fg="green", err=True)


# Profiles as tables: a line for each column, with its histogram in bars.


def print_profile(found: Profile, label: str) -> None:
    """Print a profile of the dataset that is called so."""
    from odfchain.profiles.page import line_of, percent

    document = found.document
    rows = [line_of(column, document["column_stats"][column["name"]]) for column in document["columns"]]
    echo_table(["column", "type", "nulls", "distinct", "values", ""], rows, right={2, 3})
    number = document["odf"]["sequence_number"]
    say(
        f"{label}, block {number}: {count_of(found.num_rows, 'row')}, "
        f"{percent(document['duplicate_row_fraction'])} repeat another one"
    )
