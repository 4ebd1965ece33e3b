"""The names in a query for Spark: spelled as the embedded engine spells them, and found in the plan.

Spark's own lexer and parser read the text. Words without quotes become lower case, and `$name` becomes
`:name`, token by token, so that every character stays where it is and messages point at what was written.
Names of tables, and the table functions, are then those of the unresolved plan: a name in a comment or a
text is none. Which of them a WITH shadows is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from odfchain.query.projections import FUNCTIONS, Call, may_be_name, quoted_name, usage, wrong_count
from odfchain.spark.plan_walk import PlanNodes, PlanWalker
from odfchain.sql import allowed_functions as functions
from odfchain.sql import nodes
from odfchain.sql.refusals import StepChecker, items, strings
from odfchain.text import one_line

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BEFORE_EXACT = (":", "$")
"""What stands before the name of a parameter, or of a field of a variant."""

_PLANS = nodes.READ_PLANS | nodes.classes_of({"plans.logical": "PipeOperator Sample UnresolvedHint"})
_EXPRESSIONS = nodes.READ_EXPRESSIONS | nodes.classes_of(
    {
        "analysis": "NamedParameter UnresolvedCollation",
        "expressions": "Collate CurrentDate CurrentTimestamp CurrentUser PipeExpression",
        "expressions.variant": "VariantGet",
    }
)
"""Queries that are asked, and not recorded, may depend on chance, on the clock and on a library's order."""

_OUTSIDE = frozenset(name for name, reason in functions.UNLISTED.items() if reason == functions.OUTSIDE)
_FUNCTIONS = (functions.ALL_NAMES | frozenset(functions.UNLISTED) | functions.OF_VALUES) - _OUTSIDE
_TABLE_FUNCTIONS = functions.TABLE_NAMES | {"variant_explode", "variant_explode_outer"}
_ONE_QUERY = "only queries are answered: nothing is changed, and no file is named"


def in_lower_case(walker: PlanWalker, sql: str) -> str:
    """The text with words that are not quoted in lower case, `$` of parameters as `:`, place by place."""
    tokens = walker.tokens(sql)
    if "".join(tokens) != sql:
        return sql  # Spark says what it cannot read
    made: list[str] = []
    for number, piece in enumerate(tokens):
        following = tokens[number + 1] if number + 1 < len(tokens) else ""
        if piece == "$" and _WORD.fullmatch(following):
            made.append(":")
        elif _WORD.fullmatch(piece) and (not number or tokens[number - 1] not in _BEFORE_EXACT):
            made.append(piece.lower())
        else:
            made.append(piece)
    return "".join(made)


@dataclass(slots=True)
class NamesInPlan:
    """What an unresolved plan reads and calls, each with the node that says so."""

    tables: dict[str, Any] = field(default_factory=dict)
    """Names that stand where a table stands; a WITH may mean some of them."""
    calls: list[tuple[Any, Call]] = field(default_factory=list)
    """Nodes of `state(…)` and the other functions, and what they say."""
    withs: list[Any] = field(default_factory=list)
    """Every WITH, an outer one before those within it."""
    parameters: dict[str, Any] = field(default_factory=dict)


def names_in(root: Any, walker: PlanWalker, checker: StepChecker) -> NamesInPlan:
    """The names in a plan, which is one of a query that calls nothing but functions of values."""
    found = NamesInPlan()
    regions = [root]
    while regions:
        plan = regions.pop()
        plans, expressions = walker.plans(plan), walker.expressions(plan)
        checker.count(plans, expressions)
        checker.classes(plans, _PLANS, _ONE_QUERY)
        for i in plans.of("UnresolvedWith"):
            found.withs.append(plans[i])
            regions += [relation._2() for relation in items(plans[i].cteRelations())]  # noqa: SLF001
        windows = [
            walker.inside(plans[i].windowDefinitions().values()) for i in plans.of("WithWindowDefinition")
        ]
        for part in (expressions, *windows):
            checker.classes(part, _EXPRESSIONS, _ONE_QUERY)
            _check_calls(part, checker)
            found.parameters |= {part[i].name(): part[i] for i in part.of("NamedParameter")}
            regions += subqueries(part)
        for i in plans.of("UnresolvedRelation"):
            found.tables.setdefault(_table(plans[i], checker), plans[i])
        for i in plans.of("UnresolvedTableValuedFunction"):
            if (call := _table_function(plans[i], checker)) is not None:
                found.calls.append(call)
    return found


