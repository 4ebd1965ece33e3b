"""What a dataset can do with its branches: the methods of `Dataset` that are about them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from odfchain.api.known_errors import OwnErrors
from odfchain.api.options import Time, as_time
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from odfchain.api.branch_points import AnyPoint, DatasetAt
    from odfchain.api.changing import Paths
    from odfchain.api.dataset import Dataset
    from odfchain.api.merging_branches import Resolve
    from odfchain.api.options import PullKeywords
    from odfchain.api.pull_targets import PullResult
    from odfchain.api.workspace import Workspace
    from odfchain.branch.branches import Branch
    from odfchain.branch.diffing import Diff
    from odfchain.branch.merge_values import MergeOutcome, MergePlan
    from odfchain.branch.recording import ChangeOutcome
    from odfchain.branch.row_history import RowChange
    from odfchain.lineage.block_drawing import DrawnBlock
    from odfchain.repo.dataset_files import DatasetFiles
    from odfchain.transfer.branch_pulling import FetchedSources


class Branching(OwnErrors):
    """Branches of a dataset, and what lies between them (RFC-035, RFC-036)."""

    _workspace: Workspace
    _files: DatasetFiles

    @property
    def ref(self) -> str:
        """The reference that the dataset is opened on: `head`, or a branch; or a block's hash (`at`)."""
        return self._files.ref

    @property
    def label(self) -> str:
        """The local name, with `@BRANCH` where that is not the head: what commands take."""
        return self._files.label

    @property
    def branch_names(self) -> list[str]:
        """The names of the branches, ordered; no chain is read."""
        from odfchain.repo.references import branch_names

        self._files.shared.branches(self._files.folder)
        return branch_names(self._files)

    def branches(self) -> list[Branch]:
        """The branches, ordered by name, and how each lies to the head, which is none of them.

        Raises:
            BrokenChainError, StoreError, CodecError: a chain cannot be read.
        """
        from odfchain.branch.branches import list_branches

        self._files.shared.branches(self._files.folder)
        return list_branches(self._files)

    def branch(self, name: str) -> Dataset:
        """The same dataset on a branch, or on its `head`: what it records moves that reference only.

        Raises:
            BranchNotFoundError: there is no such branch.
        """
        from odfchain.api.branch_points import opened_at
        from odfchain.repo.points import OnBranch

        return opened_at(self._files, self._workspace, OnBranch(name))

    def create_branch(self, name: str, *, at: AnyPoint | None = None) -> Dataset:
        """The dataset on a new branch, durably at a point (default: its newest block); no data is copied.

        Raises:
            InvalidIdError: the name cannot name a branch, or `at` is no point.
            NameCollisionError: there is a branch of this name.
            PointNotFoundError, BranchNotFoundError, DatasetNotFoundError: there is no such point.
            FuturePointError: a time in the future.
            BusyError: no reference leads to the block, and something is being pulled or collected.
        """
        from odfchain.api.branch_points import as_point, dataset_of
        from odfchain.branch.branches import create_branch

        self._files.shared.branches(self._files.folder)
        point = None if at is None else as_point(at)
        return dataset_of(self._workspace, create_branch(self._files, name, point))

    def rename_branch(self, name: str, to: str, *, break_references: bool = False) -> Dataset:
        """The dataset on its branch `name`, which is called `to` from now on.

        Raises:
            GuardError: rows on branches of this name refer to its rows (unless `break_references`).
            InvalidIdError, BranchNotFoundError, NameCollisionError: a name is none, unknown, or taken.
            RefConflictError: another writer moved the branch; it has its old name.
        """
        from odfchain.api.branch_points import dataset_of
        from odfchain.branch.branches import rename_branch
        from odfchain.repo.points import on_branch
        from odfchain.upkeep.referrers import bring_branches, of_branch, refuse

        workspace = self._workspace._files
        bring_branches(workspace)
        if not break_references and name != to:
            refuse(f"{self._files.alias}@{name}", of_branch(workspace, on_branch(self._files, name)))
        return dataset_of(self._workspace, rename_branch(self._files, name, to))

    def delete_branch(self, name: str, *, force: bool = False, break_references: bool = False) -> str | None:
        """The branch is gone. What nobody has merged stays, with `force`, under the reference returned.

        Raises:
            InvalidIdError, BranchNotFoundError: it is no branch, or there is none of this name.
            UnsavedBlocksError: neither the head nor another branch has merged it (unless `force`).
            GuardError: rows refer to what only it has (unless `break_references`); they are named.
            RefConflictError: another writer moved it; it stays.
        """
        from odfchain.branch.branches import delete_branch
        from odfchain.upkeep.referrers import bring_branches, check_branch_goes

        workspace = self._workspace._files
        bring_branches(workspace)
        check = functools.partial(check_branch_goes, workspace)
        return delete_branch(self._files, name, force=force, **({} if break_references else {"check": check}))

    def log_graph(self, limit: int | None = None) -> Iterator[DrawnBlock]:
        """The blocks of the head and of all branches, newest first, each with the lanes of a drawing.

        Raises (when it is walked):
            BrokenChainError, StoreError, CodecError: a chain cannot be read.
        """
        from odfchain.lineage.block_drawing import draw_blocks

        self._files.shared.branches(self._files.folder)
        return draw_blocks(self._files, limit)

    def pull_branch(
        self,
        name: str,
        source: str | None = None,
        *,
        token: str | None = None,
        progress: Progress = SILENT,
        **options: Unpack[PullKeywords],
    ) -> PullResult:
        """A branch elsewhere is here, beside the head, complete and checked; or all is as it was.

        `source` is a URL or `repo/name`; None is where the branch came from before. A branch that has blocks
        of its own is moved aside only with `force`. Its rows are verified when a merge uses them. `options`
        are `force`, `parallel`, `require_signature` and `max_age`, as in `Workspace.pull`.

        Raises:
            InvalidIdError, UsageError: it cannot be a branch's name, or no source is given or known.
            BranchNotFoundError: there is no such branch.
            TransferError, SignatureError, RefConflictError, StorageFullError: it cannot be brought.
        """
        from odfchain.api.pull_targets import branch_target, check_branch_options

        check_branch_options({option: option for option in options})
        target = branch_target(self._workspace, f"{self._files.alias}@{name}", source)
        return self._workspace.pull(target, token=token, progress=progress, **options)

    def fetch_merged(
        self,
        source: str | None = None,
        *,
        parallel: int | None = None,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FetchedSources:
        """What was merged into the dataset is here, from any mirror, trusted by hash alone.

        With it, merges can be computed again. `source` is a URL or `repo/name`; None is where the dataset was
        pulled from.

        Raises:
            UsageError: no source is given or known.
            TransferError: it cannot be brought, or not all of it is there.
        """
        return self._workspace._sharing.fetch_merged(
            self._files, source, parallel=parallel, token=token, progress=progress
        )

    def at(self, point: AnyPoint) -> DatasetAt:
        """The dataset as of a branch, a block (`9`, `fix-names:9`, a hash), or a system time, to be read.

        Raises:
            InvalidIdError, FuturePointError: it is no point, or a time in the future.
            BranchNotFoundError, PointNotFoundError, DatasetNotFoundError: there is no such branch or block.
        """
        from odfchain.api.branch_points import DatasetAt, as_point, opened_at

        return DatasetAt(opened_at(self._files, self._workspace, as_point(point)))

    def diff(self, a: AnyPoint, b: AnyPoint | None = None) -> Diff:
        """The rows that differ, from the state at A to that at B; nothing before their fork is read.

        Of one point, what it has changed since its merge base with the head: what a merge would bring.

        Raises:
            InvalidIdError, FuturePointError: a point is none, or a time in the future.
            BranchNotFoundError, PointNotFoundError, DatasetNotFoundError: there is no such branch or block.
            SchemaError: the two have different primary keys, or a column has two types.
            ChainError: they say different things of what was before: one of them is damaged.
            SliceNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
            JavaNotFoundError, EngineError: Spark failed, which compares what is large.
        """
        from odfchain.api.branch_diffs import difference

        return difference(self._workspace, self._files, a, b)

    def correct(
        self,
        files: Paths = (),
        *,
        remove: Paths = (),
        allow_new: bool = False,
        input_format: str | None = None,
        allow_future: bool = False,
        system_time: Time | None = None,
        force: bool = False,
        allow_drift: bool = False,
        violations: str | Path | None = None,
        progress: Progress = SILENT,
    ) -> ChangeOutcome:
        """Some columns of some rows have other values: files have the key and the columns to change.

        The files of `remove` have the keys of rows that are retracted. What is not named stays, the event
        time too; values that are there already are no change. `force` writes also to the head of a copy.

        Raises:
            UsageError: the dataset is derivative, a copy, or has no rows or no primary key.
            BadInputError: a file is wrong, a key comes twice, or one to remove is not recorded.
            GuardError: keys are not recorded (unless `allow_new`), an event time lies in the future, or the
                rows drift further than `snapshots.guard` allows (unless `allow_drift`).
            ForeignKeyError: rows would refer to what is not there; `violations` (.csv, .ndjson) lists them.
            RefConflictError, StorageFullError, StoreError: the dataset is as it was.
        """
        from odfchain.api.changing import correct, paths
        from odfchain.branch.correcting import Corrections

        asked = Corrections(
            files=paths(files),
            remove=paths(remove),
            allow_new=allow_new,
            form=input_format,
            system_time=None if system_time is None else as_time(system_time),
        )
        return correct(
            self._workspace, self._files, asked, force=force, allow_future=allow_future,
            allow_drift=allow_drift, violations=violations, progress=progress,
        )  # fmt: skip

    def plan_merge(self, source: str, *, by_row: bool = False) -> MergePlan:
        """What merging a branch of this name (or the `head`) into this one would do; nothing is changed.

        With `by_row` two different rows of one key conflict, whatever cells they differ in. Conflicts are
        told, not raised; the other errors are those of `merge`.
        """
        from odfchain.api.merging_branches import plan

        return plan(self, source, by_row=by_row)

    def merge(
        self,
        source: str | MergePlan,
        *,
        resolve: str | Path | None = None,
        by_row: bool = False,
        fast_forward: bool = False,
        with_metadata: bool = False,
        message: str = "",
        force: bool = False,
        dry_run: bool = False,
        allow_drift: bool = False,
        violations: str | Path | None = None,
        progress: Progress = SILENT,
    ) -> MergeOutcome:
        """The net changes of a branch (or of the `head`) in this one, as one transaction, or nothing.

        Conflicts are decided by `resolve`: `ours`, `theirs`, or a file of conflicts that was filled in. What
        a plan says is computed anew: this branch may have moved since. `fast_forward` moves this branch to
        the other one's block instead, where it has no block that the other lacks. `with_metadata` takes over
        what the other says beside data. `force` merges into the head of a copy, too, which makes it a history
        of its own.

        Raises:
            MergeConflictError: conflicts that nobody decided; `conflicts` has a line for each.
            BranchNotFoundError: there is no such branch.
            UsageError, IngestError, SchemaError: the two cannot be merged; says what stands in the way.
            ForeignKeyError: rows would refer to what is not there; `violations` is a file to write them to.
            GuardError: the rows drift further than `snapshots.guard` allows (unless `allow_drift`).
            ChainError, SliceNotFoundError, ObjectCorruptedError: a side is damaged, or not here.
            RefConflictError: other writers were faster in every attempt.
            StorageFullError, EngineError: this branch is as it was.
        """
        from odfchain.api.merging_branches import merge_branches

        (outcome,) = merge_branches(
            [self], source, resolve=resolve, by_row=by_row, fast_forward=fast_forward,
            with_metadata=with_metadata, message=message, force=force, dry_run=dry_run,
            allow_drift=allow_drift, violations=violations, progress=progress,
        )  # fmt: skip
        return outcome

    def history(self, key: Mapping[str, Any], *, limit: int | None = None) -> list[RowChange]:
        """Every change of the row with this primary key, newest first; at most `limit` of them.

        Values are those of the columns, or texts that mean them. What a merge brought says where from.

        Raises:
            UsageError: it is not the primary key, there is none, or a value is none of its column.
            SchemaError: sources have different keys.
            SliceNotFoundError, ObjectCorruptedError: naming the slice.
        """
        from odfchain.api.kept_states import history_of_row

        return history_of_row(self._workspace, self._files, key, limit)

    def revert(
        self,
        block: AnyPoint,
        *,
        resolve: Resolve | None = None,
        message: str = "",
        system_time: Time | None = None,
        force: bool = False,
        allow_drift: bool = False,
        violations: str | Path | None = None,
        progress: Progress = SILENT,
    ) -> ChangeOutcome:
        """What a block of data changed is as it was before it; what was changed again since conflicts.

        A new block has the inverse of its changes. `resolve` decides conflicts, as in `merge`: ours is what
        is there now. `force` writes also to the head of a copy.

        Raises:
            UsageError: the block has no data; the dataset is derivative, a copy, or has no primary key.
            PointNotFoundError: there is no such block on this reference.
            MergeConflictError: what it changed was changed again, and nobody decided.
            ForeignKeyError: rows would refer to what is not there; `violations` (.csv, .ndjson) lists them.
            GuardError: the rows drift further than `snapshots.guard` allows (unless `allow_drift`).
            RefConflictError, StorageFullError, StoreError: the dataset is as it was.
        """
        from odfchain.api.changing import revert

        return revert(
            self._workspace, self._files, block, resolve=resolve, message=message,
            system_time=None if system_time is None else as_time(system_time), force=force,
            allow_drift=allow_drift, violations=violations, progress=progress,
        )  # fmt: skip
