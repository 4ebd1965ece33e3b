"""Ingests of small files in a session that stays, and pulls of many small datasets (RFC-030)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from figures import Figure, seconds, spread, tell
from homes import Home, Took, new_home
from manifests import csv_step, polled, push_manifest

from odfchain import Workspace

WARM_RUNS, RUNS = 7, 3
DATASETS = 100

COLUMNS = {"id": "BIGINT NOT NULL", "city": "STRING", "price": "DOUBLE", "stock": "INT"}
SNAPSHOT = "{kind: Snapshot, primaryKey: [id]}"


def table(day: int, keys: int, changed: int) -> str:
    """A list of goods as CSV, some of which have another price every day."""
    lines = ["id,city,price,stock"]
    for key in range(keys):
        price = 100 + key % 900 + (day if (key + day * changed) % keys < changed else 0) / 100
        lines.append(f"{key},city {key % 50},{price:.2f},{key % 9}")
    return "\n".join(lines) + "\n"


def _ingest(home: Home, number: int) -> Took:
    path = home.folder / f"{number}.csv"
    path.write_text(table(number, 300, 20), encoding="utf-8")
    return home.run("ingest", "small", path.name)


def _second_ingest() -> Iterator[Figure]:
    tell("ingesting a small file, again and again")
    with new_home() as home:
        home.add(push_manifest("small", csv_step(COLUMNS), SNAPSHOT))
        first, *others = (_ingest(home, number) for number in range(1 + WARM_RUNS))
    walls = [took.wall for took in others]
    middle = statistics.median(walls)
    cpu = statistics.median(took.cpu for took in others)
    yield Figure(
        "second ingest of 300 rows, with a session that stays",
        middle,
        "s",
        1.5,
        remark=f"{spread(walls)} s; CPU of the command {cpu:.2f} s",
        samples=tuple(walls),
    )
    yield Figure(
        "second ingest ÷ the first ever",
        middle / first.wall,
        "×",
        0.12,
        remark=f"the first {first.wall:.1f} s, without a class archive",
    )


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
        remark=f"{spread(times[20:])} s; the second {times[1]:.2f} s",
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
            files = home.folder / f"s{number}-*.csv"
            manifests.append(polled(f"d{number}", files, csv_step(COLUMNS), SNAPSHOT))
        home.add("---\n".join(manifests))
        first = home.run("pull", "--all")
        nothing = [home.run("pull", "--all").wall for _ in range(RUNS)]
        for number in range(DATASETS):
            (home.folder / f"s{number}-2.csv").write_text(table(1, rows[number], 10), encoding="utf-8")
        new = home.run("pull", "--all")
    what = f"{DATASETS} small datasets, nothing new"
    yield Figure(what, statistics.median(nothing), "s", 3, remark=f"{spread(nothing)} s")
    yield Figure(
        f"{DATASETS} small datasets, one new file each",
        new.wall,
        "s",
        60,
        remark=f"CPU of the command {new.cpu:.1f} s; the first file of each, cold: {first.wall:.1f} s",
    )


def bench_warm() -> Iterator[Figure]:
    """Commands over small datasets, as a shell sees them."""
    yield from _second_ingest()
    yield from _one_merge()
    yield from _many_datasets()
