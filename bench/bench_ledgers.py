"""Ten thousand new rows into ledgers of a million and of ten million, beside Delta Lake's MERGE (RFC-032).

Keys grow with time, or are random. Both sides look for each key among all that are there and find none.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, seconds, spread, tell
from manifests import push_manifest

from odfchain import Dataset, Workspace

NEW_ROWS, SLICE_ROWS, ROUNDS = 10_000, 1_000_000, 5
SLICES = {"1M": 1, "10M": 10}
GOALS = {"1M": 2.0, "10M": 1.0}
"""At most these multiples of Delta Lake's times."""
MERGE = "{kind: Ledger, primaryKey: [id]}"

Ids = npt.NDArray[np.int64]


def growing(batch: int, rows: int) -> Ids:
    """Ids after all of earlier batches."""
    return np.arange(rows) + batch * SLICE_ROWS


def anywhere(batch: int, rows: int) -> Ids:
    """Ids that are spread over all numbers; a bijection, so that none comes twice."""
    mixed = growing(batch, rows).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mixed.astype(np.int64)


def table(ids: Ids) -> pa.Table:
    """Rows with these keys."""
    return pa.table({"id": ids, "price": ids % 1_000 / 100, "name": pa.array(ids % 5_000).cast(pa.string())})


def ours(dataset: Dataset, path: Path, ids: Callable[[int, int], Ids], slices: int) -> list[float]:
    """Times of merges into so many slices [s]; the first makes the index."""
    for batch in range(slices):
        pq.write_table(table(ids(batch, SLICE_ROWS)), path)
        dataset.ingest(path)
    took = []
    for batch in range(slices, slices + 1 + ROUNDS):
        pq.write_table(table(ids(batch, NEW_ROWS)), path)
        took.append(seconds(lambda: dataset.ingest(path)))
    assert dataset.summary.last_offset == -1 + slices * SLICE_ROWS + (1 + ROUNDS) * NEW_ROWS
    return took


def delta(folder: Path, ids: Callable[[int, int], Ids], slices: int) -> list[float]:
    """The same for Delta Lake."""
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415 - may not be installed

    for batch in range(slices):
        write_deltalake(str(folder), table(ids(batch, SLICE_ROWS)), mode="append")
    took = []
    for batch in range(slices, slices + ROUNDS):
        new = table(ids(batch, NEW_ROWS))

        def merge(new: pa.Table = new) -> object:
            merger = DeltaTable(str(folder)).merge(
                new, "old.id = new.id", source_alias="new", target_alias="old"
            )
            return merger.when_not_matched_insert_all().execute()

        took.append(seconds(merge))
    return took


def bench_ledgers() -> Iterator[Figure]:
    """Merges into ledgers of two sizes, for keys of two kinds."""
    for kind, ids in (("growing", growing), ("random", anywhere)):
        found: dict[str, float] = {}
        for name, slices in SLICES.items():
            tell(f"ledger of {name} {kind} keys")
            with tempfile.TemporaryDirectory() as root, Workspace.init(root) as workspace:
                folder = Path(root)
                (dataset,) = workspace.add(push_manifest("ledger", "{kind: Parquet}", MERGE))
                first, *took = ours(dataset, folder / "in.parquet", ids, slices)
                found[name] = statistics.median(took)
                what, remark = f"{NEW_ROWS:,} rows into a ledger of {name} {kind} keys", f"{spread(took)} s"
                remark += f"; making the index {first:.1f} s"
                if importlib.util.find_spec("deltalake") is None:
                    yield Figure(what, found[name], "s", remark=remark, samples=tuple(took))
                    continue
                peer = delta(folder / "delta", ids, slices)
                remark += f"; Delta Lake {spread(peer)} s"
                yield Figure(
                    f"{what} ÷ Delta Lake MERGE", found[name] / statistics.median(peer), "×", GOALS[name],
                    remark=remark, samples=tuple(took), beside=tuple(peer),
                )  # fmt: skip
        yield Figure(f"the same, {kind} keys: 10M ÷ 1M", found["10M"] / found["1M"], "×", 1.5)
