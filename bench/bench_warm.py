"""What a user waits for: commands over small datasets, cold and beside a session that stays (RFC-030)."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import Figure, seconds, tell
from manifests import csv_step, push_manifest

from odfchain import Workspace

ODFCHAIN = Path(sys.executable).parent / "odfchain"
WARM_RUNS, COLD_RUNS, COMMAND_RUNS = 7, 3, 7
DATASETS = 100
SNAPSHOTS, KEYS, CHANGED = 8, 5_000, 550
"""Files of a source, rows of each, and rows that differ from one to the next: 12,700 rows are recorded."""

COLUMNS = {"id": "BIGINT NOT NULL", "city": "STRING", "price": "DOUBLE", "stock": "INT"}
SNAPSHOT = "{kind: Snapshot, primaryKey: [id]}"
BARE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
assert spark.range(300).selectExpr("sum(id)").collect()[0][0] == 44850
"""


@dataclass(frozen=True, slots=True)
class Took:
    """What one command took [s]; the CPU of a session that stays is not the command's."""

    wall: float
    cpu: float


class Home:
    """A user's home with a workspace; sessions stay below it where they may."""

    def __init__(self, folder: Path, *, stays: bool = True) -> None:
        self.folder = folder
        base = {k: v for k, v in os.environ.items() if k != "CI"} | ({} if stays else {"CI": "true"})
        self._env = base | {"XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, *args: object) -> Took:
        """Type a command."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(
            [ODFCHAIN, *map(str, args)], cwd=self.folder, env=self._env, check=True, capture_output=True
        )
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def session_cpu(self) -> float:
        """CPU that the session that stays has used, its workers included [s]."""
        done = subprocess.run(
            [ODFCHAIN, "engine", "status", "-o", "json"], env=self._env, check=True, capture_output=True
        )
        jvm = json.loads(done.stdout)["jvm"]
        fields = Path(f"/proc/{jvm}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def new_home(*, stays: bool = True) -> Iterator[Home]:
    """An empty home; its session ends with it. The path is short, as those of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="odf-", dir="/tmp") as folder:
        home = Home(Path(folder), stays=stays)
        home.run("init")
        try:
            yield home
        finally:
            home.run("engine", "stop")


def table(day: int, keys: int, changed: int) -> str:
    """A list of goods as CSV, some of which have another price every day."""
    lines = ["id,city,price,stock"]
    for key in range(keys):
        price = 100 + key % 900 + (day if (key + day * changed) % keys < changed else 0) / 100
        lines.append(f"{key},city {key % 50},{price:.2f},{key % 9}")
    return "\n".join(lines) + "\n"


def polled(name: str, pattern: Path) -> str:
    """The manifest of a dataset whose source is files in the order of their names."""
    return push_manifest(name, csv_step(COLUMNS), SNAPSHOT).replace(
        "AddPushSource\n      sourceName: default\n",
        f"SetPollingSource\n      fetch: {{kind: FilesGlob, path: '{pattern}', order: ByName}}\n",
    )


def spread(times: Sequence[float]) -> str:
    """The smallest, middle and largest of some times, for a remark."""
    return f"{min(times):.2f} / {statistics.median(times):.2f} / {max(times):.2f} s"


def _ingest(home: Home, number: int) -> Took:
    path = home.folder / f"{number}.csv"
    path.write_text(table(number, 300, 20), encoding="utf-8")
    return home.run("ingest", "small", path.name)


def _with_small(home: Home) -> None:
    (home.folder / "small.yaml").write_text(push_manifest("small", csv_step(COLUMNS), SNAPSHOT))
    home.run("add", "small.yaml")


def _second_ingest() -> Iterator[Figure]:
    tell("ingesting a small file, again and again")
    with new_home() as home:
        _with_small(home)
        first, *others = (_ingest(home, number) for number in range(1 + WARM_RUNS))
    walls = [took.wall for took in others]
    middle = statistics.median(walls)
    cpu = statistics.median(took.cpu for took in others)
    yield Figure(
        "second ingest of 300 rows, with a session that stays",
        middle,
        "s",
        1.5,
        remark=f"{spread(walls)}; CPU of the command {cpu:.2f} s",
        samples=tuple(walls),
    )
    yield Figure(
        "second ingest ÷ the first ever",
        middle / first.wall,
        "×",
        0.12,
        remark=f"the first {first.wall:.1f} s, without a class archive",
    )


def _cold_ingest() -> Iterator[Figure]:
    tell("ingesting a small file into nothing warm")
    with new_home(stays=False) as home:
        home.run("engine", "warm-up")
        _with_small(home)
        colds, bares = [], []
        for number in range(COLD_RUNS):
            colds.append(_ingest(home, number).wall)
            bares.append(
                seconds(lambda: subprocess.run([sys.executable, "-c", BARE], check=True, capture_output=True))
            )
    ratio = statistics.median(colds) / statistics.median(bares)
    yield Figure(
        "ingest of 300 rows by a JVM of its own ÷ bare Spark, one query",
        ratio,
        "×",
        1.3,
        remark=f"{spread(colds)} with a class archive, against {spread(bares)} without",
    )


