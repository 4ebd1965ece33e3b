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

from odfchain.api.workspace import Workspace
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit import root_rows
from tests.kit.root_rows import MADE, START, records, schema_with

SCHEMA = schema_with(pa.field("k", pa.string()), pa.field("v", pa.int64()))

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
    start = DatasetState.read(root.chain).record_count
    times = [START + dt.timedelta(hours=hour) for _, hour, _, _ in rows]
    columns = [k for *_, k, _ in rows], [v for *_, v in rows]
    table = records(SCHEMA, start, [op for op, *_ in rows], times, *columns)
    mark = START + dt.timedelta(hours=watermark)
    root_rows.append(root, table, Timestamp.from_epoch_ms(int(mark.timestamp() * 1_000)))


def add_roots(workspace: Workspace) -> tuple[DatasetFiles, DatasetFiles]:
    """`readings` and `places`, without rows."""
    readings, places = (root_rows.add_root(workspace, name, SCHEMA) for name in BOTH)
    return readings, places


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
