"""Verification as it is asked for: which datasets and blocks, with a replay or not, and whose word counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.audit.checks import REPLAY
from odfchain.audit.dataset_checks import Scope, Verified, examine
from odfchain.audit.heads import vouched_for
from odfchain.audit.report import Report
from odfchain.audit.upstream import Upstream, inputs_tree, upstream_at_hand
from odfchain.audit.walk import EVERYTHING, BlockName, Range
from odfchain.errors import DatasetNotFoundError, StoreError, UsageError
from odfchain.ids.did import DatasetId
from odfchain.model.enums import DatasetKind
from odfchain.model.sources import Transform
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.engine.interface import TransformEngine

Engines = Callable[[Transform], "TransformEngine"]
"""Finds the engine that executes a transform."""

EnginesFor = Callable[[DatasetFiles, Progress], AbstractContextManager[Engines]]
"""Opens the engines that may execute the transforms of a dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What a user may say about a verification."""

    recursive: bool = False
    """Verify what the datasets come from as well, before them."""
    jobs: int = 2
    """Slices or transactions that are worked on side by side."""
    replay: bool = False
    """Compute the transactions of derivative datasets again."""
    after: BlockName | None = None
    """Check what comes after this block."""
    upto: BlockName | None = None
    """Check up to this block, which is included."""
    last: int | None = None
    """Check so many of the newest blocks, and read the chain no further."""
    require_signature: bool = False
    """An unsigned head is a fault."""
    profiles: bool = False
    """Compute signed profiles again."""
    trusted_by: int = 0
    """Replay only what comes after a block that so many trusted auditors have replayed; 0: everything."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: no blocks at all, two ranges, or a replay from blocks that are not read.
        """
        if self.last is None:
            return
        if self.last < 1:
            raise UsageError(f"the number of newest blocks is at least 1, not {self.last}")
        if self.after is not None or self.upto is not None:
            raise UsageError("the newest blocks are a range: without another one")
        if self.replay:
            raise UsageError("a replay reads the whole chain; without one the newest blocks alone are read")

    @property
    def ranged(self) -> bool:
        """Whether only a part of the chain is checked."""
        return self.after is not None or self.upto is not None or self.last is not None

    @property
    def span(self) -> Range:
        """The blocks that are checked."""
        return Range(after=self.after, upto=self.upto, last=self.last)


def verify_datasets(
    workspace: WorkspaceFiles,
    datasets: Sequence[DatasetFiles],
    engines: EnginesFor,
    options: VerifyOptions | None = None,
    progress: Progress = SILENT,
) -> list[Report]:
    """The reports of the datasets, each once; without a replay no engine is opened.

    A range of blocks is for the one dataset that is named. With `recursive`, inputs that are not in the
    workspace are reported as unchecked.

    Raises:
        UsageError: a range is given for several datasets, or is not one of the chain; or more trusted
            auditors are asked for than the settings name.
    """
    options = options or VerifyOptions()
    named = {(item.folder, item.ref): item for item in datasets}
    if (options.after is not None or options.upto is not None) and len(named) != 1:
        raise UsageError(f"a range of blocks is for one dataset, these are {len(named)}")
    trusted = trusted_auditors(workspace, options)
    files = list(named.values())
    upstream = upstream_at_hand(workspace, files) if options.recursive else Upstream(files)
    reports = []
    for item in upstream.datasets:
        item.shared.current(item.folder)
        scope = Scope(
            span=options.span if (item.folder, item.ref) in named else EVERYTHING,
            jobs=options.jobs,
            inputs_wanted=options.replay or options.recursive,
            require_signature=options.require_signature,
            profiles=options.profiles,
            trusted=trusted,
        )
        verified = examine(item, scope, finder(workspace), progress)
        report = verified.report
        for message in upstream.missing.get(item.folder, ()):
            report.leave_out(message)
        report.inputs = inputs_tree(workspace, item)
        if options.replay:
            _replay(workspace, item, verified, engines, options, trusted, progress)
        reports.append(report)
    return reports


def trusted_auditors(workspace: WorkspaceFiles, options: VerifyOptions) -> tuple[str, ...]:
    """The auditors that the workspace's settings trust.

    Raises:
        UsageError: they are fewer than are asked for, or there is no replay that they could spare.
    """
    if options.trusted_by and not options.replay:
        raise UsageError(
            "the word of trusted auditors spares a replay, and none is asked for: everything else is checked "
            "anyway",
            hint="add --replay; or leave out --trusted-by, and `odfchain attestations` lists who said what",
        )
    trusted = tuple(dict.fromkeys(workspace.config.audit.trusted_auditors))
    if options.trusted_by > len(trusted):
        raise UsageError(
            f"{options.trusted_by} trusted auditors are asked for, and the settings name {len(trusted)}",
            hint=f"name their DIDs under audit.trustedAuditors in {workspace.root / 'config.yaml'}",
        )
    return trusted


def finder(workspace: WorkspaceFiles) -> Callable[[DatasetId], DatasetFiles | None]:
    """Finds the datasets of a workspace by their ids."""

    def find(dataset_id: DatasetId) -> DatasetFiles | None:
        try:
            return workspace.dataset(dataset_id)
        except (DatasetNotFoundError, StoreError):
            return None

    return find


def _replay(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    verified: Verified,
    engines: EnginesFor,
    options: VerifyOptions,
    trusted: Sequence[str],
    progress: Progress,
) -> None:
    """Replay the range of a dataset, but for what trusted auditors have replayed."""
    from odfchain.audit.replay import ReplayEngines, engine_name, replay_dataset  # noqa: PLC0415

    report = verified.report
    after, upto = verified.after, verified.upto
    spared: str | None = None
    if options.trusted_by and verified.chain.follows:
        vouched = vouched_for(verified.attestations, trusted, options.trusted_by, REPLAY)
        if vouched is not None and vouched[0] > after:
            after = min(vouched[0], upto)
            spared = (
                f"blocks up to {after} were not computed again: {', '.join(vouched[2])} attested block "
                f"{vouched[0]} ({vouched[1]})"
            )
    with contextlib.ExitStack() as resources:
        opened: list[Engines] = []

        def engine(transform: Transform) -> TransformEngine:
            if not opened:  # what cannot be replayed needs no engine
                opened.append(resources.enter_context(engines(dataset, progress)))
            return opened[0](transform)

        replaying = ReplayEngines(engine, lambda t: engine_name(t, workspace.config.transform))
        replay_dataset(
            dataset, verified, after, finder(workspace), replaying, jobs=options.jobs, progress=progress
        )
    if spared is not None and report.kind is not DatasetKind.ROOT:
        report.notes.append(spared)
        report.skip([REPLAY], spared)
