"""Merges of what was shared: by whom they can be checked, what of a stranger's they believe, and what a crash leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.audit.report import MERGES
from odfchain.audit.verification import Auditor
from odfchain.errors import ObjectCorruptedError, UsageError
from odfchain.odf.identity import Multihash
from odfchain.storage.fsio import LocalScratch
from odfchain.upkeep.compact import BatchLimits
from odfchain.upkeep.garbage import collect
from odfchain.workspace.merge_record import FetchedBranches, merges
from odfchain.workspace.options import GcOptions, VerifyOptions
from tests.kit.branch_cases import Scene, made_scene, run_here
from tests.kit.conformance_client import DATASET, main
from tests.kit.upkeep_scenes import killed_everywhere, later

CASE = {"base": ["1xy", "2uv"], "ours": ["-C 1xy", "+C 1qy"], "theirs": ["-C 2uv", "+C 2uw"]}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = made_scene(tmp_path, **CASE)
    yield scene
    scene.workspace.close()


def head(scene: Scene) -> Multihash:
    return scene.workspace["d"].head


def checked_merges(dataset: Dataset) -> int:
    """In a dataset without a fault, all of whose merges can be checked."""
    report = dataset.verify()
    assert (report.ok, report.reasons.get(MERGES)) == (True, None)
    return report.done[MERGES]


# --- who can check a merge -------------------------------------------------------------------------------


def test_case_51_the_merge_of_a_branch_that_is_gone_is_checked_after_gc(scene: Scene) -> None:
    dataset = scene.workspace["d"]
    dataset.merge("theirs")
    assert dataset.delete_branch("theirs") is None
    collect(dataset._files, GcOptions(drop_refs=True), now=later)
    assert checked_merges(dataset) == 1
    assert dataset.fsck().whole


def test_a_merge_is_verified_without_any_index(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is a file like others: with one that leads past blocks nothing of a merge would be looked at."""
    dataset = scene.workspace["d"]
    dataset.merge("theirs")
    auditor, files, engines = Auditor(scene.workspace._files), dataset._files, scene.workspace._engines.of
    monkeypatch.setattr(LocalScratch, "read", lambda *_: pytest.fail("an index is read"))
    (report,) = auditor.verify([files], engines, VerifyOptions(recursive=True))
    assert (report.ok, report.done[MERGES]) == (True, 1)


def test_case_52_a_plain_client_has_an_ordinary_chain_and_checks_the_merge_once_it_has_its_source(
    scene: Scene, tmp_path: Path
) -> None:
    dataset, place = scene.workspace["d"], tmp_path / "place"
    dataset.merge("theirs")
    dataset.delete_branch("theirs")
    dataset.push(place.as_uri())
    home = tmp_path / "plain"
    assert [main(["init", str(home)]), main(["pull", str(home), place.as_uri()])] == [0, 0]
    assert main(["verify", str(home)]) == 0
    copy = Workspace.open(home)[DATASET]
    report = copy.verify()
    assert (report.faults, report.unchecked) == ([], [])
    assert MERGES not in report.done
    assert "fetch dataset --merged" in report.reasons[MERGES]
    shutil.rmtree(place / "refs")  # any mirror will do
    assert copy.fetch_merged(place.as_uri()).blocks == 1
    assert checked_merges(copy) == 1


def test_the_blocks_of_a_copy_without_merges_are_those_of_ever(scene: Scene, tmp_path: Path) -> None:
    """What is pushed of a head is the same, whatever branches there are beside it."""
    dataset = scene.workspace["d"]
    dataset.push((tmp_path / "with").as_uri())
    dataset.delete_branch("theirs", force=True)
    dataset.push((tmp_path / "without").as_uri())
    one, other = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (tmp_path / "with", tmp_path / "without")
    )
    assert one == other


def test_what_was_fetched_to_check_a_merge_is_not_believed_by_another(scene: Scene, tmp_path: Path) -> None:
    dataset, place = scene.workspace["d"], (tmp_path / "place").as_uri()
    dataset.merge("theirs")
    dataset.push(place)
    with Workspace.init(tmp_path / "other") as other:
        copy = other.pull(place, name="d").dataset
        copy.fetch_merged(place)
        (merge,) = merges(copy._files.chain, copy.summary.head)
        base, source = merge.record.base[0], merge.record.source
        assert not FetchedBranches(copy._files).is_known_here(base, source, owner=True)


