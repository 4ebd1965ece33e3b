"""Queries of other engines: translated when they are portable, refused when they are not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import QueryError
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.spark.query import Queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine

UTC = dt.UTC


@pytest.fixture(scope="module")
def session(engine: SparkEngine) -> SparkSession:
    return engine.session


@pytest.fixture(scope="module")
def frame(session: SparkSession) -> DataFrame:
    return session.createDataFrame(
        [(7, 2, 7.0, "2020-03-01 10:00:00", "x", None)],
        "a bigint, b int, d double, at string, `Mixed` string, nothing string",
    )


def run(session: SparkSession, frame: DataFrame, dialect: str, sql: str) -> tuple[DataFrame, list[str]]:
    notes: list[str] = []
    transform = TransformSql(engine=dialect, query=sql)
    return Queries(session, transform, notes.append).run({"input": frame}), notes


AT = dt.datetime(2020, 3, 1, 10, tzinfo=UTC)
SAME: list[tuple[str, str, Any]] = [
    ("datafusion", "select a / b as v from input", 3),
    ("datafusion", "select -a / b as v from input", -3),
    ("datafusion", "select a / 2.0 as v from input", 3.5),
    ("datafusion", "select d / b as v from input", 3.5),
    ("datafusion", "select cast(a as double) / b as v from input", 3.5),
    ("datafusion", "with c as (select a * 2 as k from input) select k / 4 as v from c", 3),
    ("datafusion", "select sum(a) / count(*) as v from input", 7),
    ("datafusion", 'select "Mixed" as v from input', "x"),
    ("datafusion", "select Mixed as v from input", "x"),
    ("datafusion", "select 'it''s' || Mixed as v from input", "it'sx"),
    ("datafusion", "select '12'::bigint as v from input", 12),
    ("datafusion", "select coalesce(nothing, 'n') as v from input", "n"),
    ("datafusion", "select case when a > 1 then 'big' else 'small' end as v from input", "big"),
    ("datafusion", "select cast(at as timestamp) as v from input", AT),
    ("datafusion", "select to_timestamp(at) as v from input", AT),
    ("datafusion", "select to_timestamp(at, '%Y-%m-%d %H:%M:%S') as v from input", AT),
    ("datafusion", "select to_timestamp_seconds(1583056800) as v from input", AT),
    ("datafusion", "select date_part('year', to_timestamp(at)) as v from input", 2020),
    ("datafusion", "select strpos(Mixed, 'x') as v from input", 1),
    ("risingwave", "select a / b as v from input", 3),
    ("risingwave", "select to_timestamp(at, 'YYYY-MM-DD HH24:MI:SS') as v from input", AT),
    ("flink", "select `a` / b as v from input", 3),
    ("flink", "select cast(at as timestamp(3)) as v from input", AT),
    ("flink", "select 'a' || `Mixed` as v from input", "ax"),
]


@pytest.mark.parametrize(("dialect", "sql", "value"), SAME)
def test_a_portable_query_means_the_same(
    session: SparkSession, frame: DataFrame, dialect: str, sql: str, value: Any
) -> None:
    result, notes = run(session, frame, dialect, sql)
    assert result.columns == ["v"]
    found = result.collect()[0][0]
    if isinstance(found, dt.datetime):
        found = result.selectExpr("unix_seconds(v)").collect()[0][0]
        value = int(value.timestamp())
    assert float(found) == value if isinstance(value, float) else found == value
    assert len(notes) == 1
    assert dialect in notes[0]


REFUSED: list[tuple[str, str, str]] = [
    ("datafusion", "select f(a) / b as v from input", "may divide integers"),
    ("datafusion", "select now() as v from input", "reads the clock"),
    ("datafusion", "select random() as v from input", "is random"),
    ("datafusion", "select * from '/etc/passwd'", "there is no table"),
    ("datafusion", "select * from read_csv('/etc/passwd')", "READ_CSV"),
    ("datafusion", "select * from information_schema.tables", "there is no table"),
    ("datafusion", "select array_agg(a order by b) as v from input", "order in which rows arrive"),
    ("datafusion", "select arrow_cast(a, 'Int8') as v from input", "not on the list"),
    ("datafusion", "select reflect('java.lang.System', 'getenv', 'HOME')", "runs code outside SQL"),
    ("datafusion", "select $1 as v from input", "not part of a query"),
    ("datafusion", "selec 1", "line 1, column 7: not valid datafusion SQL"),
    ("datafusion", "select 1; select 2", "is not one query"),
    ("datafusion", "", "is not one query"),
    ("datafusion", "copy input to '/tmp/x'", "is not one query"),
    ("datafusion", "drop table input", "is not one query"),
    ("datafusion", "set a = 1", "is not one query"),
    ("datafusion", "create external table x stored as csv location '/etc/passwd'", "is not one query"),
    ("datafusion", "select citty from input", "`citty`"),
    ("flink", 'select "a" from input', "not valid flink SQL"),
    ("flink", "select tumble_start(at, interval '1' day) from input", "not on the list"),
    ("risingwave", "select * from tumble(input, at, interval '1 day')", "not on the list|no table"),
    ("risingwave", "create materialized view v as select 1", "is not one query"),
]


@pytest.mark.parametrize(("dialect", "sql", "message"), REFUSED)
def test_what_has_no_equal_is_refused(
    session: SparkSession, frame: DataFrame, dialect: str, sql: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        run(session, frame, dialect, sql)
    assert "\n" not in str(caught.value)


def test_types_of_earlier_steps_decide_divisions(session: SparkSession, frame: DataFrame) -> None:
    transform = TransformSql(
        engine="datafusion",
        version="43.0.0",
        queries=(
            SqlQueryStep(alias="one", query="select a * 3 as n, cast(b as double) as r from input"),
            SqlQueryStep(query="select n / 2 as whole, n / r as part from one"),
        ),
    )
    notes: list[str] = []
    result = Queries(session, transform, notes.append).run({"input": frame})
    assert tuple(result.collect()[0]) == (10, 10.5)
    assert "datafusion 43.0.0" in notes[0]


def test_a_check_without_types_lets_divisions_pass(session: SparkSession) -> None:
    Queries(session, TransformSql(engine="datafusion", query="select a / b from input")).check(["input"])
    with pytest.raises(QueryError, match="there is no table"):
        Queries(session, TransformSql(engine="datafusion", query="select 1 from other")).check(["input"])
