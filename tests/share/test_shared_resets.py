"""Heads and branches of datasets in a store that are put back, compacted, or replaced by another history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.errors import (
    ObjectNotFoundError,
    PointNotFoundError,
    RefConflictError,
    SetBackError,
    TransferError,
    UsageError,
    WorkspaceError,
)
from odfchain.odf.identity import Multihash
from odfchain.storage.local import LocalRefStore
from odfchain.transform.catch_up import reset_to_metadata
from odfchain.upkeep.garbage import collect
from odfchain.workspace.merge_record import FetchedBranches
from odfchain.workspace.options import GcOptions
from odfchain.workspace.points import overwritten_name
from tests.kit.branch_cases import run_here
from tests.kit.shared_store import PREFIX, QUICK, add, append, at, calm, machine, objects, reopened, texts
from tests.kit.small_s3 import START, SmallS3
from tests.kit.upkeep_scenes import head_of, later, reader_of

DAYS = 40 * 86_400


@pytest.fixture(autouse=True)
def _three_rows(one: Workspace, other: Workspace) -> None:
    """A dataset of three rows in three commits, after its two first blocks, that both machines have seen."""
    root = add(one)
    for text in "abc":
        append(root, text)
    assert texts(other) == ["a", "b", "c"]


def refs(workspace: Workspace) -> set[str]:
    return {path.name for path in (workspace.last_seen("cities")._files.folder / "refs").iterdir()}


def clean(workspace: Workspace) -> bool:
    """Whether nothing is wrong with the dataset, as far as this machine can tell."""
    (report,) = workspace.verify(["cities"])
    return not report.faults and all(found.whole for found in workspace.fsck())


def follow(workspace: Workspace) -> str | None:
    """The store was set back: that is an error, whose head is followed then; what keeps the old one."""
    with pytest.raises(SetBackError) as caught:
        _ = workspace["cities"]
    assert f"`odfchain reset cities {caught.value.head}`" in (caught.value.hint or "")
    return workspace.last_seen("cities").reset(Multihash.parse(caught.value.head))


# --- putting back --------------------------------------------------------------------------------------


def test_a_head_that_is_put_back_is_an_error_elsewhere_until_it_is_followed(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:
    old = head_of(one["cities"]._files)
    dataset = one["cities"]
    store.requests.clear()
    kept = dataset.reset(3, force=True)
    assert len(store.requests) == 7, "branches; hint, head; signatures; head, signature, checkpoint"
    assert kept == overwritten_name(old)
    assert kept in refs(one)
    assert texts(one) == ["a", "b"]
    assert one["cities"].signature().status.value == "signed"
    assert clean(one)
    # noticed, by whatever is done there; the others go on
    for act in (texts, Workspace.verify, lambda there: there["cities"].gc()):
        with pytest.raises(SetBackError, match="does not continue what was seen here"):
            act(other)
    assert len(other) == 1
    before = objects(store)
    with pytest.raises(SetBackError):
        other.gc()
    assert all(found.whole for found in other.fsck())
    assert objects(store) == before
    assert list(other.last_seen("cities").scan().to_arrow()["text"].to_pylist()) == ["a", "b", "c"]
    # followed
    store.requests.clear()
    assert follow(other) == kept
    assert {method for method, _, _ in store.requests} == {"GET"}
    assert kept in refs(other)
    assert texts(other) == ["a", "b"]
    assert clean(other)
    append(other["cities"]._files, "d")
    assert texts(one) == ["a", "b", "d"]
    append(one["cities"]._files, "e")
    assert texts(other) == ["a", "b", "d", "e"]
    assert clean(one)
    assert clean(other)


def test_who_has_no_key_puts_back_too(store: SmallS3, one: Workspace, other: Workspace) -> None:
    assert not other["cities"].has_key
    other["cities"].reset(2, force=True)
    assert not objects(store, "refs/head.jws"), "it was of a block that is gone"
    assert texts(other) == ["a"]
    follow(one)
    append(one["cities"]._files, "d")
    assert texts(other) == ["a", "d"], "its memory of heads does not stand in the way"
    assert other["cities"].signature().status.value == "signed"


def test_what_was_put_back_returns(store: SmallS3, one: Workspace, other: Workspace, tmp_path: Path) -> None:
    """Also after another machine has removed it from the store: who has put it back has it still."""
    old = head_of(one["cities"]._files)
    one["cities"].reset(2, force=True)
    before = set(objects(store, "/blocks/")) | set(objects(store, "/data/"))
    store.clock = lambda: START + DAYS
    one.gc()
    assert before <= set(objects(store)), "a reference of that machine leads there"
    machine(store, tmp_path / "third").gc()
    assert len(before - set(objects(store))) == 4, "two blocks, two slices"
    assert one["cities"].reset(old) is None
    assert before <= set(objects(store))
    assert texts(other) == ["a", "b", "c"], "nothing has changed for who has not looked"
    assert texts(machine(store, tmp_path / "fourth")) == ["a", "b", "c"]


def test_what_nobody_has_any_more_does_not_return(store: SmallS3, tmp_path: Path) -> None:
    late = machine(store, tmp_path / "late")
    old = head_of(late["cities"]._files)  # its blocks are here, its slices are not
    late["cities"].reset(2, force=True)
    store.clock = lambda: START + DAYS
    machine(store, tmp_path / "third").gc()
    with pytest.raises(ObjectNotFoundError, match="nothing was committed"):
        late["cities"].reset(old)
    assert texts(late) == ["a"]


def test_gc_gives_up_in_the_store_what_references_here_kept(store: SmallS3, one: Workspace) -> None:
    kept = one["cities"].reset(2, force=True)
    store.clock = lambda: START + DAYS
    before = set(objects(store))
    would = collect(one["cities"]._files, GcOptions(drop_refs=True, dry_run=True), now=later)
    assert before == set(objects(store))
    done = collect(one["cities"]._files, GcOptions(drop_refs=True), now=later)
    assert would.refs == done.refs == (kept,)
    removed = [[item for item in found.removed if "store" in item.kind] for found in (would, done)]
    assert removed[0] == removed[1]
    assert len(before - set(objects(store))) == 4


def test_what_is_nowhere_else_is_dropped_by_force_only(one: Workspace) -> None:
    with pytest.raises(WorkspaceError, match=r"nowhere|neither"):
        one["cities"].reset(2)
    one["cities"].create_branch("all")
    one["cities"].reset(2)
    assert texts(one) == ["a"]


def test_other_blocks_are_not_followed(one: Workspace, other: Workspace) -> None:
    """Only the head that the store has by now, and only while it has it."""
    head = head_of(one["cities"]._files)
    first = one["cities"]._files.chain.hash_at(2, head)
    one["cities"].reset(3, force=True)
    seen = other.last_seen("cities")
    plan = seen.plan_reset(head_of(one["cities"]._files))
    assert (plan.follows, plan.dropped, plan.records, plan.unsaved) == (True, (head,), 1, ())
    with pytest.raises(RefConflictError):
        seen.reset(first, force=True)
    append(one["cities"]._files, "d")
    with pytest.raises(RefConflictError, match="'head' moved"):
        seen.reset(plan)
    assert seen.head == other.last_seen("cities").head == head


def test_a_store_that_an_attacker_set_back_is_put_right_again(
    store: SmallS3, one: Workspace, other: Workspace, tmp_path: Path
) -> None:
    good = head_of(one["cities"]._files)
    key = next(key for key in store.objects if key.endswith("refs/head"))
    store.objects[key] = str(one["cities"]._files.chain.hash_at(2, good)).encode()
    for workspace in (one, other):
        with pytest.raises(SetBackError):
            _ = workspace["cities"]
    follow(other)
    other["cities"].reset(good)
    assert texts(one) == texts(machine(store, tmp_path / "third")) == ["a", "b", "c"]


# --- other histories -----------------------------------------------------------------------------------


def test_a_compaction_is_followed(store: SmallS3, one: Workspace, other: Workspace, tmp_path: Path) -> None:
    plan = one["cities"].plan_compact()
    assert (plan.slices_before, plan.slices_after) == (3, 1)
    head = one["cities"].compact(plan)
    assert head_of(one["cities"]._files) == head
    assert clean(one)
    hint = next(data for key, data in objects(store, "hints/chain").items())
    assert hint.splitlines()[-1] == str(head).encode()
    assert follow(other) == overwritten_name(plan.old_head)
    assert head_of(other["cities"]._files) == head
    assert texts(other) == ["a", "b", "c"]
    assert clean(other)
    append(other["cities"]._files, "d")
    assert texts(one) == texts(machine(store, tmp_path / "third")) == ["a", "b", "c", "d"]


def test_a_branch_of_another_machine_keeps_its_blocks_from_compaction(
    one: Workspace,
    other: Workspace,
) -> None:
    other["cities"].create_branch("fix", at=3)
    with pytest.raises(UsageError, match="fix forked from"):
        one["cities"].plan_compact()


def copied(store: SmallS3, workspace: Workspace, folder: Path) -> Workspace:
    """A workspace without a store that has pulled the dataset out of it."""
    elsewhere = odf.init(folder)
    elsewhere.pull(store.url(f"{PREFIX}/datasets/{workspace['cities']._files.folder.name}"), name="cities")
    return elsewhere


def test_another_history_comes_by_force(
    store: SmallS3, one: Workspace, other: Workspace, tmp_path: Path
) -> None:
    elsewhere = copied(store, one, tmp_path / "elsewhere")
    elsewhere["cities"].reset(2, force=True)
    append(elsewhere["cities"]._files, "x")
    url = (tmp_path / "public").as_uri()
    elsewhere["cities"].push(url)
    with pytest.raises(TransferError):
        one.pull(url, name="cities")
    assert texts(one) == ["a", "b", "c"]
    old = head_of(one["cities"]._files)
    one.pull(url, name="cities", force=True)
    assert texts(one) == ["a", "x"]
    assert overwritten_name(old) in refs(one)
    follow(other)
    assert texts(other) == texts(machine(store, tmp_path / "third")) == ["a", "x"]
    append(one["cities"]._files, "y")
    assert texts(other) == ["a", "x", "y"]
    assert clean(one)


def test_a_derivative_starts_over(one: Workspace, other: Workspace) -> None:
    source = one["cities"]
    reader_of(one._files, source.id, [head_of(source._files)])
    before = head_of(other["derived"]._files)
    head = reset_to_metadata(one["derived"]._files)
    assert head != before
    with pytest.raises(SetBackError):
        _ = other["derived"]
    plan = other.last_seen("derived").plan_reset(head)
    assert (len(plan.dropped), plan.new_number) == (2, 1)
    other.last_seen("derived").reset(plan)
    assert head_of(other["derived"]._files) == head
    append(source._files, "d")
    one["cities"].reset(4, force=True)
    assert texts(one) == ["a", "b", "c"]


# --- faults --------------------------------------------------------------------------------------------


def test_of_two_writers_one_is_refused(one: Workspace, other: Workspace) -> None:
    plan = one["cities"].plan_reset(3)
    append(other["cities"]._files, "d")
    late = one["cities"]._files
    assert texts(one) == ["a", "b", "c", "d"]
    with pytest.raises(RefConflictError):
        one["cities"].reset(plan, force=True)
    one["cities"].reset(4, force=True)
    with pytest.raises(SetBackError, match="does not continue"):
        append(other.last_seen("cities")._files, "e")
    append(late, "f")
    assert texts(one) == ["a", "b", "c", "f"]


@pytest.mark.parametrize("moments", [range(1, 4), pytest.param(range(9), marks=pytest.mark.soak)])
def test_whoever_writes_at_whatever_moment_of_a_reset(
    store: SmallS3, one: Workspace, other: Workspace, moments: range
) -> None:
    requests: list[str] = []
    late: list[int] = []

    def write(number: int) -> None:
        try:
            _ = other["cities"]
        except SetBackError:
            follow(other)
            late.append(number)
        append(other["cities"]._files, f"other {number}")

    for number in moments:
        expected = texts(one)
        newest = one["cities"]
        fired = at(store, number, lambda n=number: write(n))  # type: ignore[misc]
        try:
            newest.reset(newest.summary.head_block.sequence_number - 1, force=True)
        except RefConflictError:
            expected += [f"other {number}"]
        else:
            expected = expected[:-1] + [f"other {n}" for n in late if n == number]
            assert len(fired) == late.count(number)
        calm(store)
        assert texts(one) == expected
        try:
            assert texts(other) == expected
        except SetBackError:
            follow(other)
        assert texts(other) == expected
        requests += fired
    assert any(request == f"PUT datasets/{newest._files.folder.name}/refs/head" for request in requests)
    assert clean(one)


@pytest.mark.parametrize("fault", [503, 0])
def test_an_answer_that_is_lost_is_decided_by_asking(
    store: SmallS3, one: Workspace, other: Workspace, fault: int
) -> None:
    one = reopened(one, QUICK)

    def lose(meanwhile: Callable[[], object]) -> Callable[[str, str], int | None]:
        def hook(method: str, path: str) -> int | None:
            if method == "PUT" and path.endswith("refs/head"):
                calm(store)
                meanwhile()
                return fault
            return None

        return hook

    store.after = lose(lambda: None)
    one["cities"].reset(4, force=True)
    assert texts(one) == ["a", "b", "c"][: len(texts(one))]
    store.after = lose(lambda: None)
    one["cities"].reset(3, force=True)
    assert texts(one) == ["a", "b"], "it was carried out"
    follow(other)

    def goes_on() -> None:
        follow(other)
        append(other["cities"]._files, "x")

    store.after = lose(goes_on)
    one["cities"].reset(2, force=True)
    assert texts(one) == ["a", "x"], "somebody has gone on from there"
    store.before = lose(lambda: append(other["cities"]._files, "y"))
    with pytest.raises(RefConflictError):
        one["cities"].reset(2, force=True)
    assert texts(one) == ["a", "x", "y"], "somebody was faster"
    store.before = lose(lambda: other["cities"].reset(3, force=True))
    with pytest.raises(RefConflictError):
        one["cities"].reset(2, force=True)
    follow(one)
    assert texts(one) == ["a", "x"], "somebody has put it back less far"
    store.before = lambda method, path: fault if method == "PUT" and path.endswith("refs/head") else None
    with pytest.raises(TransferError):
        one["cities"].reset(2, force=True)
    calm(store)
    assert texts(one) == texts(other) == ["a", "x"], "it was not carried out"


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_process_that_dies_after_the_head_of_the_store(
    one: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    swap = LocalRefStore.compare_and_swap

    def die(self: LocalRefStore, name: str, expected: Multihash | None, new: Multihash) -> None:
        if name == "head":
            raise SystemExit
        swap(self, name, expected, new)

    with monkeypatch.context() as patch:
        patch.setattr(LocalRefStore, "compare_and_swap", die)
        with pytest.raises(SystemExit):
            one["cities"].reset(3, force=True)
    follow(other)
    if goes_on:
        append(other["cities"]._files, "d")
    expected = ["a", "b", *(["d"] if goes_on else [])]
    assert texts(reopened(one)) == texts(other) == expected
    assert clean(reopened(one))


def test_a_process_that_dies_before_the_head_of_the_store(
    store: SmallS3, one: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = one["cities"]._files.folder

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("odfchain.storage.bucket_store.BucketTransport.replace", die)
        with pytest.raises(SystemExit):
            one["cities"].reset(3, force=True)
    assert texts(reopened(one)) == texts(other) == ["a", "b", "c"]
    append(reopened(one)["cities"]._files, "d")
    # what was begun once says nothing of a later head: this was somebody else
    assert (folder / "info" / "replacing").is_file()
    key = next(key for key in store.objects if key.endswith("refs/head"))
    store.objects[key] = str(one["cities"]._files.chain.hash_at(3, head_of(one["cities"]._files))).encode()
    for workspace in (reopened(one), other):
        with pytest.raises(SetBackError):
            _ = workspace["cities"]
    follow(one)
    assert texts(one) == ["a", "b"]


def test_what_was_refused_is_not_done_later(store: SmallS3, one: Workspace, other: Workspace) -> None:
    at(store, 4, lambda: append(other["cities"]._files, "d"))
    with pytest.raises(RefConflictError):
        one["cities"].reset(3, force=True)
    calm(store)
    assert not (one.last_seen("cities")._files.folder / "info" / "replacing").exists()
    assert texts(one) == ["a", "b", "c", "d"]


# --- branches ------------------------------------------------------------------------------------------


def test_a_branch_that_is_put_back_is_followed_and_told(
    store: SmallS3, one: Workspace, other: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    append(one["cities"].create_branch("fix", at=3)._files, "x")
    append(other["cities"].branch("fix")._files, "y")
    old = head_of(one["cities"].branch("fix")._files)
    kept = one["cities"].branch("fix").reset(4, force=True)
    assert kept == overwritten_name(old)
    assert one["cities"].branches()[0].signature == "signed"
    capsys.readouterr()
    store.requests.clear()
    found = other["cities"].branch("fix")
    assert found.scan().to_arrow()["text"].to_pylist() == ["a", "b", "x"]
    assert f"does not continue what was seen here, which stays under refs/{kept}" in capsys.readouterr().err
    assert kept in refs(other)
    assert found.plan_reset(head_of(one["cities"].branch("fix")._files)).nothing
    assert {method for method, _, _ in store.requests} <= {"GET", "HEAD"}
    append(found._files, "z")
    assert texts(one, ref="fix") == ["a", "b", "x", "z"]
    assert texts(one) == ["a", "b", "c"]
    append(one["cities"].branch("fix")._files, "w")
    with pytest.raises(RefConflictError):
        found.reset(4, force=True)


def test_no_branch_begins_at_what_was_put_back_elsewhere(one: Workspace, other: Workspace) -> None:
    """It may be garbage by then: the machine that made it has seen no reference that needs it."""
    held = other["cities"]
    one["cities"].reset(2, force=True)
    with pytest.raises(SetBackError):
        held.create_branch("late")
    assert one["cities"].branch_names == []
    follow(other)
    append(one["cities"]._files, "d")
    assert held.create_branch("fix").label == "cities@fix"


def test_a_branch_comes_from_another_place(
    store: SmallS3, one: Workspace, other: Workspace, tmp_path: Path
) -> None:
    elsewhere = copied(store, one, tmp_path / "elsewhere")
    url = (tmp_path / "public").as_uri()
    append(elsewhere["cities"].create_branch("fix")._files, "x")
    elsewhere["cities"].push(url)
    elsewhere["cities"].branch("fix").push(url)
    with pytest.raises(PointNotFoundError, match="no branch"):
        one["cities"].pull_branch("none", url)
    one["cities"].pull_branch("fix", url)
    assert texts(other, ref="fix") == ["a", "b", "c", "x"]
    (fetched,) = FetchedBranches(other["cities"]._files).entries()
    assert not fetched.is_verified, "it is verified before it is merged"
    with pytest.raises(UsageError, match="not known where cities@fix comes from"):
        other["cities"].pull_branch("fix")
    append(elsewhere["cities"].branch("fix")._files, "y")
    elsewhere["cities"].branch("fix").push(url)
    assert one["cities"].pull_branch("fix").blocks == 1
    append(elsewhere["cities"].branch("fix")._files, "z")
    elsewhere["cities"].branch("fix").push(url)
    append(other["cities"].branch("fix")._files, "w")
    with pytest.raises(TransferError, match="diverged"):
        one["cities"].pull_branch("fix")
    one["cities"].pull_branch("fix", force=True)
    for workspace in (one, other):
        found = texts(workspace, ref="fix")
        assert found == ["a", "b", "c", "x", "y", "z"]


# --- commands ------------------------------------------------------------------------------------------


def test_commands_say_what_happens(one: Workspace, other: Workspace) -> None:
    one, other = (run_here(workspace) for workspace in (one, other))
    done = one("-y", "reset", "cities", "3", "--force")
    assert done.out.split()[-5:] == ["reset", "3", "1", "1", "1"], done.err
    refused = other("tail", "cities")
    assert refused.code == 7
    command = refused.err.partition("`odfchain ")[2].partition("`")[0].split()
    assert command[:2] == ["reset", "cities"]
    assert "cities" in other("list").out
    assert other("verify", "cities").code == 7
    assert other("reset", "cities", "2", "--force").code == 7, "not without the hash"
    assert "would be reset" in other(*command, "--dry-run").out
    assert "followed" in other("-y", *command).out
    assert other("verify", "cities").code == 0
    assert "nothing to do" in other(*command).out
    assert one("-y", "compact", "cities", "--hard").code == 0
    assert other("tail", "cities").code == 7
