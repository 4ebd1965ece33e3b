"""Branches of a dataset: a part of `Dataset`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain.errors import IngestError, ObjectCorruptedError, StoreError, TransferError, UsageError
from odfchain.limits import LIMITS
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.spark.known_errors import OwnErrors
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.text import one_line
from odfchain.workspace import options, points
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import FetchedBranches, Unverified
from odfchain.workspace.points import OnBranch, Point, branch_names, opened_at, parse_point

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.pulling import PullResult
    from odfchain.api.workspace import Workspace
    from odfchain.audit.drawings import DrawnBlock
    from odfchain.audit.report import Report
    from odfchain.branches.branches import Branch
    from odfchain.branches.diff import Diff
    from odfchain.branches.foreign_keys import ForeignKeys
    from odfchain.branches.intervals import Engine
    from odfchain.branches.merging import MergeMeans, MergeOutcome, MergePlan, MergeRequest
    from odfchain.branches.recording import ChangeOutcome
    from odfchain.profiles.drift_guard import PolicyFile
    from odfchain.transfer.branch_fetch import FetchedSources
    from odfchain.workspace.commit import AfterCommit, CommitCheck, Proposed
    from odfchain.workspace.dataset_files import DatasetFiles


@dataclass(frozen=True)
class PullBranch(options.PullOptions):
    """A pull of a branch from another place, for which the token is."""

    name: str
    source: str | None = None
    token: str | None = field(default=None, kw_only=True)


class Branching(OwnErrors):
    """Branches of a dataset, and what lies between them (RFC-035, RFC-036)."""

    _workspace: Workspace
    _files: DatasetFiles

    @property
    def branch_names(self) -> list[str]:
        """The names of the branches, ordered; no chain is read."""
        self._files.shared.follow(self._files.folder)
        return branch_names(self._files)

    def branches(self) -> list[Branch]:
        """The branches, ordered by name, and how each lies to the head, which is none of them."""
        from odfchain.branches.branches import Branches

        self._files.shared.follow(self._files.folder)
        return Branches(self._files).all()

    def branch(self, name: str) -> Dataset:
        """The same dataset on a branch, or on its `head`: what it records moves that reference only.

        Raises:
            PointNotFoundError: there is no such branch.
        """
        return open_dataset_at(self._files, self._workspace, OnBranch(name))

    def create_branch(self, name: str, *, at: options.AnyPoint | None = None) -> Dataset:
        """The dataset on a new branch, durably at a point (default: its newest block); no data is copied."""
        from odfchain.branches.branches import Branches

        self._files.shared.follow(self._files.folder)
        point = None if at is None else as_point(at)
        return dataset_of(self._workspace, Branches(self._files).create(name, point))

    def rename_branch(self, name: str, to: str, *, break_references: bool = False) -> Dataset:
        """The dataset on its branch `name`, which is called `to` from now on.

        Raises:
            IngestError: rows on branches of this name refer to its rows (unless `break_references`).
        """
        from odfchain.branches.branches import Branches
        from odfchain.upkeep.garbage import Referrers, bring_branches, refuse

        workspace = self._workspace._files
        # branches that only the store has may refer to it, too
        bring_branches(workspace)
        if not break_references and name != to:
            branch = points.on_branch(self._files, name)
            refuse(f"{self._files.alias}@{name}", Referrers(workspace).of_branch(branch))
        return dataset_of(self._workspace, Branches(self._files).rename(name, to))

    def delete_branch(self, name: str, *, force: bool = False, break_references: bool = False) -> str | None:
        """Delete the branch. With `force`, unmerged blocks stay under the reference returned.

        Raises:
            WorkspaceError: neither the head nor another branch has merged it (unless `force`).
            IngestError: rows refer to what only it has (unless `break_references`); they are named.
        """
        from odfchain.branches.branches import Branches
        from odfchain.upkeep.garbage import Referrers, bring_branches

        workspace = self._workspace._files
        bring_branches(workspace)
        check = {} if break_references else {"check": Referrers(workspace).check_branch_goes}
        return Branches(self._files).delete(name, force=force, **check)

    def log_graph(self, limit: int | None = None) -> Iterator[DrawnBlock]:
        """The blocks of the head and of all branches, newest first, each with the lanes of a drawing."""
        from odfchain.audit.drawings import BlockDrawing

        self._files.shared.follow(self._files.folder)
        return BlockDrawing(self._files).blocks(limit)

    @options.takes(PullBranch)
    def pull_branch(self, asked: PullBranch) -> PullResult:
        """Fetch a remote branch, complete and validated, or change nothing; the head stays.

        `source` is a URL or `repo/name`; None is where the branch came from before. A branch that has blocks
        of its own is moved aside only with `force`. Its rows are verified when a merge uses them. Options are
        `force`, `parallel`, `require_signature` and `max_age`, as in `Workspace.pull`.
        """
        from odfchain.api.pulling import branch_target, check_branch_options, pull

        check_branch_options({name: name for name in options.given_options(asked, options.PullOptions)})
        target = branch_target(self._workspace, f"{self._files.alias}@{asked.name}", asked.source)
        return pull(self._workspace, target, asked, token=asked.token)

    def fetch_merged(
        self,
        source: str | None = None,
        *,
        parallel: int | None = None,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FetchedSources:
        """Fetch merged blocks from any mirror, trusted by hash alone.

        With it, merges can be computed again. `source` is a URL or `repo/name`; None is where the dataset was
        pulled from.

        Raises:
            TransferError: it cannot be brought, or not all of it is there.
        """
        from odfchain.transfer.branch_fetch import bring_merged
        from odfchain.transfer.sync import shortened

        sharing = self._workspace.sharing
        parallel = parallel or sharing.config.parallel
        with contextlib.closing(sharing.mirror(self._files, source, parallel, token)) as peer:
            found, lacking = bring_merged(self._files, peer, parallel=parallel, progress=progress)
        if lacking:
            raise TransferError(
                f"{peer.where}: {len(lacking):,} of the branches that were merged into {self._files.alias} "
                f"are not there: {', '.join(map(shortened, lacking[:3]))}; what is there was brought",
                hint="try another copy of the dataset: --from URL",
            )
        return found

    def diff(self, a: options.AnyPoint, b: options.AnyPoint | None = None) -> Diff:
        """The rows that differ, from the state at A to that at B; nothing before their fork is read.

        Of one point, what it has changed since its merge base with the head: what a merge would bring.

        Raises:
            SchemaError: the two have different primary keys, or a column has two types.
        """
        from odfchain.branches.branches import BlockGraph
        from odfchain.branches.diff import Comparison

        opened = [] if b is not None else [self._files.on(HEAD)]
        opened += [points.opened_at(self._files, as_point(point)) for point in (a, b) if point is not None]
        known, on_trust = trust_of(self._workspace), False

        def trusted(dataset: DatasetFiles, after: Multihash, upto: Multihash) -> bool:
            nonlocal on_trust
            if known(dataset, after, upto):
                return True
            earlier = DatasetState.read(dataset.chain, after).slices_newest_first()
            # a partial copy may lack the slices to verify against: then the blocks of others are trusted
            if all(dataset.data.contains(ref.slice.physical_hash) for ref in earlier):
                return False
            on_trust = True
            return True

        one, other = ((each, DatasetState.read(each.chain)) for each in opened)
        ends = Comparison.of(one, other)
        graph = BlockGraph(self._files, [each.ref for each in opened])
        compare = ends.diff_since_base if b is None else ends.diff
        found = compare(graph, trusted, engine_of(self._workspace))
        return dataclasses.replace(found, on_trust=on_trust)

    @options.takes(options.CorrectOptions)
    def correct(self, asked: options.CorrectOptions) -> ChangeOutcome:
        """Some columns of some rows have other values: files have the key and the columns to change.

        The files of `remove` have the keys of rows that are retracted. What is not named stays, the event
        time too; values that are there already are no change. `force` writes also to the head of a copy.

        Raises:
            UsageError: the dataset is derivative, a copy, or has no rows or no primary key.
            BadInputError: a file is wrong, a key comes twice, or one to remove is not recorded.
            IngestError: keys are not recorded (unless `allow_new`), an event time lies in the future, or the
                rows drift further than `snapshots.guard` allows (unless `allow_drift`).
            IngestError: rows would refer to what is not there; `violations` (.csv, .ndjson) lists them.
        """
        from odfchain.branches.corrections import ChangesByHand

        workspace, branch = self._workspace, self._files
        check_head_is_ours(workspace, branch, "correct", force=asked.force)
        bound = latest_of(workspace, allow_future=asked.allow_future)
        with commit_checks(workspace, asked) as check:
            attempt = functools.partial(ChangesByHand(branch).correct, asked, bound=bound, check=check)
            return _repeated(workspace, attempt, asked.progress)

    def plan_merge(self, source: str, *, by_row: bool = False) -> MergePlan:
        """Plan a merge of a branch of this name (or the `head`) into this one; nothing is changed.

        With `by_row` two different rows of one key conflict, whatever cells they differ in. Conflicts are
        returned, not raised; the other errors are those of `merge`.
        """
        asked = options.MergeOptions(source, by_row=by_row)
        with merge_means(self._workspace, asked) as means:
            return _request(self, asked).plan(means)

    @options.takes(options.MergeOptions)
    def merge(self, asked: options.MergeOptions) -> MergeOutcome:
        """Merge the net changes of a branch (or of the `head`) into this one, as one transaction, or nothing.

        Conflicts are decided by `resolve`: `ours`, `theirs`, or a file of conflicts that was filled in. What
        a plan says is computed anew: this branch may have moved since. `fast_forward` moves this branch to
        the other one's block instead, where it has no block that the other lacks. `with_metadata` takes over
        the other's metadata. `force` merges into the head of a copy, too, which makes it a history
        of its own.

        Raises:
            MergeConflictError: open conflicts; `conflicts` has a line for each.
            IngestError: rows would refer to what is not there; `violations` is a file to write them to.
            IngestError: the rows drift further than `snapshots.guard` allows (unless `allow_drift`).
        """
        (outcome,) = merge_branches([self], asked)
        return outcome

    @options.takes(options.RevertOptions)
    def revert(self, asked: options.RevertOptions) -> ChangeOutcome:
        """Undo the changes of a block of data; rows that were changed again since conflict.

        A new block has the inverse of its changes. `resolve` decides conflicts, as in `merge`: ours is what
        is there now. `force` writes also to the head of a copy.

        Raises:
            UsageError: the block has no data; the dataset is derivative, a copy, or has no primary key.
            MergeConflictError: what it changed was changed again, and is not decided.
            IngestError: rows would refer to what is not there; `violations` (.csv, .ndjson) lists them.
            IngestError: the rows drift further than `snapshots.guard` allows (unless `allow_drift`).
        """
        from odfchain.branches.corrections import ChangesByHand
        from odfchain.spark.jobs import Steps, watched

        workspace, branch, progress = self._workspace, self._files, asked.progress
        check_head_is_ours(workspace, branch, "revert", force=asked.force)
        block = points.named_block(branch, as_point(asked.block))
        with merge_means(workspace, asked) as means, watched(progress, Steps.all_called("Reverting")):
            return _repeated(workspace, lambda: ChangesByHand(branch).revert(block, asked, means), progress)


# `DATASET@POINT`: a branch to write, or any point of the history to read.


def as_point(at: options.AnyPoint) -> Point:
    """The point that a value means."""
    if isinstance(at, str):
        return parse_point(at)
    return at if isinstance(at, Multihash | int) else options.as_time(at)


def dataset_of(workspace: Workspace, files: DatasetFiles) -> Dataset:
    """The dataset of these files."""
    from odfchain.api.dataset import Dataset

    return Dataset(workspace, files)


def open_dataset_at(files: DatasetFiles, workspace: Workspace, point: Point) -> Dataset:
    """The dataset on a branch, or as of a block and then only read."""
    return dataset_of(workspace, points.opened_at(files, point))


def at_point(workspace: Workspace, text: str) -> Dataset:
    """The dataset that `DATASET[@POINT]` names, for who reads."""
    name, at, point = text.partition("@")
    found = workspace[name]
    return open_dataset_at(found._files, workspace, parse_point(point)) if at else found


def matching_at(workspace: Workspace, text: str) -> list[Dataset]:
    """Every dataset that `PATTERN[@POINT]` names, for who reads; errors as `at_point`."""
    name, at, point = text.partition("@")
    found = workspace.matching(name)
    return [open_dataset_at(d._files, workspace, parse_point(point)) for d in found] if at else found


def on_branch(workspace: Workspace, text: str) -> Dataset:
    """The dataset that `DATASET[@BRANCH]` names, for who writes."""
    check_branch(text)
    return at_point(workspace, text)


def check_branch(text: str) -> None:
    """Check that the `@` of a dataset that is written to names a branch, if it is there.

    Raises:
        UsageError, InvalidIdError: it is another point, or none.
    """
    name, at, after = text.partition("@")
    if not at:
        return
    point = parse_point(after)
    if not isinstance(point, OnBranch) or point.at is not None:
        raise UsageError(
            f"{one_line(text)}: what is written to is a branch, not a point of the past",
            hint=f"`odfchain branch create {one_line(name)} NAME --at {one_line(after)}` makes one there",
        )


# Trust of diffs and merges: own blocks, and those of others that were verified.

Trust = Callable[["DatasetFiles", "Multihash", "Multihash"], bool]
"""True if the blocks after one, up to another, were made or verified here."""

# Of the checks of a verification: bytes, links, rules, files and rows.
_FIRST, _LAST = 2, 11


def engine_of(workspace: Workspace) -> Engine:
    """The engine that compares and merges: this process, and the workspace's Spark for large inputs."""
    from odfchain.branches.intervals import Engine

    return Engine(workspace.session, workspace._files.config.branches.spark_bytes)


