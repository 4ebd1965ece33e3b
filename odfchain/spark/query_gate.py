"""The gate that untrusted SQL passes before anything executes.

Spark SQL as shipped reads files, runs programs, calls Java by name, changes its own settings and knows the
clock. So a query is first only read (parsed), and the plan is compared with allow-lists: plan nodes,
expressions, functions by name, and tables, of which there are the declared inputs, earlier steps and the
query's own WITH. Only then are its names resolved, against empty tables that have the schemas of the real
ones, and the plan that comes out is compared again: that catches what a name turned out to mean, such as
`current_timestamp` without brackets. What passed is the plan itself, not the text: the same plan runs later.

Nothing here depends on the order in which rules are checked: what is on no list is refused.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from odfchain.limits import QUERY
from odfchain.spark import plans as catalyst
from odfchain.spark import query_refusals as refusals
from odfchain.spark import query_rules as functions
from odfchain.spark.query_rules import SUBQUERIES
from odfchain.spark.types import quoted
from odfchain.text import one_line, place_in

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
        """`resolver` is the JVM's session that counts; `replayed` queries are computed again another day."""
        self._replayed = replayed
        self._jvm = catalyst.jvm_of(session)
        self._resolver = resolver
        self._walker = catalyst.walker_of(session)
        self._pivot_texts: list[Any] = []
        self.tables: dict[str, TableSize] = {}
        """What queries may name: the tables that are declared, and the results of steps that were read."""
        self._parser = self._jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()

    # --- before names are resolved ---------------------------------------------------------------

    def declare(self, name: str, schema: Any, size: TableSize) -> None:
        """From now on there is a table without rows of this schema (of the JVM)."""
        catalyst.declare_empty(self._resolver, self._jvm, name, schema)
        self.tables[name] = size

    def read(self, step: refusals.QueryStep) -> Any:
        """The plan of a query that asks for nothing but tables and functions that it may name."""
        checker = refusals.StepChecker(step, replayed=self._replayed)
        measure = PlanMeasure(self._walker, checker)
        with refusals.translate_spark_errors(step.label, translated=step.translated, sql=step.sql):
            if "cube" in step.sql.lower():
                measure.check_cubes(self._walker.tokens(step.sql))
            # the bare parser: the session's replaces `${env:NAME}` in the text
            plan = self._parser.parsePlan(step.sql)
            self._check_read(plan, checker)
            size = measure.table(plan, self.tables)
            if step.alias is not None:
                self.tables[step.alias] = size
            return plan

    def _check_read(self, root: Any, checker: refusals.StepChecker) -> None:
        known = set(self.tables)
        self._pivot_texts = []
        relations = list[Any]()
        for plans, parts in self._walker.regions(root):
            checker.count(plans, *parts)
            checker.classes(plans, functions.READ_PLANS, refusals.ONE_SELECT)
            for part in parts:
                checker.classes(part, functions.READ_EXPRESSIONS)
            for i in plans.of("UnresolvedWith"):
                if plans[i].allowRecursion():
                    raise checker.refuse(plans[i], "calls itself (WITH RECURSIVE)", "write the levels out")
                known |= {inner.alias() for inner in catalyst.items(plans[i].innerChildren())}
            for part in parts:
                self._expressions(part, checker)
            for i in plans.of("Sort"):
                if not getattr(plans[i], "global")():
                    raise checker.refuse(plans[i], "orders parts of the rows only", "use ORDER BY")
            for i in plans.of(*_LIMITS):
                if not plans.classes[i + 1].endswith((*_LIMITS, ".Sort")):
                    raise checker.refuse(plans[i], "takes the rows that happen to come first", "use ORDER BY")
            for i in plans.of("UnresolvedInlineTable"):
                self._inline(self._walker.inside(plans[i].expressions()), plans[i], checker)
            for i in plans.of("Pivot"):
                self._pivot_texts += [
                    v for v in catalyst.items(plans[i].pivotValues()) if not checker.is_spelled(v)
                ]
            for i in plans.of("UnresolvedTableValuedFunction"):
                self._table_function(plans[i], checker)
            relations += [plans[i] for i in plans.of("UnresolvedRelation")]
        for relation in relations:
            self._relation(relation, checker, known)

    @staticmethod
    def _relation(relation: Any, checker: refusals.StepChecker, known: set[str]) -> None:
        parts = catalyst.strings(relation.multipartIdentifier())
        if len(parts) != 1 or parts[0] not in known:
            name = ".".join(parts)
            message = f"there is no table `{one_line(name, 80)}` for this query"
            raise checker.refuse(relation, message, _tables_hint(name, known))
        if not relation.options().isEmpty():
            raise checker.refuse(relation, "a table is taken as it is, without options", "leave WITH (…) out")

    def _expressions(self, expressions: catalyst.PlanNodes, judge: refusals.StepChecker) -> None:
        windows = expressions.of("WindowExpression")
        ordered = {i + 1 for i in windows if not expressions[i].windowSpec().orderSpec().isEmpty()}
        for i in expressions.of("UnresolvedFunction", "UnresolvedGenerator"):
            judge.function(expressions, i, ordered)
        for i in expressions.of("UnresolvedFunction", "RLike"):
            judge.deciding(expressions, i)
        for i in expressions.of(*_ORDERED_FIRST):
            if i - 1 not in ordered:
                message = "depends on the order in which rows arrive"
                raise judge.refuse(expressions[i], message, refusals.order_hint())
        for i in expressions.of("UnresolvedStarExceptOrReplace"):
            if catalyst.option(expressions[i].replacements()) is not None:
                raise judge.refuse(expressions[i], "`*` with REPLACE is not on the list", "name the columns")
        for i in expressions.of("Literal"):
            judge.literal(expressions[i])
        for i in expressions.of("Cast"):
            judge.collation(expressions[i])
        for i in expressions.of("WindowSpecDefinition"):
            judge.window(self._walker, expressions[i], "UnresolvedAttribute", "UnresolvedFunction")

    @staticmethod
    def _inline(expressions: catalyst.PlanNodes, plan: Any, checker: refusals.StepChecker) -> None:
        for i, name in enumerate(expressions.classes):
            temporal = name.endswith(".Cast") and expressions[i].dataType().typeName() in refusals.TEMPORAL
            words = (
                catalyst.strings(expressions[i].nameParts())
                if name.endswith(".UnresolvedFunction")
                else ["array"]
            )
            named = words[0].lower() not in functions.INLINE_NAMES
            if name.endswith(".Cast"):
                checker.collation(expressions[i])
            if name not in functions.INLINE_EXPRESSIONS or temporal or named:
                message = "VALUES takes plain values only"
                raise checker.refuse(expressions[i], message, "compute with SELECT", plan)

    @staticmethod
    def _table_function(plan: Any, checker: refusals.StepChecker) -> None:
        name = ".".join(catalyst.strings(plan.name()))
        if name.lower() not in functions.TABLE_NAMES:
            message = f"table function `{one_line(name, 80)}` is not on the list"
            raise checker.refuse(plan, message, "explode and range are")
        if name.lower() == "range" and plan.functionArgs().size() > _RANGE_ARGUMENTS:
            raise checker.split(plan)

    # --- after names are resolved ----------------------------------------------------------------

    def resolve(self, step: refusals.QueryStep, plan: Any) -> Any:
        """The query over the declared tables; its names mean only what is allowed."""
        checker = refusals.StepChecker(step, replayed=self._replayed)
        with refusals.translate_spark_errors(step.label, translated=step.translated, sql=step.sql):
            frame = catalyst.of_plan(self._resolver, self._jvm, plan)
            analyzed = frame.queryExecution().analyzed()
            self._check_resolved(analyzed, checker)
            if not analyzed.deterministic():
                raise checker.refuse(None, "gives another result each time", None)
            return frame

    def _check_resolved(self, root: Any, checker: refusals.StepChecker) -> None:
        allowed = functions.RESOLVED_EXPRESSIONS | self._implementations()
        for plans, (expressions, *_) in self._walker.regions(root):
            checker.count(plans, expressions)
            checker.classes(plans, functions.RESOLVED_PLANS)
            checker.classes(expressions, allowed)
            for i in plans.of("View"):
                identifier = plans[i].desc().identifier()
                if not plans[i].isTempView() or identifier.table() not in self.tables:
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
                # these functions contain a cast, which appears only when the plan is optimized
                behind = self._walker.plans(expressions[i].replacement())
                for k in behind.of("Cast"):
                    checker.cast(behind, k, expressions, expressions[i])

    def _implementations(self) -> frozenset[str]:
        found = _IMPLEMENTATIONS.get(version := self._resolver.version())
        if found is None:
            analysis = self._jvm.org.apache.spark.sql.catalyst.analysis
            built_in = catalyst.the_object(analysis, "FunctionRegistry").expressions()
            entries = [catalyst.option(built_in.get(name)) for name in sorted(functions.ALL_NAMES)]
            classes = {entry._1().getClassName() for entry in entries if entry is not None}  # noqa: SLF001
            found = frozenset(name for name in classes if name.startswith(_BUILT_IN))
            _IMPLEMENTATIONS[version] = found
        return found


