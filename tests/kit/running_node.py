"""A node with pages in a thread of this process, and requests that say exactly what they are told to."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from odfchain.api.workspace import Workspace
from odfchain.node.application import Node, application
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.options import NodeOptions, ServeOptions


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RunningNode:
    """Where a node listens, and what it says of its problems."""

    url: str
    node: Node
    problems: list[str] = field(default_factory=list)

    def ask(self, target: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        """The reply to one request; `_` in names of headers stands for `-`."""
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, target, skip_host="Host" in named, skip_accept_encoding=True)
            for name, value in named.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            reply = connection.getresponse()
            return Reply(reply.status, {n.lower(): v for n, v in reply.getheaders()}, reply.read())


@contextlib.contextmanager
def running_node(folder: Path | Workspace, **asked: Any) -> Iterator[RunningNode]:
    """A node over the workspace of a folder, on any free port; keywords are the fields of `NodeOptions`."""
    workspace = folder if isinstance(folder, Workspace) else Workspace.open(folder)
    problems: list[str] = []
    options = NodeOptions(**{"on_problem": problems.append, **asked})
    served = {each.name: getattr(options, each.name) for each in fields(ServeOptions)}
    asked = {each.name: getattr(options, each.name) for each in fields(NodeOptions)}
    with (
        application(workspace, **asked) as node,
        RepositoryServer(workspace._files, node, **served) as server,
    ):
        yield RunningNode(server.url, node, problems)
