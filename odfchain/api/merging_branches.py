"""Merging branches of one dataset, or of several together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import UsageError
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.branching import Branching
    from odfchain.api.workspace import Workspace
    from odfchain.branch.merging import MergeMeans, MergeOutcome, MergePlan, MergeRequest

Resolve = str | Path
"""Who decides conflicts: `ours`, `theirs`, or a file of conflicts that was filled in."""


def plan(dataset: Branching, source: str, *, by_row: bool = False) -> MergePlan:
    """What merging a branch into the dataset would do; see `Dataset.plan_merge`."""
    from odfchain.branch.merging import MergeRequest, plan_merge

    request = MergeRequest(target=dataset._files, source_ref=source, by_row=by_row)
    return plan_merge(request, _means(dataset._workspace, SILENT, None))


def merge_branches(
    datasets: Sequence[Branching],
    source: str | MergePlan,
    *,
    resolve: Resolve | None = None,
    fast_forward: bool = False,
    force: bool = False,
    dry_run: bool = False,
    retries: int | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> list[MergeOutcome]:
    """Merge a branch of this name into each dataset, those first that others refer to.

    All merges are computed and decided before one is committed; each commits by itself. Options and errors
    are those of `Dataset.merge`.
    """
    from odfchain.branch.merging import merge_all
    from odfchain.repo.copies import refuse_head_of_copy

    workspace = datasets[0]._workspace
    for dataset in datasets:
        if not force:
            hint = f"merge into a branch: `odfchain merge {dataset._files.alias} head --into BRANCH`"
            refuse_head_of_copy(workspace._files, dataset._files, hint)
    if resolve not in (None, "ours", "theirs") and len(datasets) > 1:
        raise UsageError("a file decides the conflicts of one dataset; merge the datasets one by one")
    requests = [
        _request(dataset, source, resolve, fast_forward=fast_forward, **options) for dataset in datasets
    ]
    means = _means(workspace, progress, retries)
    return merge_all(requests, means, dry_run=dry_run, progress=progress)


def _request(
    dataset: Branching, source: str | MergePlan, resolve: Resolve | None, **options: Any
) -> MergeRequest:
    from odfchain.branch.merging import MergePlan, MergeRequest
    from odfchain.branch.resolving import UNDECIDED, Resolution

    decided: Resolution | Path = UNDECIDED
    if resolve is not None:
        named = resolve in ("ours", "theirs")
        decided = Resolution.of_side(str(resolve)) if named else Path(resolve)
    if isinstance(source, MergePlan):
        if (source.dataset, source.into) != (str(dataset._files.alias), dataset.ref):
            raise UsageError(f"the plan is of {source.dataset}@{source.into}, not of {dataset.label}")
        options["by_row"] = options.get("by_row") or source.by_row
        return MergeRequest(
            target=dataset._files, source_ref=source.source_ref, source=source.source, resolve=decided,
            **options,
        )  # fmt: skip
    return MergeRequest(target=dataset._files, source_ref=source, resolve=decided, **options)


def _means(workspace: Workspace, progress: Progress, retries: int | None) -> MergeMeans:
    from odfchain.api.branch_trust import ensure_verified, trust_of
    from odfchain.branch.computing import Engine
    from odfchain.branch.merging import MergeMeans
    from odfchain.repo.watermark import latest_believed

    settings = workspace.ingest_config
    future = settings.max_future
    return MergeMeans(
        engine=Engine(workspace.session),
        trusted=trust_of(workspace),
        verified=lambda dataset, block: ensure_verified(dataset, block, progress),
        references=lambda *_: {},
        check=lambda *_: None,
        bound=lambda time: latest_believed(time, future) if future is not None else None,
        retries=settings.retries if retries is None else retries,
    )