@pytest.mark.parametrize("forged", [True, False])
def test_case_54_a_fetched_branch_is_verified_before_it_is_merged(
    scene: Scene, tmp_path: Path, forged: bool
) -> None:
    dataset, place = scene.workspace["d"], (tmp_path / "place").as_uri()
    stranger = tmp_path / "stranger"
    shutil.copytree(tmp_path / "workspace", stranger / "workspace")
    with Workspace.open(stranger / "workspace") as there:
        forger = Scene(there, stranger, run_here(there), dict(scene.columns), hour=9)
        old = "2uz" if forged else "2uw"  # in force there is 2uw
        forger.take({"on": "theirs", "rows": [f"-C {old}", "+C 2us"]})
        there["d"].branch("theirs").push(place)
    dataset.rename_branch("theirs", "mine")
    dataset.pull_branch("theirs", place)
    before = head(scene)
    if not forged:
        assert dataset.merge("theirs").operations == {"-C": 1, "+C": 1}
        assert dataset.verify().ok
        return
    with pytest.raises(ObjectCorruptedError, match="takes back values that no row in force has") as caught:
        dataset.merge("theirs")
    assert caught.value.exit_code == 6
    result = scene.run("merge", "d", "theirs")
    assert (result.code, "nothing was merged" in result.err) == (6, True)
    assert head(scene) == before
    assert not scene.workspace["d"].branch("theirs").verify().ok


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_case_58_a_merge_that_is_killed_anywhere_leaves_the_old_or_the_new_head(
    tmp_path: Path, step: int, record_property: Callable[[str, object], None]
) -> None:
    template = tmp_path / "template"
    scene = made_scene(template, **CASE)
    scene.workspace.close()
    (template / "workspace").rename(template.with_name("ready"))
    old = Workspace.open(tmp_path / "ready")["d"].head
    seen = set()
    copies = killed_everywhere(tmp_path / "ready", tmp_path / "killed", "merge", step)
    record_property("kills", len(copies))
    for files in copies:
        dataset = Workspace(files)["d"]
        new = dataset.head
        assert dataset.verify().ok
        if new == old:
            dataset.merge("theirs")
            assert dataset.verify().ok
        else:
            assert len(merges(dataset._files.chain, dataset.summary.head)) == 1
        seen.add(new == old)
        assert sorted(r["a"] + r["b"] for r in dataset.state().to_arrow().to_pylist()) == ["qy", "uw"]
    assert seen == {True, False}


def test_a_merge_can_be_checked_after_what_it_was_made_on_was_compacted(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, base=["1xy", "2uv"], ours=[["3ab"], ["4cd"]], theirs=["-C 2uv", "+C 2uw"])
    with scene.workspace:
        dataset = scene.workspace["d"]
        dataset.merge("theirs")
        for rows in (["5ef"], ["6gh"]):
            scene.take({"rows": rows})
        with pytest.raises(UsageError, match="theirs forked from, or merged"):
            dataset.plan_compact(metadata_only=True)
        dataset.delete_branch("theirs")
        before = dataset.state().to_arrow()
        plan = dataset.plan_compact(limits=BatchLimits(records=2))  # the fork is not in what becomes one
        assert (plan.slices_before, plan.slices_after) == (6, 4)
        dataset.compact(plan)
        collect(dataset._files, GcOptions(drop_refs=True), now=later)
        dataset = Workspace.open(tmp_path / "workspace")["d"]
        assert dataset.state().to_arrow().equals(before)
        assert checked_merges(dataset) == 1


def test_what_a_revert_took_back_is_not_compacted_away(scene: Scene) -> None:
    dataset = scene.workspace["d"]
    scene.take({"rows": ["3ab"]})
    scene.take({"rows": ["4cd"]})
    dataset.revert(dataset.summary.head_block.sequence_number)
    dataset.delete_branch("theirs", force=True)
    with pytest.raises(UsageError, match="forked from, or merged"):
        dataset.plan_compact()
