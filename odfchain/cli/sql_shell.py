"""The shell of `odfchain sql`: queries and commands of a person at a terminal, one after the other.

A query ends with `;`. Ctrl-C ends the query and not the shell, Ctrl-D leaves. What was typed is kept in the
user's state folder, with mode 0600.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.known_errors import known_error
from odfchain.api.options import QueryKeywords
from odfchain.cli.context import report_error
from odfchain.cli.output import print_records
from odfchain.cli.result_output import RESULT_FORMATS, check_writable, format_of, named_format, show_answer
from odfchain.cli.screen import echo, echo_document
from odfchain.errors import OdfchainError, UsageError, was_interrupted
from odfchain.text import printable

if TYPE_CHECKING:
    from odfchain import Workspace
    from odfchain.api.options import QueryKeywords


# Statements of SQL that is being typed: their ends, and completion of words.

_PIECE = re.compile(
    r"""'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) | --[^\n]*(?:\n|\Z) | /\* | \$\$.*?(?:\$\$|\Z) | ;""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
KEYWORDS = (
    "select", "from", "where", "group by", "order by", "having", "limit", "offset", "join", "left join",
    "inner join", "cross join", "using", "on", "and", "or", "not", "in", "is null", "is not null", "like",
    "between", "case", "when", "then", "else", "end", "cast", "distinct", "count", "sum", "avg", "min", "max",
    "with", "as", "union all", "union", "except", "intersect", "exists", "asc", "desc", "state(", "over",
    "partition by", "values", "true", "false", "null", "interval", "date", "timestamp", "extract",
)  # fmt: skip


def statements(text: str) -> tuple[list[str], str]:
    """The statements that have ended with `;`, without it, and the rest: empty if it says nothing yet."""
    found: list[str] = []
    start = position = 0
    while match := _PIECE.search(text, position):
        position = match.end()
        # a semicolon in a text, a quoted name or a comment ends nothing
        if match[0] == "/*":
            position = _comment_end(text, position)
        elif match[0] == ";":
            if text[start : match.start()].strip():
                found.append(text[start : match.start()].strip())
            start = position
    rest = text[start:]
    return found, rest if rest.strip() else ""


def _comment_end(text: str, position: int) -> int:
    depth = 1
    while depth:
        match = _COMMENT.search(text, position)
        if match is None:
            return len(text)
        depth += 1 if match[0] == "/*" else -1
        position = match.end()
    return position


def names_for(word: str, before: str, datasets: Collection[str], columns: Collection[str]) -> list[str]:
    """Completions of a word: datasets, columns and words of SQL; names are quoted where needed."""
    quote = before[-1:] if before[-1:] in ("'", '"') else ""
    if quote and before.count(quote) % 2 == 0:
        quote = ""
    # no name with control characters is offered
    safe = [name for name in (*datasets, *columns) if printable(name) == name and '"' not in name]
    # readline adds the closing quote
    if quote:
        return sorted(name for name in safe if name.lower().startswith(word.lower()))
    names = [
        name if _PLAIN.fullmatch(name) else f'"{name}"'
        for name in safe
        if name.lower().startswith(word.lower())
    ]
    if word.isupper():
        return sorted(names) + [each.upper() for each in KEYWORDS if each.upper().startswith(word)]
    return sorted(names) + [each for each in KEYWORDS if each.startswith(word.lower())]


_ROWS = 100
_HISTORY_LINES = 1_000
_SCRIPT_BYTES = 1 << 20
_PROMPT, _MORE = "odfchain> ", "     ...> "
_HELP = """\
A query ends with a semicolon; a table is a dataset's name, "with.dots@POINT" in double quotes.
.tables             the datasets
.schema NAME        the columns of a dataset; NAME@POINT those at a point
.mode FORMAT        how results are printed: table, json, ndjson, csv; for .output also arrow, parquet
.output FILE        write the next result to a file, in the format that its name ends in, or the mode's
.at [TIME]          the system time of names without a point; without TIME it is now
.timer on|off       whether it is said how long a query took
.explain QUERY      how a query would be answered
.read FILE          answer the queries of a file
.help               this text
.quit               leave, as Ctrl-D does\
"""


