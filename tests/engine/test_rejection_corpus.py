"""What an untrusted query may not do is refused before anything is read: the whole corpus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odfchain.errors import QueryError
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.spark import query_rules as functions
from odfchain.spark.query import Queries
from tests.kit.query_corpus import SCHEMA, TABLES, own, queries, shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine


THOROUGH = os.environ.get("HYPOTHESIS_PROFILE", "ci") in ("soak", "deep")


@pytest.fixture(scope="module")
def session(engine: SparkEngine) -> SparkSession:
    return engine.session


@pytest.fixture(scope="module")
def frame(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Rows in a file, as inputs are: a table of one has columns that are not shown (`_metadata`)."""
    path = str(tmp_path_factory.mktemp("corpus") / "in.parquet")
    session.createDataFrame([], SCHEMA).write.parquet(path)
    return session.read.parquet(path)


def refusal(session: SparkSession, frame: DataFrame, sql: str) -> str | None:
    """What is wrong with the way in which a query is refused; None when all is well."""
    transform = TransformSql(engine="spark", query=sql)
    try:
        Queries(session, transform).run(dict.fromkeys(TABLES, frame))
    except QueryError as error:
        said = str(error)
        clear = "\n" not in said and "\tat " not in said and "Exception" not in said and len(said) < 500
        return None if clear else f"unclear: {said}"
    return "passed the gate"


