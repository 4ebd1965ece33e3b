"""What the stores say of objects now: size, entity tag, time of the last modification.

Of a file only its size is said: what a file system calls an entity tag is kept by no copy. A store that
answers HEAD with a refusal is asked again for the first byte; what it does not say stays unknown, and the
library's 1970 is what it says where there is no time.

Each request is a thread's: threads of the library that call back into Python, as its coroutines need, now and
then end a process that is about to end by an abort; and threads ask twice as fast. Source: RFC-047.
"""

from __future__ import annotations

import datetime as dt
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from odfchain.assets.access import Stores
from odfchain.assets.lock_table import Facts
from odfchain.errors import OdfchainError
from odfchain.progress import SILENT, Progress
from odfchain.store.buckets import store_message
from odfchain.store.locations import Location

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

JOBS = 16
WINDOW = 4_096
"""Objects that are asked for in one go."""
_NOT_REACHED = re.compile(r"HttpError \{\s*kind: (?:Connect|Timeout)\b")
"""How the library describes a server that did not answer at all: asked in another way it will not, either."""
_NO_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of asking for one object."""

    facts: Facts | None = None
    missing: bool = False
    """The store says that there is no such object."""
    problem: str = ""
    """Why nothing is known."""


def probe_all(
    locations: Sequence[Location], stores: Stores, *, jobs: int = JOBS, progress: Progress = SILENT
) -> Iterator[Probe]:
    """What is known of each location, in order; `jobs` requests run at a time, and nothing is raised."""
    progress.phase("Asking for facts", len(locations))
    for start in range(0, len(locations), WINDOW):
        window = locations[start : start + WINDOW]
        found = probes_of(window, stores, jobs)
        progress.advance(len(window))
        yield from found


def probes_of(locations: Sequence[Location], stores: Stores, jobs: int) -> list[Probe]:
    """What is known of each location; all of them are in memory."""
    found = [Probe()] * len(locations)
    waiting, stopped = iter(range(len(locations))), threading.Event()

    def work() -> None:
        for number in waiting:
            if stopped.is_set():
                return
            found[number] = probe(locations[number], stores)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for worker in [pool.submit(work) for _ in range(min(jobs, len(locations)))]:
                worker.result()
        finally:  # Ctrl-C: nothing more is asked for
            stopped.set()
    return found


def probe(location: Location, stores: Stores) -> Probe:
    """What is known of an object."""
    try:
        if location.store == "file":
            return _file(location, stores)
        store = stores.store_of(location)
    except OdfchainError as error:
        return Probe(problem=str(error))
    found = _object(store, location.key)
    return replace(found, problem=stores.message_of(location, found.problem)) if found.problem else found


def facts_of(meta: ObjectMeta) -> Facts:
    """What a store's description of an object says."""
    time = meta["last_modified"]
    shown = None if time == _NO_TIME else time.astimezone(dt.UTC).isoformat()
    return Facts(meta["size"], meta["e_tag"], shown)


def _file(location: Location, stores: Stores) -> Probe:
    try:
        found = stores.file_of(location).lstat()
    except FileNotFoundError:
        return Probe(missing=True, problem="no such file")
    except OSError as error:
        return Probe(problem=error.strerror or "it cannot be read")
    if not stat.S_ISREG(found.st_mode):
        return Probe(problem="not an ordinary file")
    return Probe(Facts(found.st_size))


def _object(store: ObjectStore, key: str) -> Probe:
    import obstore  # noqa: PLC0415 - a heavy library
    from obstore.exceptions import BaseError  # noqa: PLC0415

    def asked(**options: Any) -> ObjectMeta:
        return obstore.get(store, key, **options).meta

    ways: tuple[Callable[[], ObjectMeta], ...] = (
        lambda: obstore.head(store, key),
        lambda: asked(options={"range": (0, 1)}),
        asked,  # of an empty object there is no first byte
    )
    refusals = list[Exception]()
    for way in ways:
        try:
            return Probe(facts_of(way()))
        except (FileNotFoundError, BaseError, ValueError) as error:
            refusals.append(error)
        if isinstance(refusals[-1], FileNotFoundError) and len(refusals) > 1:
            return Probe(missing=True, problem="no such object")
        if _NOT_REACHED.search(str(refusals[-1])):
            break
    if any("content-length" in str(error).lower() for error in refusals):
        return Probe(Facts())  # it is there, and its store does not say how long it is
    return Probe(problem=store_message(refusals[-1]))
