"""What a dataset can do with its branches: the methods of `Dataset` that are about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.repo.dataset_files import DatasetFiles


class Branching:
    """Branches of a dataset, and what lies between them (RFC-035, RFC-036)."""

    _workspace: Workspace
    _files: DatasetFiles
