"""Sharing from Python: references, remembered places, and what a plain pull of a dataset means."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import add_slice, make_dataset
from support import derivative, manifest, unchanged

from odfchain import Workspace
from odfchain.dataset.files import DatasetFiles
from odfchain.errors import DatasetNotFoundError, RollbackError, UsageError, WorkspaceError
from odfchain.ids.names import RepoName
from odfchain.share.aliases import AliasKind
from odfchain.share.partial import LocalSlices
from odfchain.share.sync import SyncOptions, SyncStatus
from odfchain.workspace.workspace import WorkspaceFiles

POLLED = manifest().replace(
    "AddPushSource\n      sourceName: default", "SetPollingSource\n      fetch: {kind: Url, url: 'file:///x'}"
)


@pytest.fixture
def theirs(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "theirs")


@pytest.fixture
def mine(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "mine")


@pytest.fixture
def cities(tmp_path: Path, theirs: Workspace) -> DatasetFiles:
    return make_dataset(WorkspaceFiles(theirs.path), "cities", 100, 200)


@pytest.fixture
def shelf(tmp_path: Path, theirs: Workspace, mine: Workspace, cities: DatasetFiles) -> str:
    """The URL of a folder that has the dataset; a repository of both."""
    for workspace in (theirs, mine):
        workspace.sharing.repositories.add(RepoName("shelf"), (tmp_path / "shelf").as_uri())
    theirs.sharing.push("cities", "shelf")
    return f"{(tmp_path / 'shelf').as_uri()}/cities"


def test_a_reference_and_its_url_are_one_place(mine: Workspace, shelf: str, cities: DatasetFiles) -> None:
    pulled = mine.sharing.pull("shelf/cities", "towns")
    assert (str(pulled.alias), pulled.where) == ("towns", f"{shelf}/")
    assert (pulled.outcome.status, pulled.outcome.new) == (SyncStatus.CREATED, cities.chain.head())
    again = mine.sharing.pull(shelf)
    assert (str(again.alias), again.outcome.status) == ("towns", SyncStatus.UP_TO_DATE)
    assert mine.sharing.aliases("towns", AliasKind.PULL) == (f"{shelf}/", "shelf/cities")
    assert mine.sharing.pull("TOWNS").outcome.status is SyncStatus.UP_TO_DATE
    assert mine.dataset("towns").head == cities.chain.head()


def test_what_fails_is_not_remembered(mine: Workspace, theirs: Workspace, shelf: str) -> None:
    mine.sharing.pull(shelf)
    before = mine.sharing.aliases("cities", AliasKind.PULL)
    with pytest.raises(DatasetNotFoundError, match="there is no dataset"):
        mine.sharing.pull("shelf/nothing", "cities")
    with pytest.raises(WorkspaceError, match="no repository is called 'elsewhere'"):
        mine.sharing.push("cities", "elsewhere/cities")
    mine.sharing.plan_push("cities", "shelf")
    assert mine.sharing.aliases("cities", AliasKind.PULL) == before
    assert mine.sharing.aliases("cities", AliasKind.PUSH) == ()


def test_a_forgotten_repository_or_damaged_settings_of_another_dataset_do_not_matter(
    mine: Workspace, theirs: Workspace, shelf: str
) -> None:
    make_dataset(WorkspaceFiles(theirs.path), "lakes", 10)
    theirs.sharing.push("lakes", "shelf")
    mine.sharing.pull("shelf/cities")
    (mine.dataset("cities").path / "info" / "config").write_text("{")
    assert mine.sharing.pull(shelf.replace("cities", "lakes")).outcome.status is SyncStatus.CREATED


def test_what_cannot_be_meant(mine: Workspace, shelf: str) -> None:
    mine.add(POLLED.replace("name: cities", "name: own"), check=False)
    mine.sharing.pull(shelf)
    with pytest.raises(UsageError, match="it is not known where own comes from"):
        mine.sharing.pull("own")
    with pytest.raises(UsageError, match="cities is here already"):
        mine.sharing.pull("cities", "towns")
    with pytest.raises(DatasetNotFoundError, match="'shelves/cities', and no repository 'shelves'"):
        mine.sharing.pull("shelves/cities")


def test_a_peer_that_went_back_is_refused_until_force(
    mine: Workspace, theirs: Workspace, shelf: str, tmp_path: Path, cities: DatasetFiles
) -> None:
    old = (tmp_path / "shelf" / "cities" / "refs" / "head").read_bytes()
    add_slice(cities, 10)
    theirs.sharing.push("cities")
    mine.sharing.pull(shelf)
    (tmp_path / "shelf" / "cities" / "refs" / "head").write_bytes(old)
    with unchanged(mine.dataset("cities").path), pytest.raises(RollbackError, match="an older chain"):
        mine.sharing.pull("cities")
    forced = mine.sharing.pull("cities", options=SyncOptions(force=True))
    assert forced.outcome.status is SyncStatus.OVERWRITTEN


def test_only_what_was_not_made_here_is_a_copy(mine: Workspace, theirs: Workspace, shelf: str) -> None:
    theirs.add(
        POLLED.replace("name: cities", "name: polled") + "---\n" + derivative(name="made"), check=False
    )
    for name in ("polled", "made"):
        theirs.sharing.push(name, "shelf")
        theirs.sharing.add_alias(name, AliasKind.PULL, f"shelf/{name}")
        mine.sharing.pull(f"shelf/{name}")
        assert mine.sharing.is_copy(name), "its source and its query are its owner's business"
        assert not theirs.sharing.is_copy(name), "it is continued here; the peer only has a backup"
    assert not theirs.sharing.is_copy("cities")
    theirs.sharing.add_alias("cities", AliasKind.PULL, shelf)
    assert theirs.sharing.is_copy("cities"), "there is nothing else to pull it from"
    assert [str(d.alias) for d in mine.with_upstream([mine.dataset("made")])] == ["made"]
    assert {str(d.alias) for d in theirs.with_upstream([theirs.dataset("made")])} == {"made", "cities"}


def test_the_slices_of_a_partial_copy_are_counted(mine: Workspace, shelf: str) -> None:
    mine.sharing.pull(shelf, options=SyncOptions(last=1))
    assert mine.sharing.slices("cities") == LocalSlices(present=1, total=2)
    assert mine.sharing.fetch("cities").missing_slices == 0
    assert mine.sharing.slices("cities") is None
