"""What is referred to stays: by rows that name changes, by rows on a branch, by foreign keys, by derivatives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.branches.foreign_keys import are_changes
from odfchain.errors import IngestError, SliceNotFoundError
from odfchain.upkeep.compact import Compaction
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import GcOptions
from tests.kit.branch_cases import run_here
from tests.kit.branched_dataset import fork
from tests.kit.foreign_key_cases import Scene
from tests.kit.upkeep_scenes import later, reader_of

CASE: dict[str, Any] = {
    "datasets": {
        "parent": {"columns": ["p", "a"], "key": ["p"]},
        "notes": {
            "columns": ["n", "reviewed"],
            "key": ["n"],
            "constraints": "foreignKeys: [{columns: [reviewed], references: {changesOf: parent}}]",
        },
        "child": {
            "columns": ["c", "p"],
            "key": ["c"],
            "constraints": "foreignKeys: [{columns: [p], references: {dataset: parent}}]",
        },
    }
}
FIX = [["-C", "p1", "x"], ["+C", "p1", "y"]]


class Referred:
    """A parent with a branch `v`, whose only block a row of `notes` names."""

    def __init__(self, folder: Path, on: str = "parent@v") -> None:
        self.scene = Scene(CASE, folder)
        self.scene.hold()
        self.take("parent", [["+A", "p1", "x"]])
        self.branch("parent", "v")
        self.take(on, FIX)
        self.change = f"{self.at(on).chain.head()}#2"
        self.take("notes", [["+A", "n1", self.change], ["+A", "n2", None]])
        self.workspace = self.scene.workspace
        self.run = run_here(self.workspace)

    def take(self, on: str, rows: list[list[Any]]) -> None:
        self.scene.take({"on": on, "rows": rows})

    def branch(self, name: str, branch: str) -> None:
        fork(self.at(name), branch)

    def at(self, place: str) -> DatasetFiles:
        return self.scene.at(place)

    def forget(self) -> None:
        """Nothing names the change any more."""
        self.take("notes", [["-C", "n1", self.change], ["+C", "n1", None]])

    def collect(self, **options: Any) -> Any:
        chosen = GcOptions(drop_refs=True, **options)
        return collect(self.at("parent"), chosen, workspace=self.workspace._files, now=later)

    @property
    def is_there(self) -> bool:
        return bool(are_changes(self.at("parent"), [self.change])[0])


@pytest.fixture
def scene(tmp_path: Path) -> Referred:
    return Referred(tmp_path)


def refused(scene: Referred, *command: str, says: tuple[str, ...] = ("notes (1 row",)) -> None:
    result = scene.run("-y", *command)
    assert result.code == 3, result.err
    for text in says:
        assert text in result.err


# --- changes ---------------------------------------------------------------------------------------


def test_a_branch_whose_changes_rows_name_stays(scene: Referred) -> None:
    refused(scene, "branch", "delete", "parent", "v", "--force", says=(
        "what only parent@v has is referred to by notes (1 row with changes by reviewed)", "--break-references",
    ))  # fmt: skip
    with pytest.raises(IngestError, match=r"notes \(1 row"):
        scene.workspace["parent"].delete_branch("v", force=True)
    assert scene.workspace["parent"].branch_names == ["v"]
    with pytest.raises(odf.errors.WorkspaceError, match=r"nowhere|neither"):  # as before, without --force
        scene.workspace["parent"].delete_branch("v", break_references=True)
    assert scene.run("branch", "delete", "parent", "v", "--force", "--break-references").code == 0


def test_a_branch_is_given_up_once_no_row_names_its_changes(scene: Referred) -> None:
    scene.branch("notes", "old")
    scene.forget()
    refused(scene, "branch", "delete", "parent", "v", "--force", says=("notes@old (1 row",))
    scene.workspace["notes"].delete_branch("old")
    assert scene.workspace["parent"].delete_branch("v", force=True) is not None


def test_a_head_that_was_given_up_keeps_nothing(scene: Referred) -> None:
    d = scene.workspace["parent"]
    block = d.branch("v").head
    assert block is not None
    d.delete_branch("v", force=True, break_references=True)
    d.create_branch("again", at=block)
    refused(scene, "branch", "delete", "parent", "again", "--force")


def test_a_reset_names_derivatives_that_have_read_it_on_a_branch(scene: Referred) -> None:
    scene.forget()
    parent, head = scene.at("parent"), scene.at("parent").chain.head()
    assert head is not None
    made = reader_of(scene.workspace._files, parent.id, [head])
    fork(made, "mine")
    plan = scene.workspace["parent"].plan_reset(2)
    assert [item.alias for item in plan.dependents] == ["derived", "derived@mine"]
    assert scene.workspace["parent"].reset(plan, force=True) is not None  # named, and asked about


def test_changes_that_rows_name_are_no_garbage(scene: Referred) -> None:
    scene.workspace["parent"].delete_branch("v", force=True, break_references=True)
    dry = scene.collect(dry_run=True)
    found = scene.collect()
    for each in (dry, found):
        assert each.referrers == ("notes (1 row with changes by reviewed)",)
        assert each.refs
    assert scene.is_there
    assert scene.workspace["notes"].verify().state(18) == "passed"
    again = scene.collect()
    assert (again.referrers, again.refs) == (found.referrers, ())
    told = scene.run("gc", "parent")
    assert "changes stay that notes (1 row with changes by reviewed) refers to" in told.err
    (told_programs,) = json.loads(scene.run("gc", "parent", "-o", "json").out)
    assert told_programs["referrers"] == list(found.referrers)
    assert scene.collect(break_references=True).referrers == ()
    assert not scene.is_there


def test_changes_that_no_row_names_any_more_are_garbage(scene: Referred) -> None:
    scene.workspace["parent"].delete_branch("v", force=True, break_references=True)
    scene.forget()
    assert scene.collect().referrers == ()
    assert not scene.is_there


def test_the_gc_of_a_workspace_keeps_them_too(scene: Referred) -> None:
    scene.workspace["parent"].delete_branch("v", force=True, break_references=True)
    parent = next(item for item in scene.workspace.gc(drop_refs=True) if item.dataset == "parent")
    assert parent.refs == ()  # too young
    assert scene.is_there


def test_rows_that_cannot_be_read_keep_everything(scene: Referred) -> None:
    scene.workspace["parent"].delete_branch("v", force=True, break_references=True)
    notes = scene.at("notes")
    for path in (notes.folder / "data").iterdir():
        path.unlink()
    with pytest.raises(SliceNotFoundError):
        scene.collect()
    assert scene.is_there
    scene.collect(break_references=True)
    assert not scene.is_there


def test_a_dataset_may_name_its_own_changes(tmp_path: Path) -> None:
    spec = {
        "columns": ["p", "a", "reviewed"],
        "key": ["p"],
        "constraints": "foreignKeys: [{columns: [reviewed], references: {changesOf: parent}}]",
    }
    scene = Scene({"datasets": {"parent": spec}}, tmp_path)
    scene.hold()
    scene.take({"on": "parent", "rows": [["+A", "p1", "x"]]})
    fork(scene.at("parent"), "v")
    scene.take({"on": "parent@v", "rows": [["+A", "p2", "x"]]})
    change = f"{scene.at('parent@v').chain.head()}#1"
    scene.take({"on": "parent", "rows": [["+A", "p3", "x", change]]})
    with pytest.raises(IngestError, match=r"parent \(1 row with changes by reviewed\)"):
        scene.workspace["parent"].delete_branch("v", force=True)


def test_what_was_merged_or_is_on_another_branch_is_not_lost(scene: Referred) -> None:
    scene.branch("parent@v", "other")
    scene.workspace["parent"].delete_branch("v")
    refused(scene, "branch", "delete", "parent", "other", "--force")
    assert scene.run("merge", "parent", "other").code == 0
    assert scene.run("branch", "delete", "parent", "other").code == 0
    assert scene.collect().referrers == ()
    assert scene.is_there  # the merge leads to it
    refused(scene, "reset", "parent", "2", "--force")  # which went with the merge


@pytest.mark.parametrize("place", ["parent", "parent@v"])
def test_a_reset_keeps_changes_that_rows_name(tmp_path: Path, place: str) -> None:
    scene = Referred(tmp_path, place)
    head = scene.at(place).chain.head()
    refused(scene, "reset", place, "2", "--force", says=(f"what {place.partition('@')[0]} would drop",))
    (dry,) = json.loads(scene.run("reset", place, "2", "--dry-run", "-o", "json").out)
    assert dry["referrers"] == ["notes (1 row with changes by reviewed)"]
    dataset = scene.workspace["parent"] if place == "parent" else scene.workspace["parent"].branch("v")
    with pytest.raises(IngestError, match="notes"):
        dataset.reset(2, force=True)
    assert scene.at(place).chain.head() == head
    assert dataset.reset(2, force=True, break_references=True) is not None
    assert scene.is_there
    scene.collect()
    assert scene.is_there


def test_a_reset_that_drops_other_blocks_is_not_refused(tmp_path: Path) -> None:
    scene = Referred(tmp_path, "parent")
    head = str(scene.at("parent").chain.head())
    scene.take("parent", [["+A", "p9", "x"]])
    assert scene.run("-y", "reset", "parent", head, "--force").code == 0


def test_a_compaction_keeps_changes_that_rows_name(tmp_path: Path) -> None:
    scene = Referred(tmp_path, "parent")
    scene.workspace["parent"].delete_branch("v")
    refused(scene, "compact", "parent", "--hard", says=("what parent would replace", "notes (1 row"))
    with pytest.raises(IngestError, match="notes"):
        scene.workspace["parent"].compact()
    files = scene.workspace._files
    assert Compaction(files, scene.at("parent")).plan(metadata_only=True).referrers
    assert scene.run("-y", "compact", "parent", "--hard", "--break-references").code == 0
    assert scene.run("compact", "parent", "--soft", "--as", "fewer", "--break-references").code == 2
    scene.collect()
    assert scene.is_there


# --- records ---------------------------------------------------------------------------------------


def test_a_branch_with_records_that_rows_of_its_version_refer_to_stays(scene: Referred) -> None:
    scene.forget()
    scene.branch("child", "v")
    scene.take("parent@v", [["+A", "p7", "x"]])
    scene.take("child@v", [["+A", "c1", "p7"], ["+A", "c2", "p1"]])
    refused(scene, "branch", "delete", "parent", "v", "--force", says=("child@v (1 row by p)",))
    refused(
        scene, "branch", "rename", "parent", "v", "w", says=("parent@v is referred to by child@v (1 row",)
    )
    assert scene.workspace["parent"].rename_branch("v", "v").ref == "v"
    assert scene.run("merge", "parent", "v").code == 0  # now the head has them
    assert scene.run("branch", "rename", "parent", "v", "w").code == 0
    assert scene.run("branch", "delete", "parent", "w").code == 0


def test_rows_that_refer_to_nothing_on_the_branch_either_do_not_hold_it(scene: Referred) -> None:
    scene.forget()
    scene.branch("child", "v")
    scene.take("parent@v", [["+A", "p7", "x"]])
    scene.take("child@v", [["+A", "c1", "p7"]])
    scene.scene.append(scene.at("parent@v"), [[["-R", "p7", "x"]]], None)  # as before there were constraints
    assert scene.run("branch", "rename", "parent", "v", "w").code == 0


# --- whole datasets --------------------------------------------------------------------------------


def test_a_dataset_that_others_refer_to_or_are_made_of_stays(scene: Referred) -> None:
    made = reader_of(scene.workspace._files, scene.at("parent").id, [])
    says = (
        "child (foreign key p to parent)",
        "notes (foreign key reviewed to parent)",
        "derived (made of parent)",
    )
    refused(scene, "delete", "parent", says=(*says, "--force"))
    with pytest.raises(IngestError, match="derived"):
        scene.workspace.delete("parent")
    assert "parent" in scene.workspace
    refused(scene, "delete", "parent", "child", says=("notes", "derived"))
    assert scene.run("-y", "delete", "parent", "child", "notes", str(made.alias)).code == 0
    assert len(scene.workspace) == 0


def test_a_dataset_is_deleted_in_spite_of_those_who_refer_to_it(scene: Referred) -> None:
    assert scene.run("-y", "delete", "parent", "--force").code == 0
    assert "parent" not in scene.workspace
    scene.workspace.delete("child")


def test_what_is_declared_or_made_of_it_on_a_branch_counts(scene: Referred) -> None:
    head = scene.at("parent").chain.head()
    assert head is not None
    fork(reader_of(scene.workspace._files, scene.at("parent").id, [head]), "old")
    refused(scene, "delete", "parent", says=("derived (made of parent)", "derived@old (made of parent)"))


def test_another_name_breaks_nothing(scene: Referred) -> None:
    assert scene.run("rename", "parent", "elders").code == 0
    scene.take("notes", [["+A", "n3", scene.change]])
    assert scene.workspace["notes"].verify().state(18) == "passed"


def test_many_referrers_are_counted(scene: Referred) -> None:
    for number in range(10):
        scene.branch("child", f"b{number}")
    result = scene.run("-y", "delete", "parent")
    assert ", and 4 more; nothing was given up" in result.err


def test_what_is_published_of_a_kept_block_stays(tmp_path: Path) -> None:
    """Lines about a block, and what they name, stay as long as the block does."""
    scene = Referred(tmp_path, "parent")
    dataset = scene.workspace["parent"]
    assert dataset.write_manifest().published
    dataset.delete_branch("v")
    dataset.reset(2, force=True, break_references=True)
    for broken, count in ((False, 1), (True, 0)):
        scene.collect(break_references=broken)
        assert len(list((dataset.path / "manifests").iterdir())) == count
