"""Several datasets are pushed: where each goes, in which order, and what becomes of the others when one fails."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import UsageError
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.stand_ins import BUCKET, simulated_s3
from tests.kit.support import Result, Run, derivative

Repository = Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[str]]


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in a workspace of two roots, and what is made of the second."""
    home = tmp_path / "mine"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("ODFCHAIN_CREDENTIALS", str(tmp_path / "credentials.json"))
    files = WorkspaceFiles.init(home)
    make_dataset(files, "org.y", 100)
    make_dataset(files, "org.z", 200)
    with Workspace.open() as workspace:
        workspace.add(derivative(name="org.b", inputs="[{datasetRef: org.z}]"), check=False)
    return run


def rows(result: Result, code: int = 0) -> list[tuple[str, str]]:
    """The datasets of an answer in JSON, and what became of them."""
    assert result.code == code, result.err
    return [(row["dataset"], row["status"]) for row in json.loads(result.out)]


@contextlib.contextmanager
def folder(place: Path, _: pytest.MonkeyPatch) -> Iterator[str]:
    yield (place / "shelf").as_uri()


@contextlib.contextmanager
def store(_: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with simulated_s3() as address:
        yield f"s3+{address}/{BUCKET}/shelf/"


@contextlib.contextmanager
def node(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    home = WorkspaceFiles.init(place / "node")
    token = TokenFile(home.root).create("me", ["push:alice/%"], Timestamp.now())
    monkeypatch.setenv("ODFCHAIN_TOKEN", token.text)
    with RepositoryServer(home, write=True) as server:
        yield f"odf+{server.url}alice"


@pytest.mark.parametrize(
    "repository",
    [node, pytest.param(folder, marks=pytest.mark.soak), pytest.param(store, marks=pytest.mark.soak)],
)
def test_all_datasets_go_to_a_repository_inputs_first(
    run: Run, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with repository(tmp_path, monkeypatch) as url:
        assert run("repo", "add", "shelf", url).code == 0
        (row,) = json.loads(run("repo", "list", "-o", "json").out)
        assert (row["name"], row["url"].rstrip("/")) == ("shelf", url.rstrip("/"))
        assert run("push", "-a").err.startswith("no dataset was pushed before")
        planned = run("push", "--all", "--to", "shelf", "--dry-run", "-o", "json")
        order = ["org.z", "org.y", "org.b"]
        assert rows(planned) == [(name, "would be pushed") for name in order]
        assert [d.aliases("push") for d in Workspace.open()] == [()] * 3
        assert rows(run("push", "--all", "--to", "shelf", "-o", "json")) == [(n, "created") for n in order]
        assert Workspace.open()["org.b"].aliases("push") == ("shelf/org.b",)
        add_slice(Workspace.open()["org.z"]._files, 300)
        changed = dict(rows(run("push", "-a", "shelf", "-o", "json")))  # remembered as it was
        assert changed == dict.fromkeys(order, "up to date") | {"org.z": "updated"}
        monkeypatch.chdir(WorkspaceFiles.init(tmp_path / "reader").root.parent)
        assert run("repo", "add", "hub", url).code == 0
        listed = json.loads(run("search", "--repo", "hub", "-o", "json").out)
        assert [row["dataset"] for row in listed] == [f"hub/{name}" for name in sorted(order)]
        pulled = run("pull", "hub/org.z", "hub/org.b", "-o", "json")
        assert rows(pulled) == [("org.z", "created"), ("org.b", "created")]
        assert Workspace.open()["org.z"].aliases("pull") == ("hub/org.z",)
        assert rows(run("pull", "hub/org.y", "--as", "y", "-o", "json")) == [("y", "created")]
        assert Workspace.open()["y"].aliases("pull") == ("hub/org.y",)
        assert {status for _, status in rows(run("pull", "--all", "-o", "json"))} == {"up to date"}


def test_patterns_names_and_what_they_come_from(run: Run, tmp_path: Path) -> None:
    to = f"{(tmp_path / 'shelf').as_uri()}/"
    assert rows(run("push", "ORG.%", "--to", to, "--dry-run", "-o", "json"))[0][0] == "org.b"
    found = run("push", "org.y", "org.b", "org.y", "--to", to, "-o", "json")
    assert rows(found) == [("org.y", "created"), ("org.b", "created")]
    assert Workspace.open()["org.b"].aliases("push") == (f"{to}org.b/",)
    found = run("push", "-r", "org.b", "--to", to, "-o", "json")
    assert rows(found) == [("org.z", "created"), ("org.b", "up to date")]
    assert {row["destination"] for row in json.loads(found.out)} == {f"{to}org.{x}/" for x in "bz"}
    assert rows(run("push", "-r", "org.b", "-o", "json")) == [(f"org.{x}", "up to date") for x in "zb"]
    # one name is the place itself, as ever
    assert rows(run("push", "org.y", "--to", f"{to}yes", "-o", "json")) == [("org.y", "created")]
    assert (tmp_path / "shelf" / "yes" / "refs" / "head").is_file()


def test_one_that_fails_does_not_stop_the_others(run: Run, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "org.z").write_text("in the way")
    found = run("push", "--all", "--to", shelf.as_uri())
    assert (found.code, found.err.count("error: ")) == (8, 1)
    assert "error: org.z: " in found.err
    done = [line.split()[:2] for line in found.out.splitlines()[1:-1]]
    assert done == [["org.y", "created"], ["org.b", "created"]]
    assert Workspace.open()["org.z"].aliases("push") == ()
    # where an input was pushed to before is not known, and the others are pushed
    found = run("push", "-r", "org.b")
    assert (found.code, "error: org.z: it is not known where org.z is to be pushed" in found.err) == (2, True)
    assert "up to date" in found.out


def test_copies_are_pushed_where_they_are_asked_for_only(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = WorkspaceFiles.init(tmp_path / "theirs")
    make_dataset(theirs, "cities", 100)
    there = f"{(tmp_path / 'theirs-shelf').as_uri()}/"
    assert run("-w", tmp_path / "theirs", "push", "cities", "--to", f"{there}cities").code == 0
    assert run("pull", f"{there}cities").code == 0
    with Workspace.open() as workspace:
        workspace.add(derivative(name="made"), check=False)
        to = f"{(tmp_path / 'shelf').as_uri()}/"
        targets = workspace.push_targets(["made"], to, recursive=True)
        assert [str(each) for each in targets] == ["cities", "made"]
        assert [str(each) for each in workspace.push_targets(["made"], recursive=True)] == ["made"]
        for each in targets:
            assert not each.dataset.push(each.to).up_to_date
        assert [str(each) for each in workspace.push_targets()] == ["cities", "made"]


def test_two_datasets_do_not_go_to_one_place(run: Run, tmp_path: Path) -> None:
    files = WorkspaceFiles.find(Path())
    for alias in ("alice/towns", "bob/Towns"):
        make_dataset(files, alias, 100)
    shelf = tmp_path / "shelf"
    assert run("repo", "add", "shelf", shelf.as_uri()).code == 0
    for args in (("--all", "--to", "shelf"), ("alice/towns", "bob/towns", "--to", shelf.as_uri())):
        found = run("push", *args)
        assert (found.code, found.out) == (2, "")
        assert "alice/towns and bob/Towns would both be pushed to file://" in found.err
        assert "nothing was sent" in found.err
        assert not shelf.exists()
    with Workspace.open() as workspace:
        workspace["org.y"].add_alias("push", "shelf/here")
        workspace["org.z"].add_alias("push", f"{shelf.as_uri()}/x/../here")
        with pytest.raises(UsageError, match=r"org\.y and org\.z would both be pushed to"):
            workspace.push_targets()
        workspace["org.z"].add_alias("push", "shelf/there")
        assert [(str(t), t.to) for t in workspace.push_targets()] == [("org.y", None), ("org.z", None)]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["org.y", "org.z", "--to", "shelf/x"], 2, "shelf/x is one dataset, and several are to be pushed"),
        (["org.%", "shelf/x"], 2, "--to shelf"),
        (["org.%", "--to", "other"], 4, "no repository is called 'other'"),
        (["org.y", "twin"], 2, "for the repository write --to twin"),
        (["nothing.%", "--to", "shelf"], 4, "nothing.%"),
        (["org.y", "org.z", "--to", "gopher://x/"], 2, "cannot be carried over 'gopher'"),
        (["org.y@1", "org.z", "--to", "shelf"], 2, "not a point of the past"),
    ],
)
def test_pushes_of_several_that_cannot_be_meant(
    run: Run, tmp_path: Path, args: list[str], code: int, said: str
) -> None:
    make_dataset(WorkspaceFiles.find(Path()), "twin")
    for name in ("shelf", "twin"):
        assert run("repo", "add", name, (tmp_path / name).as_uri()).code == 0
    found = run("push", *args)
    assert (found.code, found.out, said in found.err) == (code, "", True), found.err
    assert not (tmp_path / "shelf").exists()
