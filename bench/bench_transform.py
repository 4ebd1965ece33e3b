"""Derivative datasets: beside Spark alone, month by month beside a whole year, and replayed.

python bench/bench_transform.py [--rows N] [--year-rows N] [--transactions N] [--rounds N]

- A transform that treats every row by itself, as a multiple of the same SQL over the same slice by the same
  session, written without hashes: as Spark likes, and into one file.
- The same transform of a root of several slices: as one step, and as several side by side.
- Delays by day, computed after each of twelve monthly transactions, as a multiple of one step over all of
  them; and what is remembered after each step, which must not grow.
- The replay of many small transactions, which is what an audit does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from figures import Entry, Figure, in_turns, seconds, show, tell
from flight_rows import COLUMNS, EVENT_TIME, manifest, write_flights

from odfchain import Dataset, Workspace
from odfchain.odf.events import ExecuteTransform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from odfchain.api.pulling import PullResult

ROWS = 5_000_000
YEAR_ROWS = 5_000_000
TRANSACTIONS = 100
TRANSACTION_ROWS = 1_000
WARM_UP_ROWS = 50_000
ROUNDS = 3
WARM_UP_ROUNDS = 2
WARM_UP_TRANSACTIONS = 3
MONTHS = 12

STATELESS_TARGET = 1.4
"""At most this multiple of the time that Spark needs without hashes."""

MONTHLY_TARGET = 2.0
"""At most this multiple of the time of one step over the year."""

REPLAY_TARGET = 0.5
"""At most so long for each transaction [s]."""

STATELESS = """
SELECT
  time_hour, carrier, flight, tailnum, origin, dest, dep_delay, arr_delay,
  dep_delay - arr_delay AS made_up, round(distance * 1.609344, 1) AS km,
  concat(origin, '-', dest) AS route, coalesce(dep_delay, 0) > 15 AS is_late
FROM flights
WHERE air_time IS NOT NULL
"""
DAILY = """
SELECT
  window.start AS time_hour, origin, count(*) AS flights, count(dep_delay) AS departed,
  round(avg(dep_delay), 2) AS mean_delay, max(dep_delay) AS max_delay
FROM flights
GROUP BY window(time_hour, '1 day', '1 day', '5 hours'), origin
"""


def derived(workspace: Workspace, name: str, query: str) -> Dataset:
    """A derivative of the root `flights`."""
    lines = "".join(f"          {line}\n" for line in query.strip().splitlines())
    (dataset,) = workspace.add(
        f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: Derivative\n  metadata:\n"
        f"    - {{kind: SetVocab, eventTimeColumn: {EVENT_TIME}}}\n"
        "    - kind: SetTransform\n      inputs: [{datasetRef: flights, alias: flights}]\n"
        f"      transform:\n        kind: Sql\n        engine: odfchain-spark\n        query: |\n{lines}"
    )
    return dataset


# --- every row by itself ---------------------------------------------------------------------------

OURS = "transform"
FREE, ONE_FILE = "as it likes", "one file"
BASELINES: dict[str, Callable[[DataFrame], DataFrame]] = {
    FREE: lambda frame: frame,
    ONE_FILE: lambda frame: frame.coalesce(1),
}


def entries(workspace: Workspace, root: Dataset, target: Path) -> dict[str, Entry]:
    """Ours and Spark's ways over the same slice; each checks that it wrote every row."""
    kept = root.scan(["air_time"]).to_arrow()["air_time"]
    rows = len(kept) - kept.null_count

    @contextmanager
    def ours() -> Iterator[Callable[[], object]]:
        dataset = derived(workspace, "stateless", STATELESS)
        found: list[PullResult] = []
        yield lambda: found.append(dataset.pull())
        assert found[0].operations == {"+A": rows, "-R": 0, "-C": 0, "+C": 0}
        workspace.delete("stateless")

    def spark(arrange: Callable[[DataFrame], DataFrame]) -> Entry:
        @contextmanager
        def run() -> Iterator[Callable[[], object]]:
            session = workspace.session()
            paths = [str(path) for path in (root.path / "data").iterdir()]
            session.read.parquet(*paths).createOrReplaceTempView("flights")
            yield lambda: arrange(session.sql(STATELESS)).write.parquet(str(target))
            assert sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet")) == rows
            shutil.rmtree(target)

        return run

    return {OURS: ours} | {name: spark(arrange) for name, arrange in BASELINES.items()}


