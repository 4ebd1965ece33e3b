"""Figures: what was measured, in which unit, beside what it is to be compared with."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

Entry: TypeAlias = Callable[[], AbstractContextManager[Callable[[], object]]]
"""One side of a comparison: prepares a fresh run, hands out what is to be timed, checks it and clears up."""


@dataclass(frozen=True)
class Figure:
    """One measured value; `target` is the promise (at most, or at least for `at_least`)."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    remark: str = ""
    samples: tuple[float, ...] = ()
    """What the value was made of, where that is worth keeping."""
    beside: tuple[float, ...] = ()
    """The same of what it is compared with."""

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def tree(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"met": self.met}


def show(title: str, figures: list[Figure]) -> None:
    """Print the figures of one part as a table."""
    print(f"\n{title}", file=sys.stderr)
    for f in figures:
        target = "" if f.target is None else f"{'≥' if f.at_least else '≤'} {f.target:g}"
        verdict = {True: "met", False: "MISSED", None: ""}[f.met]
        line = f"  {f.name:<56}{f.value:>10,.2f} {f.unit:<7} {target:<8} {verdict:<7} {f.remark}"
        print(line.rstrip(), file=sys.stderr)


def show_rows(figures: Iterable[Figure]) -> None:
    """Print figures as rows of README's table, in Markdown: what, what is next to it, and ours."""
    print("\n| | beside | here |\n|---|---|---|", file=sys.stderr)
    for f in figures:
        what, _, other = f.name.partition(" ÷ ") if f.beside else (f.name, "", "")
        unit = "" if f.unit in ("s", "×") else f" {f.unit}"
        here = f"{spread(f.samples)}{unit}" if f.samples else f"{f.value:.2f} {f.unit}"
        beside = f"{other} {spread(f.beside)}{unit}" if f.beside else ""
        print(f"| {what} | {beside.strip()} | {here} |", file=sys.stderr)


def spread(values: Sequence[float]) -> str:
    """The smallest, the middle and the largest of some values, or both of two."""
    found = (min(values), statistics.median(values), max(values)) if len(values) > 2 else values
    return " / ".join(f"{value:.0f}" if value >= 20 else f"{value:.2f}" for value in found)


def per_call(run: Callable[[], object], *, calls: int = 1_000, rounds: int = 15) -> float:
    """Median time of one call [µs], over rounds of many calls."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        found.append((time.perf_counter() - start) / calls)
    return statistics.median(found) * 1e6


def seconds(run: Callable[[], object]) -> float:
    """Time of one call [s]."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turns(entries: Mapping[str, Entry], rounds: int) -> dict[str, float]:
    """Median time of each entry [s]."""
    return {name: statistics.median(times) for name, times in times_in_turns(entries, rounds).items()}


def times_in_turns(entries: Mapping[str, Entry], rounds: int) -> dict[str, list[float]]:
    """Times of each entry [s]; they take turns, so that what slows the machine meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(rounds):
        for name, prepare in entries.items():
            with prepare() as run:
                found[name].append(seconds(run))
    return found


def tell(text: str) -> None:
    """Say what is being done; parts that take minutes would look stuck otherwise."""
    print(text, file=sys.stderr, flush=True)


def folder_size(folder: Path) -> int:
    """Size of all files under a folder [bytes]."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def best_rate(run: Callable[[], object], size: float, *, rounds: int = 5) -> float:
    """Highest rate over some rounds [MB/s] for `size` bytes; the machine's noise only ever slows down."""
    return size / 1e6 / min(seconds(run) for _ in range(rounds))
