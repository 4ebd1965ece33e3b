"""Merging branches of one dataset, or of several together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import UsageError
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.branching import Branching
    from odfchain.api.workspace import Workspace
    from odfchain.branch.merge_values import MergeMeans, MergeOutcome, MergePlan, MergeRequest

Resolve = str | Path
"""Who decides conflicts: `ours`, `theirs`, or a file of conflicts that was filled in."""


def plan(dataset: Branching, source: str, *, by_row: bool = False) -> MergePlan:
    """What merging a branch into the dataset would do; see `Dataset.plan_merge`."""
    from odfchain.branch.merge_values import MergeRequest
    from odfchain.branch.merging import plan_merge

    request = MergeRequest(target=dataset._files, source_ref=source, by_row=by_row)
    with _means(dataset._workspace, SILENT) as means:
        return plan_merge(request, means)


def merge_branches(
    datasets: Sequence[Branching],
    source: str | MergePlan,
    *,
    resolve: Resolve | None = None,
    fast_forward: bool = False,
    force: bool = False,
    dry_run: bool = False,
    allow_drift: bool = False,
    violations: str | Path | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> list[MergeOutcome]:
    """Merge a branch of this name into each dataset, those first that others refer to.

    All merges are computed and decided before one is committed; each commits by itself. Options and errors
    are those of `Dataset.merge`.
    """
    from odfchain.api.changing import check_head_is_ours
    from odfchain.branch.merging import merge_all
    from odfchain.spark.tally import Steps
    from odfchain.spark.watching import watched

    workspace = datasets[0]._workspace
    for dataset in datasets:
        then = f"`odfchain merge {dataset._files.alias} head --into NAME`"
        check_head_is_ours(workspace, dataset._files, "merge", then=then, force=force)
    if resolve not in (None, "ours", "theirs") and len(datasets) > 1:
        raise UsageError("a file decides the conflicts of one dataset; merge the datasets one by one")
    requests = [
        _request(dataset, source, resolve, fast_forward=fast_forward, **options) for dataset in datasets
    ]
    with (
        _means(workspace, progress, violations, allow_drift=allow_drift) as means,
        watched(progress, Steps.all_called("Merging")),
    ):
        return merge_all(requests, means, dry_run=dry_run, progress=progress)


def _request(
    dataset: Branching, source: str | MergePlan, resolve: Resolve | None, **options: Any
) -> MergeRequest:
    from odfchain.branch.conflict_file import resolution_of
    from odfchain.branch.merge_values import MergePlan, MergeRequest

    decided = resolution_of(resolve)
    if isinstance(source, MergePlan):
        if (source.dataset, source.into) != (str(dataset._files.alias), dataset.ref):
            raise UsageError(f"the plan is of {source.dataset}@{source.into}, not of {dataset.label}")
        options["by_row"] = options.get("by_row") or source.by_row
        return MergeRequest(
            target=dataset._files, source_ref=source.source_ref, source=source.source, resolve=decided,
            **options,
        )  # fmt: skip
    return MergeRequest(target=dataset._files, source_ref=source, resolve=decided, **options)


@contextlib.contextmanager
def _means(
    workspace: Workspace,
    progress: Progress,
    violations: str | Path | None = None,
    *,
    allow_drift: bool = False,
) -> Iterator[MergeMeans]:
    """What merges need; rows that break foreign keys are written to `violations`."""
    from odfchain.api.branch_diffs import engine_of
    from odfchain.api.branch_trust import ensure_verified, trust_of
    from odfchain.api.changing import latest_of
    from odfchain.api.commit_checks import drift_check
    from odfchain.api.foreign_key_checks import foreign_keys
    from odfchain.branch.merge_values import MergeMeans

    with foreign_keys(workspace, progress, violations, merging=True) as check:
        yield MergeMeans(
            engine=engine_of(workspace),
            trusted=trust_of(workspace),
            verified=lambda dataset, block: ensure_verified(dataset, block, progress),
            check=check,
            guard=drift_check(workspace, progress, allow_drift=allow_drift),
            bound=latest_of(workspace),
            retries=workspace.ingest_config.retries,
        )
