"""Many small datasets, pulled by one command in a session that stays (RFC-030)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
from figures import Figure, spread, tell
from homes import new_home
from manifests import csv_step, polled

RUNS = 3
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


def bench_warm() -> Iterator[Figure]:
    """`pull --all` of them: the first files, nothing new, and a new file for each."""
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
