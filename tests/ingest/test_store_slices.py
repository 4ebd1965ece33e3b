"""Executors that see no folder of the driver: slices and checkpoints are what they are elsewhere (RFC-048)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import ObjectCorruptedError
from odfchain.spark import executor_files
from odfchain.spark.session import SparkEngine
from odfchain.workspace import read_slices
from tests.kit import shared_store
from tests.kit.keyed_inputs import COLUMNS, MERGES, releases
from tests.kit.shared_store import PREFIX, objects, wide_machine
from tests.kit.small_s3 import SmallS3
from tests.kit.support import limit_slices, manifest

TIMES = {"system_time": "2050-01-01T00:00:00Z", "event_time": "2049-01-01T00:00:00Z"}
BYTES = 2_048


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: SparkEngine) -> Iterator[SmallS3]:
    """A store on loopback that workers have credentials for; no input is taken for a small one."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", -1)
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    with SmallS3() as store, shared_store.credentials_of_workers(engine):
        yield store


@pytest.fixture
def wide(store: SmallS3, engine: SparkEngine, tmp_path: Path) -> Workspace:
    """A workspace in the store, whose executors are told of no folder."""
    return wide_machine(store, tmp_path / "wide", engine)


def added(workspace: Workspace, kind: str, name: str) -> Dataset:
    operations = ["op INT"] if kind in ("changelog", "upsert") else []
    schema = json.dumps([*operations, *COLUMNS])
    return workspace.add(manifest(MERGES[kind], schema, name=name, kind="NdJson"))[0]


def rows_and_files(dataset: Dataset) -> list[Any]:
    """What the blocks say of rows: the hashes of slices and checkpoints, offsets, sizes, watermarks."""
    found = dataset._files.chain.nearest_all("AddData", head=dataset.head)
    return [each.block.event for each in reversed(list(found))]


def here(dataset: Dataset) -> list[Path]:
    folder = dataset._files.folder
    return [*(folder / "data").iterdir(), *(folder / "checkpoints").iterdir()]


@pytest.mark.parametrize(
    ("kind", "max_bytes"),
    [
        pytest.param("snapshot", BYTES, marks=pytest.mark.soak),
        pytest.param("snapshot", 0, marks=pytest.mark.soak),
        *(
            pytest.param(kind, size, marks=pytest.mark.soak)
            for kind in MERGES
            if kind != "snapshot"
            for size in (0, BYTES)
        ),
    ],
)
def test_blocks_are_those_of_executors_that_see_the_folder(
    workspace: Workspace, wide: Workspace, store: SmallS3, tmp_path: Path, kind: str, max_bytes: int
) -> None:
    """Hashes of slices and of checkpoints; the driver brings neither, and the runs are gone."""
    limit_slices(workspace, max_bytes)
    limit_slices(wide, max_bytes)
    of_folder, of_store = added(workspace, kind, "one"), added(wide, kind, "one")
    path = tmp_path / "input.ndjson"
    for text in releases(kind):
        path.write_text(text)
        expected = of_folder.ingest([path], allow_retract=True, **TIMES)
        found = of_store.ingest([path], allow_retract=True, **TIMES)
        assert found.inputs == expected.inputs
        assert (found.inputs[0].slices > 1) == bool(max_bytes)
    assert rows_and_files(of_store) == rows_and_files(of_folder)
    assert here(of_store) == []
    for part in ("data", "checkpoints"):
        names = {file.name for file in (of_folder._files.folder / part).iterdir()}
        assert {key.rpartition("/")[2] for key in objects(store, f"/{part}/")} == names
    assert objects(store, "staging/") == {}
    if kind == "snapshot":
        assert objects(store, "/checkpoints/")
    assert of_store.verify().ok


def test_rows_of_new_slices_are_brought_where_a_rule_looks_at_them(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    """A row of the future is named as elsewhere, by the executor; nothing is written."""
    (dataset,) = wide.add(manifest(schema='["city STRING", "event_time TIMESTAMP"]'))
    (path := tmp_path / "a.csv").write_text("city,event_time\na,2020-01-01\nb,2090-01-01\n")
    head = dataset.head
    with pytest.raises(Exception, match=r"a\.csv: row 2 .*2090"):
        dataset.ingest([path], **TIMES)
    assert dataset.head == head
    assert objects(store, "/data/") == {}


def test_a_recorded_slice_that_is_another_is_not_believed(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    dataset = added(wide, "ledger", "one")
    one, two = releases("ledger")
    (path := tmp_path / "input.ndjson").write_text(one)
    dataset.ingest([path], **TIMES)
    (key,) = objects(store, "/data/")
    store.objects[f"{PREFIX}/{key}"] += b"x"
    path.write_text(two)
    with pytest.raises(ObjectCorruptedError, match=f"{key}: the content hashes to "):
        dataset.ingest([path], **TIMES)


def test_a_slice_that_is_not_committed_is_read_by_executors(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    """Of two files in one run the second one is compared with the first, which is not committed yet."""
    (dataset,) = wide.add(manifest("{kind: Ledger, primaryKey: [city]}"))
    for name, text in (("a", "A,1\nB,2\n"), ("b", "B,2\nC,3\n")):
        (tmp_path / f"{name}.csv").write_text(f"city,population\n{text}")
    store.requests.clear()
    done = dataset.ingest([tmp_path / "a.csv", tmp_path / "b.csv"], **TIMES)
    assert [each.rows for each in done.inputs] == [2, 1]
    assert here(dataset) == []
    assert dataset.verify().ok


def test_a_commit_by_executors_asks_no_more_of_the_store(
    wide: Workspace, store: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small input goes within the plan; a larger one is put, read and removed."""
    wide.add(manifest())
    path = tmp_path / "a.csv"

    def asked_for(city: str) -> list[str]:
        path.write_text(f"city,population\n{city},1\n")
        store.requests.clear()
        wide["cities"].ingest([path], **TIMES)
        return [asked for _, asked, _ in store.requests]

    asked_for("A")
    asked = asked_for("B")
    assert len([each for each in asked if "/staging/" in each]) == 2, "put, and read by a worker"
    assert len(asked) == 7 + 4, "its folder is listed and removed; the rest as everywhere"
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", path.stat().st_size)
    assert len(asked_for("C")) == 7, "as everywhere"
    assert wide["cities"].scan(["city"]).to_arrow()["city"].to_pylist() == ["A", "B", "C"]
