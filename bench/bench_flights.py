"""A large file appended, beside Spark reading, ordering and writing the same rows without any hash.

Both have the same session, CSV file, schema and order. Spark's own way of ordering (`orderBy`) may write
several files at once; a slice is one file.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from figures import Entry, Figure, in_turns, spread, tell, times_in_turns
from flight_rows import COLUMNS, EVENT_TIME, NULL, manifest, write_flights

from odfchain import Workspace

if TYPE_CHECKING:
    from odfchain.ingest.ingesting import IngestOutcome

ROWS = 5_000_000
WARM_UP_ROWS = 50_000
ROUNDS = 5
WARM_UP_ROUNDS = 2
TARGET = 0.5
"""At most this multiple of the time that Spark needs without hashes."""

OURS, SPARK = "append", "Spark"


def entries(workspace: Workspace, csv: Path, rows: int) -> dict[str, Entry]:
    """Ours and Spark's way with one file; each checks that it wrote every row."""

    @contextmanager
    def ours() -> Iterator[Callable[[], object]]:
        (dataset,) = workspace.add(manifest("flights"))
        found: list[IngestOutcome] = []
        yield lambda: found.append(dataset.ingest([csv]))
        assert found[0].inputs[0].operations == {"+A": rows}
        workspace.delete("flights")

    @contextmanager
    def spark() -> Iterator[Callable[[], object]]:
        target = csv.with_suffix(".out")
        schema = ", ".join(f"`{n}` {t}" for n, t in COLUMNS.items())
        frame = workspace.session().read.schema(schema).csv(str(csv), header=True, nullValue=NULL)
        yield lambda: frame.orderBy(EVENT_TIME).write.parquet(str(target))
        assert sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet")) == rows
        shutil.rmtree(target)

    return {OURS: ours, SPARK: spark}


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
            tell(f"ingesting it and rewriting it with Spark, in turns, {ROUNDS} times")
            took = times_in_turns(entries(workspace, large, ROWS), ROUNDS)
        size = large.stat().st_size / 1e6
    ours, spark = tuple(took[OURS]), tuple(took[SPARK])
    yield Figure(
        f"append of {ROWS:,} rows × {len(COLUMNS)} columns ÷ Spark, ordered",
        statistics.median(ours) / statistics.median(spark), "×", TARGET,
        remark=f"{spread(ours)} s against {spread(spark)} s, {size:.0f} MB",
        samples=ours, beside=spark,
    )  # fmt: skip
