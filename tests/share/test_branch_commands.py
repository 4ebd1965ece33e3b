"""Branches are shared from the command line, and served only where that is said."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from odfchain.api.branching import at_point
from odfchain.api.workspace import Workspace
from odfchain.errors import UsageError
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import FetchedBranches
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.branched_dataset import delete_branch, fork, merge, write
from tests.kit.support import Result, Run
from tests.kit.upkeep_scenes import head_of, new_workspace, root


@pytest.fixture
def owner(tmp_path: Path) -> WorkspaceFiles:
    return new_workspace(tmp_path / "owner")


@pytest.fixture
def cities(owner: WorkspaceFiles) -> DatasetFiles:
    dataset = root(owner, slices=1)
    write(fork(dataset, "fix"), "b")
    write(fork(dataset, "secret"), "s")
    return dataset


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line; the workspace is that of the folder."""

    def run_in(folder: str, *args: object) -> Result:
        monkeypatch.chdir(tmp_path / folder)
        return run("-q", *args)

    return run_in


def answer(url: str) -> str | None:
    try:
        with urlopen(url) as response:  # noqa: S310 - it is this machine
            return str(response.read().decode())
    except HTTPError as error:
        assert error.code == 404
        return None


@pytest.mark.parametrize(
    ("branches", "shown"), [(False, ()), (True, ("fix", "secret")), (("fix", "nope"), ("fix",))]
)
def test_branches_are_served_only_where_that_is_said(
    owner: WorkspaceFiles, cities: DatasetFiles, branches: bool | list[str], shown: tuple[str, ...]
) -> None:
    chain = cities.chain
    chain.set_ref("overwritten-00ff", head_of(cities), expected=None)
    with RepositoryServer(owner, branches=branches) as server:
        there = f"{server.url}cities/"
        assert answer(f"{there}refs/head") == str(head_of(cities))
        for name in ("fix", "secret"):
            on = cities.on(name)
            assert answer(f"{there}refs/{name}") == (str(head_of(on)) if name in shown else None)
            signature = (cities.folder / f"refs/{name}.jws").read_text()
            assert answer(f"{there}refs/{name}.jws") == (signature if name in shown else None)
        assert answer(f"{there}hints/refs") == ("".join(f"{n}\n" for n in shown) or None)
        for key in ("refs/overwritten-00ff", "refs/nope", "refs/nope.jws", "refs/head.jws.jws", "refs/Fix"):
            assert answer(f"{there}{key}") is None


def test_a_branch_is_pushed_pulled_and_pulled_again_by_name(
    owner: WorkspaceFiles, cities: DatasetFiles, tmp_path: Path, run: Run
) -> None:
    url = (tmp_path / "place").as_uri()
    new_workspace(tmp_path / "other")
    assert run("owner", "push", "cities", "--to", url).code == 0
    (row,) = run("owner", "push", "cities@fix", "--to", url, "-o", "json").rows
    created = {"dataset": "cities@fix", "status": "created", "blocks": 1}
    assert row.items() >= (created | {"signature": "signed"}).items()
    assert run("other", "pull", url, "--as", "cities").code == 0
    (row,) = run("other", "pull", "cities@fix", "--from", url, "-o", "json").rows
    assert row.items() >= created.items()
    write(cities.on("fix"), "c")
    assert run("owner", "push", "cities@fix", "--to", url).code == 0
    (row,) = run("other", "pull", "cities@fix", "-o", "json").rows
    assert (row["status"], row["blocks"]) == ("updated", 1)
    copy = WorkspaceFiles.find(tmp_path / "other").dataset("cities")
    assert head_of(copy.on("fix")) == head_of(cities.on("fix"))
    assert head_of(copy) == head_of(cities)
    listed = run("other", "branch", "list", "cities", "-o", "json").rows
    assert [(each["name"], each["signature"]) for each in listed] == [("fix", "signed")]


def test_a_branch_comes_from_a_server_too(
    owner: WorkspaceFiles, cities: DatasetFiles, tmp_path: Path, run: Run
) -> None:
    new_workspace(tmp_path / "other")
    with RepositoryServer(owner, branches=["fix"]) as server:
        url = f"{server.url}cities"
        assert run("other", "pull", url).code == 0
        assert run("other", "pull", "cities@fix", "--from", url).code == 0
        refused = run("other", "pull", "cities@secret", "--from", url)
        assert refused.code == 4
        assert "its branches: fix" in refused.err
    copy = WorkspaceFiles.find(tmp_path / "other").dataset("cities")
    entry = FetchedBranches(copy).find("fix")
    assert entry is not None
    assert entry.where == f"{url}/"


def test_what_was_merged_is_fetched_by_a_command(cities: DatasetFiles, tmp_path: Path, run: Run) -> None:
    url, base = (tmp_path / "place").as_uri(), head_of(cities)
    new_workspace(tmp_path / "other")
    source = head_of(cities.on("fix"))
    merge(cities, cities.on("fix"), base)
    delete_branch(cities, "fix")
    assert run("owner", "push", "cities", "--to", url, "--no-merged").code == 0
    assert run("other", "pull", url, "--as", "cities").code == 0
    lacking = run("other", "fetch", "cities", "--merged")
    assert lacking.code == 8
    assert "1 of the branches that were merged into cities are not there" in lacking.err
    assert run("owner", "push", "cities").code == 0
    (row,) = run("other", "fetch", "cities", "--merged", "-o", "json").rows
    assert (row["dataset"], row["blocks"], row["objects"]) == ("cities", 1, 1)
    assert WorkspaceFiles.find(tmp_path / "other").dataset("cities").chain.contains(source)
    assert run("other", "fetch", "cities", "--merged", "--last", 1).code == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("pull", "cities", "--from", "file:///x"), "--from says where a branch comes from"),
        (("pull", "cities@fix", "cities@secret", "--from", "file:///x"), "for one branch"),
        (("pull", "cities@fix", "--from", "file:///x", "--as", "y"), "for one branch"),
        (("pull", "cities@fix", "--from", "file:///x", "--last", 1), "does not apply to a branch"),
        (("pull", "cities@fix", "--from", "nowhere"), "not a URL"),
        (("pull", "cities@Fix", "--from", "file:///x"), "cannot name a branch"),
        (("push", "cities@1", "--to", "file:///x"), "a branch, not a point of the past"),
    ],
)
def test_what_cannot_be_meant_is_said(
    cities: DatasetFiles, run: Run, args: tuple[object, ...], said: str
) -> None:
    found = run("owner", *args)
    assert found.code in (2, 3, 4)
    assert said in found.err


def test_a_point_of_the_past_is_not_pushed(owner: WorkspaceFiles, cities: DatasetFiles) -> None:
    past = at_point(Workspace(owner), "cities@1")
    with pytest.raises(UsageError, match="not a point of the past"):
        past.push("file:///x")
