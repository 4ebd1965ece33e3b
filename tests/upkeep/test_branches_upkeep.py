"""Upkeep knows branches: what they need stays, also when they were merged and are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.errors import ChainError, ObjectNotFoundError, UsageError, WorkspaceError
from odfchain.odf.identity import Multihash
from odfchain.storage import fsio
from odfchain.storage.local import LocalRefStore
from odfchain.transfer.signed_statements import SeenHeads
from odfchain.upkeep.compact import Compaction
from odfchain.upkeep.fsck import Finding, Fsck, State, candidates
from odfchain.upkeep.garbage import collect, reachable
from odfchain.upkeep.reset import Reset
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import merges
from odfchain.workspace.options import GcOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.branched_dataset import blocks_of, delete_branch, fork, merge, write
from tests.kit.sharing import Sharing
from tests.kit.upkeep_scenes import head_of, later, objects_of, records, root

DROP = GcOptions(drop_refs=True)


def findings(workspace: WorkspaceFiles, dataset: DatasetFiles) -> list[Finding]:
    return Fsck(workspace, dataset).run().findings


@pytest.fixture
def cities(workspace: WorkspaceFiles) -> DatasetFiles:
    return root(workspace, slices=2)


# --- garbage ---------------------------------------------------------------------------------------------


def test_a_copy_that_lacks_what_was_merged_is_complete(cities: DatasetFiles) -> None:
    base, fix = head_of(cities), fork(cities, "fix")
    source = write(fix, "b")
    merge(cities, fix, base)
    delete_branch(cities, "fix")
    (cities.folder / "blocks" / str(source)).unlink()
    collect(cities, DROP, now=later)
    assert objects_of(cities) == blocks_of(cities, head_of(cities))


def test_what_belongs_to_branches_that_are_gone_goes_too(cities: DatasetFiles) -> None:
    fix = fork(cities, "fix")
    write(fix, "b")
    fix.chain.nearest("Seed")
    (cities.folder / "refs" / "fix.jws").write_text("signed")
    (cities.folder / "info" / "states").mkdir()
    (cities.folder / "info" / "states" / "one").write_bytes(b"state")
    collect(cities, now=later)
    assert fix.index_path.exists()
    assert (cities.folder / "refs" / "fix.jws").exists()
    assert not (cities.folder / "info" / "states" / "one").exists()
    delete_branch(cities, "fix")
    found = {garbage.kind: garbage.files for garbage in collect(cities).removed}
    assert (found.get("signatures"), found["chain index"]) == (None, 1), "a signature may just be written"
    assert {g.kind: g.files for g in collect(cities, now=later).removed}["signatures"] == 1
    assert (cities.folder / "refs" / "head.jws").exists()
    assert cities.index_path.exists()


# --- going back ------------------------------------------------------------------------------------------


def test_a_branch_is_reset_and_the_memory_of_the_head_stays(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    fix, head = fork(cities, "fix"), head_of(cities)
    old = write(fix, "b")
    plan = Reset(workspace, fix).plan(head)
    assert plan.unsaved == (old,)
    with pytest.raises(WorkspaceError, match=r"nowhere|neither"):
        Reset(workspace, fix).run(plan)
    memory = SeenHeads(workspace.root / "seen").get(cities.id)
    kept = Reset(workspace, fix).run(plan, force=True)
    assert kept is not None
    assert (cities.chain.head(kept), head_of(fix), head_of(cities)) == (old, head, head)
    assert SeenHeads(workspace.root / "seen").get(cities.id) == memory
    Reset(workspace, fix).run(Reset(workspace, fix).plan(old))
    assert head_of(fix) == old


def test_blocks_that_a_branch_has_are_not_lost_and_its_head_is_no_head_to_return_to(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    start = head_of(cities)
    write(cities, "shared")
    fix = fork(cities, "fix")
    mine = write(cities, "only here")
    ahead = write(fix, "b")
    plan = Reset(workspace, cities).plan(start)
    assert (len(plan.dropped), plan.unsaved) == (2, (mine,))
    Reset(workspace, cities).run(plan, force=True)
    with pytest.raises(UsageError, match="not an ancestor"):
        Reset(workspace, cities).plan(ahead)


# --- compaction ------------------------------------------------------------------------------------------


def test_blocks_that_branches_forked_from_are_not_replaced(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    write(cities, "c")
    fork(cities, "fix-names")
    fork(cities, "other", at=head_of(cities))
    write(cities, "d")
    with pytest.raises(UsageError, match="fix-names, other forked"):
        Compaction(workspace, cities).plan()
    for name in ("fix-names", "other"):
        delete_branch(cities, name)
    before = records(cities)
    Compaction(workspace, cities).run(Compaction(workspace, cities).plan())
    assert records(cities).equals(before)


def test_blocks_that_a_merge_is_checked_against_are_not_replaced(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    base, fix = head_of(cities), fork(cities, "fix-names")
    write(fix, "b")
    merge(cities, fix, base)
    delete_branch(cities, "fix-names")
    with pytest.raises(UsageError, match="fix-names"):
        Compaction(workspace, cities).plan()
    assert Compaction(workspace, cities).plan(metadata_only=True).replaced


def test_a_merge_stays_as_it_is_and_names_the_new_block_it_was_made_on(workspace: WorkspaceFiles) -> None:
    cities = root(workspace)
    base, fix = head_of(cities), fork(cities, "fix")
    source = write(fix, "b")
    for city in ("c", "d"):
        write(cities, city)
    merge(cities, fix, base, ("b",))
    write(fix, "e")
    second = merge(cities, fix, source, ("e",))
    for city in ("f", "g"):
        write(cities, city)
    delete_branch(cities, "fix")
    before = records(cities)
    plan = Compaction(workspace, cities).plan()
    Compaction(workspace, cities).run(plan)
    assert second in plan.replaced
    assert (plan.slices_before, plan.slices_after) == (6, 4)
    assert records(cities).equals(before)
    first, again = merges(cities.chain, head_of(cities))
    assert first.record.target == first.block.block.prev_block_hash
    assert again.record.target == first.block.hash == again.block.block.prev_block_hash
    assert (first.record.base, again.record.base) == ((base,), (source,))
    collect(cities, DROP, now=later)
    assert cities.chain.contains(source)


# --- repairs ---------------------------------------------------------------------------------------------


def test_a_lost_slice_of_a_branch_or_of_what_was_merged_is_found(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    base, fix = head_of(cities), fork(cities, "fix")
    write(fix, "b")
    merge(cities, fix, base)
    lost = fix.chain.get(head_of(fix)).new_data
    assert findings(workspace, cities) == []
    delete_branch(cities, "fix")
    path = cities.folder / "data" / str(lost.physical_hash)
    path.unlink()
    (finding,) = findings(workspace, cities)
    assert (finding.kind, finding.file, finding.state) == ("slice", str(path), State.BROKEN)


def test_a_damaged_branch_is_what_its_owner_has_signed(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    fix, other = fork(cities, "fix"), fork(cities, "other")
    block = write(fix, "b")
    for branch in (fix, other):
        (cities.folder / "refs" / branch.ref).write_text("?")
    (cities.folder / "refs" / "other.jws").write_bytes((cities.folder / "refs" / "fix.jws").read_bytes())
    found = {Path(finding.file).name: finding for finding in findings(workspace, cities)}
    assert found["fix"].state is State.REPAIRED
    assert found["fix"].source == "the owner has signed it as that of the branch"
    assert found["other"].state is State.BROKEN
    assert head_of(fix) == block


def test_blocks_of_a_branch_that_were_pushed_are_not_lost_by_a_reset(
    workspace: WorkspaceFiles, cities: DatasetFiles, tmp_path: Path
) -> None:
    fix, start = fork(cities, "fix"), head_of(cities)
    write(fix, "b")
    sharing = Sharing(workspace)
    sharing.push(cities, (tmp_path / "place").as_uri())
    assert Reset(workspace, fix).plan(start).unsaved
    sharing.push(fix, (tmp_path / "place").as_uri())
    assert Reset(workspace, fix).plan(start).unsaved == ()


def test_all_references_are_read_at_one_moment(cities: DatasetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a branch that is merged and deleted meanwhile may be seen neither before nor after."""
    fork(cities, "fix")
    asked, get = [], LocalRefStore.get

    def watched(self: LocalRefStore, name: str) -> Multihash | None:
        with fsio.try_locked(cities.folder / "info" / "lock") as free:
            asked.append((name, free))
        return get(self, name)

    monkeypatch.setattr(LocalRefStore, "get", watched)
    reachable(cities)
    assert asked == [("head", False), ("fix", False)]


