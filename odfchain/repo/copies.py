"""Datasets that are somebody else's: their head moves by `pull` only."""

from __future__ import annotations

from odfchain.errors import UsageError
from odfchain.repo.dataset_config import read_config
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store.interfaces import HEAD


def refuse_head_of_copy(workspace: WorkspaceFiles, dataset: DatasetFiles, hint: str) -> None:
    """Nothing on a branch, or where the owner's key is, or where it is not known whence the dataset came.

    Raises:
        UsageError: what is opened is the head of a copy; the `hint` says what to do instead.
        ManifestError, StoreError: the settings cannot be read.
    """
    if dataset.ref != HEAD or not read_config(dataset).pull_aliases or workspace.has_key(dataset.id):
        return
    raise UsageError(
        f"{dataset.alias} is a copy: its head moves by `odfchain pull` only, or it would be another history",
        hint=f"{hint}; to go on from it as a history of your own, use --force",
    )
