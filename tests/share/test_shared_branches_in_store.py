"""Branches of datasets in an object store, on machines that have nothing else in common."""

from __future__ import annotations

from pathlib import Path

import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.errors import (
    CorruptedPeerError,
    NameCollisionError,
    PointNotFoundError,
    RefConflictError,
    WorkspaceError,
)
from odfchain.storage.bucket_store import BucketTransport
from odfchain.storage.locations import PeerUrl
from odfchain.storage.store import Store
from odfchain.transfer import server_app
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.merge_record import FetchedBranches
from tests.kit.branch_cases import Scene, run_here
from tests.kit.shared_store import PREFIX, add, append, machine, objects, requests, texts
from tests.kit.small_s3 import START, SmallS3


def test_a_branch_that_is_made_on_one_machine_is_there_on_the_other(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:
    append(add(one), "a")
    fix = one["cities"].create_branch("fix")
    append(fix._files, "b")
    assert [branch.name for branch in other["cities"].branches()] == ["fix"]
    assert other["cities"].branch("fix").scan().to_arrow()["text"].to_pylist() == ["a", "b"]
    assert other["cities"].branches()[0].signature == "signed"
    assert texts(other) == ["a"], "the head is where it was"
    append(other["cities"].branch("fix")._files, "c")
    assert texts(one, ref="fix") == ["a", "b", "c"]
    assert texts(one, ref="fix:3") == ["a", "b"]
    place = f"datasets/{fix._files.folder.name}/refs/fix"
    assert objects(store, "refs/fix").keys() == {place, f"{place}.jws"}


def test_of_two_writers_one_is_refused_and_follows(one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    append(one["cities"].create_branch("fix")._files, "b")
    mine, theirs = one["cities"].branch("fix")._files, other["cities"].branch("fix")._files
    append(theirs, "c")
    with pytest.raises(RefConflictError, match="'fix' moved"):
        append(mine, "d")
    append(mine, "d")
    assert texts(other, ref="fix") == ["a", "b", "c", "d"]


def test_a_name_of_a_branch_is_taken_once(one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    late = other["cities"]
    assert late.branch_names == []
    one["cities"].create_branch("fix", at=0)
    with pytest.raises(NameCollisionError, match="has a branch 'fix' already"):
        late.create_branch("fix")
    assert other["cities"].branch("fix").head == one["cities"].branch("fix").head


def test_deleting_and_renaming_are_seen(store: SmallS3, one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    append(one["cities"].create_branch("fix")._files, "b")
    assert other["cities"].branch_names == ["fix"]
    with pytest.raises(WorkspaceError, match=r"nowhere|neither"):
        other["cities"].delete_branch("fix")
    head = other["cities"].rename_branch("fix", "draft").head
    assert one["cities"].branch_names == ["draft"]
    assert one["cities"].branch("draft").head == head
    with pytest.raises(PointNotFoundError, match="no branch"):
        one["cities"].branch("fix")
    assert one["cities"].delete_branch("draft", force=True) is not None
    assert one["cities"].create_branch("again", at=head).head == head, "no reference in the store led there"
    assert texts(other, ref="again") == ["a", "b"]
    one["cities"].delete_branch("again", force=True)
    assert other["cities"].branch_names == []
    left = [data for key, data in objects(store, "refs/").items() if key.endswith(("/fix", "/draft"))]
    assert left == [b"", b""]
    made = other["cities"].create_branch("fix", at=0)  # its object is there, and empty
    assert one["cities"].branch("fix").head == made.head
    url = PeerUrl.parse(store.url(f"{PREFIX}/datasets/{made._files.folder.name}/"))
    peer = Store(BucketTransport(url))
    assert (peer.head("fix"), peer.head("draft")) == (made.head, None)


def test_a_branch_that_was_made_anew_is_followed(one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    append(one["cities"].create_branch("fix")._files, "b")
    mine = other["cities"].branch("fix")
    one["cities"].delete_branch("fix", force=True)
    append(one["cities"].create_branch("fix")._files, "x")
    with pytest.raises(RefConflictError):
        append(mine._files, "c")
    assert texts(other, ref="fix") == ["a", "x"]


def test_who_moves_a_branch_that_moves_does_not_delete_it(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:
    append(add(one), "a")
    fix = one["cities"].create_branch("fix")
    late = other["cities"]
    assert late.branch_names == ["fix"]
    before = store.before

    def moved(method: str, path: str, *rest: object) -> None:
        if method == "PUT" and path.endswith("/refs/fix"):
            store.before = before
            append(fix._files, "b")

    store.before = moved
    with pytest.raises(RefConflictError):
        late.delete_branch("fix")
    assert one["cities"].branch_names == ["fix"]


def test_a_branch_that_is_merged_elsewhere_is_seen(one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    append(one["cities"].create_branch("fix")._files, "b")
    source = other["cities"].branch("fix").head
    assert other["cities"].merge("fix", fast_forward=True).head == source
    assert texts(one) == ["a", "b"]
    assert one["cities"].delete_branch("fix") is None
    assert other["cities"].branch_names == []
    assert not [name for name in other["cities"]._files.chain._refs.names() if name.startswith("overwritten")]


CASE: dict[str, object] = {"base": ["1xy", "2uv"]}


def keyed(workspace: Workspace, folder: Path) -> Scene:
    """A dataset `d` of two rows with a branch `theirs`, each of which changes one."""
    scene = Scene.of(CASE, workspace, folder, run_here(workspace))
    workspace["d"].create_branch("theirs")
    scene.take({"rows": ["-C 1xy", "+C 1qy"]})
    scene.take({"on": "theirs", "rows": ["-C 2uv", "+C 2uw"]})
    return scene


def rows_of(workspace: Workspace) -> list[str]:
    found = workspace["d"].state().to_arrow().select(["k", "a", "b"]).to_pylist()
    return sorted("".join(row.values()) for row in found)


def test_what_was_merged_can_be_merged_again_and_stays(store: SmallS3, tmp_path: Path) -> None:
    one, other, third = (machine(store, tmp_path / name) for name in ("one", "other", "third"))
    keyed(one, tmp_path)
    plan = other["d"].plan_merge("theirs")
    assert plan.source == one["d"].branch("theirs").head
    outcome = other["d"].merge("theirs")
    assert outcome.status.value == "merged"
    assert rows_of(one) == rows_of(other) == ["1qy", "2uw"]
    (fetched,) = FetchedBranches(other["d"]._files).entries()
    assert (fetched.block, fetched.is_verified) == (plan.source, True), "as of anybody else"
    assert one["d"].delete_branch("theirs") is None
    assert third["d"].branch_names == []
    # a machine that has never seen the branch has what the merge was made of, and keeps it in the store
    before = set(objects(store, "/blocks/")) | set(objects(store, "/data/"))
    store.clock = lambda: START + 40 * 86_400
    third.gc()
    assert before <= set(objects(store))
    (report,) = third.verify(["d"])
    assert not report.faults
    assert third["d"]._files.chain.contains(plan.source)
    fresh = machine(store, tmp_path / "fresh")
    fresh.gc()
    last = machine(store, tmp_path / "last")
    assert not next(iter(last.verify(["d"]))).faults
    assert last["d"]._files.chain.contains(plan.source), "merges are computed again"
    assert before <= set(objects(store))


def test_a_revert_and_a_second_merge_go_over_two_machines(
    one: Workspace, other: Workspace, tmp_path: Path
) -> None:
    scene = keyed(one, tmp_path)
    merged = one["d"].merge("theirs").head
    other["d"].revert(merged)
    assert rows_of(one) == ["1qy", "2uv"]
    scene.take({"on": "theirs", "rows": ["-C 2uw", "+C 2zw"]})
    assert other["d"].at("theirs").head == one["d"].branch("theirs").head
    other["d"].merge("theirs")
    assert rows_of(one) == rows_of(other) == ["1qy", "2zv"], "cell by cell"


def test_branches_in_a_store_are_served_and_pulled_from_it(
    store: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "_SECONDS", 0)
    one, other = machine(store, tmp_path / "one"), machine(store, tmp_path / "other")
    append(add(one), "a")
    append(one["cities"].create_branch("fix")._files, "b")
    reader = odf.init(tmp_path / "reader")
    with RepositoryServer(other._files, branches=True) as server:
        reader.pull(f"{server.url}cities", name="cities")
        reader["cities"].pull_branch("fix", f"{server.url}cities")
        append(one["cities"].branch("fix")._files, "c")
        reader["cities"].pull_branch("fix")
        assert reader["cities"].branch("fix").head == one["cities"].branch("fix").head
    one["cities"].delete_branch("fix", force=True)
    with pytest.raises(PointNotFoundError, match="no branch 'fix'"):
        reader["cities"].pull_branch("fix", one.store + f"datasets/{one['cities']._files.folder.name}")


@pytest.mark.soak  # each answer that is lost is waited for
def test_answers_that_are_lost_make_no_conflict(store: SmallS3, one: Workspace, other: Workspace) -> None:
    append(add(one), "a")
    lost: list[str] = []

    def lose(method: str, path: str) -> int | None:
        if method != "PUT" or not path.endswith("/refs/fix") or len(lost) % 2:
            lost.extend(["repeated"] * (method == "PUT" and path.endswith("/refs/fix")))
            return None
        lost.append("lost")
        return 500

    store.after = lose
    fix = one["cities"].create_branch("fix")
    append(fix._files, "b")
    assert texts(other, ref="fix") == ["a", "b"]
    assert one["cities"].delete_branch("fix", force=True) is not None
    assert lost == ["lost", "repeated"] * 3, "made, moved, deleted"
    assert other["cities"].branch_names == []


@pytest.mark.parametrize("content", [b"x" * 68, b"f1620" + b"0" * 64])
def test_a_damaged_branch_does_not_hide_the_others(
    store: SmallS3, one: Workspace, other: Workspace, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    append(add(one), "a")
    folder = one["cities"].create_branch("fix")._files.folder.name
    store.objects[f"{PREFIX}/datasets/{folder}/refs/bad"] = content
    assert other["cities"].branch_names == ["fix"]
    assert "bad" in capsys.readouterr().err
    with pytest.raises(CorruptedPeerError):
        other["cities"].branch("bad")
    assert texts(other) == ["a"]


def test_branches_cost_requests_only_who_asks_for_them(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:
    append(add(one), "a")
    one["cities"].create_branch("fix")
    assert other["cities"].branch_names == ["fix"]

    store.requests.clear()
    found = other["cities"]
    assert requests(store) == 2, "names, head"
    branch = found.branch("fix")
    assert requests(store) == 1, "the branch"
    append(branch._files, "b")
    assert requests(store) == 3, "slice, block, branch; the key is on the other machine"
    assert other["cities"].branch_names == ["fix"]
    assert requests(store) == 4, "names, head; names of references, the branch"
