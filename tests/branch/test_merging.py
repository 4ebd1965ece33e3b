"""What a merge does to a dataset whatever happens meanwhile, and what it refuses."""

from __future__ import annotations

import dataclasses
import errno
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain import errors
from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.branches import merging
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeMode, MergeRecord, merges
from tests.kit import branch_rows
from tests.kit.branch_cases import Scene, made_scene, run_here, sorted_state
from tests.kit.faults import faulty
from tests.kit.foreign_key_cases import manifest
from tests.kit.opened_files import opened_files
from tests.kit.query_datasets import polling
from tests.kit.support import derivative, unchanged

ONE_CHANGE_EACH = {"base": ["1xy", "2xy"], "ours": ["-C 1xy", "+C 1qy"], "theirs": ["-C 2xy", "+C 2xz"]}


def dataset_of(scene: Scene) -> Dataset:
    return scene.workspace["d"]


def state_of(scene: Scene, on: str = HEAD) -> list[str]:
    files = scene.on(on)
    state = DatasetState.read(files.chain)
    rows = sorted_state(files, state, scene._names(state))
    return ["".join("∅" if value is None else str(value) for value in values) for _, _, values in rows]


def append(scene: Scene, event: ev.MetadataEvent, on: str = HEAD) -> Multihash:
    files = scene.on(on)
    state = DatasetState.read(files.chain)
    return commit(files, state, [event], [], system_time=state.next_system_time())[-1]


def source_state(value: str) -> ev.SourceState:
    return ev.SourceState(source_name="default", kind="odf/etag", value=value)


def carrying(scene: Scene, on: str, rows: list[str], state: ev.SourceState) -> None:
    """A block with rows that a polling brought."""
    scene.take({"on": on, "rows": rows})
    files = scene.on(on)
    newest = DatasetState.read(files.chain)
    block = newest.head_block
    files.chain.set_ref(on, block.prev_block_hash, expected=newest.head)
    older = DatasetState.read(files.chain, block.prev_block_hash)
    changed = dataclasses.replace(block.event, new_source_state=state)
    commit(files, older, [changed], [], system_time=block.system_time)


# --- whatever happens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (5, errno.ENOSPC),
        pytest.param(1, errno.ENOSPC, marks=pytest.mark.soak),
        pytest.param(1, errno.EIO, marks=pytest.mark.soak),
    ],
)
def test_case_58_a_full_disk_leaves_the_old_head(tmp_path: Path, step: int, error: int) -> None:
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)
    dataset = dataset_of(scene)
    old, failed = dataset.head, 0
    for number in range(1, 200, step):
        with faulty(number, error, forever=True):
            try:
                dataset.merge("theirs")
            except errors.OdfchainError as raised:
                assert error != errno.ENOSPC or isinstance(raised, errors.StorageFullError), raised
                failed += 1
        assert list((dataset._files.folder / "staging").glob("*/*")) == []
        if dataset.head != old:  # what is written after it has moved does not take it back
            break
        assert state_of(scene) == ["1qy", "2xy"]
    assert failed > 2
    assert state_of(scene) == ["1qy", "2xz"]
    scene.verify([])


