"""What DataFusion says about a query, as an error of this project: what is wrong, where, what to write."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator
from typing import Any

from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.query.projections import dotted_name
from odfchain.text import excerpt, located, one_line

_POSITION = re.compile(r" at Line: (\d+), Column: (\d+)")
_NO_TABLE = re.compile(r"table '(.*)' not found", re.DOTALL)
_NO_COLUMN = re.compile(r"No field named (.*?)\.(?:\s|$)", re.DOTALL)
_VALID = re.compile(r"Valid fields are (.*)\.\s*$", re.DOTALL)
_MEANT = re.compile(r"Did you mean '(.*?)'\?")
_NO_FUNCTION = re.compile(
    r"Invalid function '(\w+)'|table function '(\w+)' not found|There is no (?:UDF )?function (\w+)",
    re.IGNORECASE,
)
_KIND = re.compile(
    r"^(?:DataFusion error: )?(?:Error during planning|Schema error|SQL error|"
    r"This feature is not implemented|Execution error|Arrow error|"
    r"Optimizer rule '\w+' failed|Invalid or Unsupported Configuration|caused by)"
    r"(?:: |\s+)"
)
_LONGEST = 300


@contextlib.contextmanager
def engine_says(sql: str, tables: Any = None) -> Iterator[None]:
    """Whatever the engine raises inside becomes an error of the project; `tables` keeps what we raised in it.

    Raises:
        QueryError: the query is wrong, or a value cannot be computed.
        EngineError: memory is used up, or the engine broke.
    """
    try:
        yield
    except OdfchainError:
        raise
    except (KeyboardInterrupt, TimeoutError, BrokenPipeError):
        raise
    except BaseException as error:
        if tables is not None:
            missing = tables.missing.get(_asked_table(str(error)))
            if found := tables.error or (missing and _no_dataset(missing, str(error), sql)):
                raise found from None
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise explained(str(error), sql) from error


def out_of_memory() -> EngineError:
    """What is said of a query that takes more than it may."""
    return EngineError(
        "the query needs more memory than it is given",
        hint="give it more with --memory, read fewer columns or rows, or use --engine spark",
    )


def explained(text: str, sql: str) -> OdfchainError:
    """The project's error for what the engine said."""
    if "Resources exhausted" in text or "memory limit" in text.lower() or "memory allocat" in text:
        return out_of_memory()
    if "panicked" in text or "Internal error" in text:
        return EngineError(f"the engine failed: {one_line(text, _LONGEST)}", hint="use --engine spark")
    if found := _NO_TABLE.search(text):
        return _no_table(found.group(1))
    said = _without_kinds(text)
    line, column, hint = None, None, None
    if position := _POSITION.search(text):
        line, column = int(position.group(1)), int(position.group(2))
        said = _POSITION.sub("", said)
    elif missing := _NO_COLUMN.search(text):
        name = missing.group(1)
        said = f"there is no column {one_line(name, 80)}"
        hint = _meant(text, name)
        line, column = place_of(sql, name.rpartition(".")[2].strip('"'))
    elif missing := _NO_FUNCTION.search(text):
        name = next(part for part in missing.groups() if part)
        said = f"there is no function {name}"
        near = re.search(r"Did you mean '?(\w+)'?", text)
        hint = f"did you mean {near.group(1)}?" if near else None
        line, column = place_of(sql, name)
    if "single SQL statement" in text:
        said, hint = "more than one statement", "one query is answered at a time"
    elif "not supported" in text or "Unsupported SQL statement" in text:
        hint = hint or "only queries are answered: nothing is changed, and no file is named"
    elif "No SQL statements" in text:
        said, hint = "there is no query", "write one, like: select count(*) from airports"
    where = located("the query", line, column, said.strip())
    return QueryError(where, hint=hint, excerpt=excerpt(sql, line, column))


def _without_kinds(text: str) -> str:
    said = (
        re.split(r"\.?\s+(?:Valid fields|Did you mean)", text)[0]
        .partition("\n\nBacktrace")[0]
        .partition("\nbacktrace")[0]
    )
    parser = re.search(r'(?:ParserError|TokenizerError)\("(.*)"\)', said, re.DOTALL)
    if parser:
        said = parser.group(1)
    while (shorter := _KIND.sub("", said)) != said:
        said = shorter
    return one_line(said.partition("\n")[0], _LONGEST).removesuffix(".")


def _asked_table(text: str) -> str:
    found = _NO_TABLE.search(text)
    return found.group(1).removeprefix("odf.public.") if found else ""


def _no_dataset(error: OdfchainError, text: str, sql: str) -> OdfchainError:
    """Why a table's name is none, and where it stands."""
    name = _asked_table(text)
    line, column = place_of(sql, name)
    if line is not None and column is not None and sql.split("\n")[line - 1][column - 1] == "'":
        what = located("the query", line, column, f"'{one_line(name, 80)}' is a text, and no file is read")
        return QueryError(what, hint="a table is a dataset's name", excerpt=excerpt(sql, line, column))
    if isinstance(error, QueryError):
        what = located("the query", line, column, error.message)
        return QueryError(what, hint=error.hint, excerpt=excerpt(sql, line, column))
    return error


def _no_table(name: str) -> QueryError:
    written = name.removeprefix("odf.")
    return dotted_name(written)


def _meant(text: str, name: str) -> str | None:
    if near := _MEANT.search(text):
        return f"did you mean {one_line(near.group(1), 80)}?"
    listed = _VALID.search(text)
    if listed is None:
        return None
    valid = [part.strip() for part in listed.group(1).split(", ")]
    short = {part.rpartition(".")[2]: part for part in valid}
    close = difflib.get_close_matches(name.rpartition(".")[2], short, n=3)
    if close:
        return f"did you mean {' or '.join(one_line(part, 80) for part in close)}?"
    return f"columns here are {', '.join(one_line(part, 80) for part in list(short)[:30])}"


def place_of(sql: str, name: str) -> tuple[int | None, int | None]:
    """(line, column) where a name stands in a query, both from 1; None where it is not one word of it."""
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import SqlglotError

    try:
        tokens = Postgres().tokenize(sql)
    except SqlglotError:
        return None, None
    for token in tokens:
        if token.text == name or token.text.lower() == name:
            before = sql[: token.start]
            return before.count("\n") + 1, token.start - (before.rfind("\n") + 1) + 1
    return None, None
