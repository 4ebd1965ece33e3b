"""`odfchain sql`: questions in SQL, over datasets at any point of their history."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain import errors
from odfchain.cli.context import ended_by_sigterm, open_workspace, report_error, say
from odfchain.cli.parameters import DATASET_AT, argument, command, formats, keywords, option
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.rows import TABLE_ROWS, Counted
from odfchain.cli.screen import echo, echo_document, is_interactive, print_records, standard_input
from odfchain.lazy import pa
from odfchain.limits import FLIGHT_PORT
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import to_arrow_type
from odfchain.odf.schema import parse_ddl
from odfchain.query.row_formats import write_rows
from odfchain.spark.known_errors import known_error
from odfchain.storage.fsio import no_file, storage_error
from odfchain.text import counted, first_line, human_size, one_line, printable
from odfchain.workspace.options import ExportOptions, QueryOptions, maybe_time
from odfchain.workspace.points import parse_time

if TYPE_CHECKING:
    from odfchain import Workspace
    from odfchain.results import QueryResult


RESULT_FORMATS = ("table", "json", "ndjson", "csv", "arrow", "parquet")
_BINARY = ("arrow", "parquet")
_BY_NAME = (*_BINARY, "csv", "json", "ndjson")
_QUERY_BYTES = 1 << 20
_WAY_OUT = "give a query with -c 'select …', in a file with --script, or pipe one in"


@command("sql")
def sql_command(
    command: str | None = option("The queries.", "-c", "SQL"),
    script: Path | None = option("A file with the queries.", "FILE"),
    standard_input_mark: str | None = argument(
        click.Choice(["-", "server"]), metavar="[-|server]", required=False
    ),
    output: str | None = formats(*RESULT_FORMATS, default=None),
    file: Path | None = option("Write the result to a file.", "--output", "FILE", also="--output-path"),
    chosen: dict[str, Any] = keywords(QueryOptions),
    explain: bool = option("Show how the query would be answered."),
    proof: Path | None = option(
        "Sign the answer and keep it in a file; 100 rows unless --limit is given.", "FILE"
    ),
    port: int = option(
        "TCP port of `sql server`; 0 takes a free one.", least=0, most=65_535, default=FLIGHT_PORT
    ),
) -> int:
    """Answer queries in SQL, at any point of the history.

    Nothing is recorded, and no Java is needed. A table is a dataset's name, in double quotes if it has dots,
    and has every record. "org.airports@9" is an earlier moment: a block's number or hash, or a system time.
    state('name[@POINT]'[, 'event time'[, 'key']]) has the rows in force.

    Several queries end with ; each, and are answered in order up to the first error. Between two tables, or
    two answers in CSV, is an empty line. JSON and NDJSON follow one another. Arrow, Parquet and --output are
    for one query. `show tables`, `describe NAME` and lines like .help are answered, too.

    `odfchain sql server` answers programs of this machine by Arrow Flight SQL, until Ctrl-C: JDBC, ADBC, and
    kamu.connect("grpc://localhost:50050").

    Without -o the ending of --output says the format, or else it is a table. A table shows 1,000 rows unless
    --limit says another number. The other formats give all rows. In CSV a null is an empty field, and "" an
    empty text. In JSON, NaN and infinities are null. Arrow is an IPC stream, and Parquet is packed by zstd.
    A table of `select *` begins as in `tail`. --wide shows the system columns.

    Without a query a shell opens on a terminal. --proof keeps a signed answer, which others check with
    `odfchain proof verify`.
    """
    if standard_input_mark == "server":
        return _serve(port)
    chosen["params"] = _values(chosen.get("params") or ())
    query = _query(command, script, standard_input_mark)
    steps = script_of(query or "")
    is_one = len(steps) == 1 and not steps[0].startswith(".") and not _LISTED.fullmatch(steps[0])
    if not is_one and (file is not None or explain or proof is not None):
        hint = "a line .output FILE before a query writes its answer, .explain QUERY shows how it is answered"
        raise errors.UsageError("--output, --explain and --proof are for one query", hint=hint)
    if query is None:
        with open_workspace() as workspace:
            Shell(workspace, chosen, output or RESULT_FORMATS[0]).converse()
        return 0
    if not steps:
        raise errors.UsageError("no query given", hint=_WAY_OUT)
    form = _format_of(output, file)
    if not is_one:
        _check_one(form)
    if file is not None:
        _check_writable(file)
    if chosen.get("engine") != "spark":
        from odfchain.query.processes import begin

        begin()
    most = chosen.get("limit", TABLE_ROWS)
    with open_workspace() as workspace:
        if proof is not None and not explain:
            began = time.perf_counter()
            with TerminalProgress().later("Answering") as progress:
                answer = workspace.prove(query, **chosen)
                answer.save(proof)
                for note in answer.notes:
                    progress.note(note)
                assert answer.result is not None  # noqa: S101 - it was computed here
                rows = Counted(answer.result, progress)
                show_answer(rows, form, file, began=began, most=most)
            return 0
        if is_one:  # with its comments: places in messages count their lines
            steps = [f".explain {query}" if explain else query]
        return Shell(workspace, chosen, form, file=file, most=most).answer_all(steps)


def _serve(port: int) -> int:
    from odfchain.node.flight import FlightServer
    from odfchain.node.parts import NodeParts
    from odfchain.workspace.options import NodeOptions

    with open_workspace() as workspace, ended_by_sigterm():
        parts = NodeParts(workspace, NodeOptions(on_problem=lambda line: echo(line, err=True)))
        with FlightServer(parts, port=port) as server:
            say(f"the datasets of {workspace.path.parent} are asked at the address below; Ctrl-C ends it")
            echo(server.address)
            server.wait()
    return 0


def _values(params: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in params:
        name, value = parameter(text)
        if name in found:
            raise errors.UsageError(f"parameter {name} is given twice")
        found[name] = value
    return found


# The answer to a query: its rows where they are wanted, and on standard error what they were read from.


def show_answer(
    rows: Counted, output: str, file: Path | None, *, began: float, most: int, timed: bool = True
) -> None:
    """Print or write the rows, then say which blocks were read, how many rows came, and how long it took.

    `began` is when the question was asked, by `time.perf_counter`; `most` are the rows that a table shows.
    """
    left = 0
    if file is not None:
        rows.save(output, file)
    else:
        left = rows.show(output, most=most)
    count = counted(rows.rows, "row") + (f" ({left:,} of them not shown)" if left else "")
    _say_read(rows.result, count, began if timed else None)


def _say_read(result: QueryResult, rows: str, began: float | None) -> None:
    """Say what was read, and since when; `airports @ 9 (f16201b9…c037), 1 of 4 slices, 205 rows, 0.4 s`."""
    took = [] if began is None else [f"{time.perf_counter() - began:.1f} s"]
    found = result.slices
    slices = [f"{found.read:,} of {counted(found.there, 'slice')}"] if found.skipped else []
    say(", ".join([*map(str, result.inputs), *slices, rows, *took]))


def _format_of(output: str | None, path: Path | None) -> str:
    """The format that is asked for, or that the end of a file's name says; else a table."""
    found = output or _named_format(path, (*RESULT_FORMATS, "txt")) or RESULT_FORMATS[0]
    if found in _BINARY and path is None and sys.stdout.isatty():
        raise errors.UsageError(f"{found} is not for a terminal", hint="write it to a file, or pipe it on")
    return found