def bench_stateless(rows: int, rounds: int) -> Iterator[Figure]:
    """A transform of one large slice as a multiple of what Spark needs."""
    with tempfile.TemporaryDirectory() as name, Workspace.init(name) as workspace:
        csv = Path(name) / "flights.csv"
        took: dict[str, float] = {}
        for count, times in ((min(rows, WARM_UP_ROWS), WARM_UP_ROUNDS), (rows, rounds)):
            tell(f"a root dataset of {count:,} flights; the same SQL over it in three ways, {times} times")
            write_flights(csv, rows=count)
            (root,) = workspace.add(manifest("flights"))
            root.ingest([csv])
            csv.unlink()
            took = in_turns(entries(workspace, root, csv.with_suffix(".out")), times)
            workspace.delete("flights")
    yield Figure(
        f"transform of {rows:,} rows ÷ Spark, {FREE}",
        took[OURS] / took[FREE],
        "×",
        STATELESS_TARGET,
        remark=f"{took[OURS]:.1f} s against {took[FREE]:.1f} s; "
        f"{took[OURS] / took[ONE_FILE]:.2f} × Spark, {ONE_FILE} ({took[ONE_FILE]:.1f} s)",
    )


# --- one step as several ---------------------------------------------------------------------------

SLICES = 8
"""Of the root, by its values."""


def limit_slices(workspace: Workspace, max_bytes: int) -> None:
    """Inputs and steps of more become several slices from now on."""
    content = {"kind": "WorkspaceConfig", "version": 1, "content": {"slice": {"maxBytes": max_bytes}}}
    (workspace.path / "config.yaml").write_text(json.dumps(content))


