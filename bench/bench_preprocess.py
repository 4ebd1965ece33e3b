"""Preprocess queries: on DataFusion, in a process of its own, beside the same ingest with one on Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from figures import Entry, Figure, in_turns, tell
from flight_rows import manifest, write_flights

from odfchain import Workspace

ROWS, FEW_ROWS = 1_000_000, 100
ROUNDS = 3
TARGET, START_TARGET = 1.3, 2.0
"""At most this multiple of the time with a query on Spark; and so much longer for few rows [s]."""
QUERY = "select *, dep_delay - arr_delay as made_up from input where distance > 0"
SIDES = {"DataFusion": "datafusion", "Spark": "odfchain-spark"}


def bench_preprocess() -> Iterator[Figure]:
    """An ingest of many rows as a multiple, and how much later one of few rows ends."""
    with tempfile.TemporaryDirectory() as name, Workspace.init(name) as workspace:
        csv = Path(name) / "flights.csv"

        def side(engine: str) -> Entry:
            @contextmanager
            def prepare() -> Iterator[Callable[[], object]]:
                query = f'preprocess: {{kind: Sql, engine: {engine}, query: "{QUERY}"}}'
                text = manifest("flights").replace("\n      merge:", f"\n      {query}\n      merge:")
                (dataset,) = workspace.add(text, check=False)
                yield lambda: dataset.ingest([csv])
                workspace.delete("flights")

            return prepare

        took = {}
        for rows, rounds in ((FEW_ROWS, 1), (FEW_ROWS, ROUNDS), (ROWS, ROUNDS)):
            tell(f"{rows:,} flights through a query on each of {', '.join(SIDES)}, {rounds} times")
            write_flights(csv, rows=rows)
            took[rows] = in_turns({name: side(engine) for name, engine in SIDES.items()}, rounds)
    many, few = took[ROWS], took[FEW_ROWS]
    yield Figure(
        f"{ROWS:,} rows: query on DataFusion ÷ on Spark", many["DataFusion"] / many["Spark"], "×", TARGET,
        remark=f"{many['DataFusion']:.1f} s and {many['Spark']:.1f} s",
    )  # fmt: skip
    yield Figure(
        f"{FEW_ROWS:,} rows: query on DataFusion after one on Spark", few["DataFusion"] - few["Spark"], "s",
        START_TARGET, remark=f"{few['DataFusion']:.2f} s and {few['Spark']:.2f} s; Spark runs already",
    )  # fmt: skip
