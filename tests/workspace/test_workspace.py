"""Workspaces: found upward, datasets that appear and vanish whole, keys that stay private."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from odfchain import errors as err
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.names import DatasetAlias
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import support
from tests.kit.faults import faulty


def snapshot(name: str = "org.example.cities", **event: Any) -> DatasetSnapshot:
    return read_snapshots(support.snapshot(name, event or {"kind": "SetInfo", "description": "Cities"}))[0]


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path)


# --- finding ---------------------------------------------------------------------------------------


def test_the_nearest_one_is_found(workspace: WorkspaceFiles, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    inner = WorkspaceFiles.init(tmp_path / "inner")
    assert WorkspaceFiles.find(tmp_path / "inner") == inner != workspace


def test_outside_of_any(tmp_path: Path) -> None:
    with pytest.raises(err.NotAWorkspaceError, match="not inside a workspace") as caught:
        WorkspaceFiles.find(tmp_path)
    assert "odfchain init" in str(caught.value.hint)


# --- identity and keys -----------------------------------------------------------------------------


def test_a_new_dataset_has_an_identity_of_its_own(workspace: WorkspaceFiles) -> None:
    one, two = workspace.create(snapshot("one")), workspace.create(snapshot("two"))
    assert one.id != two.id
    assert str(one.id).startswith("did:odf:fed01")
    assert workspace.dataset(str(one.id)).alias == one.alias
    assert workspace.key(one.id).dataset_id == one.id, "the id is the public half of the stored key"


def test_the_private_key_is_private(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot())
    key = workspace.key(dataset.id)
    files = list((workspace.root / "keys").iterdir())
    assert [f.stat().st_mode & 0o777 for f in files] == [0o600]
    assert (workspace.root / "keys").stat().st_mode & 0o777 == 0o700
    secret = key._private.private_bytes_raw()
    shared = [p for p in dataset.folder.rglob("*") if p.is_file()]
    assert len(shared) > 3
    for path in shared:
        assert secret not in path.read_bytes()
    assert secret.hex() not in repr(key)


def test_keys_are_private_under_any_umask(workspace: WorkspaceFiles) -> None:
    old = os.umask(0)
    try:
        dataset = workspace.create(snapshot())
    finally:
        os.umask(old)
    path = next((workspace.root / "keys").iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    assert workspace.key(dataset.id)


def test_a_key_that_others_can_read_is_refused(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot())
    path = next((workspace.root / "keys").iterdir())
    path.chmod(0o644)
    with pytest.raises(err.WorkspaceError, match="0644") as caught:
        workspace.key(dataset.id)
    assert "chmod 600" in str(caught.value.hint)


def test_a_key_of_another_dataset_is_refused(workspace: WorkspaceFiles) -> None:
    one, two = workspace.create(snapshot("one")), workspace.create(snapshot("two"))
    workspace._key_path(one.id).write_bytes(workspace._key_path(two.id).read_bytes())
    with pytest.raises(err.WorkspaceError, match=str(two.id)):
        workspace.key(one.id)


def test_a_damaged_or_missing_key(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot())
    path = workspace._key_path(dataset.id)
    path.write_bytes(b"not a key")
    with pytest.raises(err.InvalidIdError, match="PEM"):
        workspace.key(dataset.id)
    path.unlink()
    with pytest.raises(err.WorkspaceError, match="not in this workspace"):
        workspace.key(dataset.id)


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["org.example.cities", "ORG.Example.CITIES"])
def test_names_are_unique_whatever_the_case(workspace: WorkspaceFiles, other: str) -> None:
    workspace.create(snapshot("Org.example.Cities"))
    with pytest.raises(err.NameCollisionError, match=r"'Org\.example\.Cities' already exists"):
        workspace.create(snapshot(other))
    assert len(list(workspace.datasets())) == 1
    assert not list((workspace.root / "trash").iterdir())


def test_an_unknown_name_suggests_similar_ones(workspace: WorkspaceFiles) -> None:
    workspace.create(snapshot("org.example.cities"))
    with pytest.raises(err.DatasetNotFoundError) as caught:
        workspace.dataset("cities")
    assert caught.value.hint == "did you mean org.example.cities?"
    with pytest.raises(err.DatasetNotFoundError, match=r"org\.example\.citys") as caught:
        workspace.dataset("org.example.citys")
    assert caught.value.hint == "did you mean org.example.cities?"
    with pytest.raises(err.DatasetNotFoundError) as caught:
        workspace.dataset("zebra")
    assert "odfchain list" in str(caught.value.hint)


def test_rename(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot("one"))
    workspace.create(snapshot("two"))
    head = dataset.chain.head()
    workspace.rename(dataset, DatasetAlias.parse("three"))
    assert workspace.dataset("three").id == dataset.id
    assert workspace.dataset("three").chain.head() == head
    with pytest.raises(err.DatasetNotFoundError):
        workspace.dataset("one")
    with pytest.raises(err.NameCollisionError):
        workspace.rename(workspace.dataset("three"), DatasetAlias.parse("TWO"))
    workspace.rename(workspace.dataset("three"), DatasetAlias.parse("THREE"))
    assert str(workspace.dataset("three").alias) == "THREE", "a change of case alone is no collision"


def test_a_damaged_dataset_can_be_renamed_and_deleted(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot("one"))
    (dataset.folder / "refs" / "head").unlink()
    workspace.rename(workspace.dataset("one"), DatasetAlias.parse("two"))
    workspace.delete(workspace.dataset("two"))
    assert list(workspace.datasets()) == []


def test_delete_keeps_the_key(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot())
    dataset_id = dataset.id
    workspace.delete(dataset)
    assert list(workspace.datasets()) == []
    assert not dataset.folder.exists()
    assert workspace.key(dataset_id).dataset_id == dataset_id
    assert workspace.create(snapshot()).id != dataset_id, "the name is free again"


def test_patterns(workspace: WorkspaceFiles) -> None:
    for name in ("org.a", "org.b", "com.c"):
        workspace.create(snapshot(name))
    assert [str(d.alias) for d in workspace.matching("org.%")] == ["org.a", "org.b"]
    assert [str(d.alias) for d in workspace.matching("com.c")] == ["com.c"]
    with pytest.raises(err.DatasetNotFoundError, match="net"):
        workspace.matching("net.%")


def test_a_damaged_dataset_does_not_hide_the_others(workspace: WorkspaceFiles) -> None:
    broken, fine = workspace.create(snapshot("broken")), workspace.create(snapshot("fine"))
    (broken.folder / "info" / "alias").unlink()
    assert [d.alias for d in workspace.datasets()] == [fine.alias]
    with pytest.raises(err.StoreError, match="not a dataset folder"):
        workspace.dataset(str(broken.id))


def test_a_dataset_without_head_says_so(workspace: WorkspaceFiles) -> None:
    dataset = workspace.create(snapshot("org.example.cities"))
    (dataset.folder / "refs" / "head").unlink()
    with pytest.raises(err.ChainError, match="refs/head"):
        _ = workspace.dataset("org.example.cities").id
    assert [d.folder for d in workspace.matching("org.%")] == [dataset.folder], "it can still be verified"


# --- all or nothing --------------------------------------------------------------------------------


def test_a_refused_snapshot_leaves_nothing(workspace: WorkspaceFiles) -> None:
    before = sorted(p for p in workspace.root.rglob("*") if p.name != "lock")
    transform = {"kind": "Sql", "engine": "spark", "query": "SELECT 1"}
    bad = snapshot(kind="SetTransform", inputs=[], transform=transform)
    with pytest.raises(err.ManifestError, match=r"metadata\[0\]: SetTransform belongs in Derivative"):
        workspace.create(bad)
    assert sorted(p for p in workspace.root.rglob("*") if p.name != "lock") == before


@pytest.mark.parametrize(("error", "forever"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_creating_survives_a_fault_at_any_system_call(tmp_path: Path, error: int, forever: bool) -> None:
    """Whichever call fails: the dataset is there and complete or not there, and can be made afterwards."""
    fixed = WorkspaceFiles.init(tmp_path)
    with faulty(None) as counter:
        fixed.create(snapshot("first"))
    assert counter.count > 30
    refused = 0
    for fail_at in range(1, counter.count + 1):
        name = f"d{fail_at}"
        with faulty(fail_at, error, forever=forever):
            try:
                fixed.create(snapshot(name))
            except err.StoreError as caught:
                refused += 1
                assert isinstance(caught, err.StorageFullError) == (error == errno.ENOSPC)
        found = [d for d in fixed.datasets() if str(d.alias) == name]
        for dataset in found:
            assert len(list(dataset.chain.walk())) == 2
            assert fixed.key(dataset.id)
        if not found:
            assert fixed.create(snapshot(name))
    assert refused > 20


def test_two_processes_making_the_same_name(workspace: WorkspaceFiles, tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from odfchain.errors import NameCollisionError
        from odfchain.odf.manifests import read_snapshots
        from odfchain.workspace.workspace_files import WorkspaceFiles
        text = "kind: DatasetSnapshot\\nversion: 1\\ncontent: {name: same, kind: Root, metadata: []}"
        workspace = WorkspaceFiles.find(Path(sys.argv[1]))
        snapshot = read_snapshots(text)[0]
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            workspace.create(snapshot)
            print("made")
        except NameCollisionError:
            print("taken")
    """)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    results = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
    assert results == ["made", "taken", "taken", "taken"]
    assert len(list(workspace.datasets())) == 1


