"""What a terminal shows of Spark's work: what is known, in one line that fits."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.cli.progress_bar import TerminalProgress, work_line
from odfchain.progress import SILENT, WorkDone, reported, shows_work

READING = WorkDone(
    step="Reading flights.csv", rows=3_100_000, total_rows=5_000_000, read_bytes=198_000_000,
    total_bytes=309_000_000, tasks=7, total_tasks=12, seconds_left=21.4,
)  # fmt: skip


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (
            100,
            "Reading flights.csv  3.1 of 5.0 M rows · 188.8 MiB of 294.7 MiB · 7 of 12 tasks · about 20 s left",
        ),
        (85, "Reading flights.csv  3.1 of 5.0 M rows · 188.8 MiB of 294.7 MiB · about 20 s left"),
        (66, "Reading flights.csv  3.1 of 5.0 M rows · about 20 s left"),
        (45, "Reading flights.csv  3.1 of 5.0 M rows"),
        (36, "Reading flig….csv  3.1 of 5.0 M rows"),
    ],
)
def test_what_does_not_fit_is_left_out(width: int, line: str) -> None:
    assert work_line(READING, width) == line


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (WorkDone(step="Computing"), "Computing"),
        (WorkDone(step="Merging f", total_rows=900), "Merging f  900 rows"),
        (WorkDone(step="Writing f", rows=1_203), "Writing f  1,203 rows"),
        (WorkDone(step="Writing f", rows=5, total_rows=2 * 10**9), "Writing f  0.0 of 2.0 G rows"),
        (WorkDone(step="Reading f", read_bytes=2_400_000_000), "Reading f  2.2 GiB"),
        (WorkDone(step="Reading f", read_bytes=2_400_000), "Reading f  2.3 MiB"),
        (WorkDone(step="Reading f", read_bytes=2_400), "Reading f"),
        (WorkDone(step="Computing", total_tasks=1), "Computing"),
        (WorkDone(step="Computing", tasks=3, total_tasks=1_000), "Computing  3 of 1,000 tasks"),
    ],
)
def test_only_what_is_known_is_said(done: WorkDone, line: str) -> None:
    assert work_line(done, 100) == line


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "a few seconds left"),
        (4.9, "a few seconds left"),
        (5, "about 5 s left"),
        (57.4, "about 55 s left"),
        (57.5, "about 1 min left"),
        (3_500, "about 58 min left"),
        (3_600, "about 1 h left"),
        (4_900, "about 1 h 20 min left"),
        (86_400, "about 24 h left"),
        (3 * 86_400, "about 72 h left"),
    ],
)
def test_the_time_left_is_no_finer_than_it_is_known(seconds: float, said: str) -> None:
    assert work_line(WorkDone(step="f", seconds_left=seconds), 100) == f"f  {said}"


@given(st.integers(0, 120), st.text(max_size=90), st.integers(0, 10**12), st.integers(0, 10**15))
def test_every_line_fits(width: int, name: str, rows: int, size: int) -> None:
    line = work_line(replace(READING, step=name, total_rows=rows, read_bytes=size, total_bytes=None), width)
    assert len(line) <= width


class Terminal(io.StringIO):
    """A screen in memory."""

    def isatty(self) -> bool:
        return True


def test_the_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with TerminalProgress() as progress:
        assert shows_work(progress)
        progress.work(READING)  # nothing has begun
        progress.phase("Merging flights.csv")
        progress.work(READING)
        progress.phase("Replaying flights.daily", 7)
        progress.advance(2)
        progress.work(WorkDone(step="Replaying flights.daily", rows=2_200_000))
    progress.work(READING)  # too late
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()))
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "Replaying flights.daily  2.2 M rows ━" in text
    assert not shows_work(TerminalProgress(quiet=True))


def test_a_wait_is_shown_once_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    due: list[Callable[[], None]] = []
    monkeypatch.setattr(
        "threading.Timer", lambda _, show: SimpleNamespace(daemon=False, start=lambda: due.append(show))
    )
    for name, end in (("Short", TerminalProgress.stop), ("Known", lambda p: p.phase("Hashing f", 4096))):
        with TerminalProgress().later(name) as progress:
            end(progress)
            due.pop()()
    with TerminalProgress().later("Long"):
        due.pop()()
    text = screen.getvalue()
    assert "Long" in text
    assert "0 B of 4.0 KiB" in text
    assert "Short" not in text
    assert "Known" not in text


def test_rows_are_reported_as_they_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfchain.progress._BETWEEN_REPORTS", 0)
    told: list[WorkDone] = []
    progress: Any = SimpleNamespace(shows_work=True, work=told.append)
    sizes = iter((10, 40))
    rows = reported([[1, 2], [3]], progress, "Reading f", rows=len, read=lambda: next(sizes), size=40)
    assert list(rows) == [[1, 2], [3]]
    assert [(done.rows, done.read_bytes, done.fraction) for done in told] == [(2, 10, 0.25), (3, 40, 1)]
    assert list(reported([1], SILENT, "Reading f")) == [1]


def test_nothing_is_asked_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not shows_work(TerminalProgress())
