"""What is found out about a query before it is recorded, and what is recorded of a changed manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import ManifestError, OdfchainError, QueryError, TransformError, WorkspaceError
from odfchain.odf.events import ExecuteTransform, SetTransform
from odfchain.odf.manifests import read_snapshots
from odfchain.transform.engines import engine_version
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import (
    Notes,
    Run,
    copied,
    derivative,
    fixture,
    ingest_rows,
    manifest,
    steps,
    tree_of,
    unchanged,
)

WRONG = fixture("queries/wrong.yaml")

SCHEMA = '["event_time TIMESTAMP", "city STRING", "population BIGINT"]'
SELECT = "SELECT event_time, city FROM cities"


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    workspace = new_workspace()
    (dataset,) = workspace.add(manifest(schema=SCHEMA))
    rows = [f"2020-01-{n:02}T00:00:00Z,{city},{n}" for n, city in enumerate("ABC", 1)]
    ingest_rows(dataset, "event_time,city,population", rows)
    return workspace


@pytest.fixture
def cities(made: Workspace, workspace: Workspace) -> Dataset:
    return copied(made, workspace)["cities"]


def names(workspace: Workspace) -> list[str]:
    return [str(dataset.alias) for dataset in workspace]


def test_a_query_over_known_columns(workspace: Workspace, cities: Dataset) -> None:
    notes = Notes()
    (dataset,) = workspace.add(derivative(), progress=notes)
    assert notes.texts == []
    assert dataset.pull().blocks == 2, "the schema, and the step"
    assert [row["city"] for row in dataset.scan().to_arrow().to_pylist()] == ["A", "B", "C"]


DECLARED = """\
    - kind: SetDataSchema
      schema:
        fields:
          - {name: offset, type: {kind: UInt64}}
          - {name: op, type: {kind: UInt8}}
          - {name: system_time, type: {kind: Timestamp, unit: Millisecond, timezone: UTC}}
          - {name: event_time, type: {kind: %s}}
          - {name: %s, type: {kind: Option, inner: {kind: String}}}
