"""Workspaces whose datasets are in an object store, on machines that have nothing else in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.errors import (
    CorruptedPeerError,
    DatasetNotFoundError,
    NameCollisionError,
    RefConflictError,
    StoreError,
    UnsupportedPeerError,
    WorkspaceError,
)
from odfchain.repo.workspace_files import WorkspaceFiles
from tests.kit import shared_store as kit
from tests.kit.processes import odfchain
from tests.kit.shared_store import PREFIX, add, append, machine, objects, texts
from tests.kit.small_s3 import SmallS3


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    kit.environment(monkeypatch)


@pytest.fixture
def store() -> Iterator[SmallS3]:
    with SmallS3() as store:
        yield store


# --- making and joining --------------------------------------------------------------------------------


def test_whoever_names_the_store_has_its_datasets(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a", "b")
    assert one.store == other.store == store.url(PREFIX) + "/"
    assert [str(dataset.alias) for dataset in other] == ["cities"]
    assert other["cities"].head == one["cities"].head
    assert texts(other) == ["a", "b"]
    append(other["cities"]._files, "c")
    assert texts(one) == ["a", "b", "c"]
    assert [not report.faults for report in other.verify()] == [True]
    assert one["cities"].tail(1).to_pylist()[0]["text"] == "c"


def test_another_process_joins(store: SmallS3, tmp_path: Path) -> None:
    add(machine(store, tmp_path / "one"))
    (tmp_path / "other").mkdir()
    done = odfchain(tmp_path / "other", "init", "--store", store.url(PREFIX))
    assert "datasets in s3+http://" in done.err
    assert "cities" in odfchain(tmp_path / "other", "list").out


def test_losing_the_folder_loses_no_commit(store: SmallS3, tmp_path: Path) -> None:
    append(add(machine(store, tmp_path / "one")), "a")
    assert texts(machine(store, tmp_path / "again")) == ["a"]


def test_slices_come_when_they_are_read(store: SmallS3, tmp_path: Path) -> None:
    append(add(machine(store, tmp_path / "one")), "a")
    other = machine(store, tmp_path / "other")
    files = other["cities"]._files
    assert list(files.data.names()) == []
    assert len(texts(other)) == 1
    assert len(list(files.data.names())) == 1


@pytest.mark.parametrize("ignored", ["if-none-match", "if-match"])
def test_a_store_that_ignores_conditions_is_refused(store: SmallS3, tmp_path: Path, ignored: str) -> None:
    store.keeps.discard(ignored)
    with pytest.raises(UnsupportedPeerError, match="does not keep the conditions"):
        machine(store, tmp_path / "one")
    assert not (tmp_path / "one" / ".odfchain").exists()
    assert store.objects == {}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 1}', b'{"version": true, "id": "x"}', b"\xff"])
def test_something_else_is_no_workspace(store: SmallS3, tmp_path: Path, content: bytes) -> None:
    store.objects[f"{PREFIX}/workspace.json"] = content
    with pytest.raises(StoreError, match="not what a workspace has there"):
        machine(store, tmp_path / "one")


def test_a_later_version_is_not_guessed(store: SmallS3, tmp_path: Path) -> None:
    store.objects[f"{PREFIX}/workspace.json"] = json.dumps({"version": 2, "id": "x"}).encode()
    with pytest.raises(StoreError, match="a workspace of version 2"):
        machine(store, tmp_path / "one")


@pytest.mark.parametrize("url", ["file:///tmp/x", "https://host/x", "ipfs://x/", "here", "s3://"])
def test_other_places_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UnsupportedPeerError):
        odf.init(tmp_path, store=url)
    assert not (tmp_path / ".odfchain").exists()


def test_a_folder_keeps_its_store(store: SmallS3, tmp_path: Path) -> None:
    made = machine(store, tmp_path / "one")
    assert odf.init(tmp_path / "one", store=store.url(PREFIX), exists_ok=True).path == made.path
    with pytest.raises(NameCollisionError, match="a workspace already, of s3"):
        odf.init(tmp_path / "one", store=store.url("bucket/other"), exists_ok=True)
    odf.init(tmp_path)
    with pytest.raises(NameCollisionError, match="without a store"):
        odf.init(tmp_path, store=store.url(PREFIX), exists_ok=True)


def test_what_knows_folders_only_does_not_take_it_for_one(store: SmallS3, tmp_path: Path) -> None:
    machine(store, tmp_path / "one")
    with pytest.raises(WorkspaceError, match="are in a store"):
        WorkspaceFiles.find(tmp_path / "one")


# --- names ---------------------------------------------------------------------------------------------


def test_a_name_is_taken_once(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    assert [*one, *other] == []
    add(one)
    with pytest.raises(NameCollisionError, match="'Cities' exists already"):
        add(other, "Cities")
    assert len(objects(store, "refs/head")) == 2, "one dataset, and its signature"


def test_a_name_that_two_take_at_once_is_taken_by_one(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")

    def meanwhile(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("names/cities"):
            store.before = lambda *_: None
            add(other)

    store.before = meanwhile
    with pytest.raises(NameCollisionError):
        add(one)
    assert [str(d.alias) for d in one] == ["cities"]
    assert one["cities"].id == other["cities"].id
    assert len(objects(store, "refs/head")) == 2, "nothing is left of the other"


def test_renaming_and_deleting_are_seen(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a")
    assert texts(other) == ["a"]
    one.rename("cities", "org/Towns")
    assert [str(dataset.alias) for dataset in other] == ["org/Towns"]
    add(other, "cities")
    one.rename("cities", "Cities")
    assert [str(dataset.alias) for dataset in other] == ["Cities", "org/Towns"]
    other.delete("org/towns")
    assert [str(dataset.alias) for dataset in one] == ["Cities"]
    with pytest.raises(DatasetNotFoundError):
        _ = one["org/towns"]
    assert objects(store, "names/org/towns") == {"names/org/towns": b""}
    assert len(objects(store, "refs/head")) == 2
    add(one, "org/towns")
    assert {str(dataset.alias) for dataset in other} == {"Cities", "org/towns"}


def test_what_was_deleted_elsewhere_is_set_aside(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a")
    folder = other["cities"]._files.folder.name
    one.delete("cities")
    assert list(other) == []
    (kept,) = (other.path / "deleted").iterdir()
    assert kept.name.startswith(folder)
    assert (kept / "refs" / "head").is_file()


def test_a_listing_that_lags_hides_nothing(store: SmallS3, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    append(add(one), "a")
    store.lists = lambda path: False
    assert texts(one) == ["a"]
    assert [str(dataset.alias) for dataset in one] == ["cities"]
    assert not (one.path / "deleted").exists()


def test_a_store_that_is_gone_takes_nothing_with_it(store: SmallS3, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    folder = add(one).folder
    store.objects.clear()
    with pytest.raises(StoreError, match=r"workspace\.json: no such object"):
        list(one)
    assert (folder / "refs" / "head").is_file()


@pytest.mark.parametrize(
    "content", [b"x", b"did:odf:x cities", b"\xff \xff", b"", b"{id} towns", b"{id} a b"]
)
def test_names_that_mean_nothing_are_passed_over(store: SmallS3, tmp_path: Path, content: bytes) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    root = add(one)
    store.objects[f"{PREFIX}/names/cities"] = content.replace(b"{id}", str(root.id).encode())
    assert list(other) == []


# --- commits -------------------------------------------------------------------------------------------


def test_who_is_late_is_told_and_sees_what_was_done(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    add(one)
    late = other["cities"]._files
    append(one["cities"]._files, "first")
    with pytest.raises(RefConflictError):
        append(late, "second")
    append(late, "second")
    assert texts(one) == texts(other) == ["first", "second"]


def test_history_only_grows(store: SmallS3, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    root = add(one)
    before = root.chain.head()
    append(root, "a")
    head = root.chain.head()
    assert before is not None
    with pytest.raises(WorkspaceError, match="only grows"):
        root.chain.set_ref("head", before, expected=head)
    assert root.chain.head() == one["cities"]._files.chain.head() == head


def test_a_store_that_was_set_back_is_not_followed(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    root = add(one)
    old = dict(store.objects)
    append(root, "a")
    assert texts(other) == ["a"]
    store.objects.update({key: data for key, data in old.items() if "refs/" in key})
    for workspace in (one, other):
        with pytest.raises(StoreError, match="does not continue what was seen here"):
            texts(workspace)


def test_what_the_store_has_is_hashed_and_checked(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a")
    for key in objects(store, "/data/"):
        store.objects[f"{PREFIX}/{key}"] = store.objects[f"{PREFIX}/{key}"][:-1] + b"!"
    with pytest.raises(CorruptedPeerError):
        texts(other)
    append(one["cities"]._files, "b")
    head = objects(store, "refs/head")
    (newest,) = (data.decode() for key, data in head.items() if key.endswith("/head"))
    for key in objects(store, newest):
        store.objects[f"{PREFIX}/{key}"] += b"!"
    before = WorkspaceFiles(other.path).dataset("cities").chain.head()
    with pytest.raises(CorruptedPeerError):
        _ = other["cities"]
    assert WorkspaceFiles(other.path).dataset("cities").chain.head() == before


def test_branches_are_refused(store: SmallS3, tmp_path: Path) -> None:
    root = add(machine(store, tmp_path / "one"))
    head = root.chain.head()
    assert head is not None
    with pytest.raises(WorkspaceError, match="no branches yet"):
        root.chain.set_ref("fix", head, expected=None)


# --- costs ---------------------------------------------------------------------------------------------


def test_requests_are_few(store: SmallS3, tmp_path: Path) -> None:
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a")
    assert texts(other) == ["a"]
    assert texts(one) == ["a"]

    def requests() -> int:
        count = len(store.requests)
        store.requests.clear()
        return count

    requests()
    append(one["cities"]._files, "b")
    assert requests() == 7, "names, head; slice, block, head; head, signature"
    assert len(list(one)) == 1
    assert requests() == 2, "names, and the head of each dataset"
    append(other["cities"]._files, "c")
    assert requests() <= 11, "what the other one did is brought before"
    assert texts(other) == ["a", "b", "c"]
    assert requests() == 4, "names, head; size and bytes of the slice that is new here"
    assert texts(other) == ["a", "b", "c"]
    assert requests() == 2
