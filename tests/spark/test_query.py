"""Running a transform's steps: what they see, what they leave behind, and how they fail; dialects of other engines."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from odfchain.errors import QueryError
from odfchain.limits import QueryLimits
from odfchain.odf.sources import SqlQueryStep, TemporalTable, TransformSql
from odfchain.spark import query
from odfchain.spark.query import MAX_STEPS, Queries, guarded_steps
from odfchain.spark.query_refusals import failed_query
from odfchain.text import excerpt
from tests.kit.support import fixture


@pytest.fixture(scope="module")
def cities(session: SparkSession) -> DataFrame:
    return session.createDataFrame([("A", 1000), ("B", 2000), ("C", 3000)], "city string, population bigint")


def steps(*queries: str | tuple[str, str]) -> TransformSql:
    """Texts are steps without an alias, pairs are (alias, text)."""
    pairs = [(None, q) if isinstance(q, str) else q for q in queries]
    return TransformSql(engine="spark", queries=tuple(SqlQueryStep(alias=a, query=q) for a, q in pairs))


def frame_of(session: SparkSession, transform: TransformSql, **inputs: DataFrame) -> DataFrame:
    return Queries(session, transform, pytest.fail).run(inputs)


def rows(session: SparkSession, transform: TransformSql, **inputs: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame_of(session, transform, **inputs).collect()]


def test_steps_see_the_input_and_earlier_steps(session: SparkSession, cities: DataFrame) -> None:
    transform = steps(
        ("step1", "SELECT city, population * 10 AS population FROM input"),
        "SELECT city, population + 1 AS population FROM step1",
    )
    assert rows(session, transform, input=cities) == [("A", 10_001), ("B", 20_001), ("C", 30_001)]


def test_a_single_query_may_stand_alone(session: SparkSession, cities: DataFrame) -> None:
    transform = TransformSql(engine="spark", query="SELECT max(population) FROM input;")
    assert rows(session, transform, input=cities) == [(3000,)]


def test_names_keep_their_case(session: SparkSession) -> None:
    """The shared case: columns that differ only in case are different columns."""
    frame = session.createDataFrame([(1, 2, 3, 4)], "lower int, `MIXed` int, `mixED` int, `UPPER` int")
    transform = steps("SELECT lower, MIXed, mixED, mixED AS mixed, UPPER FROM input")
    result = frame_of(session, transform, input=frame)
    assert result.columns == ["lower", "MIXed", "mixED", "mixed", "UPPER"]
    assert [tuple(r) for r in result.collect()] == [(1, 2, 3, 3, 4)]


@pytest.mark.parametrize("name", ["com.acme.readings-v2", "with `tick`", "sp ace", "a, b", "Größe", "select"])
def test_tables_of_any_name(session: SparkSession, cities: DataFrame, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    assert rows(session, steps(f"SELECT count(*) FROM {quoted}"), **{name: cities}) == [(3,)]


def test_nothing_stays_behind(session: SparkSession, cities: DataFrame) -> None:
    active = session._jvm.org.apache.spark.sql.SparkSession.getActiveSession().get()
    before = [table.name for table in session.catalog.listTables()]
    result = frame_of(session, steps(("one", "SELECT * FROM input"), "SELECT * FROM one"), input=cities)
    assert [table.name for table in session.catalog.listTables()] == before
    assert session._jvm.org.apache.spark.sql.SparkSession.getActiveSession().get().equals(active)
    assert result.sparkSession is session
    assert result.count() == 3


def test_runs_at_the_same_time_do_not_meet(session: SparkSession) -> None:
    transform = steps(("step", "SELECT n * 10 AS n FROM input"), "SELECT sum(n) AS s FROM step")

    def total(n: int) -> list[tuple[Any, ...]]:
        return rows(session, transform, input=session.createDataFrame([(n,), (n,)], "n bigint"))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(total, range(8))) == [[(20 * n,)] for n in range(8)]


def test_stateless_queries_keep_the_order_of_the_input(session: SparkSession) -> None:
    frame = session.range(1000, numPartitions=1).selectExpr("id AS n")
    transform = steps("SELECT n, n % 7 AS k FROM input WHERE n % 3 = 0")
    assert [n for n, _ in rows(session, transform, input=frame)] == list(range(0, 1000, 3))


def test_variables_in_the_text_stay_text(session: SparkSession) -> None:
    text = "${env:PATH}${system:user.home}${spark.app.name}"
    assert rows(session, steps(f"SELECT '{text}' AS v")) == [(text,)]


def test_sql_is_ansi_and_times_are_utc(session: SparkSession, cities: DataFrame) -> None:
    transform = steps(
        "SELECT cast('2020-01-01 00:00:00' AS timestamp) = TIMESTAMP '2020-01-01 00:00:00Z' AS same"
    )
    assert rows(session, transform) == [(True,)]
    for sql in (
        "SELECT cast(city AS int) AS v FROM input",
        "SELECT population / (population - 2000) AS v FROM input",
    ):
        lazy = frame_of(session, steps(sql), input=cities)
        with pytest.raises(Exception) as caught:
            lazy.collect()
        error = failed_query(caught.value)
        assert ("\n" in str(error), bool(error.hint)) == (False, True)
    assert failed_query(ValueError("something else")) is None


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT a.popluation FROM input a, input b", "did you mean a.population or b.population?"),
        ("SELECT zzzz FROM input", "columns here are city, population"),
        ("SELECT `pop``lation` FROM input", "did you mean population?"),
    ],
)
def test_an_unknown_column_suggests_the_nearest(
    session: SparkSession, cities: DataFrame, sql: str, hint: str
) -> None:
    with pytest.raises(QueryError, match="there is no column") as caught:
        rows(session, steps(sql), input=cities)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("sql", "line", "column", "shown"),
    [
        ("SELECT a,\n\tb", 2, 2, ("b", "^")),
        ("SELECT 'Größe', x", 1, 17, ("SELECT 'Größe', x", " " * 16 + "^")),
        ("SELECT '日本', x", 1, 14, ("SELECT '日本', x", " " * 15 + "^")),
        ("SELECT 'e\u0301', x", 1, 14, ("SELECT 'e\u0301', x", " " * 12 + "^")),
        ("SELECT", 1, 7, ("SELECT", "      ^")),
        ("SELECT\r\nx\x1b[31m", 1, 3, ("SELECT", "  ^")),
        ("x" * 300, 1, 150, ("…" + "x" * 100 + "…", " " * 51 + "^")),
        ("x" * 300, 1, 301, ("…" + "x" * 100, " " * 101 + "^")),
        ("SELECT", 2, 1, ()),
        ("SELECT", None, None, ()),
    ],
)
def test_the_place_is_shown(sql: str, line: int | None, column: int | None, shown: tuple[str, ...]) -> None:
    assert excerpt(sql, line, column) == shown


def test_an_error_names_its_step(session: SparkSession, cities: DataFrame) -> None:
    transform = steps(
        ("first", "SELECT city FROM input"), ("next", "SELECT citty FROM first"), "SELECT * FROM next"
    )
    with pytest.raises(QueryError, match=r"^query step 2 \(`next`\), line 1, column 8: .*`citty`") as caught:
        rows(session, transform, input=cities)
    assert caught.value.hint == "did you mean city?"
    assert caught.value.excerpt == ("SELECT citty FROM first", "       ^")
    with pytest.raises(QueryError, match=r"^query step 1 \(`a`\), line 1, column 15: there is no table `b`"):
        rows(session, steps(("a", "SELECT 1 FROM b"), ("b", "SELECT 1"), "SELECT 1 FROM a"), input=cities)


VERSIONS = (TemporalTable(name="t", primary_key=("a",)),)
WRONG: list[tuple[TransformSql, str]] = [
    (TransformSql(engine="spark"), "has no query"),
    (TransformSql(engine="spark", queries=()), "has no query"),
    (TransformSql(engine="spark", query="SELECT 1", queries=(SqlQueryStep(query="SELECT 1"),)), "both"),
    (steps(("a", "SELECT 1")), "last step is the result"),
    (steps("SELECT 1", "SELECT 2"), "has no alias"),
    (steps(("", "SELECT 1"), "SELECT 2"), "has no alias"),
    (steps(("a", "SELECT 1"), ("a", "SELECT 2"), "SELECT 3"), "already a table of this name"),
    (steps(("input", "SELECT 1"), "SELECT 3"), "already a table of this name"),
    (steps(*[(f"s{n}", "SELECT 1") for n in range(MAX_STEPS)], "SELECT 1"), "101 steps, more than 100"),
    (TransformSql(engine="presto", query="SELECT 1"), "unknown query engine `presto`"),
    (TransformSql(engine="flink", query="SELECT 1", temporal_tables=VERSIONS), "temporalTables need Flink"),
]


@pytest.mark.parametrize(("transform", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_transform_that_makes_no_sense(
    session: SparkSession, cities: DataFrame, transform: TransformSql, message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        frame_of(session, transform, input=cities)
    with pytest.raises(QueryError, match=message):
        Queries(session, transform).check(["input"])


def test_a_hundred_steps(session: SparkSession) -> None:
    chain = [("s0", "SELECT 0 AS n"), *[(f"s{i}", f"SELECT n + 1 AS n FROM s{i - 1}") for i in range(1, 20)]]
    assert rows(session, steps(*chain, "SELECT n FROM s19")) == [(19,)]


def test_a_session_without_a_parser_is_refused() -> None:
    """A Spark Connect session has neither the parser nor the plans that the gate looks at."""
    connect: Callable[..., Any] = pytest.importorskip("pyspark.sql.connect.session").SparkSession
    with pytest.raises(QueryError, match="Spark Connect, which shows no plans"):
        Queries(connect.__new__(connect), steps("SELECT 1"), pytest.fail).run({})  # type: ignore[attr-defined]


UNNAMED = "SELECT (SELECT max(cast(x AS timestamp)) FROM input) AS v"
"""The name of a column that is given none is its expression, with the guard as it is written."""

MALFORMED = "SELECT cast(y AS timestamp) AS v FROM VALUES ('T10:00') AS w(y)"

BARE = [
    "SELECT cast(x AS timestamp) AS v FROM input",
    "SELECT v FROM (SELECT timestamp(x) AS v FROM input) WHERE v IS NOT NULL",
    "SELECT to_timestamp(x) AS v FROM input",
    "SELECT cast(x AS timestamp) AS v, count(*) FROM input GROUP BY cast(x AS timestamp)",
    MALFORMED,
    "SELECT cast(concat(y, x) AS timestamp) AS v FROM (SELECT ' 7:05:00Z' AS y), (SELECT '' AS x FROM input)",
    "SELECT cast(e AS timestamp) AS v FROM input LATERAL VIEW explode(array(x)) q AS e",
    "SELECT transform(array(x), e -> cast(e AS timestamp))[0] AS v FROM input",
    UNNAMED,
    "SELECT timestamp'2020-01-01' AS v FROM input i WHERE EXISTS (SELECT 1 FROM input k WHERE cast(k.x AS timestamp) > '2020-01-01')",
    "WITH w AS (SELECT cast(x AS timestamp) AS v FROM input) SELECT a.v FROM w a JOIN w b ON a.v = b.v",
    "SELECT hour(x) AS v FROM input",
    "SELECT timestamp'2020-01-01' AS v UNION ALL SELECT cast(x AS timestamp) FROM input",
]


@pytest.mark.parametrize("sql", BARE)
def test_a_time_of_day_in_the_data_is_no_time(session: SparkSession, sql: str) -> None:
    """Spark alone makes it that time of today, in whatever way the text comes to the cast."""
    given = session.createDataFrame([("10:00",)], "x string")
    with pytest.raises(Exception, match="a time of day without a date") as caught:
        rows(session, steps(sql), input=given)
    assert "10:00" in str(caught.value) or "7:05" in str(caught.value)


def guarded(session: SparkSession, sql: str) -> tuple[str, str]:
    """The text that Spark Connect runs, and its plan."""
    given = {"input": session.createDataFrame([], "x string").schema}
    (found,) = guarded_steps(session, Queries(session, steps(sql), pytest.fail).judged(given), given)
    return found


@pytest.mark.parametrize("sql", ["SELECT x FROM input", *[s for s in BARE if s not in (UNNAMED, MALFORMED)]])
def test_the_guard_can_be_written_into_a_text(session: SparkSession, sql: str) -> None:
    """It becomes the plan that is judged, with the guard in it."""
    text, plan = guarded(session, sql)
    mark = "a time of day without a date"
    assert (mark in text, mark in plan) == ((sql in BARE), (sql in BARE))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (UNNAMED, "only by a cast that is written, in a column with a name"),
        ("SELECT to_timestamp(x) FROM input", "only by a cast that is written, in a column with a name"),
        (MALFORMED, "a time of day without a date"),
    ],
)
def test_a_guard_that_cannot_be_written_is_an_error(session: SparkSession, sql: str, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        guarded(session, sql)


def test_texts_with_dates_are_cast_as_ever(session: SparkSession) -> None:
    texts = ["2020-01-31", "2020-01-31 10:00", " 2020-1-3T10:00:00.5+02:00", "1999", None]
    given = session.createDataFrame([(text,) for text in texts], "x string")
    sql = "SELECT unix_micros(cast(x AS timestamp)) AS v, cast(x AS date) AS d, x FROM {} ORDER BY x NULLS FIRST"
    given.createOrReplaceTempView("plain_texts")
    expected = [tuple(row) for row in session.sql(sql.format("plain_texts")).collect()]
    assert rows(session, steps(sql.format("input")), input=given) == expected
    bare = session.createDataFrame([("10:00",), ("2020-01-01",)], "x string")
    tried = "SELECT try_cast(x AS timestamp) IS NULL, try_to_timestamp(x) IS NULL FROM input ORDER BY x"
    assert rows(session, steps(tried), input=bare) == [(True, True), (False, False)]


def test_reading_a_query_ends(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "QUERY", QueryLimits(reading_seconds=0.001))
    asked = Queries(session, steps("SELECT 1"))
    for ask in (lambda: asked.run({}), lambda: asked.check(())):
        with pytest.raises(QueryError, match=r"not read and resolved after 0\.001 s") as caught:
            ask()
        assert "split it into steps" in str(caught.value.hint)


def test_text_does_not_follow_the_locale_of_the_machine(session: SparkSession) -> None:
    assert session._jvm.java.util.Locale.getDefault().toString() == "en_US"
    assert rows(session, steps("SELECT upper('i\u00e4'), lower('I\u00c4')")) == [("I\u00c4", "i\u00e4")]


DIALECTS = fixture("queries/dialects.yaml")


@pytest.fixture(scope="module")
def mixed(session: SparkSession) -> DataFrame:
    return session.createDataFrame(
        [(7, 2, 7.0, "2020-03-01 10:00:00", "x", None)],
        "a bigint, b int, d double, at string, `Mixed` string, nothing string",
    )


def translated(
    session: SparkSession, mixed: DataFrame, dialect: str, sql: str
) -> tuple[DataFrame, list[str]]:
    notes: list[str] = []
    transform = TransformSql(engine=dialect, query=sql)
    return Queries(session, transform, notes.append).run({"input": mixed}), notes


@pytest.mark.parametrize(("dialect", "sql", "value"), DIALECTS["same"])
def test_a_portable_query_means_the_same(
    session: SparkSession, mixed: DataFrame, dialect: str, sql: str, value: Any
) -> None:
    result, notes = translated(session, mixed, dialect, sql)
    assert result.columns == ["v"]
    found = result.collect()[0][0]
    if isinstance(found, dt.datetime):
        found = result.selectExpr("unix_seconds(v)").collect()[0][0]
        value = int(value.timestamp())
    assert float(found) == value if isinstance(value, float) else found == value
    (note,) = notes
    assert dialect in note


@pytest.mark.parametrize(("dialect", "sql", "message"), DIALECTS["refused"])
def test_what_has_no_equal_is_refused(
    session: SparkSession, mixed: DataFrame, dialect: str, sql: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        translated(session, mixed, dialect, sql)
    assert "\n" not in str(caught.value)


def test_types_of_earlier_steps_decide_divisions(session: SparkSession, mixed: DataFrame) -> None:
    one = SqlQueryStep(alias="one", query="select a * 3 as n, cast(b as double) as r from input")
    last = SqlQueryStep(query="select n / 2 as whole, n / r as part from one")
    transform = TransformSql(engine="risingwave", version="43.0.0", queries=(one, last))
    notes: list[str] = []
    result = Queries(session, transform, notes.append).run({"input": mixed})
    assert tuple(result.collect()[0]) == (10, 10.5)
    assert "risingwave 43.0.0" in notes[0]


def test_a_check_without_types_lets_divisions_pass(session: SparkSession) -> None:
    Queries(session, TransformSql(engine="risingwave", query="select a / b from input")).check(["input"])
    with pytest.raises(QueryError, match="there is no table"):
        Queries(session, TransformSql(engine="risingwave", query="select 1 from other")).check(["input"])