def trust_of(workspace: Workspace) -> Trust:
    """The trust rule for the workspace's datasets."""

    def trusted(dataset: DatasetFiles, after: Multihash, upto: Multihash) -> bool:
        return FetchedBranches(dataset).is_known_here(after, upto, owner=workspace._files.has_key(dataset.id))

    return trusted


def ensure_verified(dataset: DatasetFiles, upto: Multihash, progress: Progress = SILENT) -> None:
    """Verify the fetched branches in the chain up to a block, and record that."""
    for part in FetchedBranches(dataset).unverified(upto):
        if _is_sound(dataset, part, _verified(dataset, part, progress)):
            # not where retractions were too many to check: a merge then looks up earlier rows itself
            FetchedBranches(dataset).mark_verified(part.entry, part.upto)


def _verified(dataset: DatasetFiles, part: Unverified, progress: Progress) -> Report:
    from odfchain.audit.dataset_checks import examine
    from odfchain.audit.report import CORRECTIONS

    there = opened_at(dataset, part.upto)
    report = examine(there, options.VerifyOptions(after=part.after, progress=progress)).report
    # these rows take back rows of earlier blocks, so the whole chain is checked
    if CORRECTIONS in report.reasons:
        report = examine(there, options.VerifyOptions(progress=progress)).report
    return report


