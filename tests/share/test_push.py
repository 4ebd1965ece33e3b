"""Pushing a dataset to folders and object stores: what is sent, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import (
    AccessError,
    ChainsDifferError,
    CorruptedPeerError,
    DatasetNotFoundError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    RefConflictError,
    UnsupportedPeerError,
)
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.open_peer import open_writable
from odfchain.transfer.pushing import plan_dataset_push, push_dataset
from odfchain.workspace.options import PushOptions
from tests.kit.local_folder import LocalDataset
from tests.kit.scenario import scenario_steps
from tests.kit.servers import Meter
from tests.kit.small_s3 import SmallS3
from tests.kit.support import conformance, unchanged

CHAIN = ("seed", "schema", "d1", "d2")
FORCE = PushOptions(force=True)


@pytest.fixture(params=["folder", "store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> PeerUrl:
    """Where there is nothing yet."""
    if request.param == "folder":
        return PeerUrl.parse((tmp_path / "there").as_uri())
    return PeerUrl.parse(request.getfixturevalue("store").url("bucket/there"))


@pytest.fixture
def peer(url: PeerUrl) -> Iterator[Store]:
    peer = open_writable(url)
    yield peer
    peer.close()


@pytest.fixture
def bucket(store: SmallS3) -> Store:
    """A place in a store where there is nothing yet."""
    return open_writable(PeerUrl.parse(store.url("bucket/x")))


def local(tmp_path: Path, labels: Sequence[str]) -> LocalDataset:
    return LocalDataset(tmp_path / f"local-{'-'.join(labels)}-{len(list(tmp_path.iterdir()))}", labels)


def check_blocks(peer: Store, labels: Sequence[str], tmp_path: Path) -> None:
    """The destination's chain is exactly this one, with all of its objects."""
    made = local(tmp_path, labels)
    assert peer.head() == made.head
    keys = [ObjectKey(ObjectKind.BLOCK, name) for name in made.hashes]
    keys += [ObjectKey(ObjectKind.DATA, name) for name in made.files.data.names()]
    keys += [ObjectKey(ObjectKind.CHECKPOINT, name) for name in made.files.checkpoints.names()]
    assert all(peer.contains(key) for key in keys)
    assert peer.hint(100) == made.hashes


# --- the shared cases ------------------------------------------------------------------------------------

FAULTS: dict[str, type[OdfchainError]] = {
    "DatasetNotFound": DatasetNotFoundError,
    "DestinationAhead": ChainsDifferError,
    "DatasetsDiverged": ChainsDifferError,
    "Corrupted": ObjectNotFoundError,
}


@pytest.mark.parametrize("step", scenario_steps("push"))
def test_the_push_steps_of_the_shared_scenario(step: dict[str, Any], peer: Store, tmp_path: Path) -> None:
    if step["dst"]:
        push_dataset(local(tmp_path, step["dst"]).files, peer)
    before = peer.head()
    source = local(tmp_path, step["src"])
    if "checkpoint-file-deleted" in step.get("from", ""):
        next(iter((source.files.folder / "checkpoints").iterdir())).unlink()
    options = PushOptions(create=step.get("create_dst", True), force=step.get("force", False))
    expect = step["expect"]
    if expect == "UpToDate":
        outcome = push_dataset(source.files, peer, options)
        assert (outcome.up_to_date, outcome.num_blocks) == (True, 0)
    elif "error" in expect:
        with pytest.raises(FAULTS[expect["error"]]) as caught:
            push_dataset(source.files, peer, options)
        error = caught.value
        if expect["error"] == "DestinationAhead":
            assert (error.source_blocks, error.destination_blocks) == (0, expect["dst_ahead_size"])
            assert (error.source_head, error.destination_head) == (str(source.head), str(before))
        if expect["error"] == "DatasetsDiverged":
            uncommon = (expect["uncommon_blocks_in_src"], expect["uncommon_blocks_in_dst"])
            assert (error.source_blocks, error.destination_blocks) == uncommon
        assert peer.head() == before
    else:
        updated = expect["updated"]
        with unchanged(source.files.folder):
            outcome = push_dataset(source.files, peer, options)
        assert outcome.num_blocks == updated["num_blocks"]
        assert (outcome.plan.old_head, outcome.plan.new_head) == (before, source.head)
        assert (before is None) == (updated["old"] is None)
        check_blocks(peer, updated["new"], tmp_path)


