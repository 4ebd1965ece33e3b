"""Queries of other engines: translated when they are portable, refused when they are not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import QueryError
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.spark.query import Queries
from tests.kit.support import fixture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine

DIALECTS = fixture("queries/dialects.yaml")


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


@pytest.mark.parametrize(("dialect", "sql", "value"), DIALECTS["same"])
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


@pytest.mark.parametrize(("dialect", "sql", "message"), DIALECTS["refused"])
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
