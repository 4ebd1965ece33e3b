"""What is checked of everything that commits rows, whichever method it comes through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.api.foreign_key_checks import foreign_keys
from odfchain.progress import Progress

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.drift.commit_guard import PolicyFile
    from odfchain.repo.commit import AfterCommit, CommitCheck
    from odfchain.repo.dataset_files import DatasetFiles


@contextlib.contextmanager
def commit_checks(
    workspace: Workspace, progress: Progress, violations: str | Path | None, *, allow_drift: bool
) -> Iterator[CommitCheck]:
    """The check for what is committed in the block: of foreign keys (as `foreign_keys`), and of drift."""
    from odfchain.repo.commit import both

    with foreign_keys(workspace, progress, violations) as keys:
        yield both(keys, drift_check(workspace, progress, allow_drift=allow_drift))


def drift_check(workspace: Workspace, progress: Progress, *, allow_drift: bool) -> CommitCheck:
    """The check that the settings ask for: it refuses drift, and has the new profile written.

    Raises (when it is called):
        GuardError: the rows are further from what was there than the policy allows.
        UsageError, ManifestError: the policy is not there, or is none.
    """

    def check(dataset: DatasetFiles, state: Any, events: Sequence[Any], staged: Any) -> AfterCommit | None:
        from odfchain.repo.dataset_config import snapshots_of
        from odfchain.repo.snapshot_settings import ProfileWhen

        if all(getattr(event, "new_data", None) is None for event in events):
            return None
        wanted = snapshots_of(dataset, workspace._files.config.snapshots)
        writes = wanted.profile is ProfileWhen.COMMIT
        guard = None if allow_drift or not wanted.guard else read_policy_file(workspace.path, wanted.guard)
        if guard is None and not writes:
            return None
        from odfchain.drift.commit_guard import CommitProfiles

        return CommitProfiles(guard, writes, progress)(dataset, state, events, staged)

    return check


def read_policy_file(root: Path, guard: str) -> PolicyFile:
    """The policy that settings name; `root` is their folder.

    Raises:
        UsageError: there is no such file.
        ManifestError: it is no policy.
    """
    from odfchain.drift.commit_guard import PolicyFile
    from odfchain.drift.policy import read_policy
    from odfchain.errors import UsageError
    from odfchain.limits import LIMITS
    from odfchain.repo.snapshot_settings import policy_path
    from odfchain.store import fsio

    path = policy_path(root, guard)
    text = fsio.read_start(path, LIMITS.manifest_bytes + 1)
    if text is None:
        raise UsageError(
            f"snapshots.guard: {path}: there is no such file", hint="make it, or set another one"
        )
    return PolicyFile(path, read_policy(text, source=str(path)))
