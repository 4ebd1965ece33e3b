"""A node over a workspace, on loopback in this process, and what it answers to requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from odfchain.api.workspace import Workspace
from odfchain.node.application import Node
from odfchain.node.parts import NodeParts
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.options import NodeOptions
from tests.kit.served_workspace import Reply, ask

TEST_KEY = b"\x7b" * 32
"""The private key with which the reference node has signed what is recorded of it."""


class ServedNode:
    """A running node."""

    def __init__(self, url: str, parts: NodeParts) -> None:
        self.url, self.parts = url, parts

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Reply:
        """One request; a body that is no bytes is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"Content_Type": "application/json"} | headers
        return ask(self.url, path, method, body, **headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """The status and the document of an answer."""
        reply = self.ask(path, "POST", body, **headers)
        return reply.status, json.loads(reply.body)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        reply = self.ask(path, **headers)
        return reply.status, json.loads(reply.body)


@contextlib.contextmanager
def served(workspace: Workspace, **options: Any) -> Iterator[ServedNode]:
    """The node, until the end of the block; keywords are those of `NodeOptions`."""
    parts = NodeParts(workspace, NodeOptions(**options))
    serving = {name: options[name] for name in ("restrict_reading", "behind_proxy") if name in options}
    with Node(parts) as node, RepositoryServer(parts.files, node, port=0, **serving) as server:
        yield ServedNode(server.url, parts)


def sign_as_reference(workspace: Workspace) -> None:
    """Signed answers of this workspace have the signature of the reference node's test."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from odfchain.odf.identity import DatasetKey
    from odfchain.storage import fsio

    key = DatasetKey(Ed25519PrivateKey.from_private_bytes(TEST_KEY))
    fsio.create_file(workspace._files.root / "node.pem", key.to_pem(), mode=0o600)
