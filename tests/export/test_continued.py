"""Exports that go on where the last one ended, or refuse: all rows, in as many versions as there are blocks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from odfchain import errors
from odfchain.api.dataset import Dataset
from odfchain.api.view import View
from odfchain.api.workspace import Workspace
from odfchain.odf.identity import Multihash
from odfchain.profiles.export import cast_rows
from odfchain.profiles.iceberg_table import IcebergFolder
from odfchain.profiles.tables import DeltaFolder, TableFormat
from odfchain.storage import fsio
from tests.kit.exports import BLOCKS, TABLES, add, blocks_of, delta_log, iceberg, part, plain, rows_of
from tests.kit.support import ROOT, fixture


@pytest.fixture
def airports(workspace: Workspace) -> Dataset:
    return add(workspace, "org.Air-ports")


def expected(dataset: Dataset | View, kind: str, rows: str = "records") -> list[dict[str, Any]]:
    """All records, or those in force, as a table has them."""
    if rows == "records":
        found = dataset.scan().to_arrow()
    else:
        found = dataset.state(key=[]).to_arrow().drop_columns(["offset", "op", "system_time"])
    columns = TableFormat(kind).columns(found.schema, rewritten=True)
    return plain(pa.Table.from_batches([cast_rows(batch, columns) for batch in found.to_batches()], columns))


def data_blocks(dataset: Dataset) -> list[str]:
    return [str(ref.block_hash) for ref in dataset.summary.slices()]


def manifests(folder: Path, dataset: Dataset) -> dict[str, Any]:
    found = (folder / "datasets" / str(dataset.id)).glob("snapshots/*/manifest.json")
    return {path.parent.name: json.loads(path.read_bytes()) for path in found}


@pytest.mark.parametrize("kind", TABLES)
def test_a_version_for_each_block(kind: str, airports: Dataset, tmp_path: Path) -> None:
    """At once or one after the other, with columns that come later; what is there is not exported again."""
    at_once = airports.export(kind, tmp_path / "at once")
    assert (at_once.versions, at_once.files) == (3, 3)
    assert "2 of 3 slices correct" in at_once.notes[0]
    folder = tmp_path / "in steps"
    counts = []
    for number in range(1, 7):  # block 1 has a schema and no rows
        earlier = airports.at(number)
        counts.append(earlier.export(kind, folder).versions)
        assert rows_of(kind, folder) == expected(earlier, kind), number
    assert counts == [0, 1, 0, 1, 0, 1]
    with pytest.raises(errors.ChainsDifferError, match="it is of a later one"):
        airports.at(2).export(kind, folder)
    for place in (folder, tmp_path / "at once"):
        assert blocks_of(kind, place) == data_blocks(airports)
        assert rows_of(kind, place) == expected(airports, kind)
        assert airports.export(kind, place).versions == 0
        for path in (place / "data").iterdir():
            own = airports.path / "data" / path.name.removesuffix(".parquet")
            assert path.samefile(own), "a slice takes up no space"


def test_a_delta_table_asks_for_nothing_more_of_its_readers(airports: Dataset, tmp_path: Path) -> None:
    """Not even when columns come: then the log has nothing to say of them."""
    for number in (2, 6):
        airports.at(number).export("delta", tmp_path / "t")
    table = DeltaTable(str(tmp_path / "t"))
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    named = "offset,op,system_time,event_time,iata,city"
    assert table.metadata().configuration == {"delta.dataSkippingStatsColumns": named}
    assert [line["commitInfo"]["operation"] for line in delta_log(tmp_path / "t") if "commitInfo" in line] == [
        "CREATE TABLE", "WRITE", "ADD COLUMN", "WRITE",
    ]  # fmt: skip
    *_, last = (json.loads(line["add"]["stats"]) for line in delta_log(tmp_path / "t") if "add" in line)
    assert set(last["nullCount"]) == set(named.split(","))


@pytest.mark.parametrize("kind", TABLES)
def test_older_versions_stay(kind: str, airports: Dataset, tmp_path: Path) -> None:
    airports.export(kind, tmp_path / "t")
    before = expected(airports.at(2), kind)
    if kind == "delta":
        found = pa.table(DeltaTable(str(tmp_path / "t"), version=0).to_pyarrow_table())
    else:
        with iceberg(tmp_path / "t") as table:
            found = table.scan(snapshot_id=table.snapshots()[0].snapshot_id).to_arrow()
    assert plain(found) == before


@pytest.mark.parametrize("kind", TABLES)
def test_rows_in_force(kind: str, airports: Dataset, tmp_path: Path) -> None:
    """Each export replaces the rows, and older versions have what was in force."""
    folder = tmp_path / "t"
    for number, versions in ((2, 1), (4, 1), (4, 0), (6, 1)):
        earlier = airports.at(number)
        done = earlier.export(kind, folder, rows="state")
        assert (done.versions, done.notes) == (versions, ())
        assert rows_of(kind, folder) == expected(earlier, kind, "state")
    assert [row["iata"] for row in rows_of(kind, folder)] == ["BSL", "GVA"]
    assert "offset" not in rows_of(kind, folder)[0]
    with pytest.raises(errors.ChainsDifferError, match=r"has not|of a later"):
        airports.at(4).export(kind, folder, rows="state")
    assert len(list((folder / "data").iterdir())) == 3, "older versions keep theirs"


def test_a_lode_store(airports: Dataset, workspace: Workspace, tmp_path: Path) -> None:
    """Slices once, a manifest for each block that was exported, in whatever order; other datasets beside it."""
    other = add(workspace, "other")
    for dataset in (airports.at(4), airports.at(0), airports, other):
        dataset.export("lode", tmp_path)
    found = manifests(tmp_path, airports)
    assert set(found) == {str(airports.at(n).head) for n in (0, 4, 6)}
    assert found[str(airports.head)]["row_count"] == 6
    for name, document in found.items():
        own = {**airports.at(Multihash.parse(name)).manifest().document, "codec": "odf-parquet"}
        own["files"] = [{**f, "path": f"datasets/{airports.id}/{f['path']}"} for f in own["files"]]
        assert document == json.loads(json.dumps(own))
        for file in document["files"]:
            assert (tmp_path / file["path"]).stat().st_size == file["size_bytes"]
    assert len(list((tmp_path / "datasets" / str(airports.id) / "data").iterdir())) == 3
    assert len(manifests(tmp_path, other)) == 1
    with pytest.raises(errors.UsageError, match="slices as they are"):
        airports.export("lode", tmp_path, rows="state")


@pytest.mark.parametrize(
    ("kind", "rows"), [*((kind, "records") for kind in ("lode", *TABLES)), ("delta", "state")]
)
def test_histories_that_parted(kind: str, rows: str, airports: Dataset, tmp_path: Path) -> None:
    """They are not mixed; --force starts anew, and what is left of the old one is gone."""
    airports.export(kind, tmp_path / "t", rows=rows)
    part(airports)
    with pytest.raises(errors.ChainsDifferError, match="histories have parted") as caught:
        airports.export(kind, tmp_path / "t", rows=rows)
    assert caught.value.exit_code == 5
    assert "--force" in (caught.value.hint or "")
    done = airports.export(kind, tmp_path / "t", rows=rows, force=True)
    if kind == "lode":
        assert set(manifests(tmp_path / "t", airports)) == {str(airports.head)}
        assert (done.folder / "latest").read_text() == str(airports.head), "for the library, too"
        airports.export("delta", done.folder, force=True)
        assert not (done.folder / "latest").exists()
    else:
        assert rows_of(kind, tmp_path / "t") == expected(airports, kind, rows)
    if rows == "records":
        left = {path.name.removesuffix(".parquet") for path in done.folder.glob("data/*")}
        assert left == {str(ref.slice.physical_hash) for ref in airports.summary.slices()}
        assert kind == "lode" or blocks_of(kind, tmp_path / "t") == data_blocks(airports)


@pytest.mark.parametrize("kind", TABLES)
def test_what_is_not_ours_stays(kind: str, airports: Dataset, workspace: Workspace, tmp_path: Path) -> None:
    """Not even --force replaces what odfchain has not exported."""
    other = add(workspace, "other", BLOCKS[:2])
    folder = tmp_path / "t"
    airports.export(kind, folder)
    for dataset, rows, said in ((other, "records", "another dataset"), (airports, "state", "another kind")):
        with pytest.raises(errors.NameCollisionError, match=said) as caught:
            dataset.export(kind, folder, rows=rows)
        assert caught.value.exit_code == 5
    other.export(kind, folder, force=True)
    assert rows_of(kind, folder) == expected(other, kind)
    other.export("delta" if kind == "iceberg" else "iceberg", folder, force=True)
    assert not (folder / "_delta_log").exists() or not (folder / "metadata").exists()
    for content in ("{}", "[]", '{"version": 2}', "x"):
        (folder / "_odfchain.json").write_text(content)
        with pytest.raises(errors.NameCollisionError, match="not understood"):
            airports.export(kind, folder, force=True)
    (folder / "_odfchain.json").unlink()
    before = sorted(folder.rglob("*"))
    with pytest.raises(errors.NameCollisionError, match="no export of odfchain"):
        airports.export(kind, folder, force=True)
    assert sorted(folder.rglob("*")) == before
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.OdfchainError):
        airports.export(kind, tmp_path / "file")


@pytest.mark.parametrize("kind", ["lode", "delta"])
def test_never_within_a_dataset(kind: str, airports: Dataset, workspace: Workspace, tmp_path: Path) -> None:
    """Nor around one, nor by a link: what tidies up tables would delete blocks."""
    (tmp_path / "link").symlink_to(airports.path)
    (tmp_path / "copy" / "blocks").mkdir(parents=True)
    (tmp_path / "copy" / "refs").mkdir()
    before = sorted(workspace.path.rglob("*"))
    places = [airports.path, airports.path / "data", airports.path / "t"]
    places += [tmp_path / name / "t" for name in ("link", "copy")]
    if kind != "lode":  # a store is a folder of its own
        places += [airports.path.parent, airports.path.parent / "t", workspace.path, workspace.path.parent]
    for place in places:
        with pytest.raises(errors.UsageError, match="inside a dataset"):
            airports.export(kind, place)
    assert sorted(workspace.path.rglob("*")) == before


def test_places(airports: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    airports.export("delta", (tmp_path / "a ö").as_uri())
    assert (tmp_path / "a ö" / "_delta_log").is_dir()
    airports.export("lode", (tmp_path / "a ?#%").as_uri())
    assert (tmp_path / "a ?#%" / "datasets").is_dir()
    for kind in TABLES:
        airports.export(kind, f"x/../{kind} ö")
        assert rows_of(kind, tmp_path / f"{kind} ö") == expected(airports, kind)
        for name in ("a?b", "a#b", "a%20b"):
            with pytest.raises(errors.UsageError, match="no table in folders"):
                airports.export(kind, name)
            assert not (tmp_path / name).exists()
    for url in ("s3://bucket/t", "https://example.org/t", "hdfs:/t"):
        with pytest.raises(errors.UsageError, match="written to folders"):
            airports.export("delta", url)
    for options, said in (({"rows": "all"}, "no rows"), ({"catalog": "c"}, "for Iceberg")):
        with pytest.raises(errors.UsageError, match=said):
            airports.export("delta", tmp_path / "c", **options)
    with pytest.raises(errors.UsageError, match="unknown format 'avro'"):
        airports.export("avro", tmp_path / "c")


def test_a_dataset_without_columns(workspace: Workspace, tmp_path: Path) -> None:
    empty = add(workspace, "empty", [])
    for kind in TABLES:
        with pytest.raises(errors.SchemaError, match="no columns yet"):
            empty.export(kind, tmp_path / kind)
        assert not (tmp_path / kind).exists()
    empty.export("lode", tmp_path / "lode")
    assert manifests(tmp_path / "lode", empty)[str(empty.head)]["files"] == []


@pytest.mark.parametrize("kind", ["lode", "delta"])
def test_files_that_cannot_be_linked(
    kind: str, airports: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied, and what was left of an interrupted copy is not believed."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    done = airports.at(2).export(kind, tmp_path / "t")
    assert done.copies == 0
    monkeypatch.setattr(os, "link", refuse)
    last = airports.summary.slices()[-1].slice.physical_hash
    damaged = done.folder / "data" / (str(last) + ("" if kind == "lode" else ".parquet"))
    damaged.write_bytes(b"half")
    assert airports.export(kind, tmp_path / "t").copies == 2
    own = airports.path / "data" / str(last)
    assert damaged.read_bytes() == own.read_bytes()
    assert not damaged.samefile(own)
    if kind != "lode":
        assert rows_of(kind, tmp_path / "t") == expected(airports, kind)


@pytest.mark.parametrize(
    ("kind", "table", "rows"), [("delta", DeltaFolder, "records"), ("iceberg", IcebergFolder, "state")]
)
def test_an_export_that_was_interrupted(
    kind: str, table: type, rows: str, airports: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its commit there is no new version, and the next export makes it."""
    folder = tmp_path / "t"
    airports.at(2).export(kind, folder, rows=rows)
    name = "_added" if kind == "delta" else "_entry"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table, name, stop)
        with pytest.raises(KeyboardInterrupt):
            airports.export(kind, folder, rows=rows)
    assert rows_of(kind, folder) == expected(airports.at(2), kind, rows)
    airports.export(kind, folder, rows=rows)
    assert rows_of(kind, folder) == expected(airports, kind, rows)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_others_have_changed(kind: str, airports: Dataset, tmp_path: Path) -> None:
    """Tidying up harms nothing; other rows, or other files, are not continued."""
    folder = tmp_path / "t"
    airports.at(4).export(kind, folder)
    if kind == "delta":
        table = DeltaTable(str(folder))
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        airports.at(4).export(kind, folder)
        table = DeltaTable(str(folder))
        table.delete("iata = 'ZRH'")
    else:
        with iceberg(folder) as table:
            table.delete("iata = 'ZRH'")
    with pytest.raises(errors.ChainsDifferError, match="others have changed it"):
        airports.export(kind, folder)
    airports.export(kind, folder, force=True)
    assert rows_of(kind, folder) == expected(airports, kind)


