"""Progress on standard error: a bar when a terminal is attached, nothing otherwise."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class TerminalProgress:
    """One line that says what is being done; notes are printed above it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._shown = sys.stderr.isatty() and not quiet

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def phase(self, name: str, total: int | None = None) -> None:
        """Replace the line."""
        if not self._shown:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total)

    def advance(self, steps: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, steps)

    def note(self, text: str) -> None:
        """Print a note that stays."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(f"note: {text}", highlight=False, markup=False)
        else:
            click.echo(f"note: {text}", err=True)
