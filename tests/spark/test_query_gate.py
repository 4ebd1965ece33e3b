"""The query gate: what untrusted SQL may not ask for is refused before anything executes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odfchain.errors import QueryError
from odfchain.odf.sources import TransformSql
from odfchain.spark import query_rules as functions
from odfchain.spark.query import Queries
from tests.kit.support import conformance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine

SCHEMA = (
    "a string, b bigint, c int, d double, t timestamp, dt date, m map<string,int>, arr array<int>, "
    "st struct<x:int,y:string>, bo boolean, dec decimal(10,2), event_time timestamp, sensor string, level int"
)


@pytest.fixture(scope="module")
def session(engine: SparkEngine) -> SparkSession:
    return engine.session


@pytest.fixture(scope="module")
def frame(session: SparkSession) -> DataFrame:
    return session.createDataFrame([], SCHEMA)


@contextmanager
def no_jobs(session: SparkSession) -> Iterator[None]:
    """Nothing is executed inside."""
    group = f"gate-{uuid.uuid4()}"
    session.sparkContext.setJobGroup(group, "must stay empty")
    try:
        yield
    finally:
        session.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert list(session.sparkContext.statusTracker().getJobIdsForGroup(group)) == []


def run(session: SparkSession, frame: DataFrame, sql: str) -> DataFrame:
    transform = TransformSql(engine="spark", query=sql)
    return Queries(session, transform, pytest.fail).run({"input": frame, "t": frame})


def refused(session: SparkSession, frame: DataFrame, sql: str) -> QueryError:
    with no_jobs(session), pytest.raises(QueryError) as caught:
        run(session, frame, sql)
    said = str(caught.value)
    assert "\n" not in said
    assert "\tat " not in said
    assert "Exception" not in said
    assert len(said) < 500
    return caught.value


MUST = [
    pytest.param(case["sql"], id=case["sql"][:50])
    for case in conformance("transform_cases")["must_be_rejected"]
]


@pytest.mark.parametrize("sql", MUST)
def test_shared_rejection_cases(session: SparkSession, frame: DataFrame, sql: str) -> None:
    refused(session, frame, sql)


FILES = """
SELECT * FROM csv.`{file}`
SELECT * FROM `text`.`{file}`
SELECT * FROM/**/TEXT . `{file}`
SELECT * FROM `{file}`
SELECT * FROM '{file}'
WITH c AS (SELECT * FROM text.`{file}`) SELECT 1
WITH c AS (WITH d AS (SELECT * FROM text.`{file}`) SELECT * FROM d) SELECT * FROM c
SELECT (SELECT max(value) FROM text.`{file}`) FROM input
SELECT * FROM input WHERE a IN (SELECT value FROM text.`{file}`)
SELECT * FROM input WHERE EXISTS (SELECT 1 FROM text.`{file}`)
SELECT CASE WHEN true THEN (SELECT max(value) FROM text.`{file}`) END
SELECT sum(b) OVER (ORDER BY (SELECT max(value) FROM text.`{file}`)) FROM input
SELECT sum(b) OVER w FROM input WINDOW w AS (PARTITION BY (SELECT max(value) FROM text.`{file}`))
SELECT * FROM input, LATERAL (SELECT * FROM text.`{file}`)
SELECT * FROM input JOIN text.`{file}` ON (SELECT count(*) FROM text.`{file}`) > 0
SELECT a FROM input UNION ALL SELECT value FROM text.`{file}`
SELECT * FROM input ORDER BY (SELECT max(value) FROM text.`{file}`)
SELECT * FROM VALUES ((SELECT max(value) FROM text.`{file}`))
SELECT transform(arr, x -> (SELECT max(value) FROM text.`{file}`)) FROM input
SELECT * EXCEPT (a) FROM text.`{file}`
SELECT * FROM IDENTIFIER('text.`{file}`')
SELECT * FROM IDENTIFIER('te' || 'xt.`{file}`')
SELECT * FROM read_files('{file}')
TABLE text.`{file}`
FROM text.`{file}` SELECT *
FROM text.`{file}` |> SELECT *
FROM input |> UNION ALL (SELECT * FROM text.`{file}`)
SELECT from_protobuf(to_binary(a), 'm', '{file}') FROM input
INSERT OVERWRITE DIRECTORY '{file}' USING csv SELECT 1
INSERT OVERWRITE LOCAL DIRECTORY '{file}' SELECT 1
CREATE TABLE x USING csv LOCATION '{file}'
CREATE TEMPORARY VIEW x USING csv OPTIONS (path '{file}')
LOAD DATA LOCAL INPATH '{file}' INTO TABLE x
ADD FILE '{file}'
ADD JAR '{file}'
EXPLAIN SELECT * FROM text.`{file}`
CACHE TABLE x AS SELECT * FROM text.`{file}`
EXECUTE IMMEDIATE 'SELECT * FROM text.`{file}`'
BEGIN SELECT * FROM text.`{file}`; END
"""

PROGRAMS = """
SELECT TRANSFORM(a) USING 'touch {file}' AS (x) FROM input
SELECT transform(a) using 'touch {file}' FROM input
MAP a USING 'touch {file}' AS (x) FROM input
FROM input REDUCE a USING 'touch {file}' AS (x)
SELECT * FROM (SELECT TRANSFORM(a) USING 'touch {file}' AS (x) FROM input)
SELECT reflect('java.nio.file.Files', 'createFile', '{file}')
SELECT java_method('java.lang.System', 'getenv', 'HOME')
SELECT try_reflect('java.lang.System', 'getenv', 'HOME')
SELECT/**/`ReFlEcT`/**/('java.lang.System', 'getenv', 'HOME')
SELECT \u0072eflect('java.lang.System', 'getenv', 'HOME')
SELECT * FROM input LATERAL VIEW explode(array(reflect('a', 'b'))) q AS x
SELECT * FROM IDENTIFIER(reflect('java.lang.System', 'getenv', 'HOME'))
SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')
VALUES (reflect('java.lang.System', 'getenv', 'HOME'))
SELECT a FROM input WINDOW w AS (PARTITION BY reflect('a', 'b'))
SELECT filter(arr, x -> reflect('a', 'b') = 'x') FROM input
SELECT a FROM input GROUP BY CUBE (a, reflect('a', 'b'))
SELECT * FROM range(reflect('a', 'b'))
SELECT * FROM input LIMIT reflect('a', 'b')
SELECT * FROM my_udtf(TABLE(input))
CREATE TEMPORARY FUNCTION f AS 'a.B' USING JAR '{file}'
CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1
"""

STATE = """
SET spark.sql.ansi.enabled = false
SET TIME ZONE 'Europe/Berlin'
RESET
USE other
DROP VIEW input
SHOW TABLES
DESCRIBE input
REFRESH TABLE input
DECLARE VARIABLE x INT DEFAULT 1
SET VAR x = 1
CALL x()
DELETE FROM input
MERGE INTO input USING t ON true WHEN MATCHED THEN DELETE
INSERT INTO input SELECT * FROM t
FROM input INSERT INTO x SELECT *
SELECT * FROM spark_catalog.default.input
SELECT * FROM global_temp.input
SELECT * FROM default.input
SELECT spark_catalog.default.abs(1)
SELECT session.abs(1)
SELECT :p
SELECT ?
SELECT ${{env:HOME}}
SELECT * FROM input; DROP VIEW input
SELECT * FROM input WITH (x = 'y')
WITH `x, y` AS (SELECT 1) SELECT * FROM x.y
SELECT * FROM (WITH z AS (SELECT 1) SELECT * FROM z) q, z
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM r
SELECT current_user
SELECT USER
SELECT session_user()
SELECT current_catalog()
SELECT current_schema()
SELECT version()
SELECT current_timezone()
SELECT convert_timezone('Europe/Brussels', TIMESTAMP_NTZ '2021-12-05 15:00:00')
SELECT input_file_name() FROM input
SELECT * FROM sql_keywords()
"""

CHANCE = """
SELECT rand()
SELECT RANDN(1)
SELECT uniform(1, 2)
SELECT uuid()
SELECT uuid() OVER () FROM input
SELECT count(*) FILTER (WHERE uuid() = 'x') FROM input
SELECT sort_array(collect_list(rand())) FROM input
SELECT * FROM input ORDER BY random()
SELECT * FROM input JOIN t ON rand() > 0.5
SELECT * FROM input PIVOT (sum(b) FOR c IN (rand()))
SELECT shuffle(arr) FROM input
SELECT * FROM input TABLESAMPLE (50 PERCENT) REPEATABLE (7)
SELECT * FROM input TABLESAMPLE (BUCKET 1 OUT OF 4)
SELECT monotonically_increasing_id() FROM input
SELECT spark_partition_id() FROM input
SELECT first(a) FROM input
SELECT first(a) OVER (PARTITION BY b) FROM input
SELECT last_value(a) FROM input
SELECT any_value(a) FROM input
SELECT collect_list(a) FROM input
SELECT array_join(collect_set(a), ',') FROM input
SELECT listagg(a, ',') FROM input
SELECT max_by(a, b) FROM input
SELECT mode(a) FROM input
SELECT approx_percentile(b, 0.5) FROM input
SELECT 'a' COLLATE UNICODE_CI
SELECT /*+ COALESCE(1) */ * FROM input
SELECT * FROM input DISTRIBUTE BY a
SELECT * FROM input SORT BY a
SELECT * FROM input CLUSTER BY a
SELECT * FROM input VERSION AS OF 3
SELECT * FROM input TIMESTAMP AS OF '2020-01-01'
"""

CLOCK = """
SELECT current_timestamp
SELECT `current_timestamp`
SELECT CURRENT_DATE
SELECT now()
SELECT curdate()
SELECT current_time
SELECT localtimestamp()
SELECT unix_timestamp()
SELECT * FROM VALUES (current_timestamp) v(a)
SELECT * FROM VALUES (cast('10:00' AS timestamp)) v(a)
SELECT * FROM VALUES (to_timestamp('10:00')) v(a)
SELECT DATE 'today'
SELECT DATE/**/'Yesterday'
SELECT TIMESTAMP -- x
SELECT TIMESTAMP 'now'
SELECT TIMESTAMP '10:00:00'
SELECT TIMESTAMP_NTZ 'T10:00'
SELECT DATE '\\u0074oday'
SELECT cast('now' AS timestamp)
SELECT 'today'::date
SELECT try_cast('tomorrow' AS date)
SELECT cast(concat('no', 'w') AS timestamp)
SELECT cast(upper('now') AS timestamp)
SELECT date('today')
SELECT timestamp('now')
SELECT to_date('today')
SELECT to_timestamp('NOW')
SELECT to_timestamp(nvl(NULL, 'now'))
SELECT to_timestamp_ntz('now')
SELECT try_to_timestamp('now')
SELECT date_trunc('day', 'now')
SELECT hour('now')
SELECT date_format('now', 'yyyy')
SELECT t = 'now' FROM input
SELECT dt BETWEEN 'yesterday' AND 'tomorrow' FROM input
SELECT * FROM input WHERE dt IN ('today')
SELECT nvl(dt, 'today') FROM input
SELECT array(dt, 'today') FROM input
SELECT CASE WHEN bo THEN dt ELSE 'today' END FROM input
"""


@pytest.mark.parametrize(
    "corpus",
    [
        pytest.param(FILES, id="files"),
        pytest.param(PROGRAMS, id="programs"),
        pytest.param(STATE, id="session state"),
        pytest.param(CHANCE, id="chance and order"),
        pytest.param(CLOCK, id="clock"),
    ],
)
def test_the_rejection_corpus(session: SparkSession, frame: DataFrame, tmp_path: Path, corpus: str) -> None:
    canary = tmp_path / "canary"
    let_through = []
    for line in corpus.strip().splitlines():
        sql = line.format(file=canary)
        try:
            refused(session, frame, sql)
        except BaseException as error:  # pytest.fail is not an Exception
            let_through.append((sql, error))
    assert let_through == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_could_have_been_done(session: SparkSession, tmp_path: Path) -> None:
    """The corpus proves something: without the gate, Spark does these things."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    assert session.sql(f"SELECT * FROM text.`{secret}`").collect()[0][0] == "secret"
    assert session.sql("SELECT reflect('java.lang.System', 'getProperty', 'user.dir')").collect()[0][0]
    assert session.sql("SELECT '${system:user.dir}'").collect()[0][0] != "${system:user.dir}"
    assert session.sql("SELECT cast(concat('no', 'w') AS timestamp)").collect()[0][0].year > 2020