def test_a_dataset_with_another_name(airports: Dataset, workspace: Workspace, tmp_path: Path) -> None:
    airports.at(2).export("iceberg", tmp_path / "t")
    workspace.rename("org.air-ports", "renamed")
    assert workspace["renamed"].export("iceberg", tmp_path / "t").versions == 2
    assert rows_of("iceberg", tmp_path / "t") == expected(workspace["renamed"], "iceberg")


def test_a_catalog_of_somebody(
    airports: Dataset, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg import catalog as catalogs
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())  # read once in a process
    for number in (4, 6):
        airports.at(number).export("iceberg", tmp_path / "t", catalog="lake")
    catalog = catalogs.load_catalog("lake")
    try:
        table = catalog.load_table("odf.org_air_ports")
        assert plain(table.scan().to_arrow()) == expected(airports, "iceberg")
        assert len(table.snapshots()) == 3
    finally:
        catalog.close()
    with pytest.raises(errors.NameCollisionError, match=r"the catalog has .*org_air_ports already"):
        airports.export("iceberg", tmp_path / "elsewhere", catalog="lake", force=True)
    part(airports)
    with pytest.raises(errors.ChainsDifferError, match=r"diverged|parted|holds|in common"):
        airports.export("iceberg", tmp_path / "t", catalog="lake")
    assert airports.export("iceberg", tmp_path / "t", catalog="lake", force=True).versions == 3
    with pytest.raises(errors.UsageError, match="--catalog none"):
        airports.export("iceberg", tmp_path / "u", catalog="none")


