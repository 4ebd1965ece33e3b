"""A guard in the plan itself: a text that is cast to a timestamp has a date, whatever the rows hold.

Over a root a column of text may be cast without a format, and Spark would read '10:00' as that time of the
day on which it reads it. No rule about types sees that, wherever the text came from: a file, VALUES, another
step. So what is cast is first made unreadable where it is a bare time of day: the cast then fails,
or gives NULL in `try_cast`, as it does for any text that is no time. Source: RFC-016.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from odfchain.sql.nodes import SUBQUERIES
from odfchain.sql.refusals import items

if TYPE_CHECKING:
    from odfchain.spark.plan_walk import PlanWalker

_CASTS = ("Cast", "ParseToTimestamp", "TryToTimestampExpression")
_BARE = r"(?s)^([\x00-\x20\x7F]*[+-]?(?:T|[0-9]{0,2}:).*)$"
"""What Spark's `stringToTimestamp` reads as a time of day, and a little more."""
_SHOWN = "(a time of day without a date) $1"


class DateGuard:
    """Puts the guard into resolved plans, down to the views named `inputs`: how those are read is not SQL."""

    def __init__(self, jvm: Any, walker: PlanWalker, inputs: Collection[str]) -> None:
        self._walker, self._jvm, self._inputs = walker, jvm, inputs
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq

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
        return bool(node.dataType().typeName() == "timestamp" and source.dataType().typeName() == "string")

    def _guard(self, text: Any) -> Any:
        literal = getattr(getattr(self._expressions, "Literal$"), "MODULE$")
        bare, shown = literal.apply(_BARE), literal.apply(_SHOWN)
        return self._expressions.RegExpReplace(text, bare, shown)
