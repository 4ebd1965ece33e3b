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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.digest.physical import hash_file
from odfchain.errors import FetchError, IngestError, NothingToCommitError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.ingest.fetch.fetcher import UP_TO_DATE, FetchContext, Fetched
from odfchain.ingest.fetch.fetchers import fetch
from odfchain.ingest.ingesting import (
    IngestOptions,
    InputOutcome,
    by_system_time,
    on_the_newest_head,
    outcome_of,
    watermark_rule,
    write_options,
)
from odfchain.ingest.prepare.prepare import PrepareLimits, prepare
from odfchain.ingest.transaction import FileInput, stage_input
from odfchain.ingest.watermark import check_manual, latest_believed, watermark_event
from odfchain.ingest.write import WriterState, Written
from odfchain.limits import FetchLimits
from odfchain.model.duration import Duration
from odfchain.model.enums import DatasetKind
from odfchain.model.events import AddData, SetPollingSource, SourceState
from odfchain.model.sources import (
    FetchStep,
    FetchStepContainer,
    FetchStepFilesGlob,
    FetchStepUrl,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    WatermarkRule,
)
from odfchain.model.timestamp import Timestamp
from odfchain.net.template import has_templates, public_name
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import StagedFile, commit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState

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
    bindings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The only hosts that a variable may be sent to, for those that are bound."""
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
class _PullTransaction:
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
        raise UsageError(
            f"{dataset.alias} is a derivative dataset: it is computed from its inputs and has no source",
            hint="`odfchain pull` brings it up to date",
        )
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
    forever = _cached_forever(source, old, progress)
    if not forever and _uncacheable(source, old) and not options.fetch_uncacheable:
        return _outcome(PullStatus.UNCACHEABLE, old, old, [], 0)
    inputs: list[InputOutcome] = []
    blocks = 0
    while True:
        done = on_the_newest_head(
            lambda: _idle(dataset, options) if forever else _round(dataset, session, options, progress),
            options.ingest.retries,
            progress,
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


def _cached_forever(source: SetPollingSource, state: DatasetState, progress: Progress) -> bool:
    """`SourceCaching::Forever`: the one object of this fetch step is recorded, so it is not asked for again.

    A step that names a set of objects is never done: new ones may come at any time, and what was read of the
    set is told by its state. Source: specification "SourceCaching::Forever"; RFC-014.
    """
    step = source.fetch
    if not isinstance(step, FetchStepUrl) or step.cache is None or _previous(source, state) is None:
        return False
    if has_templates(step.url):  # what the object is may hang on them, and their values are not recorded
        progress.note(
            f"{public_name(step.url)}: recorded once and not asked for again (cache: Forever), whatever the "
            "variables in its URL are now"
        )
    return True


def _uncacheable(source: SetPollingSource, state: DatasetState) -> bool:
    """Whether there are rows, nobody knows of which state of the source, and merging would repeat them."""
    repeats = isinstance(source.merge, MergeStrategyAppend | MergeStrategyChangelogStream)
    return repeats and state.last_offset is not None and _previous(source, state) is None


def _previous(source: SetPollingSource, state: DatasetState) -> tuple[SourceState, Timestamp] | None:
    """The state to continue from and when it was recorded: the latest, if it is of the same fetch step."""
    recorded = state.state_of_source(POLLING_SOURCE)
    if recorded is None:
        return None
    latest, block = recorded
    defined = state.chain.nearest_event(SetPollingSource, head=block)
    same = defined is not None and _same_objects(defined.fetch, source.fetch)
    return (latest, state.chain.get(block).system_time) if same else None


def _same_objects(one: FetchStep, other: FetchStep) -> bool:
    """Whether two fetch steps bring the same: how long an answer counts is not about what is asked for."""
    return _without_cache(one) == _without_cache(other)


def _without_cache(step: FetchStep) -> FetchStep:
    if isinstance(step, FetchStepUrl | FetchStepFilesGlob):
        return dataclasses.replace(step, cache=None)
    return step


def _recorded_states(source: SetPollingSource, state: DatasetState) -> Iterator[SourceState]:
    """Every state of this fetch step that was ever recorded, newest first."""
    for block in state.chain.nearest_all("AddData", "SetPollingSource", head=state.head):
        event = block.block.event
        if isinstance(event, SetPollingSource) and not _same_objects(event.fetch, source.fetch):
            return
        if isinstance(event, AddData) and event.new_source_state is not None:
            yield event.new_source_state


def _round(
    dataset: DatasetFiles, session: Callable[[], SparkSession], options: PullOptions, progress: Progress
) -> _PullTransaction:
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
            recorded=lambda: _recorded_states(source, state),
            system_time=system_time,
            variables=options.variables,
            bindings=options.bindings,
            limits=options.limits,
            progress=progress,
        )
        fetched = fetch(source.fetch, context)
        if fetched is UP_TO_DATE:
            return _idle(dataset, options)
        fetched = _with_state(fetched)
        if fetched.state == previous and not fetched.has_more:
            return _idle(dataset, options)
        rule = watermark_rule(dataset, POLLING_SOURCE)
        written = _stage(
            session, state, dataset, source, rule, fetched, system_time, staging, options, progress
        )
        if isinstance(written, InputOutcome):
            idle = _PullTransaction() if fetched.has_more else _idle(dataset, options)
            return _PullTransaction((written,), idle.hashes, fetched.has_more)
        progress.phase("Committing")
        slices: list[StagedFile] = [written.slice] if written.slice else []
        checkpoints = [written.checkpoint] if written.checkpoint else []
        late = None if fetched.has_more else by_system_time(written.state, rule, system_time, idle=False)
        events = [*written.events, *([late] if late is not None else [])]
        hashes = commit(dataset, state, events, slices, checkpoints=checkpoints, system_time=system_time)
    return _PullTransaction((outcome_of(fetched.name, written),), tuple(hashes), fetched.has_more)


def _idle(dataset: DatasetFiles, options: PullOptions) -> _PullTransaction:
    """What is recorded when the source has nothing new: at most a watermark that follows the system time."""
    state = DatasetState.read(dataset.chain)
    source = polling_source(dataset, state)
    system_time = state.next_system_time(options.ingest.system_time)
    writer = WriterState.of(dataset, state, source.merge)
    event = by_system_time(writer, watermark_rule(dataset, POLLING_SOURCE), system_time, idle=True)
    if event is None:
        return _PullTransaction()
    return _PullTransaction((), tuple(commit(dataset, state, [event], [], system_time=system_time)))


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
    rule: WatermarkRule,
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
    write = write_options(options.ingest, rule, system_time, event_time, staging)
    write = dataclasses.replace(write, new_source_state=fetched.state)
    prepared = FileInput(path, fetched.name, source.read, source.preprocess)
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
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def set_watermark(
    dataset: DatasetFiles,
    watermark: Timestamp,
    system_time: Timestamp | None = None,
    *,
    max_future: Duration | None = None,
) -> Multihash:
    """Record a watermark without data; the state of the source stays with it.

    Raises:
        UsageError: the dataset is derivative.
        AppendError: the watermark would go back.
        GuardError: it lies further in the future than `max_future`.
        RefConflictError: another writer was faster.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: its watermark comes from its inputs")
    now = state.next_system_time(system_time)
    check_manual(dataset, state, watermark, None if max_future is None else latest_believed(now, max_future))
    recorded = state.state_of_source(POLLING_SOURCE)
    event = watermark_event(
        watermark,
        prev_offset=state.last_offset,
        checkpoint=state.checkpoint,
        source_state=recorded[0] if recorded else None,
    )
    (name,) = commit(dataset, state, [event], [], system_time=now)
    return name