def _is_sound(dataset: DatasetFiles, part: Unverified, report: Report) -> bool:
    from odfchain.audit.report import CORRECTIONS

    name = part.entry.branch or "a branch that is gone"
    about = f"{dataset.alias}: {name}, which came from {part.entry.where}"
    if faults := [fault for fault in report.faults if _FIRST <= fault.check <= _LAST]:
        first = faults[0]
        block = "" if first.sequence_number is None else f"block {first.sequence_number}: "
        raise ObjectCorruptedError(
            f"{about}, is faulty: {block}{first.file}: {first.message}"
            f"{f' (and {len(faults) - 1:,} more)' if len(faults) > 1 else ''}; nothing was merged",
            hint=f"`odfchain verify {dataset.alias}@{part.entry.branch or part.upto}` lists all faults",
        )
    left_open = {number: text for number, text in report.reasons.items() if _FIRST <= number <= _LAST}
    lacking = [item.message for item in report.unchecked if item.check is None or item.check <= _LAST]
    lacking += left_open.values()
    if lacking == [left_open.get(CORRECTIONS)]:
        return False
    if lacking:
        raise StoreError(
            f"{about}, could not be verified: {lacking[0]}; nothing was merged",
            hint=f"bring what is missing: `odfchain fetch {dataset.alias}`",
        )
    return True


