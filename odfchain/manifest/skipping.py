"""Whether a file may hold a row that a condition keeps: false only where no row can.

A condition is SQL of columns and literals: `= <> < <= > >= IN BETWEEN IS [NOT] NULL LIKE 'x%' AND OR NOT`.
Whatever else it says may match. Texts compare by their UTF-8 bytes, as Spark does.

NaN is in no bound, and greater than every number: so `>`, `>=`, `<>` and `= NaN` of a column of floats skip
nothing. Source: RFC-039.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import sqlglot
from pyarrow import types as t
from sqlglot import exp

from odfchain.errors import InvalidIdError, QueryError
from odfchain.model.timestamp import Timestamp
from odfchain.slices.footers import ColumnStats, FileStats, Value, quoted
from odfchain.text import excerpt, first_line, located, one_line

_DIALECT = "spark"
_MOST_CHARACTERS = 10_000
_BEFORE = "SELECT 1 WHERE "
_INVERSE = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.LT: exp.GTE,
    exp.GTE: exp.LT,
    exp.GT: exp.LTE,
    exp.LTE: exp.GT,
}
_TURNED = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE}
_NULL_LITERAL = object()


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on the rows of a dataset."""

    text: str
    tree: exp.Expr
    understood: bool
    """Whether any of it can skip something."""


def parse_where(text: str, schema: pa.Schema) -> Where:
    """The condition that a text means for rows with these columns.

    Raises:
        QueryError: it is not SQL, or names a column that there is not.
    """
    if len(text) > _MOST_CHARACTERS:
        raise QueryError(f"the condition has {len(text):,} characters, at most {_MOST_CHARACTERS:,} are read")
    try:
        query = sqlglot.parse_one(_BEFORE + text, read=_DIALECT)
    except sqlglot.errors.ParseError as error:
        place = error.errors[0] if error.errors else {}
        line, column = place.get("line"), place.get("col")
        highlighted = len(place.get("highlight") or " ")
        raise _wrong(text, line, column, highlighted, place.get("description") or first_line(error)) from None
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise QueryError(f"the condition {one_line(text)!r} cannot be read: {first_line(error)}") from None
    if {name for name, part in query.args.items() if part} != {"expressions", "where"}:
        raise QueryError(f"{one_line(text)!r} is more than a condition")
    tree = query.args["where"].this
    for column in tree.find_all(exp.Column):
        part = column.parts[0]
        if part.name not in schema.names:
            there = f"there are {', '.join(map(one_line, schema.names))}"
            what = f"there is no column `{one_line(part.name)}`"
            width = part.meta.get("end", 0) - part.meta.get("start", 0) + 1
            raise _wrong(text, part.meta.get("line"), part.meta.get("col"), width, what, hint=there)
    return Where(text, tree, any(True for _ in _leaves(tree)))


def _wrong(
    text: str, line: int | None, end: int | None, width: int, what: str, *, hint: str | None = None
) -> QueryError:
    """What is wrong with a condition, and where: at the characters that end in a column of the query."""
    column = None if end is None else end - width + 1 - (len(_BEFORE) if line == 1 else 0)
    if column is None or not 0 < column <= len(text):
        line = column = None
    said = located("the condition", line, column, one_line(what))
    return QueryError(said, hint=hint, excerpt=excerpt(text, line, column))


def _leaves(tree: exp.Expr) -> Iterator[exp.Expr]:
    for node in tree.walk():
        if isinstance(node, (*_INVERSE, exp.In, exp.Between, exp.Like, exp.Is)) and _column(node.this):
            yield node


def may_match(stats: FileStats, where: Where) -> bool:
    """Whether a file with these statistics may hold a row that the condition keeps."""
    if stats.row_count == 0:
        return False
    return _may(where.tree, stats, negated=False)


def _may(node: exp.Expr, stats: FileStats, *, negated: bool) -> bool:
    """Whether the condition (negated: its contrary) may be true of a row; null is neither."""
    match node:
        case exp.Paren():
            return _may(node.this, stats, negated=negated)
        case exp.Not():
            return _may(node.this, stats, negated=not negated)
        case exp.And() | exp.Or():
            both = isinstance(node, exp.And) is not negated
            sides = (_may(side, stats, negated=negated) for side in (node.left, node.right))
            return all(sides) if both else any(sides)
        case exp.Is():
            return _may_be_null(node, stats, negated=negated)
        case exp.In() if not node.args.get("query") and not node.args.get("unnest"):
            if negated:
                return all(_compares(exp.NEQ, node.this, item, stats) for item in node.expressions)
            return any(_compares(exp.EQ, node.this, item, stats) for item in node.expressions)
        case exp.Between():
            low, high = node.args["low"], node.args["high"]
            if negated:
                return _compares(exp.LT, node.this, low, stats) or _compares(exp.GT, node.this, high, stats)
            return _compares(exp.GTE, node.this, low, stats) and _compares(exp.LTE, node.this, high, stats)
        case exp.Like() if not negated:
            return _may_be_like(node, stats)
    kind = type(node)
    if kind in _INVERSE:
        kind = _INVERSE[kind] if negated else kind
        left, right = node.this, node.expression
        if _column(left):
            return _compares(kind, left, right, stats)
        if _column(right):
            return _compares(_TURNED.get(kind, kind), right, left, stats)
    return True


