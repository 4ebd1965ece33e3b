"""Workspaces whose datasets are in an object store, on machines that have nothing else in common."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.chain.statements import create_key_file
from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    DatasetNotFoundError,
    NameCollisionError,
    ObjectNotFoundError,
    RefConflictError,
    SetBackError,
    StoreError,
    UnsupportedPeerError,
    WorkspaceError,
)
from odfchain.odf import events as ev
from odfchain.odf.identity import DatasetKey
from odfchain.odf.names import DatasetAlias
from odfchain.storage.bucket_store import Listed
from odfchain.transfer import server_app, store_commit
from odfchain.transfer.object_workspace import Name, SharedNames
from odfchain.transfer.reading import Origin
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.long_chains import lengthen
from tests.kit.processes import one_session
from tests.kit.root_rows import MADE
from tests.kit.shared_store import PREFIX, add, append, append_slices, machine, objects, requests, texts
from tests.kit.small_s3 import SmallS3
from tests.kit.support import Run

# --- making and joining --------------------------------------------------------------------------------


def test_whoever_names_the_store_has_its_datasets(store: SmallS3, one: Workspace, other: Workspace) -> None:
    append(add(one), "a", "b")
    assert one.store == other.store == store.url(PREFIX) + "/"
    assert [str(dataset.alias) for dataset in other] == ["cities"]
    assert other["cities"].head == one["cities"].head
    assert texts(other) == ["a", "b"]
    append(other["cities"]._files, "c")
    assert texts(one) == ["a", "b", "c"]
    assert [not report.faults for report in other.verify()] == [True]
    assert one["cities"].tail(1).to_pylist()[0]["text"] == "c"


def test_a_command_joins(
    store: SmallS3, one: Workspace, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(one)
    (tmp_path / "joined").mkdir()
    monkeypatch.chdir(tmp_path / "joined")
    assert "datasets in s3+http://" in run("init", "--store", store.url(PREFIX)).err
    assert "cities" in run("list").out


@pytest.mark.soak
def test_the_page_is_true(store: SmallS3, tmp_path: Path) -> None:
    """Its commands, each machine's in a folder of its own, rows recorded by Spark included."""
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
    outputs = []
    with one_session() as env:
        for number, block in enumerate(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "cities.csv").write_text("id,name\n1,Bern\n2,Basel\n")
            script = "set -e\n" + block.replace("s3://bucket/team", store.url(PREFIX))
            command = ["bash", "-c", script]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            outputs.append(done.stdout)
    assert "Basel" in outputs[1]


def test_a_dataset_is_read_by_the_path_of_the_workspace(store: SmallS3, tmp_path: Path) -> None:
    """As Spark's data source reads it: in processes that know the origin, and have no workspace."""
    append(add(machine(store, tmp_path / "one")), "a", "b")
    machine(store, tmp_path / "other")
    with odf.open_dataset(str(tmp_path / "other"), "cities") as opened:
        assert opened.to_arrow()["text"].to_pylist() == ["a", "b"]
    origin = Origin.of(str(tmp_path / "other"), "cities", cache=str(tmp_path / "cache"))
    assert origin.url.startswith(store.url(f"{PREFIX}/datasets/fed01"))
    assert origin.folder is None
    with pytest.raises(DatasetNotFoundError):
        odf.open_dataset(str(tmp_path / "other"), "towns")


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((content, "not what a workspace has there")
          for content in (b"", b"[]", b'{"version": 1}', b'{"version": true, "id": "x"}', b"\xff")),
        (b'{"version": 2, "id": "x"}', "a workspace of version 2"),
    ],
)  # fmt: skip
def test_something_else_is_no_workspace(store: SmallS3, tmp_path: Path, content: bytes, says: str) -> None:
    store.objects[f"{PREFIX}/workspace.json"] = content
    with pytest.raises(StoreError, match=says):
        machine(store, tmp_path / "one")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("url", ["file:///tmp/x", "https://host/x", "ipfs://x/", "here", "s3://"])
def test_other_places_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UnsupportedPeerError):
        odf.init(tmp_path, store=url)
    assert not (tmp_path / ".odfchain").exists()


def test_a_folder_keeps_its_store(store: SmallS3, tmp_path: Path) -> None:
    made = machine(store, tmp_path / "one")
    assert odf.init(tmp_path / "one", store=store.url(PREFIX), exists_ok=True).path == made.path
    with pytest.raises(NameCollisionError, match="already a workspace, of s3"):
        odf.init(tmp_path / "one", store=store.url("bucket/other"), exists_ok=True)
    odf.init(tmp_path)
    with pytest.raises(NameCollisionError, match="without a store"):
        odf.init(tmp_path, store=store.url(PREFIX), exists_ok=True)