def _check_one(output: str) -> None:
    if output in _BINARY:
        raise errors.UsageError(f"{output} holds the answer to one query", hint="use -o csv, json or ndjson")


def _named_format(path: Path | None, known: tuple[str, ...] = ()) -> str | None:
    """The format that the end of a file's name says; None if it says none.

    Raises:
        UsageError: it says one that is not `known`, where these are given.
    """
    suffix = path.suffix.lower().removeprefix(".") if path else ""
    if suffix and known and suffix not in known:
        formats = ", ".join(each for each in known if each in _BY_NAME)
        message = f"{path}: no file of the format .{suffix} is written"
        raise errors.UsageError(message, hint=f"choose one with -o: {formats}")
    return suffix if suffix in _BY_NAME else None


def _check_writable(path: Path) -> None:
    """Before anything is computed: a file can be written there."""
    if path.is_dir():
        raise errors.UsageError(f"{path}: is a folder")
    if not path.parent.is_dir():
        raise errors.UsageError(f"{path.parent}: no such folder")
    _check_outside(path)


def _check_outside(path: Path) -> None:
    # a link may lead there: a head that is replaced by rows is a dataset that is lost
    from odfchain.workspace.workspace_files import FOLDER

    if FOLDER in (real := path.resolve()).parts:
        raise errors.UsageError(f"{real}: inside a workspace", hint="name a file or folder elsewhere")


