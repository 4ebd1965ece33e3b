"""Memory and CPU of a process and its descendants, from `/proc` (Linux)."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
INTERVAL = 0.05
"""Time between two looks [s]."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resident memory of some Python processes [MiB]."""

    driver: float = 0.0
    workers: float = 0.0
    count: int = 0
    largest: float = 0.0
    """Of the workers."""

    @property
    def total(self) -> float:
        """All of them. Pages that a worker shares with the one it was forked from count for both."""
        return self.driver + self.workers


@dataclass(slots=True)
class MemoryWatch:
    """Watches a process tree on a thread of its own while entered; `peak` is the largest sum seen.

    Each process counts with its own peak so far (`VmHWM`), so nothing that rises and falls between two looks
    is missed, and the sum is never less than what was resident at once.
    """

    pid: int
    peak: Usage = Usage()
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> MemoryWatch:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            usage = usage_of(self.pid)
            if usage.total > self.peak.total:
                self.peak = usage


def usage_of(pid: int) -> Usage:
    """Peaks of the Python processes among a process and its descendants; Java does not count."""
    found = {p: _peak(p) for p in _tree(pid) if not _is_java(p)}
    workers = [peak for p, peak in found.items() if p != pid]
    count = sum(1 for peak in workers if peak)
    return Usage(found.get(pid, 0.0), sum(workers), count, max(workers, default=0.0))


def peak_mib(pid: int | str) -> float:
    """The most that one process had resident so far [MiB]; `self` is this one."""
    return _peak(pid)


def cpu_seconds(pid: int) -> float:
    """What one process has used of processors so far [s]."""
    fields = (
        (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found = [pid]
    for process in found:
        found.extend(children.get(process, ()))
    return found


def _status(pid: int | str, name: str) -> str:
    """A field of a process's status; empty when it has none or is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def _parent(pid: int) -> int:
    return int(_status(pid, "PPid") or 0)


def _peak(pid: int | str) -> float:
    return int(_status(pid, "VmHWM").removesuffix(" kB") or 0) / 1024


def _is_java(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "exe").readlink().name in ("java", "jspawnhelper")
    except OSError:
        return False  # gone, and so without a size too


def cpu_seconds_of_tree(pid: int) -> float:
    """CPU that a process and all below it have taken, with those that have ended and were waited for [s]."""
    ticks = 0
    for each in _tree(pid):
        try:
            fields = (PROC / str(each) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # gone
            continue
        ticks += sum(map(int, fields.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
