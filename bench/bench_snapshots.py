"""A full list every day for a hundred days: whether a day costs the same however long the history is."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
from figures import Figure, folder_size, seconds, tell
from manifests import csv_step, push_manifest

from odfchain import Dataset, Workspace

if TYPE_CHECKING:
    from odfchain.ingest.ingesting import IngestOutcome

ROWS = 200_000
DAYS = 100
EARLY, LATE = (4, 5, 6), (98, 99, 100)
CORRECTED, REMOVED, ADDED = 0.01, 0.002, 0.002
"""Shares of the rows each day."""

WARM_UP_DAYS = 8
"""Of a dataset of its own. A young JVM would slow the early days, and so flatter the late ones."""

TARGET = 1.3
"""At most this multiple of the time of an early day."""

MERGE = "{kind: Snapshot, primaryKey: [id]}"
COLUMNS = {"id": "BIGINT NOT NULL", "name": "STRING", "city": "STRING", "price": "DOUBLE", "stock": "INT"}


class Shop:
    """A list that changes every day; `price` is what is corrected."""

    def __init__(self, rows: int) -> None:
        self._rng = np.random.default_rng(23)
        self._ids = np.arange(rows)
        self._prices = self._rng.integers(100, 100_000, rows)
        self._next_id = rows

    def next_day(self) -> dict[str, int]:
        """Change the list; returns the operations that this amounts to."""
        rows = len(self._ids)
        corrected, removed, added = (int(rows * share) for share in (CORRECTED, REMOVED, ADDED))
        order = self._rng.permutation(rows)
        self._prices[order[:corrected]] += 1
        gone = order[corrected : corrected + removed]
        fresh = np.arange(self._next_id, self._next_id + added)
        self._ids = np.append(np.delete(self._ids, gone), fresh)
        self._prices = np.append(np.delete(self._prices, gone), self._rng.integers(100, 100_000, added))
        self._next_id += added
        return {"+A": added, "-R": removed, "-C": corrected, "+C": corrected}

    def write(self, path: Path) -> None:
        """The list of today as CSV."""
        cities = pa.array([f"city {n}" for n in range(5_000)])
        names = pa.array([f"item {n} of the list" for n in range(10_000)])
        table = pa.table(
            {
                "id": self._ids,
                "name": names.take(pa.array(self._ids % 10_000)),
                "city": cities.take(pa.array(self._ids * 31 % 5_000)),
                "price": self._prices / 100,
                "stock": self._ids % 1_000,
            }
        )
        pcsv.write_csv(table, path, pcsv.WriteOptions(quoting_style="none"))


def ingest_days(dataset: Dataset, folder: Path, days: int) -> list[float]:
    """Ingest the list of each day; returns the times [s]. The operations of every day are checked."""
    shop = Shop(ROWS)
    expected = {"+A": ROWS}
    took: list[float] = []
    found: list[IngestOutcome] = []
    for day in range(1, days + 1):
        path = folder / f"day-{day}.csv"
        shop.write(path)
        took.append(seconds(partial(_ingest, dataset, path, found)))
        path.unlink()
        assert {op: n for op, n in found[-1].inputs[0].operations.items() if n} == expected
        if day % 10 == 0:
            tell(f"  until day {day}: " + " ".join(f"{t:.1f}" for t in took[-10:]) + " s")
        expected = shop.next_day()
    return took


def _ingest(dataset: Dataset, path: Path, found: list[IngestOutcome]) -> None:
    found.append(dataset.ingest([path]))


def bench_snapshots() -> Iterator[Figure]:
    """The first day, early days, late days, and what is on disk in the end."""
    with tempfile.TemporaryDirectory() as root, Workspace.init(root) as workspace:
        folder = Path(root)
        tell(f"warming up with {WARM_UP_DAYS} daily snapshots of {ROWS:,} rows")
        (dataset,) = workspace.add(push_manifest("warm-up", csv_step(COLUMNS), MERGE))
        ingest_days(dataset, folder, WARM_UP_DAYS)
        workspace.delete("warm-up")
        tell(f"ingesting {DAYS} daily snapshots of {ROWS:,} rows")
        (dataset,) = workspace.add(push_manifest("daily", csv_step(COLUMNS), MERGE))
        took = ingest_days(dataset, folder, DAYS)
        assert dataset.verify().ok
        sizes = {name: folder_size(dataset.path / name) / 1e6 for name in ("data", "checkpoints")}
    early, late = (statistics.median(took[day - 1] for day in days) for days in (EARLY, LATE))
    worst = max(range(1, DAYS), key=took.__getitem__)
    yield Figure(
        f"snapshot of {ROWS:,} rows, days {LATE[0]}–{LATE[-1]} ÷ {EARLY[0]}–{EARLY[-1]}",
        late / early,
        "×",
        TARGET,
        remark=f"{late:.2f} s against {early:.2f} s; first day {took[0]:.2f} s, "
        f"worst after it day {worst + 1} with {took[worst]:.2f} s",
        samples=tuple(round(t, 3) for t in took),
    )
    for name, size in sizes.items():
        yield Figure(f"{name}/ after {DAYS} snapshots", size, "MB")
