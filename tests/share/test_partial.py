"""Partial copies: the chain is whole, slices are missing on purpose, and anybody may supply them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from odfchain.errors import CorruptedPeerError, StoreError, TransferError, UsageError
from odfchain.odf.names import DatasetAlias
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncOptions, SyncOutcome, SyncStatus, fetch_missing, pull_dataset
from odfchain.transfer.slice_files import (
    EVERYTHING,
    DataObject,
    Selection,
    is_partial,
    mark_path,
    missing_objects,
)
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.memory_peer import MemoryPeer
from tests.kit.scenario import ROWS, Chain, chain_of, time_of
from tests.kit.support import tree_of

LABELS = ["seed", "schema", "d1", "d2", "note", "d3", "d4"]
CHAIN = chain_of(LABELS)
GROWN = chain_of([*LABELS, "d5", "d6", "d7"])


def pull(workspace: WorkspaceFiles, source: Chain | MemoryPeer, **options: Any) -> SyncOutcome:
    peer = Store(MemoryPeer(source) if isinstance(source, Chain) else source)
    return pull_dataset(workspace, peer, DatasetAlias.parse("name"), SyncOptions(**options))


def copied(workspace: WorkspaceFiles, **options: Any) -> DatasetFiles:
    """A copy of `CHAIN`."""
    pull(workspace, CHAIN, **options)
    return workspace.dataset("name")


def files_of(chain: Chain, *labels: str) -> set[str]:
    """The keys of the slices and checkpoints that these labels brought."""
    bodies = {f"{kind} {label}".encode() for label in labels for kind in ("slice", "checkpoint")}
    return {str(key) for key in chain.files if chain.objects[key] in bodies}


def missing_slices(dataset: DatasetFiles) -> list[DataObject]:
    return [item for item in missing_objects(dataset) if item.offsets is not None]


def files_here(dataset: DatasetFiles) -> set[str]:
    return {key for key in tree_of(dataset.folder) if key.startswith(("data/", "checkpoints/"))}


@pytest.mark.parametrize(
    ("options", "brought"),
    [
        ({"metadata_only": True}, []),
        ({"last": 1}, ["d4"]),
        ({"last": 2}, ["d3", "d4"]),
        ({"last": 99}, ["d1", "d2", "d3", "d4"]),
        ({"since": time_of(5)}, ["d3", "d4"]),
        ({"since": time_of(4)}, ["d3", "d4"]),
        ({"since": time_of(99)}, []),
        ({"since": time_of(3), "last": 3}, ["d2", "d3", "d4"]),
        ({"since": time_of(6), "last": 3}, ["d4"]),
    ],
    ids=str,
)
def test_a_partial_copy_has_the_whole_chain_and_what_was_asked_for(
    options: dict[str, Any], brought: list[str], workspace: WorkspaceFiles
) -> None:
    found = pull(workspace, CHAIN, **options)
    dataset = workspace.dataset("name")
    assert [b.hash for b in dataset.chain.walk()] == CHAIN.hashes[::-1]
    assert files_here(dataset) == files_of(CHAIN, *brought)
    assert is_partial(dataset)
    assert found.missing_slices == len(missing_slices(dataset)) == 4 - len(brought)
    assert Selection.marked(dataset) == Selection(**options)


def test_a_whole_copy_is_not_partial_and_misses_nothing(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace)
    assert (is_partial(dataset), missing_objects(dataset)) == (False, [])
    assert Selection.marked(dataset) == EVERYTHING


def test_what_is_missing_is_known_by_offsets_and_size(workspace: WorkspaceFiles) -> None:
    found = missing_slices(copied(workspace, last=2))
    keys = [key for label in ("d1", "d2") for key in files_of(CHAIN, label) if "data" in key]
    assert [str(m.key) for m in found] == keys
    offsets = [(m.offsets.start, m.offsets.end) for m in found if m.offsets]
    assert offsets == [(0, ROWS - 1), (ROWS, 2 * ROWS - 1)]
    assert [(m.size, m.sequence_number) for m in found] == [(len(b"slice d1"), 2), (len(b"slice d2"), 3)]


@pytest.mark.parametrize(
    ("options", "brought"),
    [
        ({"metadata_only": True}, []),
        ({"last": 1}, ["d4", "d7"]),
        ({"last": 9}, ["d1", "d2", "d3", "d4", "d5", "d6", "d7"]),
        ({"since": time_of(6)}, ["d4", "d5", "d6", "d7"]),
    ],
    ids=str,
)
def test_a_later_pull_keeps_to_what_was_asked_for(
    options: dict[str, Any], brought: list[str], workspace: WorkspaceFiles
) -> None:
    dataset = copied(workspace, **options)
    found = pull(workspace, GROWN)
    assert files_here(dataset) == files_of(GROWN, *brought)
    assert found.missing_slices == 7 - len(brought)
    assert Selection.marked(dataset) == Selection(**options)


def test_a_later_pull_with_other_options_changes_what_is_asked_for(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace, metadata_only=True)
    pull(workspace, GROWN, last=2)
    assert files_here(dataset) == files_of(GROWN, "d6", "d7")
    assert Selection.marked(dataset) == Selection(last=2)


def test_a_whole_copy_becomes_partial_only_when_the_pull_succeeds(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace)
    peer = MemoryPeer(GROWN)
    peer.replaced[GROWN.files[-1]] = None
    with pytest.raises(CorruptedPeerError):
        pull(workspace, peer, last=1)
    assert not is_partial(dataset)
    pull(workspace, GROWN, last=1)
    assert is_partial(dataset)
    assert len(missing_slices(dataset)) == 2


def test_an_interrupted_partial_pull_does_not_bind_the_next(workspace: WorkspaceFiles) -> None:
    peer = MemoryPeer(CHAIN)
    peer.cut[CHAIN.files[-1]] = 3
    with pytest.raises(TransferError):
        pull(workspace, peer, last=1)
    dataset = copied(workspace)
    assert (is_partial(dataset), missing_objects(dataset)) == (False, [])


def test_missing_slices_come_from_any_peer_by_hash_alone(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace, metadata_only=True)
    mirror = MemoryPeer(Chain(objects={key: CHAIN.objects[key] for key in CHAIN.files}))
    found = fetch_missing(dataset, Store(mirror))
    assert sorted(mirror.requests) == sorted(str(key) for key in CHAIN.files)
    assert (found.objects, found.missing_slices) == (8, 0)
    assert found.bytes == sum(len(CHAIN.objects[key]) for key in CHAIN.files)
    assert not is_partial(dataset)
    assert missing_objects(dataset) == []
    assert pull(workspace, CHAIN).status is SyncStatus.UP_TO_DATE


def test_some_missing_slices_leave_the_copy_partial(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace, last=1)
    assert fetch_missing(dataset, Store(MemoryPeer(CHAIN)), Selection(last=2)).missing_slices == 2
    assert files_here(dataset) == files_of(CHAIN, "d3", "d4")
    assert fetch_missing(dataset, Store(MemoryPeer(CHAIN)), Selection(since=time_of(3))).missing_slices == 1
    assert Selection.marked(dataset) == Selection(last=1)
    assert fetch_missing(dataset, Store(MemoryPeer(CHAIN))).missing_slices == 0
    assert not is_partial(dataset)


def test_nothing_is_asked_for_when_nothing_is_missing(workspace: WorkspaceFiles) -> None:
    peer = MemoryPeer(CHAIN)
    assert fetch_missing(copied(workspace), Store(peer)).objects == 0
    assert peer.requests == []


def test_a_mirror_that_lies_changes_nothing_and_the_next_one_continues(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace, metadata_only=True)
    before = tree_of(dataset.folder)
    liar = MemoryPeer(CHAIN)
    liar.replaced[CHAIN.files[-1]] = b"x" * len(CHAIN.objects[CHAIN.files[-1]])
    with pytest.raises(CorruptedPeerError, match=f"memory://peer/{CHAIN.files[-1]}: "):
        fetch_missing(dataset, Store(liar), parallel=1)
    assert tree_of(dataset.folder) == before
    assert is_partial(dataset)
    honest = MemoryPeer(CHAIN)
    assert fetch_missing(dataset, Store(honest)).missing_slices == 0
    assert honest.requests == [str(CHAIN.files[-1])]


def test_a_truncated_slice_counts_as_missing_and_is_repaired(workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace)
    (key,) = [key for key in CHAIN.files if CHAIN.objects[key] == b"slice d2"]
    (dataset.folder / str(key)).write_bytes(b"sli")
    assert [m.key for m in missing_slices(dataset)] == [key]
    fetch_missing(dataset, Store(MemoryPeer(CHAIN)))
    assert (dataset.folder / str(key)).read_bytes() == b"slice d2"


def test_the_mark_is_small_and_readable(workspace: WorkspaceFiles) -> None:
    path = mark_path(copied(workspace, since=time_of(3), last=2))
    assert json.loads(path.read_text()) == {"metadataOnly": False, "since": str(time_of(3)), "last": 2}


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b"[" * 4000, b'{"last": 0}', b'{"last": "1"}', b'{"metadataOnly": 1}',
     b'{"since": "yesterday"}', b'{"metadataOnly": true, "last": 1}', b'{"more": 1}'],
)  # fmt: skip
def test_a_damaged_mark_is_an_error_that_names_the_file(content: bytes, workspace: WorkspaceFiles) -> None:
    dataset = copied(workspace, last=1)
    mark_path(dataset).write_bytes(content)
    before = tree_of(dataset.folder)
    with pytest.raises(StoreError, match=f"{mark_path(dataset)}: the mark of a partial copy is damaged"):
        pull(workspace, GROWN)
    assert tree_of(dataset.folder) == before


@pytest.mark.parametrize("options", [{"last": 0}, {"metadata_only": True, "last": 1}])
def test_a_selection_that_contradicts_itself_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SyncOptions(**options)
