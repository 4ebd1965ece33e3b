"""Going back: nothing is dropped that is nowhere else, the old head can be returned to, and nobody is lied to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.chain.signed_heads import SignatureStatus, check_head, read_head_signature
from odfchain.errors import (
    ChainsDifferError,
    InvalidIdError,
    ObjectNotFoundError,
    OdfchainError,
    RefConflictError,
    StoreError,
    UsageError,
    WorkspaceError,
)
from odfchain.storage import fsio
from odfchain.transfer.sharing import AliasKind, add_alias
from odfchain.transfer.signed_statements import SeenHeads
from odfchain.upkeep.garbage import collect
from odfchain.upkeep.reset import RemoteState
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import GcOptions, PushOptions
from odfchain.workspace.points import lock_path
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.recorded_dataset import add_slice
from tests.kit.sharing import Sharing
from tests.kit.support import Result, unchanged
from tests.kit.upkeep_scenes import (
    everything,
    hashes,
    head_of,
    killed_everywhere,
    later,
    new_workspace,
    reader_of,
    records,
    root,
)

SLICES = 4


@pytest.fixture
def dataset(workspace: WorkspaceFiles) -> DatasetFiles:
    return root(workspace, slices=SLICES)


@pytest.fixture
def cities(workspace: WorkspaceFiles, dataset: DatasetFiles) -> Dataset:
    return Workspace(workspace)["cities"]


def number_of(dataset: DatasetFiles) -> int:
    return dataset.chain.get(head_of(dataset)).sequence_number


# --- what it does ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_hash", [False, True])
def test_the_head_goes_back_and_the_old_one_is_kept(
    cities: Dataset, dataset: DatasetFiles, by_hash: bool
) -> None:
    chain, before = hashes(dataset), records(dataset)
    plan = cities.plan_reset(str(chain[3]) if by_hash else 3)
    assert (plan.dropped, plan.records) == ((chain[5], chain[4]), 3 + 4)
    kept = cities.reset(plan, force=True)
    assert kept is not None
    assert head_of(dataset) == chain[3]
    assert dataset.chain.head(kept) == chain[5]
    fresh = DatasetFiles.open(dataset.folder)
    assert records(fresh) == before.slice(0, 3)
    assert everything(fresh)


def test_what_is_derived_from_the_chain_is_right_afterwards(cities: Dataset, dataset: DatasetFiles) -> None:
    state = DatasetState.read(dataset.chain)  # the index knows all blocks
    assert state.record_count == 10
    cities.reset(3, force=True)
    for opened in (dataset, DatasetFiles.open(dataset.folder)):
        state = DatasetState.read(opened.chain)
        assert (state.record_count, state.last_offset) == (3, 2)
        assert len(opened.chain.hashes(head_of(opened))) == 4
    add_slice(dataset, ["another"])
    assert records(DatasetFiles.open(dataset.folder)).column("city").to_pylist()[-1] == "another"
    assert [b.block.sequence_number for b in dataset.chain.walk()] == [4, 3, 2, 1, 0]


def test_a_reset_to_the_old_head_undoes_it(cities: Dataset, dataset: DatasetFiles) -> None:
    old, before = head_of(dataset), records(dataset)
    cities.reset(2, force=True)
    plan = cities.plan_reset(str(old))
    assert plan.returns
    cities.reset(plan)
    assert head_of(dataset) == old
    assert records(dataset) == before


def test_resetting_to_the_head_does_nothing(cities: Dataset, dataset: DatasetFiles) -> None:
    plan = cities.plan_reset(1 + SLICES)
    with unchanged(dataset.folder):
        assert plan.nothing
        assert cities.reset(plan) is None


def test_the_new_head_is_signed_by_its_owner(cities: Dataset, dataset: DatasetFiles) -> None:
    cities.reset(3, force=True)
    found = check_head(read_head_signature(dataset.folder), dataset.id, head_of(dataset), 3)
    assert found.status is SignatureStatus.SIGNED


# --- what it refuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "error"),
    [("6", ObjectNotFoundError), ("f1620" + "0" * 64, ObjectNotFoundError), ("-1", InvalidIdError),
     ("head", InvalidIdError), ("9" * 5000, ObjectNotFoundError), ("", InvalidIdError)],
)  # fmt: skip
def test_blocks_that_are_not_there_are_refused(
    cities: Dataset, dataset: DatasetFiles, block: str, error: type[OdfchainError]
) -> None:
    with unchanged(dataset.folder), pytest.raises(error) as caught:
        cities.plan_reset(block)
    assert "odfchain log" in str(caught.value.hint)


def test_a_block_that_is_no_ancestor_is_refused(cities: Dataset, dataset: DatasetFiles) -> None:
    aside = str(hashes(dataset)[4])
    cities.reset(3, force=True)
    add_slice(dataset, ["x"])
    add_slice(dataset, ["y"])
    with unchanged(dataset.folder), pytest.raises(UsageError, match="not an ancestor"):
        cities.plan_reset(aside)


def test_a_head_that_moved_since_it_was_planned_is_left_there(cities: Dataset, dataset: DatasetFiles) -> None:
    plan = cities.plan_reset(3)
    add_slice(dataset, ["faster"])
    winner = head_of(dataset)
    with pytest.raises(RefConflictError):
        cities.reset(plan, force=True)
    assert head_of(dataset) == winner
    assert everything(dataset)


def test_a_head_that_was_given_up_since_it_was_planned_is_not_returned_to(
    cities: Dataset, dataset: DatasetFiles
) -> None:
    old = head_of(dataset)
    cities.reset(3, force=True)
    plan = cities.plan_reset(str(old))
    collect(dataset, GcOptions(drop_refs=True), now=later)
    with unchanged(dataset.folder), pytest.raises(ObjectNotFoundError, match="not kept any more"):
        cities.reset(plan)


def test_nothing_is_reset_while_something_is_pulled_in(cities: Dataset, dataset: DatasetFiles) -> None:
    plan = cities.plan_reset(3)
    with (
        unchanged(dataset.folder),
        fsio.locked(lock_path(dataset)),
        pytest.raises(StoreError, match=r"pulled|at work"),
    ):
        cities.reset(plan, force=True)


# --- the safety net --------------------------------------------------------------------------------------


def test_blocks_that_were_never_sent_anywhere_are_not_dropped(cities: Dataset, dataset: DatasetFiles) -> None:
    plan = cities.plan_reset(3)
    with unchanged(dataset.folder), pytest.raises(WorkspaceError, match="never pushed or pulled"):
        cities.reset(plan)


def test_blocks_that_a_repository_has_may_be_dropped(
    cities: Dataset, dataset: DatasetFiles, copy: str
) -> None:
    plan = cities.plan_reset(3)
    assert plan.unsaved == ()
    assert [(p.answer, len(p.has)) for p in plan.places] == [(RemoteState.REACHED, 2)]
    cities.reset(plan)
    assert number_of(dataset) == 3


def test_blocks_added_since_the_push_are_not_dropped(
    cities: Dataset, dataset: DatasetFiles, copy: str
) -> None:
    add_slice(dataset, ["only here"])
    plan = cities.plan_reset(3)
    assert plan.unsaved == (head_of(dataset),)
    with unchanged(dataset.folder), pytest.raises(WorkspaceError, match="1 of the 3 blocks"):
        cities.reset(plan)


def test_several_places_together_may_have_them(
    cities: Dataset, dataset: DatasetFiles, copy: str, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "copy", tmp_path / "two")
    add_alias(dataset, AliasKind.PUSH, (tmp_path / "two").as_uri())
    chain = hashes(dataset)
    (tmp_path / "copy" / "blocks" / str(chain[4])).unlink()
    assert cities.plan_reset(3).unsaved == ()
    (tmp_path / "two" / "blocks" / str(chain[4])).write_bytes(b"damaged")
    assert cities.plan_reset(3).unsaved == (chain[4],)


def test_a_place_that_is_ahead_has_them(
    workspace: WorkspaceFiles, cities: Dataset, dataset: DatasetFiles, tmp_path: Path
) -> None:
    old = head_of(dataset)
    add_slice(dataset, ["more"])
    Sharing(workspace).push("cities", (tmp_path / "copy").as_uri())
    shutil.rmtree(dataset.folder / "refs")
    (dataset.folder / "refs").mkdir()
    dataset.chain.set_ref("head", old, expected=None)
    assert cities.plan_reset(3).unsaved == ()


def test_a_place_that_cannot_be_asked_counts_as_having_nothing(
    cities: Dataset, dataset: DatasetFiles
) -> None:
    add_alias(dataset, AliasKind.PULL, "s4nowhere/cities")
    plan = cities.plan_reset(3)
    assert [p.answer for p in plan.places] == [RemoteState.UNKNOWN]
    with unchanged(dataset.folder), pytest.raises(WorkspaceError, match="s4nowhere/cities cannot be asked"):
        cities.reset(plan)


def test_a_place_that_has_another_history_or_none_counts_as_having_nothing(
    workspace: WorkspaceFiles, cities: Dataset, dataset: DatasetFiles, tmp_path: Path
) -> None:
    root(workspace, "other", slices=6)
    Sharing(workspace).push("other", (tmp_path / "other").as_uri())
    for name in ("other", "nothing"):
        add_alias(dataset, AliasKind.PULL, (tmp_path / name).as_uri())
    plan = cities.plan_reset(3)
    assert {p.answer for p in plan.places} == {RemoteState.REACHED, RemoteState.NOTHING}
    assert len(plan.unsaved) == 2


def test_the_password_of_a_place_is_not_shown(cities: Dataset, dataset: DatasetFiles) -> None:
    add_alias(dataset, AliasKind.PULL, "s3+http://user:secret@127.0.0.1:1/bucket/cities")
    with pytest.raises(WorkspaceError, match=r"nowhere|neither") as caught:
        cities.reset(3)
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_derivatives_that_have_read_dropped_blocks_are_named(
    workspace: WorkspaceFiles, cities: Dataset, dataset: DatasetFiles
) -> None:
    chain = hashes(dataset)
    reader_of(workspace, dataset.id, [chain[3], chain[4], chain[5]], "eager")
    reader_of(workspace, dataset.id, [chain[2], chain[3]], "lazy")
    found = cities.plan_reset(3).dependents
    assert [(d.alias, d.transactions) for d in found] == [("eager", 2)]


# --- the memory of the newest block seen ------------------------------------------------------------------


def test_the_owner_who_went_back_may_pull_what_followed(
    workspace: WorkspaceFiles, cities: Dataset, dataset: DatasetFiles, copy: str
) -> None:
    sharing = Sharing(workspace)
    sharing.pull(copy, "cities")  # it is remembered now
    cities.reset(3)
    seen = SeenHeads(workspace.root / "seen").get(dataset.id)
    assert (seen.sequence_number, seen.head) == (3, head_of(dataset))
    sharing.push("cities", copy, PushOptions(force=True))
    assert sharing.pull(copy, "cities").outcome.new == head_of(dataset)


def test_a_copy_that_went_back_still_refuses_a_peer_that_does(
    workspace: WorkspaceFiles, cities: Dataset, copy: str, tmp_path: Path
) -> None:
    other = new_workspace(tmp_path / "other")
    Sharing(other).pull(copy, "cities")
    Workspace(other)["cities"].reset(3)
    assert number_of(other.dataset("cities")) == 3
    cities.reset(4)
    Sharing(workspace).push("cities", copy, PushOptions(force=True))
    with pytest.raises(ChainsDifferError, match="than was seen"):
        Sharing(other).pull("cities")


# --- crashes and the command -----------------------------------------------------------------------------


def test_killed_at_any_moment_the_head_is_the_old_or_the_new_one(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dataset = root(new_workspace(tmp_path / "template"), slices=SLICES)
    old, new = hashes(dataset)[-1], hashes(dataset)[3]
    seen = set()
    copies = killed_everywhere(tmp_path / "template", tmp_path / "killed", "reset")
    record_property("kills", len(copies) - 1)
    for killed in copies:
        found = killed.dataset("cities")
        assert head_of(found) in (old, new)
        if head_of(found) == new:
            assert old in {found.chain.head(name.name) for name in (found.folder / "refs").glob("over*")}
        assert everything(found)
        seen.add(head_of(found))
    assert seen == {old, new}


def test_the_command_says_what_it_would_do_asks_and_does_it(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    chain = hashes(dataset)
    reader_of(workspace, dataset.id, [chain[5]], "eager")
    at = ("-w", tmp_path / "w")
    with unchanged(dataset.folder):
        result = run(*at, "reset", "cities", 3, "--dry-run", "-o", "json")
        (row,) = result.rows
        assert (row["blocks"], row["records"], row["unsaved"]) == (2, 7, 0)
        assert row["breaks"] == [{"dataset": "eager", "transactions": 1}]
        assert row["dropped"] == [str(chain[5]), str(chain[4])]
        result = run(*at, "reset", "cities", 3)
        assert result.code == 2
        assert "Drop 2 blocks with 7 records" in result.err
        assert "breaks eager" in result.err
    result = run(*at, "-y", "reset", "cities", 3, "-o", "json")
    assert (result.code, json.loads(result.out)[0]["status"]) == (0, "reset")
    assert head_of(dataset) == chain[3]


def test_the_command_refuses_and_says_how_to_go_on(
    dataset: DatasetFiles, tmp_path: Path, run: Callable[..., Result]
) -> None:
    with unchanged(dataset.folder):
        result = run("-w", tmp_path / "w", "-y", "reset", "cities", 3)
    assert result.code == 5
    assert "odfchain push" in result.err
    assert "--force" in result.err
    assert run("-w", tmp_path / "w", "-y", "reset", "cities", 3, "--force").code == 0
