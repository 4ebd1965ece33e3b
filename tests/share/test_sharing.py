"""Sharing from Python: references, remembered places, and what a plain pull of a dataset means."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain import Workspace
from odfchain.errors import (
    CorruptedPeerError,
    DatasetNotFoundError,
    ManifestError,
    NameCollisionError,
    UnsupportedPeerError,
    UsageError,
    WorkspaceError,
)
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.names import RepoName
from odfchain.transfer import repositories
from odfchain.transfer.pulling import SyncStatus
from odfchain.transfer.repositories import RepositoryEntry
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.sharing import Sharing
from tests.kit.support import derivative, manifest

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
    Sharing(theirs._files).push("cities", "shelf")
    return f"{(tmp_path / 'shelf').as_uri()}/cities"


def test_a_reference_and_its_url_are_one_place(mine: Workspace, shelf: str, cities: DatasetFiles) -> None:
    pulled = Sharing(mine._files).pull("shelf/cities", "towns")
    assert (str(pulled.alias), pulled.where) == ("towns", f"{shelf}/")
    assert (pulled.outcome.status, pulled.outcome.new) == (SyncStatus.CREATED, cities.chain.head())
    again = Sharing(mine._files).pull(shelf)
    assert (str(again.alias), again.outcome.status) == ("towns", SyncStatus.UP_TO_DATE)
    assert mine["towns"].aliases("pull") == (f"{shelf}/", "shelf/cities")
    assert Sharing(mine._files).pull("TOWNS").outcome.status is SyncStatus.UP_TO_DATE
    assert mine["towns"].head == cities.chain.head()


def test_what_fails_is_not_remembered(mine: Workspace, theirs: Workspace, shelf: str) -> None:
    Sharing(mine._files).pull(shelf)
    before = mine["cities"].aliases("pull")
    with pytest.raises(DatasetNotFoundError, match="there is no dataset"):
        Sharing(mine._files).pull("shelf/nothing", "cities")
    with pytest.raises(WorkspaceError, match="no repository is called 'elsewhere'"):
        Sharing(mine._files).push("cities", "elsewhere/cities")
    Sharing(mine._files).plan_push("cities", "shelf")
    assert mine["cities"].aliases("pull") == before
    assert mine["cities"].aliases("push") == ()


def test_a_forgotten_repository_or_damaged_settings_of_another_dataset_do_not_matter(
    mine: Workspace, theirs: Workspace, shelf: str
) -> None:
    make_dataset(WorkspaceFiles(theirs.path), "lakes", 10)
    Sharing(theirs._files).push("lakes", "shelf")
    Sharing(mine._files).pull("shelf/cities")
    (mine["cities"].path / "info" / "config").write_text("{")
    assert Sharing(mine._files).pull(shelf.replace("cities", "lakes")).outcome.status is SyncStatus.CREATED


def test_what_cannot_be_meant(mine: Workspace, shelf: str) -> None:
    mine.add(POLLED.replace("name: cities", "name: own"), check=False)
    Sharing(mine._files).pull(shelf)
    with pytest.raises(UsageError, match="it is not known where own comes from"):
        Sharing(mine._files).pull("own")
    with pytest.raises(UsageError, match="cities already exists"):
        Sharing(mine._files).pull("cities", "towns")
    with pytest.raises(DatasetNotFoundError, match="'shelves/cities', and no repository 'shelves'"):
        Sharing(mine._files).pull("shelves/cities")


def test_only_what_was_not_made_here_is_a_copy(mine: Workspace, theirs: Workspace, shelf: str) -> None:
    copied_here = theirs._files.is_copy
    theirs.add(
        POLLED.replace("name: cities", "name: polled") + "---\n" + derivative(name="made"), check=False
    )
    for name in ("polled", "made"):
        Sharing(theirs._files).push(name, "shelf")
        theirs[name].add_alias("pull", f"shelf/{name}")
        Sharing(mine._files).pull(f"shelf/{name}")
        assert mine._files.is_copy(mine[name]._files), "its source and its query are its owner's business"
        assert not copied_here(theirs[name]._files), "it is continued here; the peer only has a backup"
    assert not copied_here(theirs["cities"]._files)
    theirs["cities"].add_alias("pull", shelf)
    assert copied_here(theirs["cities"]._files), "there is nothing else to pull it from"
    assert [str(t) for t in mine.pull_targets(["made"], recursive=True)] == ["made"]
    upstream = theirs._files.with_upstream([theirs["made"]._files], copied_here)
    assert {str(d.alias) for d in upstream} == {"made", "cities"}


# --- by id -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [True, False])
def test_a_dataset_of_a_folder_is_found_by_its_id(
    mine: Workspace, theirs: Workspace, shelf: str, tmp_path: Path, cities: DatasetFiles, hint: bool
) -> None:
    make_dataset(WorkspaceFiles(theirs.path), "lakes", 10)
    Sharing(theirs._files).push("lakes", "shelf")
    if not hint:
        (tmp_path / "shelf" / "cities" / "hints" / "chain").unlink()
    ref = f"shelf/{cities.id}"
    assert mine.sharing.is_remote(ref)
    pulled = Sharing(mine._files).pull(ref)
    assert (str(pulled.alias), pulled.where) == ("cities", f"{shelf}/")
    assert mine["cities"].id == cities.id
    assert mine["cities"].aliases("pull") == (ref,)
    add_slice(cities, 10)
    Sharing(theirs._files).push("cities")
    assert Sharing(mine._files).pull("cities").outcome.status is SyncStatus.UPDATED
    with pytest.raises(DatasetNotFoundError, match="has no dataset with the id"):
        Sharing(mine._files).pull("shelf/did:odf:fed01" + "0" * 64)
    with pytest.raises(UnsupportedPeerError, match="an id alone does not say where"):
        mine.sharing.url_of(str(cities.id))
    with pytest.raises(UnsupportedPeerError, match="an id alone does not say where"):
        Sharing(theirs._files).push("cities", f"shelf/{cities.id}")


def test_a_dataset_of_a_server_is_found_by_its_id(
    mine: Workspace, theirs: Workspace, cities: DatasetFiles
) -> None:
    make_dataset(WorkspaceFiles(theirs.path), "org/lakes", 10)
    lakes = theirs["org/lakes"]
    with RepositoryServer(WorkspaceFiles(theirs.path)) as server:
        mine.sharing.repositories.add(RepoName("server"), server.url)
        assert str(Sharing(mine._files).pull(f"server/{lakes.id}").alias) == "lakes"
        assert str(Sharing(mine._files).pull(f"{server.url}{cities.id}", "towns").alias) == "towns"
    assert mine["towns"].head == cities.chain.head()


def test_what_a_repository_says_of_ids_is_not_believed(
    mine: Workspace, theirs: Workspace, cities: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(WorkspaceFiles(theirs.path), "lakes", 10)
    lakes = theirs["lakes"]
    lie = [RepositoryEntry(alias=cities.alias, head=lakes.head, id=lakes.id)]
    monkeypatch.setattr(repositories, "list_repository", lambda *_: lie)
    with RepositoryServer(WorkspaceFiles(theirs.path)) as server:
        mine.sharing.repositories.add(RepoName("server"), server.url)
        with pytest.raises(CorruptedPeerError, match=f"is {cities.id}, and {lakes.id} was asked for"):
            Sharing(mine._files).pull(f"server/{lakes.id}")
        assert len(mine) == 0
        Sharing(mine._files).pull(f"{server.url}cities")
        with pytest.raises(NameCollisionError, match="was asked for"):
            Sharing(mine._files).pull(f"server/{lakes.id}", "cities")


# --- inputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spell", ["url", "url without slash", "remote alias", "repository and id", "id"])
def test_an_input_is_named_by_where_it_comes_from(
    mine: Workspace, shelf: str, cities: DatasetFiles, spell: str
) -> None:
    ref = {
        "url": f"{shelf}/",
        "url without slash": shelf,
        "remote alias": "shelf/cities",
        "repository and id": f"shelf/{cities.id}",
        "id": str(cities.id),
    }[spell]
    text = derivative(name="made").replace("datasetRef: cities", f"datasetRef: '{ref}'")
    assert ref in text
    if spell != "id":
        with pytest.raises(ManifestError, match="unknown input datasets"):
            mine.add(text, check=False)
    Sharing(mine._files).pull(shelf, "towns")
    (made,) = mine.add(text, check=False)
    assert [(str(i.dataset_ref), i.alias) for i in made.summary.transform.inputs] == [(str(cities.id), ref)]
    _, events = mine.update(read_snapshots(text)[0], check=False)
    assert events == []


def test_an_account_goes_before_a_repository(mine: Workspace, shelf: str, cities: DatasetFiles) -> None:
    Sharing(mine._files).pull(shelf, "towns")
    own = make_dataset(WorkspaceFiles(mine.path), "shelf/cities")
    text = derivative(name="made").replace("datasetRef: cities", "datasetRef: shelf/cities")
    (made,) = mine.add(text, check=False)
    assert str(made.summary.transform.inputs[0].dataset_ref) == str(own.id)
