"""What Spark says about a query, as one line: which step, where in it, what is wrong."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from odfchain.errors import EngineError, OdfchainError, QueryError

_POSITION = re.compile(r"line (\d+),? pos (\d+)")
_CODE = re.compile(r"\s*\[([A-Z_0-9]+(?:\.[A-Z_0-9]+)*)\]\s*")
_TAIL = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_LONGEST = 300
ONE_SELECT = "a step is one SELECT over the tables it is given"
_TOO_DEEP = "is nested too deeply for Spark's parser"


def one_line(text: str, longest: int = _LONGEST) -> str:
    """The text on one line without control characters, cut when it is long."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def located(label: str, line: int | None, column: int | None, what: str) -> str:
    """A message that says which step and where in it; lines and columns count from 1."""
    where = f", line {line}, column {column}" if line is not None and column is not None else ""
    return f"{label}{where}: {what}"


def spark_says(error: Exception, label: str, *, translated: bool = False) -> OdfchainError:
    """The project's error for what Spark raised while it read or resolved a query."""
    text = str(error)
    if "StackOverflowError" in text:
        return QueryError(f"{label}: {_TOO_DEEP}", hint="split it into steps")
    if "OutOfMemoryError" in text:
        return EngineError("Java ran out of memory while it read a query")
    match = _CODE.search(text)
    if match is None:
        return QueryError(f"{label}: Spark cannot read this query: {one_line(text.partition(chr(10))[0])}")
    said = one_line(_TAIL.sub("", text[match.end() :].partition("\n== SQL")[0].partition("\n\tat ")[0]))
    found = None if translated else _POSITION.search(text)
    line, column = (int(found.group(1)), int(found.group(2)) + 1) if found else (None, None)
    hint, code = None, match.group(1)
    if code.startswith("INVALID_SQL_SYNTAX.UNSUPPORTED_SQL_STATEMENT") or code == "INTERNAL_ERROR":
        said, hint = "is a command, not a query", ONE_SELECT
    if code == "TABLE_OR_VIEW_NOT_FOUND":
        said, hint = said.partition(" Verify")[0], "a WITH is known only inside its own query"
    return QueryError(located(label, line, column, said), hint=hint)


def failed_query(error: Exception, label: str = "the query") -> QueryError | None:
    """The error of a query whose values cannot be computed (a cast, a division by zero); None for others.

    For the job that runs later: Spark is lazy, so such a fault shows when the rows are written.
    """
    text = str(error)
    match = _CODE.search(text)
    state = re.search(r"SQLSTATE: (\w{2})\w{3}", text)
    if match is None or state is None or state.group(1) != "22":
        return None
    return QueryError(
        f"{label}: {one_line(_TAIL.sub('', text[match.end() :]))}", hint="try_cast and try_divide give NULL"
    )


@contextlib.contextmanager
def asking_spark(label: str, *, translated: bool = False) -> Iterator[None]:
    """Whatever Spark or the connection to it raises inside becomes an error of the project.

    Raises:
        QueryError: Spark refuses the query.
        EngineError: Java is gone or out of memory.
    """
    from py4j.protocol import Py4JNetworkError
    from pyspark.logger import PySparkLogger

    # PySpark prints every error of a query as JSON on the screen, before it raises it
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except OdfchainError:
        raise
    except (Py4JNetworkError, ConnectionError) as error:
        raise EngineError(f"the connection to Java broke: {one_line(str(error))}") from error
    except Exception as error:  # Spark's and the bridge's share no base class
        raise spark_says(error, label, translated=translated) from error


def option(value: Any) -> Any:
    """What a Scala Option holds, or None."""
    return value.get() if value.isDefined() else None
