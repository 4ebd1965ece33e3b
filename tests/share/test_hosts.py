"""Under which names a server answers: what a page of a stranger's in a browser here can read of it (421)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from odfchain.api.settings import Configuration
from odfchain.api.workspace import Workspace
from odfchain.errors import UsageError
from odfchain.transfer.server import RepositoryServer, admitted_hosts, is_admitted
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.crowd import RawClient
from tests.kit.served_workspace import make_dataset, raw

EVIL = [
    "evil.example", "evil.example:{port}", "EVIL.example.", "localhost.evil.example", "localhost:80.evil.example",
    "127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost evil.example", "localhost, evil.example",
    "169.254.169.254", "10.0.0.1:{port}", "[2001:db8::1]:{port}", "[::ffff:10.0.0.1]", "[::1", "::1]", "", " ",
    "localhost:", "localhost:80a", "localhost/", "xn--lcalhost-n0a", "0.0.0.0",  # noqa: S104
]  # fmt: skip
OURS = [
    "127.0.0.1", "127.0.0.1:{port}", "localhost", "LocalHost:{port}", "localhost.:1", "[::1]:{port}", "[0:0::1]",
    "[::ffff:127.0.0.1]", "node.example", "NODE.example.:{port}", "xn--mller-kva.example", "[2001:DB8:0::7]:1",
    "named.example",
]  # fmt: skip
PATHS = ["/", "/datasets.json", "/info", "/cities/refs/head", "/accounts/me", "/no", "/cities/pull"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> WorkspaceFiles:
    folder = tmp_path_factory.mktemp("hosts")
    Configuration(Workspace.init(folder).path).set("share.hosts", ["named.example"])
    files = WorkspaceFiles.find(folder)
    make_dataset(files, "cities", 100)
    return files


@pytest.fixture(scope="module")
def url(workspace: WorkspaceFiles) -> Iterator[str]:
    names = ["node.example", "müller.example", "2001:db8::7"]
    with RepositoryServer(workspace, write=True, allow_hosts=names) as server:
        yield server.url


def status(url: str, host: str | None, path: str = "/datasets.json", *more: str, method: str = "GET") -> int:
    shown = [] if host is None else [f"Host: {host.replace('{port}', str(urlsplit(url).port))}"]
    lines = [f"{method} {path} HTTP/1.1", *shown, *more, "Connection: close", "", ""]
    return int(raw(url, "\r\n".join(lines).encode()).split(b" ")[1])


@pytest.mark.parametrize("host", EVIL)
def test_other_names_are_no_names_of_this_server(host: str, url: str) -> None:
    assert status(url, host) == 421
    believed = ("X-Forwarded-Host: localhost", "Forwarded: host=localhost", "X-Host: localhost")
    assert status(url, host, "/datasets.json", *believed) == 421


@pytest.mark.parametrize("host", OURS)
def test_names_of_this_server_in_every_spelling(host: str, url: str) -> None:
    assert status(url, host) == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_answered_under_another_name(path: str, method: str, url: str) -> None:
    assert status(url, "evil.example", path, "Content-Length: 0", method=method) == 421
    assert status(url, "localhost", path, "Content-Length: 0", method=method) != 421


@pytest.mark.parametrize("what", ["pull", "push"])
def test_no_websocket_is_opened_under_another_name(what: str, url: str) -> None:
    with RawClient(url, f"cities/{what}", host="evil.example") as client:
        assert client.status == 421
    with RawClient(url, f"cities/{what}", host="localhost") as client:
        assert client.status == (101 if what == "pull" else 401)


def test_a_request_names_one_host(url: str) -> None:
    assert status(url, None) == 421
    assert status(url, "localhost", "/", "Host: localhost") == 421
    old = b"GET /datasets.json HTTP/1.0\r\n\r\n"
    assert raw(url, old).startswith(b"HTTP/1.1 200")


def test_a_proxy_in_front_changes_nothing(workspace: WorkspaceFiles) -> None:
    """A page can say what a proxy says, but not which name it is asked by."""
    with RepositoryServer(workspace, write=True, behind_proxy=True) as server:
        forwarded = "X-Forwarded-Host: localhost"
        assert status(server.url, "evil.example", "/", forwarded) == 421
        assert status(server.url, "127.0.0.1", "/", forwarded) == 200


def test_the_address_where_a_connection_arrives_is_a_name(workspace: WorkspaceFiles) -> None:
    scope = {"http_version": "1.1", "headers": [(b"host", b"192.0.2.7:80")], "server": ("192.0.2.7", 80)}
    for listening in ("0.0.0.0", "192.0.2.7"):  # noqa: S104 - nothing listens
        assert is_admitted(scope, admitted_hosts(listening, []))
    assert not is_admitted(scope | {"server": ("192.0.2.8", 80)}, admitted_hosts("0.0.0.0", []))  # noqa: S104
    with RepositoryServer(workspace, host="0.0.0.0") as server:  # noqa: S104 - asked over this machine
        for host in ("0.0.0.0", "127.0.0.1", "localhost"):  # noqa: S104
            assert status(server.url, host) == 200
        assert status(server.url, "evil.example") == 421


@pytest.mark.parametrize(
    "name", ["", "a b", "node.example:80", "http://node.example", "[::1]:80", "*", "a/b"]
)
def test_a_name_that_is_none_is_refused(name: str, workspace: WorkspaceFiles) -> None:
    with pytest.raises(UsageError, match="not the name of a host"):
        RepositoryServer(workspace, allow_hosts=[name])


def test_why_is_said(url: str) -> None:
    answer = raw(url, b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert b"--allow-host" in answer
    assert json.dumps("cities").encode() not in answer
