"""What tests of workspaces on object stores begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import shared_store
from tests.kit.small_s3 import SmallS3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallS3]:
    """A store on loopback, in the environment of a machine that may write to it."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    with SmallS3() as store:
        yield store
