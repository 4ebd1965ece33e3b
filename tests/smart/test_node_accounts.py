"""URLs of nodes with several accounts: whoever names none means his own, and the node says which that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import AccessError, CorruptedPeerError, DatasetNotFoundError, OdfchainError
from odfchain.odf.names import DatasetAlias, RepoName
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.sharing import AliasKind, aliases
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.node_stand_in import Node, files_of, node
from tests.kit.scenario import chain_of, extend, install
from tests.kit.served_workspace import make_dataset
from tests.kit.sharing import Sharing

LABELS = ["seed", "schema", "d1"]
CITIES = DatasetAlias.parse("cities")


@pytest.fixture
def ours(tmp_path: Path) -> Sharing:
    return Sharing(WorkspaceFiles.init(tmp_path / "ours"))


def pulled(
    ours: Sharing,
    path: str,
    documents: dict[str, Any],
    at: str = "/",
    token: str | None = "TOKEN",  # noqa: S107 - nobody's
) -> Node:
    """What a node is asked that has the dataset at a path, and these documents."""
    chain = chain_of(LABELS)
    files = files_of(chain, at)
    files |= {path: json.dumps(document).encode() for path, document in documents.items()}
    interval = {"head": str(chain.head), "tail": str(chain.head)}
    with node(files, lambda _: {"Err": {"InvalidInterval": interval}}) as n:
        ours.pull(f"odf+{n.url}{path}", token=token)
    return n


SEVERAL, ME = {"isMultiTenant": True}, {"id": "did:odf:fed01", "accountName": "alice"}
HERE: dict[str, Any] = {"/info": SEVERAL, "/accounts/me": ME}


def test_the_account_is_that_of_the_token(ours: Sharing) -> None:
    found = pulled(ours, "cities", HERE, "/alice/cities/")
    shown = {path: fields.get("authorization") for path, fields in found.asked}
    assert (shown["/info"], shown["/accounts/me"]) == (None, "Bearer TOKEN")
    (known,) = aliases(ours.workspace.dataset(CITIES), AliasKind.PULL)
    assert known == f"odf+{found.url}alice/cities/"


def test_a_node_below_a_prefix_is_the_longest_that_answers(ours: Sharing) -> None:
    documents = {"/info": {"isMultiTenant": False}, "/x/y/info": SEVERAL, "/x/y/accounts/me": ME}
    found = pulled(ours, "x/y/cities", documents, "/x/y/alice/cities/")
    asked = [path for path, _ in found.asked]
    assert asked.index("/x/y/info") < asked.index("/x/y/accounts/me")
    assert "/info" not in asked


@pytest.mark.parametrize(
    ("path", "documents", "token", "error"),
    [
        ("cities", {}, "TOKEN", DatasetNotFoundError),
        ("cities", {"/info": {"isMultiTenant": False}, "/accounts/me": ME}, "TOKEN", DatasetNotFoundError),
        ("cities", {"/info": {"isMultiTenant": "yes"}, "/accounts/me": ME}, "TOKEN", DatasetNotFoundError),
        ("cities", HERE, None, DatasetNotFoundError),
        ("cities", {"/info": SEVERAL}, "TOKEN", DatasetNotFoundError),
        ("bob/cities", HERE, "TOKEN", DatasetNotFoundError),
        ("cities", {"/info": SEVERAL, "/accounts/me": {"accountName": "../x"}}, "TOKEN", CorruptedPeerError),
        ("cities", {"/info": SEVERAL, "/accounts/me": {}}, "TOKEN", CorruptedPeerError),
        ("cities", HERE | {"/alice/info": SEVERAL, "/alice/accounts/me": ME}, "TOKEN", DatasetNotFoundError),
    ],
    ids=[
        "no node", "no accounts", "no answer", "no token", "no account", "an account", "no name", "no member",
        "one more account each time",
    ],
)  # fmt: skip
def test_what_is_not_there_stays_so(
    path: str, documents: dict[str, Any], token: str | None, error: type[OdfchainError], ours: Sharing
) -> None:
    with pytest.raises(error):
        pulled(ours, path, documents, "/elsewhere/", token)
    assert list(ours.workspace.datasets()) == []


def test_what_is_there_is_not_asked_after(ours: Sharing) -> None:
    found = pulled(ours, "cities", HERE, "/cities/")
    assert not {"/info", "/accounts/me"} & {path for path, _ in found.asked}


# --- our own server -----------------------------------------------------------------------------------


@pytest.fixture
def institute(tmp_path: Path) -> Iterator[tuple[WorkspaceFiles, str]]:
    workspace = WorkspaceFiles.init(tmp_path / "institute")
    make_dataset(workspace, "bob/towns", 10)
    with RepositoryServer(workspace, write=True) as server:
        yield workspace, f"odf+{server.url}"


def test_a_push_and_a_pull_without_an_account(
    ours: Sharing, institute: tuple[WorkspaceFiles, str], tmp_path: Path
) -> None:
    theirs, url = institute
    token = TokenFile(theirs.root).create("laptop", ["push:alice/%"], Timestamp.now()).text
    chain = chain_of(LABELS)
    dataset = install(ours.workspace, "cities", chain)
    assert len(ours.plan_push("cities", f"{url}cities", token=token).blocks) == 3
    ours.push("cities", f"{url}cities", token=token)
    assert [str(each.alias) for each in theirs.datasets()] == ["alice/cities", "bob/towns"]
    assert aliases(dataset, AliasKind.PUSH) == (f"{url}alice/cities/",)
    chain.add_data("d2")
    extend(dataset, chain)
    other = Sharing(WorkspaceFiles.init(tmp_path / "other"))
    other.pull(f"{url}cities", token=token)
    ours.push("cities", f"{url}alice/cities", token=token)
    other.pull(f"{url}cities", token=token)
    assert other.workspace.dataset(CITIES).chain.head() == chain.head


def test_a_repository_by_name_gets_the_account(ours: Sharing, institute: tuple[WorkspaceFiles, str]) -> None:
    theirs, url = institute
    token = TokenFile(theirs.root).create("carol", ["push:%/%"], Timestamp.now()).text
    dataset = install(ours.workspace, "cities", chain_of(LABELS))
    ours.repositories.add(RepoName("institute"), url)
    ours.push("cities", "institute", token=token)
    assert aliases(dataset, AliasKind.PUSH) == ("institute/carol/cities",)
    assert "carol/cities" in [str(each.alias) for each in theirs.datasets()]


def test_a_token_that_the_node_does_not_know(ours: Sharing, institute: tuple[WorkspaceFiles, str]) -> None:
    install(ours.workspace, "cities", chain_of(LABELS))
    with pytest.raises(AccessError) as refused:
        ours.push("cities", f"{institute[1]}cities", token="ka_gone")  # noqa: S106 - none that is known
    assert "login" in (refused.value.hint or "")