# What every change of a dataset by hand asks first: the head, the clock, other writers.

_T = TypeVar("_T")


def check_head_is_ours(
    workspace: Workspace, files: DatasetFiles, what: str, *, then: str | None = None, force: bool = False
) -> None:
    """As `check_is_no_copy`, unless `force`; the hint says `what` can be done on a branch (`then`)."""
    if not force:
        then = then or f"{what} {files.alias}@NAME"
        workspace._files.check_is_no_copy(files, f"`odfchain branch create {files.alias} NAME`, then {then}")


def latest_of(workspace: Workspace, *, allow_future: bool = False) -> Callable[[Timestamp], Timestamp | None]:
    """The latest event time that is believed, by the system time of a commit; None is no bound."""
    config = workspace._files.config.ingest
    if allow_future or config.allow_future:
        return lambda _: None
    return lambda now: now.shifted(config.max_future.milliseconds)


def _repeated(workspace: Workspace, attempt: Callable[[], _T], progress: Progress) -> _T:
    """The result of an attempt, which is made again where another writer was faster."""
    from odfchain.workspace.commit import on_the_newest_head

    return on_the_newest_head(attempt, workspace._files.config.ingest.retries, progress)


# Merging branches of one dataset, or of several together.


def merge_branches(datasets: Sequence[Branching], asked: options.MergeOptions) -> list[MergeOutcome]:
    """Merge a branch of this name into each dataset, those first that others refer to.

    All merges are computed and decided before one is committed; each commits by itself. Errors are those of
    `Dataset.merge`.
    """
    from odfchain.spark.jobs import Steps, watched

    workspace = datasets[0]._workspace
    for dataset in datasets:
        then = f"`odfchain merge {dataset._files.alias} head --into NAME`"
        check_head_is_ours(workspace, dataset._files, "merge", then=then, force=asked.force)
    if asked.resolve not in (None, "ours", "theirs") and len(datasets) > 1:
        raise UsageError("a file decides the conflicts of one dataset; merge the datasets one by one")
    requests = [_request(dataset, asked) for dataset in datasets]
    with merge_means(workspace, asked) as means, watched(asked.progress, Steps.all_called("Merging")):
        return means.merge(requests, dry_run=asked.dry_run, progress=asked.progress)