def _pull_of_snapshots(home: Home, name: str) -> Took:
    for day in range(SNAPSHOTS):
        (home.folder / f"list-{day}.csv").write_text(table(day, KEYS, CHANGED), encoding="utf-8")
    (home.folder / "m.yaml").write_text(polled(name, home.folder / "list-*.csv"), encoding="utf-8")
    home.run("add", "m.yaml")
    return home.run("pull", name)


def _eight_snapshots() -> Iterator[Figure]:
    tell(f"pulling {SNAPSHOTS} small snapshots")
    with new_home() as home:
        first = _pull_of_snapshots(home, "first")
        first_cpu = first.cpu + home.session_cpu()
        warm, cpus = [], []
        for number in range(COLD_RUNS):
            before = home.session_cpu()
            took = _pull_of_snapshots(home, f"warm{number}")
            warm.append(took.wall)
            cpus.append(took.cpu + home.session_cpu() - before)
    with new_home(stays=False) as home:
        home.run("engine", "warm-up")
        colds = [_pull_of_snapshots(home, f"cold{number}") for number in range(COLD_RUNS)]
    what = f"pull of {SNAPSHOTS} snapshots of {KEYS:,} rows"
    yield Figure(f"{what}, warm", statistics.median(warm), "s", 4, remark=spread(warm))
    yield Figure(
        f"{what}, warm: CPU with the session's", statistics.median(cpus), "s", 8, remark=spread(cpus)
    )
    for name, limit, times, the_first in (
        (f"{what}, cold", 12, [took.wall for took in colds], first.wall),
        (f"{what}, cold: CPU", 20, [took.cpu for took in colds], first_cpu),
    ):
        remark = f"{spread(times)} with a class archive; the first ever {the_first:.1f} s"
        yield Figure(name, statistics.median(times), "s", limit, remark=remark)


def _one_merge() -> Iterator[Figure]:
    tell("merging small snapshots in one process")
    with tempfile.TemporaryDirectory() as root, Workspace.init(root) as workspace:
        (dataset,) = workspace.add(push_manifest("small", csv_step(COLUMNS), SNAPSHOT))
        path, times = Path(root) / "in.csv", []
        for day in range(40):
            path.write_text(table(day, 300, 20), encoding="utf-8")
            times.append(seconds(lambda: dataset.ingest(path)))
    yield Figure(
        "one merge of 300 rows in a warm session",
        statistics.median(times[20:]),
        "s",
        0.4,
        remark=f"{spread(times[20:])}; the second {times[1]:.2f} s",
        samples=tuple(times),
    )


def _many_datasets() -> Iterator[Figure]:
    tell(f"pulling {DATASETS} small datasets")
    draw = np.random.default_rng(11)
    with new_home() as home:
        rows = [int(n) for n in draw.integers(50, 300, DATASETS)]
        manifests = []
        for number in range(DATASETS):
            (home.folder / f"s{number}-1.csv").write_text(table(0, rows[number], 10), encoding="utf-8")
            manifests.append(polled(f"d{number}", home.folder / f"s{number}-*.csv"))
        (home.folder / "m.yaml").write_text("---\n".join(manifests), encoding="utf-8")
        home.run("add", "m.yaml")
        first = home.run("pull", "--all")
        nothing = [home.run("pull", "--all").wall for _ in range(COLD_RUNS)]
        for number in range(DATASETS):
            (home.folder / f"s{number}-2.csv").write_text(table(1, rows[number], 10), encoding="utf-8")
        new = home.run("pull", "--all")
    yield Figure(
        f"{DATASETS} small datasets, nothing new", statistics.median(nothing), "s", 3, remark=spread(nothing)
    )
    yield Figure(
        f"{DATASETS} small datasets, one new file each",
        new.wall,
        "s",
        60,
        remark=f"CPU of the command {new.cpu:.1f} s; the first file of each, cold: {first.wall:.1f} s",
    )


def _looking() -> Iterator[Figure]:
    tell("looking at a dataset")
    with new_home(stays=False) as home:
        _with_small(home)
        _ingest(home, 1)
        for args in (["list"], ["log", "small"], ["tail", "small"], ["inspect", "schema", "small"]):
            home.run(*args)
            took = [home.run(*args) for _ in range(COMMAND_RUNS)]
            walls = [t.wall for t in took]
            yield Figure(
                f"odfchain {' '.join(args)}",
                statistics.median(walls),
                "s",
                0.3,
                remark=f"{spread(walls)}; CPU {statistics.median(t.cpu for t in took):.2f} s",
            )


def bench_warm() -> Iterator[Figure]:
    """Commands over small datasets, as a shell sees them."""
    yield from _looking()
    yield from _second_ingest()
    yield from _cold_ingest()
    yield from _one_merge()
    yield from _eight_snapshots()
    yield from _many_datasets()
