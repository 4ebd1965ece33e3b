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

from odfchain.slices.condition_visitor import NULL, UNKNOWN, ConditionVisitor, Parts
from odfchain.slices.footers import Value, quoted
from odfchain.slices.skipping import AnyOf, Condition, Every, Group, Test, group_of, value_for

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
            found[name].append(Every(tuple(map(_Pushed(schemas[name]).condition, asked))))
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


class _Pushed(ConditionVisitor):
    def __init__(self, schema: pa.Schema) -> None:
        self.types = {quoted(column.name): column.type for column in schema}

    def parts(self, node: Any) -> Parts:
        kind, node = node.variant_name(), variant_of(node)
        match kind:
            case _ if node is None:
                return UNKNOWN
            case "BinaryExpr" if node.op() in ("AND", "OR"):
                return node.op().lower(), node.left(), node.right()
            case "BinaryExpr" if node.op() in _TESTS:
                return _TESTS[node.op()], node.left(), node.right()
            case "IsNull" | "IsNotNull":
                return Test.NULL if kind == "IsNull" else Test.VALUE, node.expr()
            case "InList":
                return "not in" if node.negated() else "in", node.expr(), *node.list()
            case "Not":
                return "not", node.expr()
        return UNKNOWN

    def path(self, node: Any) -> str | None:
        path = quoted(node.to_variant().name()) if node.variant_name() == "Column" else None
        return path if path in self.types else None

    def value(self, node: Any, kind: pa.DataType) -> Value | object | None:
        if node.variant_name() != "Literal":
            return None
        try:
            value = node.python_value()
        except (ValueError, NotImplementedError, TypeError, OverflowError):
            return None
        value = value.as_py() if hasattr(value, "as_py") else value
        return NULL if value is None else _bound(value, kind)


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