PLACES = [
    ("SELECT a,\n  rand() FROM input", "line 2, column 3: the function `rand` is random"),
    ("SELECT a FROM inptu", "line 1, column 15: there is no table `inptu`"),
    ("SELECT a FROM INPUT", "line 1, column 15: there is no table `INPUT`"),
    ("SELECT 'ü😀', bb FROM input", "query, line 1, column 14: there is no column `bb`"),
    ("SELECT a FRM input WHERE", "line 1, column 14: Syntax error at or near 'input'"),
    ("SELECT 'x', current_timestamp FROM input", "line 1, column 13: `current_timestamp` reads the clock"),
    ("SET a = b", "is a command, not a query"),
    ("SELECT summ(b) FROM input", "the function `summ` is not on the list"),
    (
        "SELECT * FROM t TABLESAMPLE (1 PERCENT)",
        "line 1, column 17: `TABLESAMPLE (1 PERCENT)` takes a random sample",
    ),
    ("", "unexpected empty statement"),
    ("SELECT a FROM (WITH z AS (SELECT 1) SELECT * FROM z) q, z", "`z` cannot be found"),
]


@pytest.mark.parametrize(("sql", "expected"), PLACES)
def test_a_refusal_says_where_and_what(
    session: SparkSession, frame: DataFrame, sql: str, expected: str
) -> None:
    assert expected in str(refused(session, frame, sql))


