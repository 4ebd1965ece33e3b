"""The commit order: slices, blocks, head. Whatever fails, the dataset is as it was or as it should be."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.errors import AppendError, RefConflictError, StorageFullError, StoreError
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.commits import T, make_dataset, run, transaction
from tests.kit.faults import faulty
from tests.kit.upkeep_scenes import head_of, killed_everywhere, new_workspace, root


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    return make_dataset(tmp_path / "dataset")


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if not p.name.startswith(".")}


def test_a_commit(dataset: DatasetFiles) -> None:
    run(dataset, b"one")
    run(dataset, b"two")
    state = DatasetState.read(dataset.chain)
    assert (state.record_count, state.head_block.sequence_number) == (2, 3)
    assert [dataset.data.get(ref.slice.physical_hash) for ref in state.slices()] == [b"one", b"two"]
    assert names(dataset.folder / "staging") == set()


def test_a_block_that_breaks_a_rule_publishes_nothing(dataset: DatasetFiles) -> None:
    state = DatasetState.read(dataset.chain)
    with dataset.staging() as staging:
        event, staged = transaction(staging, state, b"one")
        early = Timestamp.parse("1999-01-01T00:00:00Z")
        with pytest.raises(AppendError, match="system time"):
            commit(dataset, state, [event], [staged], system_time=early)
    assert names(dataset.folder / "data") == set()
    assert len(names(dataset.folder / "blocks")) == 2
    assert dataset.chain.head() == state.head


def test_the_slower_of_two_writers_changes_nothing(dataset: DatasetFiles) -> None:
    state = DatasetState.read(dataset.chain)
    run(dataset, b"faster")
    winner = dataset.chain.head()
    with dataset.staging() as staging:
        event, staged = transaction(staging, state, b"slower")
        with pytest.raises(RefConflictError):
            commit(dataset, state, [event], [staged], system_time=T)
    assert dataset.chain.head() == winner


@pytest.mark.parametrize(("error", "forever"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_fault_at_any_system_call(
    tmp_path: Path, error: int, forever: bool, record_property: Callable[[str, object], None]
) -> None:
    with faulty(None) as counter:
        run(make_dataset(tmp_path / "count"), b"data")
    refused = 0
    for fail_at in range(1, counter.count + 1):
        dataset = make_dataset(tmp_path / f"run{fail_at}")
        before = dataset.chain.head()
        with faulty(fail_at, error, forever=forever):
            try:
                run(dataset, b"data")
            except StoreError as caught:
                refused += 1
                assert isinstance(caught, StorageFullError) == (error == errno.ENOSPC)
                # The head moves last; only the sync of its folder comes after.
        head = dataset.chain.head()
        if head != before:
            state = DatasetState.read(dataset.chain)
            assert state.record_count == 1
            assert dataset.data.get(state.slices()[0].slice.physical_hash) == b"data"
        assert names(dataset.folder / "staging") == set()
        run(dataset, b"more")
        state = DatasetState.read(dataset.chain)
        assert dataset.data.get(state.slices()[-1].slice.physical_hash) == b"more"
    assert refused > 10
    record_property("calls", counter.count)


def test_a_killed_writer_leaves_the_old_or_the_new_state(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL at system call n, for every n: a reader never sees anything half-done, and of two slices both."""
    before = head_of(root(new_workspace(tmp_path / "template")))
    old = []
    for workspace in killed_everywhere(tmp_path / "template", tmp_path / "killed", "transaction"):
        dataset = workspace.dataset("cities")
        old.append(dataset.chain.head() == before)
        if not old[-1]:
            slices = DatasetState.read(dataset.chain).slices()
            assert [dataset.data.get(ref.slice.physical_hash) for ref in slices] == [b"data", b"rest"]
        for name in dataset.data.names():
            assert dataset.data.get(name) in (b"data", b"rest")
        run(dataset, b"more")  # locks of the dead are gone
        assert DatasetState.read(dataset.chain).record_count in (1, 3)
        assert names(dataset.folder / "staging") == set(), "what the dead left behind is gone too"
    assert old[:-1].count(True) > 3
    assert False in old[:-1]
    record_property("kills", len(old) - 1)
