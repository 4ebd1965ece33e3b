"""What tests of sharing begin with: workspaces, also on object stores, and a user who keeps tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.transfer.credentials import Credentials
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import shared_store
from tests.kit.kept_tokens import User
from tests.kit.signed_heads import Reader
from tests.kit.small_s3 import SmallS3
from tests.kit.support import Run


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    """An empty one."""
    return WorkspaceFiles.init(tmp_path)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallS3]:
    """A store on loopback, in the environment of a machine that may write to it."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    with SmallS3() as store:
        yield store


@pytest.fixture
def one(store: SmallS3, tmp_path: Path) -> Workspace:
    """A machine of the store."""
    return shared_store.machine(store, tmp_path / "one")


@pytest.fixture
def other(store: SmallS3, tmp_path: Path) -> Workspace:
    """Another one, which has nothing else in common with it."""
    return shared_store.machine(store, tmp_path / "other")


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """The user's own."""
    monkeypatch.setenv("ODFCHAIN_CREDENTIALS", str(tmp_path / "home" / "credentials.json"))
    return Credentials.of_user()


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, run: Run, credentials: Credentials) -> User:
    """A user who keeps no token yet."""
    return User(monkeypatch, run, credentials)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A workspace that pulls signed datasets."""
    return Reader(tmp_path / "reader")


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """Where such datasets are published."""
    return tmp_path / "peer"