def test_refusals_say_what_to_do_instead(session: SparkSession, frame: DataFrame) -> None:
    assert refused(session, frame, "SELECT * FROM inptu").hint == "did you mean `input`?"
    assert refused(session, frame, "SELECT summ(b) FROM input").hint == "did you mean sum?"
    assert "row_number()" in str(refused(session, frame, "SELECT monotonically_increasing_id()").hint)


BOUNDS = [
    pytest.param("SELECT '" + "x" * (64 << 10) + "'", "longer than 64 KiB", id="text"),
    pytest.param("SELECT " + "(" * 101 + "1" + ")" * 101, "100 brackets", id="brackets"),
    pytest.param("SELECT" + " NOT" * 5_000 + " true", "too deeply|too complex", id="parser's stack"),
    pytest.param("SELECT " + ",".join(["1"] * 12_000), "10,000 nodes", id="nodes"),
    pytest.param("SELECT \ud800", "not valid Unicode", id="surrogate"),
]


@pytest.mark.parametrize(("sql", "message"), BOUNDS)
def test_bounds(session: SparkSession, frame: DataFrame, sql: str, message: str) -> None:
    assert re.search(message, str(refused(session, frame, sql)))


ALLOWED = """
SELECT * FROM input
TABLE input
FROM input SELECT a
VALUES (1, 'x'), (2, NULL)
SELECT i, j FROM VALUES (1, array(1, 2)), (-2, NULL) AS v(i, j)
WITH c AS (SELECT b AS x FROM input), e AS (SELECT * FROM c) SELECT * FROM e WHERE x IN (SELECT b FROM t WHERE t.b = e.x)
WITH input AS (SELECT 1 AS own) SELECT own FROM input
SELECT CASE WHEN bo THEN 1 ELSE 2 END, arr[0], st.x, m['k'], -b, a || 'x', b DIV 2, b % 2, b <=> 2, a IS NULL, bo IS TRUE FROM input
SELECT a LIKE 'x%', a NOT LIKE 'x', a RLIKE 'x', a LIKE ANY ('x', 'y'), b IN (1, 2), b BETWEEN 1 AND 2, a IS DISTINCT FROM 'x' FROM input
SELECT cast(a AS timestamp), a::bigint, try_cast(a AS date), to_timestamp(a), to_date(a, 'yyyy-MM-dd'), to_timestamp('2020-01-01') FROM input
SELECT DATE '2020-01-01', TIMESTAMP'2020-01-01 10:00:00Z', INTERVAL 1 DAY, t + INTERVAL 2 DAYS, dt - 1, cast('2020-01-01' AS date) FROM input
SELECT i.a, k.b FROM input i LEFT JOIN t k ON i.b = k.b AND k.t BETWEEN i.t AND i.t + INTERVAL 2 DAYS
SELECT e, p FROM input LATERAL VIEW OUTER posexplode(arr) q AS p, e
SELECT * FROM input, LATERAL explode(arr) AS q(w)
SELECT a, count(*), count(DISTINCT b), sum(b) FILTER (WHERE c > 1) FROM input GROUP BY a HAVING sum(b) > 1 ORDER BY a DESC NULLS LAST LIMIT 5
SELECT a, c, grouping(a), sum(b) FROM input GROUP BY CUBE (a, c)
SELECT DISTINCT a FROM input UNION SELECT 'x' INTERSECT SELECT 'y' EXCEPT SELECT 'z'
SELECT * EXCEPT (a) FROM input
SELECT window(event_time, '1 day').start AS event_time, sensor, min(level) AS lo FROM input GROUP BY window(event_time, '1 day'), sensor
SELECT session_window.start AS s, count(*) AS n FROM input GROUP BY session_window(event_time, '5 hours')
SELECT row_number() OVER (PARTITION BY a ORDER BY t) AS r, lag(b) OVER (ORDER BY t) AS l, sum(b) OVER w AS s FROM input WINDOW w AS (ORDER BY t)
SELECT first_value(a) IGNORE NULLS OVER (ORDER BY t), last(a) OVER (ORDER BY t) FROM input
SELECT sort_array(collect_list(a)), array_sort(collect_set(a)), array_join(sort_array(collect_list(a)), ',') FROM input
SELECT transform(arr, x -> x + 1), filter(arr, (x, i) -> i > 0), aggregate(arr, 0, (s, x) -> s + x) FROM input
SELECT * FROM (SELECT a, b, c FROM input) PIVOT (sum(b) AS s FOR c IN (1 AS one, 2))
SELECT * FROM (SELECT a, b, c FROM input) UNPIVOT (v FOR n IN (b AS bb))
SELECT * FROM range(10)
SELECT extract(YEAR FROM t), trim(BOTH 'x' FROM a), position('a' IN a), substring(a FROM 1 FOR 2), ceil(d, 1) FROM input
SELECT current_timestamp FROM (SELECT a AS current_timestamp FROM input)
SELECT 'reflect(1) FROM text.`/etc`' AS r -- rand()
"""


