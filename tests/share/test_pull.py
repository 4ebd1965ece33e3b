"""Pulling: what arrives, in which order, what is refused, and what an interruption leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import (
    ChainsDifferError,
    CorruptedPeerError,
    DatasetNotFoundError,
    NameCollisionError,
    OdfchainError,
    RefConflictError,
    TransferError,
    UsageError,
)
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.block_codec import decode_block, encode_block
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multicodec, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import MergeStrategyAppend, ReadStepCsv
from odfchain.progress import Silent
from odfchain.storage.local import HEAD
from odfchain.storage.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncOptions, SyncOutcome, SyncStatus, pull_dataset
from odfchain.transfer.sync import AHEAD
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.memory_peer import MemoryPeer
from tests.kit.scenario import Chain, chain_of, extend, install, numbered, scenario_steps, time_of
from tests.kit.support import RAW_SCHEMA, conformance, hash_of, seeded_id, set_transform, tree_of

NAME = DatasetAlias.parse("name")


def pull(workspace: WorkspaceFiles, peer: MemoryPeer, **options: Any) -> SyncOutcome:
    return pull_dataset(workspace, Store(peer), NAME, SyncOptions(**options))


def holds(dataset: DatasetFiles, chain: Chain, *, others: bool = False) -> bool:
    """Whether the dataset has the chain, its head and all its files, byte for byte (and nothing else)."""
    expected = {str(key): data for key, data in chain.objects.items()}
    expected[f"refs/{HEAD}"] = str(chain.head).encode()
    actual = tree_of(dataset.folder)
    return expected.items() <= actual.items() if others else actual == expected


def nothing_here(workspace: WorkspaceFiles) -> bool:
    return list((workspace.root / "datasets").iterdir()) == []


# --- the shared cases --------------------------------------------------------------------------------


def as_error(error: OdfchainError) -> dict[str, Any]:
    """An error in the words of the shared cases."""
    match error:
        case DatasetNotFoundError():
            return {"error": "DatasetNotFound", "of": "source"}
        case ChainsDifferError(source_blocks=0):
            return {
                "error": "DestinationAhead",
                "dst_ahead_size": error.destination_blocks,
                "src_head": error.source_head,
                "dst_head": error.destination_head,
            }
        case ChainsDifferError():
            return {
                "error": "DatasetsDiverged",
                "uncommon_blocks_in_src": error.source_blocks,
                "uncommon_blocks_in_dst": error.destination_blocks,
            }
        case NameCollisionError():
            return {"error": "RefCollision"}
        case RefConflictError():
            return {"error": "UpdatedConcurrently"}
        case CorruptedPeerError():
            return {"error": "Corrupted"}
    raise error


@pytest.mark.parametrize("step", scenario_steps("pull"))
def test_pulls_of_the_shared_scenario_end_as_they_say(
    step: dict[str, Any], workspace: WorkspaceFiles
) -> None:
    source = chain_of(step["src"]) if step["src"] else None
    if step["dst"] is not None:
        install(workspace, "name", chain_of(step["dst"]))
    expect = step["expect"]
    try:
        found = pull(workspace, MemoryPeer(source), force=step.get("force", False))
    except OdfchainError as error:
        said = as_error(error)
        for name in ("src_head", "dst_head"):
            if name in expect:
                expect = {**expect, name: str(chain_of(expect[name]).head)}
        assert expect.items() <= said.items()
        return
    if expect == "UpToDate":
        assert (found.status, found.blocks) == (SyncStatus.UP_TO_DATE, 0)
    else:
        updated = expect["updated"]
        old = chain_of(updated["old"]).head if updated["old"] else None
        assert (found.old, found.new, found.blocks) == (old, source.head, updated["num_blocks"])
    assert holds(workspace.dataset("name"), source, others=True)


def dst_exists_with_other_seed(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    there = chain_of(case["dst"])
    dataset = install(workspace, "name", there)
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common") as found:
        pull(workspace, MemoryPeer(chain_of(case["src"])))
    assert as_error(found.value) == case["expect"]
    assert holds(dataset, there)


def first_block_not_seed(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    chain = Chain()
    chain.append(RAW_SCHEMA)
    with pytest.raises(CorruptedPeerError, match=r"block 0 .*memory://peer/.*seed-first"):
        pull(workspace, MemoryPeer(chain))
    assert nothing_here(workspace)


def data_bytes_do_not_hash(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", "d1", "d2"])
    peer = MemoryPeer(chain)
    key = next(key for key in chain.files if key.kind is ObjectKind.DATA)
    peer.replaced[key] = b"x" * len(chain.objects[key])
    with pytest.raises(CorruptedPeerError, match=f"memory://peer/{key}: "):
        pull(workspace, peer)
    assert nothing_here(workspace)


def block_bytes_do_not_hash(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", "d1"])
    peer = MemoryPeer(chain)
    peer.replaced[chain.key(1)] = chain.blocks[0]
    with pytest.raises(CorruptedPeerError, match=f"memory://peer/{chain.key(1)}: "):
        pull(workspace, peer)
    assert nothing_here(workspace)
    assert peer.asked("data/") == peer.asked("checkpoints/") == []


class AtLastBlock(Silent):
    """Does something when the last block is in place and the head is not."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.left: int | None = None
        self.act = act

    def phase(self, name: str, total: int | None = None) -> None:
        self.left = total if name == "Publishing" else None

    def advance(self, steps: int = 1) -> None:
        if self.left is not None:
            self.left -= steps
            if self.left == 0:
                self.act()


