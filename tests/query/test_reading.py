"""Datasets as `pyarrow.dataset`, in a workspace and without one: from folder, server and bucket."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.errors import ObjectCorruptedError
from odfchain.spark.session import SparkEngine
from tests.kit import shared_store
from tests.kit.query_datasets import CASES, SAME, dropped_block, make
from tests.kit.shared_store import machine, objects, wide_machine
from tests.kit.small_s3 import SmallS3
from tests.kit.stand_ins import BUCKET, simulated_s3
from tests.kit.web_peers import by_threads

CITIES = {
    "made": "2026-01-10T09:00:00Z",
    "blocks": [
        {"at": "2026-01-10T09:00:00Z", "columns": [["city", "string"], ["population", "int64"]]},
        {"at": "2026-01-10T10:00:00Z", "rows": [["+A", "2026-01-01", "a", 1000], ["+A", "2026-01-02", "b", 2000]]},
        {"at": "2026-01-10T11:00:00Z", "columns": [["city", "string"], ["population", "int64"], ["x", "float64"]]},
        {"at": "2026-01-10T12:00:00Z", "rows": [["-C", "2026-01-02", "b", 2000], ["+C", "2026-01-02", "b", 2500, 0.5]]},
        {"at": "2026-01-10T13:00:00Z", "rows": [["+A", "2026-01-03", "c", 3000, float("nan")]]},
    ],
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> odf.Workspace:
    workspace = odf.init(tmp_path / "here")
    make(workspace, "cities", CITIES)
    make(workspace, "empty", {"made": "2026-01-10T09:00:00Z", "blocks": []})
    return workspace


def newest_slice(workspace: odf.Workspace) -> Path:
    return (
        workspace["cities"].path / "data" / str(workspace["cities"].summary.slices()[-1].slice.physical_hash)
    )


def flip(path: Path, place: int = 300) -> None:
    """One byte is another one, in the same file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    with path.open("r+b") as file:
        file.write(content)


WAYS = {
    "sql": lambda w: w.sql("select * from cities order by 1").to_arrow(),
    "dataset": lambda w: w["cities"].dataset().to_table(),
    "open": lambda w: odf.open_dataset(str(w["cities"].path)).dataset().to_table(),
}


# --- pyarrow.dataset ---------------------------------------------------------------------------------------


def test_a_dataset_has_the_declared_columns_and_all_rows(workspace: odf.Workspace) -> None:
    found = workspace["cities"].dataset()
    assert isinstance(found, ds.Dataset)
    scanned = workspace["cities"].scan().to_arrow()
    assert found.schema == scanned.schema
    assert str(found.to_table().to_pydict()) == str(scanned.to_pydict())
    assert found.count_rows() == 5
    early = workspace["cities"].dataset(at=2).to_table().schema.names
    assert early == ["offset", "op", "system_time", "event_time", "city", "population"]
    assert workspace["cities"].dataset(at="2026-01-10T12:30:00Z").count_rows() == 4


def test_a_dataset_without_data_has_no_rows(workspace: odf.Workspace) -> None:
    assert workspace["empty"].dataset().to_table().shape == (0, 0)


def test_what_no_block_names_is_not_read(workspace: odf.Workspace) -> None:
    newest = newest_slice(workspace)
    (newest.parent / ("f1620" + "0" * 64)).write_bytes(newest.read_bytes())
    assert workspace["cities"].dataset().count_rows() == 5


def test_slices_of_other_widths_are_cast(workspace: odf.Workspace) -> None:
    """What older tools wrote: signed offsets and operations, microseconds."""
    import pyarrow.parquet as pq

    from odfchain.api.view import arrow_dataset

    whole = workspace["cities"].scan().to_arrow()
    path = workspace.path.parent / "old.parquet"
    old = whole.set_column(0, "offset", whole["offset"].cast(pa.int64()))
    old = old.set_column(1, "op", whole["op"].cast(pa.int32()))
    old = old.set_column(2, "system_time", whole["system_time"].cast(pa.timestamp("us", "UTC")))
    pq.write_table(old.drop_columns(["x"]), path)
    found = arrow_dataset([path, newest_slice(workspace)], whole.schema).to_table()
    assert found.schema == whole.schema
    assert found["offset"].to_pylist() == [0, 1, 2, 3, 4, 4]
    assert found["system_time"].to_pylist()[:5] == whole["system_time"].to_pylist()
    assert found["x"].null_count == 5


