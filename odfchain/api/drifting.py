"""Which profiles `diff --profile` compares: files, datasets at points, or the last two data blocks of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.snapshots import Profile, compare_profiles
from odfchain.errors import PointNotFoundError
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.drift.drift_values import Drift


def is_profile_file(text: str) -> bool:
    """Whether a text is a path and no `DATASET@POINT`: it ends in `.json`, or begins with `.` or `/`."""
    return text.endswith(".json") or text[:1] in {".", "/"} or bool(Path(text).drive)


def drift_between(
    a: str,
    b: str | None,
    workspace: Callable[[], Workspace],
    *,
    policy: str | Path | None = None,
    compute: bool = True,
    progress: Progress = SILENT,
) -> Drift:
    """How far two profiles are apart: of files, of `DATASET@POINT`; of the last two data blocks of one.

    The workspace is opened where a dataset is named. A profile that was kept, or that the owner published, is
    taken as it is; others are computed, which reads slices.

    Raises:
        PointNotFoundError: nothing may be computed and there is no profile; or there are no two data blocks.
        And as `Profile.read`, `at_point`, `Dataset.profile`, `compare_profiles`.
    """
    notes: list[str] = []
    opened: list[Workspace] = []

    def shared() -> Workspace:
        if not opened:
            opened.append(workspace())
        return opened[0]

    def of_dataset(dataset: Dataset) -> Profile:
        return _profile_of(dataset, notes, compute=compute, progress=progress)

    if b is None:
        before, after = (of_dataset(dataset) for dataset in _last_two(shared(), a))
    else:
        before, after = (
            Profile.read(text) if is_profile_file(text) else of_dataset(_at_point(shared(), text))
            for text in (a, b)
        )
    found = compare_profiles(before, after, policy)
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _at_point(workspace: Workspace, text: str) -> Dataset:
    from odfchain.api.branch_points import at_point  # files need no chain

    return at_point(workspace, text)


def _last_two(workspace: Workspace, text: str) -> list[Dataset]:
    """The dataset as of its last two blocks that brought data."""
    from itertools import islice

    from odfchain.api.branch_points import at_point, opened_at

    dataset = at_point(workspace, text)
    newest = [ref.block_hash for ref in islice(dataset.summary.slices_newest_first(), 2)]
    if len(newest) < 2:
        raise PointNotFoundError(
            f"{text} has no two blocks with data to compare",
            hint="name two: `odfchain diff --profile A B`, each DATASET@POINT or the file of a profile",
        )
    return [opened_at(dataset._files, workspace, block) for block in reversed(newest)]


def _profile_of(dataset: Dataset, notes: list[str], *, compute: bool, progress: Progress) -> Profile:
    from odfchain.profile.kept_profiles import kept_profile
    from odfchain.profile.known_profile import owners_profile

    files, summary = dataset._files, dataset.summary
    kept = kept_profile(files, summary.head)
    if kept is not None:
        return Profile(kept)
    block = f"block {summary.head_block.sequence_number:,}"
    published = owners_profile(files, summary.head)
    if published is not None:
        notes.append(f"{dataset.alias}, {block}: the profile is the one that its owner published")
        return Profile(published)
    if not compute:
        raise PointNotFoundError(
            f"{dataset.alias}: no profile of {block} is here",
            hint="leave --no-compute out, and it is computed",
        )
    return dataset.profile(progress=progress)