# --- settings --------------------------------------------------------------------------------------


def test_the_settings_written_by_init_are_the_defaults(workspace: WorkspaceFiles) -> None:
    from odfchain.workspace.config import WorkspaceConfig

    assert workspace.config == WorkspaceConfig()
    (workspace.root / "config.yaml").unlink()
    assert workspace.config == WorkspaceConfig(), "no file, the same"


def test_settings_are_read(workspace: WorkspaceFiles) -> None:
    spark = {"master": "spark://host:7077", "conf": {"spark.executor.memory": "4g"}}
    support.configure(workspace.root, spark=spark, ingest={"maxRetractRatio": 0.1})
    config = workspace.config
    assert config.spark.master == "spark://host:7077"
    assert config.spark.conf == {"spark.executor.memory": "4g"}
    assert (config.ingest.max_retract_ratio, config.ingest.retries) == (0.1, 3)


@pytest.mark.parametrize(
    "content", [{}, {"spark": {}}, {"spark": {"remote": "sc://host:15002"}}, {"ingest": {}}]
)
def test_every_setting_is_optional(workspace: WorkspaceFiles, content: dict[str, Any]) -> None:
    support.configure(workspace.root, **content)
    assert workspace.config.spark.master == "local[*]"
    assert workspace.config.spark.conf == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("spark: {masters: x}", r"config\.yaml:3: spark: unknown property 'masters'"),
        ("ingest: {maxRetractRatio: 2}", r"ingest\.maxRetractRatio: must be between 0 and 1"),
        ("ingest: {retries: many}", r"config\.yaml:3: ingest\.retries: "),
        ("spark: {conf: {a: 1}}", r"config\.yaml:3: spark\.conf"),
        ("spark: [", r"config\.yaml:\d"),
    ],
)
def test_wrong_settings_name_line_and_path(workspace: WorkspaceFiles, content: str, message: str) -> None:
    (workspace.root / "config.yaml").write_text(
        f"kind: WorkspaceConfig\nversion: 1\ncontent: {{{content}}}\n"
    )
    with pytest.raises(err.OdfchainError, match=message):
        _ = workspace.config
