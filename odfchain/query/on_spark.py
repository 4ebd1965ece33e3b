"""SQL by Spark, for what is large: the same names, points, states and rows as the embedded engine has.

A query is planned twice, as there. First over empty tables: Spark's analyzer says which names are read and
which a WITH shadows. Then those are pinned, checked and read natively. The session is one for the query
alone; it knows no files, no commands and no functions that reach outside, and it keeps the settings of the
pipeline, so that statistics of files decide nothing (RFC-033).
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from odfchain.errors import EngineError, OdfchainError, QueryError, SchemaError
from odfchain.lazy import t
from odfchain.odf.arrow_schema import from_arrow
from odfchain.query import sql_text
from odfchain.query.resolved_tables import Changes, CheckedSlices, Pin, Pins
from odfchain.query.results import QueryResult, SlicesRead
from odfchain.slices import skipping
from odfchain.slices.footers import Value, file_stats
from odfchain.slices.footers import quoted as quoted_column
from odfchain.slices.skipping import UNKNOWN, ConditionVisitor, Parts
from odfchain.spark import plans as catalyst
from odfchain.spark import query_rules as functions
from odfchain.spark.executor_files import ExecutorFiles, files_of, give_files
from odfchain.spark.jobs import explain, run_job, task_results
from odfchain.spark.query import PRIVATE_SETTINGS, private_session
from odfchain.spark.query_refusals import QueryStep, StepChecker, failed_query, translate_spark_errors
from odfchain.spark.types import col, latest_rows, physical_struct, quoted
from odfchain.text import one_line, place_in
from odfchain.transform.closed_sql import quoted_name
from odfchain.workspace.read_slices import KeptFooters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Names in a query for Spark: spelled as the embedded engine spells them, and found in the plan.
# Unquoted words become lower case, and `$name` becomes `:name`, token by token with Spark's lexer, so that
# positions in messages stay right. Tables and table functions are those of the unresolved plan; Spark
# resolves names of a WITH.

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# The characters before the name of a parameter, or of a field of a variant.
_BEFORE_EXACT = (":", "$")

_PLANS = functions.READ_PLANS | functions.classes_of({"plans.logical": "PipeOperator Sample UnresolvedHint"})
# Queries that are asked, and not recorded, may depend on chance, on the clock and on a library's order.
_EXPRESSIONS = functions.READ_EXPRESSIONS | functions.classes_of(
    {
        "analysis": "NamedParameter UnresolvedCollation",
        "expressions": "Collate CurrentDate CurrentTimestamp CurrentUser PipeExpression",
        "expressions.variant": "VariantGet",
    }
)

_OUTSIDE = frozenset(name for name, reason in functions.UNLISTED.items() if reason == functions.OUTSIDE)
_FUNCTIONS = (functions.ALL_NAMES | frozenset(functions.UNLISTED) | functions.OF_VALUES) - _OUTSIDE
_TABLE_FUNCTIONS = functions.TABLE_NAMES | {"variant_explode", "variant_explode_outer"}
_ONE_QUERY = "only queries are answered: nothing is changed, and no file is named"


def in_lower_case(walker: catalyst.PlanWalker, sql: str) -> str:
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
    """Tables, functions and parameters of an unresolved plan, each with its node."""

    tables: dict[str, Any] = field(default_factory=dict)
    """Names in the place of a table; a WITH may define some of them."""
    calls: list[tuple[Any, sql_text.Call]] = field(default_factory=list)
    """Nodes of `state(…)` and the other functions, and what they say."""
    withs: list[Any] = field(default_factory=list)
    """Every WITH, an outer one before those within it."""
    parameters: dict[str, Any] = field(default_factory=dict)


def names_in(root: Any, walker: catalyst.PlanWalker, checker: StepChecker) -> NamesInPlan:
    """The names in a plan, which is one of a query that calls nothing but functions of values."""
    found = NamesInPlan()
    for plans, parts in walker.regions(root):
        checker.count(plans, parts[0])
        checker.classes(plans, _PLANS, _ONE_QUERY)
        found.withs += [plans[i] for i in plans.of("UnresolvedWith")]
        for part in parts:
            checker.classes(part, _EXPRESSIONS, _ONE_QUERY)
            _check_calls(part, checker)
            found.parameters |= {part[i].name(): part[i] for i in part.of("NamedParameter")}
        for i in plans.of("UnresolvedRelation"):
            found.tables.setdefault(_table(plans[i], checker), plans[i])
        for i in plans.of("UnresolvedTableValuedFunction"):
            if (call := _table_function(plans[i], checker)) is not None:
                found.calls.append(call)
    return found


def replaced(root: Any, found: NamesInPlan, tables: Collection[Any], walker: catalyst.PlanWalker) -> Any:
    """The plan that has a table (another plan) in the place of each call, in order of the calls."""
    if not found.calls:
        return root
    jvm = walker.jvm
    changed = jvm.java.util.IdentityHashMap()
    change = catalyst.the_object(jvm.scala, "PartialFunction").fromFunction(walker.replacing(changed))
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
            for relation in catalyst.items(node.cteRelations())
        ]
        to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        changed.put(node, node.copy(node.child(), to_seq(definitions), node.allowRecursion()))
    return root.transformDownWithSubqueries(change)


def _check_calls(expressions: catalyst.PlanNodes, checker: StepChecker) -> None:
    for i in expressions.of("UnresolvedFunction", "UnresolvedGenerator"):
        node = expressions[i]
        generator = expressions.classes[i].endswith("UnresolvedGenerator")
        name = node.name().unquotedString() if generator else ".".join(catalyst.strings(node.nameParts()))
        if name.lower() in _FUNCTIONS and (generator or not node.isInternal()):
            continue
        if name.lower() in sql_text.FUNCTIONS:
            raise checker.refuse(node, "is a table", f"use it after FROM: {name}(…)")
        reason = functions.UNLISTED.get(name.lower(), "is not one that queries may call")
        raise checker.refuse(node, f"the function `{one_line(name, 80)}` {reason}", None)


def _table(relation: Any, checker: StepChecker) -> str:
    parts = catalyst.strings(relation.multipartIdentifier())
    if len(parts) != 1:
        name = ".".join(parts)
        hint = f"write {quoted_name(name)}"
        raise checker.refuse(relation, "is a name with dots, which is written in quotes", hint)
    if not relation.options().isEmpty():
        raise checker.refuse(relation, "a table is taken as it is, without options", "leave WITH (…) out")
    return parts[0]


def _table_function(node: Any, checker: StepChecker) -> tuple[Any, sql_text.Call] | None:
    name = ".".join(catalyst.strings(node.name()))
    if name in sql_text.FUNCTIONS:
        return node, _arguments(name, node, checker)
    if name.lower() not in _TABLE_FUNCTIONS:
        raise checker.refuse(
            node, f"table function `{one_line(name, 80)}` is not one that queries may call", "state(…) is"
        )
    return None


def _arguments(name: str, node: Any, checker: StepChecker) -> sql_text.Call:
    expressions = catalyst.items(node.functionArgs())
    if wrong := sql_text.wrong_count(name, len(expressions)):
        raise checker.refuse(node, f"has {wrong}", sql_text.usage(name))
    return (name, *(_argument(name, number, each, node, checker) for number, each in enumerate(expressions)))


def _argument(name: str, number: int, expression: Any, node: Any, checker: StepChecker) -> str | None:
    kind = catalyst.class_name(expression)
    if kind == "UnresolvedAttribute" and sql_text.may_be_name(name, number):
        parts = catalyst.strings(expression.nameParts())
        if len(parts) == 1:
            return parts[0]
        whole = ".".join(parts)
        hint = f"write {name}('{one_line(whole)}')"
        raise checker.refuse(expression, "is a name with dots, which is written in quotes", hint)
    if kind == "Literal":
        value = expression.value()
        if value is None and not sql_text.may_be_name(name, number):
            return None
        if value is not None and expression.dataType().typeName() == "string":
            return str(value if isinstance(value, str) else value.toString())
    raise checker.refuse(node, f"argument {number + 1} is not a text", sql_text.usage(name))


# Tables as DataFrames: native Parquet over checked slices. Executors without the driver's folders fetch
# slices from the store and hash them.

# Statistics leave NaN out: no row group is skipped by them, under any settings of the session.
_EVERY_ROW = {
    "parquet.filter.stats.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.dictionary.enabled": "false",
}


def rows_on_spark(session: SparkSession, relation: Pin, checked: CheckedSlices) -> DataFrame:
    """The records, or the rows of the state, as physical types; nothing is computed yet."""
    found = _records(session, relation, checked)
    if relation.projection is None or relation.state.schema is None:
        return found
    names = relation.state.vocabulary
    if relation.key and relation.projection.event_time is None:
        return latest_rows(found, relation.key, names)
    offset = names.offset_column
    # `latest_rows` has neither event times nor states without a key: their offsets are computed now
    kept = relation.rows(checked, [offset]).select([offset]).cast(pa.schema([(offset, pa.int64())]))
    return found.join(session.createDataFrame(kept), offset, "left_semi")


def with_plain_offset(frame: DataFrame, pin: Pin) -> DataFrame:
    """The same rows with offsets as `bigint`; other unsigned columns stay as they are carried."""
    offset = pin.state.vocabulary.offset_column
    return frame.withColumn(offset, col(offset).cast("bigint")) if offset in frame.columns else frame


def rows_asked(session: SparkSession, relation: Pin | Changes, checked: CheckedSlices) -> DataFrame:
    """A table's rows, with offsets as `bigint`; changes are computed now. Errors as `rows_on_spark`."""
    if isinstance(relation, Changes):
        from pyspark.sql.pandas.types import to_arrow_schema

        struct = asked_struct(relation)
        rows = relation.rows(checked).cast(to_arrow_schema(struct, timezone="UTC"))
        return session.createDataFrame(rows, struct)
    return with_plain_offset(rows_on_spark(session, relation, checked), relation)


