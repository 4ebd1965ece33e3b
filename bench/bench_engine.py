"""The engine on DataFusion, beside DataFusion alone over the same files in the same run.

python bench/bench_engine.py [--rows N] [--rounds N]

Both read the same slices by one partition and write one Parquet file; ours adds and checks system columns.
"""

from __future__ import annotations

import argparse
import functools
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import datafusion as df
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, show

from odfchain.odf.engine_messages import TransformRequest, TransformRequestInput
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.transform.datafusion_engine import DataFusionEngine

UTC = pa.timestamp("ms", "UTC")
ID = DatasetId(bytes(32))
ROWS, ROUNDS, SLICES = 5_000_000, 5, 5
QUERIES = {
    "map": "SELECT event_time, upper(name) AS name, amount * 2 AS a, key % 7 AS k FROM rows WHERE key > 0",
    "join": "SELECT r.event_time, r.key, n.label, r.amount FROM names n JOIN rows r ON r.key % 1000 = n.id",
}


def written(folder: Path, name: str, table: pa.Table, slices: int) -> list[Path]:
    """Slices of a dataset with these rows."""
    count = len(table)
    system = {
        "offset": pa.array(np.arange(count, dtype=np.uint64)), "op": pa.array(np.zeros(count, np.uint8)),
        "system_time": pa.array(np.zeros(count, np.int64)).cast(UTC),
    }  # fmt: skip
    fields = [pa.field(n, a.type, nullable=False) for n, a in system.items()]
    whole = pa.table([*system.values(), *table.columns], schema=pa.schema([*fields, *table.schema]))
    paths = []
    for number in range(slices):
        start = number * count // slices
        paths.append(folder / f"{name}-{number}.parquet")
        pq.write_table(whole.slice(start, (number + 1) * count // slices - start), paths[-1])
    pq.write_table(whole.slice(0, 0), folder / f"{name}-schema")
    return paths


def made(folder: Path, rows: int) -> dict[str, tuple[list[Path], int]]:
    """Both inputs: their slices and how many records they have."""
    key = np.arange(rows)
    events = pa.table({
        "event_time": pa.array(key * 1_000).cast(UTC), "key": key, "amount": np.arange(rows) * 0.25,
        "name": pa.array(np.char.add("name-", (key % 5_000).astype(str))),
    })  # fmt: skip
    names = pa.table({
        "event_time": pa.array(np.zeros(1_000, np.int64)).cast(UTC), "id": np.arange(1_000),
        "label": [f"label {i}" for i in range(1_000)],
    })  # fmt: skip
    return {
        "rows": (written(folder, "rows", events, SLICES), rows),
        "names": (written(folder, "names", names, 1), 1_000),
    }


def ours(folder: Path, inputs: dict[str, tuple[list[Path], int]], query: str) -> Path:
    """The engine's step."""
    given = tuple(
        TransformRequestInput(
            dataset_id=ID, dataset_alias=DatasetAlias.parse(name), query_alias=name,
            vocab=DatasetVocabulary(), offset_interval=OffsetInterval(start=0, end=count - 1),
            data_paths=tuple(map(str, paths)),
            schema_file=str(folder / f"{name}-schema"), explicit_watermarks=(),
        )
        for name, (paths, count) in inputs.items()
        if name in query
    )  # fmt: skip
    target = folder / "ours"
    target.unlink(missing_ok=True)
    request = TransformRequest(
        dataset_id=ID, dataset_alias=DatasetAlias.parse("made"), system_time=Timestamp(0),
        vocab=DatasetVocabulary(), query_inputs=given, next_offset=0, prev_checkpoint_path=None,
        transform=TransformSql(engine="datafusion", queries=(SqlQueryStep(query=query),)),
        new_checkpoint_path=str(folder / "checkpoint"), new_data_path=str(target),
    )  # fmt: skip
    DataFusionEngine().execute(request, schema=None, progress=SILENT)
    return target


def alone(folder: Path, inputs: dict[str, tuple[list[Path], int]], query: str) -> Path:
    """DataFusion, as one would call it."""
    context = df.SessionContext(df.SessionConfig().with_target_partitions(1))
    for name in inputs:
        parts = folder / f"all-{name}"
        context.register_parquet(name, parts)
    target = folder / "alone.parquet"
    target.unlink(missing_ok=True)
    context.sql(query).write_parquet(str(target), compression="snappy")
    return target


def measured(run: Callable[[], Path], expected: int | None) -> tuple[float, float, int]:
    """(time, CPU, rows) of a call [s]."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    target = run()
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    count = sum(pq.read_metadata(p).num_rows for p in ([target] if target.is_file() else target.iterdir()))
    assert expected is None or count == expected, f"{count} rows, not {expected}"
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, count


def bench_engine(*, rows: int = ROWS, rounds: int = ROUNDS) -> Iterator[Figure]:
    """Both queries, in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = made(folder, rows)
        for table, (paths, _) in inputs.items():
            (folder / f"all-{table}").mkdir()
            for path in paths:
                (folder / f"all-{table}" / path.name).symlink_to(path)
        for query, sql in QUERIES.items():
            mine, other = [], []
            count = None
            for _ in range(rounds):
                other.append(measured(functools.partial(alone, folder, inputs, sql), count))
                count = other[-1][2]
                mine.append(measured(functools.partial(ours, folder, inputs, sql), count))
            for what, place in (("time", 0), ("CPU", 1)):
                a, b = (statistics.median(each[place] for each in side) for side in (mine, other))
                remark = f"{a:.2f} s; DataFusion {b:.2f} s; {count:,} rows out"
                title = f"{query} of {rows:,} rows ÷ DataFusion alone, {what}"
                yield Figure(title, a / b, "×", 1.5, remark=remark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    for figure in bench_engine(**vars(parser.parse_args())):
        show("engine", [figure])


if __name__ == "__main__":
    main()
