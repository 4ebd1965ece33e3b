"""The gate that untrusted SQL passes before anything executes.

Spark SQL as shipped reads files, runs programs, calls Java by name, changes its own settings and knows the
clock. So a query is first only read (parsed), and the plan is compared with allow-lists: plan nodes,
expressions, functions by name, and tables, of which there are the declared inputs, earlier steps and the
query's own WITH. Only then are its names resolved, against empty tables that have the schemas of the real
ones, and the plan that comes out is compared again: that catches what a name turned out to mean, such as
`current_timestamp` without brackets. What passed is the plan itself, not the text: the same plan runs later.

Nothing here depends on the order in which rules are checked: whatever is on no list is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from odfchain.spark.plan_walk import PlanNodes, jvm_of, walker_of
from odfchain.sql import allowed_functions as functions
from odfchain.sql import nodes
from odfchain.sql.messages import ONE_SELECT, asking_spark, option
from odfchain.sql.refusals import TEMPORAL, QueryStep, StepChecker, items, order_hint, strings, tables_hint
from odfchain.sql.size import PlanMeasure, TableSize, check_cubes
from odfchain.text import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_BUILT_IN = "org.apache.spark.sql.catalyst.expressions."
_ORDERED_FIRST = frozenset({"AnyValue", "First", "Last"})
_LIMITS = ("GlobalLimit", "LocalLimit", "Offset")
_RANGE_ARGUMENTS = 3
_PARSED_BY_SCHEMA = ("CsvToStructs", "JsonToStructs", "VariantGet")
_PRINTING = ("FormatString", "StructsToCsv", "StructsToJson")
_READING_TIMES = ("ParseToDate", "ParseToTimestamp", "TryToDateExpression", "TryToTimestampExpression")


class Gate:
    """Compares the queries of one transform with the allow-lists; `session` resolves their names."""

    def __init__(self, session: SparkSession, resolver: Any, *, replayed: bool = False) -> None:
        """`resolver` is the JVM's session whose settings and tables count.

        `replayed` queries are computed again by others, another day.
        """
        self._replayed = replayed
        self._jvm = jvm_of(session)
        self._resolver = resolver
        self._walker = walker_of(session)
        self._pivot_texts: list[Any] = []
        self._parser = self._jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()

    # --- before names are resolved ---------------------------------------------------------------

    def read(self, step: QueryStep, tables: Mapping[str, TableSize]) -> tuple[Any, TableSize]:
        """The plan of a query that asks for nothing but `tables` and functions on the list, and its size.

        The bare parser is used, not the session's: that one replaces `${env:NAME}` in the text.
        """
        checker = StepChecker(step, replayed=self._replayed)
        with asking_spark(step.label, translated=step.translated, sql=step.sql):
            if "cube" in step.sql.lower():
                check_cubes(self._walker.tokens(step.sql), checker)
            plan = self._parser.parsePlan(step.sql)
            self._check_read(plan, checker, tables)
            return plan, PlanMeasure(self._walker, checker).table(plan, tables)

    def _check_read(self, root: Any, checker: StepChecker, tables: Collection[str]) -> None:
        known = set(tables)
        self._pivot_texts = []
        regions, relations = [root], list[Any]()
        while regions:
            plan = regions.pop()
            plans, expressions = self._walker.plans(plan), self._walker.expressions(plan)
            checker.count(plans, expressions)
            checker.classes(plans, nodes.READ_PLANS, ONE_SELECT)
            checker.classes(expressions, nodes.READ_EXPRESSIONS)
            for i in plans.of("UnresolvedWith"):
                regions += self._with(plans[i], checker, known)
            windows = [
                self._walker.inside(plans[i].windowDefinitions().values())
                for i in plans.of("WithWindowDefinition")
            ]
            for window in windows:
                checker.count(window)
                checker.classes(window, nodes.READ_EXPRESSIONS)
            for window in (expressions, *windows):
                self._expressions(window, checker)
                regions += _subqueries(window)
            for i in plans.of("Sort"):
                if not getattr(plans[i], "global")():
                    raise checker.refuse(plans[i], "orders parts of the rows only", "use ORDER BY")
            for i in plans.of(*_LIMITS):
                if not plans.classes[i + 1].endswith((*_LIMITS, ".Sort")):
                    raise checker.refuse(plans[i], "takes the rows that happen to come first", "use ORDER BY")
            for i in plans.of("UnresolvedInlineTable"):
                self._inline(self._walker.inside(plans[i].expressions()), plans[i], checker)
            for i in plans.of("Pivot"):
                self._pivot_texts += [v for v in items(plans[i].pivotValues()) if not checker.is_spelled(v)]
            for i in plans.of("UnresolvedTableValuedFunction"):
                self._table_function(plans[i], checker)
            relations += [plans[i] for i in plans.of("UnresolvedRelation")]
        for relation in relations:
            self._relation(relation, checker, known)

    @staticmethod
    def _with(plan: Any, checker: StepChecker, known: set[str]) -> Iterator[Any]:
        if plan.allowRecursion():
            raise checker.refuse(plan, "calls itself (WITH RECURSIVE)", "write the levels out")
        for inner in items(plan.innerChildren()):
            known.add(inner.alias())
            yield inner

    @staticmethod
    def _relation(relation: Any, checker: StepChecker, known: set[str]) -> None:
        parts = strings(relation.multipartIdentifier())
        if len(parts) != 1 or parts[0] not in known:
            name = ".".join(parts)
            raise checker.refuse(
                relation,
                f"there is no table `{one_line(name, 80)}` for this query",
                tables_hint(name, known),
            )
        if not relation.options().isEmpty():
            raise checker.refuse(relation, "a table is taken as it is, without options", "leave WITH (…) out")

    def _expressions(self, expressions: PlanNodes, checker: StepChecker) -> None:
        ordered = {
            i + 1
            for i in expressions.of("WindowExpression")
            if not expressions[i].windowSpec().orderSpec().isEmpty()
        }
        for i in expressions.of("UnresolvedFunction", "UnresolvedGenerator"):
            checker.function(expressions, i, ordered)
        for i in expressions.of("UnresolvedFunction", "RLike"):
            checker.deciding(expressions, i)
        for i in expressions.of(*_ORDERED_FIRST):
            if i - 1 not in ordered:
                raise checker.refuse(
                    expressions[i], "depends on the order in which rows arrive", order_hint()
                )
        for i in expressions.of("UnresolvedStarExceptOrReplace"):
            if option(expressions[i].replacements()) is not None:
                raise checker.refuse(
                    expressions[i], "`*` with REPLACE is not on the list", "name the columns"
                )
        for i in expressions.of("Literal"):
            checker.literal(expressions[i])
        for i in expressions.of("Cast"):
            checker.collation(expressions[i])
        for i in expressions.of("WindowSpecDefinition"):
            checker.window(self._walker, expressions[i], "UnresolvedAttribute", "UnresolvedFunction")

    @staticmethod
    def _inline(expressions: PlanNodes, plan: Any, checker: StepChecker) -> None:
        for i, name in enumerate(expressions.classes):
            temporal = name.endswith(".Cast") and expressions[i].dataType().typeName() in TEMPORAL
            called = (
                strings(expressions[i].nameParts()) if name.endswith(".UnresolvedFunction") else ["array"]
            )
            named = called[0].lower() not in functions.INLINE_NAMES
            if name.endswith(".Cast"):
                checker.collation(expressions[i])
            if name not in nodes.INLINE_EXPRESSIONS or temporal or named:
                raise checker.refuse(
                    expressions[i], "VALUES takes plain values only", "compute with SELECT", plan
                )

    @staticmethod
    def _table_function(plan: Any, checker: StepChecker) -> None:
        name = ".".join(strings(plan.name()))
        if name.lower() not in functions.TABLE_NAMES:
            raise checker.refuse(
                plan, f"table function `{one_line(name, 80)}` is not on the list", "explode and range are"
            )
        if name.lower() == "range" and plan.functionArgs().size() > _RANGE_ARGUMENTS:
            raise checker.split(plan)

    # --- after names are resolved ----------------------------------------------------------------

    def resolve(self, step: QueryStep, plan: Any, tables: Collection[str]) -> Any:
        """The query over the tables registered with the resolver; its names mean only what is allowed.

        Raises:
            QueryError: a column or table is unknown, types do not fit, or a name means something refused.
        """
        checker = StepChecker(step, replayed=self._replayed)
        with asking_spark(step.label, translated=step.translated, sql=step.sql):
            frame = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._resolver, plan)
            analyzed = frame.queryExecution().analyzed()
            self._check_resolved(analyzed, checker, tables)
            if not analyzed.deterministic():
                raise checker.refuse(None, "gives another result each time", None)
            return frame

    def _check_resolved(self, root: Any, checker: StepChecker, tables: Collection[str]) -> None:
        allowed = nodes.RESOLVED_EXPRESSIONS | self._implementations()
        regions = [root]
        while regions:
            plan = regions.pop()
            plans, expressions = self._walker.plans(plan), self._walker.expressions(plan)
            checker.count(plans, expressions)
            checker.classes(plans, nodes.RESOLVED_PLANS)
            checker.classes(expressions, allowed)
            for i in plans.of("View"):
                identifier = plans[i].desc().identifier()
                if not plans[i].isTempView() or identifier.table() not in tables:
                    raise checker.refuse(plans[i], "reads a table that is not for this query", None)
            for i in plans.of("Range"):
                checker.range(plans[i])
            for i in expressions.of("WindowSpecDefinition"):
                checker.window(self._walker, expressions[i], "AttributeReference", "OuterReference")
            for i in expressions.of("FormatString"):
                checker.formatted(expressions[i])
            for i in expressions.of(*_PARSED_BY_SCHEMA):
                checker.collation(expressions[i])
                checker.parsed(expressions[i])
            for i in expressions.of(*_PRINTING):
                checker.printed(expressions[i])
            for i in expressions.of("PivotFirst"):
                checker.pivot(expressions[i], self._pivot_texts)
            for i in expressions.of("Cast"):
                checker.cast(expressions, i, expressions)
            for i in expressions.of(*_READING_TIMES):
                # a cast stands behind these functions, and appears only when the plan is optimized
                behind = self._walker.tree(expressions[i].replacement())
                for k in behind.of("Cast"):
                    checker.cast(behind, k, expressions, expressions[i])
            regions += _subqueries(expressions)

    def _implementations(self) -> frozenset[str]:
        """The classes of the functions on the list, as this version of Spark has them."""
        found = _IMPLEMENTATIONS.get(version := self._resolver.version())
        if found is None:
            registry = getattr(self._jvm.org.apache.spark.sql.catalyst.analysis, "FunctionRegistry$")
            built_in = getattr(registry, "MODULE$").expressions()
            entries = [option(built_in.get(name)) for name in sorted(functions.ALL_NAMES)]
            classes = {entry._1().getClassName() for entry in entries if entry is not None}  # noqa: SLF001
            found = frozenset(name for name in classes if name.startswith(_BUILT_IN))
            _IMPLEMENTATIONS[version] = found
        return found


_IMPLEMENTATIONS: dict[str, frozenset[str]] = {}


def _subqueries(found: PlanNodes) -> list[Any]:
    return [found[i].plan() for i, name in enumerate(found.classes) if name in nodes.SUBQUERIES]
