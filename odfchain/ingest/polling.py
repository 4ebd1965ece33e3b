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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import FetchError, IngestError, SourceNotFoundError, UsageError
from odfchain.ingest.fetching import UP_TO_DATE, FetchContext, Fetched, FetchResult
from odfchain.ingest.ingesting import (
    FileInput,
    IngestOptions,
    InputOutcome,
    Transaction,
)
from odfchain.ingest.prepare import prepare
from odfchain.limits import FetchLimits
from odfchain.odf import events as ev
from odfchain.odf import sources as src
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, DeferredProgress, Progress
from odfchain.spark.jobs import on_a_thread
from odfchain.storage.template import has_templates, public_name
from odfchain.workspace.commit import CommitCheck, commit, on_the_newest_head
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import is_merge_state
from odfchain.workspace.watermark import check_manual, latest_believed, watermark_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Disabling a source: recorded data stay (RFC-013).

_HINT = "`odfchain log` shows the events that define and disable sources"


def disable_source(
    dataset: DatasetFiles, name: str | None = None, *, system_time: Timestamp | None = None
) -> tuple[ev.DisablePollingSource | ev.DisablePushSource, Multihash]:
    """End the source of this name, or the only one; returns the event and the hash of its block.

    Raises:
        UsageError: the dataset is derivative, no source of this name is in force, or there are several.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: it has inputs, and no sources")
    event = _event(dataset, state, name)
    (block,) = commit(dataset, state, [event], [], system_time=state.next_system_time(system_time))
    return event, block


def _event(
    dataset: DatasetFiles, state: DatasetState, name: str | None
) -> ev.DisablePollingSource | ev.DisablePushSource:
    pushed = list(state.push_sources)
    polled = state.polling_source is not None
    known = [*([POLLING_SOURCE] if polled else []), *pushed]
    if not known:
        raise UsageError(f"{dataset.alias} has no source in force", hint=_HINT)
    if name is None and len(known) > 1:
        raise UsageError(
            f"{dataset.alias} has several sources: {', '.join(pushed)}", hint="choose one with --source"
        )
    if name is not None and name not in known:
        raise UsageError(
            f"{dataset.alias} has no source called {name!r} in force (it has {', '.join(known)})", hint=_HINT
        )
    return ev.DisablePollingSource() if polled else ev.DisablePushSource(source_name=name or pushed[0])


# New objects of a source, fetched now or ahead of time; the recorded source state says which are new
# (specification "Polling Source", "SourceState"; RFC-014).

CONTENT_HASH = "odfchain/content-hash"
"""Kind of a source state that is the physical hash of the bytes, for sources that tell nothing themselves."""


_STOP_SECONDS = 1
"""Time for an unneeded fetch to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Options of a pull."""

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


def polling_source(dataset: DatasetFiles, state: DatasetState) -> ev.SetPollingSource:
    """The polling source in force."""
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


def cached_forever(source: ev.SetPollingSource, state: DatasetState, progress: Progress) -> bool:
    """`SourceCaching::Forever`: the one object of this fetch step is recorded and not requested again."""
    # a step for a set of objects is never done: new ones may come at any time, and the state says which were
    # read (specification "SourceCaching::Forever"; RFC-014)
    step = source.fetch
    if not isinstance(step, src.FetchStepUrl) or step.cache is None or _previous(source, state) is None:
        return False
    if has_templates(step.url):  # what the object is may hang on them, and their values are not recorded
        progress.note(
            f"{public_name(step.url)}: recorded once and not asked for again (cache: Forever), whatever the "
            "variables in its URL are now"
        )
    return True


def uncacheable(source: ev.SetPollingSource, state: DatasetState) -> bool:
    """True if rows of an unknown source state are recorded, which merging would repeat."""
    return not source.merge.LOOKS_BACK and state.last_offset is not None and _previous(source, state) is None


def _previous(source: ev.SetPollingSource, state: DatasetState) -> tuple[ev.SourceState, Timestamp] | None:
    # the latest state, if it is of the same fetch step
    recorded = state.state_of_source(POLLING_SOURCE)
    if recorded is None:
        return None
    latest, block = recorded
    defined = state.chain.nearest_event(ev.SetPollingSource, head=block)
    same = defined is not None and _same_objects(defined.fetch, source.fetch)
    return (latest, state.chain.get(block).system_time) if same else None


def _same_objects(one: src.FetchStep, other: src.FetchStep) -> bool:
    # the caching option does not change which objects are meant
    one, other = (
        dataclasses.replace(step, cache=None)
        if isinstance(step, src.FetchStepUrl | src.FetchStepFilesGlob)
        else step
        for step in (one, other)
    )
    return one == other


def _recorded_states(source: ev.SetPollingSource, state: DatasetState) -> Iterator[ev.SourceState]:
    # newest first
    for block in state.chain.nearest_all("AddData", "SetPollingSource", head=state.head):
        event = block.block.event
        if isinstance(event, ev.SetPollingSource) and not _same_objects(event.fetch, source.fetch):
            return
        found = event.new_source_state if isinstance(event, ev.AddData) else None
        if found is not None and not is_merge_state(found):
            yield found


@dataclass(frozen=True, slots=True)
class PolledInput:
    """New bytes, in a folder that is there as long as they are needed, and what they are new for."""

    state: DatasetState
    source: ev.SetPollingSource
    fetched: Fetched
    staging: Path


def _fetched(step: src.FetchStep, context: FetchContext) -> FetchResult:
    match step:
        case src.FetchStepUrl():
            from odfchain.ingest.fetch_url import fetch_url

            return fetch_url(step, context)
        case src.FetchStepFilesGlob():
            from odfchain.ingest.fetch_files import fetch_glob

            return fetch_glob(step, context)
        case src.FetchStepContainer():
            from odfchain.ingest.fetch_container import fetch_container

            return fetch_container(step, context)
    raise FetchError(f"fetching from {step.KIND} is not supported (Url, FilesGlob and Container are)")


@contextlib.contextmanager
def fetching(
    dataset: DatasetFiles, options: PullOptions, progress: Progress, expect_rows: Callable[[], None]
) -> Iterator[PolledInput | None]:
    """The source's new object, or None."""
    state = DatasetState.read(dataset.chain)
    source = polling_source(dataset, state)
    previous, previous_time = _previous(source, state) or (None, None)
    if isinstance(source.fetch, src.FetchStepContainer) and not options.allow_commands:
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
            system_time=state.next_system_time(options.ingest.system_time),
            variables=options.variables,
            bindings=options.bindings,
            limits=options.limits,
            progress=progress,
            expect_rows=expect_rows,
        )
        fetched = _fetched(source.fetch, context)
        if fetched is not UP_TO_DATE:
            if fetched.state is None:
                name, _ = hash_file(fetched.path)
                state_of_bytes = ev.SourceState(
                    source_name=POLLING_SOURCE, kind=CONTENT_HASH, value=str(name)
                )
                fetched = dataclasses.replace(fetched, state=state_of_bytes)
            if fetched.state != previous or fetched.has_more:
                yield PolledInput(state, source, fetched, staging)
                return
    yield None


