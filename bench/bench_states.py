"""What a driver holds while an input is merged into many keys: its Python, and the heap of its Java.

Driver and executors are processes of their own (`local-cluster`), the driver's heap is small, and each merge
is a command of its own. What the driver holds must not follow the number of recorded keys. `STATES_KEYS` and
`STATES_STRATEGIES` say which are measured (`100000,1000000`, `ledger`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_memory import COMMAND
from figures import Figure, tell
from manifests import push_manifest
from processes import MemoryWatch

from odfchain import Workspace
from odfchain.spark.gateway import pyspark_folder

KEYS = (100_000, 1_000_000, 10_000_000)
FEW = 1_000
"""Rows of a small input: half of their keys are recorded."""
HEAP = 512
"""Of the driver [MiB]."""
GROWN = 64
"""So much more than with the fewest keys is noise [MiB]."""

MERGES = {
    "ledger": "{kind: Ledger, primaryKey: [id]}",
    "snapshot": "{kind: Snapshot, primaryKey: [id]}",
    "upsert": "{kind: UpsertStream, primaryKey: [id]}",
}
_AFTER = re.compile(r"->([0-9]+)([KMG])\(")
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


@dataclass(frozen=True, slots=True)
class Held:
    """What a merge took."""

    seconds: float
    python: float
    """The driver's Python at its peak [MiB]."""
    heap: float
    """The driver's heap, the most after a collection [MiB]."""
    workers: float
    """Python of executors at its peak [MiB]."""


def bench_states() -> Iterator[Figure]:
    """Merges of few rows and of as many as are recorded, for each strategy and number of keys."""
    counts = [int(n) for n in os.environ.get("STATES_KEYS", "").split(",") if n] or list(KEYS)
    names = [n for n in os.environ.get("STATES_STRATEGIES", "").split(",") if n] or list(MERGES)
    found: dict[str, list[Held]] = {}
    for keys in counts:
        for strategy in names:
            with tempfile.TemporaryDirectory() as root:
                for what, held in _merges(Path(root), strategy, keys):
                    name = f"{strategy}, {what}"
                    found.setdefault(name, []).append(held)
                    remark = f"heap {held.heap:.0f} MiB, executors' Python {held.workers:.0f}"
                    remark += f" MiB, {held.seconds:.1f} s"
                    yield Figure(f"{name}, {keys:,} keys: driver", held.python, "MiB", remark=remark)
    for name, each in found.items():
        python, heap = (max(h) - h[0] for h in ([e.python for e in each], [e.heap for e in each]))
        yield Figure(f"{name}: Python, most − fewest keys", python, "MiB", GROWN, remark="0 is constant")
        yield Figure(f"{name}: heap, most − fewest keys", heap, "MiB", GROWN, remark="0 is constant")


def _merges(root: Path, strategy: str, keys: int) -> Iterator[tuple[str, Held]]:
    workspace = Workspace.init(root)
    workspace.add(push_manifest("keyed", "{kind: Parquet}", MERGES[strategy]))
    home = _spark_home(root / "spark")
    first, second, few = (root / f"{name}.parquet" for name in ("first", "second", "few"))
    tell(f"{strategy}: recording {keys:,} keys")
    _write(first, np.arange(keys))
    yield "first", _ingest(root, home, first, {"+A": keys})
    # a hundredth of the keys is gone from a snapshot, or new to a stream
    changed = keys // 100
    _write(
        second, np.arange(keys // 2, keys + changed) if strategy != "snapshot" else np.arange(changed, keys)
    )
    _write(few, np.concatenate([np.arange(FEW // 2), np.arange(2 * keys, 2 * keys + FEW // 2)]))
    if strategy != "snapshot":
        tell(f"{strategy}: {FEW:,} rows into {keys:,} keys")
        yield "few rows", _ingest(root, home, few, {"+A": FEW // 2})
    tell(f"{strategy}: many rows into {keys:,} keys")
    counts = {"-R": changed} if strategy == "snapshot" else {"+A": changed}
    yield "many rows", _ingest(root, home, second, counts)


def _write(path: Path, ids: np.ndarray) -> None:
    """Rows of these keys, whose values follow from them; groups, so that several tasks read them."""
    size = 1 << 20
    schema = pa.schema({"id": pa.int64(), "event_time": pa.timestamp("ms", "UTC"), "amount": pa.float64()})
    with pq.ParquetWriter(path, schema) as writer:
        for low in range(0, len(ids), size):
            part = ids[low : low + size]
            times = pa.array(1_577_836_800_000 + part % 86_400_000).cast(schema.field(1).type)
            columns = [pa.array(part), times, pa.array((part * 7_919 % 100_003) / 7)]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _spark_home(folder: Path) -> Path:
    """A folder that is as PySpark's, in whose `work` the workers of the cluster leave theirs."""
    folder.mkdir()
    for path in pyspark_folder().iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


def _ingest(root: Path, home: Path, path: Path, counts: dict[str, int]) -> Held:
    log = root / "gc.log"
    options = f"-Xlog:gc:file={log} -XX:InitiatingHeapOccupancyPercent=20"
    spark = {
        "master": "local-cluster[1,2,2048]",
        "driverMemory": f"{HEAP}m",
        "conf": {"spark.executor.memory": "2g", "spark.driver.extraJavaOptions": options},
    }
    tree = {"kind": "WorkspaceConfig", "version": 1, "content": {"spark": spark}}
    (root / ".odfchain" / "config.yaml").write_text(json.dumps(tree))
    command = [*COMMAND, "-w", str(root), "-q", "ingest", "-o", "json", "keyed", str(path)]
    begin = time.perf_counter()
    environment = os.environ | {"SPARK_HOME": str(home)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process,
        MemoryWatch(process.pid) as watch,
    ):
        output, _ = process.communicate()
    took = time.perf_counter() - begin
    assert process.returncode == 0, f"odfchain ingest ended with {process.returncode}"
    (row,) = json.loads(output)
    assert {op: row[op] for op in ("+A", "-R", "-C", "+C") if row[op]} == counts, row
    heap = max(float(n) * _UNITS[unit] for n, unit in _AFTER.findall(log.read_text()))
    with suppress(FileNotFoundError):
        log.unlink()
    return Held(took, watch.peak.driver, heap, watch.peak.workers)
