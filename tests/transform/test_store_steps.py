"""Steps by executors that see no folder of the driver: slices and checkpoints as elsewhere (RFC-048)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf.events import ExecuteTransform
from odfchain.odf.manifests import read_snapshots
from odfchain.progress import SILENT
from odfchain.spark import executor_files
from odfchain.spark.executor_files import files_of, give_files
from odfchain.spark.session import SparkEngine
from odfchain.transform.spark_engine import SparkTransformEngine
from odfchain.transform.validate import StateChange
from tests.kit import case_process, shared_store
from tests.kit.folder_files import FolderFiles
from tests.kit.shared_store import objects, wide_machine
from tests.kit.small_s3 import SmallS3
from tests.kit.support import derivative, limit_slices, manifest
from tests.kit.transform_cases import SIGNED, Case

TIME = "2050-01-01T00:00:00Z"
QUERIES = {
    "stateless": "SELECT event_time, city, population * 2 AS x FROM cities WHERE population % 3 > 0",
    "retracting": "SELECT max(event_time) AS event_time, city, sum(population) AS x FROM cities GROUP BY city",
    "join": "SELECT a.event_time, a.city, b.population AS x FROM cities a JOIN cities b ON a.city = b.city "
    "AND a.population = b.population",
    "windowed": "SELECT window.start AS event_time, city, count(*) AS x FROM cities "
    "GROUP BY window(event_time, '1 hour'), city",
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: SparkEngine) -> Iterator[SmallS3]:
    """A store on loopback that workers have credentials for; no step is small, and nothing is carried."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", -1)
    with SmallS3() as store, shared_store.credentials_of_workers(engine):
        yield store


@pytest.fixture
def wide(store: SmallS3, engine: SparkEngine, tmp_path: Path) -> Workspace:
    """A workspace in the store, whose executors are told of no folder."""
    return wide_machine(store, tmp_path / "wide", engine)


def compiled(workspace: Workspace) -> Workspace:
    """The workspace, of whose steps none is taken for a small one."""
    workspace._engines.transforms()._small_rows = -1
    return workspace


def grown(dataset: Dataset, folder: Path, numbers: range) -> None:
    (path := folder / "cities.csv").write_text(
        "".join(["city,population\n", *(f"Ayr {n % 9},{n}\n" for n in numbers)])
    )
    hour = numbers.start // 32
    dataset.ingest([path], event_time=f"2049-01-01T{hour:02}:30:00Z", system_time=TIME)


def steps(dataset: Dataset) -> list[ExecuteTransform]:
    """What the blocks say, oldest first: hashes of slices and checkpoints, offsets, watermarks."""
    found = dataset._files.chain.nearest_all(ExecuteTransform.KIND, head=dataset.head)
    events = [each.block.event for each in reversed(list(found))]
    assert all(isinstance(event, ExecuteTransform) for event in events)
    return cast("list[ExecuteTransform]", events)


def derived(workspace: Workspace, query: str, folder: Path) -> Dataset:
    """A derivative, of two steps."""
    (root,) = workspace.add(manifest())
    (dataset,) = workspace.add(derivative(query, name="x"), check=False)
    for numbers in (range(32), range(32, 80)):
        grown(root, folder, numbers)
        dataset.pull(system_time=TIME)
    return dataset


def check_replay(dataset: Dataset) -> None:
    """Every step gives the same slice, and the same checkpoint byte by byte."""
    report = dataset.verify(replay=True)
    assert report.ok, report
    assert report.notes == []
    assert report.replay is not None
    assert report.replay.transactions == len(steps(dataset)) == 2


