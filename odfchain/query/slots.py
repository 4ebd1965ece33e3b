"""Few queries of others at a time, some that wait, and no more: one rule for all ways to ask a node."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from odfchain.errors import BusyError
from odfchain.query.processes import Worker, WorkerProcess
from odfchain.query.resolved_tables import Pins
from odfchain.workspace.workspace_files import WorkspaceFiles

# Queries that are answered at a time, those that wait for it [count], and how long they do [s].
RUNNING, WAITING, WAITING_SECONDS = 2, 16, 60.0


class Slots:
    """Walled processes for queries of others, with one loaded ahead. May be called from several threads."""

    def __init__(
        self, worker: Worker, files: WorkspaceFiles, *, running: int = RUNNING, waiting: int = WAITING,
        seconds: float = WAITING_SECONDS,
    ) -> None:  # fmt: skip
        self._worker, self._pins = worker, Pins(files)
        self._free, self._room, self._seconds = running, waiting, seconds
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._spare: WorkerProcess | None = None
        # a process ends with the thread that starts it, and threads of servers come and go
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="odfchain-queries")
        self._starter.submit(self._load)

    @contextlib.contextmanager
    def process(self, pins: Pins, gone: Callable[[], bool] = lambda: False) -> Iterator[WorkerProcess]:
        """A process for one query, when it is its turn; it is ended with the block.

        `gone` says that nobody waits any more; `wake` makes it looked at.

        Raises:
            BusyError: too many wait already, or it took too long.
        """
        self._wait(gone)
        try:
            with contextlib.closing(self._starter.submit(self._taken, pins).result()) as process:
                yield process
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def wake(self) -> None:
        """Look again whether those that wait are gone."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the process that was loaded ahead; nothing is asked any more."""
        self._starter.shutdown()
        if self._spare is not None:
            self._spare.close()

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

    # On the thread that starts processes.

    def _load(self) -> None:
        with contextlib.suppress(Exception):  # the query that comes gets the error
            self._spare = self._spare or self._worker.process(self._pins)

    def _taken(self, pins: Pins) -> WorkerProcess:
        if pins.workspace.only is not None:
            return self._worker.process(pins)  # which sees less
        spare, self._spare = self._spare, None
        self._starter.submit(self._load)
        if spare is not None and spare.is_running:
            return spare
        if spare is not None:
            spare.close()
        return self._worker.process(pins)
