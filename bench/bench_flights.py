"""A large file appended, beside Spark reading, ordering and writing the same rows without any hash.

All sides have the same session, CSV file, schema and order. Spark's own way of ordering (`orderBy`) may write
several files side by side; a slice is one file, so Spark is also timed writing one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from figures import Entry, Figure, in_turns, tell
from flight_rows import COLUMNS, EVENT_TIME, NULL, manifest, write_flights

from odfchain import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from odfchain.ingest.ingesting import IngestOutcome

ROWS = 5_000_000
WARM_UP_ROWS = 50_000
ROUNDS = 3
WARM_UP_ROUNDS = 2
TARGET = 1.25
"""At most this multiple of the time that Spark needs without hashes."""

OURS = "append"
ORDERED, ONE_FILE, UNORDERED = "ordered", "ordered, one file", "not ordered"
BASELINES: dict[str, Callable[[DataFrame], DataFrame]] = {
    ORDERED: lambda frame: frame.orderBy(EVENT_TIME),
    ONE_FILE: lambda frame: frame.repartition(1).sortWithinPartitions(EVENT_TIME),
    UNORDERED: lambda frame: frame,
}


def entries(workspace: Workspace, csv: Path, rows: int) -> dict[str, Entry]:
    """Ours and Spark's ways with one file; each checks that it wrote every row."""

    @contextmanager
    def ours() -> Iterator[Callable[[], object]]:
        (dataset,) = workspace.add(manifest("flights"))
        found: list[IngestOutcome] = []
        yield lambda: found.append(dataset.ingest([csv]))
        assert found[0].inputs[0].operations == {"+A": rows}
        workspace.delete("flights")

    def spark(arrange: Callable[[DataFrame], DataFrame]) -> Entry:
        @contextmanager
        def run() -> Iterator[Callable[[], object]]:
            target = csv.with_suffix(".out")
            schema = ", ".join(f"`{n}` {t}" for n, t in COLUMNS.items())
            frame = workspace.session().read.schema(schema).csv(str(csv), header=True, nullValue=NULL)
            yield lambda: arrange(frame).write.parquet(str(target))
            assert sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet")) == rows
            shutil.rmtree(target)

        return run

    return {OURS: ours} | {name: spark(arrange) for name, arrange in BASELINES.items()}


def bench_flights() -> Iterator[Figure]:
    """Append as a multiple of what Spark needs to order and rewrite the file."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        small, large = folder / "small.csv", folder / "flights.csv"
        tell(f"writing a CSV file of {ROWS:,} flights")
        write_flights(small, rows=WARM_UP_ROWS)
        write_flights(large, rows=ROWS)
        with Workspace.init(folder) as workspace:
            tell("warming up on a small file")
            in_turns(entries(workspace, small, WARM_UP_ROWS), WARM_UP_ROUNDS)
            tell(f"ingesting it and rewriting it with Spark in three ways, in turns, {ROUNDS} times")
            took = in_turns(entries(workspace, large, ROWS), ROUNDS)
        size = large.stat().st_size / 1e6
    yield Figure(
        f"append of {ROWS:,} rows ÷ Spark, ordered",
        took[OURS] / took[ORDERED],
        "×",
        TARGET,
        remark=f"{took[OURS]:.1f} s against {took[ORDERED]:.1f} s, {size:.0f} MB; "
        + "; ".join(
            f"{took[OURS] / took[n]:.2f} × Spark, {n} ({took[n]:.1f} s)" for n in (ONE_FILE, UNORDERED)
        ),
    )
