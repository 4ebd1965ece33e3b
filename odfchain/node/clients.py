"""Clients that wait for an answer of a node: what is done for one that has gone is ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Client:
    """Whoever waits for an answer, and may go away; for the event loop and the threads that answer."""

    def __init__(self) -> None:
        self.is_gone = False
        self._ends: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def leave(self) -> None:
        """It has gone: what is done for it ends."""
        with self._lock:
            self.is_gone = True
            ends = list(self._ends)
        for end in ends:
            end()

    @contextlib.contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Inside, `end` is called when the client goes, or at once."""
        with self._lock:
            self._ends.append(end)
            gone = self.is_gone
        if gone:
            end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)
