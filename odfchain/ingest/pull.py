"""Pulling a root dataset: its polling source is fetched, prepared, read, merged and committed.

    until the source has no more:
        fetch     compare with the state that the chain remembers; up to date, or new bytes
        prepare   unpack, pipe
        stage     read, preprocess, merge, write a slice       (as for pushed files)
        commit    data and the new state of the source in one block

Each round is one transaction and one move of the head: what was committed stays when a later round fails,
and what failed is fetched again by the next pull. The state of the source is in the same block as the data
that it describes, so every byte of a source is ingested once, whenever a run is interrupted. Source:
specification "Polling Source", "AddData" (`newSourceState`); RFC-014.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.dataset.commit import StagedFile, commit
from odfchain.dataset.files import DatasetFiles
from odfchain.dataset.state import DatasetState
from odfchain.digest.physical import hash_file
from odfchain.errors import FetchError, IngestError, NothingToCommitError, UsageError
from odfchain.fetch.base import POLLING_SOURCE, UP_TO_DATE, FetchContext, Fetched, FetchLimits
from odfchain.fetch.source import fetch
from odfchain.ids.multihash import Multihash
from odfchain.ingest.ingest import IngestOptions, InputOutcome, on_the_newest_head, outcome_of, write_options
from odfchain.ingest.transaction import Input, stage_input
from odfchain.ingest.writer import WriterState, Written
from odfchain.metadata.enums import DatasetKind
from odfchain.metadata.events import AddData, SetPollingSource, SourceState
from odfchain.metadata.sources import (
    FetchStepContainer,
    FetchStepFilesGlob,
    FetchStepUrl,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
)
from odfchain.metadata.timestamp import Timestamp
from odfchain.prepare.prepare import PrepareLimits, prepare
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTENT_HASH = "odfchain/content-hash"
"""Kind of a source state that is the physical hash of the bytes, for sources that tell nothing themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """What a user may say about a pull."""

    ingest: IngestOptions = field(default_factory=IngestOptions)
    fetch_uncacheable: bool = False
    """Pull a source whose state is not known although its rows might be recorded twice."""
    allow_commands: bool = False
    """Run the commands that the source's prepare steps name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values for `${{ env.NAME }}`."""
    limits: FetchLimits = field(default_factory=FetchLimits)


class PullStatus(Enum):
    """How a pull ended."""

    UPDATED = "updated"
    UP_TO_DATE = "up to date"
    UNCACHEABLE = "skipped: the source does not tell what is new"


@dataclass(frozen=True, slots=True)
class PullOutcome:
    """What a pull committed; `head` is the old one when there was nothing new."""

    status: PullStatus
    inputs: tuple[InputOutcome, ...]
    old_head: Multihash
    head: Multihash
    blocks: int
    watermark: Timestamp | None


@dataclass(frozen=True, slots=True)
class _Round:
    """One transaction; `hashes` are empty when there was nothing to commit."""

    inputs: tuple[InputOutcome, ...] = ()
    hashes: tuple[Multihash, ...] = ()
    has_more: bool = False


def polling_source(dataset: DatasetFiles, state: DatasetState) -> SetPollingSource:
    """The polling source in force.

    Raises:
        UsageError: the dataset is derivative.
        IngestError: it has none.
    """
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: pulling it is not supported yet")
    source = state.polling_source
    if source is None:
        raise IngestError(
            f"{dataset.alias} has no polling source in force",
            hint="push files with `odfchain ingest`, or define a source with SetPollingSource",
        )
    return source


def pull_source(
    dataset: DatasetFiles,
    session: Callable[[], SparkSession],
    options: PullOptions,
    progress: Progress = SILENT,
) -> PullOutcome:
    """Bring a root dataset up to date with its polling source, one transaction for each fetch.

    Raises:
        UsageError, IngestError: there is nothing to poll.
        FetchError, PrepareError, BadInputError, QueryError, IncompatibleSchemaError, GuardError: naming the
            source; what earlier rounds committed stays.
        RefConflictError: other writers were faster in every attempt.
        StorageFullError, EngineError: as `ingest_files`.
    """
    old = DatasetState.read(dataset.chain)
    source = polling_source(dataset, old)
    if _cached_forever(source, old):
        return _outcome(PullStatus.UP_TO_DATE, old, old, [], 0)
    if _uncacheable(source, old) and not options.fetch_uncacheable:
        return _outcome(PullStatus.UNCACHEABLE, old, old, [], 0)
    inputs: list[InputOutcome] = []
    blocks = 0
    while True:
        done = on_the_newest_head(
            lambda: _round(dataset, session, options, progress), options.ingest.retries, progress
        )
        inputs += done.inputs
        blocks += len(done.hashes)
        if not done.has_more:
            break
    new = DatasetState.read(dataset.chain)
    return _outcome(PullStatus.UPDATED if blocks else PullStatus.UP_TO_DATE, old, new, inputs, blocks)


def _outcome(
    status: PullStatus, old: DatasetState, new: DatasetState, inputs: list[InputOutcome], blocks: int
) -> PullOutcome:
    return PullOutcome(status, tuple(inputs), old.head, new.head, blocks, new.watermark)


