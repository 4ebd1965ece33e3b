"""What is known of branches that came from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.branches.branches import Branches
from odfchain.errors import StoreError
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import FetchedBranch, FetchedBranches
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
    assert FetchedBranches(cities).is_known_here(start, second, owner=True)
    FetchedBranches(cities).remember(entry)
    assert FetchedBranches(cities).find("theirs") == entry
    assert not FetchedBranches(cities).is_known_here(start, second, owner=True)
    assert FetchedBranches(cities).is_known_here(start, start, owner=True)
    mine = fork(cities, "mine", at=first)
    own = write(mine, "c")
    assert not FetchedBranches(cities).is_known_here(start, own, owner=True)
    assert FetchedBranches(cities).is_known_here(first, own, owner=True)
    (part,) = FetchedBranches(cities).unverified(own)
    assert (part.after, part.upto) == (start, first)
    FetchedBranches(cities).mark_verified(entry, first)
    assert FetchedBranches(cities).unverified(own) == []
    assert [part.after for part in FetchedBranches(cities).unverified(second)] == [first]
    assert FetchedBranches(cities).is_known_here(start, own, owner=True)
    assert not FetchedBranches(cities).is_known_here(start, second, owner=True)


def test_the_head_of_a_copy_was_made_elsewhere(cities: DatasetFiles) -> None:
    first = head_of(cities)
    mine = fork(cities, "mine")
    own, pulled = write(mine, "c"), write(cities, "d")
    assert not FetchedBranches(cities).is_known_here(first, pulled, owner=False)
    assert FetchedBranches(cities).is_known_here(first, own, owner=False)
    assert FetchedBranches(cities).is_known_here(first, pulled, owner=True)


def test_what_is_known_goes_with_the_name_and_outlives_it_while_it_matters(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    block = write(theirs, "a")
    FetchedBranches(cities).remember(FetchedBranch("theirs", "u", block, start))
    Branches(cities).rename("theirs", "proposed")
    assert FetchedBranches(cities).find("theirs") is None
    assert FetchedBranches(cities).find("proposed") is not None
    Branches(cities).delete("proposed", force=True)
    (entry,) = FetchedBranches(cities).entries()
    assert (entry.branch, entry.block) == (None, block)
    assert not FetchedBranches(cities).is_known_here(start, block, owner=True)
    collect(cities, GcOptions(drop_refs=True), now=later)
    assert FetchedBranches(cities).entries() == ()


def test_fetching_again_keeps_what_was_verified_apart(cities: DatasetFiles) -> None:
    start, theirs = head_of(cities), fork(cities, "theirs")
    first = write(theirs, "a")
    entry = FetchedBranch("theirs", "u", first, start)
    FetchedBranches(cities).remember(entry)
    FetchedBranches(cities).mark_verified(entry, first)
    second = write(theirs, "b")
    FetchedBranches(cities).remember(FetchedBranch("theirs", "u", second, first))
    assert [found.block for found in FetchedBranches(cities).entries()] == [second]
    assert not FetchedBranches(cities).is_known_here(first, second, owner=True)


@pytest.mark.parametrize("text", ["", "1", "[1]", '[{"branch": "A", "from": "u", "block": "x"}]', "[" * 9999])
def test_damage_is_named(cities: DatasetFiles, text: str) -> None:
    path = cities.folder / "info" / "branches.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"branches\.json"):
        FetchedBranches(cities).entries()