def asked_struct(relation: Pin | Changes) -> StructType:
    """The columns as queries on Spark see them."""
    if isinstance(relation, Changes):
        for each in relation.pins:
            _physical(each)  # says what cannot be carried
        return physical_struct(from_arrow(relation.schema).fields)
    offset = relation.state.vocabulary.offset_column
    fields = _physical(relation).fields
    return t.StructType([t.StructField(f.name, t.LongType()) if f.name == offset else f for f in fields])


def know_footers(session: SparkSession, relation: Pin, checked: CheckedSlices) -> None:
    """Footers are known of all slices that a condition may skip, as far as executors bring slices."""
    files = files_of(session)
    if files is None or relation.condition is None or not skipping.understood(relation.condition):
        return
    dataset = relation.dataset
    kept = KeptFooters(dataset)
    names = [ref.slice.physical_hash for ref in checked.slices(relation.state)]
    unknown = [name for name in names if kept.known(name) is None]
    if unknown:
        keys = [dataset.key("data", name) for name in unknown]
        footer = functools.partial(_footer, files=files, keys=keys)
        KeptFooters(dataset).keep(zip(unknown, task_results(session, footer, len(keys)), strict=True))


def _footer(number: int, files: ExecutorFiles, keys: list[str]) -> str | None:
    return file_stats(files.bring(keys[number])).to_text()


