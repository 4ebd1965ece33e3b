"""Progress on standard error: a bar when a terminal is attached, nothing otherwise."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odfchain.cli.context import options, report_error
from odfchain.cli.screen import console, echo, styled
from odfchain.errors import was_interrupted
from odfchain.progress import WorkDone
from odfchain.text import human_size, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID


# How far Spark is, as one line: `Reading flights.csv  3.1 of 5.0 M rows · 412 MB · about 20 s left`.

_BETWEEN = " · "


def work_line(done: WorkDone, width: int) -> str:
    """Progress within a width: tasks are left out first, then bytes; a long name loses its middle."""
    rows, size, left = _rows(done), _size(done), _left(done.seconds_left)
    tasks = f"{done.tasks:,} of {done.total_tasks:,} tasks" if done.total_tasks > 1 else ""
    choices = [
        [part for part in parts if part]
        for parts in ((rows, size, tasks, left), (rows, size, left), (rows, left), (rows,))
    ]
    step = printable(done.step)
    for parts in choices:
        line = "  ".join(filter(None, (step, _BETWEEN.join(parts))))
        if len(line) <= width:
            return line
    room = max(0, width)
    kept = f"{_shortened(step, room - len(rows) - 2)}  {rows}" if rows else _shortened(step, room)
    return kept[:room]


def _rows(done: WorkDone) -> str:
    if not (known := [count for count in (done.rows, done.total_rows) if count]):
        return ""
    name, size = next((u for u in (("G rows", 10**9), ("M rows", 10**6)) if known[-1] >= u[1]), ("rows", 1))
    numbers = (f"{count:,}" if size == 1 else f"{count / size:,.1f}" for count in known)
    return f"{' of '.join(numbers)} {name}"


def _size(done: WorkDone) -> str:
    most = done.total_bytes or done.read_bytes
    if not done.read_bytes or most < 1 << 20:
        return ""
    shown = human_size(done.read_bytes)
    return shown if done.total_bytes is None else f"{shown} of {human_size(most)}"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 5:
        return "a few seconds left"
    if seconds < 57.5:
        # no finer than it can be known
        return f"about {5 * round(seconds / 5)} s left"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min left"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"about {hours} h {rest} min left" if rest else f"about {hours} h left"


def _shortened(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    # most of the width goes to the end, which tells files apart
    front = max(0, min(width - 1, 12))
    back = max(0, width - 1 - front)
    return f"{name[:front]}…{name[len(name) - back :]}"


class TerminalProgress(contextlib.AbstractContextManager["TerminalProgress"]):
    """One line that says what is being done; notes are printed above it."""

    def __init__(self, *, quiet: bool = False) -> None:
        context = click.get_current_context(silent=True)
        quiet = quiet or (context is not None and options().quiet)
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        plain = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
        self._shown = sys.stderr.isatty() and not plain and not quiet
        self._waited_for: str | None = None
        self.step = ""
        """The phase that comes later."""
        self._changing = threading.RLock()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the line."""
        with self._changing:
            self._waited_for = None
            if self._bar is not None:
                self._bar.stop()
                self._bar = self._task = None

    def later(self, name: str) -> TerminalProgress:
        """Show a phase after a second, unless another has begun or all has ended: most answers take less."""

        def show() -> None:
            with self._changing:
                if self._waited_for is name:
                    self.phase(name)

        self.step = name
        if self._shown:
            self._waited_for = name
            timer = threading.Timer(1.0, show)
            timer.daemon = True
            timer.start()
        return self

    def phase(self, name: str, total: int | None = None) -> None:
        """Replace the line."""
        if not self._shown:
            return
        with self._changing:
            self._waited_for = None
            if self._bar is None:
                from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

                text = TextColumn("{task.description}", markup=False)
                columns = SpinnerColumn(), text, _bar(), _amounts(), TimeElapsedColumn()
                self._bar = Progress(*columns, console=console(err=True), transient=True)
                self._bar.start()
            if self._task is not None:
                self._bar.remove_task(self._task)
            in_bytes = human_size if _BYTES.match(name) else None
            amount = "{:,.0f} blocks".format if _BLOCKS.match(name) else in_bytes
            self._task = self._bar.add_task(printable(name), total=total, amount=amount, line=False)

    @property
    def shows_work(self) -> bool:
        """True if there is a line."""
        return self._shown

    def work(self, done: WorkDone) -> None:
        """Say in the line how far Spark is; the bar makes room for it, unless it counts steps of its own."""
        with self._changing:
            if self._bar is None or self._task is None:
                return
            task = next(task for task in self._bar.tasks if task.id == self._task)
            counts = task.total is not None
            room = self._bar.console.width - _REST - (_BAR + 1) * counts
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


# Phases whose steps are blocks, or bytes.
_BLOCKS = re.compile("(Checking|Receiving|Sending) blocks|Publishing|(Checking|Reading) the chain")
_BYTES = re.compile(
    "(Checking|Copying|Downloading|Hashing|Profiling|Receiving|Sending|Writing the rows|piping|unpacking) "
)


# Columns of the bar.
_BAR = 30

# Columns for the rest of a line: spinner, time, and separators.
_REST = 14


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
            if (amount := task.fields["amount"]) is None:
                return Text("")
            done = amount(task.completed)
            return Text(f"{done} of {amount(task.total)}" if task.total else done)

    return Amounts()


# Several datasets, one after the other: one that fails does not stop the others.

_T = TypeVar("_T")


def one_by_one(
    targets: Sequence[_T], work: Callable[[_T], dict[str, Any]], progress: TerminalProgress
) -> tuple[list[dict[str, Any]], int]:
    """The rows of the targets whose work was done, and the exit code of the first that failed, or 0."""
    rows: list[dict[str, Any]] = []
    code = 0
    for target in targets:
        try:
            rows.append(work(target))
        except Exception as error:
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            from odfchain.spark.known_errors import known_error

            if (known := known_error(error)) is None:
                raise
            progress.stop()
            # reported at once, and by its name where there are several
            report_error(known, about=str(target) if len(targets) > 1 else "")
            code = code or known.exit_code
    return rows, code
