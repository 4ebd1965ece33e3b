"""Everything that the command line prints: no character of unknown origin acts on a terminal (RFC-008).

What is for people is escaped wherever it goes: also `2>&1 | less -R` and a log that is read later end on a
terminal. What is for programs (JSON, CSV, YAML, DDL) is escaped on a terminal only: elsewhere every byte is
data.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from odfchain.text import escaped_json, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text


def echo(line: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print one line for people; `style` is `click.style`'s. A line break in it is seen as `\\n`."""
    text = printable(str(line))
    click.echo(click.style(text, **style) if style else text, err=err, nl=nl)


def echo_json(tree: Any, *, indent: int | None = 2) -> None:
    """Print a JSON document; on a terminal the same data without a character that acts."""
    echo_json_text(json.dumps(tree, default=plain, ensure_ascii=False, indent=indent))


def echo_json_text(document: str | bytes) -> None:
    """Print a document that is JSON already; bytes, which are hashed, are kept wherever nothing acts."""
    if sys.stdout.isatty():
        click.echo(escaped_json(document if isinstance(document, str) else document.decode()))
    else:
        click.echo(_writable_json(document) if isinstance(document, str) else document)


def echo_tree(tree: Any, output: str) -> None:
    """Print a document of the specification's values as `json` or `yaml`, or several as `ndjson`."""
    from odfchain.odf.yaml import dump_json, dump_yaml

    match output:
        case "ndjson":
            for each in tree:
                echo_json_text(dump_json(each, indent=None))
        case "yaml":
            echo_document(dump_yaml(tree))
        case _:
            echo_json_text(dump_json(tree))


def echo_lines(lines: Iterable[str]) -> None:
    """Print the lines of a document that is for programs; a terminal gets each as one line."""
    shown = sys.stdout.isatty()
    for line in lines:
        click.echo(printable(line) if shown else line)


def echo_document(text: str) -> None:
    """Print a document of several lines that is for programs."""
    echo_lines(text.removesuffix("\n").split("\n"))


def echo_manual(text: str) -> None:
    """Show a page of the manual: folded and page by page on a terminal, as it is elsewhere."""
    if sys.stdout.isatty():
        text = "\n".join(_folded(text.split("\n"), shutil.get_terminal_size().columns - 1))
        click.echo_via_pager(text)
    else:
        echo_document(text)


def _folded(lines: Iterable[str], width: int) -> Iterator[str]:
    example = False
    for line in lines:
        # examples and tables keep their lines
        example ^= line.startswith("```")
        if example or len(line) <= width or line.startswith("|"):
            yield line
        else:
            yield from textwrap.wrap(line, width, subsequent_indent="  " * line.startswith("- "))


def echo_page(page: str) -> None:
    """Print a page that says itself that it is UTF-8."""
    if sys.stdout.isatty():
        echo_document(page)
    else:
        click.echo(page.encode(errors="backslashreplace"), nl=not page.endswith("\n"))


def echo_csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    shown = sys.stdout.isatty()
    for row in (header, *rows):
        writer.writerow(map(printable, row) if shown else row)


def echo_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str | Sequence[str]]],
    *,
    right: Collection[int] = (),
    no_wrap: Collection[int] = (),
) -> None:
    """Print a table: fitted to the terminal, or as plain columns elsewhere.

    `right` are the columns that are aligned right, `no_wrap` those that stay on one line. A cell may have
    several lines.
    """
    cells = [[_cell(cell) for cell in row] for row in (names, *rows)]
    if not sys.stdout.isatty():
        for line in aligned(cells, right=right):
            click.echo(line)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, name in enumerate(cells[0]):
        table.add_column(
            Text(name),
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=index in no_wrap,
        )
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    console().print(table)


def aligned(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), gap: str = "  ") -> Iterator[str]:
    """The rows as lines of plain columns; nothing in them is escaped."""
    cells = list(rows)
    # the widest value of each column needs all rows
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            text.rjust(width) if place in right else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield gap.join(padded).rstrip()


