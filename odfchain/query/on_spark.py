"""SQL by Spark, for what is large: the same names, points, states and rows as the embedded engine has.

A query is planned twice, as there. First over empty tables: Spark's analyzer says which names are read and
which a WITH shadows. Then those are pinned, checked and read natively. The session is one for the query
alone; it knows no files, no commands and no functions that reach outside, and it keeps the settings of the
pipeline, so that statistics of files decide nothing (RFC-033).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.query.change_relations import Changes
from odfchain.query.checked_slices import CheckedSlices
from odfchain.query.embedded import checked_text
from odfchain.query.pins import Pin, Pins
from odfchain.query.projections import relation_of
from odfchain.query.query_result import QueryResult, SlicesRead
from odfchain.query.relations import Relation
from odfchain.query.spark_names import NamesInPlan, in_lower_case, names_in, replaced, subqueries
from odfchain.query.spark_tables import asked_struct, know_footers, rows_asked
from odfchain.spark.columns import quoted
from odfchain.spark.executor_files import files_of, give_files
from odfchain.spark.few_rows import FEW_ROWS, FEW_SETTINGS
from odfchain.spark.plan_walk import PlanNodes, PlanWalker, jvm_of, walker_of
from odfchain.spark.session_kind import is_remote
from odfchain.sql.messages import asking_spark, failed_query
from odfchain.sql.query import PRIVATE_SETTINGS, private_session
from odfchain.sql.refusals import QueryStep, StepChecker
from odfchain.text import excerpt, located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.slices.skipping import Condition

T = TypeVar("T")

_LABEL = "the query"
_SETTINGS = PRIVATE_SETTINGS | {"spark.sql.ansi.doubleQuotedIdentifiers": "true"}
_LEAVES = frozenset({"CTERelationRef", "LocalRelation", "OneRowRelation", "Range", "UnionLoopRef"})
"""What rows may come from while tables are empty; a table of the session's own catalogue is none of these."""


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Answers queries in a session of Spark's."""

    session: SparkSession
    checked: CheckedSlices = field(default_factory=CheckedSlices)

    def run(
        self,
        sql: str,
        pins: Pins,
        *,
        params: Mapping[str, Any] | None = None,
        limit: int | None = None,
        seconds: float | None = None,
    ) -> QueryResult:
        """The rows of one query, computed when they are asked for, but for states without a key or at a time.

        Columns have the types as which Spark carries the declared ones (an unsigned integer is the next
        larger type), but offsets are int64. `to_spark` is lazy; `batches` holds all rows in memory.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        query, clock = checked_text(sql), _Clock(self.session, seconds)
        frame, inputs, slices = clock.run(lambda: self._planned(query, pins, dict(params or {})))
        if limit is not None:
            frame = frame.limit(limit)
        schema = to_arrow_schema(frame.schema, timezone="UTC")

        def batches() -> Iterator[Any]:
            yield from clock.run(lambda: _computed(frame)).cast(schema).to_batches()

        return QueryResult(schema, inputs, batches, lambda: frame, slices=slices)

    def explain(self, sql: str, pins: Pins, *, params: Mapping[str, Any] | None = None) -> str:
        """How the query would be run, as text; errors as `run`."""
        frame, _, _ = self._planned(checked_text(sql), pins, dict(params or {}))
        with asking_spark(_LABEL):
            execution = frame._jdf.queryExecution()  # noqa: SLF001
            return str(jvm_of(self.session).PythonSQLUtils.explainString(execution, "formatted"))

    def _planned(
        self, sql: str, pins: Pins, params: dict[str, Any]
    ) -> tuple[DataFrame, tuple[Pin, ...], SlicesRead]:
        if is_remote(self.session):
            raise EngineError(
                "queries are not answered over Spark Connect, which shows no plans",
                hint="leave spark.remote out of the settings, or use the embedded engine",
            )
        from pyspark.sql import SparkSession

        with private_session(self.session, _SETTINGS) as java:
            private = give_files(SparkSession(self.session.sparkContext, java), files_of(self.session))
            walker = walker_of(self.session)
            planning = _Planning(private, walker, sql, pins, self.checked)
            return *planning.plan(params), planning.slices


class _Planning:
    """One query on its way to a plan, in a session of its own."""

    def __init__(
        self, session: SparkSession, walker: PlanWalker, sql: str, pins: Pins, checked: CheckedSlices
    ) -> None:
        self._session, self._walker = session, walker
        self._sql, self._pins, self._checked = sql, pins, checked
        self._java: Any = session._jsparkSession  # noqa: SLF001 - PySpark has no public way into the JVM
        self._jvm = jvm_of(session)
        self._checker = StepChecker(QueryStep(_LABEL, sql))
        self._missing: dict[str, OdfchainError] = {}
        """Why names in the text are no datasets."""
        self._small = True
        """Nothing makes many rows of few."""
        self.slices = SlicesRead()
        """Those of records."""

    def plan(self, params: Mapping[str, Any]) -> tuple[DataFrame, tuple[Pin, ...]]:
        """The query over its inputs, and these."""
        if not self._sql:
            raise QueryError(
                f"{_LABEL}: there is no query", hint="write one, like: select count(*) from airports"
            )
        with asking_spark(_LABEL, sql=self._sql):
            parser = self._jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()
            read = parser.parsePlan(in_lower_case(self._walker, self._sql))
            found = names_in(read, self._walker, self._checker)
            relations = self._relations(found)
            states = [relation_of(call, self._pins) for _, call in found.calls]
            named = [f"#{number}" for number in range(len(states))]
            shown = [
                self._alias(node, parser.parsePlan(f"TABLE {quoted(name)}"))
                for (node, _), name in zip(found.calls, named, strict=True)
            ]
            read = self._bound(replaced(read, found, shown, self._walker), found, params)
            relations |= dict(zip(named, states, strict=True))
            for relation in states:
                relation.key  # noqa: B018 - whatever is wrong with it is said before anything is read
            used, asked = self._used(read, relations)
        for name, condition in asked.items():
            relations[name] = self._asked(relations[name], condition)
        if used and self._small and sum(relations[n].pin.state.record_count for n in used) <= FEW_ROWS:
            for key, value in FEW_SETTINGS.items():
                self._session.conf.set(key, value)
        for name in used:
            rows = rows_asked(self._session, relations[name], self._checked)
            rows.createOrReplaceTempView(quoted(name))
        self._checked.keep()
        with asking_spark(_LABEL, sql=self._sql):
            return self._frame(read), self._pins.used(
                pin.name for name in used for pin in relations[name].pins
            )

    def _asked(self, relation: Relation | Changes, condition: Condition) -> Relation | Changes:
        """A table of which only slices that may have a row that is asked for are read."""
        if isinstance(relation, Changes) or not self._checked.remembers:
            return relation
        relation = replace(relation, condition=condition)
        know_footers(self._session, relation, self._checked)
        if relation.projection is None:
            read, there = relation.slices(self._checked), self._checked.slices(relation.pin.state)
            self.slices += SlicesRead(len(read), len(there))
        return relation

    def _relations(self, found: NamesInPlan) -> dict[str, Relation | Changes]:
        """What the names in the text mean, but for those that a WITH may mean."""
        relations: dict[str, Relation | Changes] = {}
        for name in found.tables:
            try:
                relations[name] = Relation(self._pins.pin(name))
            except OdfchainError as error:
                self._missing[name] = error
        return relations

    def _alias(self, call: Any, table: Any) -> Any:
        alias = getattr(self._jvm.org.apache.spark.sql.catalyst.plans.logical, "SubqueryAlias$")
        return getattr(alias, "MODULE$").apply(call.name().last(), table)

    def _bound(self, plan: Any, found: NamesInPlan, params: Mapping[str, Any]) -> Any:
        """The plan with values for its parameters."""
        for name, node in found.parameters.items():
            if name not in params:
                raise self._checker.refuse(node, "has no value", f"--param {name}=VALUE, or params={{…}}")
        if not found.parameters:
            return plan
        values = [params[name] for name in found.parameters]
        plain = [value.as_py() if hasattr(value, "as_py") else value for value in values]
        to_seq = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq
        literal = getattr(getattr(self._jvm.org.apache.spark.sql.catalyst.expressions, "Literal$"), "MODULE$")
        return self._jvm.org.apache.spark.sql.catalyst.analysis.NameParameterizedQuery(
            plan, to_seq(list(found.parameters)), to_seq([literal.apply(value) for value in plain])
        )

    def _used(
        self, plan: Any, relations: Mapping[str, Relation | Changes]
    ) -> tuple[list[str], dict[str, Condition]]:
        """(the tables that are read, what is asked of them), as Spark resolves the query over empty ones."""
        for name, relation in relations.items():
            schema = self._jvm.org.apache.spark.sql.types.DataType.fromJson(asked_struct(relation).json())
            empty = self._java.createDataFrame(self._jvm.java.util.ArrayList(), schema)
            empty.createOrReplaceTempView(quoted(name))
        try:
            analyzed = self._frame(plan)._jdf.queryExecution().analyzed()  # noqa: SLF001
        except Exception as error:
            if (no_dataset := self._no_dataset(error)) is not None:
                raise no_dataset from None
            raise
        from odfchain.query.catalyst_filters import condition_over
        from odfchain.slices.skipping import AnyOf

        used: dict[str, list[Condition]] = {}
        regions = [analyzed]
        while regions:
            region = regions.pop()
            plans = self._walker.plans(region)
            for i in plans.of("View"):
                name = plans[i].desc().identifier().table()
                if name in relations:
                    used.setdefault(name, []).append(condition_over(plans, i, relations[name].schema))
            self._check_leaves(plans)
            self._small = self._small and not plans.of("Generate", "Range")
            regions += subqueries(self._walker.expressions(region))
        return sorted(used), {name: AnyOf(tuple(asked)) for name, asked in used.items()}

    def _check_leaves(self, plans: PlanNodes) -> None:
        for i, children in enumerate(self._walker.children(plans)):
            if not children and plans.classes[i].rpartition(".")[2] not in _LEAVES:
                raise self._checker.refuse(None, "reads what is no dataset", "a table is a dataset's name")

    def _frame(self, plan: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        dataset = self._jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(self._java, plan), self._session)

    def _no_dataset(self, error: Exception) -> OdfchainError | None:
        """Why a name that Spark does not find is no dataset."""
        condition = getattr(error, "getCondition", lambda: None)()
        if condition != "TABLE_OR_VIEW_NOT_FOUND":
            return None
        asked = error.getMessageParameters().get("relationName", "")  # type: ignore[attr-defined]
        name = asked.removeprefix("`").removesuffix("`").replace("``", "`")
        reason = self._missing.get(name)
        if not isinstance(reason, QueryError):
            return reason
        place = [getattr(c, "startIndex", lambda: -1)() for c in getattr(error, "getQueryContext", list)()]
        line = column = None
        if place and place[0] >= 0:
            before = self._sql[: place[0]]
            line, column = before.count("\n") + 1, place[0] - before.rfind("\n")
        return QueryError(
            located(_LABEL, line, column, reason.message),
            hint=reason.hint,
            excerpt=excerpt(self._sql, line, column),
        )


class _Clock:
    """How long a query may take; it runs only while the query does."""

    def __init__(self, session: SparkSession, seconds: float | None) -> None:
        self._session, self._seconds, self._used = session, seconds, 0.0

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises; its jobs are cancelled when the time is used up.

        Raises:
            EngineError: it is.
        """
        from odfchain.spark.job import run_job

        start = time.monotonic()
        left = None if self._seconds is None else max(0.0, self._seconds - self._used)
        out = False
        try:
            return run_job(self._session, work, deadline=left)
        except EngineError:
            out = left is not None and time.monotonic() - start >= left
            if not out:
                raise
        finally:
            self._used += time.monotonic() - start
        raise EngineError(
            f"the query took longer than {self._seconds:g} s", hint="give it more time with --timeout"
        )


def _computed(frame: DataFrame) -> Any:
    """The rows as an Arrow table.

    Raises:
        QueryError: a value cannot be computed.
        EngineError: whatever else Spark reports.
    """
    from odfchain.spark.failure import explain

    try:
        return frame.toArrow()
    except Exception as error:
        raise failed_query(error, _LABEL) or explain(error) from error
