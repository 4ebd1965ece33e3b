"""Repair: damage is found and named, good copies replace it, and nothing good is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.chain.chain import link_blocks
from odfchain.errors import StoreError, UsageError
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.storage import fsio
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncOptions
from odfchain.upkeep.compact import BatchLimits
from odfchain.upkeep.fsck import Finding, Fsck, FsckReport, State
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import keep_reachable, lock_path
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.memory_peer import MemoryPeer
from tests.kit.recorded_dataset import add, add_slice, slice_of
from tests.kit.scenario import Chain
from tests.kit.sharing import Sharing
from tests.kit.support import Result, tree_of, unchanged
from tests.kit.upkeep_scenes import (
    everything,
    hashes,
    head_of,
    killed_everywhere,
    later,
    new_workspace,
    records,
    root,
)


@pytest.fixture
def dataset(workspace: WorkspaceFiles) -> DatasetFiles:
    """Three slices and a checkpoint."""
    dataset = root(workspace, slices=2)
    checkpoint = ev.Checkpoint(physical_hash=dataset.checkpoints.put(b"a checkpoint"), size=12)
    new = slice_of(dataset, 3, ["with", "checkpoint"])
    add(dataset, ev.AddData(prev_offset=2, new_checkpoint=checkpoint, new_data=new))
    return dataset


def check(workspace: WorkspaceFiles, source: str | None = None, **how: Any) -> FsckReport:
    return Workspace(workspace)["cities"].fsck(source, **how)


def told(report: FsckReport) -> list[tuple[str, str, State]]:
    return [(f.kind, Path(f.file).name, f.state) for f in report.findings]


def the(report: FsckReport) -> Finding:
    (found,) = report.findings
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flip": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "lengthen": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "remove": Path.unlink,
}
OBJECTS = {"block": "blocks", "slice": "data", "checkpoint": "checkpoints"}


def some_object(dataset: DatasetFiles, kind: str) -> Path:
    if kind == "block":
        return dataset.folder / "blocks" / str(hashes(dataset)[2])
    return min((dataset.folder / OBJECTS[kind]).iterdir())


# --- objects ---------------------------------------------------------------------------------------------


def test_a_good_dataset_is_left_as_it_is(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    with unchanged(dataset.folder):
        report = check(workspace)
    assert (report.whole, report.findings, report.objects) == (True, [], 5 + 3 + 1)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", OBJECTS)
def test_damage_is_named_and_repaired_from_any_copy(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str, kind: str, damage: str
) -> None:
    good = tree_of(dataset.folder)
    path = some_object(dataset, kind)
    DAMAGES[damage](path)
    bad = path.read_bytes() if path.exists() else None
    with unchanged(dataset.folder):
        assert told(check(workspace, copy, dry_run=True)) == [(kind, path.name, State.BROKEN)]
        report = check(workspace)
        assert told(report) == [(kind, path.name, State.BROKEN)]
        assert not report.whole
    report = check(workspace, copy)
    assert told(report) == [(kind, path.name, State.REPAIRED)]
    assert the(report).source == f"{copy}/"
    assert report.whole
    assert tree_of(dataset.folder) == good
    kept = [p.read_bytes() for p in (dataset.folder / "info").glob("quarantine/*")]
    assert kept == ([] if bad is None else [bad])
    assert check(workspace).findings == []


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_put_aside_for_a_good_one(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str, kind: str, make: Callable[[Path], None]
) -> None:
    path = some_object(dataset, kind)
    good = path.read_bytes()
    path.unlink()
    make(path)
    assert the(check(workspace)).state is State.BROKEN
    assert the(check(workspace, copy)).state is State.REPAIRED
    assert path.read_bytes() == good
    (kept,) = (dataset.folder / "info" / "quarantine").iterdir()
    assert not kept.is_file()
    assert check(workspace).findings == []


def test_a_link_to_a_good_file_is_good(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str, tmp_path: Path
) -> None:
    path = some_object(dataset, "slice")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert check(workspace, copy).findings == []
    assert path.is_symlink()
    (tmp_path / "elsewhere").write_bytes(b"damaged")
    assert the(check(workspace, copy)).state is State.REPAIRED
    assert check(workspace).findings == []
    assert (tmp_path / "elsewhere").read_bytes() == b"damaged"


def test_everything_that_is_damaged_is_found_in_one_run(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str
) -> None:
    good = tree_of(dataset.folder)
    for part in ("blocks", "data", "checkpoints"):
        for path in (dataset.folder / part).iterdir():
            flip(path)
    report = check(workspace, copy)
    assert report.whole
    assert len(report.findings) == 9
    assert tree_of(dataset.folder) == good


def test_a_good_file_is_never_replaced(workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str) -> None:
    flip(some_object(dataset, "slice"))
    before = {p: p.stat().st_ino for p in dataset.folder.glob("[bdc]*/f1620*")}
    check(workspace, copy)
    assert [p for p, inode in before.items() if p.stat().st_ino != inode] == [some_object(dataset, "slice")]


def test_another_dataset_of_the_workspace_that_has_it_is_enough(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    upkeep = Workspace(workspace)
    upkeep["cities"].soft_compact(upkeep["cities"].plan_soft_compact("twin", BatchLimits(records=1)))
    path = some_object(dataset, "slice")
    flip(path)
    assert told(check(workspace, dry_run=True)) == [("slice", path.name, State.REPAIRABLE)]
    report = check(workspace)
    assert the(report).source == "dataset twin"
    assert report.whole


def test_a_peer_that_lies_changes_nothing(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    path = some_object(dataset, "slice")
    size = path.stat().st_size
    key = ObjectKey(ObjectKind.DATA, Multihash.parse(path.name))
    flip(path)
    chain = Chain(objects={key: b"x" * size})
    with unchanged(dataset.folder):
        report = Fsck(workspace, dataset, Store(MemoryPeer(chain))).run()
    assert told(report) == [("slice", path.name, State.BROKEN)]
    assert "not to its name" in report.notes[0]


def test_a_peer_that_cannot_be_reached_is_asked_once_and_named(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    config = "kind: WorkspaceConfig\nversion: 1\ncontent: {share: {retries: 0}}\n"
    (workspace.root / "config.yaml").write_text(config)
    for path in (dataset.folder / "data").iterdir():
        flip(path)
    report = check(workspace, "http://127.0.0.1:9/cities/")
    assert (len(report.findings), report.whole, len(report.notes)) == (3, False, 1)


def test_what_a_partial_copy_does_without_is_no_damage(
    dataset: DatasetFiles, copy: str, tmp_path: Path
) -> None:
    other = new_workspace(tmp_path / "other")
    Sharing(other).pull(copy, "cities", SyncOptions(metadata_only=True))
    report = check(other)
    assert report.findings == []
    assert report.absent == len(DatasetState.read(dataset.chain).slices()) + 1


def test_chains_of_overwritten_heads_are_repaired_too(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str
) -> None:
    old = head_of(dataset)
    Workspace(workspace)["cities"].reset(2)
    path = dataset.folder / "blocks" / str(old)
    flip(path)
    assert told(check(workspace, copy)) == [("block", path.name, State.REPAIRED)]
    assert everything(workspace.dataset("cities"))


def test_nothing_is_repaired_while_something_is_pulled_in(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    with fsio.locked(lock_path(dataset)), pytest.raises(StoreError, match=r"pulled|at work"):
        check(workspace)


def test_after_a_repair_garbage_can_be_collected_again(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str
) -> None:
    some_object(dataset, "block").unlink()
    check(workspace, copy)
    assert collect(workspace.dataset("cities"), now=later).removed == ()
    assert records(workspace.dataset("cities")).num_rows == 5


# --- the index -------------------------------------------------------------------------------------------


def test_a_damaged_index_is_made_again(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    index = dataset.folder / "info" / "chain-index"
    good = index.read_bytes()
    flip(index)
    assert told(check(workspace, dry_run=True)) == [("index", "chain-index", State.REPAIRABLE)]
    assert told(check(workspace)) == [("index", "chain-index", State.REPAIRED)]
    fresh = workspace.dataset("cities")
    assert fresh.chain.nearest("Seed") is not None
    assert index.read_bytes().startswith(good)


def test_an_index_that_lags_behind_or_is_of_a_head_before_a_reset_is_no_damage(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    index = dataset.folder / "info" / "chain-index"
    DatasetState.read(dataset.chain).last_data  # noqa: B018 - the index is brought up to date
    present = index.read_bytes()
    add_slice(dataset, ["newer"])
    index.write_bytes(present)
    assert check(workspace).findings == []
    Workspace(workspace)["cities"].reset(2, force=True)
    add(dataset, ev.SetInfo(description="another block 3"))
    index.write_bytes(present)
    assert check(workspace).findings == []


# --- a lost head -----------------------------------------------------------------------------------------


def lose(dataset: DatasetFiles, *, signature: bool = False) -> Multihash:
    head = head_of(dataset)
    (dataset.folder / "refs" / "head").write_bytes(b"\0" * 69)
    if not signature:
        (dataset.folder / "refs" / "head.jws").unlink(missing_ok=True)
    return head


def unpublished(dataset: DatasetFiles, text: str) -> Multihash:
    """A block after the head that is in its folder, and nothing else."""
    state = DatasetState.read(dataset.chain)
    info, time = ev.SetInfo(description=text), state.head_block.system_time
    (made,) = link_blocks([info], prev=state.head, next_sequence_number=5, system_time=time)
    (dataset.folder / "blocks" / str(made.hash)).write_bytes(made.data)
    return made.hash


def test_a_head_that_its_owner_has_signed_is_restored(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    head = lose(dataset, signature=True)
    report = check(workspace)
    assert told(report) == [("reference", "head", State.REPAIRED)]
    assert "signed" in str(the(report).source)
    assert head_of(dataset) == head
    assert [p.read_bytes() for p in (dataset.folder / "info" / "quarantine").iterdir()] == [b"\0" * 69]


def test_a_head_that_was_pulled_last_is_restored(copy: str, tmp_path: Path, dataset: DatasetFiles) -> None:
    other = new_workspace(tmp_path / "other")
    Sharing(other).pull(copy, "cities")
    pulled = other.dataset("cities")
    head = lose(pulled)
    (pulled.folder / "refs" / "head").unlink()
    assert "last pulled" in str(the(check(other)).source)
    assert head_of(pulled) == head == head_of(dataset)


def test_a_head_that_a_peer_has_in_its_chain_is_restored(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str
) -> None:
    head = lose(dataset)
    for path in (workspace.root / "seen").glob("f*"):
        path.unlink()  # a push is remembered, too, and would be enough
    with unchanged(dataset.folder):
        assert the(check(workspace)).state is State.BROKEN
        assert the(check(workspace, copy, dry_run=True)).state is State.REPAIRABLE
    report = check(workspace, copy)
    assert the(report).source == f"the chain of {copy}/ contains it"
    assert head_of(dataset) == head


def test_a_block_below_a_head_that_was_signed_is_not_made_the_head(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str
) -> None:
    """What was pushed is proof of a head; but the owner went on, and would sign a second history."""
    below = head_of(dataset)
    add_slice(dataset, ["newest"])
    signature = (dataset.folder / "refs" / "head.jws").read_bytes()
    newest = lose(dataset, signature=True)
    (dataset.folder / "blocks" / str(newest)).write_bytes(b"damaged")
    for source in (None, copy):
        found = the(check(workspace, source))
        assert (found.kind, found.state) == ("reference", State.BROKEN)
        assert str(below) in str(found.hint)
    assert (dataset.folder / "refs" / "head.jws").read_bytes() == signature


def test_a_block_that_nobody_speaks_for_is_not_made_the_head_but_named(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str
) -> None:
    """What an interrupted commit left looks the same as a head."""
    head, left = head_of(dataset), unpublished(dataset, "never published")
    lose(dataset, signature=True)
    for source in (None, copy):
        with unchanged(dataset.folder):
            found = the(check(workspace, source))
        assert found.state is State.BROKEN
        assert str(left) in str(found.hint)
        assert "--head" in str(found.hint)
    assert the(check(workspace, head=head)).source == "as you said"
    assert head_of(dataset) == head


def test_two_possible_heads_are_left_to_the_user(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    for text in ("one", "two"):
        unpublished(dataset, text)
    lose(dataset)
    with unchanged(dataset.folder):
        found = the(check(workspace))
    assert str(found.hint).count("(block 5)") == 2


def test_a_head_without_its_chain_is_refused(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    chain = hashes(dataset)
    head = lose(dataset)
    (dataset.folder / "blocks" / str(chain[1])).unlink()
    with unchanged(dataset.folder), pytest.raises(UsageError, match="cannot be block"):
        check(workspace, head=head)


def test_a_reference_that_says_its_block_in_its_name_is_restored(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    old = head_of(dataset)
    name = keep_reachable(dataset, old)
    (dataset.folder / "refs" / name).write_text("?")
    (dataset.folder / "refs" / "other").write_text("?")
    report = check(workspace)
    assert set(told(report)) == {("reference", "other", State.BROKEN), ("reference", name, State.REPAIRED)}
    assert dataset.chain.head(name) == old


# --- crashes and the command -----------------------------------------------------------------------------


def test_killed_at_any_moment_every_file_is_as_before_or_good(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    workspace = new_workspace(tmp_path / "template")
    dataset = root(workspace, slices=2)
    Sharing(workspace).push("cities", (tmp_path / "copy").as_uri())
    good = records(dataset)
    slice_, block = some_object(dataset, "slice"), some_object(dataset, "block")
    bad = {}
    for path in (slice_, block):
        flip(path)
        bad[path.name] = path.read_bytes()
    shutil.copytree(tmp_path / "copy", tmp_path / "template" / "copy")
    copies = killed_everywhere(tmp_path / "template", tmp_path / "killed", "fsck", step=2)
    record_property("kills", len(copies))
    for killed in copies:
        found = killed.dataset("cities")
        for path in (slice_, block):
            here = found.folder / path.parent.name / path.name
            assert here.read_bytes() == bad[path.name] or str(hash_file(here)[0]) == here.name
        assert check(killed, (killed.root.parent / "copy").as_uri()).whole
        assert records(killed.dataset("cities")).equals(good)


def test_the_command_says_what_is_broken_and_ends_with_six_until_it_is_repaired(
    workspace: WorkspaceFiles, dataset: DatasetFiles, copy: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    path = some_object(dataset, "slice")
    flip(path)
    at = ("-w", tmp_path / "w", "fsck")
    result = run(*at)
    assert result.code == 6
    assert str(path) in result.out
    assert "--from URL" in result.out
    result = run(*at, "cities", "--from", copy, "-o", "json")
    assert result.code == 0
    (row,) = json.loads(result.out)
    assert row["whole"]
    assert row["findings"][0]["state"] == "repaired"
    assert run(*at).code == 0
    assert run(*at, "--from", copy).code == 2


def test_a_folder_that_is_no_dataset_any_more_is_reported(
    workspace: WorkspaceFiles, dataset: DatasetFiles, tmp_path: Path, run: Callable[..., Result]
) -> None:
    root(workspace, "other")
    (dataset.folder / "info" / "alias").unlink()
    result = run("-w", tmp_path / "w", "fsck")
    assert result.code == 6
    assert str(dataset.folder / "info" / "alias") in result.out
    assert "ok" in result.out
