"""Nodes that may be written to, of a folder and of a store, for the tests of the smart protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.odf.names import DatasetAlias
from odfchain.transfer import server_app
from odfchain.transfer.access_tokens import AccessToken, PushSession, PushSessions, TokenFile
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import shared_store
from tests.kit.small_s3 import SmallS3
from tests.kit.smart_site import Site
from tests.kit.store_node import Hub, node_of


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    found = threading.Event()
    found.set()
    begin, end = PushSessions.begin, PushSessions.end

    def begun(sessions: PushSessions, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        session = begin(sessions, alias, token)
        if session is not None:
            found.clear()
        return session

    def ended(sessions: PushSessions, session: PushSession) -> None:
        end(sessions, session)
        found.set()

    monkeypatch.setattr(PushSessions, "begin", begun)
    monkeypatch.setattr(PushSessions, "end", ended)
    return found


@pytest.fixture
def site(tmp_path: Path, idle: threading.Event) -> Iterator[Site]:
    node, ours = WorkspaceFiles.init(tmp_path / "node"), WorkspaceFiles.init(tmp_path / "ours")
    with RepositoryServer(node, write=True) as server:
        yield Site(node, ours, server.url, TokenFile(node.root), idle)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallS3]:
    shared_store.environment(monkeypatch, tmp_path / "home")
    # readers ask the store once, so what they see afterwards is what pushes have brought
    monkeypatch.setattr(server_app, "_SECONDS", float("inf"))
    with SmallS3() as store:
        yield store


@pytest.fixture
def hub(store: SmallS3, tmp_path: Path, idle: threading.Event) -> Iterator[Hub]:
    with node_of(store, tmp_path, "node", idle) as (site, problems):
        yield Hub(store, tmp_path, site, problems)
