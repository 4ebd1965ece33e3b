"""Queries and files that fail while they are executed: one line that says why, and nothing committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import DatasetNotFoundError, EngineError, ObjectCorruptedError, QueryError
from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
from odfchain.odf.schema import DataSchema
from odfchain.progress import Progress
from odfchain.transform.catch_up import run_transform
from odfchain.transform.engines import Executed
from odfchain.transform.spark_engine import SparkTransformEngine
from odfchain.workspace.config import WorkspaceConfig
from odfchain.workspace.options import PullOptions
from tests.kit.support import Notes, Run, copied, derivative, ingest_rows, manifest, steps, unchanged

NUMBERED = "SELECT event_time, city, population, explode(sequence(1, %d)) AS x FROM cities"
GROUPED = "SELECT max(event_time) AS event_time, city FROM cities GROUP BY city"


def numbered(column: str, *, name: str = "derived", rows: int = 1) -> str:
    """A dataset with many rows of one, and a column that is computed in the second step."""
    last = f"SELECT event_time,\n  {column} AS y\nFROM numbered\n"
    return derivative(steps(("numbered", NUMBERED % rows), last), name=name)


ENDLESS = numbered("explode(sequence(1, 1000000))", name="endless", rows=1_000_000)


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    workspace = new_workspace()
    text = manifest(schema='["event_time TIMESTAMP", "city STRING", "population BIGINT"]')
    (dataset,) = workspace.add(text)
    ingest_rows(dataset, "event_time,city,population", ["2020-01-01T00:00:00Z,Ayr 7,1"])
    return workspace


@pytest.fixture
def cities(made: Workspace, workspace: Workspace) -> Dataset:
    return copied(made, workspace)["cities"]


def derived(workspace: Workspace, column: str, *, name: str = "derived", rows: int = 1) -> Dataset:
    (dataset,) = workspace.add(numbered(column, name=name, rows=rows))
    return dataset


def flip_a_bit(folder: Path) -> Path:
    """In the middle of the one file of a folder."""
    (path,) = (p for p in folder.iterdir() if p.name != ".lock")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    return path


def test_values_that_cannot_be_computed(workspace: Workspace, cities: Dataset) -> None:
    cast = 'The value \'Ayr 7\' of the type "STRING" cannot be cast to "INT"'
    faults = [
        ("1000000 / (1000000 - x)", 1_000_000, "Division by zero", "try_divide gives NULL instead"),
        ("population * 9223372036854775807 * 2", 1, "overflow", "try_multiply gives NULL instead"),
        ("CAST(city AS INT)", 1, cast, "try_cast"),
    ]
    for number, (column, rows, message, hint) in enumerate(faults):
        dataset = derived(workspace, column, name=f"fault{number}", rows=rows)
        with unchanged(dataset.path), pytest.raises(QueryError) as caught:
            dataset.pull()
        error = caught.value
        assert str(error).startswith(f"query step 2, line 2, column 3: {message}")
        assert "\n" not in str(error)
        assert "ansi" not in str(error)
        assert str(error.hint).startswith(hint)
        assert error.excerpt == (f"{column} AS y", "^")


def test_an_input_that_is_gone(workspace: Workspace, cities: Dataset) -> None:
    dataset = derived(workspace, "x")
    workspace.delete("cities", force=True)
    with unchanged(dataset.path), pytest.raises(DatasetNotFoundError, match=r"^derived: its input cities "):
        dataset.pull()


def test_an_input_with_a_flipped_bit(workspace: Workspace, cities: Dataset) -> None:
    dataset = derived(workspace, "x")
    path = flip_a_bit(cities.path / "data")
    with unchanged(dataset.path), pytest.raises(ObjectCorruptedError, match=path.name):
        dataset.pull()


def test_a_checkpoint_with_a_flipped_bit(workspace: Workspace, cities: Dataset) -> None:
    (dataset,) = workspace.add(derivative(GROUPED, name="grouped"))
    dataset.pull()
    ingest_rows(cities, "event_time,city,population", ["2020-01-02T00:00:00Z,Bath,2"])
    path = flip_a_bit(dataset.path / "checkpoints")
    with unchanged(dataset.path), pytest.raises(ObjectCorruptedError, match=path.name):
        dataset.pull()


def test_a_query_without_end(workspace: Workspace, cities: Dataset, run_cli: Run) -> None:
    (dataset,) = workspace.add(ENDLESS)
    fine = derived(workspace, "x", name="fine")
    home = workspace.path.parent
    with unchanged(dataset.path):
        result = run_cli("-w", home, "pull", "endless", "--timeout", "900ms")
    assert result.code == 7
    assert result.err.splitlines() == [
        "error: took longer than 900 ms",
        "hint: allow more time: --timeout, or transform.timeoutSeconds in the settings",
    ]
    settings = workspace.path / "config.yaml"
    settings.write_text(settings.read_text().replace("timeoutSeconds: 0", "timeoutSeconds: 1"))
    with unchanged(dataset.path), pytest.raises(EngineError, match=r"(?m)^took longer than 1 s$"):
        dataset.pull()
    settings.unlink()
    assert fine.pull().blocks == 2, "the session works on"


class Observed(Notes):
    """The engine, and what it was asked for; tells when it has begun to compute."""

    def __init__(self, engine: SparkTransformEngine) -> None:
        super().__init__()
        self.engine = engine
        self.requests: list[TransformRequest] = []
        self.begun = threading.Event()

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        self.requests.append(request)
        return self.engine.execute(request, schema=schema, progress=self)

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        return self.engine.query(request, progress=progress)

    def phase(self, name: str, total: int | None = None) -> None:
        if name == "Computing":
            self.begun.set()


def test_a_run_that_nobody_waits_for(workspace: Workspace, cities: Dataset) -> None:
    (dataset,) = workspace.add(ENDLESS)
    observed = Observed(workspace._engines.transforms())
    with unchanged(dataset.path), ThreadPoolExecutor(1) as pool:
        given = dataset._files, [cities._files], lambda _: observed, PullOptions(), WorkspaceConfig()
        run = pool.submit(run_transform, *given)
        assert observed.begun.wait(60)
        observed.engine.cancel(observed.requests[0])
        with pytest.raises(EngineError, match="the run was cancelled"):
            run.result(60)
    observed.engine.cancel(observed.requests[0])  # there is nothing left of it
