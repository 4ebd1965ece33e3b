"""A workspace for the tests of upkeep, and a good copy of its dataset `cities`."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.sharing import Sharing
from tests.kit.upkeep_scenes import new_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    return new_workspace(tmp_path / "w")


@pytest.fixture
def copy(workspace: WorkspaceFiles, dataset: DatasetFiles, tmp_path: Path) -> str:
    """The URL of a good copy."""
    url = (tmp_path / "copy").as_uri()
    Sharing(workspace).push(dataset.alias, url)
    return url
