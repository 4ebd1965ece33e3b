"""Queries on executors that see no folder of the driver, of datasets in a store (RFC-048)."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import ObjectCorruptedError
from odfchain.spark.session import SparkEngine
from tests.kit import shared_store
from tests.kit.query_datasets import SAME, make
from tests.kit.shared_store import machine, objects, wide_machine
from tests.kit.small_s3 import SmallS3
from tests.kit.support import FIXTURES

DATASETS = json.loads((FIXTURES / "query" / "cases.json").read_bytes())["datasets"]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: SparkEngine) -> Iterator[SmallS3]:
    """A store on loopback that workers have credentials for."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    with SmallS3() as store, shared_store.credentials_of_workers(engine):
        yield store


@pytest.fixture
def writer(store: SmallS3, tmp_path: Path) -> Workspace:
    """The machine that made a dataset."""
    workspace = machine(store, tmp_path / "writer")
    make(workspace, "x", DATASETS["x"])
    return workspace


@pytest.fixture
def wide(writer: Workspace, store: SmallS3, engine: SparkEngine, tmp_path: Path) -> Workspace:
    """Another machine, whose executors are told of no folder."""
    return wide_machine(store, tmp_path / "wide", engine)


def here(workspace: Workspace) -> list[Path]:
    """The slices that the driver has."""
    return [path for each in workspace for path in (each._files.folder / "data").iterdir()]


def test_executors_bring_the_slices_that_may_hold_a_row(wide: Workspace, store: SmallS3) -> None:
    """They look at footers first; a slice that was damaged since is not believed by who has not read it."""
    found = wide.sql("select city, pop from x where pop > 2500 and op = 0", engine="spark")
    assert found.to_arrow().to_pylist() == [{"city": "c", "pop": 3000}]
    assert (found.slices.read, found.slices.there) == (1, 4)
    assert here(wide) == []


def test_a_damaged_slice_is_an_error(wide: Workspace, store: SmallS3) -> None:
    key = min(objects(store, "/data/"))
    store.objects[f"{shared_store.PREFIX}/{key}"] += b"x"
    with pytest.raises(ObjectCorruptedError, match=key):
        wide.sql("select count(*) from x", engine="spark").to_arrow()


@pytest.mark.soak
def test_queries_say_what_the_embedded_engine_says(writer: Workspace, wide: Workspace) -> None:
    for name in ("plain", "keyless", "acme/cities"):
        make(writer, name, DATASETS[name])
    for sql in SAME:
        params = {"p": 1000, "T": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)} if "$" in sql else None
        one = writer.sql(sql, params=params)
        other = wide.sql(sql, params=params, engine="spark")
        assert one.to_arrow().to_pylist() == other.to_arrow().to_pylist(), sql
        assert [*map(str, one.inputs)] == [*map(str, other.inputs)]
    state, scan = (wide["x"].state(), wide["x"].scan(where="pop = 1000"))
    assert state.to_spark().count() == len(writer["x"].state().to_arrow())
    assert scan.to_spark().count() == 2
