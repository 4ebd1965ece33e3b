"""What is done about profiles when rows are committed, in a workspace or in one of its datasets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ProfileWhen(Enum):
    """When profiles are written."""

    DEMAND = "demand"
    """When somebody asks for one."""
    COMMIT = "commit"
    """Whenever rows are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsConfig:
    """How datasets are profiled, and what drift is refused."""

    profile: ProfileWhen = ProfileWhen.DEMAND
    """When profiles are written."""
    guard: str = ""
    """The drift policy that every commit of rows is held to: a file, seen from the folder of the workspace;
    none where it is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSnapshots:
    """What is set for one dataset; None is what the workspace says."""

    profile: ProfileWhen | None = None
    guard: str | None = None
    """Empty: none, whatever the workspace says."""

    def over(self, others: SnapshotsConfig) -> SnapshotsConfig:
        """What is in force for the dataset."""
        return SnapshotsConfig(
            profile=others.profile if self.profile is None else self.profile,
            guard=others.guard if self.guard is None else self.guard,
        )


def policy_path(root: Path, guard: str) -> Path:
    """The file of a policy, by how settings name it; `root` is the folder of the settings."""
    return root.parent / guard
