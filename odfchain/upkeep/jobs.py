"""Upkeep as a user asks for it: datasets by reference, copies by URL, the workspace's settings."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.ids.multihash import Multihash
    from odfchain.upkeep.batches import BatchLimits
    from odfchain.upkeep.compact import CompactOptions, CompactPlan
    from odfchain.upkeep.fsck import FsckOptions, FsckReport
    from odfchain.upkeep.gc import Collected, GcOptions
    from odfchain.upkeep.reset import ResetPlan
    from odfchain.upkeep.soft import SoftPlan

Ref = str | DatasetId | DatasetAlias
"""A dataset of this workspace."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What keeps a workspace in order."""

    workspace: WorkspaceFiles

    def _files(self, ref: Ref) -> DatasetFiles:
        return self.workspace.dataset(ref)

    # --- going back --------------------------------------------------------------------------------

    def plan_reset(self, ref: Ref, block: str) -> ResetPlan:
        """What moving the head to a block (its hash or number) means; nothing is changed.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            And all errors of `odfchain.upkeep.reset.plan_reset`.
        """
        from odfchain.upkeep.reset import plan_reset  # noqa: PLC0415 - as everything here

        return plan_reset(self.workspace, self._files(ref), block)

    def reset(self, ref: Ref, plan: ResetPlan, *, force: bool = False) -> str | None:
        """The head is where the plan says; returns the reference that keeps the old one.

        Raises:
            All errors of `odfchain.upkeep.reset.reset`.
        """
        from odfchain.upkeep.reset import reset  # noqa: PLC0415

        return reset(self.workspace, self._files(ref), plan, force=force)

    # --- garbage -----------------------------------------------------------------------------------

    def gc(self, ref: Ref, options: GcOptions | None = None) -> Collected:
        """What a dataset does not need is gone, as far as it is older than the grace period.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            And all errors of `odfchain.upkeep.gc.collect`.
        """
        from odfchain.upkeep.gc import collect  # noqa: PLC0415

        return collect(self._files(ref), options)

    def gc_workspace(self, options: GcOptions | None = None) -> Collected:
        """What interrupted commands left beside the datasets is gone.

        Raises:
            StoreError: something cannot be looked at or removed.
        """
        from odfchain.upkeep.gc import collect_workspace  # noqa: PLC0415

        return collect_workspace(self.workspace, options)

    # --- repair ------------------------------------------------------------------------------------

    def fsck(
        self,
        ref: Ref,
        source: str | None = None,
        options: FsckOptions | None = None,
        *,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FsckReport:
        """What is damaged or missing is in the report, and repaired where there is a good copy.

        `source` is a URL or `repo/name` of any copy; it need not be trusted.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            InvalidIdError, WorkspaceError, UnsupportedPeerError, AccessError: `source` cannot be used.
            And all errors of `odfchain.upkeep.fsck.fsck`.
        """
        from odfchain.transfer.sharing import Sharing  # noqa: PLC0415
        from odfchain.upkeep.fsck import fsck  # noqa: PLC0415

        dataset = self._files(ref)
        if source is None:
            return fsck(self.workspace, dataset, None, options, progress)
        sharing = Sharing(self.workspace)
        with closing(sharing.open(source, token)) as peer:
            return fsck(self.workspace, dataset, peer, options, progress)

    def unopenable(self) -> list[FsckReport]:
        """A report for each folder among the datasets that cannot be opened as one.

        Raises:
            StoreError: the folder of the datasets cannot be read.
        """
        from odfchain.upkeep.fsck import unopenable  # noqa: PLC0415

        return unopenable(self.workspace)

    # --- compaction --------------------------------------------------------------------------------

    def plan_compact(self, ref: Ref, options: CompactOptions | None = None) -> CompactPlan:
        """What a hard compaction would do, and who breaks by it; nothing is changed.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            And all errors of `odfchain.upkeep.compact.plan_compact`.
        """
        from odfchain.upkeep.compact import plan_compact  # noqa: PLC0415

        return plan_compact(self.workspace, self._files(ref), options)

    def compact(
        self, ref: Ref, plan: CompactPlan, *, force: bool = False, progress: Progress = SILENT
    ) -> Multihash:
        """The dataset has the planned history; returns its head.

        Raises:
            All errors of `odfchain.upkeep.compact.compact`.
        """
        from odfchain.upkeep.compact import compact  # noqa: PLC0415

        return compact(self.workspace, self._files(ref), plan, force=force, progress=progress)

    def plan_soft(self, ref: Ref, name: str | DatasetAlias, limits: BatchLimits | None = None) -> SoftPlan:
        """What a soft compaction would make; nothing is changed.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            InvalidIdError: the new name breaks its grammar.
            And all errors of `odfchain.upkeep.soft.plan_soft`.
        """
        from odfchain.upkeep.soft import plan_soft  # noqa: PLC0415

        alias = DatasetAlias.parse(name) if isinstance(name, str) else name
        return plan_soft(self.workspace, self._files(ref), alias, limits)

    def soft_compact(self, ref: Ref, plan: SoftPlan, *, progress: Progress = SILENT) -> DatasetFiles:
        """The new dataset with the records of the old one.

        Raises:
            All errors of `odfchain.upkeep.soft.soft_compact`.
        """
        from odfchain.upkeep.soft import soft_compact  # noqa: PLC0415

        return soft_compact(self.workspace, self._files(ref), plan, progress)
