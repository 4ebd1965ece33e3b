"""`odfchain sql`: questions in SQL, over datasets at any point of their history."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.options import QueryKeywords
from odfchain.cli.context import open_workspace, options, say
from odfchain.cli.output import count_of, human_size
from odfchain.cli.parameters import DATASET_AT, argument, command, keywords, option
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.result_output import (
    RESULT_FORMATS,
    TABLE_ROWS,
    Counted,
    check_writable,
    format_of,
    named_format,
    say_read,
    show_answer,
    write_rows,
)
from odfchain.cli.screen import echo_document, is_somebody_there, standard_input
from odfchain.errors import NameCollisionError, QueryError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


_QUERY_BYTES = 1 << 20
_WAY_OUT = "give a query with -c 'select …', in a file with --script, or pipe one in"


@command("sql")
def sql_command(
    command: str | None = option("The query.", "-c", "SQL"),
    script: Path | None = option("A file with the query.", "FILE"),
    standard_input_mark: str | None = argument(click.Choice(["-"]), metavar="[-]", required=False),
    output: str | None = option(
        "How to print the result; the default is what the name of --output ends in, or else a table.",
        "-o",
        "--output-format",
        choices=RESULT_FORMATS,
    ),
    file: Path | None = option("Write the result to a file.", "--output", "FILE"),
    chosen: QueryKeywords = keywords(QueryKeywords),
    explain: bool = option("Show how the query would be answered."),
    proof: Path | None = option(
        "Sign the answer, of 100 rows unless --limit says another number, and keep it in a file.", "FILE"
    ),
) -> None:
    """Answer a query in SQL. Nothing is recorded, and no Java is needed.

    A table is a dataset's name, in double quotes where it has dots, with @POINT (a block's number or hash, or
    a system time) for an earlier moment: "org.airports@9". A plain name is every record;
    state('name[@POINT]'[, 'event time'[, 'key']]) is what is in force.

    Without a query a shell opens on a terminal. A table shows 1,000 rows unless --limit says another number;
    the other formats give all of them. In CSV a null is an empty field, and "" an empty text; in JSON,
    NaN and infinities are null. Arrow is an IPC stream, Parquet is packed by zstd.

    What --proof keeps is for others to check: `odfchain proof verify`.
    """
    chosen["params"] = _values(chosen.get("params") or ())
    query = _query(command, script, standard_input_mark)
    if query is None:
        if file is not None or explain or proof is not None:
            raise UsageError("--output, --explain and --proof are for one query", hint=_WAY_OUT)
        from odfchain.cli.sql_shell import Shell

        with open_workspace() as workspace:
            Shell(workspace, chosen, output or RESULT_FORMATS[0]).run()
        return
    if file is not None:
        check_writable(file)
    form = format_of(output, file)
    began = time.perf_counter()
    if chosen.get("engine") != "spark":
        from odfchain.api.queries import begin

        begin()
    workspace = open_workspace()
    if explain:
        from odfchain.api.queries import explained

        with workspace:
            echo_document(explained(workspace, query, chosen))
        return
    with workspace:
        limit = chosen.get("limit")
        if proof is None:
            result = workspace.sql(query, **chosen)
        else:
            answer = workspace.prove(query, **chosen)
            answer.save(proof)
            for note in answer.notes:
                say(f"note: {note}")
            assert answer.result is not None  # noqa: S101 - it was computed here
            result = answer.result
        show_answer(result, form, file, began=began, most=TABLE_ROWS if limit is None else limit)


def _values(params: Iterable[str]) -> dict[str, Any]:
    from odfchain.api.options import parameter

    found: dict[str, Any] = {}
    for text in params:
        name, value = parameter(text)
        if name in found:
            raise UsageError(f"parameter {name} is given twice")
        found[name] = value
    return found


def _query(command: str | None, script: Path | None, piped: str | None) -> str | None:
    if sum(way is not None for way in (command, script, piped)) > 1:
        raise UsageError("the query is given in two ways", hint="use one of -c, --script and -")
    if command is not None:
        return command
    if script is not None:
        try:
            with script.open("rb") as stream:
                return _text(stream.read(_QUERY_BYTES + 1), str(script))
        except OSError as error:
            raise UsageError(f"{script}: {error.strerror}") from None
    # a person at a terminal gets the shell
    if piped is None and is_somebody_there():
        if sys.stdout.isatty():
            return None
        raise UsageError("no query given", hint=_WAY_OUT)
    found = _text(standard_input().read(_QUERY_BYTES + 1), "standard input")
    if not found.strip():
        raise UsageError("no query given", hint=_WAY_OUT)
    return found


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise QueryError(f"{source}: the query is not UTF-8 (byte {error.start:,})") from None


# `odfchain export`: the records of a dataset, or those in force, for other programs: files, or a table.

_FORMATS = ("csv", "parquet", "ndjson")
_TABLES = ("lode", "delta", "iceberg")
_ROWS = ("records", "state")


@command("export")
def export_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    output: str | None = option(
        "The format; csv unless --output says another one.", "-o", "--output-format", choices=_FORMATS
    ),
    state: bool = option("Only the records in force, not every one that was recorded."),
    file: Path | None = option("Write to a file, not to standard output.", "--output", "FILE"),
    folder: Path | None = option(
        "Write numbered files to a folder that is new or empty.", "--output-dir", "DIR"
    ),
    records_per_file: int | None = option("The most records of a file in --output-dir.", "N", least=1),
    table: str | None = option("Write a table, or a Lode store, with --to.", "--format", choices=_TABLES),
    target: str | None = option("The folder of the table or store: a path, or a URL of file.", "--to", "URL"),
    which: str | None = option(
        "What a table has: records (usual), or those in force.", "--rows", choices=_ROWS
    ),
    catalog: str | None = option("Register an Iceberg table in this catalog of PyIceberg's.", "NAME"),
    force: bool = option("Start an export anew that cannot be continued."),
) -> None:
    """Export the records of a dataset, in order of offset, system columns included.

    POINT is a block's number or hash, or a system time; without it the newest block is meant. Files appear
    when they are complete, a folder when all of them are. CSV and NDJSON look as those of `odfchain sql`.

    With --format, make a table of Delta or Iceberg, or a Lode store, of the dataset's own slices (linked or
    copied), with a version for each block that has data. The next export continues it; where the histories
    have parted, or something else is there, it refuses. With --rows state, each export replaces the rows.
    """
    if table is not None or target is not None:
        if table is None or target is None:
            raise UsageError("--format and --to go together", hint="say both: --format delta --to FOLDER")
        if output or state or file or folder or records_per_file:
            raise UsageError("--format writes a table, not files", hint="for the state say --rows state")
        _export_table(dataset, table, target, rows=which or _ROWS[0], catalog=catalog, force=force)
        return
    if which or catalog or force:
        raise UsageError("--rows, --catalog and --force are for tables", hint="give --format and --to, too")
    if file is not None and folder is not None:
        raise UsageError("--output and --output-dir are two places", hint="use one of them")
    if records_per_file is not None and folder is None:
        raise UsageError("--records-per-file makes several files", hint="say where with --output-dir DIR")
    if file is not None:
        check_writable(file)
    began = time.perf_counter()
    workspace = open_workspace()
    named = named_format(file)
    chosen = output or (named if named in _FORMATS else _FORMATS[0])
    if folder is None:
        format_of(chosen, file)  # says which ones no terminal gets
    from odfchain.api.scan import exported

    result = exported(workspace, dataset, state=state)
    if folder is None:
        show_answer(result, chosen, file, began=began, most=0)
    else:
        rows = Counted(result)
        count = _write_folder(rows, chosen, folder, records_per_file)
        say_read(result, f"{count_of(rows.rows, 'row')} in {count_of(count, 'file')}", began)


def _export_table(
    dataset: str, table: str, target: str, *, rows: str, catalog: str | None, force: bool
) -> None:
    from odfchain.api.branching import at_point

    began = time.perf_counter()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        opened = at_point(workspace, dataset)
        done = opened.export(table, target, rows=rows, catalog=catalog, force=force, progress=progress)
    new = f"{count_of(done.versions, 'version')}, {count_of(done.files, 'file')}, {human_size(done.size)}"
    copied = f" ({done.copies:,} copied)" if done.copies else ""
    what = f"{new}{copied}" if done.versions else "already exported"
    number, took = done.sequence_number, time.perf_counter() - began
    name = f"{opened.alias} @ {number:,} ({str(done.block)[:12]}…)"
    say(f"{name} as {table} in {done.folder}: {what}, {took:.1f} s")
    for note in done.notes:
        say(f"note: {note}")


def _write_folder(rows: Counted, output: str, folder: Path, most: int | None) -> int:
    from odfchain.storage.fsio import make_folder, move_folder, replaced, storage_errors, temp_path

    target = folder.resolve()
    with storage_errors(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise NameCollisionError(f"{folder} already exists and is not empty", hint="name a new folder")
        if not target.parent.is_dir():
            raise UsageError(f"{target.parent}: no such folder")
    # written next to the target and renamed: the folder appears complete
    made = temp_path(target.parent)
    make_folder(made)
    try:
        batches = iter(_Pieces(rows, most))
        number = 0
        for part in batches:
            number += 1
            with replaced(made / f"{number:06}.{output}") as stream:
                write_rows(rows.schema, part, output, stream)
        with storage_errors(target):
            if target.exists():
                target.rmdir()
        move_folder(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return number


class _Pieces:
    """The batches of a result, in parts of so many rows; there is a first one also of no rows."""

    def __init__(self, rows: Counted, most: int | None) -> None:
        self._batches = iter(rows)
        self._most = most
        self._left: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[Iterator[pa.RecordBatch]]:
        yield self._part()
        while self._more():
            yield self._part()

    def _more(self) -> bool:
        while self._left is None or self._left.num_rows == 0:
            self._left = next(self._batches, None)
            if self._left is None:
                return False
        return True

    def _part(self) -> Iterator[pa.RecordBatch]:
        room = self._most
        while (room is None or room > 0) and self._more():
            batch = self._left
            assert batch is not None  # noqa: S101 - there is more
            piece = batch if room is None else batch.slice(0, room)
            self._left = batch.slice(piece.num_rows)
            room = None if room is None else room - piece.num_rows
            yield piece
