"""What queries mean: numbered cases over small changelogs, read from the fixture, on every engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import odfchain as odf
from odfchain.spark.session import SparkEngine
from tests.kit.query_datasets import CASES as DOCUMENT
from tests.kit.query_datasets import dropped_block, make, on_spark

CASES = {case["id"]: case for case in DOCUMENT["cases"]}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path_factory.mktemp("cases")) as workspace:
        for name, spec in DOCUMENT["datasets"].items():
            make(workspace, name, spec)
        yield workspace


@pytest.fixture(scope="module")
def dropped(workspace: odf.Workspace) -> str:
    return str(dropped_block(workspace["x"]._files))


def plain(value: Any) -> Any:
    """A value as JSON writes it."""
    return value if value is None or isinstance(value, int | str) else str(value)


def answered(workspace: odf.Workspace, case: dict[str, Any], dropped: str, engine: str) -> None:
    """The case holds on an engine."""
    sql = re.sub(r"\{id:(\w+)\}", lambda found: str(workspace[found[1]].id), case["sql"])
    sql = sql.replace("{dropped}", dropped)
    if "exit" in case:
        with pytest.raises(odf.OdfchainError) as caught:
            workspace.sql(sql, engine=engine).to_arrow()
        assert caught.value.exit_code == case["exit"], str(caught.value)
        assert case.get("says", "") in str(caught.value)
        assert case.get("hint", "") in (caught.value.hint or "")
        return
    result = workspace.sql(sql, engine=engine)
    table = result.to_arrow()
    if "rows" in case:
        assert [[plain(v) for v in row.values()] for row in table.to_pylist()] == case["rows"]
    if "columns" in case:
        assert table.schema.names == case["columns"]
        assert table.num_rows == case["count"]
    if "inputs" in case:
        assert [str(pin.alias) for pin in result.inputs] == case["inputs"]
        assert case.get("blocks") in (None, [pin.sequence_number for pin in result.inputs])


@pytest.mark.parametrize("name", CASES)
def test_embedded(workspace: odf.Workspace, dropped: str, name: str) -> None:
    answered(workspace, CASES[name], dropped, "datafusion")


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].get("engine", "spark") == "spark"])
def test_on_spark(workspace: odf.Workspace, engine: SparkEngine, dropped: str, name: str) -> None:
    with on_spark(workspace, engine):
        answered(workspace, CASES[name], dropped, "spark")
