"""Queries on branches: names with points in both spellings, what lies between two points, and every change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import Pins
from odfchain.query.sql_text import Query, checked_text
from odfchain.query.walled import Worker
from odfchain.spark.session import SparkEngine
from odfchain.storage.local import LocalObjectStore
from odfchain.workspace.dataset_state import DatasetState
from tests.kit import branch_rows
from tests.kit.query_datasets import on_spark
from tests.kit.support import fixture

CASES = fixture("query/branches.yaml")

COLUMNS = (pa.field("k", pa.string()), pa.field("n", pa.uint32()), pa.field("f", pa.float64()))


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path_factory.mktemp("branches")) as workspace:
        dataset = branch_rows.keyed(workspace, ("k",), COLUMNS)
        branch_rows.record(dataset, [("+A", 0, "a", 1, 1.0), ("+A", 0, "b", 2, None)], COLUMNS)
        fix = branch_rows.branch(dataset, "fix-it")
        branch_rows.record(
            fix, [("-C", 0, "a", 1, 1.0), ("+C", 0, "a", 9, 1.0), ("-R", 0, "b", 2, None)], COLUMNS
        )
        branch_rows.record(dataset, [("+A", 0, "c", 3, 2.5)], COLUMNS)
        gone = branch_rows.branch(dataset, "gone")
        branch_rows.record(gone, [("+A", 0, "z", 7, None)], COLUMNS)
        (dataset.folder / "refs" / "gone").unlink()
        branch_rows.keyed(workspace, (), name="log")
        branch_rows.keyed(workspace, columns=None, name="empty")
        yield workspace


def numbers(ws: odf.Workspace, sql: str, **options: Any) -> list[int]:
    return [int(row["n"]) for row in ws.sql(sql, **options).to_arrow().to_pylist()]


@pytest.mark.parametrize(("table", "expected"), CASES["points"])
def test_case_65_points_in_both_spellings(ws: odf.Workspace, table: str, expected: list[int]) -> None:
    assert numbers(ws, f"select n from {filled(ws, table)} order by n") == expected


def filled(ws: odf.Workspace, table: str) -> str:
    """The name or function, with the time of the head and a block that no reference leads to."""
    chains = [ws["d"]._files.on(ref).chain for ref in ("head", "fix-it")]
    known = {name for chain in chains for name in chain.hashes(DatasetState.read(chain).head)}
    (block,) = set(LocalObjectStore(ws["d"].path / "blocks").names()) - known
    now = ws["d"].summary.head_block.system_time
    return table.format(now=now, unreferenced=block, unreferenced_name=f"d@{block}")


ERRORS: list[tuple[str, type[Exception], str]] = [
    ("d version as of 'none'", odf.errors.QueryError, "has no branch 'none'"),
    ("d version as of '{unreferenced}'", odf.errors.PointNotFoundError, "no longer in the chain"),
    ("state('{unreferenced_name}')", odf.errors.PointNotFoundError, "no longer in the chain"),
    ("d version as of 99", odf.errors.PointNotFoundError, "no block 99"),
    ("d timestamp as of '1999-01-01'", odf.errors.DatasetNotFoundError, "begins at"),
    ("d timestamp as of '2999-01-01 10:00:00'", odf.errors.QueryError, "lies in the future"),
    ("d timestamp as of 'yesterday'", odf.errors.QueryError, "is not a time"),
    ('"d@fix-it" version as of 3', odf.errors.QueryError, "has a point already"),
    ("a.d version as of 3", odf.errors.QueryError, "a name with dots is written in quotes"),
    ('"d@fix-it:2999-01-01"', odf.errors.QueryError, "lies in the future"),
    ("diff('d@3')", odf.errors.QueryError, "1 arguments, not 2"),
    ("diff('d@3', 'log')", odf.errors.QueryError, "two datasets"),
    ("history('log')", odf.errors.QueryError, "no primary key"),
    ("history('d', 'e')", odf.errors.QueryError, "2 arguments, not 1"),
]


@pytest.mark.parametrize(("table", "error", "message"), ERRORS)
def test_case_39_points_that_are_none(
    ws: odf.Workspace, table: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ws.sql(f"select * from {filled(ws, table)}").to_arrow()


DIFF = "select k, change, \"from\"['n'] as f, \"to\"['n'] as t, columns from diff('{}', '{}') order by k"
CHANGED = [("a", "changed", 1, 9, ["n"]), ("b", "removed", 2, None, [])]
BOTH = [*CHANGED, ("c", "removed", 3, None, [])]
HISTORY = 'select k, change, "from"[\'n\'] as f, "to"[\'n\'] as t, block, "offset" from history(\'{}\') order by "offset"'
CHANGES = [
    ("a", "inserted", None, 1, 3, 0), ("b", "inserted", None, 2, 3, 1), ("a", "changed", 1, 9, 4, 3),
    ("b", "removed", 2, None, 4, 4),
]  # fmt: skip


def rows(ws: odf.Workspace, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in ws.sql(sql, **options).to_arrow().to_pylist()]


def test_what_lies_between_two_points(ws: odf.Workspace) -> None:
    assert rows(ws, DIFF.format("d@3", "d@fix-it")) == CHANGED
    assert rows(ws, DIFF.format("d", "d@fix-it")) == BOTH
    table = ws.sql("select * from diff('d', 'd@fix-it')").to_arrow()
    assert table.schema.names == ["k", "change", "from", "to", "columns"]
    assert table.to_pylist() == ws["d"].diff("head", "fix-it").changes.to_pylist()
    assert rows(ws, "select count(*) from diff('d', 'd')") == [(0,)]
    pins = ws.sql("select 1 from diff('d@3', 'd@fix-it')").inputs
    assert [(pin.name, pin.sequence_number) for pin in pins] == [("d@3", 3), ("d@fix-it", 4)]
    assert rows(ws, "select count(*) from diff('empty@1', 'empty')") == [(0,)]


def test_every_change(ws: odf.Workspace) -> None:
    assert rows(ws, HISTORY.format("d@fix-it")) == CHANGES
    table = ws.sql("select * from history('d')").to_arrow()
    assert table.schema.names == ["k", "change", "from", "to", "columns", "block", "offset", "system_time"]
    assert rows(ws, "select count(*) from history('empty')") == [(0,)]


def test_a_dataset_may_be_called_like_a_function(tmp_path: Path) -> None:
    with odf.init(tmp_path / "ws") as workspace:
        history = branch_rows.keyed(workspace, ("k",), COLUMNS, name="history")
        branch_rows.record(history, [("+A", 0, "a", 1, 1.0)], COLUMNS)
        assert numbers(workspace, "select n from history") == [1]
        assert numbers(workspace, "select count(*) as n from history('history')") == [1]


def test_processes_and_proofs_answer_the_same(ws: odf.Workspace) -> None:
    asked = DIFF.format("d", "d@fix-it")
    found = Worker().answer(Query(asked, Pins(ws._files)))
    assert [tuple(row.values()) for row in found.to_arrow().to_pylist()] == BOTH
    given = {pin.name: (pin.id, pin.block_hash) for pin in found.inputs}
    again = Embedded().run(Query(asked, Pins(ws._files, given=given))).to_arrow()
    assert [tuple(row.values()) for row in again.to_pylist()] == BOTH
    asked = "select n from d version as of 'fix-it' order by n"
    answer = ws.prove(asked)
    assert answer.datasets["d@fix-it"][1] == ws["d"].branch("fix-it").head
    assert odf.verify_proof(answer, ws).ok


@pytest.mark.soak
def test_case_65_spark_answers_the_same(ws: odf.Workspace, engine: SparkEngine) -> None:
    with on_spark(ws, engine):
        for table, expected in CASES["points"]:
            asked = f"select n from {filled(ws, table)} order by n"
            assert numbers(ws, asked, engine="spark") == expected, table
        for table, error, message in ERRORS:
            with pytest.raises(error, match=message):
                ws.sql(f"select * from {filled(ws, table)}", engine="spark").to_arrow()
        for sql, expected in ((DIFF.format("d", "d@fix-it"), BOTH), (HISTORY.format("d@fix-it"), CHANGES)):
            asked = sql.replace("\"from\"['n']", '"from".n').replace("\"to\"['n']", '"to".n')
            assert rows(ws, asked, engine="spark") == expected


@pytest.mark.parametrize(("sql", "expected"), CASES["only_clauses_are_rewritten"])
def test_only_clauses_are_rewritten(sql: str, expected: str) -> None:
    assert checked_text(sql) == expected
