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

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.errors import IngestError, NothingToCommitError, SourceNotFoundError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.ingest.fetch.fetcher import Fetched
from odfchain.ingest.ingesting import (
    InputOutcome,
    by_system_time,
    outcome_of,
    write_options,
)
from odfchain.ingest.news import (
    FetchAhead,
    News,
    PullOptions,
    cached_forever,
    fetching,
    polling_source,
    uncacheable,
)
from odfchain.ingest.prepare.prepare import PrepareLimits, prepare
from odfchain.ingest.transaction import FileInput, stage_input
from odfchain.ingest.writer_state import WriterState, Written
from odfchain.model.duration import Duration
from odfchain.model.enums import DatasetKind
from odfchain.model.events import SetPollingSource
from odfchain.model.sources import (
    WatermarkRule,
)
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import CommitCheck, commit, on_the_newest_head
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.watermark import check_manual, latest_believed, rule_of, watermark_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def pull_source(
    dataset: DatasetFiles,
    session: Callable[[], SparkSession],
    options: PullOptions,
    progress: Progress = SILENT,
    *,
    expect_rows: Callable[[], None] = lambda: None,
    ahead: FetchAhead | None = None,
    check: CommitCheck | None = None,
) -> PullOutcome:
    """Bring a root dataset up to date with its polling source, one transaction for each fetch.

    `expect_rows` is called as soon as it is certain that the session will be needed. The first fetch may have
    been made, or begun, `ahead`. `check` judges each transaction.
    """
    if ahead is not None:
        ahead.wait(progress)
    old = DatasetState.read(dataset.chain)
    source = polling_source(dataset, old)
    forever = cached_forever(source, old, progress)
    if not forever and uncacheable(source, old) and not options.fetch_uncacheable:
        return _outcome(PullStatus.UNCACHEABLE, old, old, [], 0)
    inputs: list[InputOutcome] = []
    blocks = 0
    begun = [] if ahead is None else [ahead]

    def attempt() -> _PullTransaction:
        if forever:
            return _idle(dataset, session, options)
        news = begun.pop().news(old.head) if begun else None
        with news or fetching(dataset, options, progress, expect_rows) as found:
            if found is None:
                return _idle(dataset, session, options)
            expect_rows()
            return _recorded(dataset, session, options, progress, found, check)

    while True:
        done = on_the_newest_head(attempt, options.ingest.retries, progress)
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


def _recorded(
    dataset: DatasetFiles,
    session: Callable[[], SparkSession],
    options: PullOptions,
    progress: Progress,
    news: News,
    check: CommitCheck | None,
) -> _PullTransaction:
    state, source, fetched, staging = news.state, news.source, news.fetched, news.staging
    system_time = state.next_system_time(options.ingest.system_time)
    rule = rule_of(dataset, POLLING_SOURCE)
    written = _stage(session, state, dataset, source, rule, fetched, system_time, staging, options, progress)
    if isinstance(written, InputOutcome):
        idle = _PullTransaction() if fetched.has_more else _idle(dataset, session, options)
        return _PullTransaction((written,), idle.hashes, fetched.has_more)
    progress.phase("Committing")
    checkpoints = [written.checkpoint] if written.checkpoint else []
    late = None if fetched.has_more else by_system_time(written.state, rule, system_time, idle=False)
    events = [*written.events, *([late] if late is not None else [])]
    hashes = commit(
        dataset, state, events, written.slices, checkpoints=checkpoints, system_time=system_time, check=check
    )
    return _PullTransaction((outcome_of(fetched.name, written),), tuple(hashes), fetched.has_more)


def _idle(
    dataset: DatasetFiles, session: Callable[[], SparkSession], options: PullOptions
) -> _PullTransaction:
    """What is recorded when the source has nothing new: at most a watermark that follows the system time."""
    state = DatasetState.read(dataset.chain)
    source = polling_source(dataset, state)
    system_time = state.next_system_time(options.ingest.system_time)
    writer = WriterState.of(dataset, state, source.merge, session)
    event = by_system_time(writer, rule_of(dataset, POLLING_SOURCE), system_time, idle=True)
    if event is None:
        return _PullTransaction()
    return _PullTransaction((), tuple(commit(dataset, state, [event], [], system_time=system_time)))


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
    event_time = fetched.event_time or options.ingest.event_time or system_time
    write = write_options(options.ingest, rule, system_time, event_time, staging)
    write = dataclasses.replace(write, new_source_state=fetched.state, advances=fetched.advances)
    with _as_it_was(fetched):
        path = prepare(
            source.prepare or (),
            fetched.path,
            staging,
            name=fetched.name,
            limits=PrepareLimits(max_bytes=options.limits.max_bytes),
            progress=progress,
            allow_commands=options.allow_commands,
        )
        prepared = FileInput(path, fetched.name, source.read, source.preprocess)
        writer = WriterState.of(dataset, state, source.merge, session)
        try:
            return stage_input(session, writer, prepared, write, progress)
        except NothingToCommitError as nothing:
            return InputOutcome(fetched.name, nothing.input_rows, {}, None)


@contextlib.contextmanager
def _as_it_was(fetched: Fetched) -> Iterator[None]:
    """What was fetched is afterwards what it was before, or nothing of it is recorded.

    Raises:
        SourceNotFoundError: it is gone.
        IngestError: it was written to.
    """
    before = _stamp(fetched.path)
    try:
        yield
    except Exception as error:
        if _stamp(fetched.path) is None:
            raise _gone(fetched) from error
        raise
    after = _stamp(fetched.path)
    if after is None:
        raise _gone(fetched)
    if after != before:
        raise IngestError(
            f"{fetched.name} changed while it was read; nothing was committed",
            hint="pull again when the file is complete",
        )


def _gone(fetched: Fetched) -> SourceNotFoundError:
    return SourceNotFoundError(
        f"{fetched.name} went away while it was read; nothing was committed",
        hint="pull again when it is back",
    )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells whether a file was written to; None where there is none."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
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
