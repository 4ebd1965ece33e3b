"""Workspaces of earlier versions are used by this one, and what is of a later version is refused by a sentence.

`fixtures/upgrades` has one archive for each version at which a stored form was new (`make.py` makes them).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError
from odfchain.odf import events as ev
from odfchain.odf.flatbuffers import FlatBufferBuilder
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.built_blocks import block, table
from tests.kit.support import FIXTURES, ingest_rows
from tests.kit.upkeep_scenes import head_of, new_workspace, root

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

ARCHIVES = sorted((FIXTURES / "upgrades").glob("*.zip"))
SET_INFO = 8
COLUMNS = "event_time,city,population"
Record = Callable[[str, object], None]


def unpacked(archive: Path, folder: Path) -> Path:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            # a key that others may read signs nothing
            Path(opened.extract(member, folder)).chmod(member.external_attr >> 16 & 0o777)
    return folder


def stored(folder: Path) -> dict[str, Multihash]:
    """Every file of a workspace that is no lock, no cache and no work that goes on."""
    passing = (
        "/run/",
        "/staging/",
        "/info/chain-index",
        "/info/file-stats",
        "/info/verified",
        "/info/log-frontier",
        "/reports/",
        "lock",
    )
    files = {f"/{path.relative_to(folder)}": path for path in folder.rglob("*") if path.is_file()}
    return {
        name: hash_bytes(path.read_bytes())
        for name, path in files.items()
        if not any(part in name for part in passing)
    }


def test_every_version_has_its_archive() -> None:
    spec = importlib.util.spec_from_file_location("make", FIXTURES / "upgrades" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert sorted(make.VERSIONS) == [archive.stem for archive in ARCHIVES]
    assert {"b714276", "fbf622b"} <= set(make.VERSIONS)
    assert all(archive.stat().st_size <= 60_000 for archive in ARCHIVES)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_a_workspace_of_an_earlier_version_is_read(
    archive: Path, tmp_path: Path, record_property: Record
) -> None:
    """Opened, listed, verified, pushed, read from there, collected, repaired and continued; no byte becomes another one."""
    folder = unpacked(archive, tmp_path / "old")
    before = stored(folder)
    with Workspace.open(folder) as workspace:
        assert [str(dataset.alias) for dataset in workspace] == ["cities", "large", "latest"]
        for dataset in workspace:
            report = dataset.verify()
            assert (report.verdict, report.faults) == ("clean", []), report
            assert report.signature.status == "signed"
            assert dataset.scan().to_arrow().num_rows == report.records > 2
            url = (tmp_path / "copies" / str(dataset.alias)).as_uri()
            dataset.push(url)
            assert workspace.verify_remote(url).head == report.head
            record_property(f"blocks of {dataset.alias}", report.blocks)
        assert len(workspace.status()) == 3
        # folders of commands that ended are gone, and nothing else
        assert {part.kind for found in workspace.gc() for part in found.removed} <= {"run"}
        assert [found.findings for found in workspace.fsck() if found.findings] == []
        assert len(workspace["cities"].verify().attestations) == 1
        kept = {name: data for name, data in before.items() if "/info/" not in name}
        after = stored(folder)
        assert {name: after.get(name) for name in kept} == kept
        append(workspace)
        report = workspace["cities"].verify()
        assert (report.verdict, report.signature.status) == ("clean", "signed"), report
        workspace["cities"].push((tmp_path / "copies" / "cities").as_uri())
    kept = {name: data for name, data in kept.items() if "/refs/" not in name}
    after = stored(folder)
    assert {name: after.get(name) for name in kept} == kept


@pytest.mark.soak
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_a_workspace_of_an_earlier_version_is_continued(
    archive: Path, tmp_path: Path, engine: SparkEngine
) -> None:
    """Rows are appended and merged, a derivative goes on, all of it is replayed and pushed; old files are as they were."""
    folder = unpacked(archive, tmp_path / "old")
    before = {name: data for name, data in stored(folder).items() if "/blocks/" in name or "/data/" in name}
    with Workspace.open(folder) as workspace:
        workspace._engines.spark = engine
        cities, latest, large = (workspace[name] for name in ("cities", "latest", "large"))
        ingest_rows(cities, COLUMNS, ["2020-01-04T00:00:00Z,D,5"])
        ingest_rows(latest, COLUMNS, ["2020-01-04T00:00:00Z,D,5", "2020-01-02T00:00:00Z,B,9"])
        large.pull()
        assert large.scan(["city"]).to_arrow()["city"].to_pylist() == ["B", "B", "C", "D"]
        for dataset in workspace:
            report = dataset.verify(replay=dataset is large)
            assert (report.verdict, report.faults, report.signature.status) == ("clean", [], "signed"), report
            dataset.push((tmp_path / "copies" / str(dataset.alias)).as_uri())
        state = {(row["city"], row["population"]) for row in latest.state().to_arrow().to_pylist()}
        assert state == {("B", 9), ("D", 5)}
    after = stored(folder)
    assert {name: after.get(name) for name in before} == before


# --- what is of a later version --------------------------------------------------------------------------


def future_block(folder: Path, kind: str) -> None:
    """The head of `cities` is a block that a later version has written."""
    dataset = WorkspaceFiles.find(folder).dataset("cities")
    head, number = head_of(dataset), dataset.chain.get(head_of(dataset)).sequence_number + 1
    b = FlatBufferBuilder()
    prev = b.byte_vector(head.to_bytes())
    event = table(b, b.string("of the future"))
    later = (7).to_bytes(8, "little") if kind == "field" else None
    data = block(b, 200 if kind == "event" else SET_INFO, event, later, prev, number)
    if kind == "version":
        at = data.index((3).to_bytes(4, "little"))
        data = data[:at] + (9).to_bytes(4, "little") + data[at + 4 :]
    name = hash_bytes(data)
    (dataset.folder / "blocks" / str(name)).write_bytes(data)
    (dataset.folder / "refs" / "head").write_text(str(name))


def set_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


CONFIG = "kind: {kind}\nversion: {version}\ncontent: {content}\n"
CITIES = "datasets/ID/"
LATER: dict[str, tuple[Callable[[Path], object], str]] = {
    "a version of blocks": (lambda folder: future_block(folder, "version"), "manifest version 9 is not supported"),
    "a kind of event": (lambda folder: future_block(folder, "event"), "not know"),
    "a field of a block": (lambda folder: future_block(folder, "field"), ""),
    "a version of settings": (
        lambda folder: set_text(folder / ".odfchain/config.yaml", CONFIG.format(kind="WorkspaceConfig", version=2, content="{}")),
        "WorkspaceConfig version 2 is not supported",
    ),
    "a setting": (
        lambda folder: set_text(folder / ".odfchain/config.yaml", CONFIG.format(kind="WorkspaceConfig", version=1, content="{dreams: {}}")),
        "unknown property 'dreams'",
    ),
    "a version of a dataset's settings": (
        lambda folder: set_text(info(folder) / "config", CONFIG.format(kind="DatasetConfig", version=2, content="{}")),
        "DatasetConfig version 2 is not supported",
    ),
    "files that are private": (lambda folder: set_text(info(folder) / "dreams" / "a", "of sheep"), ""),
    "files of a workspace": (lambda folder: set_text(folder / ".odfchain/dreams/a", "of sheep"), ""),
    "a form of the chain's index": (lambda folder: (info(folder) / "chain-index").write_bytes(b"odf9" * 100), ""),
    "forms of caches": (lambda folder: [(info(folder) / name).write_bytes(b"v9 " * 50) for name in CACHES], ""),
    "a form of what is known of branches": (
        lambda folder: set_text(info(folder) / "branches.json", "v9"),
        "what is known of fetched branches is damaged",
    ),
    "a signature": (lambda folder: set_text(info(folder).parent / "refs" / "head.checkpoint", "odf\n5\n"), "not a checkpoint"),
}  # fmt: skip
"""What a later version may have left, and what is said of it; nothing where it is passed over."""
CACHES = ("file-stats", "verified", "pushed", "asked", "keys", "ingested-files")


def info(folder: Path) -> Path:
    return WorkspaceFiles.find(folder).dataset("cities").folder / "info"


OPERATIONS: dict[str, Callable[[Workspace, Path], object]] = {
    "list": lambda workspace, _: [dataset.summary for dataset in workspace],
    "status": lambda workspace, _: workspace.status(),
    "log": lambda workspace, _: list(workspace["cities"].log()),
    "scan": lambda workspace, _: workspace["cities"].scan().to_arrow(),
    "verify": lambda workspace, _: workspace["cities"].verify().raise_if_faulty(),
    "append": lambda workspace, _: append(workspace),
    "push": lambda workspace, folder: workspace["cities"].push((folder.parent / "copy").as_uri()),
    "branch": lambda workspace, _: workspace["cities"].create_branch("fix"),
    "compact": lambda workspace, _: workspace["cities"].compact(
        workspace["cities"].plan_compact(), force=True
    ),
    "reset": lambda workspace, _: workspace["cities"].reset(workspace["cities"].plan_reset("2"), force=True),
    "gc": lambda workspace, _: workspace.gc(grace=601.0, drop_refs=True),
    "fsck": lambda workspace, _: workspace.fsck(),
}


def append(workspace: Workspace) -> None:
    files = workspace["cities"]._files
    state = DatasetState.read(files.chain)
    commit(files, state, [ev.SetInfo(description="today")], [], system_time=state.next_system_time())


@pytest.mark.parametrize("later", LATER)
def test_what_a_later_version_left_is_refused_by_a_sentence_or_kept(
    later: str, tmp_path: Path, record_property: Record
) -> None:
    """Whatever is done, no file of it is changed or gone; what is refused says which file, version or name it is about."""
    template = tmp_path / "template"
    root(new_workspace(template), slices=2)
    leave, sentence = LATER[later]
    leave(template)
    refused = []
    for name, work in OPERATIONS.items():
        folder = shutil.copytree(template, tmp_path / name / "workspace")
        before = stored(folder)
        try:
            with Workspace.open(folder) as workspace:
                work(workspace, folder)
        except OdfchainError as error:
            assert sentence, (name, error)
            assert re.search(sentence, str(error)), (name, error)
            refused.append(name)
            assert before.items() <= stored(folder).items(), name
        kept = {
            path: data for path, data in before.items() if "/refs/" not in path and not path.endswith(CACHES)
        }
        assert {path: stored(folder).get(path) for path in kept} == kept, name
    assert bool(refused) == bool(sentence)
    record_property("refused", " ".join(refused))