def test_ordinary_sql_passes(session: SparkSession, frame: DataFrame) -> None:
    refusals = []
    for sql in ALLOWED.strip().splitlines():
        try:
            with no_jobs(session):
                run(session, frame, sql)
        except QueryError as error:
            refusals.append((sql, str(error)))
    assert refusals == []


def test_every_listed_function_exists_and_is_deterministic(session: SparkSession) -> None:
    """A name that Spark does not know would be a gap in the list, or a slip in it."""
    registry = getattr(session._jvm.org.apache.spark.sql.catalyst.analysis, "FunctionRegistry$")
    built_in = getattr(registry, "MODULE$").expressions()
    missing = {n for n in functions.ALL_NAMES if not built_in.contains(n)} - {
        "range",
        "||",
        "!=",
        "<>",
        "case",
    }
    assert missing == set()
    assert functions.PLAIN_NAMES.isdisjoint(
        functions.ORDERED_NAMES | functions.SORTED_NAMES | set(functions.UNLISTED)
    )


TOKENS = """SELECT FROM WHERE ( ) , * a b input t WITH AS JOIN ON GROUP BY ORDER 1 'x' "y" `z` -- /* */ ; :: -> |>
? :p $ @ \\ rand() reflect( current_date text.`/etc/passwd` TRANSFORM USING VALUES CASE WHEN END NULL OVER WINDOW
LATERAL VIEW SET DROP INSERT é 😀 \x00 0x1 1e400 [ ] { } DATE TIMESTAMP INTERVAL 'now'"""
WORDS = st.sampled_from(TOKENS.split())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sql=st.one_of(st.lists(WORDS, max_size=12).map(" ".join), st.text(max_size=40)))
def test_any_text_passes_or_is_a_query_error(session: SparkSession, sql: str) -> None:
    transform = TransformSql(engine="spark", query=sql)
    try:
        Queries(session, transform).check(["input", "t"])
    except QueryError as error:
        assert "\n" not in str(error)
        json.dumps(str(error))


