"""Filters of the embedded engine: the conditions that its optimizer pushed down to table scans.

They are typed by then, with literals in the type of their column, so nothing has to be parsed. Conditions
that came through joins and subqueries are among them. A table that is read in several places is asked for
what any of them asks.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types as t

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

_TESTS = {"=": Test.EQ, "!=": Test.NE, "<": Test.LT, "<=": Test.LE, ">": Test.GT, ">=": Test.GE}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def conditions_of_tables(plan: Any, schemas: Mapping[str, pa.Schema]) -> dict[str, Condition]:
    """The pushed-down condition of each of these tables in an optimized plan, if it is read."""
    found: dict[str, list[Condition]] = defaultdict(list)
    scans = 0
    waiting: list[tuple[Any, list[Any]]] = [(plan, [])]
    while waiting:
        node, above = waiting.pop()
        variant = variant_of(node)
        kind = type(variant).__name__
        scans += kind == "TableScan"
        if kind == "TableScan" and (name := variant.table_name()) in schemas:
            asked = [*above, *variant.filters()]
            found[name].append(Every(tuple(_condition(each, schemas[name]) for each in asked)))
        filters = [variant.predicate()] if kind == "Filter" else []
        waiting += [(child, [*above, *filters] if kind == "Filter" else []) for child in node.inputs()]
    # a scan is missing where a subquery is a value, which is no part of the plan's tree
    if plan.display_indent().count("TableScan: ") != scans:
        return {}
    return {name: AnyOf(tuple(conditions)) for name, conditions in found.items()}


def variant_of(node: Any) -> Any:
    """The variant of a plan's or condition's node; None where the library exposes none (functions)."""
    try:
        return node.to_variant()
    except (ValueError, NotImplementedError, TypeError):
        return None


def _condition(expression: Any, schema: pa.Schema, *, negated: bool = False) -> Condition:
    node, kind = variant_of(expression), expression.variant_name()
    match kind:
        case _ if node is None:
            return MAYBE
        case "BinaryExpr" if node.op() in ("AND", "OR"):
            sides = tuple(_condition(side, schema, negated=negated) for side in (node.left(), node.right()))
            return Every(sides) if (node.op() == "AND") is not negated else AnyOf(sides)
        case "BinaryExpr" if node.op() in _TESTS:
            test = INVERSE[_TESTS[node.op()]] if negated else _TESTS[node.op()]
            left, right = node.left(), node.right()
            if left.variant_name() == "Column":
                return _compared(test, left, right, schema)
            return _compared(TURNED.get(test, test), right, left, schema)
        case "IsNull" | "IsNotNull":
            column = node.expr()
            if column.variant_name() == "Column" and column.to_variant().name() in schema.names:
                test = Test.NULL if (kind == "IsNull") is not negated else Test.VALUE
                return ColumnTest(quoted(column.to_variant().name()), test)
        case "InList":
            other = bool(node.negated()) is not negated
            test = Test.NE if other else Test.EQ
            parts = tuple(_compared(test, node.expr(), item, schema) for item in node.list())
            return Every(parts) if other else AnyOf(parts)
        case "Not":
            return _condition(node.expr(), schema, negated=not negated)
    return MAYBE


def _compared(test: Test, column: Any, literal: Any, schema: pa.Schema) -> Condition:
    if column.variant_name() != "Column" or literal.variant_name() != "Literal":
        return MAYBE
    name = column.to_variant().name()
    if name not in schema.names:
        return MAYBE
    kind = schema.field(name).type
    try:
        value = literal.python_value()
    except (ValueError, NotImplementedError, TypeError, OverflowError):
        return MAYBE
    value = value.as_py() if hasattr(value, "as_py") else value
    if value is None:
        return ColumnTest(quoted(name), test)
    bound = _bound(value, kind)
    return MAYBE if bound is None else ColumnTest(quoted(name), test, group_of(kind), bound)


def _bound(value: Any, kind: pa.DataType) -> Value | None:
    group = group_of(kind)
    if group is Group.DATE and t.is_date32(kind):
        is_day = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        return (value - _EPOCH.date()).days if is_day else None
    if group is Group.MOMENT:
        # Python has no nanoseconds
        if not isinstance(value, dt.datetime) or kind.unit == "ns":
            return None
        moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (moment - _EPOCH) // dt.timedelta(microseconds=1) * 1_000
    return value_for(value, kind)
