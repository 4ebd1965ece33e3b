"""Runs a transform's SQL steps over Spark Connect, as strictly judged as in a session of our own.

A Connect server takes texts and hands out no plans. So a JVM on this machine, of the version of
the server, reads and resolves every step over empty tables, and the gate judges it (`odfchain.sql.gate`).
Then the server is asked how it resolves the same texts over the same empty tables, and only where its plan is
the one that was judged, with the guard for times in it, are the tables given rows. Source: RFC-016.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from odfchain.errors import EngineError, QueryError
from odfchain.model.sources import TransformSql
from odfchain.spark.columns import quoted
from odfchain.spark.executor_files import files_of, give_files
from odfchain.spark.plan_session import give_judge, judge_of
from odfchain.spark.plan_walk import jvm_of, walker_of
from odfchain.sql.gate import Gate
from odfchain.sql.guard import DateGuard
from odfchain.sql.messages import asking_spark
from odfchain.sql.query import (
    PRIVATE_SETTINGS,
    CheckedStep,
    declare_empty,
    in_time,
    judged_steps,
    private_session,
)
from odfchain.sql.refusals import QueryStep
from odfchain.sql.size import TableSize, table_size
from odfchain.text import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SHOWN_WHOLE = {
    "spark.sql.debug.maxToStringFields": str((1 << 31) - 1),
    "spark.sql.maxPlanStringLength": str((1 << 31) - 16),
}
"""Plans are compared as texts, and Spark leaves the tail of long lists out of them."""

_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==", re.DOTALL)
_NUMBER = re.compile(r"#\d+L?|CTERelation(?:Def|Ref) \d+")
"""What Spark counts as it goes."""


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


def run_queries_over_connect(
    session: SparkSession,
    transform: TransformSql,
    inputs: Mapping[str, DataFrame],
    *,
    note: Callable[[str], None],
) -> DataFrame:
    """As `run_queries`, in a session of `session_for_queries`.

    Raises:
        EngineError: the JVM that judges does not start, or is of another version than the server.
    """
    judge = judge_of(session)
    _check_version(session, judge)
    with _asking_server("the schema of the input"):
        structs = {name: frame.schema for name, frame in inputs.items()}
    steps = judged_steps(judge, transform, structs, note=note)
    texts = in_time(lambda: guarded_steps(judge, steps, structs))
    for name, struct in structs.items():
        session.createDataFrame([], struct).createOrReplaceTempView(quoted(name))
    for checked, (text, expected) in zip(steps, texts, strict=True):
        label = checked.step.label
        with asking_spark(label):
            frame: Any = session.sql(text)
            seen = _plan_in(frame._explain_string(extended=True))  # noqa: SLF001 - the public method prints it
            if seen != expected:
                raise EngineError(
                    f"{label}: the server of Spark Connect resolves it otherwise than Spark does by itself",
                    hint="compare its settings and extensions (spark.sql.*) with those of Spark as it comes",
                )
            if checked.step.alias is not None:
                empty = session.createDataFrame([], frame.schema)
                empty.createOrReplaceTempView(quoted(checked.step.alias))
    for name, given in inputs.items():
        given.createOrReplaceTempView(quoted(name))
    for checked, (text, _) in zip(steps, texts, strict=True):
        with asking_spark(checked.step.label):
            frame = session.sql(text)
            if checked.step.alias is not None:
                frame.createOrReplaceTempView(quoted(checked.step.alias))
    last: DataFrame = frame
    return last


def _check_version(session: SparkSession, judge: SparkSession) -> None:
    with _asking_server("its version"):
        there = str(session.version)
    here = str(judge._jsparkSession.version())  # noqa: SLF001 - PySpark has no public way into the JVM
    if there != here:
        raise EngineError(
            f"the server of Spark Connect is Spark {one_line(there, 40)}, and queries are judged here by "
            f"Spark {here}",
            hint="install the PySpark of the server's version",
        )


def guarded_steps(
    judge: SparkSession, steps: list[CheckedStep], structs: Mapping[str, StructType]
) -> list[tuple[str, str]]:
    """The text to run for each step, and the resolved plan that it has to have, as a text.

    Raises:
        QueryError: the guard for times cannot be written into a step.
    """
    jvm, walker = jvm_of(judge), walker_of(judge)
    dataset = jvm.org.apache.spark.sql.classic.Dataset
    guard = DateGuard(jvm, walker, structs)
    texts = []
    sizes: dict[str, TableSize] = {}
    with private_session(judge, PRIVATE_SETTINGS | _SHOWN_WHOLE) as private, asking_spark("the query"):
        gate = Gate(judge, private)
        for name, struct in structs.items():
            declare_empty(
                judge, private, name, jvm.org.apache.spark.sql.types.DataType.fromJson(struct.json())
            )
            sizes[name] = table_size(dict.fromkeys(struct.names, 1), 1)
        for checked in steps:
            step = checked.step
            judged = checked.resolved.queryExecution().analyzed()
            expected = _shown(jvm, dataset.ofRows(private, guard.plan(judged)))
            text = guard.guarded_text(step.sql, checked.plan, judged)
            try:
                read = QueryStep(step.label, text, step.alias, translated=step.translated)
                plan, size = gate.read(read, sizes)
                fits = _shown(jvm, dataset.ofRows(private, plan)) == expected
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
                declare_empty(judge, private, step.alias, checked.resolved.schema())
                sizes[step.alias] = size
            texts.append((text, expected))
    return texts


def _shown(jvm: Any, frame: Any) -> str:
    return _plan_in(str(jvm.PythonSQLUtils.explainString(frame.queryExecution(), "extended")))


def _plan_in(explained: str) -> str:
    """The resolved plan in what EXPLAIN EXTENDED says, with numbers that begin anew."""
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
        raise EngineError(
            f"the server of Spark Connect does not give {what}: {one_line(str(error), 200)}"
        ) from error
