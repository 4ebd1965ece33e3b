"""What Spark asks of the rows of a table: the conditions of a WHERE that stands directly over it.

They are those of the analyzed plan, where every name is resolved and every literal has the type that it is
compared as. Whatever lies between the table and the WHERE, a join or a projection, is not looked through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from odfchain.slices.footers import Value, quoted
from odfchain.slices.skipping import (
    INVERSE,
    MAYBE,
    TURNED,
    AnyOf,
    ColumnTest,
    Condition,
    Every,
    Group,
    Test,
    group_of,
    value_for,
)
from odfchain.spark.plan_walk import PlanNodes
from odfchain.sql.refusals import items

_TESTS = {
    "EqualTo": Test.EQ, "LessThan": Test.LT, "LessThanOrEqual": Test.LE, "GreaterThan": Test.GT,
    "GreaterThanOrEqual": Test.GE,
}  # fmt: skip
_MOST_NODES = 500
"""Of a larger condition the rest skips nothing: each node takes several calls to the JVM [count]."""
_WHOLE = {"byte": 3, "short": 5, "integer": 10, "long": 19}
"""Digits of whole numbers, by the name of their type."""
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_ESCAPE = "\\"


def condition_over(plans: PlanNodes, view: int, schema: pa.Schema) -> Condition:
    """What is asked of all rows of the table at an index, by the filters that stand directly over it."""
    found: list[Condition] = []
    above = view - 1  # a node's first child stands right behind it
    while above >= 0 and (kind := plans.classes[above].rpartition(".")[2]) in ("SubqueryAlias", "Filter"):
        if kind == "Filter":
            found.append(_Reading(schema).condition(plans[above].condition()))
        above -= 1
    return Every(tuple(found)) if found else MAYBE


class _Reading:
    """One condition of the analyzer's."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types: Mapping[str, pa.DataType] = {field.name: field.type for field in schema}
        self._left = _MOST_NODES
        self._common: dict[str, Any] = {}
        """What stands for an expression that is written once, such as that of BETWEEN."""

    def condition(self, node: Any, *, negated: bool = False) -> Condition:
        """What of it (negated: of its contrary) is understood."""
        self._left -= 1
        kind = node.getClass().getSimpleName() if self._left > 0 else ""
        match kind:
            case "And" | "Or":
                sides = tuple(self.condition(side, negated=negated) for side in (node.left(), node.right()))
                return Every(sides) if (kind == "And") is not negated else AnyOf(sides)
            case "Not":
                return self.condition(node.child(), negated=not negated)
            case "Between":
                return self.condition(node.replacement(), negated=negated)
            case "With":
                self._common |= {str(each.id()): each.child() for each in items(node.defs())}
                return self.condition(node.child(), negated=negated)
            case "IsNull" | "IsNotNull":
                name = self._column(node.child())
                test = Test.NULL if (kind == "IsNull") is not negated else Test.VALUE
                return MAYBE if name is None else ColumnTest(quoted(name), test)
            case "In":
                test = Test.NE if negated else Test.EQ
                parts = tuple(self._compared(test, node.value(), item) for item in items(node.list()))
                return Every(parts) if negated else AnyOf(parts)
            case "Like" if not negated:
                return self._begins(node)
        if kind not in _TESTS:
            return MAYBE
        test = INVERSE[_TESTS[kind]] if negated else _TESTS[kind]
        if self._column(node.left()) is not None:
            return self._compared(test, node.left(), node.right())
        return self._compared(TURNED.get(test, test), node.right(), node.left())

    def _column(self, node: Any) -> str | None:
        """The name of a column, also where it is brought to a type that holds all of its values."""
        while (kind := node.getClass().getSimpleName()) in ("Cast", "CommonExpressionRef"):
            inner = node.child() if kind == "Cast" else self._common.get(str(node.id()))
            if inner is None or not _holds_all(inner.dataType().typeName(), node.dataType().typeName()):
                return None
            node = inner
        if node.getClass().getSimpleName() != "AttributeReference":
            return None
        name = str(node.name())
        return name if name in self._types else None

    def _begins(self, node: Any) -> Condition:
        name, pattern = self._column(node.left()), _value(node.right())
        if name is None or not isinstance(pattern, str) or str(node.escapeChar()) != _ESCAPE:
            return MAYBE
        most = min((pattern.index(sign) for sign in f"%_{_ESCAPE}" if sign in pattern), default=len(pattern))
        group = group_of(self._types[name])
        return ColumnTest(quoted(name), Test.BEGINS, group, pattern[:most]) if group is Group.TEXT else MAYBE

    def _compared(self, test: Test, column: Any, literal: Any) -> Condition:
        self._left -= 1
        name = self._column(column)
        if name is None or self._left < 0 or not literal.foldable() or not literal.deterministic():
            return MAYBE
        kind, value = self._types[name], _value(literal)
        bound = _bound(value, literal.dataType().typeName(), kind)
        return MAYBE if bound is None else ColumnTest(quoted(name), test, group_of(kind), bound)


def _holds_all(own: str, other: str) -> bool:
    """Whether a type has exactly all values of another one."""
    if own == other:
        return True
    decimal, larger = _DECIMAL.fullmatch(own), _DECIMAL.fullmatch(other)
    if own in _WHOLE and other in _WHOLE:
        return _WHOLE[own] <= _WHOLE[other]
    if larger and (decimal or own in _WHOLE):
        digits, scale = (int(decimal[1]), int(decimal[2])) if decimal else (_WHOLE[own], 0)
        return int(larger[2]) >= scale and int(larger[1]) - int(larger[2]) >= digits - scale
    return (own, other) == ("float", "double")


def _value(node: Any) -> Any:
    """What an expression without columns is, of the types that are compared here; else None."""
    kind = node.dataType().typeName()
    if kind not in ("boolean", "float", "double", "string", "date", "timestamp", *_WHOLE) and not (
        _DECIMAL.fullmatch(kind)
    ):
        return None
    try:
        value = node.eval(None)
    except Exception:  # noqa: BLE001 - whether that is an error the query itself decides, where it computes it
        return None
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value.toString()) if kind == "string" else Decimal(value.toString())


def _bound(value: Any, typed: str, kind: pa.DataType) -> Value | None:
    match group_of(kind):
        case Group.DATE:
            return int(value) if typed == "date" and value is not None else None
        case Group.MOMENT:
            return int(value) * 1_000 if typed == "timestamp" and value is not None else None
    return None if typed in ("date", "timestamp") else value_for(value, kind)