_IMPLEMENTATIONS: dict[str, frozenset[str]] = {}


# A guard in the plan itself: a text that is cast to a timestamp has a date, in every row.
#
# Over a root a column of text may be cast without a format, and Spark would read '10:00' as that time of
# the day on which it reads it. No rule about types sees that, wherever the text came from: a file, VALUES,
# another step. So what is cast is first made unreadable where it is a bare time of day: the cast then
# fails, or gives NULL in `try_cast`, as it does for any text that is no time. Source: RFC-016.

_CASTS = ("Cast", "ParseToTimestamp", "TryToTimestampExpression")
BARE = r"(?s)^([\x00-\x20\x7F]*[+-]?(?:T|[0-9]{0,2}:).*)$"
"""Matches times of day as Spark's `stringToTimestamp` does, and a little more."""
SHOWN = "(a time of day without a date) $1"


class DateGuard:
    """Puts the guard into resolved plans, down to the views named `inputs`: how those are read is not SQL."""

    def __init__(self, walker: catalyst.PlanWalker, inputs: Collection[str]) -> None:
        self._walker, self._inputs = walker, inputs
        self._jvm = jvm = walker.jvm
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq

    def guarded_text(self, sql: str, read: Any, resolved: Any) -> str:
        """The query with the guard written where `plan` puts it, as far as its casts are written.

        `read` and `resolved` are its plans. The caller compares the plan of the text with what
        `plan` gives: a cast that Spark adds may stand nowhere in it.
        """
        casts = self._casts(resolved)
        marks = set()
        for expressions in (part for _, parts in self._walker.regions(read) for part in parts):
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
        return {
            _extent(expressions[i]): _extent(expressions[i].children().apply(0))
            for _, parts in self._walker.regions(resolved)
            for expressions in parts
            for i in expressions.of(*_CASTS)
            if self._makes_timestamp(expressions[i])
        }

    def plan(self, plan: Any) -> Any:
        """The plan with the guard in every cast of text to a timestamp; the same one where there is none."""
        if not self._concerns(plan):
            return plan
        guarded = plan
        if not plan.children().isEmpty():
            children = [self.plan(child) for child in catalyst.items(plan.children())]
            guarded = plan.withNewChildren(self._to_seq(children))
        changed = self._jvm.java.util.IdentityHashMap()
        for expression in catalyst.items(plan.expressions()):
            tree = self._walker.plans(expression)
            casts = any(self._makes_timestamp(tree[i]) for i in tree.of(*_CASTS))
            if casts or any(name in SUBQUERIES for name in tree.classes):
                changed.put(expression, self._expression(expression))
        return guarded.mapExpressions(self._walker.replacing(changed)) if changed.size() else guarded

    def _concerns(self, plan: Any) -> bool:
        if catalyst.class_name(plan) == "View" and plan.desc().identifier().table() in self._inputs:
            return False
        expressions = self._walker.expressions(plan)
        return bool(expressions.of(*_CASTS)) or any(name in SUBQUERIES for name in expressions.classes)

    def _expression(self, node: Any) -> Any:
        kind = node.getClass().getName()
        children = [self._expression(child) for child in catalyst.items(node.children())]
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
        if catalyst.class_name(source) == "Literal":  # the gate has seen that it begins with its date
            return False
        return bool(node.dataType().typeName() == "timestamp" and source.dataType().typeName() == "string")

    def _guard(self, text: Any) -> Any:
        literal = catalyst.the_object(self._expressions, "Literal")
        bare, shown = literal.apply(BARE), literal.apply(SHOWN)
        return self._expressions.RegExpReplace(text, bare, shown)


