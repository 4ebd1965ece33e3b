"""Whole commands, as a user of either waits for them: ours in a session that stays, and the reference node's.

`KAMU` names a program of the reference node. It gets a workspace of its own, the same manifests and files,
in turns with ours, and both must have recorded as many rows. Where there is none, ours are put next to the
times of a release build (0.265) in another run, on a machine of the same kind: two cores of an EPYC at
2.6 GHz.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from airport_lists import LISTS, AirportList
from event_rows import COLUMNS, MERGES, write_csv
from figures import Figure, spread, tell
from homes import Home, new_home
from manifests import csv_step, polled, push_manifest

ROWS, ROUNDS, SMALL = 1_000_000, 5, 600
RELEASED: dict[tuple[str, int], tuple[float, ...]] = {
    ("append", 1_000_000): (1.1, 1.1, 1.3),
    ("snapshot", 2_900_000): (5.0, 5.3),
    ("runways", 103_374): (3.9, 4.5, 4.5),
    ("frequencies", 34_014): (1.3, 1.4, 1.6),
    ("regions", 12_695): (0.5, 0.6, 0.6),
    ("countries", 647): (0.2,),
    ("verify runways", 103_374): (0.14,),
}
"""Times of the reference node's release build [s], by what it did and the records there are."""
LOOKED = "0.08 to 0.16 s"
"""It took for `list`, `log` and `tail`."""
GOALS = {"runways": 1.0, "frequencies": 1.5, "regions": 3.0, "countries": 5.0}
SECONDS = {"countries": 0.8}

Work: TypeAlias = Callable[[Home, int], tuple[float, int]]
"""Does its round in a workspace; returns the time of the command [s] and the records there are."""


class Sides:
    """Ours, and the reference node where there is one."""

    def __init__(self, ours: Home, theirs: Home | None, rounds: int = ROUNDS) -> None:
        self.ours, self.theirs, self._rounds = ours, theirs, rounds

    def figure(self, key: str, name: str, goal: float | None, work: Work) -> Figure:
        """Our times as a multiple of theirs, after a round that warms up; `name` may tell `{records}`."""
        tell(name.format(records="…"))
        ours, theirs = [], []
        records = 0
        for number in range(self._rounds + 1):
            took, records = work(self.ours, number)
            ours.append(took)
            if self.theirs:
                took, others = work(self.theirs, number)
                theirs.append(took)
                if records != others:
                    raise RuntimeError(f"{name}: {records:,} records here, {others:,} there")
        name = name.format(records=f"{records:,}")
        samples, beside = tuple(ours[1:]), tuple(theirs[1:]) or RELEASED.get((key, records), ())
        if not beside:
            return Figure(name, statistics.median(samples), "s", remark="kamu was not there", samples=samples)
        name += " ÷ kamu" if theirs else " ÷ kamu (release build, another run)"
        remark = f"{spread(samples)} s against {spread(beside)} s"
        ratio = statistics.median(samples) / statistics.median(beside)
        return Figure(name, ratio, "×", goal, remark=remark, samples=samples, beside=beside)