def concurrent_head_move(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    dataset = install(workspace, "name", chain_of(case["dst"]))
    other = chain_of([*case["dst"], "someone else's"])
    progress = AtLastBlock(lambda: extend(DatasetFiles.open(dataset.folder), other))
    with pytest.raises(RefConflictError) as found:
        pull_dataset(
            workspace, Store(MemoryPeer(chain_of(case["src"]))), NAME, SyncOptions(progress=progress)
        )
    assert as_error(found.value) == case["expect"]
    assert DatasetFiles.open(dataset.folder).chain.head() == other.head


class ClientDied(BaseException):
    """Stands for the end of the process."""


def die() -> None:
    raise ClientDied


def interrupted_before_head(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    dataset, source = install(workspace, "name", chain_of(case["dst"])), chain_of(case["src"])
    with pytest.raises(ClientDied):
        pull_dataset(workspace, Store(MemoryPeer(source)), NAME, SyncOptions(progress=AtLastBlock(die)))
    assert (dataset.folder / str(source.key(-1))).is_file()
    assert dataset.chain.head() == chain_of(case["expect"]["dst_head_after"]).head
    again = MemoryPeer(source)
    assert pull(workspace, again).blocks == case["expect"]["retry"]["updated"]["num_blocks"]
    assert again.requests == [HEAD_KEY]
    assert holds(dataset, source)


def same_dataset_id_other_alias(case: dict[str, Any], workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", "d1"])
    install(workspace, "other", chain)
    peer = MemoryPeer(chain)
    with pytest.raises(NameCollisionError, match=r"memory://peer/: .* is here already, as 'other'") as found:
        pull(workspace, peer)
    assert as_error(found.value) == case["expect"]
    assert peer.asked("data/") == []
    assert [str(d.alias) for d in workspace.datasets()] == ["other"]


SYNC_MORE: dict[str, Callable[[dict[str, Any], WorkspaceFiles], None]] = {
    test.__name__: test
    for test in (
        dst_exists_with_other_seed,
        first_block_not_seed,
        data_bytes_do_not_hash,
        block_bytes_do_not_hash,
        concurrent_head_move,
        interrupted_before_head,
        same_dataset_id_other_alias,
    )
}
PUSHES = {"ipfs_destination"}


@pytest.mark.parametrize("case_id", sorted(SYNC_MORE))
def test_pulls_keep_what_the_shared_cases_say(case_id: str, workspace: WorkspaceFiles) -> None:
    (case,) = [c for c in conformance("protocol_cases")["sync_more"] if c["id"] == case_id]
    SYNC_MORE[case_id](case, workspace)


def test_every_shared_case_about_pulling_has_a_test() -> None:
    assert {c["id"] for c in conformance("protocol_cases")["sync_more"]} == {*SYNC_MORE, *PUSHES}


# --- what is asked for -------------------------------------------------------------------------------


def test_a_new_dataset_is_the_peers_byte_for_byte(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", "d1", "note", "d2"])
    peer = MemoryPeer(chain)
    found = pull(workspace, peer)
    assert holds(workspace.dataset("name"), chain)
    size = sum(len(data) for data in chain.objects.values())
    expected = SyncOutcome(SyncStatus.CREATED, None, chain.head, 5, 4, size, 0, found.signature)
    assert found == expected
    blocks = [str(chain.key(n)) for n in (4, 3, 2, 1, 0)]
    assert peer.requests[:6] == [HEAD_KEY, *blocks]
    assert sorted(peer.requests[6:]) == sorted(str(key) for key in chain.files)
    assert list((workspace.root / "incoming").glob("[!.]*")) == []


def test_a_second_pull_asks_for_what_is_new_and_nothing_else(workspace: WorkspaceFiles) -> None:
    pull(workspace, MemoryPeer(chain_of(["seed", "schema", "d1"])))
    chain = chain_of(["seed", "schema", "d1", "note", "d2"])
    peer = MemoryPeer(chain)
    found = pull(workspace, peer)
    assert (found.status, found.blocks, found.objects) == (SyncStatus.UPDATED, 2, 2)
    assert peer.requests[:3] == [HEAD_KEY, str(chain.key(4)), str(chain.key(3))]
    assert set(peer.requests[3:]) == {str(key) for key in chain.files[-2:]}
    assert holds(workspace.dataset("name"), chain)
    peer = MemoryPeer(chain)
    assert pull(workspace, peer).status is SyncStatus.UP_TO_DATE
    assert peer.requests == [HEAD_KEY]


def name_checkpoint_again(chain: Chain, size: int) -> None:
    """A block without a slice, whose checkpoint is the one before and is said to have this size."""
    made = ev.Checkpoint(physical_hash=chain.checkpoint, size=size)
    fields = {"prev_offset": chain.offset, "prev_checkpoint": chain.checkpoint, "new_checkpoint": made}
    chain.append(ev.AddData(**fields, new_watermark=time_of(0)))


def test_a_file_that_two_blocks_name_is_asked_for_once(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", "d1"])
    name_checkpoint_again(chain, size=13)
    peer = MemoryPeer(chain)
    pull(workspace, peer)
    assert len(peer.asked("checkpoints/")) == 1
    assert holds(workspace.dataset("name"), chain)


def test_blocks_are_kept_as_they_were_sent(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "written by an older version"])
    older = encode_block(decode_block(chain.blocks[1]), version=2)
    chain.hashes.pop()
    chain.append_bytes(older)
    pull(workspace, MemoryPeer(chain))
    assert workspace.dataset("name").chain.get_bytes(chain.head) == older


def test_two_pulls_of_one_name_do_not_meet(workspace: WorkspaceFiles) -> None:
    chain = chain_of(numbered(30))
    first, second = MemoryPeer(chain), MemoryPeer(chain)
    both = threading.Barrier(2, timeout=20)
    first.before = second.before = lambda key: both.wait() if key == HEAD_KEY else None
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda peer: pull(workspace, peer), (first, second)))
    assert {outcome.status for outcome in found} == {SyncStatus.CREATED, SyncStatus.UP_TO_DATE}
    assert len(first.asked("blocks/") + second.asked("blocks/")) == 30
    assert holds(workspace.dataset("name"), chain)


@pytest.mark.parametrize(("name", "seed"), [("NAME", "seedB"), ("other", "seed")], ids=["name", "id"])
def test_a_dataset_that_appears_meanwhile_is_not_replaced(
    name: str, seed: str, workspace: WorkspaceFiles
) -> None:
    there, chain = chain_of([seed, "there"]), chain_of(["seed", "schema", "d1"])
    progress = AtLastBlock(lambda: install(workspace, name, there) and None)
    with pytest.raises(NameCollisionError):
        pull_dataset(workspace, Store(MemoryPeer(chain)), NAME, SyncOptions(progress=progress))
    (dataset,) = workspace.datasets()
    assert holds(dataset, there)


# --- hints -------------------------------------------------------------------------------------------


def test_a_short_walk_asks_for_no_hint(workspace: WorkspaceFiles) -> None:
    chain = chain_of(numbered(16))
    peer = MemoryPeer(chain, chain.hashes)
    pull(workspace, peer)
    assert HINT_KEY not in peer.requests


def test_a_hint_saves_round_trips_and_no_block_is_asked_for_twice(workspace: WorkspaceFiles) -> None:
    chain = chain_of(numbered(200))
    peer = MemoryPeer(chain, chain.hashes)
    together = threading.Barrier(8, timeout=20)  # as many as there are requests at the same time
    early = {str(chain.key(n)) for n in range(198, 70, -16)}
    peer.before = lambda key: together.wait() and None if key in early else None
    pull(workspace, peer)
    assert sorted(peer.asked("blocks/")) == sorted(str(chain.key(n)) for n in range(200))
    assert holds(workspace.dataset("name"), chain)


def lies(chain: Chain) -> dict[str, list[Multihash] | None]:
    other = chain_of(numbered(40, *(f"other {n}" for n in range(60))))
    return {
        "none": None,
        "empty": [],
        "nonsense": [hash_of(str(n)) for n in range(200)],
        "reversed": chain.hashes[::-1],
        "another": other.hashes,
        "too-old": chain.hashes[:50],
        "too-new": [*chain.hashes, *(hash_of(str(n)) for n in range(200))],
        "one-block-over-and-over": [chain.hashes[3]] * 200,
        "gaps": chain.hashes[::3],
        "mixed-up": [chain.hashes[n * 77 % len(chain.hashes)] for n in range(200)],
    }


@pytest.mark.parametrize("lie", sorted(lies(chain_of(numbered(17)))))
def test_the_result_does_not_depend_on_the_hint(lie: str, workspace: WorkspaceFiles) -> None:
    chain = chain_of(numbered(100))
    peer = MemoryPeer(chain, lies(chain)[lie])
    pull(workspace, peer)
    assert holds(workspace.dataset("name"), chain)
    assert len(peer.asked("blocks/")) <= 100 + AHEAD


def test_a_hint_that_cannot_be_read_is_done_without(workspace: WorkspaceFiles) -> None:
    chain = chain_of(numbered(40))
    peer = MemoryPeer(chain)

    def refuse(key: str) -> None:
        if key == HINT_KEY:
            raise TransferError("too slow")

    peer.before = refuse
    pull(workspace, peer)
    assert HINT_KEY in peer.requests
    assert holds(workspace.dataset("name"), chain)


# --- interruptions -----------------------------------------------------------------------------------


class DiesAt(Silent):
    """The process ends at the n-th sign of progress."""

    def __init__(self, step: int) -> None:
        self.left = step
        self._lock = threading.Lock()

    def _count(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left == 0:
                raise ClientDied

    def phase(self, name: str, total: int | None = None) -> None:
        self._count()

    def advance(self, steps: int = 1) -> None:
        self._count()


@pytest.mark.parametrize("start", [0, 3], ids=["new", "update"])
def test_a_pull_that_dies_anywhere_changes_nothing_and_is_continued(start: int, tmp_path: Path) -> None:
    labels = ["seed", "schema", "d1", "note", "d2", "d3"]
    chain = chain_of(labels)
    before = chain_of(labels[:start]) if start else None
    survived = False
    for step in range(1, 200):
        (tmp_path / str(step)).mkdir()
        workspace = WorkspaceFiles.init(tmp_path / str(step))
        if before:
            install(workspace, "name", before)
        peer = MemoryPeer(chain)
        try:
            pull_dataset(workspace, Store(peer), NAME, SyncOptions(parallel=1, progress=DiesAt(step)))
        except ClientDied:
            if before:
                dataset = workspace.dataset("name")
                assert dataset.chain.head() == before.head
                visible = {p.name for p in (dataset.folder / "blocks").iterdir()}
                if visible != {str(name) for name in before.hashes}:
                    assert all((dataset.folder / str(key)).is_file() for key in chain.files)
            else:
                assert nothing_here(workspace)
        else:
            survived = True
        again = MemoryPeer(chain)
        pull(workspace, again)
        assert holds(workspace.dataset("name"), chain)
        asked = [*peer.requests, *again.requests]
        assert len([key for key in asked if key != HEAD_KEY]) == len(set(asked)) - 1
        if survived:
            break
    assert survived
    assert step > 10


def test_an_object_is_continued_where_the_connection_broke(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema"])
    chain.add_data("large", size=50_000)
    key = next(key for key in chain.files if key.kind is ObjectKind.DATA)
    peer = MemoryPeer(chain)
    peer.cut[key] = 40_000
    with pytest.raises(TransferError, match="the connection broke"):
        pull(workspace, peer, parallel=1)
    assert nothing_here(workspace)
    again = MemoryPeer(chain)
    pull(workspace, again)
    assert again.bytes_sent < 15_000
    assert again.asked("blocks/") == []
    assert holds(workspace.dataset("name"), chain)


def test_a_torn_file_of_an_earlier_attempt_is_received_again(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", "d1", "d2"])
    with pytest.raises(ClientDied):
        pull_dataset(workspace, Store(MemoryPeer(chain)), NAME, SyncOptions(progress=AtLastBlock(die)))
    area = workspace.root / "incoming" / "name"
    block = area / "dataset" / str(chain.key(2))
    block.write_bytes(block.read_bytes()[:10])
    slice_file = next((area / "dataset" / "data").iterdir())
    slice_file.write_bytes(b"")
    pull(workspace, MemoryPeer(chain))
    assert holds(workspace.dataset("name"), chain)


def test_a_source_that_was_rewritten_meanwhile_leaves_no_block_behind(workspace: WorkspaceFiles) -> None:
    old = chain_of(["seed", "schema", "old 1", "old 2"])
    with pytest.raises(ClientDied):
        pull_dataset(workspace, Store(MemoryPeer(old)), NAME, SyncOptions(progress=AtLastBlock(die)))
    chain = chain_of(["seed", "schema", "d1"])
    pull(workspace, MemoryPeer(chain))
    assert holds(workspace.dataset("name"), chain)


def test_one_failed_object_ends_the_others(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema", *(f"d{n}" for n in range(40))])
    peer = MemoryPeer(chain)
    peer.replaced[chain.files[0]] = None
    with pytest.raises(CorruptedPeerError, match=f"memory://peer/{chain.files[0]}: "):
        pull(workspace, peer, parallel=1)
    assert len(peer.asked("data/") + peer.asked("checkpoints/")) < 5


# --- peers that lie ----------------------------------------------------------------------------------


def refused(workspace: WorkspaceFiles, peer: MemoryPeer, says: str) -> CorruptedPeerError:
    """The peer is refused before any object is asked for, for a new dataset and for an update alike."""
    with pytest.raises(CorruptedPeerError, match=says) as found:
        pull(workspace, peer)
    assert nothing_here(workspace)
    assert peer.asked("data/") == peer.asked("checkpoints/") == []
    assert list((workspace.root / "incoming").glob("[!.]*")) == []
    there = chain_of(["seed"])
    dataset = install(workspace, "name", there)
    with pytest.raises(CorruptedPeerError):
        pull(workspace, peer)
    assert holds(dataset, there)
    assert not (dataset.folder / "info" / "incoming").exists()
    assert "\n" not in str(found.value)
    assert "memory://peer/" in str(found.value)
    return found.value


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        (ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(ds.DataSchema(fields=()))), "schema-compatible"),
        (ev.SetVocab(event_time_column="date"), "vocab-before-data"),
        (set_transform("foo"), "event-of-dataset-kind"),
        (ev.SetInfo(description="x"), "system-time-monotonic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_append_would_refuse_is_not_pulled(
    workspace: WorkspaceFiles, event: ev.MetadataEvent, rule: str
) -> None:
    chain = chain_of(["seed", "schema", "d1", "d2"])
    chain.append(event, **({"system_time": time_of(0)} if "time" in rule else {}))
    chain.append(ev.SetInfo(description="y"))
    says = f"block 4 .{str(chain.hashes[4])[:17]}….* of memory://peer/ breaks the rule {rule}"
    refused(workspace, MemoryPeer(chain), says)


def test_a_block_that_is_no_block_is_refused(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed", "schema"])
    chain.append_bytes(b"<html>not found</html>" * 10)
    refused(workspace, MemoryPeer(chain), f"{chain.key(-1)} of memory://peer/: ")


def test_an_event_that_is_not_known_is_refused_with_a_hint(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed"])
    name = chain.append(ev.SetInfo(description="x"))
    data = chain.objects.pop(ObjectKey(ObjectKind.BLOCK, name))
    chain.hashes.pop()
    version = data.index((3).to_bytes(4, "little"))
    chain.append_bytes(data[:version] + (9).to_bytes(4, "little") + data[version + 4 :])
    assert refused(workspace, MemoryPeer(chain), "manifest version 9 is not supported").hint


def test_a_predecessor_named_by_another_hash_is_refused(workspace: WorkspaceFiles) -> None:
    chain = chain_of(["seed"])
    short = Multihash(Multicodec.SHA3_256, chain.head.digest[:20])
    chain.append(ev.SetInfo(description="x"), prev_block_hash=short)
    refused(workspace, MemoryPeer(chain), f"{chain.key(-1)} of memory://peer/: .*cannot name an object")


@pytest.mark.parametrize("here", [False, True])
def test_two_sizes_of_one_file_are_refused(here: bool, workspace: WorkspaceFiles) -> None:
    there, chain = chain_of(["seed", "schema", "d1"]), chain_of(["seed", "schema", "d1"])
    dataset = install(workspace, "name", there) if here else None
    name_checkpoint_again(chain, size=99)
    peer = MemoryPeer(chain)
    says = f"checkpoints/{chain.checkpoint}{'' if here else ' of memory://peer/: block 3 says'}"
    with pytest.raises(CorruptedPeerError, match=says):
        pull(workspace, peer)
    assert peer.asked("data/") == []
    assert dataset is None or holds(dataset, there)


def test_an_update_that_a_later_slice_spoils_stores_nothing_of_it(workspace: WorkspaceFiles) -> None:
    there = chain_of(["seed", "schema", "d1"])
    dataset = install(workspace, "name", there)
    chain = chain_of(["seed", "schema", "d1", "d2", "d3"])
    peer = MemoryPeer(chain)
    peer.replaced[chain.files[-2]] = b"x" * len(chain.objects[chain.files[-2]])
    with pytest.raises(CorruptedPeerError, match=f"memory://peer/{chain.files[-2]}: "):
        pull(workspace, peer, parallel=1)
    assert holds(dataset, there)


def test_rules_are_checked_against_what_is_here(workspace: WorkspaceFiles) -> None:
    source = ev.AddPushSource(source_name="a", read=ReadStepCsv(), merge=MergeStrategyAppend())
    there = chain_of(["seed"])
    there.append(source)
    install(workspace, "name", there)
    chain = chain_of(["seed"])
    chain.append(source)
    chain.append(ev.DisablePushSource(source_name="a"))
    chain.append(source)
    chain.append(source)
    with pytest.raises(CorruptedPeerError, match=r"block 4 .*push-not-identical"):
        pull(workspace, MemoryPeer(chain))
    chain.hashes.pop()
    assert pull(workspace, MemoryPeer(chain)).blocks == 2


# --- force -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("here", [["extra"], ["d3", "d4"]], ids=["one", "two"])
def test_a_forced_pull_keeps_the_old_head_reachable(here: list[str], workspace: WorkspaceFiles) -> None:
    common = ["seed", "schema", "d1", "d2"]
    local, chain = chain_of([*common, *here]), chain_of([*common, "other"])
    dataset = install(workspace, "name", local)
    with pytest.raises(ChainsDifferError, match="diverged after block") as found:
        pull(workspace, MemoryPeer(chain))
    assert (found.value.common, found.value.source_blocks) == (str(chain.hashes[3]), 1)
    for name in (chain.hashes[3], chain.head, local.head):
        assert str(name)[:17] in str(found.value)
    assert "--force" in (found.value.hint or "")
    assert holds(dataset, local)

    peer = MemoryPeer(chain)
    done = pull(workspace, peer, force=True)
    assert (done.status, done.blocks, done.objects) == (SyncStatus.OVERWRITTEN, 5, 0)
    assert peer.requests == [HEAD_KEY, str(chain.key(-1))]
    kept = f"overwritten-{local.head.digest.hex()[:16]}"
    assert dataset.chain.head(kept) == local.head
    assert [b.hash for b in dataset.chain.walk(local.head)] == local.hashes[::-1]
    assert dataset.chain.head() == chain.head

    pull(workspace, MemoryPeer(local), force=True)
    pull(workspace, MemoryPeer(chain), force=True)
    assert dataset.chain.head(kept) == local.head
    assert dataset.chain.head() == chain.head


@pytest.mark.parametrize("force", [False, True])
def test_another_dataset_is_never_written_over(force: bool, workspace: WorkspaceFiles) -> None:
    local = chain_of(["seedB", "b"])
    dataset = install(workspace, "name", local)
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common") as found:
        pull(workspace, MemoryPeer(chain_of(["seedA", "a"])), force=force)
    assert str(found.value).startswith("OverwriteSeedBlock: ") == force
    assert str(seeded_id("seedA")) in str(found.value)
    assert found.value.hint == "pull it under another name with --as"
    assert holds(dataset, local)


def test_another_kind_of_dataset_is_never_written_over(workspace: WorkspaceFiles) -> None:
    local = chain_of(["seed", "b"])
    dataset = install(workspace, "name", local)
    other = Chain()
    other.append(ev.Seed(dataset_id=seeded_id("seed"), dataset_kind=DatasetKind.DERIVATIVE))
    with pytest.raises(ChainsDifferError, match="OverwriteSeedBlock"):
        pull(workspace, MemoryPeer(other), force=True)
    assert holds(dataset, local)


def test_a_seed_of_the_same_dataset_can_be_overwritten(workspace: WorkspaceFiles) -> None:
    install(workspace, "name", chain_of(["seed", "b"]))
    other = Chain()
    other.append(ev.Seed(dataset_id=seeded_id("seed"), dataset_kind=DatasetKind.ROOT), system_time=time_of(9))
    with pytest.raises(ChainsDifferError, match="have no block in common"):
        pull(workspace, MemoryPeer(other))
    assert pull(workspace, MemoryPeer(other), force=True).status is SyncStatus.OVERWRITTEN


def test_a_destination_ahead_says_by_how_much(workspace: WorkspaceFiles) -> None:
    local, chain = chain_of(["seed", "schema", "d1", "d2"]), chain_of(["seed", "schema"])
    dataset = install(workspace, "name", local)
    with pytest.raises(ChainsDifferError, match="name has 2 blocks that memory://peer/ has not") as found:
        pull(workspace, MemoryPeer(chain))
    assert found.value.common == str(chain.head)
    assert holds(dataset, local)


def test_nothing_is_transferred_by_no_threads() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        SyncOptions(parallel=0)