def _extent(node: Any) -> tuple[int, int]:
    """First and last character of a node in its query; the beginning where Spark has no place."""
    origin = node.origin()
    start, stop = catalyst.option(origin.startIndex()), catalyst.option(origin.stopIndex())
    return (0, 0) if start is None or stop is None else (int(start), int(stop) + 1)


def _name_of_cast(node: Any) -> str | None:
    """The name that Spark gives to the cast of a column, quoted; None for others."""
    if catalyst.class_name(node) != "Cast":
        return None
    child = node.child()
    return (
        None if catalyst.class_name(child) != "UnresolvedAttribute" else quoted(str(child.nameParts().last()))
    )


def _tables_hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, 0.6)
    near = near or [k for k in known if k.lower() == name.lower()]
    if near:
        return f"did you mean `{near[0]}`?"
    return "it can use " + ", ".join(f"`{k}`" for k in sorted(known)[:8]) if known else "it has no tables"


# How large a query becomes, counted before Spark resolves it.
#
# A short text can mean a huge plan: CUBE doubles with every column, a WITH that uses the one before it twice
# doubles with every line, `SELECT *, *` doubles the columns. Spark finds out by building it, and is gone for
# minutes or out of memory. Here the same is counted with numbers instead of plans, from the leaves upward: of
# every table its nodes, its columns with their fields, and what all tables beneath it had of both. Where the
# count cannot be exact it is too high: a column that is not known weighs as much as the heaviest one.
# Source: RFC-016.

