"""Queries on Spark: what only that engine does. What queries mean is in `test_cases`, for both."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.spark.session import SparkEngine
from tests.kit.query_datasets import CASES, SAME, make, on_spark
from tests.kit.support import fixture

DATASETS = CASES["datasets"]
REFUSED = fixture("query/refused_on_spark.yaml")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine) -> Iterator[odf.Workspace]:
    workspace = odf.init(tmp_path_factory.mktemp("on-spark"))
    for name in ("x", "plain", "keyless", "acme/cities"):
        make(workspace, name, DATASETS[name])
    with on_spark(workspace, engine):
        yield workspace


def rows(workspace: odf.Workspace, sql: str, **options: Any) -> list[list[Any]]:
    found = workspace.sql(sql, engine="spark", **options).to_arrow()
    return [list(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("sql", SAME)
def test_the_engines_say_the_same(workspace: odf.Workspace, sql: str) -> None:
    params = {"p": 1000, "T": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)} if "$" in sql else None
    one = workspace.sql(sql, params=params)
    other = workspace.sql(sql, params=params, engine="spark")
    assert one.to_arrow().schema.names == other.to_arrow().schema.names
    assert one.to_arrow().to_pylist() == other.to_arrow().to_pylist()
    assert [*map(str, one.inputs)] == [*map(str, other.inputs)]


def test_what_a_with_shadows_is_no_input(workspace: odf.Workspace) -> None:
    sql = "with plain as (select 1 a), unknown as (select 2 b) select * from plain, unknown"
    result = workspace.sql(sql, engine="spark")
    assert result.to_arrow().to_pylist() == [{"a": 1, "b": 2}]
    assert result.inputs == ()


def test_backticks_quote_as_well(workspace: odf.Workspace) -> None:
    assert rows(workspace, "select `city` from `acme/cities`") == [["a"]]
    assert rows(workspace, "select city from x where pop = :p limit 1", params={"p": 3000}) == [["c"]]


@pytest.mark.parametrize(("sql", "message"), REFUSED)
def test_only_queries_over_datasets(workspace: odf.Workspace, sql: str, message: str) -> None:
    with pytest.raises(odf.errors.QueryError) as caught:
        workspace.sql(sql, engine="spark").to_arrow()
    assert message in str(caught.value)
    assert caught.value.exit_code == 3


def test_tables_of_the_session_are_no_datasets(workspace: odf.Workspace, engine: SparkEngine) -> None:
    engine.session.range(3).write.saveAsTable("leaked")
    engine.session.range(3).createOrReplaceTempView("seen")
    try:
        for name in ("leaked", "seen"):
            with pytest.raises((odf.errors.QueryError, odf.errors.DatasetNotFoundError)):
                workspace.sql(f"select * from {name}", engine="spark").to_arrow()
    finally:
        engine.session.sql("drop table leaked")


def test_errors_say_where_and_what_instead(workspace: odf.Workspace) -> None:
    with pytest.raises(odf.errors.QueryError) as caught:
        rows(workspace, "select city,\n  Popp from x")
    assert "the query, line 2, column 3: there is no column `popp`" in str(caught.value)
    assert caught.value.hint is not None
    assert "pop" in caught.value.hint
    with pytest.raises(odf.errors.DatasetNotFoundError) as missing:
        rows(workspace, "select * from plan")
    assert "plain" in (missing.value.hint or "")
    with pytest.raises(odf.errors.QueryError, match="cannot be cast"):
        rows(workspace, "select cast(city as int) from x")
    with pytest.raises(odf.errors.QueryError, match="has no value"):
        rows(workspace, "select $a")


def test_time_is_limited_and_its_jobs_end(workspace: odf.Workspace, engine: SparkEngine) -> None:
    sql = "select count(*) from range(1000000000000) where hash(id) = 7"
    with pytest.raises(odf.errors.EngineError, match="took longer than 1 s"):
        workspace.sql(sql, engine="spark", seconds=1).to_arrow()
    assert rows(workspace, "select count(*) from x", seconds=60) == [[8]]


def test_rows_are_lazy_and_limited(workspace: odf.Workspace) -> None:
    result = workspace.sql('select city, "offset" from x order by 2 desc', engine="spark", limit=2)
    assert [row.city for row in result.to_spark().collect()] == ["a", "a"]
    assert result.batches().read_all().num_rows == 2
    frame = workspace.sql("select * from x", engine="spark").to_spark()
    assert dict(frame.dtypes)["offset"] == "bigint"
    with pytest.raises(odf.errors.UsageError, match="memory"):
        workspace.sql("select 1", engine="spark", memory=1 << 30)


def test_plans_are_explained(workspace: odf.Workspace) -> None:
    from odfchain.api.queries import explained

    assert "parquet" in explained(workspace, "select city from x", {"engine": "spark"})


def test_a_damaged_slice_is_not_read(tmp_path: Path, engine: SparkEngine) -> None:
    with on_spark(odf.init(tmp_path), engine) as workspace:
        make(workspace, "plain", DATASETS["plain"])
        (path,) = (workspace["plain"].path / "data").iterdir()
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
        with pytest.raises(odf.errors.ObjectCorruptedError, match=path.name):
            rows(workspace, "select * from plain")
