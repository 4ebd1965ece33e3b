"""Makes `fixtures/chains/rules-1.zip`: datasets whose steps were recorded by the first rules of the engine.

The archive was made before there were other rules. It is never made again: what it proves is that the steps which it
holds keep their meaning. Run as a script it makes an archive of the same form at the path that it is given.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.api import Workspace
from odfchain.codec.arrow import from_arrow
from odfchain.codec.raw_arrow import encode_raw_arrow
from odfchain.digest.physical import hash_file
from odfchain.model import events as ev
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import StagedFile, commit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.slices.hashes import hash_parquet

MS = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", MS, nullable=False),
        pa.field("event_time", MS, nullable=False),
        pa.field("k", pa.string()),
        pa.field("v", pa.int64()),
    ]
)
MADE = Timestamp.parse("2100-01-01T00:00:00Z")

Row = tuple[int, int, str, int]
"""Operation, hours after the start of 2024, key, value."""

READINGS: list[tuple[list[Row], int]] = [
    ([(0, 1, "x", 1), (0, 5, "y", 2), (0, 3, "x", 4)], 5),
    ([(0, 2, "y", 8), (0, 6, "x", 3), (0, 30, "x", 5), (0, 31, "y", 5)], 31),
    ([(0, 4, "x", 9), (0, 32, "y", 1), (0, 55, "x", 2)], 54),
    ([(0, 56, "y", 6), (0, 80, "x", 7)], 80),
]
"""What is appended in each step, with the watermark [h]; some rows come late."""

PLACES: list[tuple[list[Row], int]] = [
    ([(0, 0, "x", 10), (0, 0, "y", 20), (0, 0, "z", 30)], 0),
    ([(2, 0, "y", 20), (3, 24, "y", 21), (0, 24, "w", 40)], 24),
    ([(1, 0, "z", 30), (2, 24, "y", 21), (3, 48, "y", 22)], 48),
    ([(0, 72, "z", 31), (1, 24, "w", 40)], 72),
]
"""A list that is corrected: each release has its own event time, and is the watermark."""

BOTH = ("readings", "places")
QUERIES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "plain": (("readings",), "", "SELECT event_time, op, k, v * 2 AS v FROM readings"),
    "daily": (
        ("readings",), "",
        ("SELECT window(event_time, '1 day').start AS event_time, k, sum(v) AS v FROM readings "
        "GROUP BY window(event_time, '1 day'), k"),
    ),
    "sessions": (
        ("readings",), "",
        ("SELECT session_window(event_time, '2 hours').start AS event_time, k, count(*) AS n FROM readings "
        "GROUP BY session_window(event_time, '2 hours'), k"),
    ),
    "followed": (
        ("readings",), "",
        ("SELECT x.event_time, x.k, x.v, y.v AS w FROM readings AS x LEFT JOIN readings AS y ON x.k = y.k "
        "AND y.event_time > x.event_time AND y.event_time <= x.event_time + INTERVAL 2 HOURS"),
    ),
    "totals": (
        ("places",), "", "SELECT max(event_time) AS event_time, count(*) AS n, sum(v) AS v, k FROM places GROUP BY k",
    ),
    "top": (
        ("readings",), "",
        ("SELECT event_time, k, v, place FROM (SELECT event_time, k, v, "
        "row_number() OVER (ORDER BY v DESC, offset) AS place FROM readings) WHERE place <= 2"),
    ),
    "best": (
        BOTH, "",
        "SELECT event_time, k, v FROM readings WHERE v < (SELECT max(v) FROM places)",
    ),
    "busiest": (
        ("readings",), "",
        ("SELECT max(event_time) AS event_time, k, max(n) AS n FROM (SELECT window(event_time, '6 hours').start AS "
        "event_time, k, count(*) AS n FROM readings GROUP BY window(event_time, '6 hours'), k) GROUP BY k"),
    ),
    "placed": (
        BOTH, "places",
        ("SELECT r.event_time, r.k, r.v, p.v AS place FROM readings AS r JOIN places AS p ON r.k = p.k "
        "AND r.event_time >= p.__valid_from AND (p.__valid_to IS NULL OR r.event_time < p.__valid_to)"),
    ),
}  # fmt: skip
"""(inputs, temporal table with the key `k`, SQL) by name: one or more of every kind."""


def manifest(name: str) -> str:
    """The definition of a derivative."""
    inputs, versions, sql = QUERIES[name]
    named = ", ".join(f"{{datasetRef: {i}, alias: {i}}}" for i in inputs)
    tables = f", temporalTables: [{{name: {versions}, primaryKey: [k]}}]" if versions else ""
    return (
        f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: Derivative\n  metadata:\n"
        f"    - {{kind: SetTransform, inputs: [{named}], transform: {{kind: Sql, engine: spark, "
        f"query: {sql!r}{tables}}}}}\n"
    )


def append(root: DatasetFiles, rows: list[Row], watermark: int) -> None:
    """A transaction of a root."""
    state = DatasetState.read(root.chain)
    start = 0 if state.last_offset is None else state.last_offset + 1
    begin = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    columns = [
        range(start, start + len(rows)),
        [op for op, *_ in rows],
        [MADE.epoch_ms] * len(rows),
        [begin + dt.timedelta(hours=hour) for _, hour, _, _ in rows],
        [k for *_, k, _ in rows],
        [v for *_, v in rows],
    ]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    mark = begin + dt.timedelta(hours=watermark)
    with root.staging() as folder:
        path = folder / "rows"
        pq.write_table(table, path)
        (physical, size), (logical, _) = hash_file(path), hash_parquet(path)
        data = ev.DataSlice(
            logical_hash=logical,
            physical_hash=physical,
            offset_interval=ev.OffsetInterval(start=start, end=start + len(rows) - 1),
            size=size,
        )
        event = ev.AddData(
            prev_offset=state.last_offset,
            new_data=data,
            new_watermark=Timestamp.from_epoch_ms(int(mark.timestamp() * 1_000)),
        )
        commit(root, state, [event], [StagedFile(path, physical)], system_time=MADE)


def add_roots(workspace: Workspace) -> tuple[DatasetFiles, DatasetFiles]:
    """`readings` and `places`, without rows."""
    roots = []
    for name in BOTH:
        text = f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {name}, kind: Root, metadata: []}}\n"
        files = workspace.add(text)[0]._files
        schema = ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(SCHEMA)))
        commit(files, DatasetState.read(files.chain), [schema], [], system_time=MADE)
        roots.append(files)
    return roots[0], roots[1]


def make(workspace: Workspace) -> None:
    """The roots, and all that is made of them, step by step."""
    readings, places = add_roots(workspace)
    made = [workspace.add(manifest(name), check=False)[0] for name in QUERIES]
    for one, other in zip(READINGS, PLACES, strict=True):
        append(readings, *one)
        append(places, *other)
        for dataset in made:
            dataset.pull(system_time=MADE)


def main(target: Path) -> None:
    """Write the archive: the datasets of a workspace, without their keys."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "made"
        workspace = Workspace.init(folder)
        make(workspace)
        workspace.close()
        shutil.rmtree(folder / ".odfchain" / "keys")
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((folder / ".odfchain").rglob("*")):
                if path.is_file():
                    entry = zipfile.ZipInfo(str(path.relative_to(folder)))
                    archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