@pytest.mark.parametrize(("kind", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog.sql")])
def test_a_library_that_is_not_installed(
    kind: str, module: str, airports: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.EngineError, match="not installed") as caught:
        airports.export(kind, tmp_path / "t")
    assert (caught.value.exit_code, caught.value.hint) == (7, f"pip install 'odfchain[{kind}]'")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("kind", ["lode", "delta"])
def test_a_slice_that_is_not_here(kind: str, airports: Dataset, tmp_path: Path) -> None:
    (airports.path / "data" / str(airports.summary.slices()[1].slice.physical_hash)).unlink()
    with pytest.raises(errors.SliceNotFoundError, match="is not here"):
        airports.export(kind, tmp_path / "t")


@pytest.mark.parametrize("kind", TABLES)
def test_readers_without_a_catalog(kind: str, airports: Dataset, tmp_path: Path) -> None:
    """A Delta folder can be moved; of Iceberg the newest metadata are named in the folder."""
    airports.export(kind, tmp_path / "t")
    if kind == "delta":
        shutil.move(tmp_path / "t", tmp_path / "moved")
        assert rows_of(kind, tmp_path / "moved") == expected(airports, kind)
        return
    from pyiceberg.table import StaticTable

    folder = tmp_path / "t" / "metadata"
    newest = folder / f"{(folder / 'version-hint.text').read_text()}.metadata.json"
    assert plain(StaticTable.from_metadata(str(newest)).scan().to_arrow()) == expected(airports, kind)


# --- What Lode's own library sees in a store that was exported: by its rules here, and with `soak` by itself ---


FIXTURE = fixture("snapshots/lode.json")
Look = Callable[..., dict[str, Any]]
"""(a store, a dataset's id, perhaps a city to write on top) -> what the library says."""


def by_rule(store: Path, dataset: str) -> dict[str, Any]:
    """What Lode's library says by its sources: the pointer if it names a manifest, else the largest name."""

    def manifest(snapshot: str) -> Path:
        return store / FIXTURE["manifest"].format(dataset=dataset, snapshot=snapshot)

    pointer = store / FIXTURE["pointer"].format(dataset=dataset)
    latest = pointer.read_text().strip() if pointer.exists() else ""
    if not latest or not manifest(latest).exists():
        latest = max(path.parent.name for path in manifest("x").parent.parent.glob("*/manifest.json"))
    document = json.loads(manifest(latest).read_bytes())
    refuses = document["codec"] not in FIXTURE["codecs"]
    return {"latest": latest, "refuses": refuses}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Look:
    """The library itself, built here; its modules come from the Go module proxy."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: Lode's library is not asked, only its rules of the fixture")
    base = tmp_path_factory.mktemp("go")
    source = shutil.copytree(ROOT / "tests" / "kit" / "lode_reader", base / "source")
    own = {"GOPATH": f"{base / 'path'}", "GOCACHE": f"{base / 'cache'}", "GOFLAGS": "-modcacherw"}
    subprocess.run([go, "build", "-o", base / "reader", "."], cwd=source, env=os.environ | own, check=True)

    def look(store: Path, dataset: str, *city: str) -> dict[str, Any]:
        done = subprocess.run([base / "reader", store, dataset, *city], stdout=subprocess.PIPE, check=True)
        said: dict[str, Any] = json.loads(done.stdout)
        assert said["latest"]["ID"] in {each["ID"] for each in said["manifests"]}, "all of them are valid"
        refusals = [str(said[name]) for name in ("parquet", "jsonl", "none")]
        return {
            "latest": said["latest"]["ID"],
            "refuses": all("codec mismatch" in refusal for refusal in refusals),
            "written": said.get("written", {}).get("ID"),
        }

    return look


def hold_orders(dataset: Dataset, tmp_path: Path, look: Look) -> None:
    """Whatever was exported last, the newest block that was is the latest, and no codec reads its files."""
    for number, order in enumerate(FIXTURE["orders"]):
        store = tmp_path / str(number)
        for block in order["exported"]:
            dataset.at(block).export("lode", store)
        said = look(store, str(dataset.id))
        assert said["latest"] == str(dataset.at(order["latest"]).head), order
        assert said["refuses"], order


def hold_earlier_exports(dataset: Dataset, tmp_path: Path, look: Look) -> None:
    """A store of before: without a pointer, or with the one that Lode's library then wrote, and its codec name."""
    for block in range(7):
        dataset.at(block).export("lode", tmp_path)
    folder = tmp_path / "datasets" / str(dataset.id)
    (folder / "latest").unlink()
    for path in folder.glob("snapshots/*/manifest.json"):
        earlier = json.loads(path.read_bytes()) | {"codec": "parquet"}
        path.write_bytes(json.dumps(earlier, separators=(",", ":"), sort_keys=True).encode())
    names = sorted(path.name for path in (folder / "snapshots").iterdir())
    assert look(tmp_path, str(dataset.id))["latest"] == names[-1], "whichever block that is"
    (folder / "latest").write_text(next(name for name in names if name != str(dataset.head)))
    assert dataset.at(2).export("lode", tmp_path).versions == 0
    said = look(tmp_path, str(dataset.id))
    assert (said["latest"], said["refuses"]) == (str(dataset.head), True)
    for path in folder.glob("snapshots/*/manifest.json"):
        assert json.loads(path.read_bytes())["codec"] not in FIXTURE["codecs"]


@pytest.mark.parametrize("hold", [hold_orders, hold_earlier_exports])
def test_by_the_rules(hold: Any, airports: Dataset, tmp_path: Path) -> None:
    hold(airports, tmp_path, by_rule)


@pytest.mark.soak
@pytest.mark.parametrize("hold", [hold_orders, hold_earlier_exports])
def test_by_the_library(hold: Any, airports: Dataset, tmp_path: Path, library: Look) -> None:
    hold(airports, tmp_path, library)


@pytest.mark.soak
def test_a_snapshot_that_the_library_wrote(airports: Dataset, tmp_path: Path, library: Look) -> None:
    """It is no block of the dataset: nothing hides it, and --force starts anew."""
    airports.at(2).export("lode", tmp_path)
    written = library(tmp_path, str(airports.id), "Lugano")["written"]
    others_have_changed(airports, tmp_path, written)
    assert library(tmp_path, str(airports.id))["latest"] == str(airports.head)


def test_a_snapshot_of_others(airports: Dataset, tmp_path: Path) -> None:
    airports.at(2).export("lode", tmp_path)
    written = "1772931600000000000"
    path = tmp_path / FIXTURE["manifest"].format(dataset=airports.id, snapshot=written)
    path.parent.mkdir()
    path.write_text('{"codec":"jsonl"}')
    pointer = tmp_path / FIXTURE["pointer"].format(dataset=airports.id)
    pointer.write_text(written)
    others_have_changed(airports, tmp_path, written)
    assert not path.exists()


def others_have_changed(dataset: Dataset, store: Path, written: str) -> None:
    pointer = store / FIXTURE["pointer"].format(dataset=dataset.id)
    for again in (dataset, dataset.at(2)):
        with pytest.raises(errors.ChainsDifferError, match="others have changed it"):
            again.export("lode", store)
        assert pointer.read_text() == written
    dataset.export("lode", store, force=True)
    assert pointer.read_bytes() == str(dataset.head).encode(), "compared byte for byte: no line end"


def test_an_interrupted_export_is_read_by_the_library(
    airports: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer never names a snapshot that is not there, nor goes back; the next export moves it."""
    earlier = airports.at(4)
    earlier.export("lode", tmp_path)
    replace = fsio.replace_file

    def stop_at(name: str) -> None:
        def stopped(path: Path, data: bytes, **options: Any) -> None:
            if path.name == name:
                raise errors.StoreError("the power is gone")
            replace(path, data, **options)

        monkeypatch.setattr(fsio, "replace_file", stopped)

    for name in ("manifest.json", "latest"):
        stop_at(name)
        with pytest.raises(errors.StoreError, match="power"):
            airports.export("lode", tmp_path)
        assert by_rule(tmp_path, str(airports.id))["latest"] == str(earlier.head), name
    monkeypatch.undo()
    assert airports.export("lode", tmp_path).versions == 0, "its manifest is there"
    assert by_rule(tmp_path, str(airports.id))["latest"] == str(airports.head)