def test_ipfs_destination() -> None:
    (case,) = [c for c in conformance("protocol_cases")["sync_more"] if c["id"] == "ipfs_destination"]
    assert case["expect"]["error"] == "UnsupportedProtocol"
    for scheme in ("ipfs", "ipns"):
        with pytest.raises(UnsupportedPeerError, match="cannot be written"):
            open_writable(PeerUrl.parse(f"{scheme}://bafybeigexample/"))
    with pytest.raises(AccessError, match="not written"):
        open_writable(PeerUrl.parse("https://example.com/x"))


def test_interrupted_before_head_the_next_push_sends_only_what_is_missing(
    store: SmallS3, bucket: Store, tmp_path: Path
) -> None:
    push_dataset(local(tmp_path, CHAIN[:2]).files, bucket)
    source = local(tmp_path, CHAIN[:3])
    store.before = lambda method, path: 403 if method == "PUT" and path.endswith("refs/head") else None
    with pytest.raises(AccessError):
        push_dataset(source.files, bucket)
    assert bucket.head() == source.hashes[1]
    store.before = lambda method, path: None
    store.requests.clear()
    outcome = push_dataset(source.files, bucket)
    assert (outcome.num_blocks, outcome.plan.objects, outcome.plan.present) == (1, (), 2)
    assert not [path for path in store.sent("PUT") if "/data/" in path or "/checkpoints/" in path]


def test_concurrent_head_move(store: SmallS3, bucket: Store, tmp_path: Path) -> None:
    """Another writer is faster after the plan was made: its head stays."""
    first = local(tmp_path, CHAIN[:2])
    push_dataset(first.files, bucket)
    other = str(local(tmp_path, (*CHAIN[:2], "other")).head).encode()

    def interfere(method: str, path: str) -> None:
        if method == "PUT" and "/data/" in path:
            store.objects["bucket/x/refs/head"] = other

    store.before = interfere
    with pytest.raises(RefConflictError) as caught:
        push_dataset(local(tmp_path, CHAIN[:3]).files, bucket)
    assert (caught.value.expected, caught.value.actual) == (str(first.head), other.decode())
    assert store.objects["bucket/x/refs/head"] == other


# --- order and amount ------------------------------------------------------------------------------------


def test_objects_come_first_then_blocks_then_the_hint_and_the_head_last(
    store: SmallS3, bucket: Store, tmp_path: Path
) -> None:
    source, meter = local(tmp_path, CHAIN), Meter()
    push_dataset(source.files, bucket, PushOptions(parallel=1, progress=meter))
    sent = [path.removeprefix("bucket/x/") for path in store.sent("PUT")]
    assert {path.split("/")[0] for path in sent[:4]} == {"data", "checkpoints"}
    assert sent[4:8] == [f"blocks/{name}" for name in source.hashes]
    assert sent[8] == "hints/chain"
    assert sent[-1] == "refs/head"
    assert sent.count("refs/head") == 1
    assert meter.phases == [
        ("Sending foo", 2 * len("slice d1") + 2 * len("checkpoint d1")),
        ("Sending blocks of foo", 4),
    ]
    assert meter.steps == 4


def test_a_fast_forward_reads_one_block_of_the_destination_at_most(
    store: SmallS3, bucket: Store, tmp_path: Path
) -> None:
    push_dataset(local(tmp_path, CHAIN[:3]).files, bucket)
    source = local(tmp_path, CHAIN)
    store.requests.clear()
    plan = plan_dataset_push(source.files, bucket)
    assert store.sent("GET") == ["bucket/x/refs/head"], "what is here is not asked for"
    assert store.sent("PUT") == []
    assert (plan.blocks[0], len(plan.blocks), plan.overwrites) == (source.head, 1, False)
    assert [item.key.kind for item in plan.objects] == [ObjectKind.DATA, ObjectKind.CHECKPOINT]
    assert plan.bytes == len("slice d2") + len("checkpoint d2")
    assert (plan.old_head, plan.new_head) == (source.hashes[2], source.head)


def test_a_plan_writes_nothing(peer: Store, tmp_path: Path) -> None:
    plan = plan_dataset_push(local(tmp_path, CHAIN).files, peer)
    assert (len(plan.blocks), len(plan.objects), plan.present) == (4, 4, 0)
    assert peer.head() is None
    assert not any(peer.contains(item.key) for item in plan.objects)


