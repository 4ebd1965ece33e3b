"""What changes recorded rows on a reference of a dataset: corrections, and blocks that are taken back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odfchain.api.commit_checks import commit_checks, drift_check
from odfchain.api.foreign_key_checks import foreign_keys
from odfchain.errors import UsageError
from odfchain.progress import Progress
from odfchain.store.interfaces import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from odfchain.api.branch_points import AnyPoint
    from odfchain.api.merging_branches import Resolve
    from odfchain.api.workspace import Workspace
    from odfchain.branch.correcting import Corrections
    from odfchain.branch.recording import ChangeOutcome
    from odfchain.model.timestamp import Timestamp
    from odfchain.repo.dataset_files import DatasetFiles

Paths = str | Path | Iterable[str | Path]
"""One file or several."""

T = TypeVar("T")


def paths(files: Paths) -> tuple[Path, ...]:
    """Files as a user names them."""
    several = (files,) if isinstance(files, str | Path) else files
    return tuple(Path(file) for file in several)


def check_head_is_ours(
    workspace: Workspace, files: DatasetFiles, what: str, *, then: str | None = None, force: bool = False
) -> None:
    """Nothing where a reference may be written to: the head of a copy moves by `pull` only.

    Raises:
        UsageError: it is the head of a copy (unless `force`); the hint says `what` can be done instead, on a
            branch (`then`).
        ManifestError, StoreError: what is remembered of the dataset cannot be read.
    """
    from odfchain.transfer.aliases import is_copy

    if force or files.ref != HEAD or not is_copy(workspace._files, files):
        return
    raise UsageError(
        f"{files.alias} is a copy: its head moves by `pull` only",
        hint=f"`odfchain branch create {files.alias} NAME`, then {then or f'{what} {files.alias}@NAME'}",
    )


def latest_of(workspace: Workspace, *, allow_future: bool = False) -> Callable[[Timestamp], Timestamp | None]:
    """The latest event time that is believed, by the system time of a commit; None is no bound."""
    from odfchain.repo.watermark import latest_believed

    config = workspace._files.config.ingest
    if allow_future or config.allow_future:
        return lambda _: None
    return lambda now: latest_believed(now, config.max_future)


def _repeated(workspace: Workspace, attempt: Callable[[], T], progress: Progress) -> T:
    """What `attempt` returns, made anew when another writer was faster, as often as the settings say.

    Raises:
        RefConflictError: another writer was faster each time.
    """
    from odfchain.repo.commit import on_the_newest_head

    return on_the_newest_head(attempt, workspace._files.config.ingest.retries, progress)


def correct(
    workspace: Workspace,
    files: DatasetFiles,
    corrections: Corrections,
    *,
    force: bool,
    allow_future: bool,
    allow_drift: bool,
    violations: str | Path | None,
    progress: Progress,
) -> ChangeOutcome:
    """What `Dataset.correct` does; errors as there."""
    from odfchain.branch.correcting import correct as correct_rows

    check_head_is_ours(workspace, files, "correct", force=force)
    bound = latest_of(workspace, allow_future=allow_future)
    with commit_checks(workspace, progress, violations, allow_drift=allow_drift) as check:
        return _repeated(
            workspace, lambda: correct_rows(files, corrections, bound=bound, check=check), progress
        )


def revert(
    workspace: Workspace,
    files: DatasetFiles,
    block: AnyPoint,
    *,
    resolve: Resolve | None,
    message: str,
    system_time: Timestamp | None,
    force: bool,
    allow_drift: bool,
    violations: str | Path | None,
    progress: Progress,
) -> ChangeOutcome:
    """What `Dataset.revert` does; errors as there."""
    from odfchain.api.branch_diffs import engine_of
    from odfchain.api.branch_points import as_point
    from odfchain.api.branch_trust import trust_of
    from odfchain.branch.conflict_file import resolution_of
    from odfchain.branch.reverting import RevertMeans, RevertRequest
    from odfchain.branch.reverting import revert as revert_block
    from odfchain.repo.points import named_block
    from odfchain.spark.tally import Steps
    from odfchain.spark.watching import watched

    check_head_is_ours(workspace, files, "revert", force=force)
    block = named_block(files, as_point(block))
    request = RevertRequest(
        block=block, resolve=resolution_of(resolve), message=message, system_time=system_time
    )
    with (
        foreign_keys(workspace, progress, violations, merging=True) as check,
        watched(progress, Steps.all_called("Reverting")),
    ):
        means = RevertMeans(
            engine=engine_of(workspace),
            trusted=trust_of(workspace),
            bound=latest_of(workspace),
            check=check,
            guard=drift_check(workspace, progress, allow_drift=allow_drift),
        )
        return _repeated(workspace, lambda: revert_block(files, request, means), progress)