_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
# Functions whose result holds all of their arguments; that of others holds one of them at most.
_COMPOSING = frozenset({"arrays_zip", "map", "map_from_arrays", "map_zip_with", "named_struct", "struct"})
_STRUCTS = frozenset({"CreateNamedStruct", "CreateStruct"})
_STARS = frozenset({"UnresolvedStar", "UnresolvedStarExcept", "UnresolvedStarExceptOrReplace"})
_BY_SCHEMA = frozenset({"from_csv", "from_json"})
# Columns that a generator may add to the fields of its argument: a position, a key, a value.
_GENERATED = 3

_COMMENTS = ("--", "/*")


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table: what it is made of, and what it has."""

    nodes: int = 1
    """Plans and expressions, with every name replaced by its definition."""
    cells: int = 0
    """Columns of this table and of all beneath it."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """The fields of each named column; those of several columns of one name together."""
    unnamed: int = 0
    """The fields of all others."""
    heaviest: int = 1
    """The fields of the largest column, named or not."""
    aliases: Mapping[str, int] = field(default_factory=dict)
    """The width of each table that is put together here, by its name."""

    @classmethod
    def of(cls, columns: Mapping[str, int], nodes: int = 1) -> TableSize:
        """A table with these columns; each is given with the number of its fields."""
        return cls(nodes, 0, columns, heaviest=max(columns.values(), default=1))

    @property
    def width(self) -> int:
        """Fields of all columns."""
        return sum(self.columns.values()) + self.unnamed


def _too_many(sets: int) -> tuple[str, str]:
    what = f"makes {shown_count(sets)} grouping sets, more than {QUERY.grouping_sets:,}"
    return what, "name the sets that are needed: GROUPING SETS ((a, b), (a), ())"


def shown_count(number: int) -> str:
    """A number as people write it, also where it has hundreds of digits."""
    return f"{number:,}" if number < 10**15 else f"about 10^{len(str(number)) - 1}"


@dataclass(frozen=True, slots=True)
class _ExpressionSize:
    """An expression: its nodes, the fields of its value, and what it is called where it is a column."""

    nodes: int = 1
    fields: int = 1
    name: str | None = None
    kind: str = ""
    made: tuple[TableSize, ...] = ()
    """The tables of queries within it."""


class _Expressions:
    def __init__(self, walker: catalyst.PlanWalker, found: catalyst.PlanNodes, own: Sequence[int]) -> None:
        self.nodes = found
        self.children = walker.children(found)
        sizes = _subtrees(self.children)
        self.roots: list[list[range]] = []
        begin = 0
        for count in own:
            roots = []
            for _ in range(count):
                roots.append(range(begin, begin + sizes[begin]))
                begin += sizes[begin]
            self.roots.append(roots)
        self.names: dict[int, str] = {}
        for owner in (f"{_ANALYSIS}UnresolvedAttribute", f"{_BUILT_IN}Alias"):
            if places := found.of(owner.rpartition(".")[2]):
                self.names |= dict(zip(places, walker.texts(found, owner, "name"), strict=True))


class PlanMeasure:
    """Counts one step; raises a `QueryError` as soon as a table is too large."""

    def __init__(self, walker: catalyst.PlanWalker, checker: refusals.StepChecker) -> None:
        self._walker, self._checker = walker, checker

    def check_cubes(self, tokens: Sequence[str]) -> None:
        """No CUBE has more grouping sets than may be, nor all of a text more than a plan may have nodes."""
        # tokens of the text, since Spark's parser already writes some grouping sets out
        total = 0
        for i, token in enumerate(tokens):
            if token.upper() != "CUBE":
                continue
            depth, elements = 0, 1
            for other in tokens[i + 1 :]:
                if depth == 0 and other != "(":
                    if other.isspace() or other.startswith(_COMMENTS):
                        continue
                    break
                depth += (other == "(") - (other == ")")
                if depth == 0:
                    break
                elements += depth == 1 and other == ","
            total += 1 << elements
            if 1 << elements > QUERY.grouping_sets or total > QUERY.nodes:
                before = "".join(tokens[:i])
                place = place_in(before, len(before))
                raise self._checker.refuse_at(place, f"{token}(…)", *_too_many(max(total, 1 << elements)))

    def table(self, plan: Any, scope: Mapping[str, TableSize], outer: int = 1) -> TableSize:
        """The size of the table that a plan of Spark's parser makes over the tables of `scope`."""
        plans = self._walker.plans(plan)
        children = self._walker.children(plans)
        scopes = self._scopes(plans, children, scope)
        own = self._walker.own_expressions(plans)
        expressions = _Expressions(self._walker, self._walker.expressions(plan), own)
        stack: list[TableSize] = []
        for i in reversed(range(len(children))):  # pre-order, read backward: children come before parents
            below = [stack.pop() for _ in range(children[i])]
            around = _NameScope(below, scopes[i], max([outer, *(size.heaviest for size in below)]))
            values = [self._value(expressions, root, around) for root in expressions.roots[i]]
            made = self._made(plans.kind(i), plans[i], below, values, scopes[i])
            made = replace(made, cells=made.cells + made.width)
            self._check(made, plans[i])
            stack.append(made)
        return stack.pop()

    def _scopes(
        self, plans: catalyst.PlanNodes, children: Sequence[int], scope: Mapping[str, TableSize]
    ) -> list[Mapping[str, TableSize]]:
        sizes, scopes = _subtrees(children), [scope] * len(children)
        for i in plans.of("UnresolvedWith"):
            known = dict(scopes[i])
            for relation in catalyst.items(plans[i].innerChildren()):
                known[str(relation.alias())] = self.table(relation, known)
            scopes[i : i + sizes[i]] = [known] * sizes[i]
        return scopes

    def _check(self, size: TableSize, plan: Any) -> None:
        if size.nodes > QUERY.nodes:
            message = f"grows to {shown_count(size.nodes)} nodes as a plan, more than {QUERY.nodes:,}"
            raise self._checker.refuse(plan, message, "name the same table or query fewer times")
        if size.cells > QUERY.columns:
            raise self._checker.refuse(
                plan,
                f"makes {shown_count(size.cells)} columns on the way to its result, more than "
                f"{QUERY.columns:,}",
                "name the columns that are needed instead of `*`, and each of them once",
            )

    # --- tables ----------------------------------------------------------------------------------

    def _made(
        self,
        kind: str,
        plan: Any,
        below: Sequence[TableSize],
        values: Sequence[_ExpressionSize],
        scope: Mapping[str, TableSize],
    ) -> TableSize:
        inside = [size for value in values for size in value.made]
        first = below[0] if below else TableSize(nodes=0)
        nodes = 1 + sum(s.nodes for s in (*below, *inside)) + sum(v.nodes for v in values)
        plain = replace(first, nodes=nodes, cells=sum(s.cells for s in (*below, *inside)))
        match kind:
            case "UnresolvedRelation":
                name = ".".join(str(part) for part in catalyst.items(plan.multipartIdentifier()))
                table = scope.get(name, TableSize())
                return replace(table, nodes=table.nodes + 1, aliases={name: table.width})
            case "SubqueryAlias":
                return replace(plain, aliases={str(plan.alias()): first.width})
            case "Join" | "LateralJoin":
                return _joined(plain, [*below, *(inside if kind == "LateralJoin" else ())])
            case "Project":
                return _of_columns(plain, first, values)
            case "Aggregate":
                return self._grouped(plan, plain, first, values)
            case "Generate" | "UnresolvedTableValuedFunction":
                more = sum(value.fields for value in values) + _GENERATED
                return replace(plain, unnamed=first.unnamed + more, heaviest=max(first.heaviest, more))
            case "UnresolvedInlineTable":
                most = max((value.fields for value in values), default=1)
                return replace(plain, unnamed=plan.names().size() * most, heaviest=most)
            case "Pivot":
                return _pivoted(plan, plain, values)
            case "Unpivot":
                return replace(plain, nodes=plain.nodes + len(values) * max(1, first.width))
            case "UnresolvedSubqueryColumnAliases" | "UnresolvedTVFAliases":
                return replace(plain, columns={}, unnamed=first.width)
        return plain

    def _grouped(
        self, plan: Any, plain: TableSize, first: TableSize, values: Sequence[_ExpressionSize]
    ) -> TableSize:
        keys = plan.groupingExpressions()
        sets = 1
        for key in catalyst.items(keys):
            sets *= self._sets(key)
            if sets > QUERY.grouping_sets:
                raise self._checker.refuse(key, *_too_many(sets))
        count = keys.size()
        made = _of_columns(plain, first, values[count:])
        if sets == 1:
            return made
        # Spark makes every row anew for each set
        copies = sets * (first.width + sum(value.nodes for value in values[:count]))
        return replace(made, nodes=made.nodes + copies)

    @staticmethod
    def _sets(key: Any) -> int:
        kind = catalyst.class_name(key)
        if kind not in ("Cube", "Rollup", "GroupingSets"):
            return 1
        count = int(key.groupingSetIndexes().size())
        return {"Cube": 1 << count, "Rollup": count + 1}.get(kind, count)

    # --- expressions -----------------------------------------------------------------------------

    def _value(self, expressions: _Expressions, root: range, around: _NameScope) -> _ExpressionSize:
        stack: list[_ExpressionSize] = []
        for i in reversed(root):
            children = [stack.pop() for _ in range(expressions.children[i])]
            stack.append(self._of(expressions, i, children, around))
        return stack.pop()

    def _of(
        self, expressions: _Expressions, i: int, children: Sequence[_ExpressionSize], around: _NameScope
    ) -> _ExpressionSize:
        kind = expressions.nodes.kind(i)
        if kind in _STARS:
            return _ExpressionSize(1, around.star(expressions.nodes[i]), kind=kind)
        if kind == "UnresolvedAttribute":
            parts = expressions.names[i].replace("`", "").split(".")
            return _ExpressionSize(1, around.fields(parts), parts[-1])
        nodes = 1 + sum(child.nodes for child in children)
        made = tuple(size for child in children for size in child.made)
        each = [child.fields for child in children]
        fields = sum(each) if kind in _STRUCTS or kind == "MultiAlias" else max(each, default=1)
        if expressions.nodes.classes[i] in SUBQUERIES:
            size = self.table(expressions.nodes[i].plan(), around.scope, around.heaviest)
            made, fields = (*made, size), size.heaviest
        if kind in ("UnresolvedFunction", "UnresolvedGenerator"):
            fields = _called(expressions.nodes[i], kind, children)
        if kind == "Cast":
            fields = max(fields, str(expressions.nodes[i].dataType().json()).count('"name"'))
        return _ExpressionSize(nodes, fields, expressions.names.get(i), kind, made)


