"""Peak memory of the Python side of `odfchain ingest` (command and workers, not Java) as files grow.

Rows go from Spark to the slice in batches, so the peak must not follow the size of the file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, tell
from flight_rows import manifest, write_flights
from processes import PROC, MemoryWatch, Usage

from odfchain import Workspace

SIZES = {"200 MB": 200_000_000, "2 GB": 2_000_000_000}
DISK_FACTOR = 4
"""Free disk that is needed, as a multiple of the largest file: the file, Spark's sorting, and the slice."""

TARGET = 1_024
"""At most so much at the peak [MiB]."""

FLAT = 1.25
"""At most this multiple for a file ten times as large."""

COMMAND = (sys.executable, "-c", "from odfchain.cli.main import run; run()")
"""What the installed `odfchain` runs, with this Python."""


def ingest(folder: Path, dataset: str, csv: Path, rows: int) -> Usage:
    """Ingest with the command as a user would; returns the peak. The rows it reports are checked."""
    command = [*COMMAND, "-w", str(folder), "-q", "ingest", "-o", "json", dataset, str(csv)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, MemoryWatch(process.pid) as watch:
        output, _ = process.communicate()
    assert process.returncode == 0, f"odfchain ingest ended with {process.returncode}"
    assert json.loads(output)[0]["+A"] == rows
    return watch.peak


def bench_memory() -> Iterator[Figure]:
    """The peak for a small and for a large file, and the second as a multiple of the first."""
    if not PROC.is_dir():
        tell("memory: not measured, there is no /proc here")
        return
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        need = DISK_FACTOR * max(SIZES.values())
        if shutil.disk_usage(folder).free < need:
            sys.exit(
                f"error: {folder.parent} has less than {need / 1e9:.0f} GB free; set TMPDIR to another folder"
            )
        peaks = []
        workspace = Workspace.init(folder)
        for number, (name, size) in enumerate(SIZES.items()):
            csv = folder / "flights.csv"
            tell(f"writing a CSV file of {name}")
            rows = write_flights(csv, size=size)
            dataset = f"flights-{number}"
            workspace.add(manifest(dataset))
            tell(f"ingesting its {rows:,} rows")
            peak = ingest(folder, dataset, csv, rows)
            csv.unlink()
            workspace.delete(dataset)
            peaks.append(peak.total)
            remark = f"command {peak.driver:.0f}, {peak.count} processes of Spark's {peak.workers:.0f} MiB"
            yield Figure(f"peak of Python, append of {name}", peak.total, "MiB", TARGET, remark=remark)
        yield Figure("peak of Python, 2 GB ÷ 200 MB", peaks[-1] / peaks[0], "×", FLAT, remark="1 is flat")
