"""A step that reads much becomes several, and is as if it were one (RFC-049)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.pulling import PullResult
from odfchain.api.workspace import Workspace
from odfchain.errors import QueryError
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
from tests.kit.support import check_replay, derivative, ingest_rows, limit_slices, manifest, unchanged
from tests.kit.transform_cases import SIGNED, Case

TIME = "2050-01-01T00:00:00Z"
ROWS = 64
INPUT_BYTES = 600
"""Of values: some slices of the input."""
STEP_BYTES = 2_000
"""Of what two slices of the input hold."""
QUERY = "SELECT event_time, city, {x} AS x FROM cities WHERE population % 3 > 0"


@pytest.fixture
def cities(workspace: Workspace) -> Dataset:
    (dataset,) = workspace.add(manifest())
    grown(workspace, dataset, range(ROWS))
    return dataset


def grown(workspace: Workspace, dataset: Dataset, numbers: range) -> None:
    limit_slices(workspace, INPUT_BYTES)
    rows = (f"Ayr {n},{n}" for n in numbers)
    times = {"event_time": "2049-01-01T00:00:00Z", "system_time": TIME}
    (found,) = ingest_rows(dataset, "city,population", rows, **times).inputs
    assert found.slices > 2


def derived(workspace: Workspace, query: str = QUERY.format(x="population * 2"), name: str = "x") -> Dataset:
    (dataset,) = workspace.add(derivative(query, name=name), check=False)
    return dataset


def pulled(workspace: Workspace, dataset: Dataset, max_bytes: int = STEP_BYTES) -> PullResult:
    limit_slices(workspace, max_bytes)
    return dataset.pull(system_time=TIME)


def executed(dataset: Dataset) -> list[ExecuteTransform]:
    events = [item.block.event for item in dataset.log()]
    return [event for event in reversed(events) if isinstance(event, ExecuteTransform)]


def records(dataset: Dataset) -> list[Any]:
    rows: list[Any] = dataset.scan().to_arrow().to_pylist()
    return rows


def test_it_is_as_if_it_were_one(
    workspace: Workspace, cities: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records, whatever the limit; the same blocks, whatever the number of tasks; each is replayed."""
    one, several, alone = (derived(workspace, name=name) for name in ("one", "several", "alone"))
    whole, parts = pulled(workspace, one, 0), pulled(workspace, several)
    monkeypatch.setattr(SparkTransformEngine, "tasks", lambda _: 1)
    assert pulled(workspace, alone).blocks == parts.blocks
    steps = executed(several)
    inputs = [item for item in cities.log() if item.block.event.KIND == "AddData"]
    assert 1 < len(steps) < len(inputs), "some blocks of the input go together"
    assert len(steps) == parts.blocks - (whole.blocks - 1)
    assert (parts.rows, parts.operations, parts.watermark) == (whole.rows, whole.operations, whole.watermark)
    assert records(several) == records(one)
    assert executed(alone) == steps
    marks = [step.new_watermark for step in steps]
    assert marks[-1] == whole.watermark != marks[0], "what comes later is not promised before"
    middle = list(several.log())[1].hash
    halves = check_replay(several, upto=middle), check_replay(several, after=middle)
    assert sum(half.replay.transactions for half in halves) == len(steps)
    several.reset(middle, force=True)
    pulled(workspace, several, 0)
    assert records(several) == records(one), "whoever stops in the middle goes on there"


def test_a_fault_in_the_middle_leaves_nothing(workspace: Workspace, cities: Dataset) -> None:
    dataset = derived(workspace, QUERY.format(x=f"1 / (population - {ROWS // 2 + 2})"))
    with unchanged(dataset.path), pytest.raises(QueryError, match="Division by zero"):
        pulled(workspace, dataset)