def styled(text: str, style: str | Style = "") -> Text:
    """One line for a tree, a table or a progress bar of `rich`; nothing in it is read as markup."""
    from rich.text import Text

    return Text(printable(text), style=style)


def console(*, err: bool = False, width: int | None = None) -> Console:
    """The terminal as `rich` draws on it, for what `styled` has made safe."""
    from rich.console import Console

    return Console(stderr=err, width=width, markup=False, emoji=False, highlight=False)


def is_interactive() -> bool:
    """True if standard input is a terminal, so that questions can be answered."""
    return sys.stdin is not None and sys.stdin.isatty()


def standard_input() -> BinaryIO:
    """The bytes that are piped in; none where standard input is closed."""
    return sys.stdin.buffer if sys.stdin is not None else io.BytesIO()


def standard_output() -> BinaryIO:
    """Where bytes go that are for programs; what was printed before is written first."""
    sys.stdout.flush()
    return sys.stdout.buffer


def ask(question: str) -> bool:
    """The answer to a question."""
    return click.confirm(printable(question), err=True)


def ask_text(question: str, *, hidden: bool = False) -> str:
    """The answer to a question, which may be empty, or one that is not shown."""
    how: dict[str, Any] = {} if hidden else {"default": "", "show_default": False}
    found: str = click.prompt(printable(question), hide_input=hidden, err=True, **how)
    return found if hidden else found.strip()


def _cell(content: str | Sequence[str]) -> str:
    return printable(content) if isinstance(content, str) else "\n".join(map(printable, content))


def _writable_json(document: str) -> str:
    try:
        document.encode()
    except UnicodeEncodeError:
        # no encoding can write a lone surrogate
        return escaped_json(document)
    return document


def print_records(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[str],
    output: str,
    *,
    shown: Mapping[str, Callable[[Any], object]] | None = None,
    titles: Mapping[str, str] | None = None,
    right: Sequence[str] = (),
    no_wrap: Sequence[str] = (),
) -> None:
    """Print records: JSON has all of each, CSV and tables the columns.

    In tables `shown` writes the values of a column, `titles` are headings, `right` is aligned right, and
    `no_wrap` stays on one line. A cell that is a tuple has several lines.
    """
    match output:
        case "json":
            echo_json(list(rows))
        case "ndjson":
            for row in rows:
                echo_json(row, indent=None)
        case "csv":
            echo_csv(columns, ([cell_text(row.get(c)) for c in columns] for row in rows))
        case _:

            def cell(row: dict[str, Any], column: str) -> str | Sequence[str]:
                value = row.get(column)
                if value is not None and shown is not None and column in shown:
                    value = shown[column](value)
                return value if isinstance(value, tuple) else cell_text(value)

            cells = ([cell(row, column) for column in columns] for row in rows)
            names = [(titles or {}).get(c, c) for c in columns]
            places = [{columns.index(c) for c in each} for each in (right, no_wrap)]
            echo_table(names, cells, right=places[0], no_wrap=places[1])


def record(result: object, *names: str) -> dict[str, Any]:
    """These properties of a result as documents have them."""
    from odfchain.odf.tree import record_of

    return record_of(result, *names)


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    match value:
        case dt.datetime():
            utc = value.astimezone(dt.UTC) if value.tzinfo else value
            fine = "microseconds" if utc.microsecond % 1_000 else "milliseconds"
            text = utc.isoformat(timespec=fine if utc.microsecond else "seconds")
            return text.replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case dt.timedelta():
            return value.total_seconds()
    return str(value)


def cell_text(value: Any) -> str:
    """A value as a table and CSV have it; nothing for None."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list() | dict():
            return json.dumps(value, default=plain, ensure_ascii=False)
    return str(plain(value))


def human_size(size: float) -> str:
    """Bytes for people: `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_age(epoch_ns: int, now_ns: int) -> str:
    """A time for people: `3 hours ago`."""
    seconds = (now_ns - epoch_ns) // 1_000_000_000
    if seconds < 0:
        return "in the future"
    for size, unit in (
        (31_536_000, "year"),
        (2_592_000, "month"),
        (86_400, "day"),
        (3_600, "hour"),
        (60, "minute"),
    ):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
