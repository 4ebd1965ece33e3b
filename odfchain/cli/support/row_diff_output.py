"""What `diff` prints of rows: a line for each value that changed, or for each row, or how many."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import cell_text, count_of, numeric_columns, print_records
from odfchain.cli.support.result_output import TABLE_ROWS, reader_stays, write_rows
from odfchain.cli.support.screen import echo_csv, echo_table, standard_output
from odfchain.cli.support.shown_values import python_values
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Diff

_Row = dict[str, Any] | None

_SHORT = 12
"""Characters of a hash that say which one is meant."""


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
    """A record that is only on one side: its values, of which a removed one has none to show to people."""
    row = before or after or {}
    given = [name for name in data if row[name] is not None]
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
    """How many records differ, and how far the two are from each other."""
    a, b = (f"{name[:_SHORT]}…" if len(name) > 64 else name for name in (a, b))
    counts = [f"{count:,} {change.value}" for change, count in found.counts.items() if count]
    number = sum(found.counts.values())
    what = f"{count_of(number, 'record')}: {', '.join(counts)}" if counts else "no records differ"
    return (
        f"{what}. {b} has {count_of(found.ahead, 'block')} since block {found.base:,}, "
        f"{a} {found.behind:,} that {b} lacks"
    )
