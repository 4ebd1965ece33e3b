"""Verifying a root dataset of 1 GiB beside what no verification can do without, on the same cores.

The limits are measured in the same run, over the same files, by as many threads: the SHA3-256 of every file's
bytes and one decode of every slice to Arrow; and the same with the logical hash of the decoded records, which
a verification computes, too. The share of the first limit is told as well, though a verification that looks
at the records cannot come near it: the logical hash is one more SHA3-256, over more bytes than the file has.
Wall time suffers from other work on the machine, so the processor time that both took is beside it.
`ODFCHAIN_BENCH_MIB` makes the dataset smaller.

A second dataset has snapshots in which most rows correct others, so that check 10 compares them: its figure
is the processor time of `examine` beside that of both hashes of its files alone.
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
CORRECTED = 4
"""At most so many times what both hashes take, where check 10 compares most rows."""

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
    rng = np.random.default_rng(6)
    table = rows(0, rng)
    dataset = new_dataset(folder, table.schema)
    written = start = 0
    while written < SIZE:
        written, start = written + record(dataset, table), start + ROWS
        table = rows(start, rng)
    return dataset


def new_dataset(folder: Path, schema: pa.Schema) -> DatasetFiles:
    """A root dataset without rows."""
    snapshot = DatasetSnapshot(name=DatasetAlias.parse("large"), kind=DatasetKind.ROOT, metadata=())
    dataset = WorkspaceFiles.init(folder).create(snapshot)
    event = ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(schema)))
    commit(dataset, DatasetState.read(dataset.chain), [event], [], system_time=MADE)
    return dataset


def record(dataset: DatasetFiles, table: pa.Table) -> int:
    """Add a slice of these rows; its size [bytes]."""
    state = DatasetState.read(dataset.chain)
    start, end = table["offset"][0].as_py(), table["offset"][-1].as_py()
    with dataset.staging() as staging:
        path = staging / "slice"
        pq.write_table(table, path, compression="snappy", row_group_size=ROWS)
        physical, size = hash_file(path)
        new = ev.DataSlice(
            logical_hash=hash_parquet(path)[0],
            physical_hash=physical,
            offset_interval=ev.OffsetInterval(start=start, end=end),
            size=size,
        )
        event = ev.AddData(prev_offset=state.last_offset, new_data=new)
        commit(dataset, state, [event], [StagedFile(path, physical)], system_time=MADE)
    return size


def corrected(folder: Path, keys: int) -> DatasetFiles:
    """A dataset of 20 columns and 8 snapshots: each after the first corrects a twelfth of the rows."""
    rng = np.random.default_rng(7)
    data = [rng.integers(0, 100_000, keys) for _ in range(16)]
    dataset, start = None, 0
    for number in range(8):
        if number:
            old = rng.choice(keys, keys // 12, replace=False)
            old.sort()
            before = [column[old] for column in data]
            for column in (data[place] for place in rng.choice(15, 3, replace=False) + 1):
                column[old] = rng.integers(0, 100_000, len(old))
            pairs = [
                np.stack((one, column[old]), 1).ravel() for one, column in zip(before, data, strict=True)
            ]
            operations = np.tile(np.array([2, 3], np.uint8), len(old))
        else:
            pairs, operations = data, np.zeros(keys, np.uint8)
        count = len(operations)
        times = pa.array(np.full(count, MADE.epoch_ms)).cast(TIME)
        texts = {f"c{place}": pa.array(column).cast(pa.string()) for place, column in enumerate(pairs)}
        offsets = pa.array(np.arange(start, start + count, dtype=np.uint64))
        system = {"offset": offsets, "op": pa.array(operations), "system_time": times, "event_time": times}
        table = pa.table({**system, **texts})
        dataset = dataset or new_dataset(folder, table.schema)
        record(dataset, table)
        start += count
    assert dataset is not None
    return dataset


def bench_corrected() -> Iterator[Figure]:
    """Processor time of verifications whose check 10 compares most rows, beside both hashes alone."""
    for keys in (46_000, 460_000):
        with tempfile.TemporaryDirectory() as root:
            dataset = corrected(Path(root), keys)
            paths = sorted((dataset.folder / "data").glob("f*"))
            times: list[tuple[float, float]] = []
            for _ in range(ROUNDS + 1):
                start = time.process_time()
                for path in paths:
                    hash_file(path)
                    hash_parquet(path)
                between = time.process_time()
                report = examine(dataset, VerifyOptions(jobs=1)).report
                assert report.ok, report
                times.append((between - start, time.process_time() - between))
            bare, ours = (statistics.median(found) for found in zip(*times[1:], strict=True))
            what = f"{report.records:,} rows in 8 snapshots, processor time ÷ both hashes alone"
            yield Figure(what, ours / bare, "×", CORRECTED, remark=f"{ours:.2f} s")


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
    yield from bench_corrected()
