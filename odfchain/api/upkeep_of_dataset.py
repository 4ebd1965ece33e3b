"""What keeps a dataset in order: the methods of `Dataset` that are about its files."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.api.options import Block
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.repo.dataset_files import DatasetFiles
    from odfchain.upkeep.batches import BatchLimits
    from odfchain.upkeep.garbage import Collected
    from odfchain.upkeep.hard_compaction import CompactPlan
    from odfchain.upkeep.repair import FsckReport
    from odfchain.upkeep.rollback import ResetPlan
    from odfchain.upkeep.soft import SoftPlan


class Upkeep(OwnErrors):
    """Resets, garbage, repairs and compactions of a dataset."""

    _workspace: Workspace
    _files: DatasetFiles

    def plan_reset(self, block: Block) -> ResetPlan:
        """What `reset` to a block (its hash or number) would mean; nothing is changed.

        In a workspace with a store the hash of the head there may be given, whatever was seen here: then
        `reset` follows it (`Workspace.last_seen`).
        """
        from odfchain.upkeep.rollback import plan_reset

        target = str(block) if isinstance(block, int) else block
        return plan_reset(self._workspace._files, self._files, target)

    def reset(
        self, to: Block | ResetPlan, *, force: bool = False, break_references: bool = False
    ) -> str | None:
        """The head is at a block, or where a plan says; returns the reference that keeps the old one.

        Raises:
            UnsavedBlocksError: blocks that would be dropped are perhaps nowhere else (unless `force`).
            GuardError: rows name changes that would be dropped (unless `break_references`).
            RefConflictError, BusyError: another process is at work on the dataset.
            UsageError, InvalidIdError, ObjectNotFoundError: there is no such block.
        """
        from odfchain.upkeep.rollback import reset

        plan = self.plan_reset(to) if isinstance(to, Multihash | int | str) else to
        files = self._workspace._files
        return reset(files, self._files, plan, force=force, break_references=break_references)

    def gc(
        self,
        *,
        grace: float = 86_400,
        drop_refs: bool = False,
        dry_run: bool = False,
        break_references: bool = False,
    ) -> Collected:
        """What the dataset does not need is gone, as far as it was not used for `grace` [s].

        `drop_refs` gives up heads that were overwritten, reset or compacted before that. Changes that rows of
        this workspace name stay, and these are named; with `break_references` they go, too.

        Raises:
            UsageError, BusyError: the grace period is too short, or something is being pulled in.
            BrokenChainError, SliceNotFoundError, ObjectCorruptedError: it cannot be said what is needed;
                nothing was removed.
        """
        from odfchain.upkeep.garbage import GcOptions, collect

        options = GcOptions(
            grace=grace, drop_refs=drop_refs, dry_run=dry_run, break_references=break_references
        )
        return collect(self._files, options, workspace=self._workspace._files)

    def fsck(
        self,
        source: str | None = None,
        *,
        head: Multihash | None = None,
        dry_run: bool = False,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FsckReport:
        """What is damaged or missing is in the report, and repaired where there is a good copy.

        `source` is a URL or `repo/name` of any copy (default: the store that the dataset is in, if any); it
        need not be trusted. `head` is what a lost head is to be, when the caller knows it.

        Raises:
            UsageError, BusyError: the head cannot be this dataset's, or something is being pulled in.
            InvalidIdError, WorkspaceError, TransferError: `source` cannot be used.
            StorageFullError, StoreError: a good copy cannot be stored.
        """
        from odfchain.upkeep.repair import FsckOptions, fsck

        options = FsckOptions(dry_run=dry_run, head=head)
        source = source or self._files.shared.place(self._files.folder)
        opened = nullcontext() if source is None else closing(self._workspace._sharing.open(source, token))
        with opened as peer:
            return fsck(self._workspace._files, self._files, peer, options, progress)

    def plan_compact(self, *, limits: BatchLimits | None = None, metadata_only: bool = False) -> CompactPlan:
        """What `compact` would do, and who breaks by it; nothing is changed.

        `limits` say how large a merged slice may become; `metadata_only` gives up all data.
        """
        from odfchain.upkeep.batches import BatchLimits
        from odfchain.upkeep.hard_compaction import CompactOptions, plan_compact

        chosen = CompactOptions(limits=limits or BatchLimits(), metadata_only=metadata_only)
        return plan_compact(self._workspace._files, self._files, chosen)

    def compact(
        self,
        plan: CompactPlan | None = None,
        *,
        force: bool = False,
        break_references: bool = False,
        progress: Progress = SILENT,
    ) -> Multihash:
        """Small slices are merged and the blocks that had them replaced; returns the new head.

        Whoever has read the old blocks must start over; `plan_compact` says who that is.

        Raises:
            GuardError: rows name changes that would be replaced (unless `break_references`).
            UnsavedBlocksError, RefConflictError, BusyError: the dataset is as it was.
        """
        from odfchain.upkeep.hard_compaction import compact

        chosen = plan or self.plan_compact()
        return compact(
            self._workspace._files, self._files, chosen, force=force, break_references=break_references,
            progress=progress,
        )  # fmt: skip

    def plan_soft_compact(self, name: str | DatasetAlias, limits: BatchLimits | None = None) -> SoftPlan:
        """What `soft_compact` would make; nothing is changed."""
        from odfchain.upkeep.soft import plan_soft

        alias = DatasetAlias.parse(name) if isinstance(name, str) else name
        return plan_soft(self._workspace._files, self._files, alias, limits)

    def soft_compact(self, to: str | SoftPlan, *, progress: Progress = SILENT) -> Dataset:
        """A new root dataset with the records of this one in few slices; nobody breaks.

        Raises:
            InvalidIdError, NameCollisionError, UsageError, StoreError: it cannot be made.
        """
        from odfchain.upkeep.soft import soft_compact

        plan = self.plan_soft_compact(to) if isinstance(to, str) else to
        made = soft_compact(self._workspace._files, self._files, plan, progress)
        from odfchain.api.dataset import Dataset

        return Dataset(self._workspace, made)
