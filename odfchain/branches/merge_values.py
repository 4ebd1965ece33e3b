"""Requests, plans and results of merges, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pyarrow as pa

from odfchain.branches.conflict_file import UNDECIDED, Resolution
from odfchain.branches.diff import Trust
from odfchain.branches.executor import Engine
from odfchain.branches.foreign_keys import ForeignKeys
from odfchain.branches.recording import described
from odfchain.odf.events import MetadataEvent
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.text import counted
from odfchain.workspace.commit import CommitCheck
from odfchain.workspace.dataset_files import DatasetFiles


class MergeStatus(Enum):
    """Status of a merge."""

    MERGED = "merged"
    FAST_FORWARDED = "fast-forwarded"
    ALREADY_MERGED = "already merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """A requested merge: source, target and options."""

    target: DatasetFiles
    """The dataset on the reference that is merged into."""
    source_ref: str
    source: Multihash | None = None
    """A block of that reference; default is the newest one."""
    resolve: Resolution | Path = UNDECIDED
    by_row: bool = False
    """Without merging cells: two different rows of one key conflict."""
    fast_forward: bool = False
    with_metadata: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class MergeMeans:
    """Dependencies of merges, given by the caller."""

    engine: Engine
    trusted: Trust
    verified: Callable[[DatasetFiles, Multihash], None]
    """Raises where a fetched block is not to be relied on."""
    check: ForeignKeys
    """Of the workspace; each merge is checked against its own references."""
    guard: CommitCheck
    """An additional check of the rows."""
    bound: Callable[[Timestamp], Timestamp | None]
    """The latest event time that is believed at a system time."""
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """Result of a merge; `head` is the old one where nothing was recorded."""

    status: MergeStatus
    dataset: str
    into: str
    source_ref: str
    source: Multihash
    old_head: Multihash
    head: Multihash
    number: int
    """The sequence number of `head`."""
    operations: Mapping[str, int]
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
    conflicts: Mapping[str, int]
    """Conflicts by what was taken (`ours`, `theirs`, `base`, `delete`, `value`)."""
    notes: tuple[str, ...] = ()

    def described(self, *, dry_run: bool = False, named: bool = False) -> str:
        """The result in a sentence; `named` includes the dataset's name."""
        from_where, into = f"{self.source_ref} ({str(self.source)[:7]}…)", self.into
        about = f"{self.dataset}: " if named else ""
        if self.status is MergeStatus.ALREADY_MERGED:
            return f"{about}{into} has merged {from_where} already"
        if self.status is MergeStatus.FAST_FORWARDED:
            moved = "would move" if dry_run else "moved"
            return f"{about}{moved} {into} forward to {from_where}: it is block {self.number:,}"
        taken = ", ".join(f"{count:,} {take}" for take, count in sorted(self.conflicts.items()))
        decided = (
            f"{counted(sum(self.conflicts.values()), 'conflict')} ({taken})" if taken else "no conflicts"
        )
        brought = f"{from_where} into {into}: {described(self.operations)}, {decided}"
        return (
            f"{about}would merge {brought}"
            if dry_run
            else f"{about}merged {brought}; {into} is block {self.number:,}"
        )

    def __repr__(self) -> str:
        return f"<{self.described(named=True)}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergePlan:
    """Result of a dry run of a merge, for the two heads as they were."""

    dataset: str
    into: str
    """The reference that is merged into."""
    target: Multihash
    """Its head."""
    source_ref: str
    source: Multihash
    bases: tuple[Multihash, ...]
    """The best common ancestors, in order of sequence number and hash."""
    key: tuple[str, ...]
    by_row: bool
    changes: pa.Table
    """Changes of our rows, as `Diff.changes`, without those in conflict."""
    conflicts: pa.Table
    """A line for each conflict (`odfchain.branches.conflict_file.lines_schema`)."""
    events: tuple[MetadataEvent, ...]
    """Metadata events of the source, which are merged only on request."""
    notes: tuple[str, ...]
    is_merged: bool
    """True if there is nothing to do."""
