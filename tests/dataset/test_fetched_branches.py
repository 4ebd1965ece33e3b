"""What is known of branches that came from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.branches.branches import delete_branch, rename_branch
from odfchain.errors import StoreError
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import (
    FetchedBranch,
    fetched_branch,
    fetched_branches,
    is_known_here,
    mark_verified,
    remember_fetched,
    unverified,
)
from odfchain.workspace.options import GcOptions
from tests.kit.branched_dataset import fork, write
from tests.kit.upkeep_scenes import head_of, later, new_workspace, root


@pytest.fixture
def cities(tmp_path: Path) -> DatasetFiles:
    return root(new_workspace(tmp_path), slices=2)


def test_what_was_fetched_is_unknown_until_it_was_verified_on_whatever_branch(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    first, second = write(theirs, "a"), write(theirs, "b")
    entry = FetchedBranch("theirs", "https://peer/cities", second, start)
    assert is_known_here(cities, start, second, owner=True)
    remember_fetched(cities, entry)
    assert fetched_branch(cities, "theirs") == entry
    assert not is_known_here(cities, start, second, owner=True)
    assert is_known_here(cities, start, start, owner=True)
    mine = fork(cities, "mine", at=first)
    own = write(mine, "c")
    assert not is_known_here(cities, start, own, owner=True)
    assert is_known_here(cities, first, own, owner=True)
    (part,) = unverified(cities, own)
    assert (part.after, part.upto) == (start, first)
    mark_verified(cities, entry, first)
    assert unverified(cities, own) == []
    assert [part.after for part in unverified(cities, second)] == [first]
    assert is_known_here(cities, start, own, owner=True)
    assert not is_known_here(cities, start, second, owner=True)


def test_the_head_of_a_copy_was_made_elsewhere(cities: DatasetFiles) -> None:
    first = head_of(cities)
    mine = fork(cities, "mine")
    own, pulled = write(mine, "c"), write(cities, "d")
    assert not is_known_here(cities, first, pulled, owner=False)
    assert is_known_here(cities, first, own, owner=False)
    assert is_known_here(cities, first, pulled, owner=True)


def test_what_is_known_goes_with_the_name_and_outlives_it_while_it_matters(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    block = write(theirs, "a")
    remember_fetched(cities, FetchedBranch("theirs", "u", block, start))
    rename_branch(cities, "theirs", "proposed")
    assert fetched_branch(cities, "theirs") is None
    assert fetched_branch(cities, "proposed") is not None
    delete_branch(cities, "proposed", force=True)
    (entry,) = fetched_branches(cities)
    assert (entry.branch, entry.block) == (None, block)
    assert not is_known_here(cities, start, block, owner=True)
    collect(cities, GcOptions(drop_refs=True), now=later)
    assert fetched_branches(cities) == ()


def test_fetching_again_keeps_what_was_verified_apart(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    first = write(theirs, "a")
    entry = FetchedBranch("theirs", "u", first, start)
    remember_fetched(cities, entry)
    mark_verified(cities, entry, first)
    second = write(theirs, "b")
    remember_fetched(cities, FetchedBranch("theirs", "u", second, first))
    assert [found.block for found in fetched_branches(cities)] == [second]
    assert not is_known_here(cities, first, second, owner=True)


@pytest.mark.parametrize("text", ["", "1", "[1]", '[{"branch": "A", "from": "u", "block": "x"}]', "[" * 9999])
def test_damage_is_named(cities: DatasetFiles, text: str) -> None:
    path = cities.folder / "info" / "branches.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"branches\.json"):
        fetched_branches(cities)