def test_what_knows_folders_only_does_not_take_it_for_one(store: SmallS3, tmp_path: Path) -> None:
    machine(store, tmp_path / "one")
    with pytest.raises(WorkspaceError, match="are in a store"):
        WorkspaceFiles.find(tmp_path / "one")


def test_a_folder_that_was_copied_sends_no_credentials_anywhere(
    store: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(machine(store, tmp_path / "one"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "somebody else"))
    store.requests.clear()
    with pytest.raises(AccessError, match="you have not named its server") as caught:
        odf.open(tmp_path / "one")
    assert caught.value.hint
    assert store.requests == []
    (tmp_path / "one" / ".odfchain" / "store").write_text("s3://elsewhere/x/")
    assert odf.open(tmp_path / "one").store == "s3://elsewhere/x/"
    (tmp_path / "one" / ".odfchain" / "store").write_text(store.url(PREFIX) + "/")
    assert len(odf.init(tmp_path / "one", exists_ok=True, store=store.url(PREFIX))) == 1
    assert len(odf.open(tmp_path / "one")) == 1


# --- names ---------------------------------------------------------------------------------------------


def test_a_name_is_taken_once(store: SmallS3, one: Workspace, other: Workspace) -> None:
    assert [*one, *other] == []
    add(one)
    with pytest.raises(NameCollisionError, match="'Cities' already exists"):
        add(other, "Cities")
    assert len(objects(store, "refs/head")) == 3, "one dataset, its signature and checkpoint"


def test_a_name_that_two_take_at_once_is_taken_by_one(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:

    def meanwhile(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("names/cities"):
            store.before = lambda *_: None
            add(other)

    store.before = meanwhile
    with pytest.raises(NameCollisionError):
        add(one)
    assert [str(d.alias) for d in one] == ["cities"]
    assert one["cities"].id == other["cities"].id
    assert len(objects(store, "refs/head")) == 3, "nothing is left of the other"


def test_renaming_and_deleting_are_seen(store: SmallS3, one: Workspace, other: Workspace) -> None:
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
    assert len(objects(store, "refs/head")) == 3
    add(one, "org/towns")
    assert {str(dataset.alias) for dataset in other} == {"Cities", "org/towns"}


def test_what_was_deleted_elsewhere_is_set_aside(one: Workspace, other: Workspace) -> None:
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
def test_names_that_mean_nothing_are_passed_over(
    store: SmallS3, one: Workspace, other: Workspace, content: bytes
) -> None:
    root = add(one)
    store.objects[f"{PREFIX}/names/cities"] = content.replace(b"{id}", str(root.id).encode())
    assert list(other) == []


# --- commits -------------------------------------------------------------------------------------------


def test_who_is_late_is_told_and_sees_what_was_done(one: Workspace, other: Workspace) -> None:
    add(one)
    late = other["cities"]._files
    append(one["cities"]._files, "first")
    with pytest.raises(RefConflictError):
        append(late, "second")
    append(late, "second")
    assert texts(one) == texts(other) == ["first", "second"]


def test_a_store_that_was_set_back_is_not_followed(store: SmallS3, one: Workspace, other: Workspace) -> None:
    root = add(one)
    old = dict(store.objects)
    append(root, "a")
    assert texts(other) == ["a"]
    store.objects.update({key: data for key, data in old.items() if "refs/" in key})
    for workspace in (one, other):
        for act in (texts, Workspace.verify):
            with pytest.raises(SetBackError, match="does not continue what was seen here"):
                act(workspace)
        assert len(workspace) == 1
    one.delete("cities")
    assert list(one) == []


def test_another_dataset_under_an_id_is_not_taken(store: SmallS3, one: Workspace, other: Workspace) -> None:
    cities, lakes = add(one).folder.name, add(one, "lakes").folder.name
    for key, data in objects(store, cities).items():
        store.objects[f"{PREFIX}/{key.replace(cities, lakes)}"] = data
    assert [str(dataset.alias) for dataset in other] == ["cities"]
    for workspace in (one, other):
        with pytest.raises((CorruptedPeerError, StoreError)):
            texts(workspace, "lakes")


def test_a_renaming_that_was_killed_is_made_good(store: SmallS3, one: Workspace, other: Workspace) -> None:
    add(one)
    store.before = lambda method, path: 403 if method == "PUT" and path.endswith("names/cities") else None
    with pytest.raises(AccessError):
        one.rename("cities", "towns")
    store.before = lambda *_: None
    assert [str(dataset.alias) for dataset in other] == ["towns"]
    other.rename("towns", "villages")
    assert [str(dataset.alias) for dataset in one] == ["villages"]
    assert {key for key, data in objects(store, "names/").items() if data} == {"names/villages"}


def test_what_the_store_has_is_hashed_and_checked(store: SmallS3, one: Workspace, other: Workspace) -> None:
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


@pytest.mark.parametrize("scheme", [pytest.param("", marks=pytest.mark.soak), "odf+"])
def test_what_is_in_a_store_is_served(
    store: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """As it is there, whoever commits; slices come when somebody asks."""
    monkeypatch.setattr(server_app, "_SECONDS", 0)
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a")
    reader, problems = odf.init(tmp_path / "reader"), list[str]()
    with RepositoryServer(other._files, on_problem=problems.append) as server:
        url = f"{scheme}{server.url}cities"
        reader.pull(url, name="cities")
        assert texts(reader) == ["a"]
        append(one["cities"]._files, "b")
        reader.pull("cities")
        assert texts(reader) == ["a", "b"]
        assert problems == []
        store.before = lambda *_: 403
        reader.pull("cities")
        assert problems, "the store refuses; what is here is shown"
        with pytest.raises(DatasetNotFoundError):
            reader.pull(f"{scheme}{server.url}towns", name="towns")
    store.before = lambda *_: None


# --- what is signed ------------------------------------------------------------------------------------


def test_what_is_said_of_a_dataset_travels(one: Workspace, other: Workspace, tmp_path: Path) -> None:
    append(add(one), "a")
    assert one["cities"].signature().status.value == other["cities"].signature().status.value == "signed"
    create_key_file(tmp_path / "auditor.pem")
    one["cities"].attest(tmp_path / "auditor.pem")
    one["cities"].write_manifest()
    append(one["cities"]._files, "b")
    assert len(other["cities"].attestations()) == 1
    (line,) = other["cities"].published()
    assert other["cities"].published_document(line)
    one["cities"].sign()
    assert one["cities"].signature().status.value == "signed"


def test_a_machine_without_the_key_commits_without_a_signature(
    one: Workspace, other: Workspace, capfd: pytest.CaptureFixture[str]
) -> None:
    add(one)
    append(other["cities"]._files, "a")
    assert other["cities"].signature().status.value == "unsigned"
    assert texts(one) == ["a"]
    assert "its newest blocks are not signed with the dataset's key, which is here" in capfd.readouterr().err
    append(one["cities"]._files, "b")
    assert other["cities"].signature().status.value == "signed"


# --- with other places ---------------------------------------------------------------------------------


def test_datasets_come_from_other_places_and_go_there(store: SmallS3, tmp_path: Path) -> None:
    elsewhere = odf.init(tmp_path)
    append(add(elsewhere, "lakes"), "a")
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    elsewhere["lakes"].push((tmp_path / "public" / "lakes").as_uri())
    one.pull((tmp_path / "public" / "lakes").as_uri())
    assert texts(other, "lakes") == ["a"]
    append(elsewhere["lakes"]._files, "b")
    elsewhere["lakes"].push()
    one.pull("lakes")
    assert texts(other, "lakes") == ["a", "b"]
    other["lakes"].push((tmp_path / "mirror" / "lakes").as_uri())
    back = odf.init(tmp_path / "back")
    back.pull((tmp_path / "mirror" / "lakes").as_uri())
    assert texts(back, "lakes") == ["a", "b"]
    direct = odf.init(tmp_path / "direct")
    direct.pull(f"{store.url(PREFIX)}/datasets/{one['lakes']._files.folder.name}", name="lakes")
    assert texts(direct, "lakes") == ["a", "b"], "any node can read it in the store"


def test_a_copy_without_slices_is_not_taken(store: SmallS3, tmp_path: Path) -> None:
    elsewhere = odf.init(tmp_path)
    append(add(elsewhere, "lakes"), "a")
    elsewhere["lakes"].push((tmp_path / "public" / "lakes").as_uri())
    one = machine(store, tmp_path / "one")
    with pytest.raises(ObjectNotFoundError, match="not in s3"):
        one.pull((tmp_path / "public" / "lakes").as_uri(), metadata_only=True)
    assert list(one) == []


def test_upkeep_of_what_is_here(one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    assert texts(other) == ["a"]
    assert all(report.whole for report in other.fsck())
    (slice_file,) = (other["cities"]._files.folder / "data").iterdir()
    slice_file.unlink()
    assert all(report.whole for report in other.fsck()), "it is not missing, it comes when it is read"
    assert texts(other) == ["a"]
    slice_file.write_bytes(b"damaged")
    (block,) = other["cities"]._files.folder.glob(f"blocks/{other['cities'].head}")
    block.write_bytes(b"damaged")
    assert [f.state.value for report in other.fsck() for f in report.findings] == ["repaired", "repaired"]
    assert texts(other) == ["a"]
    other.gc()
    assert texts(other) == ["a"]


def test_the_hint_for_clones_is_written_now_and_then(store: SmallS3, tmp_path: Path) -> None:
    root = add(machine(store, tmp_path / "one"))
    hint = f"{PREFIX}/datasets/{root.folder.name}/hints/chain"
    first = store.objects[hint]
    append(root, "a")
    assert store.objects[hint] == first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_commit, "_HINT_EVERY", 2)
        append(root, "b")
        append(root, "c")
    assert store.objects[hint].count(b"\n") > first.count(b"\n")
    assert texts(machine(store, tmp_path / "other")) == ["a", "b", "c"]


# --- costs ---------------------------------------------------------------------------------------------


def test_requests_are_few(store: SmallS3, one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    assert texts(other) == ["a"]
    assert texts(one) == ["a"]

    store.requests.clear()
    append(one["cities"]._files, "b")
    assert requests(store) == 8, "names, head; slice, block, head; head, signature, checkpoint"
    assert len(list(one)) == 1
    assert requests(store) == 2, "names, and the head of each dataset"
    append(other["cities"]._files, "c")
    assert requests(store) <= 12, "what the other one did is brought before"
    assert texts(other) == ["a", "b", "c"]
    assert requests(store) == 4, "names, head; size and bytes of the slice that is new here"
    assert texts(other) == ["a", "b", "c"]
    assert requests(store) == 2
    again = Workspace.open(one.path)
    store.requests.clear()
    assert [status.name for status in again.status("cities")] == ["cities"]
    assert requests(store) == 0, "it is what this machine knows"


def test_each_slice_of_a_commit_is_two_requests(store: SmallS3, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    append(add(one), "a")
    assert texts(one) == ["a"]
    store.requests.clear()
    append_slices(one["cities"]._files, 8)
    assert len(store.requests) == 22, "names, head; 8 slices, 8 blocks, head; head, signature, checkpoint"
    assert len(texts(one)) == 9


def test_the_head_moves_by_as_many_requests_however_long_the_chain_is(store: SmallS3, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    for name, blocks in {"short": 10, "long": 1_000}.items():
        folder = add(one, name).folder
        where = f"{PREFIX}/datasets/{folder.name}"
        store.objects[f"{where}/refs/head"] = str(lengthen(folder, blocks)).encode()
        files = odf.open(tmp_path / "one")[name]._files
        for number in range(2):  # the first one may write the hint for clones
            store.requests.clear()
            event = ev.SetInfo(description=str(number))
            commit(files, DatasetState.read(files.chain), [event], [], system_time=MADE)
        block, *move = [(method, path.removeprefix(where)) for method, path, _ in store.requests]
        assert block[0] == "PUT"
        written = [("PUT", f"/refs/{name}") for name in ("head", "head.jws", "head.checkpoint")]
        assert move == [written[0], ("GET", "/refs/head"), *written[1:]]


def test_names_in_a_store_without_entity_tags_are_asked_for_each_time(tmp_path: Path) -> None:
    known = [Name(DatasetKey.generate().dataset_id, DatasetAlias.parse(text)) for text in ("cities", "x/b")]
    asked: list[str] = []

    class Untagged:
        def listed(self, _: str, most: int) -> list[Listed]:
            return [Listed(name.alias.key, 9, None, 0.0) for name in known]

        def find(self, key: str, limit: int) -> tuple[bytes, None]:
            asked.append(key)
            return next(name.to_bytes() for name in known if key == f"names/{name.alias.key}"), None

    names: Any = SharedNames(Untagged(), tmp_path / "names.json")
    assert names.all() == names.all() == known
    assert sorted(asked) == sorted(2 * [f"names/{name.alias.key}" for name in known])
