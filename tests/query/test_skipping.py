"""Slices that are not read because their footers say that no row can match: never a wrong row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.errors import QueryError
from odfchain.spark.session import SparkEngine
from odfchain.workspace.read_slices import KeptFooters
from tests.kit import query_datasets
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.skipped_slices import POOLS, add_mixed, conditions, without_skipping
from tests.kit.support import fixture

CASES = fixture("query/skipping.yaml")

SCHEMA = schema_with(pa.field("i", pa.int64()), pa.field("s", pa.string()), pa.field("f", pa.float64()))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> odf.Workspace:
    """`five` has slices with i: n, n + 1."""
    workspace = odf.init(tmp_path_factory.mktemp("skipping"))
    root = add_root(workspace, "five", SCHEMA)
    for n in range(5):
        columns = ([n, n + 1], [f"a{n}", "b"], [float(n), float("nan")])
        append(root, records(SCHEMA, 2 * n, [0, 0], [START] * 2, *columns), MADE)
    return workspace


@pytest.fixture(scope="module")
def mixed(workspace: odf.Workspace) -> list[str]:
    names = [f"mixed{seed}" for seed in range(3)]
    for seed, name in enumerate(names):
        add_mixed(workspace, name, random.Random(seed))
    return names


def shown(table: pa.Table) -> list[str]:
    return [str(row) for row in table.to_pylist()]


def both(ask: Any) -> tuple[Any, Any]:
    """What is found, and what without skipping; errors are answers, too."""

    def asked() -> Any:
        try:
            return ask()
        except QueryError as error:
            return error.message

    found = asked()
    with without_skipping():
        return found, asked()


def check(workspace: odf.Workspace, name: str, where: str) -> int:
    """Scans and queries give what they give without skipping; returns how many slices were skipped."""
    dataset = workspace[name]
    one, other = both(lambda: shown(dataset.scan(where=where).to_arrow()))
    assert one == other, where
    sql = f'select * from {name} where {where} order by "offset"'
    one, other = both(lambda: shown(workspace.sql(sql).to_arrow()))
    assert one == other, where
    return dataset.scan(where=where).slices.skipped


def test_every_condition_keeps_the_rows_that_it_keeps_of_all(
    workspace: odf.Workspace, mixed: list[str]
) -> None:
    chance, skipped = random.Random(7), 0
    for name in mixed:
        skipped += sum(check(workspace, name, where) for where in conditions(chance, 10))
    assert skipped > 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_every_condition_at_length(workspace: odf.Workspace, seed: int) -> None:
    chance, name = random.Random(seed), f"long{seed}"
    add_mixed(workspace, name, chance, slices=8)
    for where in conditions(chance, 60):
        check(workspace, name, where)


@pytest.mark.parametrize("sql", CASES["subqueries"])
def test_a_table_that_is_read_twice_has_what_both_ask_for(workspace: odf.Workspace, sql: str) -> None:
    one, other = both(lambda: sorted(shown(workspace.sql(sql).to_arrow())))
    assert len(one) == len(other) if "limit" in sql else one == other


@pytest.mark.parametrize("where", CASES["functions"])
def test_whatever_a_condition_is_made_of_it_is_answered_or_refused_alike(
    workspace: odf.Workspace, where: str
) -> None:
    """The rows in memory are asked by the engine itself, with nothing of ours beside it."""
    import datafusion

    context = datafusion.SessionContext()
    context.register_record_batches("five", [workspace["five"].scan().to_arrow().to_batches()])
    sql = f'select "offset" as o from five where {where} order by 1'
    try:
        expected = context.sql(sql).to_pydict()["o"]
    except Exception as error:
        expected = type(error)
    try:
        found = workspace.sql(sql).to_arrow()["o"].to_pylist()
    except QueryError as error:
        assert isinstance(expected, type) or "now" in where, error
        return
    assert found == expected


def test_a_query_says_how_many_slices_it_read(workspace: odf.Workspace) -> None:
    found = workspace.sql("select count(*) from five where i = $i", params={"i": 5})
    assert (found.slices.read, found.slices.there, found.slices.skipped) == (1, 5, 4)
    assert found.to_arrow().column(0).to_pylist() == [1]
    assert workspace.sql("select count(*) from five").slices.skipped == 0
    # a proof is made of all slices, wherever it is made
    assert workspace["five"].scan(where="i = 5").slices.read == 1


def states(workspace: odf.Workspace, where: str, **options: Any) -> int:
    found = workspace.sql(f"select count(*) from state('five', null, 's') where {where}", **options)
    return int(found.to_arrow().column(0)[0].as_py())


@pytest.mark.parametrize(("where", "count"), CASES["states"])
def test_the_newest_row_of_a_key_may_be_in_any_slice_that_has_the_key(
    workspace: odf.Workspace, where: str, count: int
) -> None:
    assert states(workspace, where) == count


def test_what_is_skipped_is_not_opened(workspace: odf.Workspace) -> None:
    root = workspace["five"]._files
    where = "i >= 5 and s = 'b'"
    expected = workspace["five"].scan(["s", "i"], where=where).to_arrow()
    assert expected.to_pylist() == [{"s": "b", "i": 5}]
    refs = workspace["five"].summary.slices()
    hidden = [Path(root.data.locate(ref.slice.physical_hash)) for ref in refs[:4]]
    for path in hidden:
        path.rename(path.with_suffix(".away"))
    try:
        again = workspace["five"].scan(["s", "i"], where=where)
        assert again.to_arrow() == expected
        assert again.to_pandas()["i"].tolist() == [5]
        assert workspace.sql(f"select s, i from five where {where}").to_arrow() == expected
        with pytest.raises(odf.errors.SliceNotFoundError):
            workspace["five"].scan(where="s = 'b'").to_arrow()
    finally:
        for path in hidden:
            path.with_suffix(".away").rename(path)


def test_columns_and_moments_and_conditions_go_together(workspace: odf.Workspace) -> None:
    found = workspace["five"].scan(["f", "offset"], at=4, where="\"i\" > 1 AND NOT s LIKE 'a%'")
    assert found.to_arrow().to_pydict()["offset"] == [3, 5]
    assert "where `i` > 1" in repr(found)
    assert "<table" in found._repr_html_()


@pytest.mark.parametrize(
    ("where", "said"), CASES["what_is_wrong_with_a_condition_is_said_whatever_is_skipped"]
)
def test_what_is_wrong_with_a_condition_is_said_whatever_is_skipped(
    workspace: odf.Workspace, where: str, said: str
) -> None:
    with pytest.raises(QueryError, match=said):
        workspace["five"].scan(where=where).to_arrow()


def test_slices_of_another_file_are_not_believed_for_it(workspace: odf.Workspace, tmp_path: Path) -> None:
    """A line says something of bytes: what lies under their name must be hashed before it is read."""
    dataset = workspace["five"]
    dataset.scan(where="i = 0").to_arrow()
    path = Path(dataset._files.data.locate(dataset.summary.slices()[0].slice.physical_hash))
    good = path.read_bytes()
    try:
        pq.write_table(records(SCHEMA, 0, [0, 0], [START] * 2, [0, 1], ["x", "y"], [0.0, 1.0]), path)
        with pytest.raises(odf.errors.ObjectCorruptedError):
            dataset.scan(where="i = 0").to_arrow()
        with pytest.raises(odf.errors.ObjectCorruptedError):
            workspace.sql("select * from five where i = 0").to_arrow()
    finally:
        path.write_bytes(good)
    assert KeptFooters(dataset._files).path.exists()


@pytest.fixture(scope="module")
def on_spark(workspace: odf.Workspace, engine: SparkEngine) -> Iterator[odf.Workspace]:
    with query_datasets.on_spark(workspace, engine):
        yield workspace


def check_on_spark(workspace: odf.Workspace, name: str, where: str) -> None:
    one, other = both(lambda: sorted(map(str, workspace[name].scan(where=where).to_spark().collect())))
    assert one == other, where
    sql = f"select * from {name} where {where}"
    one, other = both(lambda: sorted(shown(workspace.sql(sql, engine="spark").to_arrow())))
    assert one == other, where


def test_spark_is_given_what_may_match(on_spark: odf.Workspace, mixed: list[str]) -> None:
    where = "i BETWEEN 5 AND 9 AND s LIKE 'a%' AND event_time >= '2020-01-01' AND f IS NOT NULL"
    found = on_spark.sql(f"select x.i from (select 1) y, five x where x.{where}", engine="spark")
    assert found.slices.skipped == 0
    found = on_spark.sql(f"select i, s from five x where {where.replace('a%', 'b%')}", engine="spark")
    assert (found.slices.read, found.to_arrow().to_pylist()) == (1, [{"i": 5, "s": "b"}])
    assert on_spark["five"].scan(where="i IN (5, 7)").to_spark().count() == 1
    assert [states(on_spark, where, engine="spark") for where, _ in CASES["states"]] == [
        count for _, count in CASES["states"]
    ]
    check_on_spark(on_spark, mixed[0], "(late IS NULL OR f < 0) AND i <> 7")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_spark_keeps_the_rows_that_it_keeps_of_all(on_spark: odf.Workspace, seed: int) -> None:
    chance, name = random.Random(seed), f"spark{seed}"
    add_mixed(on_spark, name, chance)
    for where in conditions(chance, 25):
        check_on_spark(on_spark, name, where)


@pytest.mark.soak
@pytest.mark.parametrize("sql", CASES["subqueries"])
def test_spark_reads_a_table_twice(on_spark: odf.Workspace, sql: str) -> None:
    one, other = both(lambda: sorted(shown(on_spark.sql(sql, engine="spark").to_arrow())))
    assert len(one) == len(other) if "limit" in sql else one == other


def test_pools_have_a_column_that_comes_later() -> None:
    assert list(POOLS)[-1] == "late"
