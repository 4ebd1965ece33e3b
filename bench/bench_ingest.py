"""Ingestion beside Spark's own CSV → Parquet of the same file, in the same session."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from figures import Figure, seconds
from manifests import csv_step, push_manifest

from odfchain import Dataset, Workspace

ROWS = 1_000_000
ROUNDS = 3
MANY_ROWS = 5_000_000
COLUMNS = {
    "id": "BIGINT NOT NULL",
    "event_time": "TIMESTAMP",
    "city": "STRING",
    "kind": "STRING",
    "amount": "DOUBLE",
    "count": "INT",
}
MERGES = {
    "append": "{kind: Append}",
    "ledger": "{kind: Ledger, primaryKey: [id]}",
    "snapshot": "{kind: Snapshot, primaryKey: [id]}",
}


def write_csv(path: Path, rows: int, *, changed: float = 0.0) -> None:
    """A file of the columns above; a share of the rows has another amount than in the first release."""
    rng = np.random.default_rng(11)
    amount = rng.random(rows).round(6)
    amount[: int(rows * changed)] += 1
    times = pa.array(1_577_836_800 + np.arange(rows)).cast(pa.timestamp("s", "UTC"))
    table = pa.table(
        {
            "id": np.arange(rows),
            "event_time": pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ"),
            "city": [f"city {n}" for n in rng.integers(0, 5_000, rows)],
            "kind": np.array(["plain", "express", "bulk"])[rng.integers(0, 3, rows)],
            "amount": amount,
            "count": rng.integers(0, 1_000, rows),
        }
    )
    pcsv.write_csv(table, path, pcsv.WriteOptions(quoting_style="needed"))


def paired(ours: Callable[[int], object], theirs: Callable[[int], object]) -> tuple[float, float]:
    """Median times of both [s], taken in turns after one round to warm up."""
    found = [(seconds(partial(ours, n)), seconds(partial(theirs, n))) for n in range(ROUNDS + 1)][1:]
    return statistics.median(a for a, _ in found), statistics.median(b for _, b in found)


def bench_ingest() -> Iterator[Figure]:
    """Append, ledger and snapshot as multiples of what Spark needs to rewrite the file."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        first, second = folder / "first.csv", folder / "second.csv"
        print(f"writing two CSV files of {ROWS:,} rows", file=sys.stderr)
        write_csv(first, ROWS)
        write_csv(second, ROWS, changed=0.01)
        size = first.stat().st_size / 1e6
        with Workspace.init(folder) as workspace:
            session = workspace.session()

            def rewrite(_: int = 0) -> None:
                target = folder / "out"
                reader = session.read.schema(", ".join(f"`{n}` {t}" for n, t in COLUMNS.items()))
                reader.csv(str(first), header=True).write.mode("overwrite").parquet(str(target))
                shutil.rmtree(target)

            def fresh(name: str) -> Dataset:
                (dataset,) = workspace.add(
                    push_manifest(name, csv_step(COLUMNS), MERGES[name.partition("-")[0]])
                )
                return dataset

            def ingest(merge: str) -> Callable[[int], object]:
                return lambda n: fresh(f"{merge}-{n}").ingest([first])

            for merge in MERGES:
                ours, spark = paired(ingest(merge), rewrite)
                remark = f"{ours:.1f} s against {spark:.1f} s, {size:.0f} MB"
                yield Figure(f"first ingest, {merge} ÷ Spark CSV → Parquet", ours / spark, "×", remark=remark)
            for merge, path, what in (
                ("ledger", first, "nothing new"),
                ("snapshot", second, "1 % corrected"),
            ):
                dataset = workspace[f"{merge}-{ROUNDS}"]
                ours, spark = seconds(partial(dataset.ingest, [path])), seconds(rewrite)
                remark = f"{ours:.1f} s against {spark:.1f} s"
                yield Figure(f"second ingest, {merge}, {what} ÷ Spark", ours / spark, "×", remark=remark)
            dataset = workspace[f"append-{ROUNDS}"]
            took = statistics.median(seconds(dataset.verify) for _ in range(ROUNDS))
            yield Figure("verify of one slice", dataset.data_size / 1e6 / took, "MB/s", remark="both hashes")
