"""`odfchain sql`: questions in SQL, over datasets at any point of their history."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from odfchain.cli.support.answers import show_answer
from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.parameters import DurationParam, SizeParam, given
from odfchain.cli.support.result_output import RESULT_FORMATS, TABLE_ROWS, check_writable, format_of
from odfchain.cli.support.screen import echo_document, is_somebody_there, standard_input
from odfchain.errors import QueryError, UsageError

_QUERY_BYTES = 1 << 20
_WAY_OUT = "give a query with -c 'select …', in a file with --script, or pipe one in"


@click.command("sql")
@click.option("-c", "--command", "command", metavar="SQL", help="The query.")
@click.option("--script", type=click.Path(path_type=Path), metavar="FILE", help="A file with the query.")
@click.argument("standard_input_mark", metavar="[-]", required=False, type=click.Choice(["-"]))
@click.option(
    "-o",
    "--output-format",
    "output",
    type=click.Choice(RESULT_FORMATS),
    help="How to print the result; the default is what the name of --output ends in, or else a table.",
)
@click.option(
    "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write the result to a file."
)
@click.option("--engine", type=click.Choice(["datafusion", "spark"]), help="Spark is for what is large.")
@click.option("--as-at", metavar="TIME", help="The system time of every name without a point.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    help="The value of $NAME; a text if no type is given.",
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="The most rows that are given.")
@click.option("--timeout", type=DurationParam(), help="Longest time for the query, like 30s.")
@click.option("--memory", type=SizeParam(), help="What the rows of the query may take, like 2g.")
@click.option("--explain", is_flag=True, help="Show how the query would be answered.")
@click.option(
    "--proof",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sign the answer, of 100 rows unless --limit says another number, and keep it in a file.",
)
def sql_command(
    command: str | None,
    script: Path | None,
    standard_input_mark: str | None,
    output: str | None,
    file: Path | None,
    engine: str | None,
    as_at: str | None,
    params: tuple[str, ...],
    limit: int | None,
    timeout: float | None,
    memory: int | None,
    explain: bool,
    proof: Path | None,
) -> None:
    """Answer a query in SQL. Nothing is recorded, and no Java is needed.

    A table is a dataset's name, in double quotes where it has dots, with @POINT (a block's number or hash, or
    a system time) for an earlier moment: "org.airports@9". A plain name is every record;
    state('name[@POINT]'[, 'event time'[, 'key']]) is what is in force.

    Without a query a shell opens on a terminal. A table shows 1,000 rows unless --limit says another number;
    the other formats give all of them. In CSV nothing stands where there is no value, and "" for a text of no
    characters; in JSON, NaN and infinities are null. Arrow is an IPC stream, Parquet is packed by zstd.

    What --proof keeps is for others to check: `odfchain proof verify`.
    """
    options = given(engine=engine, as_at=as_at, limit=limit, seconds=timeout, memory=memory)
    options["params"] = _values(params)
    query = _query(command, script, standard_input_mark)
    if query is None:
        if file is not None or explain or proof is not None:
            raise UsageError("--output, --explain and --proof are for one query", hint=_WAY_OUT)
        from odfchain.cli.support.sql_shell import Shell

        with open_workspace() as workspace:
            Shell(workspace, options, output or RESULT_FORMATS[0]).run()
        return
    if file is not None:
        check_writable(file)
    chosen = format_of(output, file)
    began = time.perf_counter()
    if engine != "spark":
        from odfchain.api.questions import begin

        begin()
    workspace = open_workspace()
    if explain:
        from odfchain.api.questions import explained

        with workspace:
            echo_document(explained(workspace, query, options))
        return
    with workspace:
        most = TABLE_ROWS if limit is None else limit
        if proof is None:
            result = workspace.sql(query, **options)
        else:
            answer = workspace.prove(query, **options)
            answer.save(proof)
            for note in answer.notes:
                say(f"note: {note}")
            assert answer.result is not None  # noqa: S101 - it was computed here
            result = answer.result
        show_answer(result, chosen, file, began=began, most=most)


def _values(params: tuple[str, ...]) -> dict[str, Any]:
    from odfchain.api.query_parameters import parameter

    found: dict[str, Any] = {}
    for text in params:
        name, value = parameter(text)
        if name in found:
            raise UsageError(f"parameter {name} is given twice")
        found[name] = value
    return found


def _query(command: str | None, script: Path | None, piped: str | None) -> str | None:
    """The text of the query; None where a person is there to write it.

    Raises:
        UsageError: it is given twice, or nowhere.
    """
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
    if piped is None and is_somebody_there():
        if sys.stdout.isatty():
            return None
        raise UsageError("there is no query", hint=_WAY_OUT)
    found = _text(standard_input().read(_QUERY_BYTES + 1), "standard input")
    if not found.strip():
        raise UsageError("there is no query", hint=_WAY_OUT)
    return found


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise QueryError(f"{source}: the query is not UTF-8 (byte {error.start:,})") from None