def test_case_58_interrupted_while_it_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(merging, "stage_changes", interrupted)
    with unchanged(scene.on(HEAD).folder), pytest.raises(KeyboardInterrupt):
        dataset_of(scene).merge("theirs")
    assert list((scene.on(HEAD).folder / "staging").glob("*/*")) == []


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What others do right before the first commit of a merge, one after the other."""
    others: list[Any] = []
    stage = merging.stage_changes

    def staged(*args: Any, **kwargs: Any) -> Any:
        found = stage(*args, **kwargs)
        if others:
            others.pop(0)()
        return found

    monkeypatch.setattr(merging, "stage_changes", staged)
    yield others
    assert others == []


def test_case_59_a_target_that_moved_is_merged_into_anew(tmp_path: Path, meanwhile: list[Any]) -> None:
    scene = made_scene(tmp_path, theirs=["-C 1xy", "+C 1xz"])
    meanwhile += [lambda: scene.take({"rows": ["-C 1xy", "+C 1qy"]}), lambda: scene.take({"rows": ["3ab"]})]
    outcome = dataset_of(scene).merge("theirs")
    assert (state_of(scene), outcome.operations["+C"]) == (["1qz", "3ab"], 1)
    scene.verify([])


def test_case_59_a_conflict_that_came_meanwhile(tmp_path: Path, meanwhile: list[Any]) -> None:
    scene = made_scene(tmp_path, theirs=["-C 1xy", "+C 1xz"])
    meanwhile.append(lambda: scene.take({"rows": ["-C 1xy", "+C 1xw"]}))
    with pytest.raises(errors.MergeConflictError) as conflict:
        dataset_of(scene).merge("theirs")
    assert (conflict.value.exit_code, conflict.value.conflicts.num_rows) == (5, 1)
    assert state_of(scene) == ["1xw"]


def test_others_that_are_always_faster(tmp_path: Path, meanwhile: list[Any]) -> None:
    scene = made_scene(tmp_path, theirs=["-C 1xy", "+C 1xz"])
    meanwhile += [lambda n=n: scene.take({"rows": [f"{n}ab"]}) for n in range(4, 8)]
    with pytest.raises(errors.RefConflictError):
        dataset_of(scene).merge("theirs")
    assert state_of(scene) == ["1xy", "4ab", "5ab", "6ab", "7ab"]


def test_a_plan_is_of_one_block_and_computed_anew(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)
    plan = dataset_of(scene).plan_merge("theirs")
    (change,) = plan.changes.to_pylist()
    assert (change["k"], change["from"]["b"], change["to"]["b"], change["columns"]) == ("2", "y", "z", ["b"])
    scene.take({"rows": ["-C 2xy", "+C 2py"]})
    scene.take({"on": "theirs", "rows": ["3ab"]})
    assert dataset_of(scene).merge(plan).source == plan.source
    assert state_of(scene) == ["1qy", "2pz"]
    assert dataset_of(scene).merge("theirs").operations == {"+A": 1}


# --- what is refused -------------------------------------------------------------------------------------


def test_case_68_the_head_of_a_copy(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)
    with Workspace.init(tmp_path / "other") as workspace:
        copy = workspace.pull(dataset_of(scene).path.as_uri(), name="d").dataset
        mine = copy.create_branch("mine", at=3)
        with unchanged(copy._files.folder), pytest.raises(errors.UsageError, match="d is a copy") as refused:
            copy.merge("mine")
        assert "merge d head --into" in str(refused.value.hint)
        assert mine.merge("head").operations == {"-C": 1, "+C": 1}
        assert run_here(workspace)("merge", "d", "mine").code == 2
        assert copy.merge("mine", force=True).status is odf.results.MergeStatus.MERGED


def test_what_speaks_to_other_places_is_not_loaded_to_change_rows_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer to load than a small merge takes."""
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("k,a\n1,z\n")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "odfchain.transfer.sharing", None)
        dataset_of(scene).merge("theirs")
        dataset_of(scene).revert(str(dataset_of(scene).head))
        dataset_of(scene).correct(fixes)
    assert state_of(scene) == ["1zy", "2xy"]


def test_case_36_a_branch_of_another_dataset(tmp_path: Path) -> None:
    scene, other = made_scene(tmp_path / "one", theirs=["2ab"]), made_scene(tmp_path / "other", ours=["2ab"])
    files, foreign = scene.on(HEAD), other.on(HEAD)
    for block in foreign.chain.walk():
        files.chain._blocks.put(foreign.chain.get_bytes(block.hash))
    (files.folder / "refs" / "theirs").write_text(str(foreign.chain.head()))
    with unchanged(files.folder), pytest.raises(errors.ChainError, match="no block in common"):
        dataset_of(scene).merge("theirs")


def test_case_24_one_source_that_both_sides_polled(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, key=[], base=["1xy"], theirs=[])
    carrying(scene, HEAD, ["2ab"], source_state("one"))
    carrying(scene, "theirs", ["2ab"], source_state("two"))
    with pytest.raises(errors.IngestError, match="both sides took in rows of the source 'default'"):
        dataset_of(scene).merge("theirs")


def test_derivatives_are_never_merged(tmp_path: Path) -> None:
    scene = made_scene(tmp_path)
    (view,) = scene.workspace.add(derivative("SELECT * FROM d", inputs="[{datasetRef: d}]"), check=False)
    draft = view.create_branch("draft")
    files = draft._files
    state = DatasetState.read(files.chain)
    commit(files, state, [ev.SetInfo(description="a")], [], system_time=state.next_system_time())
    with pytest.raises(errors.UsageError, match="computed, never merged"):
        view.merge("draft")
    with pytest.raises(errors.IngestError, match="SetInfo"):
        view.merge("draft", fast_forward=True)
    done = view.merge("draft", fast_forward=True, with_metadata=True)
    assert (done.status, view.head) == (odf.results.MergeStatus.FAST_FORWARDED, draft.head)