# Values of `$name` in a query, as they are typed: `country=CH`, `since:DATE=2024-02-29`.

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def parameter(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE` (a text) or `NAME:TYPE=VALUE` (an Arrow scalar).

    Types are those of manifests; bytes are written in hex, times as everywhere.
    """
    left, equals, value = text.partition("=")
    name, colon, kind = left.partition(":")
    if not equals or not _NAME.fullmatch(name):
        hint = "write NAME=VALUE, or NAME:TYPE=VALUE like since:DATE=2024-02-29"
        raise errors.UsageError(f"parameter {one_line(text)!r} has no name and value", hint=hint)
    if not colon:
        return name, value

    try:
        return name, _value(value, _type(name, kind))
    except (errors.SchemaError, errors.InvalidIdError) as error:
        raise errors.UsageError(f"parameter {name}: {error.message}", hint=error.hint) from None
    except (pa.ArrowException, ValueError) as error:
        said = first_line(error)
        message = f"parameter {name}: {one_line(value)!r} is not a valid {one_line(kind)}: {said}"
        raise errors.UsageError(message) from None


def _type(name: str, text: str) -> Any:
    declared = parse_ddl([f"v {text}"]).fields
    inner = declared[0].type
    wanted = inner.inner if isinstance(inner, ds.DataTypeOption) else inner
    if len(declared) > 1 or isinstance(wanted, ds.DataTypeList | ds.DataTypeStruct | ds.DataTypeMap):
        raise errors.UsageError(f"parameter {name}: {one_line(text)!r} is not a type of one value")
    return to_arrow_type(wanted)


def _value(text: str, kind: Any) -> Any:
    from pyarrow import types as t

    if t.is_timestamp(kind):
        count, left = divmod(parse_time(text).epoch_ns, _NS[kind.unit])
        if left:
            raise ValueError(f"it is finer than {kind.unit}")
        return pa.scalar(count, pa.int64()).cast(kind)
    if t.is_binary(kind) or t.is_fixed_size_binary(kind):
        # a UUID may be written with its hyphens
        return pa.scalar(bytes.fromhex(text.replace("-", "")), kind)
    return pa.scalar(text).cast(kind)


def _query(command: str | None, script: Path | None, piped: str | None) -> str | None:
    if sum(way is not None for way in (command, script, piped)) > 1:
        raise errors.UsageError("the query is given in two ways", hint="use one of -c, --script and -")
    if command is not None:
        return command
    if script is not None:
        return _script(script)
    # a person at a terminal gets the shell
    if piped is None and is_interactive():
        if sys.stdout.isatty():
            return None
        raise errors.UsageError("no query given", hint=_WAY_OUT)
    return _text(standard_input().read(_QUERY_BYTES + 1), "standard input")


def _script(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return _text(stream.read(_QUERY_BYTES + 1), str(path))
    except OSError as error:
        raise (storage_error(error, path) if path.is_file() else no_file(path)) from None


def _text(data: bytes, source: str) -> str:
    if len(data) > _QUERY_BYTES:
        raise errors.QueryError(f"{source}: is longer than {human_size(_QUERY_BYTES)}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise errors.QueryError(f"{source}: the query is not UTF-8 (byte {error.start:,})") from None


# `odfchain export`: the records of a dataset, or those in force, for other programs: files, or a table.

_FORMATS = ("csv", "parquet", "ndjson")
_TABLES = ("lode", "delta", "iceberg")


@command("export")
def export_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    form: str | None = option(
        "The format; csv unless --to ends in another one.", "-o", "--format",
        choices=(*_FORMATS, *_TABLES), also="--output-format",
    ),
    to: str | None = option(
        "A file, which is replaced, or a folder; standard output if not given.", "PATH", also="--output-path"
    ),
    records_per_file: int | None = option("The most records of a file; files are numbered.", "N", least=1),
    attachments: bool = option("Write the attachments instead of the records, as files of a folder."),
    chosen: dict[str, Any] = keywords(ExportOptions),
) -> None:  # fmt: skip
    """Write the records of a dataset to files, or to a table.

    Records come in order of offset, with system columns. POINT is a block's number or hash, or a system time.
    Without it the newest block is meant. --to DIR/ or --records-per-file make a folder with numbered files.
    It has to be new or empty. A file or folder appears when it is complete. CSV and NDJSON look as those of
    `odfchain sql`.

    delta, iceberg and lode are a table, or a store, of the dataset's own slices (linked or copied). It has a
    version for each block with data. The next export continues it. If the histories have parted, or
    something else is there, the command refuses. With --rows state, each export replaces the rows.

    With --attachments, no file that exists is replaced, and none is written outside of the folder.
    """  # fmt: skip
    if attachments:
        if to is None or form or records_per_file or chosen:
            hint = "--attachments --to FOLDER, without --format, --rows and --records-per-file"
            raise errors.UsageError("attachments are written as they are, into a folder", hint=hint)
        from odfchain.api.branching import at_point

        written = at_point(open_workspace(), dataset).export_attachments(to)
        say(f"{counted(len(written), 'attachment')} in {to}")
        return
    if form in _TABLES:
        if to is None or records_per_file:
            hint = f"say where: -o {form} --to FOLDER, without --records-per-file"
            raise errors.UsageError(f"{form} is a folder with files of its own", hint=hint)
        _export_table(dataset, str(form), to, chosen)
        return
    state = chosen.pop("rows", "records") == "state"
    if chosen:
        raise errors.UsageError("--catalog and --force are for tables", hint="give -o delta or -o iceberg")
    if records_per_file is not None and to is None:
        raise errors.UsageError("--records-per-file makes several files", hint="say where with --to DIR")
    if to is not None and "://" in to:
        raise errors.UsageError(f"{to}: files are written to a folder of this machine", hint="give a path")
    target = None if to is None else Path(to)
    several = target is not None and (records_per_file or str(to).endswith("/") or target.is_dir())
    file = None if several else target
    if file is not None:
        _check_writable(file)
    began = time.perf_counter()
    workspace = open_workspace()
    form = form or _named_format(file, (*_FORMATS, "txt")) or _FORMATS[0]
    if not several:
        _format_of(form, file)  # says which ones no terminal gets
    from odfchain.api.scan import exported

    with TerminalProgress().later(f"Exporting {dataset}") as progress:
        result, total = exported(workspace, dataset, state=state)
        rows = Counted(result, progress, total)
        if target is None or not several:
            show_answer(rows, form, file, began=began, most=0)
            return
        count = _write_folder(rows, form, target, records_per_file)
    _say_read(result, f"{counted(rows.rows, 'row')} in {counted(count, 'file')}", began)


def _export_table(dataset: str, table: str, target: str, chosen: dict[str, Any]) -> None:
    from odfchain.api.branching import at_point

    began = time.perf_counter()
    with open_workspace() as workspace, TerminalProgress() as progress:
        opened = at_point(workspace, dataset)
        done = opened.export(table, target, progress=progress, **chosen)
    new = f"{counted(done.versions, 'version')}, {counted(done.files, 'file')}, {human_size(done.size)}"
    copied = f" ({done.copies:,} copied)" if done.copies else ""
    what = f"{new}{copied}" if done.versions else "already exported"
    number, took = done.sequence_number, time.perf_counter() - began
    name = f"{opened.alias} @ {number:,} ({str(done.block)[:12]}…)"
    say(f"{name} as {table} in {done.folder}: {what}, {took:.1f} s")
    if done.reading:
        say(f"table {done.table}, in Python: {done.reading}")
    for note in done.notes:
        say(f"note: {note}")


def _write_folder(rows: Counted, output: str, folder: Path, most: int | None) -> int:
    from odfchain.storage.fsio import make_folder, move_folder, replaced, storage_errors, temp_path

    target = folder.resolve()
    _check_outside(target)
    with storage_errors(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            message = f"{folder} already exists and is not empty"
            raise errors.NameCollisionError(message, hint="name a new folder")
        if not target.parent.is_dir():
            raise errors.UsageError(f"{target.parent}: no such folder")
    # written next to the target and renamed: the folder appears complete
    made = temp_path(target.parent)
    make_folder(made)
    try:

        def write(number: int, batches: Iterable[pa.RecordBatch]) -> None:
            with replaced(made / f"{number:06}.{output}") as stream:
                write_rows(rows.schema, batches, output, stream)

        number = 0
        for number, pieces in itertools.groupby(_pieces(rows, most), operator.itemgetter(0)):
            write(number, (batch for _, batch in pieces))
        if not number:  # of no rows there is a file, too
            write(number := 1, ())
        with storage_errors(target):
            if target.exists():
                target.rmdir()
        move_folder(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return number


def _pieces(rows: Counted, most: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches, cut so that each is of one file of so many rows, whose number comes with it."""
    written = 0
    for batch in rows:
        left = batch
        while left.num_rows:
            number, used = (0, 0) if most is None else divmod(written, most)
            piece = left if most is None else left.slice(0, most - used)
            yield number + 1, piece
            written += piece.num_rows
            left = left.slice(piece.num_rows)


# The shell: a query ends with `;`, Ctrl-C ends the query and not the shell, Ctrl-D leaves. What was typed is
# kept in the user's state folder, with mode 0600.

# Statements of SQL that is being typed: their ends, and completion of words.

_PIECE = re.compile(
    r"""'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) | `[^`]*(?:`|\Z) | \$(\w*)\$.*?(?:\$\1\$|\Z)
    | --[^\n]* | /\* | ; | \w[\w$]* | \S""",
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
    """The statements that have ended with `;`, without it, and the rest: empty if it says nothing yet.

    A semicolon in a text, a quoted name or a comment ends nothing. Comments before a statement are left out.
    What begins with a dot is a command of the shell, which ends with its line.
    """
    found: list[str] = []
    start: int | None = None
    position = 0
    while match := _PIECE.search(text, position):
        position = match.end()
        if match[0] == ";":
            if start is not None:
                found.append(text[start : match.start()].strip())
            start = None
        elif match[0] == "/*":
            position = _comment_end(text, position)
            if position < 0:  # more of it may follow
                start = match.start() if start is None else start
                break
        elif start is None and match[0] == ".":
            line = text[match.start() :].partition("\n")[0]
            found.append(line.strip())
            position = match.start() + len(line)
        elif start is None and not match[0].startswith("--"):
            start = match.start()
    return found, "" if start is None else text[start:]


def script_of(text: str) -> list[str]:
    """The statements of a text, of which the last needs no `;`."""
    whole, rest = statements(text)
    return [*whole, rest.strip()] if rest else whole


def _comment_end(text: str, position: int) -> int:
    depth = 1
    for match in _COMMENT.finditer(text, position):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return -1


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


_SHELL_ROWS = 100
_HISTORY_LINES = 1_000
_LISTED = re.compile(r"""show\s+tables|desc(?:ribe)?\s+([^\s"'`]+|"[^"]+"|'[^']+'|`[^`]+`)""", re.IGNORECASE)
_PROMPT, _MORE = "odfchain> ", "     ...> "
_HELP = """\
A query ends with a semicolon; a table is a dataset's name, "with.dots@POINT" in double quotes.
.tables             the datasets; so does `show tables;`
.schema NAME        the columns of a dataset, NAME@POINT those at a point; so does `describe NAME;`
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

    def __init__(
        self, workspace: Workspace, options: dict[str, Any], output: str, *, file: Path | None = None,
        most: int = _SHELL_ROWS,
    ) -> None:  # fmt: skip
        self._workspace = workspace
        self._options = options
        self._output = output
        self._file = file and (file, output)
        self._most = most
        self._timed = True
        self._done = False
        self._is_script = self._separated = False
        self._commands: dict[str, Callable[[str], None]] = {
            ".tables": self._tables, ".schema": self._schema, ".mode": self._mode, ".output": self._output_to,
            ".at": self._at, ".timer": self._timer, ".explain": self._explain, ".read": self._read,
            ".help": lambda _: echo_document(_HELP), ".quit": self._quit,
        }  # fmt: skip

    def converse(self) -> None:
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
                steps, typed = statements(f"{typed}{line}\n")
                for step in steps:
                    if not self._guarded(self._step, step):
                        break

    def answer_all(self, steps: Sequence[str]) -> int:
        """Answer them in order; the first error ends it, and says which of them it is about."""
        self._is_script = True
        for place, step in enumerate(steps):
            try:
                self._step(step)
            except Exception as error:
                known = None if len(steps) == 1 or errors.was_interrupted(error) else known_error(error)
                if known is None:
                    raise
                about = one_line(step.splitlines()[0], 60)
                if not step.startswith("."):
                    number = sum(not each.startswith(".") for each in steps[: place + 1])
                    about = f"query {number} ({about})"
                report_error(known, about=about)
                return known.exit_code
            if self._done:
                break
        return 0

    def _guarded(self, work: Callable[[str], None], text: str) -> bool:
        try:
            work(text)
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            return False
        # an error ends the query, not the shell
        except Exception as error:
            if errors.was_interrupted(error):
                echo("interrupted", err=True)
            elif (known := known_error(error)) is not None:
                report_error(known)
            else:
                raise
            return False
        return True

    def _step(self, text: str) -> None:
        if text.startswith("."):
            name, _, rest = text.partition(" ")
            if name not in self._commands:
                hint = f"there are {' '.join(self._commands)}"
                raise errors.UsageError(f"unknown command {name}", hint=hint)
            self._commands[name](rest.strip())
        elif listed := _LISTED.fullmatch(text):
            self._commands[".schema" if listed[1] else ".tables"](listed[1])
        else:
            self._answer(text)

    def _answer(self, query: str) -> None:
        began = time.perf_counter()
        with TerminalProgress().later("Answering") as progress:
            rows = Counted(self._workspace.sql(query, **self._options), progress)
            (file, named), self._file = self._file or (None, ""), None
            output = _format_of(named or self._output, file)
            if file is None:
                progress.stop()
                self._separate(output)
                progress.later("Answering")
            show_answer(rows, output, file, began=began, most=self._most, timed=self._timed)

    def _separate(self, output: str) -> None:
        """In a script, leave a line between this answer and the one before, where the format allows it."""
        if self._separated:
            _check_one(output)
            if output in ("table", "csv"):
                echo()
        self._separated = self._is_script

    def _tables(self, _: str) -> None:
        columns = ["name", "kind", "columns", "rows", "branches"]
        rows = []
        for dataset in self._workspace:
            row: dict[str, Any] = {"name": str(dataset.alias), "kind": dataset.kind.value}
            rows.append(row)
            try:
                row["columns"] = len(dataset.schema.fields) if dataset.schema else 0
                row |= {"rows": dataset.summary.record_count, "branches": [*dataset.branch_names]}
            except errors.OdfchainError as error:  # one damaged dataset must not hide the others
                report_error(error, about=row["name"])
        self._list(rows, columns)

    def _schema(self, name: str) -> None:
        from odfchain.api.scan import pinned

        schema = pinned(self._workspace, name.strip("\"'`; ")).state.schema
        fields = schema.fields if schema else ()
        rows = [{"name": each.name, "type": ds.type_name(each.type, each.extra)} for each in fields]
        self._list(rows, ["name", "type"])

    def _list(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        self._separate(self._output)
        right = [name for name in ("columns", "rows") if name in columns]
        print_records(rows, columns, self._output, shown={"branches": ", ".join}, right=right)

    def _mode(self, name: str) -> None:
        if name not in RESULT_FORMATS:
            message = f"unknown format {name!r}"
            raise errors.UsageError(message, hint=f"formats are {', '.join(RESULT_FORMATS)}")
        self._output = name

    def _output_to(self, name: str) -> None:
        if not name:
            raise errors.UsageError(".output needs the name of a file")
        path = Path(name).expanduser()
        _check_writable(path)
        self._file = path, _named_format(path) or ""

    def _at(self, text: str) -> None:
        self._options["as_at"] = maybe_time(text or None)

    def _timer(self, text: str) -> None:
        if text not in ("on", "off"):
            raise errors.UsageError(".timer is on or off")
        self._timed = text == "on"

    def _explain(self, query: str) -> None:
        from odfchain.api.queries import explained

        echo_document(explained(self._workspace, query, self._options))

    def _read(self, name: str) -> None:
        path = Path(name).expanduser()
        for step in script_of(_script(path)):
            if step.startswith(".read"):
                raise errors.UsageError(f"{path}: a file that is read reads no other")
            self._step(step)

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
            with contextlib.suppress(errors.OdfchainError):
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
            except errors.OdfchainError:
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