class Shell:
    """One conversation; `options` are those of `Workspace.sql`."""

    def __init__(self, workspace: Workspace, options: QueryKeywords, output: str) -> None:
        self._workspace = workspace
        self._options = options
        self._output = output
        self._file: Path | None = None
        self._timed = True
        self._done = False
        self._commands: dict[str, Callable[[str], None]] = {
            ".tables": self._tables,
            ".schema": self._schema,
            ".mode": self._mode,
            ".output": self._output_to,
            ".at": self._at,
            ".timer": self._timer,
            ".explain": self._explain,
            ".read": self._read,
            ".help": lambda _: echo_document(_HELP),
            ".quit": self._quit,
        }

    def run(self) -> None:
        """Read and answer until the person leaves."""
        echo("a query ends with ; and .help says what else can be written", err=True)
        typed = ""
        with _line_editing(self._completions):
            while not self._done:
                try:
                    line = input(_MORE if typed else _PROMPT)
                except EOFError:
                    echo(err=True)
                    return
                except KeyboardInterrupt:
                    echo(err=True)
                    typed = ""
                    continue
                if not typed and line.lstrip().startswith("."):
                    self._guarded(self._command, line.strip())
                    continue
                whole, typed = statements(f"{typed}{line}\n")
                for query in whole:
                    if not self._guarded(self._answer, query):
                        break

    def _guarded(self, work: Callable[[str], None], text: str) -> bool:
        try:
            work(text)
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            return False
        # an error ends the query, not the shell
        except Exception as error:
            if was_interrupted(error):
                echo("interrupted", err=True)
            elif (known := known_error(error)) is not None:
                report_error(known)
            else:
                raise
            return False
        return True

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            raise UsageError(f"unknown command {name}", hint=f"there are {' '.join(self._commands)}")
        self._commands[name](rest.strip())

    def _answer(self, query: str) -> None:
        began = time.perf_counter()
        file, self._file = self._file, None
        output = format_of(named_format(file) or self._output, file)
        result = self._workspace.sql(query, **self._options)
        show_answer(result, output, file, began=began, most=_ROWS, timed=self._timed)

    def _tables(self, _: str) -> None:
        rows = [{"name": str(d.alias), "kind": d.kind.value} for d in self._workspace]
        print_records(rows, ["name", "kind"], "table")

    def _schema(self, name: str) -> None:
        from odfchain.api.scan import columns_at

        rows = [{"name": c, "type": t} for c, t in columns_at(self._workspace, name.strip("\"'; "))]
        print_records(rows, ["name", "type"], "table")

    def _mode(self, name: str) -> None:
        if name not in RESULT_FORMATS:
            raise UsageError(f"unknown format {name!r}", hint=f"formats are {', '.join(RESULT_FORMATS)}")
        self._output = name

    def _output_to(self, name: str) -> None:
        if not name:
            raise UsageError(".output needs the name of a file")
        path = Path(name).expanduser()
        check_writable(path)
        self._file = path

    def _at(self, text: str) -> None:
        from odfchain.api.options import as_time

        self._options["as_at"] = as_time(text) if text else None

    def _timer(self, text: str) -> None:
        if text not in ("on", "off"):
            raise UsageError(".timer is on or off")
        self._timed = text == "on"

    def _explain(self, query: str) -> None:
        from odfchain.api.queries import explained

        echo_document(explained(self._workspace, query, self._options))

    def _read(self, name: str) -> None:
        path = Path(name).expanduser()
        try:
            with path.open(encoding="utf-8") as stream:
                whole, rest = statements(stream.read(_SCRIPT_BYTES))
        except UnicodeDecodeError:
            raise UsageError(f"{path}: is not UTF-8") from None
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        for query in [*whole, *([rest] if rest.strip() else [])]:
            self._answer(query)

    def _quit(self, _: str) -> None:
        self._done = True

    def _completions(self, line: str, start: int, word: str) -> list[str]:
        if line.startswith("."):
            name, _, _ = line.partition(" ")
            if start < len(name):
                return [each for each in self._commands if each.startswith(line[: start + len(word)])]
            if name == ".mode":
                return [each for each in RESULT_FORMATS if each.startswith(word)]
            if name in (".read", ".output", ".at", ".timer"):
                return []
        aliases, columns = [], set()
        for dataset in self._workspace:
            aliases.append(str(dataset.alias))
            # a damaged dataset has no columns to offer
            with contextlib.suppress(OdfchainError):
                columns |= {field.name for field in dataset.schema.fields} if dataset.schema else set()
        return names_for(word, line[:start], aliases, columns)


@contextlib.contextmanager
def _line_editing(completions: Callable[[str, int, str], list[str]]) -> Iterator[None]:
    try:
        import readline
    except ImportError:
        # no line editing on platforms without readline
        yield
        return
    found: list[str] = []

    def complete(word: str, number: int) -> str | None:
        if number == 0:
            try:
                found[:] = completions(readline.get_line_buffer(), readline.get_begidx(), word)
            except OdfchainError:
                found.clear()
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>+-*;'\"")
    readline.parse_and_bind("tab: complete")
    with contextlib.suppress(AttributeError):
        readline.set_auto_history(True)
    path = history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(path)
            path.chmod(0o600)
        readline.set_completer(None)


def history_file() -> Path:
    """The file with the history of earlier shells."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "odfchain" / "sql_history"