def several(tmp_path: Path) -> tuple[Workspace, Any]:
    """A parent and a child that refers to it by `v`, each with a branch `v`."""
    workspace = Workspace.init(tmp_path / "several")
    refers = "foreignKeys: [{columns: [v], references: {dataset: parent}}]"
    columns = [pa.field("k", pa.string()), pa.field("v", pa.string())]
    for name, row, spec in (
        ("parent", ["p", "x"], {"key": ["k"]}),
        ("child", ["c", None], {"key": ["k"], "constraints": refers}),
    ):
        (dataset,) = workspace.add(manifest(name, spec), check=False)
        branch_rows.give_columns(dataset._files, columns)
        branch_rows.record(dataset._files, [("+A", 0, *row)], columns)
        dataset.create_branch("v")
    return workspace, run_here(workspace)


def correct(workspace: Workspace, folder: Path, dataset: str, *lines: str) -> None:
    path = folder / "lines.csv"
    path.write_text("\n".join(["k,v", *lines]) + "\n")
    name, _, branch = dataset.partition("@")
    workspace[name].branch(branch or HEAD).correct(path, allow_new=True)


def test_datasets_that_are_referred_to_are_merged_first(tmp_path: Path) -> None:
    workspace, run = several(tmp_path)
    correct(workspace, tmp_path, "parent@v", "new,y")
    correct(workspace, tmp_path, "child@v", "d,new")
    before = workspace["child"].head
    file = tmp_path / "broken.csv"
    refused = run("merge", "child", "v", "--violations", str(file))
    assert (refused.code, workspace["child"].head) == (3, before)
    assert "theirs" in file.read_text()
    done = run("merge", "child", "parent", "v", "--message", "both")
    assert done.code == 0, done.err
    said = [line.partition(":")[0] for line in (done.out + done.err).splitlines() if "merged" in line]
    assert said == ["parent", "child"]
    child = workspace["child"]._files
    (merge,) = merges(child.chain, workspace["child"].head or before)
    assert merge.record.references == {workspace["parent"].id: workspace["parent"].head}
    assert merge.record.message == "both"


def test_nothing_is_merged_where_one_of_them_conflicts(tmp_path: Path) -> None:
    workspace, run = several(tmp_path)
    correct(workspace, tmp_path, "parent@v", "p,theirs")
    correct(workspace, tmp_path, "parent", "p,ours")
    correct(workspace, tmp_path, "child@v", "d,p")
    heads = [workspace[name].head for name in ("parent", "child")]
    result = run("merge", "parent", "child", "v")
    assert (result.code, [workspace[name].head for name in ("parent", "child")]) == (5, heads)
    assert run("merge", "parent", "child", "v", "--resolve", "decided.csv").code == 2
    assert run("merge", "child", "parent", "v", "--resolve", "theirs").code == 0


# --- sources, watermarks, notes --------------------------------------------------------------------------


def test_case_57_state_and_watermark_of_a_source_follow_the_merge_block(tmp_path: Path) -> None:
    steps = [{"event": {"kind": "DisablePushSource", "sourceName": "default"}}, {"event": polling("k")}]
    scene = made_scene(tmp_path, steps=[*steps, {"branch": "upstream"}])
    carrying(scene, "upstream", ["-C 1xy", "+C 1xz @2"], source_state("etag 2"))
    last = DatasetState.read(scene.on("upstream").chain)
    mark = Timestamp.parse("2025-03-01T00:00:00Z")
    by_hand = ev.AddData(
        prev_offset=last.last_offset, new_watermark=mark, new_source_state=source_state("etag 2")
    )
    append(scene, by_hand, "upstream")
    outcome = dataset_of(scene).merge("upstream")
    assert not any("polls a Snapshot itself" in note for note in outcome.notes), "it is the branch that polls"
    chain = scene.on(HEAD).chain
    newest = DatasetState.read(chain)
    follow, merge = [block.block.event for block in chain.walk()][:2]
    assert (merge.new_data is None, follow.new_data) == (False, None)
    assert (merge.new_watermark, follow.new_watermark) == (Timestamp.parse("2025-01-02T00:00:00Z"), mark)
    assert (newest.source_state, newest.watermark) == (source_state("etag 2"), mark)
    scene.verify([])
    # the target's own polling goes on where it polled itself
    carrying(scene, HEAD, ["2ab"], source_state("etag 3"))
    scene.take({"on": "upstream", "rows": ["3ab"]})
    outcome = dataset_of(scene).merge("upstream")
    assert any("polls a Snapshot itself" in note for note in outcome.notes)
    assert DatasetState.read(chain).source_state == source_state("etag 3")


