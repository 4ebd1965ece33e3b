"""A root and a derivative of it, made without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.derived_dataset import FIRST, SECOND, Made, on_paper
from tests.kit.support import Run


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace whose engine would have to be started."""
    return Workspace.init(tmp_path)


@pytest.fixture
def made(workspace: Workspace) -> Made:
    """Two transactions each."""
    return on_paper(workspace, FIRST, SECOND)


@pytest.fixture
def verify(tmp_path: Path, run: Run) -> Run:
    """`odfchain verify` in that workspace."""
    return lambda *args: run("-w", tmp_path, "verify", *args)
