"""What a workspace shares, with pulls, pushes and fetches at hand."""

from __future__ import annotations

from typing import Any

from odfchain import Workspace
from odfchain.api.dataset import Dataset
from odfchain.transfer import pulling, pushing
from odfchain.transfer.branch_fetch import FetchedSources
from odfchain.transfer.pulling import FetchOutcome, Pulled
from odfchain.transfer.pushing import PushOutcome, PushPlan
from odfchain.transfer.sharing import Ref
from odfchain.transfer.sharing import Sharing as Places
from odfchain.workspace.dataset_files import DatasetFiles


class Sharing(Places):
    """Pull, push and fetch of a workspace."""

    def pull(self, *given: Any, **options: Any) -> Pulled:
        return pulling.pull(self, *given, **options)

    def pull_branch(self, *given: Any, **options: Any) -> Pulled:
        return pulling.pull_branch(self, *given, **options)

    def push(self, *given: Any, **options: Any) -> PushOutcome:
        return pushing.push(self, *given, **options)

    def plan_push(self, *given: Any, **options: Any) -> PushPlan:
        return pushing.plan_push(self, *given, **options)

    def fetch(self, ref: Ref | DatasetFiles, *given: Any, **options: Any) -> FetchOutcome:
        return self._opened(ref).fetch(*given, **options)

    def fetch_merged(self, ref: Ref | DatasetFiles, *given: Any, **options: Any) -> FetchedSources:
        return self._opened(ref).fetch_merged(*given, **options)

    def _opened(self, ref: Ref | DatasetFiles) -> Dataset:
        return Dataset(Workspace.open(self.workspace.root), self.dataset(ref))
