"""Everything that the command line prints: no character of unknown origin acts on a terminal (RFC-008).

What is for people is escaped wherever it goes: also `2>&1 | less -R` and a log that is read later end on a
terminal. What is for programs (JSON, CSV, YAML, DDL) is escaped on a terminal only: elsewhere every byte is
data.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from odfchain.query.row_formats import cell_text, plain
from odfchain.text import counted, escaped_json, printable, text_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text


WIDE = "odfchain.wide"
"""In the context of a running command: `--wide` was given."""
CUT = "… is cut: --wide, or -o json"
"""The last line where a text is cut, and no column is left out."""
_COPIED = {"url", "path", "source", "destination", "alias", "origin", "id", "head", "next"}
"""Columns that people copy from: they are shown whole or not at all, as those of hashes."""


def echo(line: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print one line for people; `style` is `click.style`'s. A line break in it is seen as `\\n`."""
    text = printable(str(line))
    plain = not style or os.environ.get("NO_COLOR")
    click.echo(text if plain else click.style(text, **style), err=err, nl=nl)


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
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[int] = (),
    uncut: Collection[int] = (),
    keys: int = 1,
) -> None:
    """Print a table that fits the terminal, or 80 characters elsewhere: a row is a line.

    `right` are the columns of numbers, which are aligned right; they are never cut, nor are those of `uncut`.
    `keys` is how many of the first columns are never left out. Long texts end in `…`, and a last line says so
    or names the columns that do not fit.
    """
    width = table_width()
    # a longer text does not fit, and is not measured
    cells = [[printable(cell, 8 * width) for cell in row] for row in (names, *rows)]
    widths = fitted(cells, width, uncut={*right, *uncut}, keys=keys)
    kept = [[shortened(row[place], most) for place, most in widths.items()] for row in cells]
    right = {number for number, place in enumerate(widths) if place in right}
    shown = sys.stdout.isatty()
    for number, line in enumerate(aligned(kept, right=right)):
        click.echo(click.style(line, bold=True) if shown and not number else line)
    if left := [name for place, name in enumerate(cells[0]) if place not in widths]:
        said, way = f"{counted(len(left), 'more column')}: ", " (--wide, or -o json)"
        click.echo(f"{said}{shortened(', '.join(left), max(1, width - len(said + way)))}{way}")
    elif kept != [[row[place] for place in widths] for row in cells]:
        click.echo(CUT)


_LEAST = 12
"""A text is not cut to fewer characters: a day stays whole."""
_GAP = "  "
_PART_OF_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d.,]*$")


def fitted(
    rows: Sequence[Sequence[str]], width: int, *, uncut: Collection[int] = (), keys: int = 1
) -> dict[int, int]:
    """The columns that fit a line, by place, and how wide each is shown; the first row has the names."""
    whole, least, empty = {}, {}, set()
    for place, (name, *column) in enumerate(zip(*rows, strict=True)):
        widest = max(map(text_width, column), default=0)
        whole[place] = max(widest, text_width(name))
        most = width // 2 if place < keys else _LEAST
        least[place] = max(widest if place in uncut else 0, min(whole[place], most))
        if place >= keys and all(cell in ("", "0") for cell in column):
            empty.add(place)
    if sum(whole.values()) + len(_GAP) * (len(whole) - 1) <= width:
        return whole
    found: dict[int, int] = {}
    left = width + len(_GAP)
    # columns without a value are the first to go
    for place, needed in sorted(least.items(), key=lambda each: each[0] in empty):
        if place < keys or needed + len(_GAP) <= left:
            found[place] = needed
            left -= needed + len(_GAP)
    # keys are named whole where they can be; of the others those that lack least, the rest have equal parts
    order = sorted(found, key=lambda each: (each >= keys, whole[each] - least[each]))
    for number, place in enumerate(order):
        part = left if place < keys else left // (len(found) - number)
        more = max(0, min(whole[place] - found[place], part))
        found[place] += more
        left -= more
    return dict(sorted(found.items()))


def shortened(text: str, width: int) -> str:
    """The text in so many columns of a terminal; what is cut ends in `…`, and no number is cut in two."""
    if text_width(text) <= width:
        return text
    from rich.cells import set_cell_size

    kept = set_cell_size(text, width - 1)
    if re.match(r"[\d.,]", text[len(kept) :]):
        kept = _PART_OF_NUMBER.sub("", kept)
    return f"{kept.rstrip(' …')}…"


def aligned(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), gap: str = _GAP) -> Iterator[str]:
    """The rows as lines of plain columns; nothing in them is escaped."""
    cells = list(rows)
    # the widest value of each column needs all rows
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        blanks = [" " * (width - text_width(text)) for text, width in zip(row, widths, strict=True)]
        padded = [
            blank + text if place in right else text + blank
            for place, (text, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        yield gap.join(padded).rstrip()


def is_wide() -> bool:
    """True if tables are to be shown whole."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(WIDE))


def table_width() -> int:
    """The columns of the terminal, or 80 where there is none; no bound for tables that are shown whole."""
    return sys.maxsize if is_wide() else shutil.get_terminal_size().columns


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
    keys: int = 1,
) -> None:
    """Print records: JSON has all of each, CSV and tables the columns.

    In tables `shown` writes the values of a column, `titles` are headings, `right` are the columns of
    numbers, and `keys` is how many of the first columns are never left out.
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

            def cell(value: Any, written: Callable[[Any], object] | None) -> str:
                return cell_text(value if written is None or value is None else written(value))

            cells = ([cell(row.get(c), (shown or {}).get(c)) for c in columns] for row in rows)
            names = [(titles or {}).get(c, c) for c in columns]
            copied = {place for place, c in enumerate(columns) if c in _COPIED or c.endswith("Hash")}
            echo_table(names, cells, right={columns.index(c) for c in right}, uncut=copied, keys=keys)


def record(result: object, *names: str) -> dict[str, Any]:
    """These properties of a result as documents have them."""
    from odfchain.odf.tree import record_of

    return record_of(result, *names)