def _cached_forever(source: SetPollingSource, state: DatasetState) -> bool:
    """`SourceCaching::Forever`: what was ingested once is not fetched again."""
    cache = source.fetch.cache if isinstance(source.fetch, FetchStepUrl | FetchStepFilesGlob) else None
    return cache is not None and state.last_data is not None


def _uncacheable(source: SetPollingSource, state: DatasetState) -> bool:
    """Whether there are rows, nobody knows of which state of the source, and merging would repeat them."""
    repeats = isinstance(source.merge, MergeStrategyAppend | MergeStrategyChangelogStream)
    return repeats and state.last_offset is not None and _previous(source, state) is None


def _previous(source: SetPollingSource, state: DatasetState) -> tuple[SourceState, Timestamp] | None:
    """The state to continue from and when it was recorded: the latest, if it is of the same fetch step."""
    found = state.state_of_source(POLLING_SOURCE)
    if found is None:
        return None
    latest, block = found
    defined = state.chain.nearest("SetPollingSource", head=block)
    event = defined.block.event if defined is not None else None
    same = isinstance(event, SetPollingSource) and event.fetch == source.fetch
    return (latest, state.chain.get(block).system_time) if same else None


def _round(
    dataset: DatasetFiles, session: Callable[[], SparkSession], options: PullOptions, progress: Progress
) -> _Round:
    state = DatasetState.read(dataset.chain)
    source = polling_source(dataset, state)
    system_time = state.next_system_time(options.ingest.system_time)
    previous, previous_time = _previous(source, state) or (None, None)
    if isinstance(source.fetch, FetchStepContainer) and not options.allow_commands:
        raise FetchError(
            f"{dataset.alias} is fetched by a container, {source.fetch.image!r}, and was not created here",
            hint="pull with --allow-commands if you trust it",
        )
    with dataset.staging() as staging:
        context = FetchContext(
            folder=staging,
            previous=previous,
            previous_time=previous_time,
            system_time=system_time,
            variables=options.variables,
            limits=options.limits,
            progress=progress,
        )
        fetched = fetch(source.fetch, context)
        if fetched is UP_TO_DATE:
            return _Round()
        fetched = _with_state(fetched)
        if fetched.state == previous and not fetched.has_more:
            return _Round()
        written = _stage(session, state, dataset, source, fetched, system_time, staging, options, progress)
        if isinstance(written, InputOutcome):
            return _Round((written,), (), fetched.has_more)
        progress.phase("Committing")
        slices: list[StagedFile] = [written.slice] if written.slice else []
        checkpoints = [written.checkpoint] if written.checkpoint else []
        hashes = commit(
            dataset, state, written.events, slices, checkpoints=checkpoints, system_time=system_time
        )
    return _Round((outcome_of(fetched.name, written),), tuple(hashes), fetched.has_more)


def _with_state(fetched: Fetched) -> Fetched:
    """The same with a state: where the source tells none, the hash of its bytes is one."""
    if fetched.state is not None:
        return fetched
    name, _ = hash_file(fetched.path)
    state = SourceState(source_name=POLLING_SOURCE, kind=CONTENT_HASH, value=str(name))
    return dataclasses.replace(fetched, state=state)


def _stage(
    session: Callable[[], SparkSession],
    state: DatasetState,
    dataset: DatasetFiles,
    source: SetPollingSource,
    fetched: Fetched,
    system_time: Timestamp,
    staging: Path,
    options: PullOptions,
    progress: Progress,
) -> Written | InputOutcome:
    before = _stamp(fetched.path)
    path = prepare(
        source.prepare or (),
        fetched.path,
        staging,
        name=fetched.name,
        limits=PrepareLimits(max_bytes=options.limits.max_bytes),
        progress=progress,
        allow_commands=options.allow_commands,
    )
    event_time = fetched.event_time or options.ingest.event_time or system_time
    write = write_options(options.ingest, system_time, event_time, staging)
    write = dataclasses.replace(write, new_source_state=fetched.state)
    prepared = Input(path, fetched.name, source.read, source.preprocess)
    try:
        written: Written | InputOutcome = stage_input(
            session, WriterState.of(dataset, state, source.merge), prepared, write, progress
        )
    except NothingToCommitError as nothing:
        written = InputOutcome(fetched.name, nothing.input_rows, {}, None)
    if _stamp(fetched.path) != before:
        raise IngestError(
            f"{fetched.name} changed while it was read; nothing was committed",
            hint="pull again when the file is complete",
        )
    return written


def _stamp(path: Path) -> tuple[int, int, int]:
    """What tells whether a file was written to."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def set_watermark(
    dataset: DatasetFiles, watermark: Timestamp, system_time: Timestamp | None = None
) -> Multihash:
    """Record a watermark without data; the state of the source stays with it.

    Raises:
        UsageError: the dataset is derivative.
        AppendError: the watermark would go back.
        RefConflictError: another writer was faster.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: its watermark comes from its inputs")
    found = state.state_of_source(POLLING_SOURCE)
    event = AddData(
        prev_offset=state.last_offset,
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        new_checkpoint=state.checkpoint,
        new_watermark=watermark,
        new_source_state=found[0] if found else None,
    )
    (name,) = commit(dataset, state, [event], [], system_time=state.next_system_time(system_time))
    return name