@pytest.mark.soak
def test_an_interrupt_in_the_middle_leaves_nothing(
    workspace: Workspace, cities: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, begun = SparkTransformEngine.execute, threading.Semaphore(1)

    def interrupted(self: SparkTransformEngine, *args: Any, **kwargs: Any) -> Any:
        if not begun.acquire(blocking=False):
            raise KeyboardInterrupt
        return execute(self, *args, **kwargs)

    monkeypatch.setattr(SparkTransformEngine, "execute", interrupted)
    monkeypatch.setattr(SparkTransformEngine, "tasks", lambda _: 1)
    fine = derived(workspace, name="fine")
    with unchanged(fine.path), pytest.raises(KeyboardInterrupt):
        pulled(workspace, fine)
    monkeypatch.undo()
    assert pulled(workspace, fine).blocks > 2


@pytest.mark.soak
def test_inputs_grow_and_steps_begin_anywhere(workspace: Workspace, cities: Dataset) -> None:
    query = "SELECT event_time, explode(sequence(0, population % 5)) AS n, city FROM cities"
    one, several = (derived(workspace, query, name) for name in ("one", "several"))
    for start in (ROWS, 3 * ROWS, 6 * ROWS):
        pulled(workspace, one, 0)
        pulled(workspace, several)
        assert records(several) == records(one)
        grown(workspace, cities, range(start, 2 * start))
    steps = len(executed(several))
    assert steps > 9
    assert check_replay(several).replay.transactions == steps
    blocks = [item.hash for item in several.log() if isinstance(item.block.event, ExecuteTransform)]
    pulled(workspace, one, 0)
    for middle in (blocks[0], blocks[4], blocks[-1]):
        several.reset(middle, force=True)
        pulled(workspace, several)
        assert records(several) == records(one)
    check_replay(several)


@pytest.mark.soak
def test_what_little_a_query_keeps_is_one_slice(workspace: Workspace, cities: Dataset) -> None:
    few = derived(workspace, "SELECT event_time, city FROM cities WHERE population IN (3, 40)", "few")
    none = derived(workspace, "SELECT event_time, city FROM cities WHERE population < 0", "none")
    last = derived(workspace, f"SELECT event_time, city FROM cities WHERE population > {ROWS // 2}", "last")
    for dataset in (few, none, last):
        pulled(workspace, dataset)
    assert [len(executed(dataset)) for dataset in (few, none)] == [1, 1]
    assert all(step.new_data is not None for step in executed(last)), "no step is for nothing"
    assert len(records(last)) == ROWS - ROWS // 2 - 1


@pytest.mark.soak
@pytest.mark.parametrize(
    "query",
    [
        "SELECT date_trunc('DAY', event_time) AS event_time, count(*) AS n FROM cities GROUP BY 1",
        "SELECT event_time, city FROM cities UNION ALL SELECT event_time, 'x' FROM cities",
        "SELECT event_time, city FROM cities JOIN VALUES (1), (2) AS t(n) ON population % 3 = n",
    ],
)
def test_other_queries_are_one_step(workspace: Workspace, cities: Dataset, query: str) -> None:
    dataset = derived(workspace, query)
    pulled(workspace, dataset)
    assert len(executed(dataset)) == 1


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


@pytest.fixture
def compiled(wide: Workspace) -> Workspace:
    """None of its steps is taken for a small one."""
    wide._engines.transforms()._small_rows = -1
    return wide


def on_one_machine(wide: Workspace, workspace: Workspace) -> None:
    """With executors that see the folders."""
    wide._engines.close()
    wide._engines.spark = workspace._engines.spark
    assert files_of(wide._engines.session()) is None


def grown_by(dataset: Dataset, numbers: range) -> None:
    rows, hour = (f"Ayr {n % 9},{n}" for n in numbers), numbers.start // 32
    times = {"event_time": f"2049-01-01T{hour:02}:30:00Z", "system_time": TIME}
    ingest_rows(dataset, "city,population", rows, **times)


def made(workspace: Workspace, kind: str) -> tuple[Dataset, Dataset]:
    (root,) = workspace.add(manifest())
    return root, derived(workspace, QUERIES[kind])


def check_both_replays(dataset: Dataset) -> None:
    """Every step gives the same slice, and the same checkpoint byte by byte."""
    report = check_replay(dataset)
    assert (report.notes, report.replay.transactions, len(executed(dataset))) == ([], 2, 2)


def test_a_slice_is_put_once_and_copied_for_the_checks_of_the_step(
    compiled: Workspace, store: SmallS3
) -> None:
    """A worker reads the input's slice, and puts the new one; the commit does not send it again.

    The driver, which does not have the input's slice, asks for its footer.
    """
    root, dataset = made(compiled, "stateless")
    grown_by(root, range(32))
    store.requests.clear()
    dataset.pull(system_time=TIME)
    (new,) = (event.new_data for event in executed(dataset))
    of_slices = [(method, path) for method, path, _ in store.requests if "/data/" in path]
    assert [method for method, path in of_slices if path.endswith(str(new.physical_hash))] == ["PUT", "GET"]
    assert [method for method, _ in of_slices] == ["HEAD", "GET", "GET", "PUT", "GET"]
    assert not any("staging/" in path for _, path, _ in store.requests)


@pytest.mark.soak
def test_a_small_step_costs_the_store_no_request(
    wide: Workspace, store: SmallS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads, and what the step before remembers, goes within the plan; the driver writes."""
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", 256 << 10)
    root, dataset = made(wide, "retracting")
    for numbers in (range(9), range(32, 34)):
        grown_by(root, numbers)
        store.requests.clear()
        dataset.pull(system_time=TIME)
    assert [event.new_data.size > 0 for event in executed(dataset) if event.new_data] == [True, True]
    assert not any("staging/" in path for _, path, _ in store.requests)
    written = [path.split("/")[-2] for method, path, _ in store.requests if method == "PUT"]
    assert sorted(written) == ["blocks", "checkpoints", "data", "refs", "refs"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", QUERIES)
def test_blocks_are_those_of_executors_that_see_the_folder(
    workspace: Workspace, compiled: Workspace, store: SmallS3, kind: str
) -> None:
    root, dataset = made(compiled, kind)
    for numbers in (range(32), range(32, 80)):
        grown_by(root, numbers)
        dataset.pull(system_time=TIME)
    put = [path for method, path, _ in store.requests if method == "PUT"]
    slices = [event.new_data for event in executed(dataset) if event.new_data]
    assert slices
    for each in slices:
        assert sum(path.endswith(str(each.physical_hash)) for path in put) == 1
    assert any(event.new_checkpoint for event in executed(dataset)) == (kind != "stateless")
    assert objects(store, "staging/") == {}
    there = objects(store)
    check_both_replays(dataset)
    assert objects(store) == there, "nothing is put where it would stay"
    on_one_machine(compiled, workspace)
    check_both_replays(dataset)


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
    workspace: Workspace, compiled: Workspace, store: SmallS3
) -> None:
    """Side by side into the store; and after another query, of which only the difference is recorded."""
    root, dataset = made(compiled, "stateless")
    for numbers in (range(32), range(32, 64), range(64, 96)):
        grown_by(root, numbers)
    store.requests.clear()  # the inputs of those were put
    limit_slices(compiled, 600)
    dataset.pull(system_time=TIME)
    assert len(executed(dataset)) == 3
    again = QUERIES["stateless"].replace("* 2", "+ population % 2")
    (snapshot,) = read_snapshots(derivative(again, name="x"))
    compiled.update(snapshot, state=StateChange.REBUILD, check=False)
    dataset.pull(system_time=TIME)
    assert len(executed(dataset)) > 3
    assert not any("/input-" in path for _, path, _ in store.requests), "workers cut slices themselves"
    assert objects(store, "staging/") == {}
    on_one_machine(compiled, workspace)
    check_replay(dataset)
