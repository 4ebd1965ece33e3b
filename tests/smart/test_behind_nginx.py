"""A node behind nginx, by the configuration that the manual shows: what works, and what is said without a line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from odfchain.errors import TransferError, UnsupportedPeerError
from odfchain.odf.times import Timestamp
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.credentials import NodeAccounts
from odfchain.transfer.open_peer import PeerOptions
from odfchain.transfer.repositories import list_repository
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.crowd import RawClient
from tests.kit.nginx import nginx
from tests.kit.served_workspace import make_dataset, raw
from tests.kit.servers import closed_port
from tests.kit.support import ROOT

SIZES = (700, 3_000_000)


def shown(port: int, node: int, *without: str) -> str:
    """The manual's configuration at these ports without TLS, and without the lines that begin so."""
    text = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```nginx\n(.*?)```", text, re.DOTALL)
    for old, new in (("listen 443 ssl", f"listen 127.0.0.1:{port}"), ("127.0.0.1:8080", f"127.0.0.1:{node}")):
        assert block.count(old) == 1
        block = block.replace(old, new)
    lines = [line for line in block.splitlines() if "ssl_certificate" not in line]
    assert all(any(each in line for line in lines) for each in without)
    return "\n".join(line for line in lines if not any(each in line for each in without))


@dataclass
class Site:
    """A dataset, and the node behind nginx."""

    dataset: DatasetFiles
    url: str
    token: str
    run: Path

    def push(self) -> bool:
        url = self.url.removeprefix("odf+")
        return smart_site.push(self.dataset, f"{url}cities", token=self.token, retries=0).up_to_date

    def pull(self, folder: Path) -> DatasetFiles:
        reader, options = WorkspaceFiles.init(folder), PeerOptions(token=self.token, retries=0)
        smart_site.pull(reader, f"{self.url}cities", chosen=options)
        return reader.dataset(self.dataset.alias)

    def requests(self) -> list[tuple[str, str]]:
        """Methods and paths that nginx has answered."""
        return re.findall(r'"([A-Z]+) (\S+) HTTP', (self.run / "access.log").read_text())


@contextlib.contextmanager
def site(place: Path, *without: str, node: int | None = None) -> Iterator[Site]:
    home = WorkspaceFiles.init(place / "node")
    token = TokenFile(home.root).create("me", ["push:%"], Timestamp.now()).text
    dataset = make_dataset(WorkspaceFiles.init(place / "ours"), "cities", *SIZES)
    run = place / "nginx"
    with (
        RepositoryServer(home, write=True, behind_proxy=True, allow_hosts=["node.example"]) as server,
        nginx(
            run, lambda port: shown(port, node or int(server.url.rstrip("/").split(":")[-1]), *without)
        ) as url,
    ):
        yield Site(dataset, f"odf+{url}odf/", token, run)


def test_a_node_below_a_prefix_is_pushed_to_and_pulled_from(tmp_path: Path) -> None:
    with site(tmp_path) as found:
        assert NodeAccounts(PeerUrl.parse(found.url)).check_token(found.token) is None
        assert not found.push()
        assert found.push()
        copy = found.pull(tmp_path / "reader")
        assert copy.chain.head() == found.dataset.chain.head()
        assert [str(entry.alias) for entry in list_repository(PeerUrl.parse(found.url))] == ["cities"]
        asked = found.requests()
    objects = {f"data/{name}" for name in copy.data.names()}
    objects |= {f"checkpoints/{name}" for name in copy.checkpoints.names()}
    for method in ("PUT", "GET"):  # the addresses that the node gave lead over nginx
        assert objects <= {path.removeprefix("/odf/cities/") for way, path in asked if way == method}
    assert {path.split("/")[1] for _, path in asked} == {"odf"}


@pytest.mark.parametrize(("host", "status"), [("node.example", 200), ("evil.example", 421)])
def test_a_node_answers_to_the_name_that_its_proxy_has(host: str, status: int, tmp_path: Path) -> None:
    with site(tmp_path) as found:
        url, shown = found.url.removeprefix("odf+"), f"Authorization: Bearer {found.token}"
        asked = f"GET /odf/info HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert raw(url, asked.encode()).startswith(f"HTTP/1.1 {status} ".encode())
        with RawClient(url, "odf/cities/push", shown, host=host) as client:
            assert client.status == (101 if status == 200 else status)


LACKS = {
    "large files": (
        ["client_max_body_size"], TransferError,
        ["HTTP status 413", "3,000,000 bytes", "client_max_body_size 0"],
    ),
    "WebSockets": (
        ["Upgrade $http", "Connection $"], UnsupportedPeerError,
        ["HTTP status 426", "over a WebSocket", "headers Upgrade and Connection"],
    ),
    "a node": ([], TransferError, ["HTTP status 502"]),
}  # fmt: skip


@pytest.mark.parametrize("lack", LACKS)
def test_what_a_proxy_does_not_pass_on_is_named(lack: str, tmp_path: Path) -> None:
    without, error, said = LACKS[lack]
    with (
        closed_port() as gone,
        site(tmp_path, *without, node=gone if lack == "a node" else None) as found,
        pytest.raises(error) as refused,
    ):
        found.push()
    for each in said:
        assert each in f"{refused.value} {refused.value.hint}"