def test_a_check_without_data_finds_what_names_alone_can_tell(session: SparkSession) -> None:
    def check(sql: str, *tables: str) -> None:
        Queries(session, TransformSql(engine="spark", query=sql)).check(tables)

    check("SELECT whatever FROM `com.acme.readings-v2`", "com.acme.readings-v2")
    with pytest.raises(QueryError, match="there is no table `readings`"):
        check("SELECT 1 FROM readings", "input")
    with pytest.raises(QueryError, match="`rand` is random"):
        check("SELECT rand()")


def test_other_tables_of_the_session_cannot_be_reached(session: SparkSession, frame: DataFrame) -> None:
    secret: Any = session.createDataFrame([("secret",)], "s string")
    secret.createOrReplaceTempView("gate_secret")
    secret.createOrReplaceGlobalTempView("gate_secret")
    try:
        for name in ("gate_secret", "global_temp.gate_secret"):
            assert "there is no table" in str(refused(session, frame, f"SELECT * FROM {name}"))
        out_of_scope = (
            "SELECT * FROM (WITH gate_secret AS (SELECT 1) SELECT * FROM gate_secret) q, gate_secret"
        )
        assert "cannot be found" in str(refused(session, frame, out_of_scope))
    finally:
        session.catalog.dropTempView("gate_secret")
        session.catalog.dropGlobalTempView("gate_secret")
