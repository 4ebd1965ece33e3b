"""Few queries of others at a time, some that wait, and no more: one rule for all ways to ask a node."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import BusyError, EngineError, OdfchainError
from odfchain.odf.identity import DatasetId
from odfchain.query.resolved_tables import CheckedSlices, Pin, Pins
from odfchain.query.walled import Loader, Worker, WorkerProcess
from odfchain.workspace.workspace_files import WorkspaceFiles

# Queries that are answered at a time, those that wait for it [count], and how long they do [s].
RUNNING, WAITING, WAITING_SECONDS = 2, 16, 60.0
# Loaded processes that are kept, each for what some readers may see [count].
LOADERS = 4
# Datasets whose slices are known [count]; the blocks [count] and bytes of each, since checking takes time.
_DATASETS, _BLOCKS, _BYTES = 1_000, 1_000, 64 << 20


class Slots:
    """Walled processes for queries of others, forked by loaders. May be called from several threads."""

    def __init__(
        self, worker: Worker, files: WorkspaceFiles, *, running: int = RUNNING, waiting: int = WAITING,
        seconds: float = WAITING_SECONDS,
    ) -> None:  # fmt: skip
        self._worker = worker
        self._free, self._room, self._seconds = running, waiting, seconds
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        # by what they see, the one that was used last at the end
        self._loaders: dict[tuple[Path, ...], _Loaded] = {}
        # a process ends with the thread that starts it, and threads of servers come and go
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="odfchain-queries")
        # the memory of a process takes time to be given back, and nobody need wait for that
        self._ending = ThreadPoolExecutor(running, thread_name_prefix="odfchain-queries-end")
        self._known = _KnownSlices()
        # checking takes up to a second, and no query need wait for that
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="odfchain-queries-check")
        self._first = self._starter.submit(self._spare, worker.shown(Pins(files)))

    @contextlib.contextmanager
    def process(self, pins: Pins, gone: Callable[[], bool] = lambda: False) -> Iterator[WorkerProcess]:
        """A process for one query, when it is its turn; it is killed with the block.

        `gone` says that nobody waits any more; `wake` makes it looked at.

        Raises:
            BusyError: too many wait already, or it took too long.
        """
        shown = self._worker.shown(pins)
        self._wait(gone)
        try:
            process = self._ready(shown)
        except BaseException:
            self._freed()
            raise
        try:
            yield process
        finally:
            process.kill()
            self._ending.submit(self._ended, shown, process)

    def _ready(self, shown: tuple[Path, ...]) -> WorkerProcess:
        process = self._starter.submit(self._taken, shown).result()
        try:
            process.ready()
        except EngineError:  # an earlier query may have ended what forks
            process.loader.spoil()
            process.close()
            self._starter.submit(self._given_back, shown, process)
            process = self._starter.submit(self._taken, shown).result()
        return process

    def _ended(self, shown: tuple[Path, ...], process: WorkerProcess) -> None:
        process.close()
        self._freed()
        self._starter.submit(self._given_back, shown, process)
        self._checking.submit(self._known.check, process.inputs)

    def _freed(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def wait_until_loaded(self) -> None:
        """Return when a process is loaded for the first query, or cannot be: that query gets the error."""
        with contextlib.suppress(OdfchainError):
            self._first.result().ready()

    def wake(self) -> None:
        """Look again whether those that wait are gone."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the loaders; nothing is asked any more."""
        self._ending.shutdown()
        self._checking.shutdown(cancel_futures=True)
        self._starter.shutdown()
        for loaded in self._loaders.values():
            loaded.close()

    def _wait(self, gone: Callable[[], bool]) -> None:
        ticket = object()
        with self._changed:
            room = len(self._queue) < self._room + self._free
            self._queue.append(ticket)
            try:
                turn = room and self._changed.wait_for(
                    lambda: gone() or bool(self._free and self._queue[0] is ticket), self._seconds
                )
                if not turn or gone():
                    raise BusyError("the node has too many queries at the moment", hint="try again")
                self._free -= 1
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    # On the thread that starts loaders.

    def _spare(self, shown: tuple[Path, ...]) -> WorkerProcess:
        loaded = self._loaders.pop(shown, None)
        if loaded is not None and not loaded.fits:
            loaded.close()
            loaded = None
        loaded = self._loaders[shown] = loaded or _Loaded(self._worker.loader(shown))
        for old in list(self._loaders)[:-LOADERS]:
            self._loaders.pop(old).close()
        loaded.spare = loaded.spare or WorkerProcess(loaded.loader)
        return loaded.spare

    def _taken(self, shown: tuple[Path, ...]) -> WorkerProcess:
        process = self._spare(shown)
        self._loaders[shown].spare = None
        process.loader.users += 1
        process.known = self._known.named_in
        return process

    def _given_back(self, shown: tuple[Path, ...], process: WorkerProcess) -> None:
        loader = process.loader
        loader.users -= 1
        loaded = self._loaders.get(shown)
        if loaded is not None and loaded.loader is loader:
            self._spare(shown)  # for the next query
        elif not loader.users:
            loader.close()


@dataclass
class _Loaded:
    """A loader, and its process for the next query."""

    loader: Loader
    spare: WorkerProcess | None = None

    @property
    def fits(self) -> bool:
        """True if the next query can be asked."""
        return self.loader.fits and (self.spare is None or self.spare.is_running)

    def close(self) -> None:
        """End the process, and the loader unless it is in use: then the last query ends it."""
        if self.spare is not None:
            self.spare.close()
        if not self.loader.users:
            self.loader.close()


class _KnownSlices:
    """Slices that were checked here, not by a query of others: the next one need not check them again."""

    def __init__(self) -> None:
        self._of: dict[DatasetId, tuple[str, CheckedSlices]] = {}

    def check(self, inputs: Iterable[Pin]) -> None:
        """Check the slices of small datasets."""
        for pin in (each for each in inputs if each.sequence_number <= _BLOCKS):
            _, checked = self._of.setdefault(pin.id, (str(pin.alias), CheckedSlices()))
            if sum(each.slice.size for each in checked.slices(pin.state)) <= _BYTES:
                with contextlib.suppress(OdfchainError):  # the query that reads it says so
                    pin.paths(checked)
        for old in list(self._of)[:-_DATASETS]:
            del self._of[old]

    def named_in(self, sql: str) -> dict[str, list[int]]:
        """By path, what is known of the slices of the datasets that a text may name."""
        found: dict[str, list[int]] = {}
        for id_, (alias, checked) in list(self._of.items()):
            if alias in sql or str(id_) in sql:
                found |= checked.known
        return found