def subqueries(expressions: PlanNodes) -> Iterator[Any]:
    """The plans within expressions."""
    return (expressions[i].plan() for i, name in enumerate(expressions.classes) if name in nodes.SUBQUERIES)


def replaced(root: Any, found: NamesInPlan, tables: Collection[Any], walker: PlanWalker) -> Any:
    """The plan that has a table (another plan) in the place of each call, in order of the calls."""
    if not found.calls:
        return root
    jvm = walker.jvm
    changed = jvm.java.util.IdentityHashMap()
    change = getattr(getattr(jvm.scala, "PartialFunction$"), "MODULE$").fromFunction(
        walker.replacing(changed)
    )
    for (node, _), table in zip(found.calls, tables, strict=True):
        changed.put(node, table)
    # a plan is changed down to its leaves, but what a WITH defines is no child of it: the innermost first
    for node in reversed(found.withs):
        definitions = [
            jvm.scala.Tuple3(
                relation._1(),  # noqa: SLF001
                relation._2().transformDownWithSubqueries(change),  # noqa: SLF001
                relation._3(),  # noqa: SLF001
            )
            for relation in items(node.cteRelations())
        ]
        to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        changed.put(node, node.copy(node.child(), to_seq(definitions), node.allowRecursion()))
    return root.transformDownWithSubqueries(change)


def _check_calls(expressions: PlanNodes, checker: StepChecker) -> None:
    for i in expressions.of("UnresolvedFunction", "UnresolvedGenerator"):
        node = expressions[i]
        generator = expressions.classes[i].endswith("UnresolvedGenerator")
        name = node.name().unquotedString() if generator else ".".join(strings(node.nameParts()))
        if name.lower() in _FUNCTIONS and (generator or not node.isInternal()):
            continue
        if name.lower() in FUNCTIONS:
            raise checker.refuse(node, "is a table", f"it stands after FROM: {name}(…)")
        reason = functions.UNLISTED.get(name.lower(), "is not one that queries may call")
        raise checker.refuse(node, f"the function `{one_line(name, 80)}` {reason}", None)


def _table(relation: Any, checker: StepChecker) -> str:
    parts = strings(relation.multipartIdentifier())
    if len(parts) != 1:
        name = ".".join(parts)
        raise checker.refuse(
            relation, "is a name with dots, which is written in quotes", f"write {quoted_name(name)}"
        )
    if not relation.options().isEmpty():
        raise checker.refuse(relation, "a table is taken as it is, without options", "leave WITH (…) out")
    return parts[0]


def _table_function(node: Any, checker: StepChecker) -> tuple[Any, Call] | None:
    name = ".".join(strings(node.name()))
    if name in FUNCTIONS:
        return node, _arguments(name, node, checker)
    if name.lower() not in _TABLE_FUNCTIONS:
        raise checker.refuse(
            node, f"table function `{one_line(name, 80)}` is not one that queries may call", "state(…) is"
        )
    return None


def _arguments(name: str, node: Any, checker: StepChecker) -> Call:
    expressions = list(items(node.functionArgs()))
    if wrong := wrong_count(name, len(expressions)):
        raise checker.refuse(node, f"has {wrong}", usage(name))
    return (name, *(_argument(name, number, each, node, checker) for number, each in enumerate(expressions)))


def _argument(name: str, number: int, expression: Any, node: Any, checker: StepChecker) -> str | None:
    kind = expression.getClass().getSimpleName()
    if kind == "UnresolvedAttribute" and may_be_name(name, number):
        parts = strings(expression.nameParts())
        if len(parts) == 1:
            return parts[0]
        whole = ".".join(parts)
        raise checker.refuse(
            expression,
            "is a name with dots, which is written in quotes",
            f"write {name}('{one_line(whole)}')",
        )
    if kind == "Literal":
        value = expression.value()
        if value is None and not may_be_name(name, number):
            return None
        if value is not None and expression.dataType().typeName() == "string":
            return str(value if isinstance(value, str) else value.toString())
    raise checker.refuse(node, f"argument {number + 1} is not a text", usage(name))
