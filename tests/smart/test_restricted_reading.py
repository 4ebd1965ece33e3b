"""A server that asks readers who they are: what is there for whom, whatever the way to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from websockets.exceptions import InvalidStatus

from odfchain.cli.main import cli
from odfchain.errors import AccessError, DatasetNotFoundError, TransferError, UsageError
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.open_peer import PeerOptions, open_peer
from odfchain.transfer.repositories import list_repository
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import ask, make_dataset
from tests.kit.sharing import Sharing
from tests.kit.smart_site import PULL, closed, conversation, pull, say
from tests.kit.support import tree_of

CASES = json.loads(Path("fixtures/smart/reading.json").read_text())
CITIES, TOWNS = "org.cities", "alice/towns"


@dataclass
class Site:
    workspace: WorkspaceFiles
    dataset: DatasetFiles
    url: str
    tokens: TokenFile

    def token(self, *allow: str, name: str = "me") -> str:
        return self.tokens.create(name, allow, Timestamp.now()).text

    def peer(self, path: str, token: str | None, scheme: str = "odf+") -> Any:
        return open_peer(PeerUrl.parse(f"{scheme}{self.url}{path}"), PeerOptions(token=token))

    def status(self, path: str, authorization: str | None) -> int:
        """Of a request as the simple protocol makes it, or for a WebSocket."""
        fields = {} if authorization is None else {"Authorization": authorization}
        if not path.endswith(("/pull", "/push")):
            return ask(self.url, path, **fields).status
        try:
            with conversation(self.url, path.removeprefix("/"), **fields):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    workspace = WorkspaceFiles.init(tmp_path_factory.mktemp("node"))
    dataset = make_dataset(workspace, CITIES, 100, 200_000)
    make_dataset(workspace, TOWNS, 10)
    with RepositoryServer(workspace, write=True, restrict_reading=True) as server:
        yield Site(workspace, dataset, server.url, TokenFile(workspace.root))


@pytest.fixture(autouse=True)
def no_tokens(site: Site) -> Iterator[None]:
    yield
    site.tokens.path.unlink(missing_ok=True)


@pytest.mark.parametrize("case", CASES["visible"], ids=lambda case: str(case["allow"]))
def test_datasets_are_there_for_those_whose_token_is_for_them(case: dict[str, Any], site: Site) -> None:
    token = None if case["allow"] is None else site.token(*case["allow"])
    fields = {} if token is None else {"Authorization": f"Bearer {token}"}
    listed = list_repository(PeerUrl.parse(site.url), PeerOptions(token=token))
    assert [str(entry.alias) for entry in listed] == case["sees"]
    page = ask(site.url, "/", **fields).body.decode()
    assert [alias for alias in (TOWNS, CITIES) if f">{alias}<" in page] == case["sees"]
    for scheme in ("", "odf+"):
        heads = []
        for alias in (TOWNS, CITIES):
            with contextlib.closing(site.peer(alias, token, scheme)) as peer:
                heads += [alias] * (peer.head() is not None)
        assert heads == case["sees"]


@pytest.mark.parametrize("case", CASES["requests"], ids=lambda case: f"{case['token']} {case['path']}")
def test_every_way_to_a_dataset_has_one_rule(case: dict[str, Any], site: Site) -> None:
    shown = {
        "none": None,
        "basic": "Basic YTpi",
        "good": f"Bearer {site.token(f'read:{CITIES}')}",
        "other": f"Bearer {site.token(f'read:{TOWNS}', f'push:{TOWNS}', name='other')}",
        "revoked": f"Bearer {site.token('read:%/%', 'push:%/%', name='revoked')}",
        "unknown": "Bearer ka_unknown",
    }[case["token"]]
    site.tokens.revoke("revoked")
    names = {
        "alias": CITIES,
        "id": site.dataset.id,
        "slice": next(iter(site.dataset.data.names())),
        "head": site.dataset.chain.head(),
    }
    assert site.status(case["path"].format(**names), shown) == case["status"]


def test_what_is_hidden_is_answered_as_what_does_not_exist(site: Site) -> None:
    fields = {"Authorization": f"Bearer {site.token(f'read:{TOWNS}')}"}
    hidden, absent = (ask(site.url, f"/{alias}/refs/head", **fields) for alias in (CITIES, "org.nothing"))
    assert (hidden.status, hidden.body) == (absent.status, absent.body)
    assert hidden.headers.keys() == absent.headers.keys()


def test_no_cache_between_gives_it_to_somebody_else(site: Site) -> None:
    fields = {"Authorization": f"Bearer {site.token('read:%')}"}
    found = ask(site.url, f"/{CITIES}/data/{next(iter(site.dataset.data.names()))}", **fields)
    assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
    for path in (f"/{CITIES}/refs/head", "/", "/datasets.json", "/nothing/refs/head"):
        assert ask(site.url, path, **fields).headers["vary"] == "authorization"


@pytest.mark.parametrize("scheme", ["", "odf+"])
def test_a_pull_with_a_token_and_none_without(scheme: str, site: Site, tmp_path: Path) -> None:
    ours, url = WorkspaceFiles.init(tmp_path), f"{scheme}{site.url}{CITIES}"
    for token in (None, site.token(f"read:{TOWNS}", name="other")):
        with pytest.raises(DatasetNotFoundError) as refused:
            pull(ours, url, chosen=PeerOptions(token=token))
        assert "login" in (refused.value.hint or "")
    pull(ours, url, chosen=PeerOptions(token=site.token("read:org.%")))
    assert tree_of(ours.dataset(DatasetAlias.parse("cities")).folder) == tree_of(site.dataset.folder)
    site.tokens.revoke("me")
    with pytest.raises(AccessError):
        pull(ours, url, chosen=PeerOptions(token="ka_gone"))  # noqa: S106 - none


def test_a_token_that_is_revoked_in_the_middle_of_a_pull(site: Site) -> None:
    token = site.token("read:%")
    with conversation(site.url, f"{CITIES}/pull", token) as socket:
        assert say(socket, PULL)["Ok"]["transfer_plan"]["num_objects"] == 4
        site.tokens.revoke("me")
        socket.send("{}")
        assert closed(socket) == (1011, "The token was revoked.")
    assert site.status(f"/{CITIES}/refs/head", f"Bearer {token}") == 401


def test_a_file_of_tokens_that_cannot_be_read_lets_nobody_in(site: Site) -> None:
    token = site.token("read:%")
    site.tokens.path.chmod(0o644)
    assert site.status(f"/{CITIES}/refs/head", f"Bearer {token}") == 500
    assert site.status(f"/{CITIES}/pull", f"Bearer {token}") == 500
    assert site.status(f"/{CITIES}/refs/head", None) == 404


def test_without_restriction_tokens_mean_nothing_to_readers(tmp_path: Path) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    make_dataset(workspace, "cities", 10)
    with RepositoryServer(workspace) as server:
        found = ask(server.url, "/cities/refs/head", Authorization="Bearer ka_gone")
    assert (found.status, "vary" in found.headers) == (200, False)


def test_tokens_are_not_sent_over_a_network_in_the_clear(tmp_path: Path) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    words = ["-w", str(tmp_path), "serve", "--restrict-reading", "--host", "0.0.0.0"]  # noqa: S104 - refused
    made = CliRunner().invoke(cli, words)
    assert isinstance(made.exception, UsageError)
    assert "--behind-proxy" in (made.exception.hint or "")
    RepositoryServer(workspace, host="0.0.0.0", restrict_reading=True, behind_proxy=True).stop()  # noqa: S104


# --- accounts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "account"),
    [
        (["push:alice/%"], "alice"),
        (["push:alice/%", "read:alice/x"], "alice"),
        (["push:alice/%", "read:bob/%"], "laptop"),
        (["push:alice/%", "read:%"], "laptop"),
        (["read:org.%"], "laptop"),
    ],
)
def test_whose_a_token_is(allow: list[str], account: str, site: Site) -> None:
    token = site.token(*allow, name="laptop")
    found = json.loads(ask(site.url, "/accounts/me", Authorization=f"Bearer {token}").body)
    assert found.keys() == {"id", "accountName"}
    assert found["accountName"] == account
    assert found["id"].startswith("did:odf:fed01")


def test_whether_aliases_have_accounts(tmp_path: Path) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    said = []
    with RepositoryServer(workspace) as server:
        for alias in (None, "alice/cities", "bob/cities", "towns"):
            if alias is not None:
                make_dataset(workspace, alias)
            said.append(json.loads(ask(server.url, "/info").body))
    assert [answer["isMultiTenant"] for answer in said] == [False, True, True, False]


@pytest.mark.parametrize(
    ("allow", "several"),
    [(None, False), ("read:%", False), ("read:alice/%", True), ("read:%/%", False), ("force:alice/%", False)],
)
def test_what_is_hidden_does_not_count(allow: str | None, several: bool, site: Site) -> None:
    """Whether aliases have accounts is of those that are there for who asks."""
    fields = {} if allow is None else {"Authorization": f"Bearer {site.token(allow)}"}
    found = ask(site.url, "/info", **fields)
    assert json.loads(found.body) == {"isMultiTenant": several}
    assert found.headers["vary"] == "authorization"


def test_a_url_without_an_account_at_a_node_that_asks_who_reads(tmp_path: Path) -> None:
    """The node says of accounts what is so for the token; nothing is sent before it said that it is a node."""
    theirs, log = WorkspaceFiles.init(tmp_path / "node"), list[str]()
    make_dataset(theirs, "alice/cities", 10)
    make_dataset(theirs, "towns", 10)
    with RepositoryServer(theirs, restrict_reading=True, on_request=log.append) as server:
        url = f"odf+{server.url}cities"
        token = TokenFile(theirs.root).create("laptop", ["read:alice/%"], Timestamp.now()).text
        ours = WorkspaceFiles.init(tmp_path / "ours")
        Sharing(ours).pull(url, token=token)
        assert [str(each.alias) for each in ours.datasets()] == ["cities"]
        with pytest.raises(DatasetNotFoundError):
            Sharing(WorkspaceFiles.init(tmp_path / "third")).pull(url)
    assert sum("/info" in line for line in log) >= 2


def test_a_token_that_is_not_in_force_is_nobodys(site: Site) -> None:
    found = ask(site.url, "/accounts/me", Authorization="Bearer ka_x")
    assert (found.status, json.loads(found.body)) == (401, {"message": "The token is not known here."})
    assert found.headers["www-authenticate"] == "Bearer"
    with contextlib.closing(site.peer(CITIES, "ka_x")) as peer, pytest.raises(TransferError):
        peer.head()
