"""Slices that need not be read: what a condition saves, and what keeping statistics of footers costs."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, tell
from recorded_rows import MADE, history, record

from odfchain import Dataset, Workspace
from odfchain.branches.recording import stage_changes
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.profiles.manifests import manifest_of
from odfchain.slices.writer import ObservedParquet
from odfchain.workspace import read_slices
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import KeptFooters

ROWS, SLICES = 10_000_000, 100
LINES = 100_000
COMMITS = 40
ROUNDS = 7


def bench_skipping() -> Iterator[Figure]:
    """One of a hundred slices against all of them, manifests against bare footers, and commits."""
    with tempfile.TemporaryDirectory() as folder, Workspace.init(folder) as workspace:
        tell(f"recording {ROWS:,} rows in {SLICES} slices")
        dataset = record(workspace, "log", history(ROWS, SLICES, 1_000_000))
        yield from _queries(workspace, dataset)
        yield from _manifests(dataset)
        yield from _commits(workspace)


def _queries(workspace: Workspace, dataset: Dataset) -> Iterator[Figure]:
    size = ROWS // SLICES
    first = Timestamp(MADE.epoch_ns + 40 * size * 10**6)
    last = Timestamp(MADE.epoch_ns + (41 * size - 1) * 10**6)
    where = f"event_time BETWEEN '{first}' AND '{last}'"
    sql = "SELECT count(*), sum(amount), max(name) FROM log"

    def asked(text: str) -> Callable[[], object]:
        return lambda: workspace.sql(text).to_arrow()

    assert workspace.sql(f"{sql} WHERE {where}").slices.read == 1
    yield _ratio("query for 1 of 100 slices ÷ for all", asked(f"{sql} WHERE {where}"), asked(sql), 0.1)
    columns = ["amount", "name"]
    yield _ratio(
        "scan(where=) of 1 of 100 slices ÷ of all",
        lambda: dataset.scan(columns, where=where).to_arrow(),
        lambda: dataset.scan(columns).to_arrow(),
        0.1,
    )


def _manifests(dataset: Dataset) -> Iterator[Figure]:
    files, state = dataset._files, dataset.summary
    paths = [files.data.locate(ref.slice.physical_hash) for ref in state.slices()]
    for ref in state.slices():
        files.data.verified_path(ref.slice.physical_hash)

    def cold() -> None:
        KeptFooters(files).path.unlink(missing_ok=True)
        read_slices._lines_in.cache_clear()
        manifest_of(files, state)

    def bare() -> None:
        for path in paths:
            pq.read_metadata(path)

    remark = "hashed before; CPU"
    yield _ratio("cold manifest ÷ loop of pq.read_metadata", cold, bare, 1.5, remark)
    yield _ratio(
        "warm manifest ÷ loop of pq.read_metadata", lambda: manifest_of(files, state), bare, 0.1, remark
    )


def _commits(workspace: Workspace) -> Iterator[Figure]:
    with_lines = record(workspace, "with-lines", history(10, 1, 10))
    without = record(workspace, "without", history(10, 1, 10))
    took: dict[bool, list[float]] = {True: [], False: []}
    rows = next(iter(history(10_000, 1, 10_000, seed=2))).drop_columns(["offset", "system_time"])
    for _ in range(COMMITS):
        for dataset, kept in ((with_lines, True), (without, False)):
            patch = contextlib.nullcontext() if kept else mock.patch.object(ObservedParquet, "footer", None)
            with patch:
                took[kept].append(_commit(dataset, rows))
    value = statistics.median(took[True]) / statistics.median(took[False])
    yield Figure("commit with kept statistics ÷ without (CPU)", value, "×", 1.05, remark="10,000 rows")
    name, text = Multihash.sha3_256(bytes(32)), "x" * 400
    few = _seconds(lambda: KeptFooters(with_lines._files).keep([(name, text)]))
    line = b"00000000 " + text.encode() + b"\n"
    KeptFooters(with_lines._files).path.write_bytes(line * LINES)
    many = _seconds(lambda: KeptFooters(with_lines._files).keep([(name, text)]))
    yield Figure(f"a line beside {LINES:,} ÷ beside few", many / few, "×", 1.5)


def _commit(dataset: Dataset, rows: pa.Table) -> float:
    files = dataset._files
    state = DatasetState.read(files.chain)
    began = time.process_time()
    at = state.next_system_time()
    with files.staging() as staging:
        stage_changes(files, state, rows, staging=staging, system_time=at).commit(files, state, at)
    return time.process_time() - began


def _ratio(
    name: str, one: Callable[[], object], other: Callable[[], object], target: float, remark: str = "CPU"
) -> Figure:
    """The time of one ÷ the other [CPU], each round of both beside each other."""
    one(), other()
    pairs = [(_seconds(one, 1), _seconds(other, 1)) for _ in range(ROUNDS)]
    ratios = tuple(sorted(a / b for a, b in pairs))
    mine, its = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
    remark = f"{ratios[0]:.3f} … {ratios[-1]:.3f}; {remark}: {mine:.1f} of {its:.1f} ms"
    return Figure(name, statistics.median(ratios), "×", target, remark=remark, samples=ratios)


def _seconds(run: Callable[[], object], calls: int = 200) -> float:
    """CPU of one call [s]."""
    began = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - began) / calls