def test_a_slice_is_put_once_and_copied_for_the_checks_of_the_step(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    """A worker reads the input's slice, and puts the new one; the commit does not send it again.

    The driver, which does not have the input's slice, asks for its footer.
    """
    (root,) = compiled(wide).add(manifest())
    wide.add(derivative(QUERIES["stateless"], name="x"), check=False)
    grown(root, tmp_path, range(32))
    store.requests.clear()
    wide["x"].pull(system_time=TIME)
    (made,) = (event.new_data for event in steps(wide["x"]))
    assert made is not None
    of_slices = [(method, path) for method, path, _ in store.requests if "/data/" in path]
    assert [method for method, path in of_slices if path.endswith(str(made.physical_hash))] == ["PUT", "GET"]
    assert [method for method, _ in of_slices] == ["HEAD", "GET", "GET", "PUT", "GET"]
    assert not any("staging/" in path for _, path, _ in store.requests)


@pytest.mark.soak
def test_a_small_step_costs_the_store_no_request(
    wide: Workspace, store: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads, and what the step before remembers, goes within the plan; the driver writes."""
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", 256 << 10)
    (root,) = wide.add(manifest())
    wide.add(derivative(QUERIES["retracting"], name="x"), check=False)
    for numbers in (range(9), range(32, 34)):
        grown(root, tmp_path, numbers)
        store.requests.clear()
        wide["x"].pull(system_time=TIME)
    assert [event.new_data.size > 0 for event in steps(wide["x"]) if event.new_data] == [True, True]
    assert not any("staging/" in path for _, path, _ in store.requests)
    written = [path.split("/")[-2] for method, path, _ in store.requests if method == "PUT"]
    assert sorted(written) == ["blocks", "checkpoints", "data", "refs", "refs"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", QUERIES)
def test_blocks_are_those_of_executors_that_see_the_folder(
    workspace: Workspace, wide: Workspace, store: SmallS3, tmp_path: Path, kind: str
) -> None:
    dataset = derived(compiled(wide), QUERIES[kind], tmp_path)
    put = [path for method, path, _ in store.requests if method == "PUT"]
    made = [event.new_data for event in steps(dataset) if event.new_data]
    assert made
    for each in made:
        assert sum(path.endswith(str(each.physical_hash)) for path in put) == 1
    assert any(event.new_checkpoint for event in steps(dataset)) == (kind != "stateless")
    assert objects(store, "staging/") == {}
    there = objects(store)
    check_replay(dataset)
    assert objects(store) == there, "nothing is put where it would stay"
    wide._engines.close()
    wide._engines.spark = workspace._engines.spark
    assert files_of(wide._engines.session()) is None
    check_replay(dataset)


@pytest.mark.soak
def test_every_kind_of_query_gives_the_same_bytes(engine: SparkEngine, tmp_path: Path) -> None:
    cases = case_process.runnable()
    found = answers(engine, tmp_path, cases)
    assert len(found["here"]) == sum(case.steps for case in cases) > 40
    assert found["there"] == found["here"]


def answers(engine: SparkEngine, tmp_path: Path, cases: Sequence[Case]) -> dict[str, dict[Any, list[str]]]:
    """Hashes of slices and checkpoints, where executors see the folder and where they see another one."""
    (folder := tmp_path / "store").mkdir()
    apart = give_files(engine.session.newSession(), FolderFiles(str(folder)))
    found: dict[str, dict[Any, list[str]]] = {"here": {}, "there": {}}
    for name, session in (("here", engine.session), ("there", apart)):
        transforms = SparkTransformEngine(functools.partial(lambda each: each, session), small_rows=-1)
        for case in cases:
            (of_case := tmp_path / name / case.id).mkdir(parents=True)
            for number in range(case.steps):
                request = case.request(number, of_case, SIGNED)
                transforms.execute(request, schema=None, progress=SILENT)
                found[name][case.id, number] = case_process.hashes_of(request)
    return found


@pytest.mark.soak
def test_a_step_as_several_and_what_is_computed_anew(
    workspace: Workspace, wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    """Side by side into the store; and after another query, of which only the difference is recorded."""
    (root,) = compiled(wide).add(manifest())
    wide.add(derivative(QUERIES["stateless"], name="x"), check=False)
    for numbers in (range(32), range(32, 64), range(64, 96)):
        grown(root, tmp_path, numbers)
    store.requests.clear()  # the inputs of those were put
    limit_slices(wide, 600)
    wide["x"].pull(system_time=TIME)
    assert len(steps(wide["x"])) == 3
    again = QUERIES["stateless"].replace("* 2", "+ population % 2")
    (snapshot,) = read_snapshots(derivative(again, name="x"))
    wide.update(snapshot, state=StateChange.REBUILD, check=False)
    wide["x"].pull(system_time=TIME)
    assert len(steps(wide["x"])) > 3
    assert not any("/input-" in path for _, path, _ in store.requests), "workers cut slices themselves"
    assert objects(store, "staging/") == {}
    wide._engines.close()
    wide._engines.spark = workspace._engines.spark
    report = wide["x"].verify(replay=True)
    assert report.ok, report
