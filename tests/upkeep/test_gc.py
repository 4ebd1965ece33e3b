"""Garbage collection: everything that is needed stays, whatever happens; everything else goes when it is old."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.errors import ChainError, StoreError, UsageError
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore
from odfchain.upkeep.garbage import collect, collect_workspace
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import MergeRecord
from odfchain.workspace.options import SHORTEST_GRACE, GcOptions
from odfchain.workspace.points import keep_reachable, lock_path
from tests.kit.local_folder import LocalDataset
from tests.kit.support import ChainBuilder, Result, tree_of
from tests.kit.upkeep_scenes import (
    everything,
    head_of,
    killed_everywhere,
    later,
    new_workspace,
    objects_of,
    root,
)

DROP = GcOptions(drop_refs=True)


@pytest.fixture
def local(tmp_path: Path) -> LocalDataset:
    return LocalDataset(tmp_path / "dataset", ["seed", "schema", "d1", "d2", "d3"])


# --- what goes and what stays ----------------------------------------------------------------------------

ACTS = ("write", "write", "fork", "merge", "merge", "back", "delete", "crash", "orphan", "gc")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTS), st.integers(0, 2), st.integers(0, 3)), min_size=4, max_size=16
)


class Model:
    """A dataset on several references, and what each block needs as it was written down when it was made."""

    def __init__(self, folder: Path) -> None:
        local = LocalDataset(folder, ["seed", "schema"])
        self.files, self.first = local.files, local.head
        self.needs = {local.head: frozenset(f"blocks/{name}" for name in local.hashes)}
        self.heads = {HEAD: local.head}
        self.overwritten: dict[str, Multihash] = {}
        self.count = 0

    def take(self, what: str, place: int, label: int) -> None:
        """A step on one of the references; one that makes no sense now does nothing."""
        refs = list(self.heads)
        ref, other = refs[place % len(refs)], refs[(place + 1 + label) % len(refs)]
        if what == "gc":
            collect(self.files.on(ref), DROP, now=later)  # of the whole dataset
            self.overwritten.clear()
        elif what == "orphan":
            self.files.data.put(b"orphan %d" % label)
        elif what == "fork":
            if free := {"a", "b"} - self.heads.keys():
                self.point(min(free), self.heads[ref])
        elif what in ("write", "crash"):
            self.commit(ref, label, crash=what == "crash")
        elif what == "merge" and other != ref:
            self.commit(ref, label, source=other)
        elif what == "delete" and len(refs) > 1:
            (self.files.folder / "refs" / refs[-1]).unlink()
            del self.heads[refs[-1]]
        elif what == "back":
            head = self.heads[ref]
            previous = self.files.chain.get(head).prev_block_hash
            if previous in self.needs:
                if ref == HEAD:
                    self.overwritten[keep_reachable(self.files, head)] = head
                self.point(ref, previous)

    def point(self, ref: str, block: Multihash) -> None:
        self.files.chain.set_ref(ref, block, expected=self.heads.get(ref))
        self.heads[ref] = block

    def commit(self, ref: str, label: int, *, source: str | None = None, crash: bool = False) -> None:
        """A block with a slice and a checkpoint, which may be those of another block; not always published."""
        self.count += 1
        head, merged, needed = self.heads[ref], None, frozenset[str]()
        if source is not None:
            merged = MergeRecord(
                base=(self.first,), source=self.heads[source], source_ref=source, target=head
            )
            needed = self.needs[merged.source]
        newest = self.files.chain.get(head)
        last = newest.event if isinstance(newest.event, ev.AddData) else None
        data, state = f"slice {label}".encode(), f"state {label}".encode()
        start = 0 if last is None or last.last_offset is None else last.last_offset + 1
        event = ev.AddData(
            prev_checkpoint=last.new_checkpoint.physical_hash if last and last.new_checkpoint else None,
            prev_offset=start - 1 if start else None,
            new_data=ev.DataSlice(
                logical_hash=hash_bytes(b"%d" % self.count),  # so that no two blocks are the same
                physical_hash=self.files.data.put(data),
                offset_interval=ev.OffsetInterval(start=start, end=start),
                size=len(data),
            ),
            new_checkpoint=ev.Checkpoint(physical_hash=self.files.checkpoints.put(state), size=len(state)),
            new_source_state=merged.to_state() if merged else None,
        )
        builder = ChainBuilder(self.files.on(ref).chain)
        builder.prev, builder.sequence = head, newest.sequence_number + 1
        if crash:
            self.files.on(ref).chain.append(builder.block(event), publish=False)
            return
        made = self.heads[ref] = builder.append(event)
        own = {f"blocks/{made}", f"data/{hash_bytes(data)}", f"checkpoints/{hash_bytes(state)}"}
        self.needs[made] = self.needs[head] | needed | own


@settings(max_examples=80)
@given(STEPS, st.booleans())
def test_exactly_what_references_and_merges_need_stays(
    steps: list[tuple[str, int, int]], drop_refs: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder) / "dataset")
        for step in steps:
            model.take(*step)
        heads = model.heads if drop_refs else model.heads | model.overwritten
        needed = frozenset().union(*(model.needs[head] for head in heads.values()))
        before = objects_of(model.files)
        tried = collect(model.files, GcOptions(drop_refs=drop_refs, dry_run=True), now=later)
        assert objects_of(model.files) == before
        done = collect(model.files, GcOptions(drop_refs=drop_refs), now=later)
        assert objects_of(model.files) == needed
        assert sum(g.files for g in done.removed if g.kind != "chain index") == len(before - needed)
        assert {(g.kind, g.files, g.bytes) for g in tried.removed} == {
            (g.kind, g.files, g.bytes) for g in done.removed
        }
        refs = {p.name for p in (model.files.folder / "refs").iterdir()}
        assert refs == set(heads)
        assert everything(model.files)
        assert not collect(model.files, GcOptions(drop_refs=drop_refs), now=later).removed


def test_what_is_young_stays_and_is_counted(local: LocalDataset) -> None:
    local.files.data.put(b"of a transaction that is running")
    found = collect(local.files)
    assert found.removed == ()
    assert (found.young.files, found.young.bytes) == (1, 32)
    assert local.files.data.contains(hash_bytes(b"of a transaction that is running"))


def test_a_slice_that_was_written_long_ago_and_stored_just_now_is_young(
    local: LocalDataset, tmp_path: Path
) -> None:
    staged = tmp_path / "slice"
    staged.write_bytes(b"written over hours")
    os.utime(staged, (0, 0))
    local.files.data.put_file(staged, hash_bytes(b"written over hours"))
    assert collect(local.files).removed == ()


def test_overwritten_heads_go_when_they_are_told_to_and_are_old(local: LocalDataset) -> None:
    old = local.head
    name = keep_reachable(local.files, old)
    local.files.chain.set_ref(HEAD, local.hashes[2], expected=old)
    assert collect(local.files, now=later).kept_refs == (name,)
    assert collect(local.files, DROP).kept_refs == (name,)
    assert everything(local.files)
    found = collect(local.files, DROP, now=later)
    assert found.refs == (name,)
    assert {(g.kind, g.files) for g in found.removed} >= {("blocks", 2), ("slices", 2), ("checkpoints", 2)}
    assert head_of(local.files) == local.hashes[2]
    assert everything(local.files)


@pytest.mark.parametrize("name", ["Release_1", "v1.0", "UPPER"])
def test_what_references_of_other_tools_need_stays_whatever_they_are_called(
    local: LocalDataset, name: str
) -> None:
    old = local.head
    (local.files.folder / "refs" / name).write_text(str(old))
    local.files.chain.set_ref(HEAD, local.hashes[2], expected=old)
    collect(local.files, DROP, now=later)
    for _, block in local.files.chain.walk(old):
        if isinstance(block.event, ev.AddData) and block.event.new_data is not None:
            local.files.data.verified_path(block.event.new_data.physical_hash)
    (local.files.folder / "refs" / name).write_text("what is this?")
    with pytest.raises(ChainError, match=name):
        collect(local.files, DROP, now=later)


# --- when it cannot be said what is needed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        pytest.param("refs/head", lambda path: path.write_text("f1620 is not a hash"), id="damaged head"),
        pytest.param("refs/head", Path.unlink, id="missing head"),
        pytest.param("blocks/{1}", lambda path: path.write_bytes(path.read_bytes()[:-1]), id="damaged block"),
        pytest.param("blocks/{2}", Path.unlink, id="missing block"),
        pytest.param(
            "refs/overwritten-00ff", lambda path: path.write_text("?"), id="damaged other reference"
        ),
    ],
)
def test_a_damaged_dataset_is_not_touched_and_the_file_is_named(
    local: LocalDataset, place: str, damage: Callable[[Path], object]
) -> None:
    local.files.data.put(b"garbage")
    path = local.files.folder / place.format(*local.hashes)
    damage(path)
    before = tree_of(local.files.folder)
    with pytest.raises(ChainError, match=path.name) as caught:
        collect(DatasetFiles.open(local.files.folder), now=later)
    assert "fsck" in str(caught.value.hint)
    assert tree_of(local.files.folder) == before


def test_nothing_is_removed_while_something_is_pulled_in(local: LocalDataset) -> None:
    local.files.data.put(b"reused by the pull")
    with fsio.locked(lock_path(local.files)), pytest.raises(StoreError, match="pulled"):
        collect(local.files, now=later)
    assert local.files.data.contains(hash_bytes(b"reused by the pull"))


@pytest.mark.parametrize("grace", [0.0, SHORTEST_GRACE - 1, float("nan"), -1.0])
def test_a_grace_period_that_does_not_cover_a_transaction_is_refused(grace: float) -> None:
    with pytest.raises(UsageError, match="too short"):
        GcOptions(grace=grace)


# --- races -----------------------------------------------------------------------------------------------


def tick(folder: Path, after: int) -> None:
    """Until the file system's clock, which is coarse, has moved on."""
    probe = folder / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= after:
        os.utime(probe)


