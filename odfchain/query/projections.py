"""The table functions of queries: `state(name[, event_time[, key]])`, `to_table`, `diff` and `history`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odfchain.errors import InvalidIdError, QueryError
from odfchain.query.pins import Pins
from odfchain.query.relations import Relation, StateOf
from odfchain.repo.points import parse_time
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.query.change_relations import Changes

_ARGUMENTS = {"state": (1, 3), "to_table": (1, 1), "diff": (2, 2), "history": (1, 1)}
"""The fewest and the most of each."""
FUNCTIONS = frozenset(_ARGUMENTS)
"""`to_table` is what the reference node calls it; it takes a name only."""
_USAGES = {
    "diff": "write diff('name@POINT', 'name@POINT')",
    "history": "write history('name[@POINT]')",
}
Call = tuple[str | None, ...]
"""The name of a function, then its arguments."""


def usage(name: str) -> str:
    """How a function is called."""
    return _USAGES.get(name, "write state('name[@POINT]'[, 'event time'[, 'column, column']])")


def wrong_count(name: str, count: int) -> str | None:
    """What is wrong with so many arguments of a function."""
    least, most = _ARGUMENTS[name]
    if least <= count <= most:
        return None
    return f"{count} arguments, not {least}" + (f" to {most}" if most > least else "")


def may_be_name(name: str, number: int) -> bool:
    """Whether an argument of a function is the name of a dataset, which needs no quotes; else NULL is one."""
    return number == 0 or name == "diff"


def arguments_of(name: str, expressions: Sequence[Any]) -> Call:
    """A call as the embedded engine hands over its arguments: names and texts; NULL is None.

    Raises:
        QueryError: another expression, too many of them, or a name with dots that is not quoted.
    """
    if wrong := wrong_count(name, len(expressions)):
        raise QueryError(f"{name}(…) has {wrong}", hint=usage(name))
    return (name, *(_argument(name, number, each) for number, each in enumerate(expressions)))


def _argument(function: str, number: int, expression: Any) -> str | None:
    kind = expression.variant_name()
    if kind == "Column" and may_be_name(function, number):
        column = expression.to_variant()
        if column.relation() is None:
            return str(column.name())
        whole = f"{column.relation()}.{column.name()}"
        raise dotted_name(whole, f"{function}('{whole}')")
    if kind == "Literal":
        value = expression.python_value()
        value = getattr(value, "as_py", lambda: value)()
        if isinstance(value, str) or (value is None and not may_be_name(function, number)):
            return value
    raise QueryError(f"argument {number + 1} of {function}(…) is not a text", hint=usage(function))


def dotted_name(name: str, instead: str = "") -> QueryError:
    """What is said of a name with dots that stands without quotes."""
    return QueryError(
        f"`{one_line(name)}`: a name with dots is written in quotes",
        hint=f"write {instead or quoted_name(name)}",
    )


def quoted_name(name: str) -> str:
    """A name as SQL takes it, dots and all."""
    return '"' + one_line(name).replace('"', '""') + '"'


def relation_of(call: Call, pins: Pins) -> Relation | Changes:
    """The table that a call means.

    Raises:
        QueryError: an argument cannot be understood.
    """
    function, name, *rest = call
    assert name is not None  # noqa: S101 - `arguments_of`
    pin = pins.pin(name)
    if function in _USAGES:
        from odfchain.query.change_relations import Changes  # what compares rows is slow to load

        other = rest[0] if rest else None
        return Changes(pin, None if other is None else pins.pin(other), pins.workspace.has_key(pin.id))
    time, key = (*rest, None, None)[:2]
    moment = None
    if time is not None:
        try:
            moment = parse_time(time)
        except InvalidIdError as error:
            raise QueryError(f"state of {one_line(name)}: {error.message}", hint=error.hint) from None
    columns = None if key is None else tuple(part.strip() for part in key.split(",") if part.strip())
    return Relation(pin, StateOf(moment, columns))
