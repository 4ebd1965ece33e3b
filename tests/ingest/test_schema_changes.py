"""Sources that gain, lose and reorder columns (RFC-015), from files to the recorded chain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import SchemaError
from odfchain.odf import events as ev
from odfchain.odf.sources import ReadStepNdJson
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.support import Result, manifest, of_others, unchanged

TWO = '["city STRING", "population BIGINT"]'
LEDGER = "{kind: Ledger, primaryKey: [city]}"


@pytest.fixture
def cities(workspace: Workspace, tmp_path: Path) -> Dataset:
    (dataset,) = workspace.add(manifest(LEDGER, TWO, kind="NdJson"))
    push(dataset, tmp_path, '{"city": "A", "population": 1}')
    return dataset


def push(dataset: Dataset, folder: Path, line: str) -> None:
    (folder / "in.ndjson").write_text(line + "\n")
    dataset.ingest([folder / "in.ndjson"])


def redefine(dataset: Dataset, *columns: str) -> None:
    """The push source again, with other columns."""
    source = dataset.summary.push_sources["default"]
    read = ReadStepNdJson(ddl_schema=columns)
    event = ev.AddPushSource(source_name="default", read=read, merge=source.merge)
    commit(dataset._files, dataset.summary, [event], [], system_time=Timestamp.now())


def kinds(dataset: Dataset, count: int) -> list[str]:
    return [found.block.event.KIND for found in dataset.log(count)]


def test_a_new_optional_column(cities: Dataset, tmp_path: Path, run_cli: Callable[..., Result]) -> None:
    redefine(cities, "city STRING", "mayor STRING", "population BIGINT")
    (tmp_path / "b.ndjson").write_text('{"city": "B", "population": 2, "mayor": "X"}\n')
    said = run_cli("-w", cities.path.parent.parent, "ingest", "cities", tmp_path / "b.ndjson").err
    assert "the dataset gets mayor STRING: null in what is recorded" in said
    assert kinds(cities, 3) == ["AddData", "SetDataSchema", "AddPushSource"]
    schema = cities.schema
    assert schema is not None
    assert schema.names[-3:] == ("city", "population", "mayor"), "at the end, whatever the source's order"
    expected = [{"city": "A", "population": 1, "mayor": None}, {"city": "B", "population": 2, "mayor": "X"}]
    assert cities.scan(["city", "population", "mayor"]).to_arrow().to_pylist() == expected
    assert [
        row.asDict()
        for row in cities.scan().to_spark().select("city", "population", "mayor").orderBy("city").collect()
    ] == expected
    assert cities.verify().ok


def test_missing_and_reordered_columns(cities: Dataset, tmp_path: Path) -> None:
    redefine(cities, "population BIGINT", "city STRING")
    push(cities, tmp_path, '{"city": "B", "population": 2}')
    redefine(cities, "city STRING")
    push(cities, tmp_path, '{"city": "C"}')
    assert [list(r.values()) for r in cities.scan(["city", "population"]).to_arrow().to_pylist()] == [
        ["A", 1],
        ["B", 2],
        ["C", None],
    ]
    assert kinds(cities, 4) == ["AddData", "AddPushSource", "AddData", "AddPushSource"], "the schema stays"
    assert cities.verify().ok


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("city STRING", "population INT"), r"column population is BIGINT, the input has INT \(dataset - population BIGINT \| input \+ population INT\)"),
        (("city STRING", "inhabitants BIGINT"), r"missing population; unexpected inhabitants \(dataset - population BIGINT \| input \+ inhabitants BIGINT\)"),
        (("city STRING", "population BIGINT", "mayor STRING NOT NULL"), r"unexpected mayor \(a new column must be optional\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_shown_as_a_diff(
    cities: Dataset, tmp_path: Path, columns: tuple[str, ...], said: str
) -> None:
    redefine(cities, *columns)
    with unchanged(cities.path), pytest.raises(SchemaError, match=said):
        push(cities, tmp_path, '{"city": "B", "population": 2, "inhabitants": 2, "mayor": "X"}')


def test_a_required_column_cannot_be_left_out(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(
        manifest(LEDGER, '["city STRING", "population BIGINT NOT NULL"]', kind="NdJson")
    )
    push(dataset, tmp_path, '{"city": "A", "population": 1}')
    redefine(dataset, "city STRING")
    with unchanged(dataset.path), pytest.raises(SchemaError, match="missing population"):
        push(dataset, tmp_path, '{"city": "B"}')


def test_a_column_that_comes_with_the_file(workspace: Workspace, tmp_path: Path) -> None:
    """Without a source nobody said that the column is meant; with one it is taken over."""
    (bare,) = workspace.add(
        "kind: DatasetSnapshot\nversion: 1\ncontent: {name: bare, kind: Root, metadata: []}"
    )
    push(bare, tmp_path, '{"city": "A"}')
    with unchanged(bare.path), pytest.raises(SchemaError, match="unexpected mayor"):
        push(bare, tmp_path, '{"city": "B", "mayor": "X"}')
    (declared,) = workspace.add(
        manifest(kind="NdJson", name="declared").replace("        schema:", "        #")
    )
    push(declared, tmp_path, '{"city": "A"}')
    push(declared, tmp_path, '{"city": "B", "mayor": "X"}')
    assert declared.scan(["mayor"]).to_arrow()["mayor"].to_pylist() == [None, "X"]


SYSTEM = [("offset", "UInt64"), ("op", "UInt8"), ("system_time", "Timestamp"), ("event_time", "Timestamp")]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([("a", "Int32")], "begins with `a`"),
        ([("a", "Int32"), *SYSTEM], "begins with `a`, `offset`, `op`, `system_time`"),
        ([("offset", "String"), *SYSTEM[1:], ("a", "Int32")], "has STRING for `offset`"),
        ([*SYSTEM[:3], ("event_time", "Int64"), ("a", "Int32")], "for `event_time`"),
        ([*SYSTEM, ("a", "Int32"), ("a", "Int32")], "has column `a` twice"),
    ],
)
def test_a_declared_schema_that_holds_no_rows(
    workspace: Workspace, tmp_path: Path, columns: list[tuple[str, str]], problem: str
) -> None:
    declared = ", ".join(f"{{name: {name}, type: {kind}}}" for name, kind in columns)
    text = manifest("{kind: Append}", '["a INT NOT NULL"]', kind="NdJson")
    dataset = of_others(
        workspace, f"{text}    - kind: SetDataSchema\n      schema: {{fields: [{declared}]}}\n"
    )
    head = dataset.head
    with pytest.raises(SchemaError) as caught:
        push(dataset, tmp_path, '{"a": 1}')
    assert problem in str(caught.value)
    assert dataset.head == head