@dataclass(frozen=True, slots=True)
class _NameScope:
    below: Sequence[TableSize]
    scope: Mapping[str, TableSize]
    heaviest: int

    def fields(self, parts: Sequence[str]) -> int:
        known = [size.columns[part] for size in self.below for part in parts if part in size.columns]
        return max(known, default=self.heaviest)

    def star(self, node: Any) -> int:
        target = catalyst.option(node.target())
        names = [str(part) for part in catalyst.items(target)] if target is not None else []
        for size in self.below:
            if len(names) == 1 and names[0] in size.aliases:
                return size.aliases[names[0]]
        if any(name in size.columns for size in self.below for name in names):
            return self.fields(names)
        return sum(size.width for size in self.below)


def _called(node: Any, kind: str, children: Sequence[_ExpressionSize]) -> int:
    name = str(node.name() if kind == "UnresolvedGenerator" else node.nameParts().last()).lower()
    plain = [child.fields for child in children if child.kind != "LambdaFunction"]
    # what a lambda makes of each field it makes of all of them
    per_field = max((child.fields for child in children if child.kind == "LambdaFunction"), default=1)
    fields = sum(plain) if name in _COMPOSING else max(plain, default=1)
    if name in _BY_SCHEMA:
        fields = max(fields, str(node).count(",") + 1)
    return fields * per_field


