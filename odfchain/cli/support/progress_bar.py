"""Progress on standard error: a bar when a terminal is attached, nothing otherwise."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from odfchain.cli.support.output import human_size
from odfchain.cli.support.screen import console, echo, styled
from odfchain.cli.support.work_line import work_line
from odfchain.progress import WorkDone
from odfchain.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID


class TerminalProgress:
    """One line that says what is being done; notes are printed above it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._shown = sys.stderr.isatty() and not quiet
        self._changing = threading.Lock()

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the line."""
        with self._changing:
            if self._bar is not None:
                self._bar.stop()
                self._bar = self._task = None

    def phase(
        self, name: str, total: int | None = None, *, amount: Callable[[float], str] | None = None
    ) -> None:
        """Replace the line; `amount` writes a number of steps, where that is worth showing."""
        if not self._shown:
            return
        if self._bar is None:
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                _bar(),
                _amounts(),
                TimeElapsedColumn(),
                console=console(err=True),
                transient=True,
            )
            self._bar.start()
        with self._changing:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(printable(name), total=total, amount=amount, line=False)

    @property
    def shows_work(self) -> bool:
        """Whether there is a line."""
        return self._shown

    def work(self, done: WorkDone) -> None:
        """Say in the line how far Spark is; the bar makes room for it, unless it counts steps of its own."""
        with self._changing:
            if self._bar is None or self._task is None:
                return
            task = next(task for task in self._bar.tasks if task.id == self._task)
            counts = task.total is not None
            room = self._bar.console.width - _BESIDE - (_BAR + 1) * counts
            self._bar.update(self._task, description=work_line(done, room), line=not counts)

    def advance(self, steps: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, steps)

    def note(self, text: str) -> None:
        """Print a note that stays."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(styled(f"note: {text}"))
        else:
            echo(f"note: {text}", err=True)


class TransferProgress:
    """Shows a transfer: what is done, and what there is to do, in blocks and in bytes."""

    def __init__(self, shown: TerminalProgress) -> None:
        self._shown = shown

    def phase(self, name: str, total: int | None = None) -> None:
        """Replace the line."""
        self._shown.phase(name, total, amount=_blocks if name.startswith(_IN_BLOCKS) else human_size)

    def advance(self, steps: int = 1) -> None:
        """Move the bar."""
        self._shown.advance(steps)

    def note(self, text: str) -> None:
        """Print a note that stays."""
        self._shown.note(text)


_IN_BLOCKS = ("Receiving blocks", "Checking blocks", "Publishing", "Sending blocks")
"""The phases of a transfer whose steps are blocks; those of the others are bytes."""


def _blocks(count: float) -> str:
    return f"{count:,.0f} blocks"


_BAR = 30
"""Columns of the bar."""

_BESIDE = 14
"""Columns beside the text of a line: what turns, the time, and what is between."""


def _bar() -> ProgressColumn:
    from rich.progress import BarColumn, Task
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    class Bar(BarColumn):
        def render(self, task: Task) -> ProgressBar | Text:  # type: ignore[override]
            return Text("") if task.fields["line"] else super().render(task)

    return Bar(bar_width=_BAR)


def _amounts() -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Amounts(ProgressColumn):
        def render(self, task: Task) -> Text:
            amount = task.fields["amount"]
            if amount is None:
                return Text("")
            done = amount(task.completed)
            return Text(f"{done} of {amount(task.total)}" if task.total else done)

    return Amounts()