def _column(node: exp.Expr) -> str | None:
    """The path of a column, as statistics name it."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return ".".join(quoted(part.name) for part in node.parts)
    if isinstance(node, exp.Dot) and (path := _column(node.this)):
        return f"{path}.{quoted(node.name)}"
    return None


def _has_values(name: str, stats: FileStats) -> tuple[bool, ColumnStats | None]:
    """(whether a row may have a value there, what is reported of the column)."""
    found = stats.column(name)
    if found is not None:
        return found.null_count < stats.row_count, found
    absent = stats.present is not None and not any(
        p == name or p.startswith(f"{name}.") for p in stats.present
    )
    return not absent, None


def _may_be_null(node: exp.Is, stats: FileStats, *, negated: bool) -> bool:
    name, what = _column(node.this), node.expression
    wanted = not negated
    if isinstance(what, exp.Not):
        what, wanted = what.this, negated
    if name is None or not isinstance(what, exp.Null):
        return True
    values, found = _has_values(name, stats)
    if not wanted:
        return values
    return found is None or found.null_count > 0


def _compares(kind: type[exp.Expr], column: exp.Expr, literal: exp.Expr, stats: FileStats) -> bool:
    name = _column(column)
    if name is None:
        return True
    values, found = _has_values(name, stats)
    if not values:
        return False
    if found is None or found.low is None or found.high is None:
        return True
    if isinstance(literal, exp.Null):
        return False  # no comparison with null is true
    value = _literal(literal, found.type)
    if value is None:
        return True
    low, high = _ordered(found.low), _ordered(found.high)
    at = _ordered(value)
    if t.is_floating(found.type) and (
        kind in (exp.GT, exp.GTE, exp.NEQ) or (isinstance(at, float) and math.isnan(at))
    ):
        return True
    return _RULES[kind](low, high, at)


_RULES: dict[type[exp.Expr], Callable[[object, object, object], bool]] = {
    exp.EQ: lambda low, high, at: low <= at <= high,  # type: ignore[operator]
    exp.NEQ: lambda low, high, at: not low == high == at,
    exp.LT: lambda low, _, at: low < at,  # type: ignore[operator]
    exp.LTE: lambda low, _, at: low <= at,  # type: ignore[operator]
    exp.GT: lambda _, high, at: high > at,  # type: ignore[operator]
    exp.GTE: lambda _, high, at: high >= at,  # type: ignore[operator]
}


def _ordered(value: Value) -> object:
    return value.encode() if isinstance(value, str) else value


def _may_be_like(node: exp.Like, stats: FileStats) -> bool:
    name, pattern = _column(node.this), node.expression
    if name is None or not (isinstance(pattern, exp.Literal) and pattern.is_string):
        return True
    values, found = _has_values(name, stats)
    if not values:
        return False
    text = pattern.name
    most = min((text.index(sign) for sign in "%_\\" if sign in text), default=len(text))
    prefix = text[:most].encode()
    if found is None or not isinstance(found.low, str) or not isinstance(found.high, str) or not prefix:
        return True
    return found.low.encode()[: len(prefix)] <= prefix and found.high.encode() >= prefix


def _literal(node: exp.Expr, kind: pa.DataType) -> Value | None:
    """A literal as a bound of a column's type; None for what only the engine knows how to compare."""
    sign = 1
    while isinstance(node, exp.Neg | exp.Paren):
        sign, node = (-sign if isinstance(node, exp.Neg) else sign), node.this
    if isinstance(node, exp.Boolean) and t.is_boolean(kind):
        return bool(node.this)
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
        return _cast(node, kind)
    if not isinstance(node, exp.Literal):
        return None
    text = node.name
    if node.is_string:
        if t.is_string(kind) or t.is_large_string(kind):
            return text
        return _time(text, kind)
    if not (t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind)):
        return None
    try:
        number = Decimal(text) * sign
    except InvalidOperation:
        return None
    return float(number) if t.is_floating(kind) else number


def _cast(node: exp.Cast, kind: pa.DataType) -> Value | None:
    text, target = node.this.name, node.to.this
    if target in (exp.DataType.Type.DATE, exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ):
        return _time(text, kind)
    if target is exp.DataType.Type.DOUBLE and t.is_floating(kind) and text.lower() == "nan":
        return math.nan
    return None


def _time(text: str, kind: pa.DataType) -> Value | None:
    """A day or a moment as a column of those has it; None for other texts, and for other columns."""
    try:
        if len(text) == len("2026-01-01"):
            days = (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
            if t.is_date32(kind):
                return days
            return days * 86_400 * 10**9 if t.is_timestamp(kind) else None
        if not t.is_timestamp(kind):
            return None
        whole = text.replace(" ", "T", 1)
        return Timestamp.parse(whole if whole.endswith("Z") else f"{whole}Z").epoch_ms * 10**6
    except (ValueError, InvalidIdError):
        return None