def test_results_are_handed_over_by_arrow(workspace: odf.Workspace) -> None:
    """What polars and DuckDB call."""
    result = workspace.sql("select city, population from cities where op = 0 order by offset")
    assert pa.table(result).to_pydict() == {"city": ["a", "b", "c"], "population": [1000, 2000, 3000]}
    again = pa.RecordBatchReader.from_stream(workspace.sql("select 1 as one"))
    assert again.read_all().to_pydict() == {"one": [1]}


# --- 22, 23: damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_22_a_flipped_byte_names_the_file(workspace: odf.Workspace, way: str) -> None:
    path = newest_slice(workspace)
    flip(path)
    with pytest.raises(odf.errors.ObjectCorruptedError) as caught:
        WAYS[way](workspace)
    assert caught.value.exit_code == 6
    assert path.name in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_22_what_a_partial_copy_lacks_is_fetched(workspace: odf.Workspace, way: str) -> None:
    path = newest_slice(workspace)
    path.unlink()
    with pytest.raises(odf.errors.SliceNotFoundError, match=path.name) as caught:
        WAYS[way](workspace)
    assert caught.value.exit_code == 7
    assert "odfchain fetch" in (caught.value.hint or "")


def test_23_a_touched_slice_is_hashed_anew(workspace: odf.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from odfchain.storage import local

    hashed: list[str] = []
    real = local.hash_file
    monkeypatch.setattr(local, "hash_file", lambda path: hashed.append(path.name) or real(path))
    WAYS["dataset"](workspace)
    assert len(hashed) == 3
    WAYS["dataset"](workspace)
    assert len(hashed) == 3
    path = newest_slice(workspace)
    os.utime(path)
    WAYS["dataset"](workspace)
    assert hashed[3:] == [path.name]


def test_23_a_query_hashes_what_was_touched(workspace: odf.Workspace) -> None:
    """In a process of its own: what that remembers is seen in the workspace."""
    memory = workspace.path / "run" / "checked-slices"

    def remembered() -> tuple[int, dict[str, Any]]:
        WAYS["sql"](workspace)
        return memory.stat().st_ino, json.loads(memory.read_bytes())

    _, first = first_time = remembered()
    assert len(first) == 3
    assert remembered() == first_time
    path = newest_slice(workspace)
    os.utime(path)
    file, second = remembered()
    assert file != first_time[0]
    assert [name for name in second if second[name] != first[name]] == [str(path)]


def edit_in_place(path: Path) -> None:
    """A byte is another one, and the times of the file are as they were."""
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("way", ["sql", "dataset"])
def test_23_an_edit_in_place_is_found_whatever_its_time_says(workspace: odf.Workspace, way: str) -> None:
    WAYS[way](workspace)
    path = newest_slice(workspace)
    edit_in_place(path)
    with pytest.raises(odf.errors.ObjectCorruptedError, match=path.name) as caught:
        WAYS[way](workspace)
    assert caught.value.exit_code == 6


def test_23_one_object_looks_again(workspace: odf.Workspace) -> None:
    dataset = workspace["cities"]
    dataset.dataset()
    path = newest_slice(workspace)
    edit_in_place(path)
    with pytest.raises(odf.errors.ObjectCorruptedError, match=path.name):
        dataset.dataset()
    with pytest.raises(odf.errors.ObjectCorruptedError, match=path.name):
        dataset.scan().to_arrow()


# --- without a workspace -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with simulated_s3() as address:
        yield address


@pytest.fixture(params=["path", "folder", "http", "bucket"])
def url(
    request: pytest.FixtureRequest, workspace: odf.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The dataset at another place."""
    if request.param == "bucket":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        place = f"s3+{request.getfixturevalue('moto')}/{BUCKET}/{tmp_path.name}/cities"
    else:
        place = (tmp_path / "there" / "cities").as_uri()
    workspace["cities"].push(place)
    if request.param == "http":
        with by_threads(tmp_path / "there") as place_of:
            yield place_of.publish(tmp_path / "there" / "cities").text
    else:
        yield str(tmp_path / "there" / "cities") if request.param == "path" else place


def test_a_dataset_elsewhere_is_the_same(workspace: odf.Workspace, url: str) -> None:
    here = workspace["cities"]
    expected = here.scan().to_arrow()
    with odf.open_dataset(url) as opened:
        assert opened.id == here.id
        assert opened.head == here.head
        assert opened.schema == here.schema
        assert opened.summary.record_count == 5
        assert "5 records" in repr(opened)
        found = opened.dataset()
        assert found.schema == expected.schema
        assert str(found.to_table().to_pydict()) == str(expected.to_pydict())
        assert str(opened.to_arrow().to_pydict()) == str(expected.to_pydict())
        assert opened.scan(["city"]).to_arrow().schema.names == ["city"]
        in_force = opened.state(["city", "population"], key=["city"]).to_arrow()
        assert in_force.to_pydict() == {"city": ["a", "b", "c"], "population": [1000, 2500, 3000]}
    assert odf.open_dataset(url, at=2).dataset().count_rows() == 2
    assert odf.open_dataset(url, at="2026-01-10T12:30:00Z").to_arrow().num_rows == 4


@contextlib.contextmanager
def served(workspace: odf.Workspace, folder: Path) -> Iterator[tuple[str, Path]]:
    """The URL of the dataset on a web server, and the folder that it has there."""
    place = folder / "there" / "cities"
    workspace["cities"].push(place.as_uri())
    with by_threads(place.parent) as web:
        yield web.publish(place).text, place


def test_what_was_brought_goes_away_with_what_was_made_of_it(
    workspace: odf.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with served(workspace, tmp_path) as (url, _):
        found = odf.open_dataset(url).dataset()
        scan = odf.open_dataset(url).scan(["city"])
    gc.collect()

    def left() -> list[Path]:
        return [path for path in (tmp_path / "tmp").glob("*/read/*") if path.is_dir()]

    assert len(left()) == 2
    assert (found.count_rows(), scan.to_arrow().num_rows) == (5, 5)
    del found, scan
    gc.collect()
    assert left() == []


def test_what_a_killed_process_left_goes_with_the_next(
    workspace: odf.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    from odfchain.transfer.reading import private_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder() as first:
        abandoned = first.parent / "abandoned"
        abandoned.mkdir()
        with private_folder() as second:
            assert (first.is_dir(), second.is_dir(), abandoned.exists()) == (True, True, False)


def test_a_cache_keeps_slices_by_name_and_mends_what_is_damaged(
    workspace: odf.Workspace, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with served(workspace, tmp_path) as (url, there):
        odf.open_dataset(url, cache_dir=cache).to_arrow()
        kept = cache / "data" / newest_slice(workspace).name
        good = kept.read_bytes()
        for path in (there / "data").iterdir():
            if path.name != kept.name:
                path.unlink()  # they are in the cache
        flip(kept)
        assert odf.open_dataset(url, cache_dir=cache).to_arrow().num_rows == 5
    assert kept.read_bytes() == good
    assert sorted(path.name for path in cache.iterdir()) == ["data", "incoming"]
    assert [path.name for path in (cache / "incoming").iterdir()] == [".lock"]


def test_a_slice_that_lies_is_not_believed(workspace: odf.Workspace, tmp_path: Path) -> None:
    name = newest_slice(workspace).name
    with served(workspace, tmp_path) as (url, there):
        flip(there / "data" / name)
        with pytest.raises(odf.errors.CorruptedPeerError, match=name):
            odf.open_dataset(url).dataset()


def test_a_signature_may_be_required(workspace: odf.Workspace, tmp_path: Path) -> None:
    place = tmp_path / "there" / "cities"
    workspace["cities"].push(place.as_uri())
    assert odf.open_dataset(str(place), require_signature=True).summary.record_count == 5
    assert odf.open_dataset(str(workspace.path), "cities", require_signature=True).summary.record_count == 5
    (place / "refs" / "head.jws").unlink()
    (workspace["cities"].path / "refs" / "head.jws").unlink()
    for where in ((str(place), None), (str(workspace.path), "cities")):
        with pytest.raises(odf.errors.SignatureError):
            odf.open_dataset(*where, require_signature=True)


def test_a_workspace_is_read_by_the_name_of_a_dataset(workspace: odf.Workspace, tmp_path: Path) -> None:
    root = str(workspace.path.parent)
    assert odf.open_dataset(root, "cities").to_arrow().num_rows == 5
    with pytest.raises(odf.errors.UsageError, match="is a workspace"):
        odf.open_dataset(root)
    with pytest.raises(odf.errors.DatasetNotFoundError):
        odf.open_dataset(root, "towns")
    with pytest.raises(odf.errors.UsageError, match="in a workspace's folder"):
        odf.open_dataset("https://example.com/x", "cities")
    with pytest.raises(odf.errors.DatasetNotFoundError):
        odf.open_dataset(str(tmp_path / "nothing"))
    with pytest.raises(odf.errors.ObjectNotFoundError):
        odf.open_dataset(root, "cities", at=99)


def test_a_block_that_is_no_part_of_the_chain_is_refused(workspace: odf.Workspace) -> None:
    block = dropped_block(workspace["cities"]._files)
    with pytest.raises(odf.errors.PointNotFoundError):
        odf.open_dataset(str(workspace.path), "cities", at=block)


# --- Queries on executors that see no folder of the driver, of datasets in a store (RFC-048) -------


DATASETS = CASES["datasets"]


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
