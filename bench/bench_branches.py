"""Branches: diffs, merges, states and what checks them, beside dolt, DuckDB and Arrow in the same run.

dolt is found by its name or in `DOLT`; without it there are no figures beside it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from bench_query import command, compared, in_turns
from figures import Figure, tell
from recorded_rows import MADE, TIME, declare, record_slice

from odfchain import Dataset, Timestamp, Workspace
from odfchain.branches.branches import BlockGraph
from odfchain.branches.foreign_keys import ForeignKeys, Rows
from odfchain.odf.events import SetInfo
from odfchain.storage import fsio
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import block_at

ROWS, CHANGES, ROUNDS = 1_000_000, 10_000, 5
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", TIME, nullable=False),
        pa.field("event_time", TIME, nullable=False),
        pa.field("key", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("elevation", pa.int64()),
        pa.field("note", pa.string()),
    ]
)
MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: Csv, header: true, schema: [key BIGINT, name STRING, elevation BIGINT, note STRING]}}
      merge: {{kind: Snapshot, primaryKey: [key]}}
"""
CONSTRAINTS = """    - kind: SetAttachments
      attachments:
        kind: Embedded
        items:
          - path: CONSTRAINTS.yaml
            content: "foreignKeys: [{columns: [elevation], references: {dataset: parent}}]"
"""
Values = np.ndarray  # of a column


def append(files: DatasetFiles, op: Values, key: Values, changed: Values) -> None:
    """A slice with these operations on these keys; `changed` rows have another elevation."""
    start = DatasetState.read(files.chain).record_count
    made = np.full(len(op), MADE.epoch_ms)
    notes = pc.binary_join_element_wise("a note on number", as_text(key % 999), " ")
    offsets, names = (
        np.arange(start, start + len(op)),
        pc.binary_join_element_wise("name of", as_text(key), " "),
    )
    values = [offsets, op, made, made, key, names, key % 9_000 + changed, notes]
    columns = [
        v if isinstance(v, pa.Array) else pa.array(v, f.type) for v, f in zip(values, SCHEMA, strict=True)
    ]
    record_slice(files, pa.table(columns, schema=SCHEMA), watermark=MADE)


def as_text(numbers: Values) -> pa.Array:
    """Numbers as their digits."""
    return pa.array(numbers).cast(pa.string())


def change(files: DatasetFiles, keys: Values, *, before: int, after: int) -> None:
    """Correct these keys, in one slice."""
    op = np.tile(np.array([2, 3]), len(keys))
    append(files, op, np.repeat(keys, 2), np.tile(np.array([before, after]), len(keys)))


def made(workspace: Workspace, name: str, rows: int) -> Dataset:
    """A root of so many keys, and a branch; each side has changed others of them."""
    (dataset,) = workspace.add(MANIFEST.format(name=name))
    files = dataset._files
    declare(files, SCHEMA)
    # one slice: of several, the first merge would make the state checkpoint that is due
    append(files, np.zeros(rows), np.arange(rows), np.zeros(rows, dtype=int))
    dataset.create_branch("theirs")
    step = rows // CHANGES
    change(files, np.arange(CHANGES) * step, before=0, after=1)
    change(files.on("theirs"), np.arange(CHANGES) * step + 1, before=0, after=2)
    return dataset


def copied(folder: Path) -> Callable[[], Path]:
    """A workspace anew each time, by links: merges change it."""
    number = iter(range(1_000))

    def run() -> Path:
        target = folder.parent / f"{folder.name}-{next(number)}"
        subprocess.run(["cp", "-al", folder, target], check=True)
        for path in [*target.rglob("refs/*"), *target.rglob("info/*")]:
            if path.is_file():  # what is replaced or written in place must not be shared
                shutil.copy2(path, path.with_suffix(".own"))
                path.with_suffix(".own").replace(path)
        return target

    return run


def merged_each_time(folder: Path, name: str) -> dict[str, list[float]]:
    """Seconds of `merge`, and of `verify` of what it made, on a fresh copy each."""
    fresh, times = copied(folder), {"merge": list[float](), "verify": list[float]()}
    for _ in range(ROUNDS):
        where = fresh()
        with Workspace.open(where) as workspace:
            target = str(workspace[name].head)
        for what, args in (("merge", ("theirs",)), ("verify", ("--from", target))):
            start = time.perf_counter()
            command(where, what, name, *args)()
            times[what].append(time.perf_counter() - start)
        shutil.rmtree(where)
    return times


