"""What merges hold in Python's memory: one that fits into a task, others that do not into two sizes of state.

Each is a command with a Java of its own. Its program is what the same command takes to merge a few rows.
`KERNELS_ROWS` (`100000000`) asks for the large one: so many rows of CSV in five releases of one list, each a
fifth of the rows with a tenth of them corrected, as snapshots with 4 GiB for Spark. It takes long, and some
120 bytes a row where temporary files go (12 GB for 100 million).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_memory import COMMAND
from event_rows import COLUMNS, MERGES, write_csv
from figures import Figure, seconds, spread, tell
from manifests import csv_step, push_manifest
from processes import MemoryWatch, Usage

from odfchain import Workspace

ROWS = 1_000_000
NEW, FEW = 500_000, 600
FITS, PARTS = 150 * ROWS, 32 << 20
"""`merge.taskBytes`; estimates are 96 bytes for a recorded row and the size of the file for new ones."""
FLAT = 1.25
LARGE_ROWS = int(os.environ.get("KERNELS_ROWS", "0"))
LARGE_ROW_BYTES, RELEASES = 120, 5


class Merges:
    """A workspace in which each merge is a process of its own, and is watched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workspace = Workspace.init(folder)

    def dataset(self, name: str, merge: str) -> None:
        """An empty one."""
        self._workspace.add(push_manifest(name, csv_step(COLUMNS), MERGES[merge]))

    def peak(
        self, name: str, keys: range, *, release: int = 0, share: float = 1.0, most: int = 0, heap: str = "2g"
    ) -> Usage:
        """Merge these rows, at most so many bytes in a task; returns the peaks of memory."""
        path = self._folder / "in.csv"
        write_csv(path, keys, release=release, share=share)
        content = {"merge": {"taskBytes": most}, "spark": {"driverMemory": heap}}
        tree = {"kind": "WorkspaceConfig", "version": 1, "content": content}
        (self._folder / ".odfchain" / "config.yaml").write_text(json.dumps(tree))
        command = [*COMMAND, "-w", str(self._folder), "-q", "ingest", name, str(path)]
        tell(f"merging {len(keys):,} rows into {name}")
        with (
            subprocess.Popen(command, env=os.environ | {"CI": "true"}, stdout=subprocess.DEVNULL) as process,
            MemoryWatch(process.pid) as watch,
        ):
            code = process.wait()
        if code:
            sys.exit(f"error: odfchain ingest ended with {code}")
        path.unlink()
        return watch.peak


def bench_held() -> Iterator[Figure]:
    """Peaks beyond the program, as multiples of what a task may merge, and of a smaller state's."""
    with tempfile.TemporaryDirectory() as root:
        merges = Merges(Path(root))
        merges.dataset("few", "upsert")
        program = merges.peak("few", range(FEW))
        found = []
        for rows in (ROWS, 4 * ROWS):
            name = f"state of {rows:,} keys".replace(" ", "-").replace(",", "")
            merges.dataset(name, "upsert")
            merges.peak(name, range(rows), most=1 << 30)
            if rows == ROWS:
                fits = merges.peak(name, range(ROWS * 9 // 10), release=1, most=FITS)
                beyond = fits.largest - program.largest
                yield Figure(
                    f"{ROWS * 9 // 10:,} rows into {ROWS:,} keys, which fit: the task ÷ `merge.taskBytes`",
                    beyond * (1 << 20) / FITS, "×", 2, remark=f"{beyond:.0f} MiB beyond the program's "
                    f"{program.largest:.0f}; merge.taskBytes {FITS >> 20} MiB",
                )  # fmt: skip
            held = merges.peak(name, range(NEW), release=2, most=PARTS)
            found.append(held.total - program.total)
            what = f"{NEW:,} rows into {rows:,} keys in parts of {PARTS >> 20} MiB: Python beyond the program"
            yield Figure(what, found[-1], "MiB", remark=f"{held.count} processes of Spark's")
        yield Figure("the same, four times as many keys ÷ once", found[1] / found[0], "×", FLAT)
    yield from _large(LARGE_ROWS) if LARGE_ROWS else ()


def _large(rows: int) -> Iterator[Figure]:
    keys, need = rows // RELEASES, LARGE_ROW_BYTES * rows
    with tempfile.TemporaryDirectory() as root:
        if shutil.disk_usage(root).free < need:
            sys.exit(f"error: {root} has less than {need / 1e9:.0f} GB free; set TMPDIR to another folder")
        merges, peaks, times = Merges(Path(root)), list[float](), list[float]()
        merges.dataset("large", "snapshot")

        def merge(release: int) -> None:
            held = merges.peak("large", range(keys), release=release, share=0.1, heap="4g")
            peaks.append(held.total)

        for release in range(RELEASES):
            times.append(seconds(lambda release=release: merge(release)))  # type: ignore[misc]
            tell(f"  {times[-1]:.0f} s, {peaks[-1]:.0f} MiB")
    what = f"{rows:,} rows in {keys:,} keys, 4 GiB for Spark"
    remark = f"{spread(times)} s for each of {RELEASES} releases, its file made included"
    yield Figure(what, sum(times), "s", remark=remark, samples=tuple(times))
    remark = f"{spread(peaks)} MiB"
    ratio = peaks[-1] / statistics.median(peaks[1:])
    yield Figure(f"{what}: Python, last release ÷ all after the first", ratio, "×", FLAT, remark=remark)
