"""A guard in the plan itself: a text that is cast to a timestamp has a date, whatever the rows hold.

Over a root a column of text may be cast without a format, and Spark would read '10:00' as that time of the
day on which it reads it. No rule about types sees that, wherever the text came from: a file, VALUES, another
step. So what is cast is first made unreadable where it is a bare time of day: the cast then fails,
or gives NULL in `try_cast`, as it does for any text that is no time. Source: RFC-016.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from odfchain.spark.columns import quoted
from odfchain.sql.messages import option
from odfchain.sql.nodes import SUBQUERIES
from odfchain.sql.refusals import items

if TYPE_CHECKING:
    from odfchain.spark.plan_walk import PlanNodes, PlanWalker

_CASTS = ("Cast", "ParseToTimestamp", "TryToTimestampExpression")
BARE = r"(?s)^([\x00-\x20\x7F]*[+-]?(?:T|[0-9]{0,2}:).*)$"
"""What Spark's `stringToTimestamp` reads as a time of day, and a little more."""
SHOWN = "(a time of day without a date) $1"


class DateGuard:
    """Puts the guard into resolved plans, down to the views named `inputs`: how those are read is not SQL."""

    def __init__(self, jvm: Any, walker: PlanWalker, inputs: Collection[str]) -> None:
        self._walker, self._jvm, self._inputs = walker, jvm, inputs
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq

    def guarded_text(self, sql: str, read: Any, resolved: Any) -> str:
        """The query with the guard written where `plan` puts it, as far as its casts are written.

        `read` and `resolved` are its plans. Whoever runs the text compares what becomes of it with what
        `plan` gives: a cast that Spark adds may stand nowhere in it.
        """
        casts = self._casts(resolved)
        marks = set()
        for expressions in self._regions(read, inside=True):
            for i in expressions.of("Cast", "UnresolvedFunction"):
                if (where := _extent(expressions[i])) in casts and expressions[i].children().size() == 1:
                    casts[where] = _extent(expressions[i].children().apply(0))
            for i in expressions.of("UnresolvedAlias"):
                child = expressions[i].child()
                if (name := _name_of_cast(child)) and (where := _extent(child)) in casts:
                    marks.add((where[1], 0, f" AS {name}"))
        after = f", r'{BARE}', '{SHOWN}')"
        for text in casts.values():
            marks |= {(text[0], 1, "regexp_replace("), (text[1], 0, after)}
        for at, _, mark in sorted(marks, reverse=True):
            sql = sql[:at] + mark + sql[at:]
        return sql

    def _casts(self, resolved: Any) -> dict[tuple[int, int], tuple[int, int]]:
        """Where casts of text to timestamps stand, and where Spark says that their texts stand."""
        return {
            _extent(expressions[i]): _extent(expressions[i].children().apply(0))
            for expressions in self._regions(resolved)
            for i in expressions.of(*_CASTS)
            if self._makes_timestamp(expressions[i])
        }

    def _regions(self, plan: Any, *, inside: bool = False) -> Iterator[PlanNodes]:
        """The expressions of a plan and of its subqueries; of one that was only read, its WITH as well."""
        plans = [plan]
        while plans:
            region = plans.pop()
            expressions = self._walker.expressions(region)
            yield expressions
            plans += [
                expressions[i].plan() for i, name in enumerate(expressions.classes) if name in SUBQUERIES
            ]
            if inside:
                nodes = self._walker.plans(region)
                for i in nodes.of("UnresolvedWith"):
                    plans += list(items(nodes[i].innerChildren()))
                for i in nodes.of("WithWindowDefinition"):
                    yield self._walker.inside(nodes[i].windowDefinitions().values())

    def plan(self, plan: Any) -> Any:
        """The plan with the guard in every cast of text to a timestamp; the same one where there is none."""
        if not self._concerns(plan):
            return plan
        guarded = plan
        if not plan.children().isEmpty():
            children = [self.plan(child) for child in items(plan.children())]
            guarded = plan.withNewChildren(self._to_seq(children))
        changed = self._jvm.java.util.IdentityHashMap()
        for expression in items(plan.expressions()):
            tree = self._walker.tree(expression)
            casts = any(self._makes_timestamp(tree[i]) for i in tree.of(*_CASTS))
            if casts or any(name in SUBQUERIES for name in tree.classes):
                changed.put(expression, self._expression(expression))
        return guarded.mapExpressions(self._walker.replacing(changed)) if changed.size() else guarded

    def _concerns(self, plan: Any) -> bool:
        """Whether anything beneath casts, or holds a query that might."""
        if plan.getClass().getSimpleName() == "View" and plan.desc().identifier().table() in self._inputs:
            return False
        expressions = self._walker.expressions(plan)
        return bool(expressions.of(*_CASTS)) or any(name in SUBQUERIES for name in expressions.classes)

    def _expression(self, node: Any) -> Any:
        kind = node.getClass().getName()
        children = [self._expression(child) for child in items(node.children())]
        if kind.rpartition(".")[2] in _CASTS and self._makes_timestamp(node):
            children[0] = self._guard(children[0])
        guarded = node.withNewChildren(self._to_seq(children)) if children else node
        return guarded.withNewPlan(self.plan(guarded.plan())) if kind in SUBQUERIES else guarded

    @staticmethod
    def _makes_timestamp(node: Any) -> bool:
        children = node.children()
        if children.size() != 1:  # with a format, or a lambda's own
            return False
        source = children.apply(0)
        if source.getClass().getSimpleName() == "Literal":  # the gate has seen that it begins with its date
            return False
        return bool(node.dataType().typeName() == "timestamp" and source.dataType().typeName() == "string")

    def _guard(self, text: Any) -> Any:
        literal = getattr(getattr(self._expressions, "Literal$"), "MODULE$")
        bare, shown = literal.apply(BARE), literal.apply(SHOWN)
        return self._expressions.RegExpReplace(text, bare, shown)


def _extent(node: Any) -> tuple[int, int]:
    """From which character of its query to which a node stands; nowhere is the beginning."""
    origin = node.origin()
    start, stop = option(origin.startIndex()), option(origin.stopIndex())
    return (0, 0) if start is None or stop is None else (int(start), int(stop) + 1)


def _name_of_cast(node: Any) -> str | None:
    """The name that Spark gives to the cast of a column, quoted; None for others."""
    if node.getClass().getSimpleName() != "Cast":
        return None
    child = node.child()
    if child.getClass().getSimpleName() != "UnresolvedAttribute":
        return None
    return quoted(str(child.nameParts().last()))
