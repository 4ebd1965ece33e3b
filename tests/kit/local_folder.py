"""Datasets in folders whose blocks are made from labels: equal labels at equal places are equal blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odfchain.odf.names import DatasetAlias
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.scenario import chain_of, extend


class LocalDataset:
    """A dataset with the chain of some labels; `hashes` are its blocks."""

    def __init__(self, folder: Path, labels: Sequence[str]) -> None:
        DatasetFiles.create_folders(folder, DatasetAlias.parse("foo"))
        self.files, chain = DatasetFiles.open(folder), chain_of(labels)
        extend(self.files, chain)
        self.hashes, self.head = chain.hashes, chain.head