class FetchAhead:
    """The first fetch of a pull, on a thread of its own, while the pulls before it are still at work.

    What it has to say is said when its turn has come, what goes wrong is raised then.
    """

    def __init__(
        self, dataset: DatasetFiles, options: Callable[[], PullOptions], expect_rows: Callable[[], None]
    ) -> None:
        self._dataset = dataset
        self._options = options
        self._expect_rows = expect_rows
        self._progress = DeferredProgress()
        self._open = contextlib.ExitStack()
        self._done = on_a_thread(self._fetch, "odfchain-fetch")

    def _fetch(self) -> tuple[Multihash, PolledInput | None] | None:
        # None where nothing is fetched ahead
        state = DatasetState.read(self._dataset.chain)
        source = polling_source(self._dataset, state)
        remote = isinstance(source.fetch, src.FetchStepUrl) and not source.fetch.url.lower().startswith(
            "file:"
        )
        options = self._options()
        if not remote or cached_forever(source, state, SILENT):
            return None
        if uncacheable(source, state) and not options.fetch_uncacheable:
            return None

        def expect_rows() -> None:
            self._progress.check()
            self._expect_rows()

        opened = fetching(self._dataset, options, self._progress, expect_rows)
        return state.head, self._open.enter_context(opened)

    def wait(self, progress: Progress) -> None:
        """Until it has ended, with success or not; from now on its notes are shown."""
        self._progress.show_on(progress)
        wait((self._done,))

    def input(self, head: Multihash) -> AbstractContextManager[PolledInput | None] | None:
        """The object that was fetched ahead for this head; None where it is to be fetched now."""
        found = self._done.result()
        if found is None or found[0] != head:
            self._open.close()
            return None
        return self._taken(found[1])

    @contextlib.contextmanager
    def _taken(self, polled: PolledInput | None) -> Iterator[PolledInput | None]:
        with self._open:
            yield polled

    def stop(self) -> None:
        """Stop it at its next check."""
        self._progress.stop()

    def close(self) -> None:
        """Remove what was fetched in vain; a fetch that waits for its server ends with the process."""
        self.stop()
        wait((self._done,), timeout=_STOP_SECONDS)
        if self._done.done():
            self._open.close()


