"""A large append as several slices and as one: beside each other, beside Spark, and into an object store.

Spark reads the same file, puts it in the same order and writes it: as one file beside one slice, as many
beside many. CPU seconds are those of this process and all below it (Java, workers): on few cores both ways
keep all of them busy, and the seconds say what more cores could gain. From Parquet there is no text to parse,
which both ways do alike. The store is the one of the tests, in a process of its own, whose CPU is told apart.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from event_rows import COLUMNS, MERGES, write_csv
from figures import Figure, seconds, tell
from manifests import csv_step, push_manifest
from processes import cpu_seconds, cpu_seconds_of_tree

from odfchain import Workspace

ROWS = int(os.environ.get("SLICES_ROWS", "5_000_000"))
ROUNDS = int(os.environ.get("SLICES_ROUNDS", "3"))
SLICES = 8
SLICE_BYTES = ROWS * 9
_STORE = """
import sys
from tests.kit.small_s3 import SmallS3
with SmallS3() as store:
    print(store.port, flush=True)
    sys.stdin.read()
"""
_READ = {"csv": csv_step(COLUMNS), "parquet": "{kind: Parquet}"}


class Timed:
    """Wall and CPU seconds of what is run in turns; a first round warms up."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def run(self, name: str, work: Callable[[], object]) -> None:
        """Once more."""
        before = cpu_seconds_of_tree(os.getpid())
        self.wall.setdefault(name, []).append(seconds(work))
        self.cpu.setdefault(name, []).append(cpu_seconds_of_tree(os.getpid()) - before)
        tell(f"  {name}: {self.wall[name][-1]:.1f} s, {self.cpu[name][-1]:.1f} s of CPU")

    def ratio(self, name: str, one: str, other: str, target: float | None = None) -> Iterator[Figure]:
        """Medians as multiples, in time and in CPU."""
        for what, found, limit in (("", self.wall, target), (", CPU", self.cpu, None)):
            ours, theirs = (statistics.median(found[each][1:] or found[each]) for each in (one, other))
            remark = f"{ours:.1f} s against {theirs:.1f} s"
            yield Figure(f"{name}{what}", ours / theirs, "×", limit, remark=remark)


def bench_slices() -> Iterator[Figure]:
    """Eight slices beside one, from CSV and from Parquet, beside Spark, and into a store."""
    with tempfile.TemporaryDirectory() as root, _store() as url:
        folder = Path(root)
        files = {form: folder / f"large.{form}" for form in _READ}
        tell(f"writing {ROWS:,} rows as CSV and as Parquet")
        _write(files)
        timed = Timed()
        with Workspace.init(folder / "here") as here, Workspace.init(folder / "there", store=url) as there:
            for turn in range(ROUNDS + 1):
                for form in _READ:
                    for what, most in (("several", SLICE_BYTES), ("one", 0)):
                        work = functools.partial(_ingest, here, f"{what}-{form}-{turn}", files[form], most)
                        timed.run(f"{what} {form}", work)
                    for count in (SLICES, 1):
                        timed.run(
                            f"spark {form} {count}", functools.partial(_rewrite, here, files[form], count)
                        )
                work = functools.partial(_ingest, there, f"stored-{turn}", files["csv"], SLICE_BYTES)
                timed.run("store", work)
    for form, target in (("CSV", 0.75), ("Parquet", None)):
        name = form.lower()
        yield from timed.ratio(
            f"append from {form}, eight slices ÷ one", f"several {name}", f"one {name}", target
        )
        for what, count in (("eight slices", SLICES), ("one slice", 1)):
            ours = f"{'several' if count > 1 else 'one'} {name}"
            label = f"append from {form}, {what} ÷ Spark reading, sorting, writing"
            yield from timed.ratio(label, ours, f"spark {name} {count}", 1.25)
    yield from timed.ratio("append, eight slices, store on loopback ÷ folder", "store", "several csv", 1.3)


def _write(files: dict[str, Path]) -> None:
    write_csv(files["csv"], range(ROWS))
    types = {"count": pa.int32(), "event_time": pa.timestamp("ms", "UTC")}
    table = pcsv.read_csv(files["csv"], convert_options=pcsv.ConvertOptions(column_types=types))
    pq.write_table(table, files["parquet"])


def _ingest(workspace: Workspace, name: str, path: Path, max_bytes: int) -> None:
    settings = f"kind: WorkspaceConfig\nversion: 1\ncontent: {{slice: {{maxBytes: {max_bytes}}}}}\n"
    (workspace.path / "config.yaml").write_text(settings)
    merge = MERGES["append"]
    (dataset,) = workspace.add(push_manifest(name, _READ[path.suffix[1:]], merge))
    (found,) = dataset.ingest([path]).inputs
    assert found.slices == (SLICES if max_bytes else 1)
    workspace.delete(name)


def _rewrite(workspace: Workspace, path: Path, files: int) -> None:
    session, target = workspace.session(), path.with_name("spark-out")
    reader = session.read.schema(", ".join(f"`{n}` {t}" for n, t in COLUMNS.items()))
    frame = reader.csv(str(path), header=True) if path.suffix == ".csv" else session.read.parquet(str(path))
    spread = frame.repartition(1) if files == 1 else frame.repartitionByRange(files, "event_time")
    spread.sortWithinPartitions("event_time").write.parquet(str(target))
    shutil.rmtree(target)


@contextmanager
def _store() -> Iterator[str]:
    """The URL of a store, whose process ends with the block."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    command, root = [sys.executable, "-c", _STORE], Path(__file__).parents[1]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"s3+http://127.0.0.1:{int(server.stdout.readline())}/bucket/bench"
        print(f"  CPU of the store in all: {cpu_seconds(server.pid):.1f} s", file=sys.stderr)
        server.communicate()