def bench_several(rows: int, rounds: int) -> Iterator[Figure]:
    """A step over several slices that becomes several, as a multiple of the same as one."""
    with tempfile.TemporaryDirectory() as name, Workspace.init(name) as workspace:
        csv = Path(name) / "flights.csv"
        took: dict[str, float] = {}
        steps = 0
        for count, times in ((min(rows, 4 * WARM_UP_ROWS), 1), (rows, rounds)):
            tell(f"a root dataset of {count:,} flights in several slices; a step over them, and several")
            write_flights(csv, rows=count)
            limit_slices(workspace, csv.stat().st_size // SLICES)
            (root,) = workspace.add(manifest("flights"))
            root.ingest([csv])
            csv.unlink()
            sizes = [block.size for item in root.log() if (block := item.block.new_data) is not None]

            def pulled(max_bytes: int) -> Entry:
                @contextmanager
                def run() -> Iterator[Callable[[], object]]:
                    nonlocal steps
                    limit_slices(workspace, max_bytes)
                    dataset = derived(workspace, "stateless", STATELESS)
                    yield dataset.pull
                    steps = sum(isinstance(item.block.event, ExecuteTransform) for item in dataset.log())
                    workspace.delete("stateless")

                return run

            took = in_turns({"one": pulled(0), "several": pulled(max(sizes) * 2)}, times)
            workspace.delete("flights")
    yield Figure(
        f"transform of {rows:,} rows as {steps} steps ÷ as one",
        took["several"] / took["one"],
        "×",
        remark=f"{took['several']:.1f} s against {took['one']:.1f} s",
    )


# --- step by step ----------------------------------------------------------------------------------


def one_year(folder: Path, rows: int) -> pa.Table:
    """About so many flights of a single year, in the order in which they leave."""
    csv = folder / "years.csv"
    write_flights(csv, rows=rows)
    text = {name: pa.string() for name in COLUMNS}
    table = pcsv.read_csv(csv, convert_options=pcsv.ConvertOptions(column_types=text))
    csv.unlink()
    leap = pc.and_(pc.equal(table["month"], "2"), pc.equal(table["day"], "29"))
    table = table.filter(pc.invert(leap))
    month, day, hour = (table[name].cast(pa.int64()).to_numpy() for name in ("month", "day", "hour"))
    first = np.datetime64("2013-01") + (month - 1)
    date = first.astype("datetime64[D]") + (day - 1)
    time = date.astype("datetime64[h]") + (hour + 5)
    hours, indices = np.unique(time, return_inverse=True)
    written = pa.array([f"{t}:00:00Z" for t in hours.astype(str)]).take(pa.array(indices))
    table = table.set_column(table.schema.get_field_index(EVENT_TIME), EVENT_TIME, written)
    return table.take(pa.array(np.argsort(indices, kind="stable")))


def ingest(root: Dataset, rows: pa.Table, csv: Path) -> None:
    """One transaction."""
    pcsv.write_csv(rows, csv, pcsv.WriteOptions(quoting_style="none"))
    root.ingest([csv])
    csv.unlink()


def remembered(dataset: Dataset) -> int:
    """Size of the newest checkpoint [bytes]."""
    event = next(item.block.event for item in dataset.log())
    assert isinstance(event, ExecuteTransform)
    assert event.new_checkpoint is not None
    return event.new_checkpoint.size


def step_by_step(
    workspace: Workspace, rows: pa.Table, bounds: Sequence[int], csv: Path
) -> tuple[Dataset, list[float], list[int]]:
    """The rows cut at the bounds, a step after each part; (what is derived, times [s], sizes [bytes])."""
    (root,) = workspace.add(manifest("flights"))
    dataset = derived(workspace, "daily", DAILY)
    took, sizes = [], []
    for start, end in pairwise(bounds):
        ingest(root, rows.slice(start, end - start), csv)
        took.append(seconds(dataset.pull))
        sizes.append(remembered(dataset))
    return dataset, took, sizes


def even_parts(rows: pa.Table, parts: int) -> list[int]:
    """Where to cut the rows into parts of the same size."""
    return [len(rows) * part // parts for part in range(parts + 1)]


def months(rows: pa.Table) -> list[int]:
    """Where months begin, and the end."""
    month = rows["month"].cast(pa.int64()).to_numpy()
    return [*np.searchsorted(month, range(1, MONTHS + 1)).tolist(), len(rows)]


def at_once(workspace: Workspace) -> tuple[Dataset, float]:
    """One step over all that the root has; (what is derived, time [s])."""
    dataset = derived(workspace, "at-once", DAILY)
    return dataset, seconds(dataset.pull)


def bench_monthly(rows: int) -> Iterator[Figure]:
    """Twelve steps as a multiple of one over the same rows, and what they remember."""
    with tempfile.TemporaryDirectory() as name, Workspace.init(name) as workspace:
        csv = Path(name) / "month.csv"
        tell("warming up")
        # steps as large as those that are measured: smaller ones are executed in another way
        small = one_year(csv.parent, rows * WARM_UP_TRANSACTIONS // MONTHS)
        step_by_step(workspace, small, even_parts(small, WARM_UP_TRANSACTIONS), csv)
        at_once(workspace)
        for used in ("at-once", "daily", "flights"):
            workspace.delete(used)
        year = one_year(csv.parent, rows)
        tell(f"delays by day after each of {MONTHS} transactions of about {len(year) // MONTHS:,} flights")
        monthly, took, sizes = step_by_step(workspace, year, months(year), csv)
        tell("  " + " ".join(f"{t:.2f}" for t in took) + " s")
        tell("  remembered: " + " ".join(f"{size / 1e3:,.0f}" for size in sizes) + " kB")
        whole, batch = at_once(workspace)
        columns = [f.name for f in (whole.schema.fields if whole.schema else ()) if f.name != "system_time"]
        assert monthly.scan(columns).to_arrow().equals(whole.scan(columns).to_arrow())
    yield Figure(
        f"{MONTHS} steps over {len(year):,} rows ÷ one step",
        sum(took) / batch,
        "×",
        MONTHLY_TARGET,
        remark=f"{sum(took):.1f} s against {batch:.1f} s; "
        f"first step {took[0]:.2f} s, median {statistics.median(took):.2f} s",
        samples=tuple(round(t, 3) for t in took),
    )
    yield Figure(
        "checkpoint, largest ÷ smallest",
        max(sizes) / min(sizes),
        "×",
        remark=f"{min(sizes) / 1e3:,.0f} to {max(sizes) / 1e3:,.0f} kB",
        samples=tuple(float(size) for size in sizes),
    )


# --- replay ----------------------------------------------------------------------------------------


def bench_replay(transactions: int) -> Iterator[Figure]:
    """An audit of small transactions in one session."""
    with tempfile.TemporaryDirectory() as name, Workspace.init(name) as workspace:
        csv = Path(name) / "part.csv"
        rows = one_year(csv.parent, transactions * TRANSACTION_ROWS)
        tell(f"{transactions} transactions of about {len(rows) // transactions:,} flights, a step after each")
        dataset, took, _ = step_by_step(workspace, rows, even_parts(rows, transactions), csv)
        tell("replaying them")
        assert dataset.verify(replay=True, jobs=1).ok
        replayed = {}
        for jobs in (1, 2):
            hashed = seconds(dataset.verify)
            replayed[jobs] = seconds(partial(dataset.verify, replay=True, jobs=jobs)) - hashed
    yield Figure(
        f"replay of {transactions} transactions, each",
        replayed[1] / transactions,
        "s",
        REPLAY_TARGET,
        remark=f"{replayed[1]:.1f} s; two side by side {replayed[2] / transactions:.2f} s each; "
        f"when it was computed {statistics.median(took):.2f} s each",
    )


def bench_transform(
    rows: int = ROWS,
    year_rows: int = YEAR_ROWS,
    transactions: int = TRANSACTIONS,
    rounds: int = ROUNDS,
) -> Iterator[Figure]:
    """All four."""
    yield from bench_stateless(rows, rounds)
    yield from bench_several(rows, rounds)
    yield from bench_monthly(year_rows)
    yield from bench_replay(transactions)


def main() -> int:
    """This part alone, in other sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (
        ("rows", ROWS), ("year-rows", YEAR_ROWS), ("transactions", TRANSACTIONS), ("rounds", ROUNDS)
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    for figure in bench_transform(**vars(parser.parse_args())):
        show("transform", [figure])
    return 0


if __name__ == "__main__":
    sys.exit(main())
