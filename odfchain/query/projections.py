"""The table functions of queries: `state(name[, event_time[, key]])`, and `to_table(name)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odfchain.errors import InvalidIdError, QueryError
from odfchain.query.pins import Pins
from odfchain.query.relations import Relation, StateOf
from odfchain.repo.points import parse_time
from odfchain.text import one_line

FUNCTIONS = frozenset({"state", "to_table"})
"""`to_table` is what the reference node calls it; it takes a name only."""
USAGE = "write state('name[@POINT]'[, 'event time'[, 'column, column']])"


def arguments_of(name: str, expressions: Sequence[Any]) -> tuple[str | None, ...]:
    """The arguments of a call as the embedded engine hands them over: names and texts; NULL is None.

    Raises:
        QueryError: another expression, too many of them, or a name with dots that is not quoted.
    """
    most = 1 if name == "to_table" else 3
    if not 1 <= len(expressions) <= most:
        raise QueryError(f"{name}(…) has {len(expressions)} arguments, not 1 to {most}", hint=USAGE)
    return tuple(_argument(name, number, each) for number, each in enumerate(expressions))


def _argument(function: str, number: int, expression: Any) -> str | None:
    kind = expression.variant_name()
    if kind == "Column" and number == 0:
        column = expression.to_variant()
        if column.relation() is None:
            return str(column.name())
        whole = f"{column.relation()}.{column.name()}"
        raise dotted_name(whole, f"{function}('{whole}')")
    if kind == "Literal":
        value = expression.python_value()
        value = getattr(value, "as_py", lambda: value)()
        if isinstance(value, str) or (value is None and number > 0):
            return value
    raise QueryError(f"argument {number + 1} of {function}(…) is not a text", hint=USAGE)


def dotted_name(name: str, instead: str = "") -> QueryError:
    """What is said of a name with dots that stands without quotes."""
    return QueryError(
        f"`{one_line(name)}`: a name with dots is written in quotes",
        hint=f"write {instead or quoted_name(name)}",
    )


def quoted_name(name: str) -> str:
    """A name as SQL takes it, dots and all."""
    return '"' + one_line(name).replace('"', '""') + '"'


def state_call(arguments: Sequence[str | None], pins: Pins) -> Relation:
    """The state that a call with these arguments means.

    Raises:
        QueryError: an argument cannot be understood.
        And all errors of `Pins.pin`.
    """
    name, time, key = (*arguments, None, None)[:3]
    assert name is not None  # noqa: S101 - `arguments_of`
    moment = None
    if time is not None:
        try:
            moment = parse_time(time)
        except InvalidIdError as error:
            raise QueryError(f"state of {one_line(name)}: {error.message}", hint=error.hint) from None
    columns = None if key is None else tuple(part.strip() for part in key.split(",") if part.strip())
    return Relation(pins.pin(name), StateOf(moment, columns))