def sizes(root: Path) -> Iterator[Figure]:
    """Diffs and merges of 10,000 changes on each side, whole commands, over bases of different size."""
    found: dict[int, dict[str, list[float]]] = {}
    for rows in (100_000, ROWS, 10 * ROWS):
        folder = root / f"rows-{rows}"
        with Workspace.init(folder) as workspace:
            tell(f"branches: recording {rows:,} rows")
            made(workspace, "d", rows)
        ask = command(folder, "diff", "d", "theirs", "-o", "csv")
        ask()
        times = in_turns({"diff": ask, "list": command(folder, "list")}, ROUNDS)
        found[rows] = {**times, **merged_each_time(folder, "d")}
    for what in ("diff", "merge"):
        times = {f"{rows:,} rows": found[rows][what] for rows in (100_000, 10 * ROWS)}
        yield compared(
            f"{what}, 10,000,000 rows ÷ 100,000 with the same changes",
            times,
            "10,000,000 rows",
            "100,000 rows",
            1.2,
        )
    yield compared(
        "verify of a merge (check 17) ÷ the merge, 1,000,000 rows", found[ROWS], "verify", "merge", 1.5
    )
    yield from beside_dolt(root, found[ROWS])


def beside_dolt(root: Path, ours: dict[str, list[float]]) -> Iterator[Figure]:
    """The same commands of dolt on as many rows with as many changes."""
    dolt = os.environ.get("DOLT") or shutil.which("dolt")
    if dolt is None:
        for what in ("diff", "merge"):
            middle = statistics.median(ours[what])
            yield Figure(f"{what} of 1,000,000 rows (no dolt here)", middle, "s", samples=tuple(ours[what]))
        return
    folder, home = root / "dolt", root / "dolt-home"
    folder.mkdir()
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "DOLT_ROOT_PATH": str(home)}

    def run(*args: str) -> None:
        subprocess.run([dolt, *args], cwd=folder, env=env, check=True, capture_output=True)

    def table(keys: Values, changed: int) -> str:
        path = folder / "rows.csv"
        pacsv.write_csv(
            pa.table({
                "key": keys, "name": [f"name of {k}" for k in keys], "elevation": keys % 9_000 + changed,
                "note": [f"a note on number {k % 999}" for k in keys],
            }), path,
        )  # fmt: skip
        return str(path)

    tell("branches: the same in dolt")
    for key, value in (("user.name", "b"), ("user.email", "b@example.org")):
        run("config", "--global", "--add", key, value)
    run("init")
    run("table", "import", "-c", "--pk", "key", "d", table(np.arange(ROWS), 0))
    run("add", ".")
    run("commit", "-m", "base")
    run("branch", "theirs")
    step = ROWS // CHANGES
    for branch, first, changed in (("main", 0, 1), ("theirs", 1, 2)):
        run("checkout", branch)
        run("table", "import", "-u", "d", table(np.arange(CHANGES) * step + first, changed))
        run("add", ".")
        run("commit", "-m", branch)
    run("checkout", "main")
    theirs: dict[str, list[float]] = {"diff": [], "merge": []}
    for _ in range(3):
        for what, steps in (
            ("diff", [("diff", "main", "theirs")]),
            ("merge", [("merge", "theirs"), ("add", "."), ("commit", "-m", "merged")]),
        ):
            start = time.perf_counter()
            for args in steps:
                run(*args)
            theirs[what].append(time.perf_counter() - start)
        run("reset", "--hard", "HEAD~1")
    version = subprocess.run([dolt, "version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    for what in ("diff", "merge"):
        times = {"ours": ours[what], f"dolt {version}": theirs[what]}
        yield compared(f"{what} of 1,000,000 rows ÷ dolt", times, "ours", f"dolt {version}", 0.1)


def references(root: Path) -> Iterator[Figure]:
    """Making a branch, and finding the base of two long ones."""
    with Workspace.init(root / "long") as workspace:
        (dataset,) = workspace.add(MANIFEST.format(name="long"))
        files = dataset._files
        tell("branches: a chain of 100,000 blocks")
        long_chain(files, 90_000)
        dataset.create_branch("theirs")
        long_chain(files, 10_000)
        long_chain(files.on("theirs"), 10_000)
        names = iter(range(1_000_000))
        times = in_turns(
            {
                "create": lambda: dataset.create_branch(f"b-{next(names)}"),
                "head move": lambda: durable_move(files.folder),
            },
            50,
        )
        yield compared(
            "branch create at 100,000 blocks ÷ one durable head move", times, "create", "head move", 2
        )
        heads = [h for ref in ("head", "theirs") if (h := files.on(ref).chain.head()) is not None]
        assert len(heads) == 2
        found = in_turns(
            {"base": lambda: BlockGraph(files, ["theirs"]).best_common(heads[:1], heads[1:])}, 50
        )["base"]
        yield Figure(
            "merge base, 100,000 blocks, fork 10,000 back", statistics.median(found) * 1_000, "ms", 10,
            samples=tuple(found),
        )  # fmt: skip


def long_chain(files: DatasetFiles, blocks: int) -> None:
    for start in range(0, blocks, 5_000):
        state = DatasetState.read(files.chain)
        events = [SetInfo(description=f"{start + n}") for n in range(min(5_000, blocks - start))]
        commit(files, state, events, [], system_time=Timestamp.now())


def durable_move(folder: Path) -> None:
    fsio.replace_file(folder / "info" / "moved", b"f1620" + b"0" * 64)


def states(root: Path) -> Iterator[Figure]:
    """States of 1,000,000 keys with corrections: cold beside DuckDB, kept ones beside reading a file."""
    with Workspace.init(root / "states") as workspace:
        tell("branches: states")
        (dataset,) = workspace.add(MANIFEST.format(name="s"))
        files = dataset._files
        declare(files, SCHEMA)
        append(files, np.zeros(ROWS), np.arange(ROWS), np.zeros(ROWS, dtype=int))
        for part in range(19):
            change(files, np.arange(part, ROWS, 100), before=0, after=part + 1)
        paths = [files.data.locate(ref.slice.physical_hash) for ref in dataset.summary.slices()]
        con = duckdb.connect()
        con.execute(f"set threads = {os.cpu_count()}")
        window = f"""select * from (select * from read_parquet({paths!r})
            qualify row_number() over (partition by key order by "offset" desc) = 1) where op in (0, 3)"""
        kept = files.folder / "info" / "states"

        def cold() -> None:
            shutil.rmtree(kept, ignore_errors=True)
            assert len(dataset.state().to_arrow()) == ROWS

        times = in_turns({"ours": cold, "DuckDB": lambda: con.sql(window).to_arrow_table()}, ROUNDS)
        yield compared("state of 1,380,000 rows, cold ÷ DuckDB", times, "ours", "DuckDB", 1)
        (one,) = [path for path in kept.rglob("f1620*") if path.is_file()]
        times = in_turns(
            {"kept": lambda: dataset.state().to_arrow(), "read_table": lambda: pq.read_table(one)}, ROUNDS
        )
        yield compared("a state that was kept ÷ pq.read_table", times, "kept", "read_table", 1.2)


def after_merges(root: Path) -> Iterator[Figure]:
    """A state after 5 and after 100 merges, and verification of a merge beside it."""
    found = {}
    with Workspace.init(root / "merged") as workspace:
        tell("branches: 100 merges")
        dataset = made(workspace, "m", 200_000)
        files = dataset._files
        for number in range(1, 101):
            dataset.merge("theirs")
            if number in (5, 100):
                found[number] = block_at(files, DatasetState.read(files.chain).head)
            change(files.on("theirs"), np.arange(100) * 1_999 + 3, before=number - 1, after=number)
        kept = files.folder / "info" / "states"

        def state(number: int) -> Callable[[], object]:
            def run() -> None:
                shutil.rmtree(kept, ignore_errors=True)
                dataset.state(at=found[number]).to_arrow()

            return run

        times = in_turns({"100 merges": state(100), "5 merges": state(5)}, ROUNDS)
        yield compared("state after 100 merges ÷ after 5", times, "100 merges", "5 merges", 1.3)


def foreign_keys(root: Path) -> Iterator[Figure]:
    """New rows that refer to a dataset of 1,000,000 keys, beside reading these keys once."""
    with Workspace.init(root / "keys") as workspace:
        tell("branches: foreign keys")
        parent = made(workspace, "parent", ROWS)._files
        (dataset,) = workspace.add(MANIFEST.format(name="child") + CONSTRAINTS)
        child = dataset._files
        declare(child, SCHEMA)
        append(child, np.zeros(CHANGES), np.arange(CHANGES), np.zeros(CHANGES, dtype=int))
        rows = Rows.after(child, None, DatasetState.read(child.chain))
        slices = DatasetState.read(parent.chain).slices()
        paths = [parent.data.locate(ref.slice.physical_hash) for ref in slices]

        def check() -> None:
            assert ForeignKeys.of(workspace._files).judge(rows) == []

        def read() -> None:
            for path in paths:
                pq.read_table(path, columns=["key"])

        times = in_turns({"check": check, "read": read}, 4 * ROUNDS)
        yield compared("foreign keys of 10,000 rows ÷ reading 1,000,000 keys", times, "check", "read", 1.3)


def bench_branches() -> Iterator[Figure]:
    """Figures of branches; results are checked by the tests, here they are timed."""
    with tempfile.TemporaryDirectory(prefix="odf-") as folder:
        root = Path(folder)
        yield from references(root)
        yield from states(root)
        yield from after_merges(root)
        yield from foreign_keys(root)
        yield from sizes(root)
