"""The condition that a text means: SQL of columns and literals, as `odfchain query` reads it.

`= <> < <= > >= IN BETWEEN IS [NOT] NULL LIKE 'x%' AND OR NOT` are understood; any other part may be true.
Names in double quotes or backticks are exact, others are in lower case (or as they are written, where that is
the only column). Times without a zone are UTC. Source: RFC-039.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import sqlglot
from pyarrow import types as t
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from odfchain.errors import InvalidIdError, QueryError
from odfchain.odf.times import Timestamp
from odfchain.slices.footers import Value, quoted
from odfchain.slices.skipping import (
    MAYBE,
    NULL,
    UNKNOWN,
    Condition,
    ConditionVisitor,
    Group,
    Parts,
    Test,
    group_of,
    understood,
    value_for,
)
from odfchain.text import first_line, one_line

_MOST_CHARACTERS = 10_000
_BEFORE = "SELECT 1 WHERE "
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,9})?))?(Z?)", re.ASCII)
_UTC = (None, "UTC", "Etc/UTC", "+00:00", "Z")
# Finer times are compared differently by every engine [ns].
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 10**3}
_TESTS: dict[type, Test] = {
    exp.EQ: Test.EQ, exp.NEQ: Test.NE, exp.LT: Test.LT, exp.LTE: Test.LE, exp.GT: Test.GT, exp.GTE: Test.GE
}  # fmt: skip


# The arguments of the nodes that are understood; others change their meaning.
_ARGUMENTS = {"this", "expression", "expressions", "low", "high"}


class _Words(Spark):
    """Spark's words, but `"x"` is a name, as it is in queries here."""

    class Tokenizer(Spark.Tokenizer):
        QUOTES = ["'"]  # noqa: RUF012 - sqlglot's way
        IDENTIFIERS = ["`", '"']  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on the rows of a dataset."""

    text: str
    """With names as they are, in backticks: every engine reads it alike."""
    condition: Condition
    columns: tuple[str, ...]
    """Those that it names."""

    @property
    def understood(self) -> bool:
        """True if any of it can skip something."""
        return understood(self.condition)


def parse_where(text: str, schema: pa.Schema, *, utc: bool = True) -> Where:
    """The condition that a text means for rows with these columns.

    `utc`: whether times without a zone are UTC for who compares them.

    Raises:
        QueryError: it is not a condition, or names a column that there is not; says where.
    """
    if len(text) > _MOST_CHARACTERS:
        raise QueryError(f"the condition has {len(text):,} characters, at most {_MOST_CHARACTERS:,} are read")
    tree = _parsed(text)
    found = _Reading(text, schema, utc)
    exact, columns = found.with_exact_names(tree)
    try:
        return Where(exact, found.condition(tree), columns)
    except RecursionError:
        return Where(exact, MAYBE, columns)


def _parsed(text: str) -> exp.Expr:
    try:
        queries = sqlglot.parse(f"{_BEFORE}{text}", read=_Words)
    except sqlglot.errors.ParseError as error:
        place = error.errors[0] if error.errors else {}
        line, column = place.get("line"), place.get("col")
        highlighted = len(place.get("highlight") or " ")
        said = place.get("description") or first_line(error)
        if said.startswith("Required keyword"):  # it names classes of the parser
            said = "something is missing here"
        raise _wrong(text, line, column, highlighted, said) from None
    except sqlglot.errors.TokenError:
        message = f"the condition {one_line(text)!r} cannot be read: a text or a name in it has no end"
        raise QueryError(message, hint="texts stand in 'quotes', names in `backticks`") from None
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise QueryError(f"the condition {one_line(text)!r} cannot be read: {first_line(error)}") from None
    query = queries[0] if len(queries) == 1 else None
    parts = () if query is None else (name for name, part in query.args.items() if part)
    if query is None or set(parts) != {"expressions", "where"}:
        raise QueryError(f"{one_line(text)!r} is more than a condition")
    tree: exp.Expr = query.args["where"].this
    if any(True for _ in tree.find_all(exp.Query)):
        raise QueryError(f"{one_line(text)!r} is more than a condition on the rows of one dataset")
    return tree


def _wrong(
    text: str, line: int | None, end: int | None, width: int, what: str, *, hint: str | None = None
) -> QueryError:
    column = None if end is None else end - width + 1 - (len(_BEFORE) if line == 1 else 0)
    if column is None or not 0 < column <= len(text):
        line = column = None
    return QueryError.at("the condition", text, (line, column), one_line(what), hint=hint)


class _Reading(ConditionVisitor):
    def __init__(self, text: str, schema: pa.Schema, utc: bool) -> None:
        self._text, self._names, self._utc = text, schema.names, utc
        self.types = _types_of(schema)

    def with_exact_names(self, tree: exp.Expr) -> tuple[str, tuple[str, ...]]:
        """(the text with all columns in backticks, these); the tree has their true names then, too."""
        places: dict[int, tuple[int, str]] = {}
        for column in tree.find_all(exp.Column):
            first = column.parts[0]
            name = self._name(first)
            first.set("this", name)
            places[first.meta["start"] - len(_BEFORE)] = (first.meta["end"] + 1 - len(_BEFORE), name)
        made, at = [], 0
        for start, (end, name) in sorted(places.items()):
            made += [self._text[at:start], "`" + name.replace("`", "``") + "`"]
            at = end
        names = dict.fromkeys(name for _, name in places.values())
        return "".join([*made, self._text[at:]]), tuple(names)

    def _name(self, part: exp.Expr) -> str:
        name = part.name
        for each in (name,) if part.args.get("quoted") else (name.lower(), name):
            if each in self._names:
                return each
        width = part.meta.get("end", 0) - part.meta.get("start", 0) + 1
        message = f"there is no column `{one_line(name)}`"
        hint = f"there are {', '.join(map(one_line, self._names))}"
        raise _wrong(self._text, part.meta.get("line"), part.meta.get("col"), width, message, hint=hint)

    def parts(self, node: exp.Expr) -> Parts:
        node = node.unnest()
        if any(part for name, part in node.args.items() if name not in _ARGUMENTS):
            return UNKNOWN  # such as the NOT of NOT LIKE, or SYMMETRIC
        match node:
            case exp.Not():
                return "not", node.this
            case exp.And() | exp.Or():
                return "and" if isinstance(node, exp.And) else "or", node.left, node.right
            case exp.Is():
                what, test = node.expression, Test.NULL
                if isinstance(what, exp.Not):
                    what, test = what.this, Test.VALUE
                return (test, node.this) if isinstance(what, exp.Null) else UNKNOWN
            case exp.In() if node.expressions:
                return "in", node.this, *node.expressions
            case exp.Between():
                low, high = node.args["low"], node.args["high"]
                return (
                    "and", exp.GTE(this=node.this, expression=low), exp.LTE(this=node.this, expression=high)
                )  # fmt: skip
            case exp.Like():
                pattern = node.expression
                if isinstance(pattern, exp.Literal) and pattern.is_string and self._is_plain(pattern):
                    return Test.BEGINS, node.this, pattern.name
        return (_TESTS[type(node)], node.this, node.expression) if type(node) in _TESTS else UNKNOWN

    def path(self, node: exp.Expr) -> str | None:
        node = node.unnest()
        path = None
        if isinstance(node, exp.Column):
            path = ".".join(quoted(part.name) for part in node.parts)
        elif isinstance(node, exp.Dot) and (outer := self.path(node.this)):
            path = f"{outer}.{quoted(node.name)}"
        return path if path in self.types else None

    def value(self, node: exp.Expr, kind: pa.DataType) -> Value | object | None:
        node = node.unnest()
        if isinstance(node, exp.Null):
            return NULL
        if isinstance(node, exp.Boolean):
            return value_for(bool(node.this), kind)
        if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
            return self._cast(node, kind)
        if isinstance(node, exp.Literal) and node.is_string:
            if not self._is_plain(node):
                return None
            return value_for(node.name, kind) if group_of(kind) is Group.TEXT else self._time(node.name, kind)
        return _number(node, kind)

    def _is_plain(self, literal: exp.Literal) -> bool:
        # engines read quotes and backslashes within a text in several ways
        return not set("\\'") & set(literal.name) and "\\" not in self._text

    def _cast(self, node: exp.Cast, kind: pa.DataType) -> Value | None:
        text, target = node.this.name, node.to.this
        if target in (exp.DataType.Type.DATE, exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ):
            wanted = Group.DATE if target is exp.DataType.Type.DATE else Group.MOMENT
            return self._time(text, kind) if group_of(kind) is wanted and node.this.is_string else None
        if target is exp.DataType.Type.DOUBLE and text.lower() == "nan":
            return value_for(float("nan"), kind)
        return None

    def _time(self, text: str, kind: pa.DataType) -> Value | None:
        """A day or a moment as a column of those has it; None for other texts, and for other columns."""
        found = _MOMENT.fullmatch(text)
        if found is None or (found[3] and not found[2]):
            return None
        try:
            if t.is_date32(kind):
                return None if found[2] else (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
            if not t.is_timestamp(kind) or not (found[3] or (self._utc and kind.tz in _UTC)):
                return None
            moment = Timestamp.parse(f"{found[1]}T{found[2] or '00:00:00'}Z").epoch_ns
        except (ValueError, InvalidIdError):
            return None
        # engines cut what is finer than the column
        return None if moment % _UNITS[kind.unit] else moment


def _number(node: exp.Expr, kind: pa.DataType) -> Value | None:
    sign = 1
    while isinstance(node, exp.Neg | exp.Paren):
        sign, node = (-sign if isinstance(node, exp.Neg) else sign), node.this
    if not isinstance(node, exp.Literal) or node.is_string:
        return None
    try:
        number = Decimal(node.name) * sign
    except InvalidOperation:
        return None
    if node.name.isdecimal():
        # larger ones are doubles for some
        return value_for(int(number), kind) if abs(number) < 2**63 else None
    return value_for(number, kind)


def _types_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    # of all columns and members of structures, by path
    found: dict[str, pa.DataType] = {}

    def walk(path: str, kind: pa.DataType) -> None:
        found[path] = kind
        if t.is_struct(kind):
            for member in kind:
                walk(f"{path}.{quoted(member.name)}", member.type)

    for column in schema:
        walk(quoted(column.name), column.type)
    return found
