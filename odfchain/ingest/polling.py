"""New objects of a polling source, fetched now or ahead of time, and prepared: unpacked, piped.

The recorded source state says which are new: state and data go into one block. Source: specification "Polling
Source", "AddData" (`newSourceState`); RFC-014.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.errors import FetchError, IngestError, SourceNotFoundError, UsageError
from odfchain.ingest.fetching import UP_TO_DATE, FetchContext, Fetched, FetchResult
from odfchain.ingest.prepare import prepare
from odfchain.ingest.read_formats import FileInput
from odfchain.limits import FetchLimits
from odfchain.odf import events as ev
from odfchain.odf import sources as src
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT, DeferredProgress, Progress, on_a_thread
from odfchain.storage.locations import public_name
from odfchain.storage.template import has_templates
from odfchain.text import json_object
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import is_merge_state

CONTENT_HASH = "odfchain/content-hash"
"""Kind of a source state that is the physical hash of the bytes, for sources that tell nothing themselves."""


_STOP_SECONDS = 1
"""Time for an unneeded fetch to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a polling source is asked."""

    fetch_uncacheable: bool = False
    """Pull a source whose state is not known although its rows might be recorded twice."""
    allow_commands: bool = False
    """Run the commands that the source's prepare steps name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values for `${{ env.NAME }}`."""
    bindings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The only hosts that a variable may be sent to, for those that are bound."""
    limits: FetchLimits = field(default_factory=FetchLimits)
    system_time: Timestamp | None = None
    """System time of the run; None is now."""


@dataclass(frozen=True, slots=True)
class PollingSource:
    """The polling source in force at a head, and what the chain remembers of it."""

    dataset: DatasetFiles
    state: DatasetState
    event: ev.SetPollingSource
    ahead: tuple[tuple[ev.SourceState, Timestamp], ...] = ()
    """States that will have been recorded, and when, once what was fetched before is committed."""

    @classmethod
    def of(cls, dataset: DatasetFiles) -> PollingSource:
        """The source of a dataset at its head."""
        state = DatasetState.read(dataset.chain)
        if state.seed.dataset_kind is not DatasetKind.ROOT:
            raise UsageError(
                f"{dataset.alias} is a derivative dataset: it is computed from its inputs and has no source",
                hint="`odfchain pull` brings it up to date",
            )
        source = state.polling_source
        if source is None:
            hint = "push files with `odfchain ingest`, or define a source with SetPollingSource"
            raise IngestError(f"{dataset.alias} has no polling source in force", hint=hint)
        return cls(dataset, state, source)

    def is_recorded_forever(self, progress: Progress) -> bool:
        """`SourceCaching::Forever`: the one object of this fetch step is recorded and not requested again."""
        # a step for a set of objects is never done: new ones may come at any time, and the state says which
        # were read (specification "SourceCaching::Forever"; RFC-014)
        step = self.event.fetch
        if not isinstance(step, src.FetchStepUrl) or step.cache is None or self._previous() is None:
            return False
        if has_templates(step.url):  # what the object is may hang on them, and their values are not recorded
            progress.note(
                f"{public_name(step.url)}: recorded once and not asked for again (cache: Forever), whatever "
                "the variables in its URL are now"
            )
        return True

    @property
    def may_repeat(self) -> bool:
        """True if rows of an unknown source state are recorded, which merging would repeat."""
        merges = self.event.merge.LOOKS_BACK
        return not merges and self.state.last_offset is not None and self._previous() is None

    def next_system_time(self, given: Timestamp | None) -> Timestamp:
        """System time of the next block, as `DatasetState.next_system_time`."""
        time = self.state.next_system_time(given)
        return max(time, self.ahead[-1][1]) if self.ahead else time

    def after(self, state: ev.SourceState, time: Timestamp) -> PollingSource:
        """The source once an object with this state is recorded."""
        return dataclasses.replace(self, ahead=(*self.ahead, (state, time)))

    def _previous(self) -> tuple[ev.SourceState, Timestamp] | None:
        # the latest state, if it is of the same fetch step
        if self.ahead:
            return self.ahead[-1]
        recorded = self.state.state_of_source(POLLING_SOURCE)
        if recorded is None:
            return None
        (latest, block), chain = recorded, self.state.chain
        defined = chain.nearest_event(ev.SetPollingSource, head=block)
        same = defined is not None and _same_objects(defined.fetch, self.event.fetch)
        return (latest, chain.get(block).system_time) if same else None

    def _recorded_states(self) -> Iterator[tuple[ev.SourceState, Timestamp]]:
        # newest first
        yield from reversed(self.ahead)
        for block in self.state.chain.nearest_all("AddData", "SetPollingSource", head=self.state.head):
            event = block.block.event
            if isinstance(event, ev.SetPollingSource) and not _same_objects(event.fetch, self.event.fetch):
                return
            found = event.new_source_state if isinstance(event, ev.AddData) else None
            if found is not None and not is_merge_state(found):
                yield found, block.block.system_time

    @contextlib.contextmanager
    def fetched(
        self, options: FetchOptions, progress: Progress, expect_rows: Callable[[], None]
    ) -> Iterator[PolledInput | None]:
        """The source's new object, or None."""
        previous, previous_time = self._previous() or (None, None)
        step = self.event.fetch
        if isinstance(step, src.FetchStepContainer) and not options.allow_commands:
            raise FetchError(
                f"{self.dataset.alias} is fetched by a container, {step.image!r}, and was not created here",
                hint="if you trust the image, pull with --allow-commands",
            )
        with self.dataset.staging() as staging:
            context = FetchContext(
                folder=staging,
                previous=previous,
                previous_time=previous_time,
                recorded=self._recorded_states,
                system_time=self.next_system_time(options.system_time),
                variables=options.variables,
                bindings=options.bindings,
                limits=options.limits,
                progress=progress,
                expect_rows=expect_rows,
            )
            fetched = _fetched(step, context)
            if fetched is not UP_TO_DATE:
                if fetched.state is None:
                    name, _ = hash_file(fetched.path)
                    state_of_bytes = ev.SourceState(
                        source_name=POLLING_SOURCE, kind=CONTENT_HASH, value=str(name)
                    )
                    fetched = dataclasses.replace(fetched, state=state_of_bytes)
                if fetched.state != previous or fetched.has_more:
                    yield PolledInput(self, fetched, staging)
                    return
        yield None