class PullStatus(Enum):
    """Status of a pull."""

    UPDATED = "updated"
    UP_TO_DATE = "up to date"
    UNCACHEABLE = "skipped: the source does not tell what is new"


@dataclass(frozen=True, slots=True)
class PullOutcome:
    """Result of a pull; `head` is the old one when there was nothing new."""

    status: PullStatus
    inputs: tuple[InputOutcome, ...]
    old_head: Multihash
    head: Multihash
    blocks: int
    watermark: Timestamp | None


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
        return PullOutcome(PullStatus.UNCACHEABLE, (), old.head, old.head, 0, old.watermark)
    inputs: list[InputOutcome] = []
    blocks = 0
    begun = [] if ahead is None else [ahead]

    def begin(state: DatasetState, source: ev.SetPollingSource) -> Transaction:
        return Transaction(dataset, state, source.merge, POLLING_SOURCE, session, options.ingest)

    def idle() -> list[Multihash]:
        # at most a watermark that follows the system time
        state = DatasetState.read(dataset.chain)
        return begin(state, polling_source(dataset, state)).commit()

    def attempt() -> tuple[list[InputOutcome], list[Multihash], bool]:
        if forever:
            return [], idle(), False
        ahead = begun.pop().input(old.head) if begun else None
        with ahead or fetching(dataset, options, progress, expect_rows) as polled:
            if polled is None:
                return [], idle(), False
            expect_rows()
            transaction, has_more = begin(polled.state, polled.source), polled.fetched.has_more
            if _stage(transaction, polled, options, progress):
                hashes = transaction.commit(progress, check, ends=not has_more)
            else:
                hashes = [] if has_more else idle()
            return transaction.inputs, hashes, has_more

    has_more = True
    while has_more:
        found, hashes, has_more = on_the_newest_head(attempt, options.ingest.retries, progress)
        inputs += found
        blocks += len(hashes)
    new = DatasetState.read(dataset.chain)
    status = PullStatus.UPDATED if blocks else PullStatus.UP_TO_DATE
    return PullOutcome(status, tuple(inputs), old.head, new.head, blocks, new.watermark)


def _stage(transaction: Transaction, polled: PolledInput, options: PullOptions, progress: Progress) -> bool:
    source, fetched = polled.source, polled.fetched
    event_time = fetched.event_time or options.ingest.event_time or transaction.system_time
    with _as_it_was(fetched):
        path = prepare(
            source.prepare or (),
            fetched.path,
            polled.staging,
            name=fetched.name,
            max_bytes=options.limits.max_bytes,
            progress=progress,
            allow_commands=options.allow_commands,
        )
        return transaction.stage(
            FileInput(path, fetched.name, source.read, source.preprocess), event_time, polled.staging,
            progress, source_state=fetched.state, advances=fetched.advances,
        )  # fmt: skip


@contextlib.contextmanager
def _as_it_was(fetched: Fetched) -> Iterator[None]:
    # a source that changes while it is read must not be recorded
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
    # None where there is no file
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
    """Record a watermark without data; the state of the source stays with it."""
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