def test_case_56_a_record_that_other_tools_carry_on_is_one_merge(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, theirs=["-C 1xy", "+C 1xz"])
    dataset = dataset_of(scene)
    dataset.merge("theirs")
    event = DatasetState.read(scene.on(HEAD).chain).last_data
    carried = ev.AddData(
        prev_offset=event.last_offset, new_watermark=Timestamp.parse("2025-02-01T00:00:00Z"),
        new_source_state=event.new_source_state,
    )  # fmt: skip
    head = append(scene, carried)
    assert len(merges(scene.on(HEAD).chain, head)) == 1
    assert dataset.merge("theirs").status is odf.results.MergeStatus.ALREADY_MERGED
    scene.take({"on": "theirs", "rows": ["2ab"]})
    assert dataset.plan_merge("theirs").bases == (merges(scene.on(HEAD).chain, head)[0].record.source,)
    assert dataset.merge("theirs").operations == {"+A": 1}
    assert state_of(scene) == ["1xz", "2ab"]
    assert len(merges(scene.on(HEAD).chain, scene.on(HEAD).chain.head() or head)) == 2


def test_a_merge_that_was_reverted_is_said_not_to_come_again(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, theirs=["-C 1xy", "+C 1xz"])
    dataset = dataset_of(scene)
    merge = dataset.merge("theirs").head
    before = scene.on(HEAD).chain.get(merge).prev_block_hash
    state = DatasetState.read(scene.on(HEAD).chain)
    record = MergeRecord(base=(merge,), source=before, source_ref="head", target=merge, mode=MergeMode.REVERT)
    append(scene, ev.AddData(
        prev_offset=state.last_offset, new_watermark=state.watermark, new_source_state=record.to_state()
    ))  # fmt: skip
    (note,) = dataset.merge("theirs").notes
    assert note == (
        "block 4, which merged theirs, was reverted by block 5: its changes do not come again, unless that "
        "block is reverted"
    )
    scene.take({"on": "theirs", "rows": ["2ab"]})
    assert dataset.merge("theirs").notes == (note,)


def test_a_dry_run_changes_nothing_and_says_what_would_be(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)
    with unchanged(scene.on(HEAD).folder):
        result = scene.run("merge", "d", "theirs", "--dry-run")
        moved = scene.run("merge", "d", "head", "--into", "theirs", "--dry-run")
        forward = scene.run("merge", "d", "theirs", "--ff", "--dry-run")
    assert "would merge theirs (f1620" in result.out
    assert "into head: 1 corrected, no conflicts" in result.out
    assert "into theirs: 1 corrected" in moved.out
    assert forward.code == 3


def test_what_a_merge_brought_is_printed_for_programs_too(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, ours=["-C 1xy", "+C 1qy"], theirs=["-C 1xy", "+C 1pz"])
    (refused,) = json.loads(scene.run("merge", "d", "theirs", "-o", "json").out)
    assert (refused["k"], refused["column"], refused["ours"], refused["theirs"]) == ("1", "a", "q", "p")
    done = scene.run("merge", "d", "theirs", "--resolve", "theirs", "-o", "ndjson", "--message", "why")
    row = json.loads(done.out)
    head = dataset_of(scene).head
    assert [row[name] for name in ("status", "sourceRef", "conflicts", "+A", "-C", "+C", "head")] == [
        "merged", "theirs", 1, 0, 1, 1, str(head),
    ]  # fmt: skip
    assert merges(scene.on(HEAD).chain, head)[0].record.message == "why"
    assert "already" in scene.run("merge", "d", "theirs").out
    file = scene.run("merge", "d", "theirs", "--conflicts", "a.csv", "--resolve", "a.csv")
    assert (file.code, scene.run("merge", "d", "theirs", "--conflicts", "a.txt").code) == (2, 2)
    assert scene.run("merge", "d", "nobody").code == 4


def test_only_slices_after_the_base_are_opened(tmp_path: Path) -> None:
    scene = made_scene(tmp_path, **ONE_CHANGE_EACH)
    files = scene.on(HEAD)
    base = DatasetState.read(files.chain).slices()[0].slice.physical_hash
    with opened_files(files.folder / "data") as opened:
        assert dataset_of(scene).merge("theirs").operations == {"-C": 1, "+C": 1}
    assert opened
    assert str(base) not in opened
