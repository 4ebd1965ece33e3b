"""Verification as it is asked for: which datasets, whether with a replay, and with which engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.audit.report import Report
from odfchain.audit.upstream import Upstream, upstream_at_hand
from odfchain.audit.verify import verify_dataset
from odfchain.dataset.files import DatasetFiles
from odfchain.errors import DatasetNotFoundError, StoreError, UsageError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.metadata.sources import Transform
from odfchain.progress import SILENT, Progress
from odfchain.workspace.workspace import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.engine.base import TransformEngine

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
    after: Multihash | None = None
    """Replay what comes after this block."""
    upto: Multihash | None = None
    """Replay up to this block, which is included."""

    @property
    def ranged(self) -> bool:
        """Whether only a part of the chain is replayed."""
        return self.after is not None or self.upto is not None


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
        UsageError: a range is given for several datasets or without a replay, or is not one of the chain.
        JavaNotFoundError, EngineError, StorageFullError: there is no engine to replay with.
    """
    options = options or VerifyOptions()
    named = {item.folder: item for item in datasets}
    if options.ranged and not options.replay:
        raise UsageError("a range of blocks is for a replay")
    if options.ranged and len(named) != 1:
        raise UsageError(f"a range of blocks is for one dataset, these are {len(named)}")
    files = list(named.values())
    found = upstream_at_hand(workspace, files) if options.recursive else Upstream(files)
    reports = []
    for item in found.datasets:
        report = verify_dataset(item, progress, jobs=options.jobs)
        for message in found.missing.get(item.folder, ()):
            report.leave_out(message)
        if options.replay:
            _replay(workspace, item, report, engines, options if item.folder in named else None, progress)
        reports.append(report)
    return reports


def _replay(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    report: Report,
    engines: EnginesFor,
    options: VerifyOptions | None,
    progress: Progress,
) -> None:
    """Replay a dataset; without options all of it."""
    from odfchain.audit.replay import ReplayEngines, ReplayRange, engine_name, replay_dataset  # noqa: PLC0415

    def input_of(dataset_id: DatasetId) -> DatasetFiles | None:
        try:
            return workspace.dataset(dataset_id)
        except (DatasetNotFoundError, StoreError):
            return None

    chosen = options or VerifyOptions()
    with contextlib.ExitStack() as resources:
        opened: list[Engines] = []

        def engine(transform: Transform) -> TransformEngine:
            if not opened:  # what cannot be replayed needs no engine
                opened.append(resources.enter_context(engines(dataset, progress)))
            return opened[0](transform)

        found = ReplayEngines(engine, lambda t: engine_name(t, workspace.config.transform))
        span = ReplayRange(after=chosen.after, upto=chosen.upto)
        replay_dataset(dataset, report, input_of, found, span, jobs=chosen.jobs, progress=progress)
