"""How long work reports what it is doing; the edge decides whether and how that is shown."""

from __future__ import annotations

import threading
from typing import Protocol


class Progress(Protocol):
    """Told about phases and steps; must be cheap and may be called from worker threads."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins; `total` is the number of steps when it is known."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the present phase are done."""

    def note(self, text: str) -> None:
        """Something the user should know, whether progress is shown or not."""


class Silent:
    """Ignores everything."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Ignored."""

    def advance(self, steps: int = 1) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""


SILENT = Silent()


class DeferredProgress:
    """Keeps what it is told until there is somebody to show it, and ends what nobody needs any more."""

    def __init__(self) -> None:
        self._shown: Progress | None = None
        self._phase: tuple[str, int | None] | None = None
        self._steps = 0
        self._notes: list[str] = []
        self._stopped = False
        self._lock = threading.Lock()

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins; the last one is kept."""
        self.check()
        with self._lock:
            self._phase, self._steps = (name, total), 0
            if self._shown is not None:
                self._shown.phase(name, total)

    def advance(self, steps: int = 1) -> None:
        """Some steps of the present phase are done."""
        self.check()
        with self._lock:
            self._steps += steps
            if self._shown is not None:
                self._shown.advance(steps)

    def note(self, text: str) -> None:
        """Something the user should know; all of them are kept."""
        self.check()
        with self._lock:
            if self._shown is None:
                self._notes.append(text)
            else:
                self._shown.note(text)

    def show_on(self, progress: Progress) -> None:
        """What was told so far is told there, and all that comes."""
        with self._lock:
            self._shown = progress
            if self._phase is not None:
                progress.phase(*self._phase)
                progress.advance(self._steps)
            for text in self._notes:
                progress.note(text)

    def stop(self) -> None:
        """Whoever tells something from now on is interrupted."""
        self._stopped = True

    def check(self) -> None:
        """Nothing, unless it was stopped.

        Raises:
            KeyboardInterrupt: it was.
        """
        if self._stopped:
            raise KeyboardInterrupt
