"""Datasets on paper inside a workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.odf.identity import encode_base16
from odfchain.odf.names import DatasetAlias
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.derivation import Place
from tests.kit.support import seeded_id


@pytest.fixture
def home(tmp_path: Path) -> Workspace:
    """A workspace without datasets."""
    return Workspace.init(tmp_path)


@pytest.fixture
def place(home: Workspace) -> Place:
    """Empty files for a dataset of the workspace, whose id is seeded by its name."""

    def make(name: str) -> DatasetFiles:
        folder = home.path / "datasets" / encode_base16(seeded_id(name).to_bytes())
        DatasetFiles.create_folders(folder, DatasetAlias.parse(name))
        return DatasetFiles.open(folder)

    return make
