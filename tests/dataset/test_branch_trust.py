"""What came from elsewhere is verified before a merge believes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from odfchain.api.branching import ensure_verified, trust_of
from odfchain.api.workspace import Workspace
from odfchain.audit import state_checks
from odfchain.errors import ObjectCorruptedError, StoreError
from odfchain.limits import AUDIT
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.transfer.slice_files import Selection
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import FetchedBranch, FetchedBranches
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.branched_dataset import fork, write
from tests.kit.recorded_dataset import add, slice_of
from tests.kit.upkeep_scenes import head_of, new_workspace, root


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    return new_workspace(tmp_path)


@pytest.fixture
def cities(workspace: WorkspaceFiles) -> DatasetFiles:
    return root(workspace, slices=2)


def correct(dataset: DatasetFiles, old: str, new: str) -> Multihash:
    """Records a correction, true or not."""
    state = DatasetState.read(dataset.chain)
    start = (state.last_offset or 0) + 1
    data = slice_of(dataset, start, [old, new], [2, 3], time=0)
    add(dataset, ev.AddData(prev_offset=start - 1, new_data=data, new_watermark=state.watermark))
    return head_of(dataset)


def fetched(dataset: DatasetFiles, after: Multihash) -> None:
    FetchedBranches(dataset).remember(FetchedBranch(dataset.ref, "https://peer/x", head_of(dataset), after))


def test_a_fetched_branch_is_verified_once_and_believed_then(
    workspace: WorkspaceFiles, cities: DatasetFiles
) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    write(theirs, "a")
    block = correct(theirs, "cities 0.0", "Zürich")
    fetched(theirs, start)
    trusted = trust_of(Workspace(workspace))
    assert not trusted(cities, start, block)
    ensure_verified(cities, block)
    assert trusted(cities, start, block)
    assert FetchedBranches(cities).entries()[0].is_verified
    lost = cities.chain.get(block).new_data
    (cities.folder / "data" / str(lost.physical_hash)).unlink()
    ensure_verified(cities, block)


def test_case_54_a_forged_old_value_in_a_fetched_branch_is_a_fault(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    block = correct(theirs, "never recorded", "Zürich")
    fetched(theirs, start)
    with pytest.raises(ObjectCorruptedError, match="takes back values that no row in force has") as caught:
        ensure_verified(cities, block)
    assert caught.value.exit_code == 6
    assert "theirs, which came from https://peer/x" in str(caught.value)
    assert not FetchedBranches(cities).entries()[0].is_verified
    mine = fork(cities, "mine", at=block)  # under another name it is as bad
    with pytest.raises(ObjectCorruptedError):
        ensure_verified(cities, write(mine, "c"))
    ensure_verified(cities, start)


def test_what_cannot_be_verified_is_not_believed(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    first = cities.chain.get(start).new_data
    block = correct(theirs, "cities 0.0", "Zürich")
    fetched(theirs, start)
    assert first is not None
    Selection(metadata_only=True).mark(cities)
    (cities.folder / "data" / str(first.physical_hash)).unlink()
    with pytest.raises(StoreError, match="could not be verified") as caught:
        ensure_verified(cities, block)
    assert "odfchain fetch cities" in str(caught.value.hint)


def test_what_takes_back_more_than_can_be_compared_is_looked_up_instead(
    workspace: WorkspaceFiles, cities: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_checks, "AUDIT", dataclasses.replace(AUDIT, retractions=1))
    start, theirs = head_of(cities), fork(cities, "theirs")
    correct(theirs, "cities 0.0", "Zürich")
    block = correct(theirs, "never recorded", "Zürich")
    fetched(theirs, start)
    ensure_verified(cities, block)
    assert not trust_of(Workspace(workspace))(cities, start, block)


def test_what_was_made_here_is_not_verified(cities: DatasetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fork(cities, "mine")
    block = correct(mine, "never recorded", "Zürich")
    ensure_verified(cities, block)