def large_files(sides: Sides, rows: int = ROWS) -> Iterator[Figure]:
    """An append, a snapshot that changes nine tenths and lacks the rest, and a verification."""
    with tempfile.TemporaryDirectory() as root:
        first, second = Path(root) / "first.csv", Path(root) / "second.csv"
        write_csv(first, range(rows))
        write_csv(second, range(rows // 10, rows), release=1)

        def ingest(home: Home, name: str, merge: str, *paths: Path) -> tuple[float, int]:
            home.add(push_manifest(name, csv_step(COLUMNS), MERGES[merge]))
            took = [home.run("ingest", name, path).wall for path in paths]
            return took[-1], home.records(name)

        def append(home: Home, number: int) -> tuple[float, int]:
            return ingest(home, f"append{number}", "append", first)

        def snapshot(home: Home, number: int) -> tuple[float, int]:
            return ingest(home, f"snapshot{number}", "snapshot", first, second)

        def verify(home: Home, _: int) -> tuple[float, int]:
            return home.run("verify", "append1").wall, rows

        yield sides.figure("append", f"append of {rows:,} rows × {len(COLUMNS)} columns", 1.3, append)
        what = f"snapshot of {rows - rows // 10:,} rows into {rows:,}"
        yield sides.figure("snapshot", what, 0.6, snapshot)
        yield sides.figure("verify append", f"verify of {rows:,} rows", 3.0, verify)


def pulled_lists(sides: Sides, lists: tuple[AirportList, ...] = LISTS) -> Iterator[Figure]:
    """Pulls of a list in several releases, each a snapshot."""
    for each in lists:
        with tempfile.TemporaryDirectory() as root:
            each.write(Path(root))
            pattern, files = Path(root) / "*.csv", len([*Path(root).iterdir()])

            def pull(
                home: Home, number: int, each: AirportList = each, pattern: Path = pattern
            ) -> tuple[float, int]:
                name = f"{each.name}{number}"
                home.add(polled(name, pattern, csv_step(each.ddl), MERGES["snapshot"]))
                return home.run("pull", name).wall, home.records(name)

            like = "" if each.is_real else "like "
            what = f"{files} snapshots {like}{each.name}, {{records}} rows recorded"
            figure = sides.figure(each.name, what, GOALS[each.name], pull)
            yield figure
            if goal := SECONDS.get(each.name):
                middle = statistics.median(figure.samples)
                yield Figure(f"the same {files} snapshots", middle, "s", goal, samples=figure.samples)


def verified_list(sides: Sides, each: AirportList = LISTS[0]) -> Iterator[Figure]:
    """All checks of a dataset with many corrections: seconds, and CPU seconds of all processes."""
    cpu: list[float] = []

    def verify(home: Home, _: int) -> tuple[float, int]:
        before = home.session_cpu() if home is sides.ours else 0.0
        took = home.run("verify", f"{each.name}1")
        if home is sides.ours:
            cpu.append(took.cpu + home.session_cpu() - before)
        return took.wall, home.records(f"{each.name}1")

    what = "verify of {records} rows, all checks"
    yield sides.figure("verify runways", what, None, verify)
    used, what = tuple(cpu[1:]), f"verify of {sides.ours.records(f'{each.name}1'):,} rows, all checks: CPU"
    yield Figure(what, statistics.median(used), "s", 0.6, remark=f"{spread(used)} s", samples=used)


def warm_up(home: Home) -> None:
    """A first command, and what the session that stays loads after it."""
    path = home.folder / "warm.csv"
    write_csv(path, range(SMALL))
    home.add(push_manifest("warm", csv_step(COLUMNS), MERGES["append"]))
    home.run("ingest", "warm", path)
    home.wait_until_loaded()


def looked_at(ours: Home, theirs: Home | None) -> Iterator[Figure]:
    """Commands that look at one small dataset: in the session that stays, and by themselves."""
    with tempfile.TemporaryDirectory(dir=ours.folder) as root:
        small = Path(root) / "small.csv"
        write_csv(small, range(SMALL))
        homes = [ours.at(Path(root) / "ours"), theirs.at(Path(root) / "theirs") if theirs else None]
        for home in filter(None, homes):
            home.run("init")
            home.add(push_manifest("small", csv_step(COLUMNS), MERGES["append"]))
            home.run("ingest", "small", small)
        warm, reference = homes
        assert warm is not None
        for what, home, beside, goal in (
            ("warm", warm, reference, 0.12),
            ("cold", warm.at(warm.folder, stays=False), None, 0.3),
        ):
            for command in ("list", "log", "tail"):
                args = [command] if command == "list" else [command, "small"]
                ran = [home.run(*args) for _ in range(ROUNDS + 1)][1:]
                times = tuple(took.wall for took in ran)
                peer = tuple(beside.run(*args).wall for _ in range(ROUNDS)) if beside else ()
                remark = f"{spread(times)} s; CPU {statistics.median(took.cpu for took in ran):.2f} s"
                if not beside:
                    remark += f"; kamu's release build {LOOKED} in another run"
                yield Figure(
                    f"`{command}`, {what}", statistics.median(times), "s", goal,
                    remark=remark, samples=times, beside=peer,
                )  # fmt: skip


def first_of_the_day(home: Home) -> Iterator[Figure]:
    """An ingest where no session is left, but what earlier ones left for a faster start."""
    home.add(push_manifest("daily", csv_step(COLUMNS), MERGES["append"]))
    times = []
    for number in range(ROUNDS):
        home.stop()
        path = home.folder / f"day{number}.csv"
        write_csv(path, range(number * SMALL, (number + 1) * SMALL))
        times.append(home.run("ingest", "daily", path).wall)
    remark = f"{spread(times)} s, with a class archive"
    yield Figure(
        f"first command of the day, {SMALL} rows", statistics.median(times), "s", 5, remark=remark,
        samples=tuple(times),
    )  # fmt: skip


def bench_commands() -> Iterator[Figure]:
    """Appends, snapshots, verifications and looks beside the reference node's; a day's first command."""
    program = os.environ.get("KAMU")
    with new_home() as ours, tempfile.TemporaryDirectory() as folder:
        theirs = Home(Path(folder), program) if program else None
        if theirs:
            theirs.run("init")
        else:
            tell("kamu was skipped (KAMU names no program): its times are a release build's in another run")
        warm_up(ours)
        sides = Sides(ours, theirs)
        yield from large_files(sides)
        yield from pulled_lists(sides)
        yield from verified_list(sides)
        yield from looked_at(ours, theirs)
        yield from first_of_the_day(ours)
