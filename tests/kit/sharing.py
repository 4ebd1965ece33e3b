"""What a workspace shares, with pulls, pushes and fetches at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from odfchain import Workspace
from odfchain.api.dataset import Dataset
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.transfer import pulling, pushing
from odfchain.transfer.branch_fetch import FetchedSources
from odfchain.transfer.pulling import FetchOutcome
from odfchain.transfer.pushing import PushOutcome, PushPlan
from odfchain.transfer.sharing import Sharing as Places
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import PushOptions

Ref = str | DatasetId | DatasetAlias

ANY = PushOptions()


class Sharing(Places):
    """Pull, push and fetch of a workspace."""

    pull, pull_branch = pulling.pull, pulling.pull_branch

    def push(
        self, ref: Ref | DatasetFiles, target: str | None = None, options: PushOptions = ANY, **also: Any
    ) -> PushOutcome:
        return pushing.push(self, self.dataset(ref), replace(options, target=target, **also))

    def plan_push(
        self, ref: Ref | DatasetFiles, target: str | None = None, options: PushOptions = ANY, **also: Any
    ) -> PushPlan:
        return pushing.plan_push(self, self.dataset(ref), replace(options, target=target, **also))

    def fetch(self, ref: Ref | DatasetFiles, *given: Any, **options: Any) -> FetchOutcome:
        return self._opened(ref).fetch(*given, **options)

    def fetch_merged(self, ref: Ref | DatasetFiles, *given: Any, **options: Any) -> FetchedSources:
        return self._opened(ref).fetch_merged(*given, **options)

    def dataset(self, ref: Ref | DatasetFiles) -> DatasetFiles:
        return ref if isinstance(ref, DatasetFiles) else self.workspace.dataset(ref)

    def _opened(self, ref: Ref | DatasetFiles) -> Dataset:
        return Dataset(Workspace.open(self.workspace.root), self.dataset(ref))
