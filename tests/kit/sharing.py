"""What a workspace shares, with pulls, pushes and fetches at hand."""

from __future__ import annotations

from typing import Any

from odfchain import Workspace
from odfchain.api.dataset import Dataset
from odfchain.transfer import pulling, pushing
from odfchain.transfer.branch_fetch import FetchedSources
from odfchain.transfer.pulling import FetchOutcome
from odfchain.transfer.sharing import Ref
from odfchain.transfer.sharing import Sharing as Places
from odfchain.workspace.dataset_files import DatasetFiles


class Sharing(Places):
    """Pull, push and fetch of a workspace."""

    pull, pull_branch = pulling.pull, pulling.pull_branch
    push, plan_push = pushing.push, pushing.plan_push

    def fetch(self, ref: Ref | DatasetFiles, *given: Any, **options: Any) -> FetchOutcome:
        return self._opened(ref).fetch(*given, **options)

    def fetch_merged(self, ref: Ref | DatasetFiles, *given: Any, **options: Any) -> FetchedSources:
        return self._opened(ref).fetch_merged(*given, **options)

    def _opened(self, ref: Ref | DatasetFiles) -> Dataset:
        return Dataset(Workspace.open(self.workspace.root), self.dataset(ref))