# --- refusals ----------------------------------------------------------------------------------------------


def test_a_missing_slice_is_named_before_anything_is_sent(peer: Store, tmp_path: Path) -> None:
    source = local(tmp_path, CHAIN)
    path = next(iter((source.files.folder / "data").iterdir()))
    path.unlink()
    with pytest.raises(ObjectNotFoundError, match="nothing was sent") as caught:
        push_dataset(source.files, peer)
    assert str(path) in str(caught.value)
    assert peer.head() is None
    keys = [ObjectKey(ObjectKind.BLOCK, name) for name in source.hashes]
    keys += [ObjectKey(ObjectKind.DATA, name) for name in source.files.data.names()]
    assert not any(peer.contains(key) for key in keys)


def test_a_partial_copy_is_pushed_where_the_rest_is_already(peer: Store, tmp_path: Path) -> None:
    push_dataset(local(tmp_path, (*CHAIN, "d3")).files, peer)
    source = local(tmp_path, CHAIN)
    for path in (source.files.folder / "data").iterdir():
        path.unlink()
    assert push_dataset(source.files, peer, FORCE).num_blocks == 4
    assert peer.head() == source.head


@pytest.mark.parametrize("part", ["data", "checkpoints", "blocks"])
def test_a_damaged_local_file_is_named_and_the_head_stays(part: str, peer: Store, tmp_path: Path) -> None:
    push_dataset(local(tmp_path, CHAIN[:2]).files, peer)
    before = peer.head()
    source = local(tmp_path, CHAIN)
    name = source.head if part == "blocks" else next(iter(getattr(source.files, part).names()))
    damaged = source.files.folder / part / str(name)
    damaged.write_bytes(b"damaged")
    with pytest.raises(ObjectCorruptedError) as caught:
        push_dataset(source.files, peer)
    assert str(damaged) in str(caught.value)
    assert peer.head() == before


def test_the_message_of_a_divergence_names_heads_ancestor_counts_and_ways_out(
    peer: Store, tmp_path: Path
) -> None:
    theirs = local(tmp_path, (*CHAIN, "d3", "d4"))
    push_dataset(theirs.files, peer)
    ours = local(tmp_path, (*CHAIN, "other"))
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common") as caught:
        push_dataset(ours.files, peer)
    error = caught.value
    for name in (ours.head, theirs.head, ours.hashes[3]):
        assert str(name)[:17] in str(error)
    assert error.common == str(ours.hashes[3])
    assert "1 block only here, 2 blocks only there" in str(error)
    assert "--force" in str(error.hint)


def test_another_dataset_is_never_overwritten(peer: Store, tmp_path: Path) -> None:
    """`dst_exists_with_other_seed`: diverged, with full lengths; and force does not help."""
    theirs = local(tmp_path, ("seedB", "schema"))
    push_dataset(theirs.files, peer)
    for options in (PushOptions(), FORCE):
        with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common") as caught:
            push_dataset(local(tmp_path, ("seedA", "schema")).files, peer, options)
        assert (caught.value.source_blocks, caught.value.destination_blocks) == (2, 2)
        assert caught.value.common is None
        assert peer.head() == theirs.head
    assert "nothing was overwritten" in str(caught.value)


def test_a_destination_with_a_broken_chain_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    peer = open_writable(PeerUrl.parse(folder.as_uri()))
    theirs = local(tmp_path, (*CHAIN, "d3"))
    push_dataset(theirs.files, peer)
    (folder / "blocks" / str(theirs.head)).write_bytes(b"something else")
    with pytest.raises(CorruptedPeerError) as caught:
        push_dataset(local(tmp_path, CHAIN).files, peer)
    assert f"{peer.where}blocks/{theirs.head}" in str(caught.value)
    peer.close()


def test_a_hint_that_cannot_be_written_is_a_note(store: SmallS3, bucket: Store, tmp_path: Path) -> None:
    store.before = lambda method, path: 403 if "hints/" in path else None
    source, meter = local(tmp_path, CHAIN), Meter()
    outcome = push_dataset(source.files, bucket, PushOptions(progress=meter))
    assert (outcome.num_blocks, outcome.caveat) == (4, None)
    assert store.objects["bucket/x/refs/head"] == str(source.head).encode()
    assert ["hint" in note for note in meter.notes] == [True]