def _request(dataset: Branching, asked: options.MergeOptions) -> MergeRequest:
    from odfchain.branches.merging import MergeRequest

    source, files = asked.source, dataset._files
    if isinstance(source, str):
        return MergeRequest(target=files, source_ref=source, options=asked)
    if (source.dataset, source.into) != (str(files.alias), files.ref):
        raise UsageError(f"the plan is of {source.dataset}@{source.into}, not of {files.label}")
    asked = dataclasses.replace(asked, by_row=asked.by_row or source.by_row)
    return MergeRequest(target=files, source_ref=source.source_ref, source=source.source, options=asked)


@contextlib.contextmanager
def merge_means(workspace: Workspace, asked: options.CommitOptions) -> Iterator[MergeMeans]:
    """What merges and reverts depend on; rows that break foreign keys are written when the block ends."""
    from odfchain.branches.merging import MergeMeans

    progress = asked.progress
    with foreign_keys(workspace, progress, asked.violations, merging=True) as check:
        yield MergeMeans(
            engine=engine_of(workspace),
            trusted=trust_of(workspace),
            verified=lambda dataset, block: ensure_verified(dataset, block, progress),
            check=check,
            guard=drift_check(workspace, asked),
            bound=latest_of(workspace),
            retries=workspace.ingest_config.retries,
        )


# What every change of a dataset asks first: foreign keys, with a file of what breaks them, and drift.


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
    except IngestError as error:
        if path is not None and error.violations is not None:
            check.write(path)
        raise
    if path is not None:
        check.write(path)


@contextlib.contextmanager
def commit_checks(workspace: Workspace, asked: options.CommitOptions) -> Iterator[CommitCheck]:
    """The check for what is committed in the block: of foreign keys (as `foreign_keys`), and of drift."""
    from odfchain.workspace.commit import both

    with foreign_keys(workspace, asked.progress, asked.violations) as keys:
        yield both(keys, drift_check(workspace, asked))


def drift_check(workspace: Workspace, asked: options.CommitOptions) -> CommitCheck:
    """The check that the settings ask for: it refuses drift, and has the new profile written."""

    def check(proposed: Proposed) -> AfterCommit | None:
        from odfchain.workspace.config import ProfileWhen

        if not proposed.added:
            return None
        wanted = workspace._files.config.snapshots.of(proposed.dataset)
        writes = wanted.profile is ProfileWhen.COMMIT
        refuses = wanted.guard and not asked.allow_drift
        guard = read_policy_file(workspace.path, wanted.guard) if refuses else None
        if guard is None and not writes:
            return None
        from odfchain.profiles.drift_guard import CommitProfiles

        return CommitProfiles(guard, writes, asked.progress)(proposed)

    return check


def read_policy_file(root: Path, guard: str) -> PolicyFile:
    """The policy that settings name; `root` is their folder.

    Raises:
        UsageError: there is no such file.
        EngineError: it limits what the installed packages cannot tell.
    """
    from odfchain.profiles.drift import read_policy
    from odfchain.profiles.drift_guard import PolicyFile
    from odfchain.profiles.reader import library

    path = root.parent / guard
    if (text := fsio.read_start(path, LIMITS.manifest_bytes + 1)) is None:
        raise UsageError(f"snapshots.guard: {path}: no such file", hint="make it, or set another one")
    policy = read_policy(text, source=str(path))
    policy.check_languages(library(), f"{path}: profiles are made here")
    return PolicyFile(path, policy)
