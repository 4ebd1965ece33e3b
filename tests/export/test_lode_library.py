"""What Lode's own library sees in a store that was exported: by its rules here, and with `soak` by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import ChainsDifferError, StoreError
from odfchain.storage import fsio
from tests.kit.exports import add, part
from tests.kit.support import ROOT

FIXTURE: dict[str, Any] = json.loads((ROOT / "fixtures" / "snapshots" / "lode.json").read_text())
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


@pytest.fixture
def airports(workspace: Workspace) -> Dataset:
    return add(workspace, "org.Air-ports")


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
        with pytest.raises(ChainsDifferError, match="others have changed it"):
            again.export("lode", store)
        assert pointer.read_text() == written
    dataset.export("lode", store, force=True)
    assert pointer.read_bytes() == str(dataset.head).encode(), "compared byte for byte: no line end"


def test_an_export_that_was_interrupted(
    airports: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer never names a snapshot that is not there, nor goes back; the next export moves it."""
    earlier = airports.at(4)
    earlier.export("lode", tmp_path)
    replace = fsio.replace_file

    def stop_at(name: str) -> None:
        def stopped(path: Path, data: bytes, **options: Any) -> None:
            if path.name == name:
                raise StoreError("the power is gone")
            replace(path, data, **options)

        monkeypatch.setattr(fsio, "replace_file", stopped)

    for name in ("manifest.json", "latest"):
        stop_at(name)
        with pytest.raises(StoreError, match="power"):
            airports.export("lode", tmp_path)
        assert by_rule(tmp_path, str(airports.id))["latest"] == str(earlier.head), name
    monkeypatch.undo()
    assert airports.export("lode", tmp_path).versions == 0, "its manifest is there"
    assert by_rule(tmp_path, str(airports.id))["latest"] == str(airports.head)


def test_a_history_that_parted(airports: Dataset, tmp_path: Path) -> None:
    """Nothing is left of the old one that the library could take for the latest."""
    airports.export("lode", tmp_path)
    part(airports)
    airports.export("lode", tmp_path, force=True)
    pointer = tmp_path / FIXTURE["pointer"].format(dataset=airports.id)
    assert pointer.read_text() == str(airports.head)
    folder = pointer.parent
    airports.export("delta", folder, force=True)
    assert not pointer.exists()
