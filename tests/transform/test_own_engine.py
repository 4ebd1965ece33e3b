"""What our transforms call their engine, and chains from the time when they called it `spark`. No Spark here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from odfchain import Workspace
from odfchain.api.dataset import Dataset
from odfchain.api.settings import edit, setting
from odfchain.errors import QueryError, TransformError
from odfchain.odf.events import SetTransform
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.sources import TransformSql
from odfchain.odf.transform_options import is_own, with_own_name
from odfchain.transform.engine_protocol import RemoteEngine
from odfchain.transform.engines import engine_version, place_of
from odfchain.workspace.config import EnginePlace, TransformConfig, read_config
from odfchain.workspace.dataset_state import SystemColumns
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import Run, derivative, ingest_rows, manifest

HERE = "http://127.0.0.1:1"
PLACE = EnginePlace(address=HERE)
SPARK = TransformConfig(engines={"spark": PLACE})


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    found = Workspace.init(tmp_path)
    found.add(manifest())
    return found


def engine_of(space: Workspace, name: str = "derived") -> tuple[str, str | None]:
    transform = space[name].summary.transform
    return transform.transform.engine, transform.transform.version


def updated(space: Workspace, text: str) -> list[str]:
    return [event.KIND for event in space.update(read_snapshots(text)[0], check=False)[1]]


@pytest.mark.parametrize("given", ["odfchain-spark", "spark", "Spark", "ODFCHAIN-SPARK"])
def test_what_is_recorded_names_this_engine(space: Workspace, given: str) -> None:
    space.add(derivative(engine=given), check=False)
    assert engine_of(space) == ("odfchain-spark", engine_version())
    for same in ("spark", "odfchain-spark"):
        assert updated(space, derivative(engine=same)) == []


def test_an_address_makes_spark_another_engine(space: Workspace) -> None:
    edit(space.path, setting("transform.engines.spark"), lambda _: HERE)
    space.add(derivative(engine="spark"), check=False)
    assert engine_of(space) == ("spark", None)
    assert updated(space, derivative(engine="spark")) == []
    space.add(derivative(engine="odfchain-spark", name="ours"), check=False)
    assert engine_of(space, "ours") == ("odfchain-spark", engine_version())


@pytest.mark.parametrize("version", [None, "odfchain_1-spark_4.3.0"])
@pytest.mark.parametrize("given", ["odfchain-spark", "spark"])
def test_the_same_manifest_appends_nothing_to_an_old_chain(
    space: Workspace, version: str | None, given: str
) -> None:
    (snapshot,) = read_snapshots(derivative(engine="spark"))
    (event,) = snapshot.metadata
    assert isinstance(event, SetTransform)
    old = dataclasses.replace(event, transform=dataclasses.replace(event.transform, version=version))
    space._files.create(dataclasses.replace(snapshot, metadata=(old,)))
    assert engine_of(space) == ("spark", version)
    head = space["derived"].head
    assert updated(space, derivative(engine=given)) == []
    assert space["derived"].head == head
    changed = derivative("SELECT event_time, city, 1 AS one FROM cities", engine=given)
    assert updated(space, changed) == ["SetTransform"]
    assert engine_of(space) == ("odfchain-spark", engine_version())


@pytest.mark.parametrize(
    ("engine", "version", "own"),
    [
        ("spark", None, True),
        ("spark", "odfchain_1-spark_4.3.0", True),
        ("spark", "0.23.1-spark_3.5.0", False),
        ("odfchain-spark", None, True),
        ("odfchain-spark", "odfchain_9-spark_5.0.0", True),
        ("flink", None, False),
        ("datafusion", "odfchain_1-spark_4.3.0", False),
    ],
)
def test_whose_a_transform_is(engine: str, version: str | None, own: bool) -> None:
    transform = TransformSql(engine=engine, version=version, query="SELECT 1")
    assert is_own(transform) is own
    assert with_own_name(transform).engine == ("odfchain-spark" if own else engine)


def test_addresses() -> None:
    old = TransformSql(engine="spark", version="odfchain_1-spark_4.3.0", query="SELECT 1")
    assert place_of(old, SPARK) is None, "what we recorded stays ours"
    assert RemoteEngine.of(old, SPARK) is None
    assert place_of(TransformSql(engine="spark", query="SELECT 1"), SPARK) == PLACE
    theirs = TransformSql(engine="spark", version="0.23.1-spark_3.5.0", query="SELECT 1")
    assert place_of(theirs, SPARK) == PLACE
    ours = TransformConfig(engines={"odfchain-spark": PLACE})
    assert place_of(dataclasses.replace(old, engine="odfchain-spark"), ours) == PLACE
    with pytest.raises(TransformError, match="which is not this one") as caught:
        RemoteEngine.of(TransformSql(engine="flink", query="SELECT 1"), SPARK)
    assert "odfchain-spark" in (caught.value.hint or "")


def test_the_command_says_what_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*args: str) -> str:
        result = run(*args)
        assert result.code == 0, result.err
        return result.err

    said("init")
    hint = said("new", "org.example.cities", "--root", "--for", "kamu")
    assert "odfchain add --system-columns reference org.example.cities.yaml" in hint
    said("add", "--no-check", "--system-columns", "reference", "org.example.cities.yaml")
    files = WorkspaceFiles.find(tmp_path)
    assert read_config(files.dataset("org.example.cities")).system_columns is SystemColumns.REFERENCE
    said("new", "ours", "--derivative")
    assert said("add", "--no-check", "ours.yaml") == "added ours (derivative)\n"
    text = Path("ours.yaml").read_text().replace("odfchain-spark", "spark")
    Path("theirs.yaml").write_text(text.replace("name: ours", "name: theirs"))
    added = "added theirs (derivative); its engine `spark` is recorded as odfchain-spark\n"
    assert said("add", "--no-check", "theirs.yaml") == added
    assert said("add", "--no-check", "--update", "theirs.yaml") == "theirs is up to date\n"
    assert read_config(files.dataset("ours")).system_columns is None


COUNTED = "SELECT max(event_time) AS event_time, country, count(*) AS n FROM cities GROUP BY country"
DAY = "window(event_time, '1 day')"
DAILY = f"SELECT {DAY}.start AS event_time, country, count(*) AS n FROM cities GROUP BY {DAY}, country"
LATE = f"query: {DAILY!r}, allowedLateness: 60 days"

RELEASES = [
    [("2020-01-01", "Ayr", "UK"), ("2020-01-01", "Bonn", "DE"), ("2020-01-01", "Cork", "IE"), ("2020-01-01", "Ulm", "DE")],
    [("2020-02-01", "Ayr", "GB"), ("2020-01-01", "Bonn", "DE"), ("2020-01-01", "Ulm", "DE"), ("2020-02-01", "Graz", "AT")],
    [("2020-02-01", "Ayr", "GB"), ("2020-02-10", "Bonn", "GE"), ("2020-01-01", "Ulm", "DE"), ("2020-02-01", "Graz", "AT")],
]  # fmt: skip
"""Event time, name, country. The second corrects Ayr, drops Cork and brings Graz; the third corrects Bonn."""


@pytest.fixture
def home(workspace: Workspace) -> Path:
    schema = '["event_time TIMESTAMP", "city STRING", "country STRING"]'
    workspace.add(manifest("{kind: Snapshot, primaryKey: [city]}", schema))
    return workspace.path.parent


def release(workspace: Workspace, number: int) -> None:
    rows = (f"{day}T00:00:00Z,{city},{country}" for day, city, country in RELEASES[number])
    ingest_rows(workspace["cities"], "event_time,city,country", rows)


def rows_of(dataset: Dataset) -> list[tuple[Any, ...]]:
    if dataset.schema is None:
        return []
    table = dataset.scan(["op", "event_time", "country", "n"]).to_arrow().to_pylist()
    return [(row["op"], f"{row['event_time']:%m-%d}", row["country"], row["n"]) for row in table]


@pytest.mark.soak
def test_releases_count_at_once_and_correct_what_was_made_of_them(
    workspace: Workspace, home: Path, tmp_path: Path, run_cli: Run
) -> None:
    for name, query in (("counted", COUNTED), ("daily", DAILY), ("corrected", LATE)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(derivative(query, name=name), encoding="utf-8")
        assert run_cli("-w", home, "add", path).code == 0
    names = ("counted", "daily", "corrected")
    notes: list[list[str]] = []
    for number in range(len(RELEASES)):
        release(workspace, number)
        notes.append([])
        for name in names:
            result = run_cli("-w", home, "pull", name)
            assert result.code == 0, result.err
            notes[-1] += [line for line in result.err.splitlines() if "rows" in line or "row " in line]
    counted, daily, corrected = (rows_of(workspace[name]) for name in names)
    assert counted == [
        (0, "01-01", "DE", 2), (0, "01-01", "IE", 1), (0, "01-01", "UK", 1),
        (1, "01-01", "IE", 1), (1, "01-01", "UK", 1), (0, "02-01", "AT", 1), (0, "02-01", "GB", 1),
        (1, "01-01", "DE", 2), (0, "01-01", "DE", 1), (0, "02-10", "GE", 1),
    ]  # fmt: skip
    assert daily == [(0, "01-01", "DE", 2), (0, "02-01", "AT", 1), (0, "02-01", "GB", 1)]
    assert corrected == [
        (0, "01-01", "DE", 2), (2, "01-01", "DE", 2), (3, "01-01", "DE", 1),
        (0, "02-01", "AT", 1), (0, "02-01", "GB", 1),
    ]  # fmt: skip
    waits = "cities: 4 rows wait for the watermark 2020-01-01T00:00:00Z to move on"
    assert [sum(waits in line for line in step) for step in notes] == [2, 0, 0]
    late = "cities: 1 row came too late and was left out"
    assert [sum(late in line for line in step) for step in notes] == [0, 0, 1]
    result = run_cli("-w", home, "verify", "%", "--replay")
    assert result.code == 0, result.out


@pytest.mark.usefixtures("home")
def test_a_query_without_windows_has_no_lateness(workspace: Workspace) -> None:
    release(workspace, 0)
    with pytest.raises(QueryError, match="allowedLateness is for windows"):
        workspace.add(derivative(f"query: {COUNTED!r}, allowedLateness: 60 days"))


def test_a_query_that_corrections_do_not_find_is_told_so(
    workspace: Workspace, home: Path, tmp_path: Path, run_cli: Run
) -> None:
    release(workspace, 0)
    path = tmp_path / "parity.yaml"
    odd = DAILY.replace("FROM cities", "FROM (SELECT *, offset % 2 AS odd FROM cities)")
    for sql, blind in (
        (odd.replace("count(*)", "sum(odd)"), True),
        (DAILY.replace("FROM cities", "FROM cities WHERE offset > 0"), True),
        (DAILY.replace("FROM cities", "FROM cities WHERE op < 2"), False),
        (DAILY.replace("count(*)", "max(offset)"), False),
    ):  # fmt: skip
        path.write_text(derivative(sql, name="parity"), encoding="utf-8")
        result = run_cli("-w", home, "add", path)
        assert result.code == 0, result.err
        assert ("the query computes with `offset`" in result.err) == blind, result.err
        workspace.delete("parity")
