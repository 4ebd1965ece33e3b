"""Runs a transform's SQL steps over given tables, and nothing else.

The steps run in a Spark session made for them: its only tables are the inputs and the results of earlier
steps, so nothing is registered where others could see it, runs at the same time may use the same names, and
settings or functions of the caller's session are out of reach. Every step has passed the gate
(`query_gate`) before the first one is given data.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from odfchain.errors import EngineError, QueryError
from odfchain.limits import QUERY
from odfchain.odf.sources import TransformSql
from odfchain.odf.transform_options import DATAFUSION, FORMER_NAME, OWN_ENGINE
from odfchain.progress import on_a_thread
from odfchain.spark.executor_files import files_of, give_files
from odfchain.spark.plans import declare_empty, is_remote, java_of, java_schema, jvm_of, of_plan, walker_of
from odfchain.spark.query_gate import DateGuard, Gate, TableSize
from odfchain.spark.query_refusals import ONE_SELECT, QueryStep, translate_spark_errors
from odfchain.spark.session import SQL_SETTINGS, give_judge, judge_of
from odfchain.spark.types import quoted
from odfchain.text import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlglot import exp


Schemas: TypeAlias = dict[str, dict[str, str]]
"""Columns and their types in Spark SQL, by table."""
T = TypeVar("T")

MAX_STEPS = QUERY.steps
"""Steps of one transform [count]."""

# Tokens that open and close a level: `<` does so in the name of a type only.
_BRACKETS = re.compile(r"(?i:\b(?:array|map|struct)(?:\s|/\*.*?\*/|--[^\n]*\n)*<)|[(\[\])>]", re.DOTALL)

PRIVATE_SETTINGS = SQL_SETTINGS | {
    "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
    # VALUES is computed after the gate has seen it, not by the parser
    "spark.sql.parser.eagerEvalOfUnresolvedInlineTable": "false",
    # the gate is there for `csv.`/etc/passwd``; this refuses it again behind it
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step that has passed the gate."""

    step: QueryStep
    plan: Any
    """As it was read."""
    resolved: Any
    """Over empty tables."""