def test_a_damaged_index_of_a_branch_is_made_anew(workspace: WorkspaceFiles, cities: DatasetFiles) -> None:
    fix = fork(cities, "fix")
    write(fix, "b")
    fix.chain.nearest("Seed")
    fix.index_path.write_bytes(b"?" * fix.index_path.stat().st_size)
    (finding,) = findings(workspace, cities)
    assert (finding.kind, finding.file, finding.state) == ("index", str(fix.index_path), State.REPAIRED)


def test_a_lost_head_is_found_beside_branches(workspace: WorkspaceFiles, cities: DatasetFiles) -> None:
    def found() -> list[Multihash]:
        return [c.head for c in candidates(workspace, cities, None) if c.proof is not None]

    head, fix = head_of(cities), fork(cities, "fix")
    (cities.folder / "refs" / "head").unlink()
    assert found() == [head], "a branch at the same block"
    write(fix, "b")
    assert found() == [head], "a branch that has gone on from there"
    assert [c.head for c in candidates(workspace, cities, None)] == [head], "nobody speaks for the others"
    (finding,) = Fsck(workspace, cities, dry_run=True).run().findings
    assert (finding.kind, finding.source) == ("reference", "the owner has signed it as the head")


def test_a_source_that_is_lost_in_the_middle_stops_garbage_collection(cities: DatasetFiles) -> None:
    base, fix = head_of(cities), fork(cities, "fix")
    middle = write(fix, "b")
    write(fix, "c")
    merge(cities, fix, base)
    delete_branch(cities, "fix")
    (cities.folder / "blocks" / str(middle)).unlink()
    with pytest.raises(ObjectNotFoundError):
        DatasetFiles.open(cities.folder).chain.get(middle)
    with pytest.raises(ChainError, match=str(middle)):
        collect(DatasetFiles.open(cities.folder), now=later)