@pytest.mark.hypothesis  # no property, but `make soak` tries all of it
def test_the_corpus_is_refused_line_by_line(session: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    queries = shared() + [sql for _, sql in own(canary)]
    assert len(queries) >= 2 * len(shared()) >= 60
    assert len(set(queries)) == len(queries)
    # all that is shared, and every second of our own
    queries = queries if THOROUGH else shared() + [sql for _, sql in own(canary)][::2]
    wrong = {sql: what for sql in queries if (what := refusal(session, frame, sql))}
    assert wrong == {}
    assert list(tmp_path.iterdir()) == []


def recomputed(session: SparkSession, frame: DataFrame, sql: str) -> str | None:
    """As `refusal`, for the query of a derivative, which others compute again."""
    transform = TransformSql(engine="spark", query=sql)
    try:
        Queries(session, transform).resolved(dict.fromkeys(TABLES, frame.schema), views={})
    except QueryError as error:
        said = str(error)
        clear = "\n" not in said and "Exception" not in said and len(said) < 500 and error.hint
        return None if clear else f"unclear: {said}"
    return "passed the gate"


def test_what_nobody_can_repeat_is_refused_in_derivatives(session: SparkSession, frame: DataFrame) -> None:
    given = [sql for _, sql in queries("not_repeatable")]
    assert len(given) == len(set(given)) >= 60
    wrong = {sql: what for sql in given if (what := recomputed(session, frame, sql))}
    assert wrong == {}


@pytest.mark.soak
def test_what_nobody_can_repeat_is_refused_only_there(session: SparkSession, frame: DataFrame) -> None:
    given = [sql for _, sql in queries("not_repeatable")]
    once = {sql: what for sql in given if (what := refusal(session, frame, sql)) != "passed the gate"}
    assert once == {}


@pytest.mark.soak
def test_refusals_are_not_too_wide(session: SparkSession, frame: DataFrame) -> None:
    given = [sql for _, sql in queries("allowed")]
    assert len(given) == len(set(given)) >= 30
    passed = "passed the gate"
    refused = {sql: what for sql in given if (what := recomputed(session, frame, sql)) != passed}
    assert refused == {}
    # the way of a query that nobody computes again is that of the refused ones above
    every = 1 if THOROUGH else 3
    refused = {sql: what for sql in given[::every] if (what := refusal(session, frame, sql)) != passed}
    assert refused == {}


def test_what_is_refused_for_its_size_is_refused_at_once(session: SparkSession, frame: DataFrame) -> None:
    """Also where the tables are not known: nothing is built to find out how large it would be."""
    large = [sql for category, sql in own(Path("x")) if category == "size"]
    by_tables = ("struct(", "*, *", "CROSS JOIN", "GROUPING SETS (ROLLUP")
    passed = []
    for sql in large:
        try:
            Queries(session, TransformSql(engine="spark", query=sql)).check(TABLES)
        except QueryError:
            continue
        passed.append(sql)
    assert [sql for sql in passed if not any(part in sql for part in by_tables)] == []


def test_steps_that_double_are_counted_together(session: SparkSession, frame: DataFrame) -> None:
    steps = [SqlQueryStep(alias="s0", query="SELECT a FROM input")]
    for n in range(1, 14):
        query = f"SELECT * FROM s{n - 1} UNION ALL SELECT * FROM s{n - 1}"
        steps.append(SqlQueryStep(alias=f"s{n}", query=query))
    transform = TransformSql(engine="spark", queries=(*steps, SqlQueryStep(query="SELECT a FROM s13")))
    with pytest.raises(QueryError, match=r"query step \d+ .*grows to .* nodes as a plan"):
        Queries(session, transform).run(dict.fromkeys(TABLES, frame))


@pytest.mark.soak
def test_most_of_it_is_refused_when_the_transform_is_declared(session: SparkSession, tmp_path: Path) -> None:
    """Without data only what the names of columns and types decide is left for the first run."""
    categories = {"files", "programs", "state", "scripts"}
    passed = []
    for category, sql in own(tmp_path / "canary"):
        try:
            Queries(session, TransformSql(engine="spark", query=sql)).check(TABLES)
        except QueryError:
            continue
        passed.append((category, sql))
    columns = ("_metadata", "session.x", "current_database", "CURRENT_CATALOG", "session_user")
    assert [s for c, s in passed if c in categories and not any(name in s for name in columns)] == []


def test_every_function_of_spark_that_is_on_no_list_is_refused_by_name(session: SparkSession) -> None:
    """The registry of this version of Spark is walked: what a later one adds is refused as well."""
    analysis = session._jvm.org.apache.spark.sql.catalyst.analysis
    wrong, seen = [], 0
    for registry, template in (
        ("FunctionRegistry$", "SELECT `{}`()"),
        ("TableFunctionRegistry$", "SELECT * FROM `{}`()"),
    ):
        listed = getattr(getattr(analysis, registry), "MODULE$").builtin().listFunction()
        names = {listed.apply(i).funcName() for i in range(listed.size())}
        for name in sorted(names - functions.ALL_NAMES):
            seen += 1
            try:
                Queries(session, TransformSql(engine="spark", query=template.format(name))).check(TABLES)
            except QueryError as error:
                if f"`{name}" not in str(error) or (
                    "is not on the list" not in str(error) and name not in functions.UNLISTED
                ):
                    wrong.append((name, str(error)))
            else:
                wrong.append((name, "passed"))
    assert wrong == []
    assert seen > 100


ORDINARY = """
SELECT a FROM input ORDER BY a LIMIT 1 OFFSET 2
WITH z AS (SELECT a FROM input ORDER BY a LIMIT 3) SELECT * FROM z ORDER BY a OFFSET 1
SELECT sum(b) OVER (PARTITION BY a), sum(b) OVER (), sum(b) OVER (ORDER BY a) FROM input
SELECT sum(b) OVER (PARTITION BY a ORDER BY b ROWS 1 PRECEDING), rank() OVER (ORDER BY a, 1) FROM input
SELECT row_number() OVER (ORDER BY count(*)) FROM input GROUP BY a
SELECT format_string('%s %d %s %s %s %s %s', a, b, d, dec, t, dt, NULL) FROM input
SELECT CAST(a AS string), cast(a AS varchar(3)), cast(b AS char(3)) FROM input
SELECT count(*) FROM range(0, 1000, 3)
SELECT sort_array(collect_list(b), false), array_sort(collect_set(b)) FROM input
"""


@pytest.mark.parametrize("sql", ORDINARY.strip().splitlines())
def test_what_looks_alike_and_is_harmless_passes(session: SparkSession, frame: DataFrame, sql: str) -> None:
    assert refusal(session, frame, sql) == "passed the gate"