@dataclass(frozen=True, slots=True)
class Queries:
    """The SQL steps of a transform; all pass the gate in a session before the first one is given data."""

    session: SparkSession
    transform: TransformSql
    note: Callable[[str], None] = lambda _: None
    """Called when the SQL of another engine was translated."""

    def run(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """The lazy result of the last step, once every step has passed the gate (see `failed_query`)."""
        session, steps, jvm = self.session, self._begun(inputs), jvm_of(self.session)
        schemas = {name: frame._jdf.schema() for name, frame in inputs.items()}  # noqa: SLF001
        plans = in_time(lambda: self._checked(steps, schemas))
        with private_session(session) as private, translate_spark_errors("the query"):
            for name, frame in inputs.items():
                plan = frame._jdf.logicalPlan()  # noqa: SLF001
                of_plan(private, jvm, plan).createOrReplaceTempView(quoted(name))
            plan = DateGuard(walker_of(session), inputs).plan(_last(private, jvm, plans))
            from pyspark.sql import DataFrame as Frame

            return Frame(of_plan(java_of(session), jvm, plan), session)

    def resolved(self, inputs: Mapping[str, StructType], *, views: Mapping[str, str]) -> Any:
        """The analyzed plan (of the JVM) of the last step over empty tables of schemas, steps as views.

        `views` are tables that are made of an input by SQL of odfchain's own, by the name of the input;
        queries see them instead of it.
        """
        session, steps, jvm = self.session, self._begun(inputs), jvm_of(self.session)
        with private_session(session) as private, translate_spark_errors("the query"):
            seen = {}
            for name, struct in inputs.items():
                seen[name] = schema = java_schema(session, struct)
                declare_empty(private, jvm, name, schema)
                if name in views:
                    made = private.sql(views[name])
                    # a view of the same name would be read as its own source
                    view = of_plan(private, jvm, made.queryExecution().analyzed())
                    view.createOrReplaceTempView(quoted(name))
                    seen[name] = made.schema()
            plans = in_time(lambda: self._checked(steps, seen, replayed=True))
            return _last(private, jvm, plans)

    def judged(self, inputs: Mapping[str, StructType]) -> list[CheckedStep]:
        """The steps over tables of these schemas, all through the gate of `run`."""
        steps = self._begun(inputs)
        with translate_spark_errors("the query"):
            schemas = {name: java_schema(self.session, struct) for name, struct in inputs.items()}
        return in_time(lambda: self._checked(steps, schemas))

    def check(self, tables: Collection[str]) -> None:
        """Every step is a query over `tables` and earlier steps and calls only what is allowed.

        For the time a source is added: columns and types are not known yet and are checked by the first run.
        """
        session, steps = self.session, self._steps(tables)
        _is_translated(self.transform.engine)

        def check() -> None:
            with private_session(session) as private:
                gate = Gate(session, private)
                gate.tables |= dict.fromkeys(tables, TableSize())
                for step in steps:
                    gate.read(self._translated(step, None))

        in_time(check)

    def run_over_connect(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """The result of the last step, as `run` gives it, in a session of Spark Connect."""
        session = self.session
        judge = judge_of(session)
        _check_version(session, judge)
        with _asking_server("the schema of the input"):
            structs = {name: frame.schema for name, frame in inputs.items()}
        steps = replace(self, session=judge).judged(structs)
        texts = in_time(lambda: guarded_steps(judge, steps, structs))
        for name, struct in structs.items():
            session.createDataFrame([], struct).createOrReplaceTempView(quoted(name))
        for checked, (text, expected) in zip(steps, texts, strict=True):
            label = checked.step.label
            with translate_spark_errors(label):
                frame: Any = session.sql(text)
                seen = _plan_in(frame._explain_string(extended=True))  # noqa: SLF001 - the public method prints it
                if seen != expected:
                    raise EngineError(
                        f"{label}: the server of Spark Connect resolves it otherwise than Spark does by "
                        "itself",
                        hint="compare its settings and extensions (spark.sql.*) with those of Spark as it "
                        "comes",
                    )
                if checked.step.alias is not None:
                    empty = session.createDataFrame([], frame.schema)
                    empty.createOrReplaceTempView(quoted(checked.step.alias))
        for name, given in inputs.items():
            given.createOrReplaceTempView(quoted(name))
        for checked, (text, _) in zip(steps, texts, strict=True):
            with translate_spark_errors(checked.step.label):
                frame = session.sql(text)
                if checked.step.alias is not None:
                    frame.createOrReplaceTempView(quoted(checked.step.alias))
        last: DataFrame = frame
        return last

    def _begun(self, tables: Collection[str]) -> list[QueryStep]:
        steps = self._steps(tables)
        engine, version = self.transform.engine, self.transform.version
        if _is_translated(engine):
            note = f"the {engine}{f' {version}' if version else ''} query is translated and runs on Spark SQL"
            self.note(note)
        return steps

    def _translated(self, step: QueryStep, schemas: Schemas | None) -> QueryStep:
        engine = self.transform.engine
        if not _is_translated(engine):
            return step
        return replace(step, sql=_to_spark(engine, step.sql, schemas, step.label), translated=True)

    def _checked(
        self, steps: list[QueryStep], schemas: Mapping[str, Any], *, replayed: bool = False
    ) -> list[CheckedStep]:
        # nothing is computed: the tables are empty and have the schemas alone
        with private_session(self.session) as private:
            gate = Gate(self.session, private, replayed=replayed)
            known: Schemas = {}
            plans = []

            def declare(name: str, schema: Any, nodes: int = 1) -> None:
                known[name] = columns = {f.name(): f.dataType().sql() for f in schema.fields()}
                # a struct is written with a colon for each of its fields
                sizes = {n: max(1, kind.count(":")) for n, kind in columns.items()}
                gate.declare(name, schema, TableSize.of(sizes, nodes))

            with translate_spark_errors("the query"):
                for name, schema in schemas.items():
                    declare(name, schema)
            for written in steps:
                step = self._translated(written, known)
                plan = gate.read(step)
                result = gate.resolve(step, plan)
                if step.alias is not None:
                    with translate_spark_errors(step.label):
                        declare(step.alias, result.schema(), gate.tables[step.alias].nodes)
                plans.append(CheckedStep(step, plan, result))
            return plans

    def _steps(self, tables: Collection[str]) -> list[QueryStep]:
        transform = self.transform
        if transform.temporal_tables:
            raise QueryError("temporalTables need Flink itself", hint="join on the time range instead")
        if transform.query is not None and transform.queries is not None:
            raise QueryError("the transform has both `query` and `queries`", hint="give one of them")
        steps = QueryStep.all_of(transform)
        if not steps:
            raise QueryError("the transform has no query", hint="give `query` or `queries`")
        if len(steps) > MAX_STEPS:
            raise QueryError(f"the transform has {len(steps):,} steps, more than {MAX_STEPS}")
        taken = set(tables)
        for number, step in enumerate(steps, start=1):
            last = number == len(steps)
            if last and step.alias is not None:
                raise QueryError(f"{step.label}: the last step is the result and has no alias")
            if not last and not step.alias:
                raise QueryError(f"{step.label}: has no alias", hint="only the last step goes without one")
            if step.alias in taken:
                hint = "choose another alias"
                raise QueryError(f"{step.label}: there is already a table of this name", hint=hint)
            if step.alias is not None:
                taken.add(step.alias)
            _bounded(step.label, step.sql)
        if is_remote(self.session):
            raise QueryError("this query is given to a session of Spark Connect, which shows no plans")
        return steps


def _last(private: Any, jvm: Any, plans: list[CheckedStep]) -> Any:
    # the analyzed plan; the results of the steps before the last one are tables
    result: Any = None
    for checked in plans:
        result = of_plan(private, jvm, checked.plan)
        if checked.step.alias is not None:
            result.createOrReplaceTempView(quoted(checked.step.alias))
    return result.queryExecution().analyzed()


def in_time(work: Callable[[], T]) -> T:
    """Run `work`, with a time limit."""
    result = on_a_thread(work, "odfchain-query")
    wait((result,), timeout=QUERY.reading_seconds)
    # nothing can end what Spark does with a query before it runs: the thread ends with the process
    if not result.done():
        hint = "split it into steps, with fewer names in each"
        raise QueryError(f"the query is not read and resolved after {QUERY.reading_seconds:g} s", hint=hint)
    return result.result()


def _bounded(label: str, sql: str) -> None:
    if len(sql.encode("utf-8", "surrogatepass")) > QUERY.text_bytes:
        raise QueryError(f"{label}: is longer than {QUERY.text_bytes >> 10} KiB", hint="split it into steps")
    if any("\ud800" <= c <= "\udfff" for c in sql):
        raise QueryError(f"{label}: is not valid Unicode")
    brackets = types = 0
    for found in _BRACKETS.findall(sql):
        if found[-1] in "<>":  # counted on its own: `>` is also greater than
            types = max(0, types + (1 if found[-1] == "<" else -1))
        else:
            brackets = max(0, brackets + (1 if found in "([" else -1))
        if max(brackets, types) > QUERY.brackets:
            raise QueryError(f"{label}: has more than {QUERY.brackets} brackets within brackets")


@contextlib.contextmanager
def private_session(session: SparkSession, settings: Mapping[str, str] = PRIVATE_SETTINGS) -> Iterator[Any]:
    """A session of the JVM for one purpose: active while in use, because the parser asks the active one."""
    with translate_spark_errors("the query"):
        sessions = jvm_of(session).org.apache.spark.sql.classic.SparkSession
        private = java_of(session).newSession()
        for key, value in settings.items():
            private.conf().set(key, value)
        before = sessions.getActiveSession()
        sessions.setActiveSession(private)
    try:
        yield private
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


# Queries written for other engines, as Spark SQL: what is portable is translated, the rest is refused.
#
# RisingWave speaks a dialect close to PostgreSQL; unquoted names keep their case here, as they do in the
# reference implementation. Flink's SQL reads like Spark's. What comes out passes the same gate as a query
# written for Spark, so a wrong translation can be wrong, but not dangerous. Integers are divided without
# remainder in both, unlike in Spark: where the types of both sides are known the right division is written,
# where they are not the query is refused.

_TRANSLATED = ("flink", "risingwave")


def _is_translated(engine: str) -> bool:
    if engine not in (OWN_ENGINE, FORMER_NAME, *_TRANSLATED):
        hint = f"engines are {', '.join((OWN_ENGINE, DATAFUSION, *_TRANSLATED))}"
        raise QueryError(f"unknown query engine `{one_line(engine, 40)}`", hint=hint)
    return engine in _TRANSLATED


def _to_spark(engine: str, sql: str, schemas: Schemas | None, label: str) -> str:
    """The query in Spark SQL; without schemas, divisions are left for the first run to decide."""
    import sqlglot
    from sqlglot import errors, exp
    from sqlglot.dialects.spark import Spark

    try:
        is_flink = engine == "flink"
        tree = _one_query(sqlglot.parse(sql, read=_flink() if is_flink else "postgres"), label)
        for call in () if is_flink else tuple(tree.find_all(exp.UnixToTime)):
            # `to_timestamp` of a text, or of seconds since 1970 with their fraction: a cast reads both
            call.replace(exp.cast(call.this, "timestamptz"))
        if schemas is not None:
            _divide(tree, schemas, engine, label)
        return str(tree.sql(dialect=Spark, unsupported_level=errors.ErrorLevel.RAISE, comments=False))
    except errors.ParseError as error:
        raise _syntax(error, engine, label, sql) from error
    except errors.UnsupportedError as error:
        hint = f"write the query with engine: {OWN_ENGINE}"
        raise QueryError(f"{label}: has no equal in Spark SQL: {one_line(str(error))}", hint=hint) from error
    except QueryError:
        raise
    except RecursionError as error:
        raise QueryError(f"{label}: is nested too deeply", hint="split it into steps") from error
    except Exception as error:  # a translator of any text: every failure is the query's
        message = f"{label}: cannot be read as {engine} SQL: {one_line(str(error))}"
        raise QueryError(message, hint=f"write it with engine: {OWN_ENGINE}") from error


def _one_query(trees: list[Any], label: str) -> Any:
    from sqlglot import exp

    queries = [tree for tree in trees if tree is not None]
    if len(queries) != 1 or not isinstance(queries[0], exp.Query):
        raise QueryError(f"{label}: is not one query", hint=ONE_SELECT)
    for command in queries[0].find_all(exp.Command, exp.Parameter, exp.Placeholder):
        raise QueryError(f"{label}: `{one_line(command.sql(), 60)}` is not part of a query")
    return queries[0]


def _syntax(error: Any, engine: str, label: str, query: str) -> QueryError:
    details = error.errors[0] if error.errors else {}
    line, column = details.get("line"), details.get("col")
    fragment = one_line(str(details.get("highlight") or ""), 40)
    at = f" near `{fragment}`" if fragment else ""
    said = details.get("description") or one_line(str(error).partition("\n")[0])
    place = (line, max(1, column - len(fragment) + 1)) if line is not None and column is not None else None
    return QueryError.at(label, query, place, f"not valid {engine} SQL{at}: {said}")


@lru_cache
def _flink() -> Any:
    from sqlglot.dialects.spark import Spark

    class FlinkSql(Spark):
        # double quotes do not make a text
        class Tokenizer(Spark.Tokenizer):
            QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]

    return FlinkSql


def _divide(tree: exp.Query, schemas: Schemas, engine: str, label: str) -> None:
    from sqlglot import exp

    divisions = list(tree.find_all(exp.Div))
    if not divisions:
        return
    for number, division in enumerate(divisions):
        # types are found on a copy, because finding them rewrites names: divisions are known by number
        division.meta["number"] = number
    typed = _typed(tree, schemas)
    for number, division in enumerate(divisions):
        left, right = typed.get(number, (None, None))
        if left is True and right is True:
            division.replace(exp.IntDiv(this=division.this.copy(), expression=division.expression.copy()))
        elif left is False or right is False:
            division.set("typed", False)
            division.set("safe", False)
        else:
            raise QueryError(
                f"{label}: `{one_line(division.sql(), 60)}` may divide integers, which {engine} and Spark do "
                "differently",
                hint="cast one side, as in `cast(a as double) / b`, or write it with engine: odfchain-spark",
            )


def _typed(tree: exp.Query, schemas: Schemas) -> dict[int, tuple[bool | None, bool | None]]:
    """By number of a division: whether each side is an integer, None where that is not known."""
    from sqlglot import exp
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.schema import MappingSchema

    def integer(side: Any) -> bool | None:
        if side.type is None or side.is_type(exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL):
            return None
        return bool(side.is_type(*exp.DataType.INTEGER_TYPES))

    dialect = "spark, normalization_strategy=case_sensitive"
    try:
        schema = MappingSchema({name: dict(columns) for name, columns in schemas.items()}, dialect=dialect)
        found = qualify(
            tree.copy(), schema=schema, dialect=dialect, expand_alias_refs=False, expand_stars=False,
            isolate_tables=False, quote_identifiers=False, validate_qualify_columns=False,
        )  # fmt: skip
        found = annotate_types(found, schema=schema, dialect=dialect)
    except Exception:  # noqa: BLE001 - a translator of any text: then the types are not known
        return {}
    divisions = found.find_all(exp.Div)
    return {d.meta["number"]: (integer(d.left), integer(d.right)) for d in divisions if "number" in d.meta}


# A transform's SQL steps over Spark Connect, checked as strictly as in a session of our own.
#
# A Connect server takes texts and hands out no plans. So a JVM on this machine, of the version of the
# server, reads and resolves every step over empty tables, and the gate judges it
# (`odfchain.spark.query_gate`). Then the server is asked how it resolves the same texts over the same empty
# tables, and only where its plan is the one that was judged, with the guard for times in it, are the tables
# given rows. Source: RFC-016.

# Plans are compared as texts, and Spark leaves the tail of long lists out of them.
_SHOWN_WHOLE = {
    "spark.sql.debug.maxToStringFields": str((1 << 31) - 1),
    "spark.sql.maxPlanStringLength": str((1 << 31) - 16),
}

_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==", re.DOTALL)
# Numbers that Spark counts up.
_NUMBER = re.compile(r"#\d+L?|CTERelation(?:Def|Ref) \d+")


@contextlib.contextmanager
def session_for_queries(session: SparkSession) -> Iterator[SparkSession]:
    """A session like this one of Spark Connect, for the queries of one input, with tables of its own."""
    with _asking_server("a session"):
        remote: Any = session  # the type is that of other sessions
        made: SparkSession = remote.cloneSession()
    try:
        with _asking_server("a session"):
            for key, value in (PRIVATE_SETTINGS | _SHOWN_WHOLE).items():
                made.conf.set(key, value)
        give_judge(made, lambda: judge_of(session))
        yield give_files(made, files_of(session))
    finally:
        with contextlib.suppress(Exception):  # the server forgets it after a while
            made.stop()


def _check_version(session: SparkSession, judge: SparkSession) -> None:
    with _asking_server("its version"):
        there = str(session.version)
    here = str(java_of(judge).version())
    if there != here:
        raise EngineError(
            f"the server of Spark Connect is Spark {one_line(there, 40)}, and queries are judged here by "
            f"Spark {here}",
            hint="install the PySpark of the server's version",
        )


def guarded_steps(
    judge: SparkSession, steps: list[CheckedStep], structs: Mapping[str, StructType]
) -> list[tuple[str, str]]:
    """The text to run for each step, and the resolved plan that it has to have, as a text."""
    jvm = jvm_of(judge)
    guard = DateGuard(walker_of(judge), structs)
    texts = []
    with (
        private_session(judge, PRIVATE_SETTINGS | _SHOWN_WHOLE) as private,
        translate_spark_errors("the query"),
    ):
        gate = Gate(judge, private)
        for name, struct in structs.items():
            size = TableSize.of(dict.fromkeys(struct.names, 1))
            gate.declare(name, java_schema(judge, struct), size)
        for checked in steps:
            step = checked.step
            judged = checked.resolved.queryExecution().analyzed()
            expected = _shown(jvm, of_plan(private, jvm, guard.plan(judged)))
            text = guard.guarded_text(step.sql, checked.plan, judged)
            try:
                plan = gate.read(replace(step, sql=text))
                fits = _shown(jvm, of_plan(private, jvm, plan)) == expected
            except Exception:
                if text == step.sql:
                    raise
                fits = False
            if not fits:
                raise QueryError(
                    f"{step.label}: over Spark Connect a text becomes a time only by a cast that is written, "
                    "in a column with a name",
                    hint="write CAST(column AS TIMESTAMP) AS name",
                )
            if step.alias is not None:
                gate.declare(step.alias, checked.resolved.schema(), gate.tables[step.alias])
            texts.append((text, expected))
    return texts


def _shown(jvm: Any, frame: Any) -> str:
    return _plan_in(str(jvm.PythonSQLUtils.explainString(frame.queryExecution(), "extended")))


def _plan_in(explained: str) -> str:
    # numbers of expressions begin anew, so that equal plans have equal texts
    found = _ANALYZED.search(explained)
    if found is None:
        raise EngineError("Spark does not show the plan of a query")
    numbers: dict[str, str] = {}
    return _NUMBER.sub(lambda m: numbers.setdefault(m.group(), f"#{len(numbers)}"), found.group(1))


@contextlib.contextmanager
def _asking_server(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        message = f"the server of Spark Connect does not give {what}: {one_line(str(error), 200)}"
        raise EngineError(message) from error