def _of_columns(plain: TableSize, first: TableSize, values: Sequence[_ExpressionSize]) -> TableSize:
    columns: Counter[str] = Counter()
    unnamed, heaviest = 0, 1
    for value in values:
        star = value.kind in _STARS
        heaviest = max(heaviest, first.heaviest if star else value.fields)
        if star and value.fields == first.width:
            columns.update(first.columns)
            unnamed += first.unnamed
        elif not star and value.name is not None:
            columns[value.name] += value.fields
        else:
            unnamed += value.fields
    return replace(plain, columns=columns, unnamed=unnamed, heaviest=heaviest, aliases={})


def _joined(plain: TableSize, tables: Sequence[TableSize]) -> TableSize:
    columns: Counter[str] = Counter()
    aliases: dict[str, int] = {}
    for size in tables:
        aliases |= size.aliases
        columns.update(size.columns)
    unnamed, heaviest = sum(s.unnamed for s in tables), max(s.heaviest for s in tables)
    return replace(plain, columns=columns, unnamed=unnamed, heaviest=heaviest, aliases=aliases)


def _pivoted(plan: Any, plain: TableSize, values: Sequence[_ExpressionSize]) -> TableSize:
    # each value becomes a column for each aggregate, and each is computed on its own
    count = plan.pivotValues().size()
    columns = count * plan.aggregates().size()
    nodes = plain.nodes + count * sum(value.nodes for value in values[-plan.aggregates().size() :])
    return replace(plain, nodes=nodes, unnamed=plain.unnamed + columns * plain.heaviest)


def _subtrees(children: Sequence[int]) -> list[int]:
    sizes = [0] * len(children)
    stack: list[int] = []
    # nodes are in pre-order, so from the end all children come before their parent
    for i in reversed(range(len(children))):
        sizes[i] = 1 + sum(stack.pop() for _ in range(children[i]))
        stack.append(sizes[i])
    return sizes