def _same_objects(one: src.FetchStep, other: src.FetchStep) -> bool:
    def without_cache(step: src.FetchStep) -> src.FetchStep:
        if isinstance(step, src.FetchStepUrl | src.FetchStepFilesGlob):
            return dataclasses.replace(step, cache=None)
        return step

    # the caching option does not change which objects are meant
    return without_cache(one) == without_cache(other)


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


@dataclass(frozen=True, slots=True)
class PolledInput:
    """New bytes, in a folder that is there as long as they are needed, and what they are new for."""

    source: PollingSource
    fetched: Fetched
    staging: Path

    @contextlib.contextmanager
    def prepared(self, options: FetchOptions, progress: Progress) -> Iterator[FileInput]:
        """The bytes as they are to be read; a source that changes meanwhile is refused at the end."""
        event, fetched = self.source.event, self.fetched
        with _as_it_was(fetched):
            path = prepare(
                event.prepare or (),
                fetched.path,
                self.staging,
                name=fetched.name,
                max_bytes=options.limits.max_bytes,
                progress=progress,
                allow_commands=options.allow_commands,
            )
            yield FileInput(path, fetched.name, event.read, event.preprocess)


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
        hint = "pull again when the file is complete"
        raise IngestError(f"{fetched.name} changed while it was read; nothing was committed", hint=hint)


def _gone(fetched: Fetched) -> SourceNotFoundError:
    message = f"{fetched.name} went away while it was read; nothing was committed"
    return SourceNotFoundError(message, hint="pull again when it is back")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    # None where there is no file
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class FetchAhead:
    """The first fetch of a pull, on its own thread; what it says or raises comes when it has its turn."""

    def __init__(
        self, dataset: DatasetFiles, options: Callable[[], FetchOptions], expect_rows: Callable[[], None]
    ) -> None:
        self._dataset = dataset
        self._options = options
        self._expect_rows = expect_rows
        self._progress = DeferredProgress()
        self._open = contextlib.ExitStack()
        self._done = on_a_thread(self._fetch, "odfchain-fetch")

    def _fetch(self) -> tuple[Multihash, PolledInput | None] | None:
        # None where nothing is fetched ahead
        source, options = PollingSource.of(self._dataset), self._options()
        step = source.event.fetch
        remote = isinstance(step, src.FetchStepUrl) and not step.url.lower().startswith("file:")
        if not remote or source.is_recorded_forever(SILENT):
            return None
        if source.may_repeat and not options.fetch_uncacheable:
            return None

        def expect_rows() -> None:
            self._progress.check()
            self._expect_rows()

        opened = source.fetched(options, self._progress, expect_rows)
        return source.state.head, self._open.enter_context(opened)

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


# Exactly-once batches of a stream. A stream that was killed before its acknowledgement repeats its last
# batch; the commit has recorded the batch's number as source state (kind `odfchain/batch`). Numbers only
# grow, so one number per stream is kept.

BATCH = "odfchain/batch"
_STREAMS = 16
"""Streams into one source whose last batch is kept [count]: those that wrote last."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream, numbered by the stream's runner."""

    query: str
    """Identity of the stream, which stays the same when it is started again."""
    number: int

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not isinstance(self.number, int) or self.number < 0:
            raise UsageError("a batch is the name of its stream and a number, as in batch=('orders', 17)")

    def is_recorded(self, state: DatasetState, source: str) -> bool:
        """True if it, or a later one of its stream, was ingested."""
        return streams_of(state, source).get(self.query, -1) >= self.number

    def after(self, state: DatasetState, source: str) -> ev.SourceState:
        """The source state that is recorded with it."""
        others = {query: n for query, n in streams_of(state, source).items() if query != self.query}
        kept = dict([*others.items(), (self.query, self.number)][-_STREAMS:])
        value = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
        return ev.SourceState(source_name=source, kind=BATCH, value=value)


def streams_of(state: DatasetState, source: str) -> dict[str, int]:
    """The last batch of each stream into a source; the stream that wrote last is at the end."""
    found = state.state_of_source(source)
    value = json_object(found[0].value) if found is not None and found[0].kind == BATCH else {}
    return {query: n for query, n in value.items() if type(n) is int}