def _records(session: SparkSession, relation: Pin, checked: CheckedSlices) -> DataFrame:
    from odfchain.spark.input_frames import spark_path

    struct = _physical(relation)
    if (files := files_of(session)) is not None:
        from odfchain.spark.input_frames import parquet_frame

        know_footers(session, relation, checked)
        names = [ref.slice.physical_hash for ref in relation.slices(checked)]
        return parquet_frame(session, files, struct, [relation.dataset.key("data", n) for n in names])
    paths = relation.paths(checked)
    if not paths:
        return session.createDataFrame([], struct)
    reader = session.read.schema(struct)
    if relation.has_floats:
        reader = reader.options(**_EVERY_ROW)
    return reader.parquet(*map(spark_path, paths))


def _physical(pin: Pin) -> StructType:
    declared = pin.state.schema
    try:
        return physical_struct(declared.fields if declared else ())
    except SchemaError as error:
        message = f"{pin.alias}: {error.message}"
        raise QueryError(message, hint="the embedded engine (datafusion) has all types") from None


T = TypeVar("T")

_LABEL = "the query"
_SETTINGS = PRIVATE_SETTINGS | {"spark.sql.ansi.doubleQuotedIdentifiers": "true"}
# Leaves of a plan over empty tables; a table of the session's own catalogue is none of these.
_LEAVES = frozenset({"CTERelationRef", "LocalRelation", "OneRowRelation", "Range", "UnionLoopRef"})


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Answers queries in a session of Spark's."""

    session: SparkSession
    checked: CheckedSlices = field(default_factory=CheckedSlices)

    def run(self, query: sql_text.Query) -> QueryResult:
        """The rows of one query, computed when they are asked for, but for states without a key or at a time.

        Columns have the types as which Spark carries the declared ones (an unsigned integer is the next
        larger type), but offsets are int64. `to_spark` is lazy; `batches` holds all rows in memory.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        text, clock = sql_text.checked_text(query.sql), _Clock(self.session, query.seconds)
        frame, inputs, slices = clock.run(lambda: self._planned(text, query))
        if query.limit is not None:
            frame = frame.limit(query.limit)
        schema = to_arrow_schema(frame.schema, timezone="UTC")

        def batches() -> Iterator[Any]:
            yield from clock.run(lambda: _computed(frame)).cast(schema).to_batches()

        return QueryResult(schema, inputs, batches, lambda: frame, slices=slices)

    def explain(self, query: sql_text.Query) -> str:
        """How the query would be run, as text; errors as `run`."""
        frame, _, _ = self._planned(sql_text.checked_text(query.sql), query)
        with translate_spark_errors(_LABEL):
            execution = frame._jdf.queryExecution()  # noqa: SLF001
            return str(catalyst.jvm_of(self.session).PythonSQLUtils.explainString(execution, "formatted"))

    def _planned(self, sql: str, query: sql_text.Query) -> tuple[DataFrame, tuple[Pin, ...], SlicesRead]:
        if catalyst.is_remote(self.session):
            hint = "leave spark.remote out of the settings, or use the embedded engine"
            raise EngineError("queries are not answered over Spark Connect, which shows no plans", hint=hint)
        from pyspark.sql import SparkSession

        with private_session(self.session, _SETTINGS) as java:
            private = give_files(SparkSession(self.session.sparkContext, java), files_of(self.session))
            walker = catalyst.walker_of(self.session)
            planning = _Planning(private, walker, sql, query.pins, self.checked)
            return *planning.plan(query.params or {}), planning.slices


class _Planning:
    """One query on its way to a plan, in a session of its own."""

    def __init__(
        self, session: SparkSession, walker: catalyst.PlanWalker, sql: str, pins: Pins, checked: CheckedSlices
    ) -> None:
        self._session, self._walker = session, walker
        self._sql, self._pins, self._checked = sql, pins, checked
        self._java = catalyst.java_of(session)
        self._jvm = catalyst.jvm_of(session)
        self._checker = StepChecker(QueryStep(_LABEL, sql))
        # Why names in the text are no datasets.
        self._missing: dict[str, OdfchainError] = {}
        # Nothing makes many rows of few.
        self._small = True
        # Those of records.
        self.slices = SlicesRead()

    def plan(self, params: Mapping[str, Any]) -> tuple[DataFrame, tuple[Pin, ...]]:
        if not self._sql:
            message = f"{_LABEL}: no query given"
            raise QueryError(message, hint="write one, like: select count(*) from airports")
        with translate_spark_errors(_LABEL, sql=self._sql):
            parser = self._jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()
            read = parser.parsePlan(in_lower_case(self._walker, self._sql))
            found = names_in(read, self._walker, self._checker)
            relations = self._relations(found)
            states = [sql_text.relation_of(call, self._pins) for _, call in found.calls]
            named = [f"#{number}" for number in range(len(states))]
            shown = [
                self._alias(node, parser.parsePlan(f"TABLE {quoted(name)}"))
                for (node, _), name in zip(found.calls, named, strict=True)
            ]
            read = self._bound(replaced(read, found, shown, self._walker), found, params)
            relations |= dict(zip(named, states, strict=True))
            for relation in states:
                relation.key  # noqa: B018 - a fault of it is reported before anything is read
            used, asked = self._used(read, relations)
        for name, condition in asked.items():
            relations[name] = self._asked(relations[name], condition)
        if (
            used
            and self._small
            and sum(relations[n].pins[0].state.record_count for n in used) <= catalyst.FEW_ROWS
        ):
            for key, value in catalyst.FEW_SETTINGS.items():
                self._session.conf.set(key, value)
        for name in used:
            rows = rows_asked(self._session, relations[name], self._checked)
            rows.createOrReplaceTempView(quoted(name))
        self._checked.keep()
        with translate_spark_errors(_LABEL, sql=self._sql):
            return self._frame(read), self._pins.used(
                pin.name for name in used for pin in relations[name].pins
            )

    def _asked(self, relation: Pin | Changes, condition: skipping.Condition) -> Pin | Changes:
        if isinstance(relation, Changes) or not self._checked.remembers:
            return relation
        # slices whose footers rule the condition out are not read
        relation = replace(relation, condition=condition)
        know_footers(self._session, relation, self._checked)
        if relation.projection is None:
            read, there = relation.slices(self._checked), self._checked.slices(relation.state)
            self.slices += SlicesRead(len(read), len(there))
        return relation

    def _relations(self, found: NamesInPlan) -> dict[str, Pin | Changes]:
        relations: dict[str, Pin | Changes] = {}
        for name in found.tables:
            try:
                relations[name] = self._pins.pin(name)
            except OdfchainError as error:
                # a WITH of the query may define the name: Spark decides, and the error is kept until then
                self._missing[name] = error
        return relations

    def _alias(self, call: Any, table: Any) -> Any:
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        return catalyst.the_object(logical, "SubqueryAlias").apply(call.name().last(), table)

    def _bound(self, plan: Any, found: NamesInPlan, params: Mapping[str, Any]) -> Any:
        for name, node in found.parameters.items():
            if name not in params:
                raise self._checker.refuse(node, "has no value", f"--param {name}=VALUE, or params={{…}}")
        if not found.parameters:
            return plan
        values = [params[name] for name in found.parameters]
        plain = [value.as_py() if hasattr(value, "as_py") else value for value in values]
        to_seq = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq
        # values are literals of the plan, and never text of the query
        literal = catalyst.the_object(self._jvm.org.apache.spark.sql.catalyst.expressions, "Literal")
        return self._jvm.org.apache.spark.sql.catalyst.analysis.NameParameterizedQuery(
            plan, to_seq(list(found.parameters)), to_seq([literal.apply(value) for value in plain])
        )

    def _used(
        self, plan: Any, relations: Mapping[str, Pin | Changes]
    ) -> tuple[list[str], dict[str, skipping.Condition]]:
        # analysis over empty tables: nothing is read to find out which tables and conditions there are
        for name, relation in relations.items():
            schema = catalyst.java_schema(self._session, asked_struct(relation))
            catalyst.declare_empty(self._java, self._jvm, name, schema)
        try:
            analyzed = self._frame(plan)._jdf.queryExecution().analyzed()  # noqa: SLF001
        except Exception as error:
            if (no_dataset := self._no_dataset(error)) is not None:
                raise no_dataset from None
            raise

        used: dict[str, list[skipping.Condition]] = {}
        for plans, _ in self._walker.regions(analyzed):
            for i in plans.of("View"):
                name = plans[i].desc().identifier().table()
                if name in relations:
                    used.setdefault(name, []).append(condition_over(plans, i, relations[name].schema))
            for i, children in enumerate(self._walker.children(plans)):
                if not children and plans.kind(i) not in _LEAVES:
                    hint = "a table is a dataset's name"
                    raise self._checker.refuse(None, "reads something that is not a dataset", hint)
            self._small = self._small and not plans.of("Generate", "Range")
        return sorted(used), {name: skipping.AnyOf(tuple(asked)) for name, asked in used.items()}

    def _frame(self, plan: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        return DataFrame(catalyst.of_plan(self._java, self._jvm, plan), self._session)

    def _no_dataset(self, error: Exception) -> OdfchainError | None:
        condition = getattr(error, "getCondition", lambda: None)()
        if condition != "TABLE_OR_VIEW_NOT_FOUND":
            return None
        asked = error.getMessageParameters().get("relationName", "")  # type: ignore[attr-defined]
        name = asked.removeprefix("`").removesuffix("`").replace("``", "`")
        # the reason was found when the names were resolved
        reason = self._missing.get(name)
        if not isinstance(reason, QueryError):
            return reason
        place = [getattr(c, "startIndex", lambda: -1)() for c in getattr(error, "getQueryContext", list)()]
        at = place_in(self._sql, place[0]) if place and place[0] >= 0 else None
        return QueryError.at(_LABEL, self._sql, at, reason.message, hint=reason.hint)


class _Clock:
    """How long a query may take; it runs only while the query does."""

    def __init__(self, session: SparkSession, seconds: float | None) -> None:
        self._session, self._seconds, self._used = session, seconds, 0.0

    def run(self, work: Callable[[], T]) -> T:
        start = time.monotonic()
        left = None if self._seconds is None else max(0.0, self._seconds - self._used)
        out = False
        try:
            # earlier jobs of the query have used up a part of the time
            return run_job(self._session, work, deadline=left)
        except EngineError:
            out = left is not None and time.monotonic() - start >= left
            if not out:
                raise
        finally:
            self._used += time.monotonic() - start
        message = f"the query took longer than {self._seconds:g} s"
        raise EngineError(message, hint="give it more time with --timeout")


def _computed(frame: DataFrame) -> Any:
    try:
        return frame.toArrow()
    except Exception as error:
        raise failed_query(error, _LABEL) or explain(error) from error


# Conditions of a WHERE directly over a table, from the analyzed plan, where names and types are resolved.
# Filters above a join or a projection are not used.

_TESTS = {
    "EqualTo": skipping.Test.EQ, "LessThan": skipping.Test.LT, "LessThanOrEqual": skipping.Test.LE,
    "GreaterThan": skipping.Test.GT, "GreaterThanOrEqual": skipping.Test.GE,
}  # fmt: skip
# Of a larger condition the rest skips nothing: each node takes several calls to the JVM [count].
_MOST_NODES = 500
# Digits of whole numbers, by the name of their type.
_WHOLE = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_ESCAPE = "\\"


def condition_over(plans: catalyst.PlanNodes, view: int, schema: pa.Schema) -> skipping.Condition:
    """The condition on all rows of the table at an index, from the filters directly over it."""
    found: list[skipping.Condition] = []
    above = view - 1  # a node's first child comes right behind it
    while above >= 0 and (kind := plans.kind(above)) in ("SubqueryAlias", "Filter"):
        if kind == "Filter":
            found.append(_Reading(schema).condition(plans[above].condition()))
        above -= 1
    return skipping.Every(tuple(found)) if found else skipping.MAYBE


class _Reading(ConditionVisitor):
    """One condition of the analyzer's."""

    def __init__(self, schema: pa.Schema) -> None:
        self.types = {quoted_column(field.name): field.type for field in schema}
        self._left = _MOST_NODES
        # Expressions that are written once and used twice, such as that of BETWEEN.
        self._common: dict[str, Any] = {}

    def parts(self, node: Any) -> Parts:
        # bounded: beyond `_MOST_NODES` nothing is understood
        self._left -= 1
        kind = catalyst.class_name(node) if self._left > 0 else ""
        match kind:
            case "And" | "Or":
                return kind.lower(), node.left(), node.right()
            case "Not":
                return "not", node.child()
            case "Between":
                return self.parts(node.replacement())
            case "With":
                self._common |= {str(each.id()): each.child() for each in catalyst.items(node.defs())}
                return self.parts(node.child())
            case "IsNull" | "IsNotNull":
                return skipping.Test.NULL if kind == "IsNull" else skipping.Test.VALUE, node.child()
            case "In":
                return "in", node.value(), *catalyst.items(node.list())
            case "Like":
                pattern = _value(node.right())
                if isinstance(pattern, str) and str(node.escapeChar()) == _ESCAPE:
                    return skipping.Test.BEGINS, node.left(), pattern
        return (_TESTS[kind], node.left(), node.right()) if kind in _TESTS else UNKNOWN

    def path(self, node: Any) -> str | None:
        # a cast to a wider type changes no comparison
        while (kind := catalyst.class_name(node)) in ("Cast", "CommonExpressionRef"):
            inner = node.child() if kind == "Cast" else self._common.get(str(node.id()))
            if inner is None or not _holds_all(inner.dataType().typeName(), node.dataType().typeName()):
                return None
            node = inner
        if catalyst.class_name(node) != "AttributeReference":
            return None
        path = quoted_column(str(node.name()))
        return path if path in self.types else None

    def value(self, node: Any, kind: pa.DataType) -> Value | None:
        self._left -= 1
        if self._left < 0 or not node.foldable() or not node.deterministic():
            return None
        return _bound(_value(node), node.dataType().typeName(), kind)


def _holds_all(own: str, other: str) -> bool:
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
    kind = node.dataType().typeName()
    if kind not in ("boolean", "float", "double", "string", "date", "timestamp", *_WHOLE) and not (
        _DECIMAL.fullmatch(kind)
    ):
        return None
    try:
        # Catalyst evaluates it, so constant expressions are understood, too
        value = node.eval(None)
    except Exception:  # noqa: BLE001 - whether that is an error the query itself decides, where it computes it
        return None
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value.toString()) if kind == "string" else Decimal(value.toString())


def _bound(value: Any, typed: str, kind: pa.DataType) -> Value | None:
    match skipping.group_of(kind):
        case skipping.Group.DATE:
            return int(value) if typed == "date" and value is not None else None
        case skipping.Group.MOMENT:
            return int(value) * 1_000 if typed == "timestamp" and value is not None else None
    return None if typed in ("date", "timestamp") else skipping.value_for(value, kind)
