"""Partial copies: the chain is whole, slices are missing on purpose, and anybody may supply them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import CorruptedPeerError, StoreError, TransferError, UsageError
from odfchain.odf.names import DatasetAlias
from odfchain.storage.public_layout import ObjectKey
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
MORE = [*LABELS, "d5", "d6", "d7"]


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path)


def pull(workspace: WorkspaceFiles, chain: Chain, **options: Any) -> SyncOutcome:
    return pull_dataset(
        workspace, Store(MemoryPeer(chain)), DatasetAlias.parse("name"), SyncOptions(**options)
    )


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
    chain = chain_of(LABELS)
    found = pull(workspace, chain, **options)
    dataset = workspace.dataset("name")
    assert [b.hash for b in dataset.chain.walk()] == chain.hashes[::-1]
    assert files_here(dataset) == files_of(chain, *brought)
    assert is_partial(dataset)
    assert found.missing_slices == len(missing_slices(dataset)) == 4 - len(brought)
    assert Selection.marked(dataset) == Selection(**options)


def test_a_whole_copy_is_not_partial_and_misses_nothing(workspace: WorkspaceFiles) -> None:
    pull(workspace, chain_of(LABELS))
    dataset = workspace.dataset("name")
    assert (is_partial(dataset), missing_objects(dataset)) == (False, [])
    assert Selection.marked(dataset) == EVERYTHING


def test_what_is_missing_is_known_by_offsets_and_size(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain, last=2)
    found = missing_slices(workspace.dataset("name"))
    assert [m.key for m in found] == [
        ObjectKey.parse(key) for label in ("d1", "d2") for key in files_of(chain, label) if "data" in key
    ]
    assert [(m.offsets.start, m.offsets.end) for m in found if m.offsets] == [
        (0, ROWS - 1),
        (ROWS, 2 * ROWS - 1),
    ]
    assert [m.size for m in found] == [len(b"slice d1")] * 2
    assert [m.sequence_number for m in found] == [2, 3]


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
    pull(workspace, chain_of(LABELS), **options)
    chain = chain_of(MORE)
    found = pull(workspace, chain)
    dataset = workspace.dataset("name")
    assert files_here(dataset) == files_of(chain, *brought)
    assert found.missing_slices == 7 - len(brought)
    assert Selection.marked(dataset) == Selection(**options)


def test_a_later_pull_with_other_options_changes_what_is_asked_for(workspace: WorkspaceFiles) -> None:
    pull(workspace, chain_of(LABELS), metadata_only=True)
    chain = chain_of(MORE)
    pull(workspace, chain, last=2)
    dataset = workspace.dataset("name")
    assert files_here(dataset) == files_of(chain, "d6", "d7")
    assert Selection.marked(dataset) == Selection(last=2)


def test_a_whole_copy_becomes_partial_only_when_the_pull_succeeds(workspace: WorkspaceFiles) -> None:
    pull(workspace, chain_of(LABELS))
    dataset = workspace.dataset("name")
    chain = chain_of(MORE)
    peer = MemoryPeer(chain)
    peer.replaced[chain.files[-1]] = None
    with pytest.raises(CorruptedPeerError):
        pull_dataset(workspace, Store(peer), dataset.alias, SyncOptions(last=1))
    assert not is_partial(dataset)
    pull(workspace, chain, last=1)
    assert is_partial(dataset)
    assert len(missing_slices(dataset)) == 2


def test_an_interrupted_partial_pull_does_not_bind_the_next(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    peer = MemoryPeer(chain)
    peer.cut[chain.files[-1]] = 3
    with pytest.raises(TransferError):
        pull_dataset(workspace, Store(peer), DatasetAlias.parse("name"), SyncOptions(last=1))
    pull(workspace, chain)
    dataset = workspace.dataset("name")
    assert (is_partial(dataset), missing_objects(dataset)) == (False, [])


def test_missing_slices_come_from_any_peer_by_hash_alone(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain, metadata_only=True)
    dataset = workspace.dataset("name")
    mirror = MemoryPeer(Chain(objects={key: chain.objects[key] for key in chain.files}))
    found = fetch_missing(dataset, Store(mirror))
    assert sorted(mirror.requests) == sorted(str(key) for key in chain.files)
    assert (found.objects, found.missing_slices) == (8, 0)
    assert found.bytes == sum(len(chain.objects[key]) for key in chain.files)
    assert not is_partial(dataset)
    assert missing_objects(dataset) == []
    assert pull(workspace, chain).status is SyncStatus.UP_TO_DATE


def test_some_missing_slices_leave_the_copy_partial(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain, last=1)
    dataset = workspace.dataset("name")
    assert fetch_missing(dataset, Store(MemoryPeer(chain)), Selection(last=2)).missing_slices == 2
    assert files_here(dataset) == files_of(chain, "d3", "d4")
    assert fetch_missing(dataset, Store(MemoryPeer(chain)), Selection(since=time_of(3))).missing_slices == 1
    assert Selection.marked(dataset) == Selection(last=1)
    assert fetch_missing(dataset, Store(MemoryPeer(chain))).missing_slices == 0
    assert not is_partial(dataset)


def test_nothing_is_asked_for_when_nothing_is_missing(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain)
    peer = MemoryPeer(chain)
    assert fetch_missing(workspace.dataset("name"), Store(peer)).objects == 0
    assert peer.requests == []


def test_a_mirror_that_lies_changes_nothing_and_the_next_one_continues(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain, metadata_only=True)
    dataset = workspace.dataset("name")
    before = tree_of(dataset.folder)
    liar = MemoryPeer(chain)
    liar.replaced[chain.files[-1]] = b"x" * len(chain.objects[chain.files[-1]])
    with pytest.raises(CorruptedPeerError, match=f"memory://peer/{chain.files[-1]}: "):
        fetch_missing(dataset, Store(liar), parallel=1)
    assert tree_of(dataset.folder) == before
    assert is_partial(dataset)
    honest = MemoryPeer(chain)
    assert fetch_missing(dataset, Store(honest)).missing_slices == 0
    assert honest.requests == [str(chain.files[-1])]


def test_a_truncated_slice_counts_as_missing_and_is_repaired(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain)
    dataset = workspace.dataset("name")
    (key,) = [key for key in chain.files if chain.objects[key] == b"slice d2"]
    (dataset.folder / str(key)).write_bytes(b"sli")
    assert [m.key for m in missing_slices(dataset)] == [key]
    fetch_missing(dataset, Store(MemoryPeer(chain)))
    assert (dataset.folder / str(key)).read_bytes() == b"slice d2"


def test_the_mark_is_small_and_readable(workspace: WorkspaceFiles) -> None:
    pull(workspace, chain_of(LABELS), since=time_of(3), last=2)
    path = mark_path(workspace.dataset("name"))
    assert json.loads(path.read_text()) == {"metadataOnly": False, "since": str(time_of(3)), "last": 2}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 4000,
        b'{"last": 0}',
        b'{"last": "1"}',
        b'{"metadataOnly": 1}',
        b'{"since": "yesterday"}',
        b'{"metadataOnly": true, "last": 1}',
        b'{"more": 1}',
    ],
)
def test_a_damaged_mark_is_an_error_that_names_the_file(content: bytes, workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain, last=1)
    dataset = workspace.dataset("name")
    mark_path(dataset).write_bytes(content)
    before = tree_of(dataset.folder)
    with pytest.raises(StoreError, match=f"{mark_path(dataset)}: the mark of a partial copy is damaged"):
        pull(workspace, chain_of(MORE))
    assert tree_of(dataset.folder) == before


@pytest.mark.parametrize("options", [{"last": 0}, {"metadata_only": True, "last": 1}])
def test_a_selection_that_contradicts_itself_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SyncOptions(**options)
