"""Profiles: of a whole dataset, of a commit, of every commit, and how far two are apart."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bench_query import in_turns
from figures import Figure, seconds, tell
from flight_rows import flights, manifest, write_flights
from recorded_rows import MADE, SCHEMA, declare, paths_of, record_slice

from odfchain import Dataset, Workspace
from odfchain.profiles.published import KeptParts
from odfchain.slices.reader import data_batches
from odfchain.workspace.dataset_state import DatasetState

ODFCHAIN = Path(sys.executable).parent / "odfchain"
ROWS, ADDED = 1_336_500, 13_500
"""Of the slice that is there, and of the one that a commit adds: together 1.35 million."""
DAYS, DAY_ROWS = 4, 100_000
ROUNDS, COMMAND_ROUNDS = 3, 9
LEFT_OUT = ("year", "minute")
"""So that profiles have 18 columns, with the event time."""


def rows(first: int, count: int, seed: int) -> pa.Table:
    """Recorded flights: numbers, texts and times as they are after an ingestion."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(first, first + count)
    system_columns = list(SCHEMA)[:4]
    values = [offsets, np.zeros(count), np.full(count, MADE.epoch_ms), MADE.epoch_ms + offsets]
    system = [pa.array(v.astype(np.int64)).cast(f.type) for v, f in zip(values, system_columns, strict=True)]
    table, columns = flights(rng, count), {f.name: v for f, v in zip(system_columns, system, strict=True)}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_string(column.type):
            column = pc.if_else(pc.equal(column, "NA"), None, column)
            if name == "time_hour":
                column = pc.strptime(column, format="%Y-%m-%dT%H:%M:%SZ", unit="ms")
            elif name.endswith(("time", "delay")):
                column = column.cast(pa.int32())
        else:
            column = column.cast(pa.int32())
        columns[name] = column
    return pa.table(columns).drop_columns(list(LEFT_OUT))


def profiled(dataset: Dataset, *, fresh: bool, near_duplicates: bool = False) -> None:
    """The profile, with or without what is kept of slices."""
    if fresh:
        shutil.rmtree(KeptParts(dataset._files).folder, ignore_errors=True)
    found = dataset.profile(near_duplicates=near_duplicates)
    assert found.document["near_duplicate_estimate"] is not None or not near_duplicates


def whole(dataset: Dataset) -> Iterator[Figure]:
    """Everything that is here, beside reading it."""

    def scan() -> None:
        dataset.scan().to_spark().write.format("noop").mode("overwrite").save()

    def read() -> None:
        assert sum(batch.num_rows for path in paths_of(dataset) for batch in data_batches(Path(path)))

    scan()
    near = partial(profiled, dataset, fresh=True, near_duplicates=True)
    runs: dict[str, Callable[[], object]] = {
        "scan": scan,
        "read": read,
        "profile": partial(profiled, dataset, fresh=True),
        "near": near,
    }
    found = in_turns(runs, ROUNDS)
    took = {name: statistics.median(times) for name, times in found.items()}
    said = f"{took['profile']:.2f} s; by Spark {took['scan']:.2f} s, by Arrow alone {took['read']:.2f} s"
    samples = tuple(found["profile"])
    yield Figure(
        "profile of 1.35 M rows, 18 columns ÷ scan into nothing", took["profile"] / took["scan"], "×", 2.0,
        remark=said, samples=samples,
    )  # fmt: skip
    yield Figure(
        "the same with near duplicates", took["near"] / took["scan"], "×", 4, remark=f"{took['near']:.2f} s"
    )
    yield from added(dataset, took["profile"])


def added(dataset: Dataset, whole_profile: float) -> Iterator[Figure]:
    """A commit that adds 1 %: what is kept of older slices is used."""
    profiled(dataset, fresh=True)
    newest = next(DatasetState.read(dataset._files.chain).slices_newest_first()).slice.physical_hash
    part = KeptParts(dataset._files).folder / f"{newest}.arrow"
    took = []
    for _ in range(ROUNDS):
        part.unlink()
        took.append(seconds(partial(profiled, dataset, fresh=False)))
    middle = statistics.median(took)
    yield Figure(
        "profile of a commit that adds 1 % ÷ whole profile", middle / whole_profile, "×", 0.1,
        remark=f"{middle:.3f} s", samples=tuple(took),
    )  # fmt: skip


def commits(folder: Path) -> Iterator[Figure]:
    """Days of flights, ingested with and without a profile of each commit."""
    files = []
    for day in range(DAYS):
        files.append(folder / f"day-{day}.csv")
        write_flights(files[-1], rows=DAY_ROWS)
    found: dict[str, list[float]] = {"demand": [], "commit": []}
    opened = {}
    for when in found:
        opened[when] = Workspace.init(folder / when)
        settings = f"kind: WorkspaceConfig\nversion: 1\ncontent: {{snapshots: {{profile: {when}}}}}\n"
        (opened[when]._files.root / "config.yaml").write_text(settings, encoding="utf-8")
        opened[when].add(manifest("flights"))
    for file in files:
        for when, workspace in opened.items():
            found[when].append(seconds(partial(workspace["flights"].ingest, [file])))
    for workspace in opened.values():
        workspace.close()
    # the first has the start of the session
    took = {when: statistics.median(times[1:]) for when, times in found.items()}
    yield Figure(
        f"ingest of {DAY_ROWS:,} rows with profile ÷ without", took["commit"] / took["demand"], "×", 1.5,
        remark=f"{took['commit']:.2f} s against {took['demand']:.2f} s", samples=tuple(found["commit"]),
    )  # fmt: skip


def commands(folder: Path) -> Iterator[Figure]:
    """Two profiles that are here, compared by a command."""

    def run(*args: str) -> None:
        done = subprocess.run([ODFCHAIN, *args], cwd=folder, check=False, capture_output=True)
        assert done.returncode in (0, 3), done.stderr

    diff = partial(run, "diff", "--profile", "flights")
    diff()
    found = in_turns({"version": partial(run, "version"), "diff": diff}, COMMAND_ROUNDS)
    took = {name: statistics.median(times) for name, times in found.items()}
    yield Figure(
        "`diff --profile` ÷ `version`", took["diff"] / took["version"], "×", 1.3,
        remark=f"{took['diff']:.2f} s against {took['version']:.2f} s", samples=tuple(found["diff"]),
    )  # fmt: skip


def bench_profiles() -> Iterator[Figure]:
    """All of them."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        tell(f"recording {ROWS + ADDED:,} rows")
        with Workspace.init(folder / "large") as workspace:
            text = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: flights, kind: Root, metadata: []}\n"
            (dataset,) = workspace.add(text)
            for number, table in enumerate((rows(0, ROWS, 1), rows(ROWS, ADDED, 2))):
                if not number:
                    declare(dataset._files, table.schema)
                record_slice(dataset._files, table, compression="zstd")
            yield from whole(dataset)
            yield from commands(folder / "large")
        yield from commits(folder)