"""
TIME = "Option, inner: {kind: Timestamp, unit: Millisecond, timezone: UTC}"


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_executed_is_not_made(workspace: Workspace, cities: Dataset, case: str) -> None:
    wrong = WRONG[case]
    more = DECLARED % tuple(wrong["declares"]) if "declares" in wrong else ""
    workspace.add(manifest(name="other"))
    with pytest.raises(OdfchainError) as caught:
        workspace.add(derivative(**wrong.get("given", {}), more=more))
    assert str(caught.value).startswith(f"derived: {wrong['says']}")
    assert "\n" not in str(caught.value)
    if "hint" in wrong:
        assert caught.value.hint == wrong["hint"]
    assert names(workspace) == ["cities", "other"]


def test_a_declared_schema_that_fits(workspace: Workspace, cities: Dataset) -> None:
    (dataset,) = workspace.add(derivative(more=DECLARED % (TIME, "city")))
    assert dataset.pull().blocks == 1, "the schema was declared already"
    assert dataset.schema.names == ("offset", "op", "system_time", "event_time", "city")


def test_columns_wait_for_the_first_pull_of_an_input(workspace: Workspace) -> None:
    """Inputs of the same manifest: they have no columns when the query is read."""
    notes = Notes()
    workspace.add(f"{derivative('SELECT event_time, nothing FROM cities')}---\n{manifest()}", progress=notes)
    assert names(workspace) == ["cities", "derived"]
    assert notes.texts == [
        "`cities` has no columns before the first pull, which then checks those of the query"
    ]
    with pytest.raises(QueryError, match=r"^derived: query, line 1, column 8: .*`rand`"):
        workspace.add(derivative("SELECT rand() FROM cities"))
    temporal = f'query: "{SELECT}", temporalTables: [{{name: %s, primaryKey: %s}}]'
    for name, key in (("town", "[city]"), ("cities", "[]")):
        with pytest.raises(QueryError, match=r"temporalTables|primary key"):
            workspace.add(derivative(temporal % (name, key), name="next"))


def test_nothing_of_a_manifest_is_made_when_one_query_is_wrong(workspace: Workspace) -> None:
    with pytest.raises(QueryError, match=r"^derived: query, line 1, column 15: there is no table `town`"):
        workspace.add(f"{manifest()}---\n{derivative('SELECT 1 FROM town')}")
    assert names(workspace) == []


def test_preprocessing_is_read(workspace: Workspace) -> None:
    text = manifest().replace(
        "      merge", "      preprocess: {kind: Sql, engine: spark, query: %s}\n      merge"
    )
    with pytest.raises(QueryError, match=r"^cities: query, line 1, column 15: there is no table `cities`"):
        workspace.add(text % "SELECT 1 FROM cities")
    assert names(workspace) == []
    workspace.add(text % "SELECT whatever FROM input")
    assert names(workspace) == ["cities"]


def test_what_has_no_query_needs_no_spark(tmp_path: Path) -> None:
    with Workspace.init(tmp_path) as home:
        home.add(manifest())
        home.add(derivative(), check=False)
        assert home._engines.spark is None


def test_an_engine_at_an_address_reads_its_queries_itself(tmp_path: Path) -> None:
    files = WorkspaceFiles.init(tmp_path)
    (files.root / "config.yaml").write_text(
        "kind: WorkspaceConfig\nversion: 1\ncontent: {transform: {engines: {presto: 'localhost:1'}}}\n"
    )
    with Workspace.open(tmp_path) as home:
        home.add(manifest())
        home.add(derivative("WHATEVER PRESTO READS", engine="presto"))
        assert home._engines.spark is None
        twice = "[{datasetRef: cities, alias: a}, {datasetRef: derived, alias: a}]"
        with pytest.raises(TransformError, match="two inputs are called `a`"):
            home.add(derivative(name="next", engine="presto", inputs=twice))


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("SELECT max(event_time) AS event_time, city FROM cities GROUP BY city", "grows with its inputs"),
        ("SELECT event_time + INTERVAL 1 DAY * population AS event_time FROM cities", "no watermark"),
    ],
)
def test_what_the_user_should_know(workspace: Workspace, cities: Dataset, query: str, note: str) -> None:
    notes = Notes()
    workspace.add(derivative(query), progress=notes)
    (said,) = notes.texts
    assert note in said


def update(workspace: Workspace, text: str) -> list[str]:
    (snapshot,) = read_snapshots(text)
    _, events = workspace.update(snapshot)
    return [event.KIND for event in events]


def test_a_query_that_adds_a_column(workspace: Workspace, cities: Dataset) -> None:
    (dataset,) = workspace.add(derivative())
    dataset.pull()
    assert update(workspace, derivative()) == [], "the same manifest says nothing new"
    grown = derivative("SELECT event_time, city, population * 10 AS tens FROM cities")
    assert update(workspace, grown) == ["SetTransform"]
    transform = dataset.summary.transform
    assert transform.transform.version == engine_version()
    assert update(workspace, grown) == []
    ingest_rows(cities, "event_time,city,population", ["2020-01-04T00:00:00Z,D,4"])
    dataset.pull()
    assert [(r["city"], r["tens"]) for r in dataset.tail(2).to_pylist()] == [("C", None), ("D", 40)]
    assert update(workspace, grown) == [], "a declared schema that has grown is the same"
    assert dataset.verify().ok


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (derivative("SELECT event_time FROM cities"), "the result has no column `city` any more"),
        (derivative("SELECT event_time, 1 AS city FROM cities"), "column `city` is Int32 now and was String"),
        (
            derivative("SELECT event_time, citi FROM cities"),
            "query, line 1, column 20: there is no column `citi`",
        ),
        (
            derivative(inputs="[{datasetRef: other, alias: cities}]"),
            "the inputs would be cities, which are not",
        ),
    ],
)
def test_a_query_that_readers_could_not_follow(
    workspace: Workspace, cities: Dataset, text: str, message: str
) -> None:
    workspace.add(manifest(name="other", schema=SCHEMA))
    (dataset,) = workspace.add(derivative())
    dataset.pull()
    with unchanged(dataset.path), pytest.raises(OdfchainError) as caught:
        update(workspace, text)
    assert str(caught.value).startswith(f"derived: {message}")


def test_other_events_of_a_manifest(workspace: Workspace, cities: Dataset) -> None:
    """A root dataset: what differs is recorded, what is not mentioned stays."""
    info = manifest(schema=SCHEMA) + "    - {kind: SetInfo, description: Cities}\n"
    assert update(workspace, info) == ["SetInfo"]
    assert update(workspace, info) == []
    assert update(workspace, manifest(schema=SCHEMA)) == []
    assert update(workspace, manifest(schema=SCHEMA.replace("]", ', "mayor STRING"]'))) == ["AddPushSource"]
    with pytest.raises(ManifestError, match="column population is BIGINT, the input has INT"):
        update(workspace, manifest(schema=SCHEMA.replace("BIGINT", "INT")))
    with pytest.raises(WorkspaceError, match="cities is a Root dataset"):
        update(workspace, derivative(name="cities", inputs="[{datasetRef: cities}]"))


def test_the_command_shows_the_place(
    workspace: Workspace, cities: Dataset, run_cli: Run, tmp_path: Path
) -> None:
    home = workspace.path.parent
    path = tmp_path / "derived.yaml"
    path.write_text(derivative(steps(("a", "SELECT event_time,\n  citi FROM cities"), "SELECT * FROM a")))
    result = run_cli("-w", home, "add", path)
    assert result.code == 3
    assert result.err.splitlines() == [
        f"error: {path}: derived: query step 1 (`a`), line 2, column 3: there is no column `citi`",
        "  citi FROM cities",
        "  ^",
        "hint: did you mean city?",
    ]
    assert names(workspace) == ["cities"]
    assert run_cli("-w", home, "add", "--no-check", path).code == 0
    dataset = workspace["derived"]
    with unchanged(dataset.path):
        result = run_cli("-w", home, "pull", "derived")
    assert result.code == 3
    assert "query step 1 (`a`), line 2, column 3: there is no column `citi`" in result.err
    path.write_text(derivative())
    assert run_cli("-w", home, "add", path).code == 5, "the name is taken, and nobody said --update"
    result = run_cli("-w", home, "add", "--update", path)
    assert (result.code, result.err) == (0, "updated derived (SetTransform)\n")
    assert run_cli("-w", home, "add", "--update", path).err == "derived is up to date\n"
    assert run_cli("-w", home, "pull", "derived").code == 0
    kinds = [type(found.block.event) for found in dataset.log()]
    assert kinds.count(SetTransform) == 2
    assert kinds.count(ExecuteTransform) == 1


def test_one_wrong_manifest_keeps_all_from_being_made(
    workspace: Workspace, cities: Dataset, run_cli: Run, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(derivative(name="good"))
    bad.write_text(derivative("SELECT city FROM cities", name="bad"))
    before = tree_of(workspace.path / "datasets")
    result = run_cli("-w", workspace.path.parent, "add", good, bad)
    assert result.code == 3
    assert f"error: {bad}: bad: the result has no column `event_time`" in result.err
    assert names(workspace) == ["cities"]
    assert tree_of(workspace.path / "datasets") == before
