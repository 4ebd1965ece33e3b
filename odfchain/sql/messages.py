"""What Spark says about a query, as one line: which step, where in it, what is wrong."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator
from typing import Any

from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.model.sources import TransformSql
from odfchain.text import excerpt, located, one_line

_POSITION = re.compile(r"line (\d+),? pos (\d+)")
_CODE = re.compile(r"\s*\[([A-Z_0-9]+(?:\.[A-Z_0-9]+)*)\]\s*")
_TAIL = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_ADVICE = re.compile(
    r" (?:Correct the (?:value|syntax)|Use (?:the SQL function )?[`']|If necessary set|Please, refer to).*",
    re.DOTALL,
)
_INSTEAD = re.compile(r"Use (?:the SQL function )?[`'](\w+)")
_NAME = re.compile(r"`(?:[^`]|``)*`(?:\.`(?:[^`]|``)*`)*")
_CONTEXT = re.compile(r"== SQL \(line (\d+), position (\d+)\) ==\n([^\n]*)\n( *)(\^+)")
_LONGEST = 300
ONE_SELECT = "a step is one SELECT over the tables it is given"
_TOO_DEEP = "is nested too deeply for Spark's parser"


def step_labels(transform: TransformSql) -> list[tuple[str, str]]:
    """What messages call every step, and its SQL."""
    if transform.query is not None:
        return [("query", transform.query)]
    queries = transform.queries or ()
    return [
        (
            (f"query step {number}" if len(queries) > 1 else "query")
            + (f" (`{step.alias}`)" if step.alias is not None else ""),
            step.query,
        )
        for number, step in enumerate(queries, start=1)
    ]


def spark_says(
    error: Exception, label: str, *, translated: bool = False, sql: str | None = None
) -> OdfchainError:
    """The project's error for what Spark raised while it read or resolved a query."""
    text = str(error)
    if "StackOverflowError" in text:
        return QueryError(f"{label}: {_TOO_DEEP}", hint="split it into steps")
    if "Max iterations (" in text:
        return QueryError(
            f"{label}: has more names that stand for one another than Spark resolves",
            hint="split it into steps, with fewer WITH in each",
        )
    if "OutOfMemoryError" in text:
        return EngineError("Java ran out of memory while it read a query")
    match = _CODE.search(text)
    if match is None:
        return QueryError(
            f"{label}: Spark cannot read this query: {one_line(text.partition(chr(10))[0], _LONGEST)}"
        )
    whole = _TAIL.sub("", text[match.end() :].partition("\n== SQL")[0].partition("\n\tat ")[0])
    said = one_line(_ADVICE.sub("", whole), _LONGEST).removesuffix(".")
    found = None if translated else _POSITION.search(text)
    line, column = (int(found.group(1)), int(found.group(2)) + 1) if found else (None, None)
    hint, code = None, match.group(1)
    if code.startswith("INVALID_SQL_SYNTAX.UNSUPPORTED_SQL_STATEMENT") or code == "INTERNAL_ERROR":
        said, hint = "is a command, not a query", ONE_SELECT
    if code == "TABLE_OR_VIEW_NOT_FOUND":
        said, hint = said.partition(" Verify")[0], "a WITH is known only inside its own query"
    if code.startswith("UNRESOLVED_COLUMN") and (names := _names(whole)):
        said = f"there is no column `{one_line(names[0], 80)}`"
        hint = _columns_hint(names[0], names[1:])
    return QueryError(located(label, line, column, said), hint=hint, excerpt=excerpt(sql, line, column))


def _names(text: str) -> list[str]:
    """The names that Spark quotes in a message, as a person would write them."""
    return [
        ".".join(part[1:-1].replace("``", "`") for part in re.findall(r"`(?:[^`]|``)*`", name))
        for name in _NAME.findall(text)
    ]


def _columns_hint(name: str, known: list[str]) -> str | None:
    """Which column may have been meant: the nearest first."""

    def likeness(other: str) -> float:
        # with the table's name or without: what is written is compared with what could be
        candidates = (other, other.rpartition(".")[2])
        return max(difflib.SequenceMatcher(None, name.lower(), c.lower()).ratio() for c in candidates)

    near = sorted((k for k in known if likeness(k) >= 0.6), key=likeness, reverse=True)[:3]
    if near:
        return f"did you mean {' or '.join(one_line(k, 80) for k in near)}?"
    return f"columns here are {', '.join(one_line(k, 80) for k in known)}" if known else None


def failed_query(
    error: Exception, label: str = "the query", *, transform: TransformSql | None = None
) -> QueryError | None:
    """The error of a query whose values cannot be computed (a cast, a division by zero); None for others.

    For the job that runs later: Spark is lazy, so such a fault shows when the rows are written. The step is
    named when the fragment that Spark shows stands in one step of `transform` only.
    """
    text = str(error)
    match = _CODE.search(text)
    state = re.search(r"SQLSTATE: (\w{2})\w{3}", text)
    if match is None or state is None or state.group(1) != "22":
        return None
    whole = _TAIL.sub("", text[match.end() :])
    instead = _INSTEAD.search(whole)
    hint = f"{instead.group(1)} gives NULL instead" if instead else "try_cast and try_divide give NULL"
    said = one_line(_ADVICE.sub("", whole), _LONGEST).removesuffix(".")
    place = _place(text, transform) if transform is not None else None
    if place is None:
        return QueryError(f"{label}: {said}", hint=hint)
    step, sql, line, column = place
    return QueryError(located(step, line, column, said), hint=hint, excerpt=excerpt(sql, line, column))


def _place(text: str, transform: TransformSql) -> tuple[str, str, int, int] | None:
    """(label of the step, its SQL, line, column) of the fragment that Spark shows."""
    found = _CONTEXT.search(text)
    if found is None:
        return None
    line, column = int(found.group(1)), int(found.group(2))
    fragment = found.group(3)[len(found.group(4)) :][: len(found.group(5))]
    places = []
    for label, sql in step_labels(transform):
        lines = sql.split("\n")
        if line <= len(lines) and lines[line - 1].startswith(fragment, column - 1):
            places.append((label, sql, line, column))
    return places[0] if len(places) == 1 else None


@contextlib.contextmanager
def asking_spark(label: str, *, translated: bool = False, sql: str | None = None) -> Iterator[None]:
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
        raise spark_says(error, label, translated=translated, sql=sql) from error


def option(value: Any) -> Any:
    """What a Scala Option holds, or None."""
    return value.get() if value.isDefined() else None
