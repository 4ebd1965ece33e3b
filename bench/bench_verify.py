"""Verifying a root dataset of 1 GiB beside what no verification can do without, on the same cores.

The limits are measured in the same run, over the same files, by as many threads: the SHA3-256 of every file's
bytes and one decode of every slice to Arrow; and the same with the logical hash of the decoded records, which
a verification computes, too. The share of the first limit is told as well, though a verification that looks
at the records cannot come near it: the logical hash is one more SHA3-256, over more bytes than the file has.
Wall time suffers from other work on the machine, so the processor time that both took is beside it.
`ODFCHAIN_BENCH_MIB` makes the dataset smaller.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, seconds, tell

from odfchain.audit.dataset_checks import examine
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow, from_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import hash_parquet
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import VerifyOptions
from odfchain.workspace.workspace_files import WorkspaceFiles

SIZE = int(os.environ.get("ODFCHAIN_BENCH_MIB", "1024")) << 20
ROWS = 1 << 20
ROUNDS = 3
TARGET = 0.8
"""At least this share of the limit."""

TIME = pa.timestamp("ms", "UTC")
MADE = Timestamp.parse("2030-01-01T00:00:00Z")


def rows(start: int, rng: np.random.Generator) -> pa.Table:
    """A million records: numbers, prices, words, and a text of its own for each."""
    words = pa.array([f"word{n:06}" for n in range(10_000)])
    texts = pa.array(rng.integers(0, 1 << 60, ROWS)).cast(pa.string())
    return pa.table(
        {
            "offset": pa.array(np.arange(start, start + ROWS, dtype=np.uint64)),
            "op": pa.array(np.zeros(ROWS, dtype=np.uint8)),
            "system_time": pa.array(np.full(ROWS, MADE.epoch_ms)).cast(TIME),
            "event_time": pa.array(np.arange(start, start + ROWS) * 1_000).cast(TIME),
            "count": pa.array(rng.integers(0, 1 << 40, ROWS)),
            "price": pa.array(rng.random(ROWS)),
            "word": words.take(pa.array(rng.integers(0, 10_000, ROWS))),
            "text": texts,
        }
    )


def make_dataset(folder: Path) -> DatasetFiles:
    """A root dataset whose slices have `SIZE` together."""
    workspace = WorkspaceFiles.init(folder)
    rng = np.random.default_rng(6)
    snapshot = DatasetSnapshot(name=DatasetAlias.parse("large"), kind=DatasetKind.ROOT, metadata=())
    dataset = workspace.create(snapshot)
    table = rows(0, rng)
    schema = ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(table.schema)))
    commit(dataset, DatasetState.read(dataset.chain), [schema], [], system_time=MADE)
    written = start = 0
    while written < SIZE:
        state = DatasetState.read(dataset.chain)
        with dataset.staging() as staging:
            path = staging / "slice"
            pq.write_table(table, path, compression="snappy", row_group_size=ROWS)
            physical, size = hash_file(path)
            new = ev.DataSlice(
                logical_hash=hash_parquet(path)[0],
                physical_hash=physical,
                offset_interval=ev.OffsetInterval(start=start, end=start + ROWS - 1),
                size=size,
            )
            event = ev.AddData(prev_offset=state.last_offset, new_data=new)
            commit(dataset, state, [event], [StagedFile(path, physical)], system_time=MADE)
        written, start = written + size, start + ROWS
        table = rows(start, rng)
    return dataset


def hash_and_decode(path: Path) -> None:
    """The bytes hashed, and every record once as Arrow."""
    hash_file(path)
    with pq.ParquetFile(path) as file:
        for _ in file.iter_batches(65_536):
            pass


def bench_verify() -> Iterator[Figure]:
    """MB/s of slices, and the share of both limits."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as root:
        tell(f"writing {SIZE >> 20:,} MiB of slices")
        dataset = make_dataset(Path(root))
        paths = sorted((dataset.folder / "data").glob("f*"))
        size = sum(path.stat().st_size for path in paths) / 1e6

        def spread(work: Callable[[Path], object]) -> Callable[[], None]:
            def run() -> None:
                with ThreadPoolExecutor(cores) as pool:
                    list(pool.map(work, paths))

            return run

        def verify() -> None:
            report = examine(dataset, VerifyOptions(jobs=cores)).report
            assert report.ok, report

        runs = {
            "limit: SHA3-256 of the bytes, one decode": spread(hash_and_decode),
            "limit: the same and the logical hash": spread(lambda p: (hash_file(p), hash_parquet(p))),
            "verify": verify,
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(ROUNDS):  # in turns: what slows the machine meets all of them
            for name, run in runs.items():
                start = time.process_time()
                wall = seconds(run)
                times[name].append((wall, time.process_time() - start))
        tell(f"load of the machine (1 minute): {os.getloadavg()[0]:.1f} on {cores} cores")
        walls = {name: statistics.median(wall for wall, _ in found) for name, found in times.items()}
        for name, wall in walls.items():
            yield Figure(f"{name}, {cores} threads", size / wall, "MB/s")
        bare, logical, ours = walls.values()
        yield Figure("verify ÷ limit with the logical hash", logical / ours, "×", TARGET, at_least=True)
        yield Figure("verify ÷ limit without the logical hash", bare / ours, "×", remark="see the docstring")
        bare, logical, ours = (statistics.median(cpu for _, cpu in found) for found in times.values())
        yield Figure("the first, by processor time", logical / ours, "×")
        yield Figure("the second, by processor time", bare / ours, "×")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Figure("peak of memory, writing the slices included", peak, "MiB")
