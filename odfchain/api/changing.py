"""What every change of a dataset asks first: foreign keys and drift."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import ForeignKeyError, UsageError
from odfchain.progress import Progress

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.branches.foreign_keys import ForeignKeys
    from odfchain.profiles.drift_guard import PolicyFile
    from odfchain.workspace.commit import AfterCommit, CommitCheck, Proposed
    from odfchain.workspace.options import CommitOptions


# The check of foreign keys for one run, and the file that lists what breaks them.


@contextlib.contextmanager
def foreign_keys(
    workspace: Workspace, progress: Progress, violations: str | Path | None = None, **how: Any
) -> Iterator[ForeignKeys]:
    """The check for what is committed in the block; what it finds is then written to `violations`.

    `how` is as in `ForeignKeys.of`.
    """
    from odfchain.branches.conflict_file import check_ending
    from odfchain.branches.foreign_keys import ForeignKeys

    path = None if violations is None else Path(violations)
    if path is not None:
        check_ending(path, "violations")
    check = ForeignKeys.of(workspace._files, progress.note, **how)
    try:
        yield check
    except ForeignKeyError:
        if path is not None:
            check.write(path)
        raise
    if path is not None:
        check.write(path)


# Checks of everything that commits rows, whichever method it comes through.


@contextlib.contextmanager
def commit_checks(workspace: Workspace, options: CommitOptions) -> Iterator[CommitCheck]:
    """The check for what is committed in the block: of foreign keys (as `foreign_keys`), and of drift."""
    from odfchain.workspace.commit import both

    with foreign_keys(workspace, options.progress, options.violations) as keys:
        yield both(keys, drift_check(workspace, options))


def drift_check(workspace: Workspace, options: CommitOptions) -> CommitCheck:
    """The check that the settings ask for: it refuses drift, and has the new profile written.

    Raises (when it is called):
        GuardError: the rows are further from what was there than the policy allows.
        UsageError, ManifestError: the policy is not there, or is none.
    """

    def check(proposed: Proposed) -> AfterCommit | None:
        from odfchain.workspace.config import ProfileWhen

        if not proposed.added:
            return None
        wanted = workspace._files.config.snapshots.of(proposed.dataset)
        writes = wanted.profile is ProfileWhen.COMMIT
        guard = (
            None
            if options.allow_drift or not wanted.guard
            else read_policy_file(workspace.path, wanted.guard)
        )
        if guard is None and not writes:
            return None
        from odfchain.profiles.drift_guard import CommitProfiles

        return CommitProfiles(guard, writes, options.progress)(proposed)

    return check


def read_policy_file(root: Path, guard: str) -> PolicyFile:
    """The policy that settings name; `root` is their folder.

    Raises:
        UsageError: there is no such file.
    """
    from odfchain.limits import LIMITS
    from odfchain.profiles.drift import read_policy
    from odfchain.profiles.drift_guard import PolicyFile
    from odfchain.storage import fsio

    path = root.parent / guard
    text = fsio.read_start(path, LIMITS.manifest_bytes + 1)
    if text is None:
        raise UsageError(f"snapshots.guard: {path}: no such file", hint="make it, or set another one")
    return PolicyFile(path, read_policy(text, source=str(path)))
