"""A workspace with all troubles, made once for each process; tests that write take a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import troubled_workspace


@pytest.fixture(scope="session")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the workspace of `troubled_workspace`, which is only read."""
    with troubled_workspace.make(tmp_path_factory.mktemp("troubled")) as workspace:
        return workspace.path
