"""How long work reports what it is doing; the edge decides whether and how that is shown."""

from __future__ import annotations

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
