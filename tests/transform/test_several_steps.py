"""A step that reads much becomes several, and is as if it were one (RFC-049)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import QueryError
from odfchain.odf.events import ExecuteTransform
from odfchain.transform.spark_engine import SparkTransformEngine
from tests.kit.support import derivative, limit_slices, manifest, unchanged

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.pulling import PullResult
    from odfchain.api.workspace import Workspace

TIME = "2050-01-01T00:00:00Z"
ROWS = 64
INPUT_BYTES = 600
"""Of values: some slices of the input."""
STEP_BYTES = 2_000
"""Of what two slices of the input hold."""
QUERY = "SELECT event_time, city, {x} AS x FROM cities WHERE population % 3 > 0"


@pytest.fixture
def cities(workspace: Workspace, tmp_path: Path) -> Dataset:
    (dataset,) = workspace.add(manifest())
    grown(workspace, dataset, tmp_path, range(ROWS))
    return dataset


def grown(workspace: Workspace, dataset: Dataset, folder: Path, numbers: range) -> None:
    path = folder / "cities.csv"
    path.write_text("".join(["city,population\n", *(f"Ayr {n},{n}\n" for n in numbers)]))
    limit_slices(workspace, INPUT_BYTES)
    (found,) = dataset.ingest([path], event_time="2049-01-01T00:00:00Z", system_time=TIME).inputs
    assert found.slices > 2


def derived(workspace: Workspace, query: str = QUERY.format(x="population * 2"), name: str = "x") -> Dataset:
    (dataset,) = workspace.add(derivative(query, name=name), check=False)
    return dataset


def pulled(workspace: Workspace, dataset: Dataset, max_bytes: int = STEP_BYTES) -> PullResult:
    limit_slices(workspace, max_bytes)
    return dataset.pull(system_time=TIME)


def executed(dataset: Dataset) -> list[ExecuteTransform]:
    """The steps, oldest first."""
    events = [item.block.event for item in dataset.log()]
    return [event for event in reversed(events) if isinstance(event, ExecuteTransform)]


def records(dataset: Dataset) -> list[Any]:
    rows: list[Any] = dataset.scan().to_arrow().to_pylist()
    return rows


def check_replay(dataset: Dataset, **interval: Any) -> int:
    """How many steps were replayed to what is recorded."""
    report = dataset.verify(replay=True, **interval)
    assert report.verdict == "clean", report.faults
    assert report.replay is not None
    return report.replay.transactions


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
    assert check_replay(several, upto=middle) + check_replay(several, after=middle) == len(steps)
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
def test_inputs_grow_and_steps_begin_anywhere(workspace: Workspace, cities: Dataset, tmp_path: Path) -> None:
    query = "SELECT event_time, explode(sequence(0, population % 5)) AS n, city FROM cities"
    one, several = (derived(workspace, query, name) for name in ("one", "several"))
    for start in (ROWS, 3 * ROWS, 6 * ROWS):
        pulled(workspace, one, 0)
        pulled(workspace, several)
        assert records(several) == records(one)
        grown(workspace, cities, tmp_path, range(start, 2 * start))
    steps = len(executed(several))
    assert steps > 9
    assert check_replay(several) == steps
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
