"""A peer cannot send anybody back: the newest block that was seen is remembered."""

from __future__ import annotations

import pytest

from odfchain.errors import ChainsDifferError, StoreError
from odfchain.odf import events as ev
from odfchain.odf.identity import encode_base16
from odfchain.odf.names import DatasetAlias
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncOptions, SyncOutcome, SyncStatus, pull_dataset
from odfchain.transfer.signed_statements import Seen, SeenHeads
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.memory_peer import MemoryPeer
from tests.kit.scenario import Chain, chain_of, extend, install
from tests.kit.support import seeded_id, unchanged

ID = seeded_id("seed")
LABELS = ["seed", "schema", "d1", "d2"]


def pull(workspace: WorkspaceFiles, chain: Chain, **options: bool) -> SyncOutcome:
    name = DatasetAlias.parse("name")
    return pull_dataset(workspace, Store(MemoryPeer(chain)), name, SyncOptions(**options))


def memory(workspace: WorkspaceFiles) -> SeenHeads:
    return SeenHeads(workspace.root / "seen")


def test_a_pull_remembers_the_head(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain)
    path = workspace.root / "seen" / encode_base16(ID.to_bytes())
    assert path.read_text() == f"3 {chain.head}"
    assert memory(workspace).get(ID) == Seen(3, chain.head)
    assert memory(workspace).get(seeded_id("other")) is None


def test_a_pull_that_fails_remembers_nothing(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    chain.append(ev.SetInfo(description="x"), sequence_number=9)
    with pytest.raises(Exception, match="sequence number"):
        pull(workspace, chain)
    assert memory(workspace).get(ID) is None


def test_an_older_head_is_refused_also_after_the_dataset_was_deleted(workspace: WorkspaceFiles) -> None:
    newest, older = chain_of(LABELS), chain_of(LABELS[:2])
    pull(workspace, newest)
    dataset = workspace.dataset("name")
    says = "memory://peer/ offers an older chain than was seen"
    with unchanged(dataset.folder), pytest.raises(ChainsDifferError, match=says) as found:
        pull(workspace, older)
    error = found.value
    assert (error.source_head, error.destination_head) == (str(older.head), str(newest.head))
    assert (error.source_blocks, error.destination_blocks, error.common) == (0, 2, str(older.head))
    assert str(older.head)[:17] in str(error)
    assert str(newest.head)[:17] in str(error)

    workspace.delete(dataset)
    with pytest.raises(ChainsDifferError, match="an older chain") as found:
        pull(workspace, older)
    assert (found.value.source_blocks, found.value.destination_blocks) == (0, 2)
    assert list(workspace.datasets()) == []
    assert list((workspace.root / "incoming").glob("[!.]*")) == []
    assert memory(workspace).get(ID) == Seen(3, newest.head)


@pytest.mark.parametrize("more", [[], ["d3", "d4", "d5"]], ids=["as-long", "longer"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_fork_is_refused_however_long_it_is(
    more: list[str], deleted: bool, workspace: WorkspaceFiles
) -> None:
    pull(workspace, chain_of(LABELS))
    if deleted:
        workspace.delete(workspace.dataset("name"))
    fork = chain_of(["seed", "schema", "d1", "forged", *more])
    says = r"offers another chain .* which it does not contain"
    with pytest.raises(ChainsDifferError, match=says) as found:
        pull(workspace, fork)
    if not deleted:
        assert (found.value.source_blocks, found.value.destination_blocks) == (1 + len(more), 1)
        assert found.value.common == str(fork.hashes[2])
    assert "--force" in str(found.value.hint)


def test_a_chain_that_contains_what_was_seen_is_pulled_again(workspace: WorkspaceFiles) -> None:
    pull(workspace, chain_of(LABELS[:3]))
    workspace.delete(workspace.dataset("name"))
    assert pull(workspace, chain_of([*LABELS, "d3"])).status is SyncStatus.CREATED


def test_an_older_head_is_refused_also_where_the_local_head_is_as_old(workspace: WorkspaceFiles) -> None:
    newest, older = chain_of(LABELS), chain_of(LABELS[:2])
    pull(workspace, newest)
    dataset = workspace.dataset("name")
    extend(dataset, older)  # the user went back
    with pytest.raises(ChainsDifferError, match="than was seen"):
        pull(workspace, older)
    assert pull(workspace, newest).status is SyncStatus.UPDATED


def test_force_accepts_an_older_head_and_forgets_the_newer(workspace: WorkspaceFiles) -> None:
    newest, older = chain_of(LABELS), chain_of(LABELS[:2])
    pull(workspace, newest)
    assert pull(workspace, older, force=True).status is SyncStatus.OVERWRITTEN
    assert memory(workspace).get(ID) == Seen(1, older.head)
    assert pull(workspace, older).status is SyncStatus.UP_TO_DATE


def test_blocks_of_ones_own_are_no_rollback(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS[:3])
    pull(workspace, chain)
    extend(workspace.dataset("name"), chain_of(LABELS))
    with pytest.raises(ChainsDifferError, match=r"has not|of a later"):
        pull(workspace, chain)


def test_a_head_that_was_never_pulled_is_remembered_when_it_is_met(workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    install(workspace, "name", chain)
    assert pull(workspace, chain).status is SyncStatus.UP_TO_DATE
    assert memory(workspace).get(ID) == Seen(3, chain.head)


@pytest.mark.parametrize(
    "content", [b"", b"3", b"3 f16", b"-1 f1620" + b"0" * 64, b"3 f1620" + b"0" * 64 + b"\n", b"\xff" * 300]
)
def test_a_damaged_memory_is_no_empty_memory(content: bytes, workspace: WorkspaceFiles) -> None:
    chain = chain_of(LABELS)
    pull(workspace, chain)
    path = workspace.root / "seen" / encode_base16(ID.to_bytes())
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"{path}: the memory of the newest block seen is damaged") as found:
        pull(workspace, chain)
    assert str(path) in (found.value.hint or "")
    assert path.read_bytes() == content
    path.unlink()
    assert pull(workspace, chain).status is SyncStatus.UP_TO_DATE