def test_what_is_stored_again_while_it_is_discarded_is_there_afterwards(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store, name = LocalObjectStore(tmp_path / "store"), hash_bytes(b"again")
    path = tmp_path / "store" / str(name)
    removed = 0
    for round_ in range(150):
        store.put(b"again")
        old = path.stat().st_ctime_ns
        tick(tmp_path, old)
        start = threading.Barrier(2)

        def write(start: threading.Barrier = start, as_file: bool = round_ % 2 == 0) -> None:
            source = tmp_path / "source"
            source.write_bytes(b"again")
            start.wait()
            if as_file:
                LocalObjectStore(tmp_path / "store").put_file(source, name)
            else:
                LocalObjectStore(tmp_path / "store").put(b"again")

        writer = threading.Thread(target=write)
        writer.start()
        start.wait()
        if round_ % 5 == 0:
            writer.join()  # the other order than the usual one
        removed += len(store.discard([name], unused_since_ns=old + 1))
        writer.join()
        assert store.get(name) == b"again"
    assert 0 < removed < 150, "both orders happened"


class Overtaken(LocalObjectStore):
    """A store that is cleared in the moment between finding that a name is taken and using what is there."""

    cleared = 0

    def _reuse(self, name: Multihash, repair: Callable[[], None]) -> bool:
        if not self.cleared:
            self.cleared = len(self.discard([name], unused_since_ns=time.time_ns() + 10**12))
        return super()._reuse(name, repair)


@pytest.mark.parametrize("as_file", [False, True])
def test_what_is_discarded_just_before_it_is_used_again_is_written_anew(
    tmp_path: Path, as_file: bool
) -> None:
    (tmp_path / "store").mkdir()
    store, name = Overtaken(tmp_path / "store"), hash_bytes(b"again")
    LocalObjectStore(tmp_path / "store").put(b"again")
    if as_file:
        (tmp_path / "source").write_bytes(b"again")
        store.put_file(tmp_path / "source", name)
    else:
        store.put(b"again")
    assert store.cleared == 1
    assert store.get(name) == b"again"


def test_transactions_that_use_old_objects_again_keep_them(local: LocalDataset, tmp_path: Path) -> None:
    """A commit and a collection at the same time, 60 times: the commit's objects were garbage before it."""
    dataset = local.files
    base = head_of(dataset)
    builder = ChainBuilder(dataset.chain)
    removed = 0
    for round_ in range(60):
        dataset.data.put(b"reused")
        newest = max(p.stat().st_ctime_ns for p in (dataset.folder / "data").iterdir())
        tick(tmp_path, newest)
        now = (newest + 1) / 1e9 + SHORTEST_GRACE + 1e-6
        start = threading.Barrier(2)

        def commit(start: threading.Barrier = start, round_: int = round_) -> None:
            start.wait()
            threading.Event().wait(round_ % 10 / 1_000)  # who is first is another one in each round
            dataset.data.put(b"reused")
            builder.prev, builder.sequence = base, 5
            builder.append(ev.SetInfo(description=f"{round_ % 2}"))

        writer = threading.Thread(target=commit)
        writer.start()
        start.wait()
        with contextlib.suppress(StoreError):
            found = collect(
                DatasetFiles.open(dataset.folder), GcOptions(grace=SHORTEST_GRACE), now=lambda now=now: now
            )
            removed += sum(g.files for g in found.removed if g.kind == "slices")
        writer.join()
        assert dataset.data.get(hash_bytes(b"reused")) == b"reused"
        assert everything(DatasetFiles.open(dataset.folder))
        dataset.chain.set_ref(HEAD, base, expected=builder.prev)
    assert removed > 0


def test_killed_at_any_moment_it_has_removed_nothing_that_is_needed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    workspace = new_workspace(tmp_path / "template")
    dataset = root(workspace, slices=4)
    keep_reachable(dataset, head_of(dataset))
    target = next(b.hash for b in dataset.chain.walk() if b.block.sequence_number == 3)
    dataset.set_head(target, expected=head_of(dataset))
    dataset.data.put(b"garbage")
    left = set()
    copies = killed_everywhere(tmp_path / "template", tmp_path / "killed", "gc")
    record_property("kills", len(copies) - 1)
    for killed in copies:
        found = killed.dataset("cities")
        assert everything(found)
        assert head_of(found) == target
        left.add(len(objects_of(found)))
        collect(found, DROP, now=later)
        assert len(objects_of(found)) == 4 + 2
    assert len(left) > 3


# --- leftovers -------------------------------------------------------------------------------------------


def test_what_the_dead_left_goes_and_what_the_living_hold_stays(local: LocalDataset) -> None:
    folder = local.files.folder
    (folder / "blocks" / f"{fsio.TEMP_PREFIX}1").write_bytes(b"torn")
    (folder / "refs" / f"{fsio.TEMP_PREFIX}2").write_bytes(b"torn")
    (folder / "info" / "incoming" / "objects").mkdir(parents=True)
    (folder / "info" / "incoming" / "objects" / "half").write_bytes(b"half")
    (folder / "staging" / "dead").mkdir()
    (folder / "staging" / "dead" / "slice").write_bytes(b"slice")
    with local.files.staging() as living:  # clears the dead one away itself
        (living / "slice").write_bytes(b"mine")
        (folder / "staging" / "dead").mkdir()
        found = collect(local.files, now=later)
        assert (living / "slice").read_bytes() == b"mine"
    assert {(g.kind, g.files) for g in found.removed} == {
        ("unfinished files", 2), ("staging", 1), ("incoming", 3),
    }  # fmt: skip
    assert not (folder / "info" / "incoming").exists()
    assert not (folder / "staging" / "dead").exists()


def test_young_leftovers_of_a_dataset_stay(local: LocalDataset) -> None:
    (local.files.folder / "blocks" / f"{fsio.TEMP_PREFIX}1").write_bytes(b"being written")
    (local.files.folder / "info" / "incoming").mkdir()
    assert collect(local.files).removed == ()


def test_an_index_of_more_blocks_than_there_are_goes_and_is_made_again(local: LocalDataset) -> None:
    index = local.files.folder / "info" / "chain-index"
    local.files.chain.nearest("Seed")
    assert index.exists()
    local.files.chain.set_ref(HEAD, local.hashes[2], expected=local.head)
    assert ("chain index", 1) in {(g.kind, g.files) for g in collect(local.files, now=later).removed}
    fresh = DatasetFiles.open(local.files.folder)
    assert fresh.chain.nearest("Seed") is not None
    assert index.exists()


def test_leftovers_of_the_workspace(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    kept = root(workspace, slices=1)
    for name in ("incoming/dead/dataset/blocks", "trash/dead", "run/dead"):
        (workspace.root / name).mkdir(parents=True)
    (workspace.root / "incoming" / "living").mkdir()
    (workspace.root / f"{fsio.TEMP_PREFIX}1").write_bytes(b"torn")
    with fsio.locked(workspace.root / "incoming" / ".lock-living"):
        found = collect_workspace(workspace, now=later)
        assert (workspace.root / "incoming" / "living").exists()
    assert {g.kind for g in found.removed} == {"incoming", "trash", "run", "unfinished files"}
    assert not (workspace.root / "incoming" / "dead").exists()
    assert list((workspace.root / "trash").iterdir()) == []
    assert not (workspace.root / "run" / "dead").exists()
    assert everything(workspace.dataset(kept.alias))


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_says_what_it_would_remove_and_one_damaged_dataset_does_not_hide_the_others(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    workspace = new_workspace(tmp_path)
    good, bad = root(workspace, "good", 1), root(workspace, "bad", 1)
    good.data.put(b"young")
    shutil.rmtree(bad.folder / "blocks")
    (bad.folder / "blocks").mkdir()
    result = run("-w", tmp_path, "gc", "--dry-run", "-o", "json")
    assert result.code == 6
    assert "bad" in result.err
    assert "odfchain fsck bad" in result.err
    rows = {row["dataset"]: row for row in json.loads(result.out)}
    assert set(rows) == {"good", None}
    assert rows["good"]["young"] == {"files": 1, "bytes": 5}
    assert run("-w", tmp_path, "gc", "good").code == 0
    assert good.data.contains(hash_bytes(b"young"))


def test_the_command_says_until_when_a_head_given_up_is_kept(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    good = root(new_workspace(tmp_path), "good", 1)
    ref = good.folder / "refs" / keep_reachable(good, head_of(good))
    result = run("-w", tmp_path, "gc", "--drop-refs", "--grace", "10m", "-o", "json")
    until = json.loads(result.out)[0]["keptUntil"]
    assert 590 < Timestamp.parse(until).epoch_ms / 1000 - time.time() <= 600
    assert (
        f"1 overwritten head kept, the newest at least until {until};"
        in run("-w", tmp_path, "gc", "--grace", "10m").err
    )
    assert ref.exists()


@pytest.mark.parametrize(
    ("grace", "message"),
    [("9m", "too short"), ("1y", "not a length of time"), ("0h", "not a length of time")],
)
def test_the_command_refuses_grace_periods_that_cannot_be_meant(
    tmp_path: Path, run: Callable[..., Result], grace: str, message: str
) -> None:
    new_workspace(tmp_path)
    result = run("-w", tmp_path, "gc", "--grace", grace)
    assert result.code == 2
    assert message in result.err


def test_a_dangling_link_under_the_name_of_an_object_is_replaced_by_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store, name = LocalObjectStore(tmp_path / "store"), hash_bytes(b"object")
    (tmp_path / "store" / str(name)).symlink_to(tmp_path / "nowhere")
    assert store.put(b"object") == name
    assert store.get(name) == b"object"
