"""What the source of a dataset has that is not recorded yet: fetched now, or ahead of its turn.

The state of the source that the chain remembers says what is new. Source: specification "Polling Source",
"SourceState"; RFC-014.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.digest.physical import hash_file
from odfchain.errors import FetchError, IngestError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.ingest.fetch.fetcher import UP_TO_DATE, FetchContext, Fetched
from odfchain.ingest.fetch.fetchers import fetch
from odfchain.ingest.ingesting import IngestOptions
from odfchain.limits import FetchLimits
from odfchain.model.enums import DatasetKind
from odfchain.model.events import AddData, SetPollingSource, SourceState
from odfchain.model.sources import (
    FetchStep,
    FetchStepContainer,
    FetchStepFilesGlob,
    FetchStepUrl,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
)
from odfchain.model.timestamp import Timestamp
from odfchain.net.template import has_templates, public_name
from odfchain.progress import SILENT, DeferredProgress, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import is_merge_state
from odfchain.spark.job import on_a_thread

CONTENT_HASH = "odfchain/content-hash"
"""Kind of a source state that is the physical hash of the bytes, for sources that tell nothing themselves."""


_STOP_SECONDS = 1
"""How long a fetch that nobody needs may take to notice."""


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


def cached_forever(source: SetPollingSource, state: DatasetState, progress: Progress) -> bool:
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


def uncacheable(source: SetPollingSource, state: DatasetState) -> bool:
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
        found = event.new_source_state if isinstance(event, AddData) else None
        if found is not None and not is_merge_state(found):
            yield found


@dataclass(frozen=True, slots=True)
class News:
    """New bytes, in a folder that is there as long as they are needed, and what they are new for."""

    state: DatasetState
    source: SetPollingSource
    fetched: Fetched
    staging: Path


@contextlib.contextmanager
def fetching(
    dataset: DatasetFiles, options: PullOptions, progress: Progress, expect_rows: Callable[[], None]
) -> Iterator[News | None]:
    """What the source has now, None where that is nothing new."""
    state = DatasetState.read(dataset.chain)
    source = polling_source(dataset, state)
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
            system_time=state.next_system_time(options.ingest.system_time),
            variables=options.variables,
            bindings=options.bindings,
            limits=options.limits,
            progress=progress,
            expect_rows=expect_rows,
        )
        fetched = fetch(source.fetch, context)
        if fetched is not UP_TO_DATE:
            fetched = _with_state(fetched)
            if fetched.state != previous or fetched.has_more:
                yield News(state, source, fetched, staging)
                return
    yield None


def _with_state(fetched: Fetched) -> Fetched:
    """The same with a state: where the source tells none, the hash of its bytes is one."""
    if fetched.state is not None:
        return fetched
    name, _ = hash_file(fetched.path)
    state = SourceState(source_name=POLLING_SOURCE, kind=CONTENT_HASH, value=str(name))
    return dataclasses.replace(fetched, state=state)


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

    def _fetch(self) -> tuple[Multihash, News | None] | None:
        """The head and what is new for it; None where nothing is fetched ahead."""
        state = DatasetState.read(self._dataset.chain)
        source = polling_source(self._dataset, state)
        remote = isinstance(source.fetch, FetchStepUrl) and not source.fetch.url.lower().startswith("file:")
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
        """Until it has ended in whatever way; now it is said what happens."""
        self._progress.show_on(progress)
        wait((self._done,))

    def news(self, head: Multihash) -> AbstractContextManager[News | None] | None:
        """What was fetched for this head; None where that is to be done now."""
        found = self._done.result()
        if found is None or found[0] != head:
            self._open.close()
            return None
        return self._taken(found[1])

    @contextlib.contextmanager
    def _taken(self, news: News | None) -> Iterator[News | None]:
        with self._open:
            yield news

    def stop(self) -> None:
        """It ends as soon as it notices."""
        self._progress.stop()

    def close(self) -> None:
        """Nothing is left of what nobody took; a fetch that waits for its server ends with the process."""
        self.stop()
        wait((self._done,), timeout=_STOP_SECONDS)
        if self._done.done():
            self._open.close()
