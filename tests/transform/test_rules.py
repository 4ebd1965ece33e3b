"""What was recorded by the first rules of the engine is replayed by them and goes on by them; new datasets get the newest."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError
from odfchain.odf.manifests import read_snapshots
from odfchain.spark.session import SparkEngine
from odfchain.transform.engines import RULES, EngineRules, engine_version, rules_of, same_results
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.derived_dataset import QUERIES, SCHEMA, add_rows
from tests.kit.root_rows import MADE, add_root
from tests.kit.support import FIXTURES, configure, derivative

ARCHIVE = FIXTURES / "chains" / "rules-1.zip"
"""Made before there were other rules, and never again: its steps keep their meaning."""
RECORDED = ("plain", "daily", "sessions", "followed", "totals", "top", "best", "busiest", "placed")
"""Datasets in it, made of its `readings` and `places` by queries of every kind."""
RUNNING = engine_version()
SPARK = RUNNING.partition("-")[2]


@pytest.fixture
def foreign(tmp_path: Path) -> Workspace:
    """The datasets of the archive, without their keys; with the settings that one has from the start."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    (tmp_path / ".odfchain" / "config.yaml").unlink(missing_ok=True)
    return Workspace.open(tmp_path)


def version_of(workspace: Workspace, name: str) -> str | None:
    transform = DatasetState.read(workspace[name]._files.chain).transform
    return transform.transform.version


@pytest.mark.soak
def test_steps_that_were_recorded_by_the_first_rules_are_replayed_by_them(
    foreign: Workspace, engine: SparkEngine
) -> None:
    configure(foreign.path, transform={"isolation": "never"})
    recorded = Workspace.open(foreign.path.parent)
    recorded._engines.spark = engine
    datasets = [recorded[name] for name in RECORDED]
    assert {version_of(recorded, name) for name in RECORDED} == {f"odfchain_1-{SPARK}"}
    reports = recorded.verify(datasets, recursive=True, replay=True)
    found = {r.alias: (r.faults, r.unchecked, r.notes) for r in reports}
    assert found == dict.fromkeys(["places", "readings", *RECORDED], ([], [], []))
    replays = [r.replay for r in reports if r.replay is not None]
    assert [r.engines for r in replays] == [[f"odfchain_1-{SPARK}"]] * len(RECORDED)
    assert sum(r.transactions for r in replays) == 4 * len(RECORDED)


def test_a_dataset_goes_on_by_the_rules_of_its_transform_until_that_is_set_anew(workspace: Workspace) -> None:
    readings = add_root(workspace, "readings", SCHEMA)
    new = derivative(QUERIES["totals"], name="new", inputs="[{datasetRef: readings}]")
    old = new.replace("name: new", "name: old")
    old = old.replace("engine: spark", f"engine: spark, version: odfchain_1-{SPARK}")
    made = [workspace.add(text, check=False)[0] for text in (old, new)]
    assert [version_of(workspace, name) for name in ("old", "new")] == [f"odfchain_1-{SPARK}", RUNNING]
    add_rows(readings, [(1, "north", 1), (1, "south", 2)])
    for dataset in made:
        dataset.pull(system_time=MADE)
    totals = [d.scan(["sensor", "level"]).to_arrow().to_pylist() if d.schema else [] for d in made]
    assert totals == [[], [{"sensor": "north", "level": 1}, {"sensor": "south", "level": 2}]]
    for text, appended in ((old.replace(f", version: odfchain_1-{SPARK}", ""), []), (new, [])):
        (snapshot,) = read_snapshots(text)
        assert workspace.update(snapshot, check=False)[1] == appended, "the manifest says nothing new"
    assert version_of(workspace, "old") == f"odfchain_1-{SPARK}"


@pytest.mark.parametrize(
    ("version", "number", "lateness"),
    [
        (None, RULES, 0),
        (f"odfchain_1-{SPARK}", 1, 0),
        (f"odfchain_2-{SPARK}", 2, 0),
        (f"odfchain_2-{SPARK}+allowedLateness=PT90S", 2, 90_000),
        ("spark 3.5 of somebody else", RULES, 0),
    ],
)
def test_a_version_says_by_which_rules_a_transform_is_executed(
    version: str | None, number: int, lateness: int
) -> None:
    assert rules_of(version) == EngineRules(number, lateness)
    if version is not None and version.startswith("odfchain"):
        assert rules_of(version).version == version


@pytest.mark.parametrize(
    "version",
    [
        f"odfchain_0-{SPARK}", f"odfchain_{RULES + 1}-{SPARK}", "odfchain_2-spark_3.5.0", f"odfchain_2-{SPARK} ",
        f"odfchain_1-{SPARK}+allowedLateness=PT90S", f"odfchain_2-{SPARK}+allowedLateness=PT0S",
        f"odfchain_2-{SPARK}+allowedLateness=P1D", f"odfchain_2-{SPARK}+unheardOf=1",
        f"odfchain_2-{SPARK}+allowedLateness=PT1S+allowedLateness=PT2S", "odfchain_2", "",
    ],
)  # fmt: skip
def test_a_version_that_is_not_known_here_has_other_results(version: str) -> None:
    assert not same_results(version, RUNNING)
    assert same_results(version, RUNNING, [version]), "somebody may declare that they are the same"


def test_every_number_of_the_rules_is_executed_here() -> None:
    major, minor = SPARK.removeprefix("spark_").split(".")[:2]
    for number in range(1, RULES + 1):
        for patch in (SPARK, f"spark_{major}.{minor}", f"spark_{major}.{minor}.99"):
            assert same_results(f"odfchain_{number}-{patch}", RUNNING)


def test_the_archive_holds_no_keys() -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        assert [n for n in archive.namelist() if "key" in n or n.endswith(".pem")] == []
        assert json.dumps(archive.namelist()).count("checkpoints/") >= 4 * (len(RECORDED) - 1)


@pytest.mark.soak
def test_a_replay_in_the_sandbox_finds_what_was_recorded(foreign: Workspace) -> None:
    (report,) = foreign.verify(["totals"], replay=True)
    assert (report.faults, report.unchecked) == ([], [])
    # the index is one of an earlier release, whose rows were shorter
    assert [note for note in report.notes if "chain-index" not in note] == []
    assert report.replay.transactions == 4
    assert foreign._engines.spark is None or not foreign._engines.spark.started


def test_without_a_sandbox_the_query_is_not_run(
    foreign: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="bubblewrap is not installed") as caught:
        foreign.verify(["totals"], replay=True)
    assert str(caught.value.hint).startswith("apt-get install bubblewrap; ")
