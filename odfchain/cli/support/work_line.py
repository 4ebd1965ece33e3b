"""How far Spark is, as one line: `Reading flights.csv  3.1 of 5.0 M rows · 412 MB · about 20 s left`."""

from __future__ import annotations

from odfchain.progress import WorkDone
from odfchain.text import printable

_BETWEEN = " · "


def work_line(done: WorkDone, width: int) -> str:
    """What is known, within a width: tasks are left out first, then bytes; a long name loses its middle."""
    rows, size, tasks, left = _rows(done), _size(done), _tasks(done), _left(done.seconds_left)
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
    known = [count for count in (done.rows, done.total_rows) if count]
    if not known:
        return ""
    name, size = next((u for u in (("G rows", 10**9), ("M rows", 10**6)) if known[-1] >= u[1]), ("rows", 1))
    numbers = (f"{count:,}" if size == 1 else f"{count / size:,.1f}" for count in known)
    return f"{' of '.join(numbers)} {name}"


def _size(done: WorkDone) -> str:
    most = done.total_bytes or done.read_bytes
    if not done.read_bytes or most < 10**6:
        return ""
    unit, size = ("GB", 10**9) if most >= 10**9 else ("MB", 10**6)
    digits = 1 if unit == "GB" else 0
    shown = f"{done.read_bytes / size:,.{digits}f}"
    return f"{shown} {unit}" if done.total_bytes is None else f"{shown} of {most / size:,.{digits}f} {unit}"


def _tasks(done: WorkDone) -> str:
    return f"{done.tasks:,} of {done.total_tasks:,} tasks" if done.total_tasks > 1 else ""


def _left(seconds: float | None) -> str:
    """About how long, no finer than it can be known."""
    if seconds is None:
        return ""
    if seconds < 5:
        return "a few seconds left"
    if seconds < 57.5:
        return f"about {5 * round(seconds / 5)} s left"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min left"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"about {hours} h {rest} min left" if rest else f"about {hours} h left"


def _shortened(name: str, width: int) -> str:
    """A name without its middle; its end tells most."""
    if len(name) <= width:
        return name
    front = max(0, min(width - 1, 12))
    back = max(0, width - 1 - front)
    return f"{name[:front]}…{name[len(name) - back :]}"
