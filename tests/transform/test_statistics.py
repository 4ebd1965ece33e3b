"""What a file says of its rows decides nothing: NaN is in no bounds, and the bounds of foreign files may be wrong."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.codec.arrow import from_arrow
from odfchain.codec.raw_arrow import encode_raw_arrow
from odfchain.digest.physical import hash_file
from odfchain.engine.inprocess import SparkTransformEngine
from odfchain.errors import UsageError
from odfchain.model import events as ev
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import StagedFile, commit
from odfchain.repo.dataset_state import DatasetState
from odfchain.slices.hashes import hash_parquet
from odfchain.spark.read import spark_path
from odfchain.spark.session import SparkEngine
from tests.kit.support import derivative, write_lying

if TYPE_CHECKING:
    from odfchain.api import Dataset, Workspace

MS = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", MS, nullable=False),
        pa.field("event_time", MS, nullable=False),
        pa.field("f", pa.float64()),
        pa.field("n", pa.int64()),
    ]
)
MADE = Timestamp.parse("2100-01-01T00:00:00Z")
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NAN, INF = math.nan, math.inf

ROOT = """
kind: DatasetSnapshot
version: 1
content: {name: numbers, kind: Root, metadata: []}
"""


def table_of(start: int, values: Sequence[float | None], ops: Sequence[int] | None = None) -> pa.Table:
    count = len(values)
    columns = [
        range(start, start + count),
        ops or [0] * count,
        [MADE.epoch_ms] * count,
        [START + dt.timedelta(minutes=start + i) for i in range(count)],
        list(values),
        range(start, start + count),
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def add_slice(dataset: Dataset, table: pa.Table, said: pa.Table | None = None) -> None:
    """Record a slice as a foreign writer made it; its watermark is a day after its rows."""
    files = dataset._files
    state = DatasetState.read(files.chain)
    events: list[ev.MetadataEvent] = []
    if state.schema is None:
        events.append(ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(from_arrow(SCHEMA))))
    with files.staging() as folder:
        path = folder / "made"
        if said is None:
            pq.write_table(table, path)
        else:
            write_lying(path, table, said)
        physical, size = hash_file(path)
        logical, rows = hash_parquet(path)
        start = table["offset"][0].as_py()
        new = ev.DataSlice(
            logical_hash=logical,
            physical_hash=physical,
            offset_interval=ev.OffsetInterval(start=start, end=start + rows - 1),
            size=size,
        )
        mark = Timestamp.from_epoch_ms(int((START + dt.timedelta(days=1 + start)).timestamp() * 1_000))
        event = ev.AddData(prev_offset=state.last_offset, new_data=new, new_watermark=mark)
        commit(files, state, [*events, event], [StagedFile(path, physical)], system_time=MADE)


SPECIAL = (NAN, -0.0, 0.0, INF, -INF, None)


def slices() -> Iterator[list[float | None]]:
    """Every special value alone, and first, in the middle and last among plain ones."""
    for value in SPECIAL:
        yield [value]
        for at in range(3):
            plain: list[float | None] = [1.0, 1.5]
            yield [*plain[:at], value, *plain[at:]]
    yield [*SPECIAL]


def greater(a: float | None, b: float) -> bool:
    """As SQL compares: NaN is the largest, null is nothing."""
    return a is not None and (math.isnan(a) if not a > b else True)


QUERIES = {
    "greater": ("f > 2", lambda f: greater(f, 2)),
    "atleast": ("f >= double('Infinity')", lambda f: f is not None and (math.isnan(f) or f == INF)),
    "less": ("f < 0", lambda f: f is not None and f < 0),
    "zero": ("f = 0.0D", lambda f: f == 0),
    "minuszero": ("f IN (-0.0D)", lambda f: f == 0),
    "nan": ("f = double('NaN')", lambda f: f is not None and math.isnan(f)),
    "none": ("f IS NULL", lambda f: f is None),
    "notone": ("f NOT IN (1.0D, 1.5D)", lambda f: f is not None and f not in (1, 1.5)),
}
TOTAL = "SELECT max(event_time) AS event_time, count(*) AS n FROM numbers WHERE f > 2 GROUP BY n % 2"


def query(where: str, name: str, columns: str = "event_time, f, n") -> str:
    return derivative(
        f"SELECT {columns} FROM numbers WHERE {where}", name=name, inputs="[{datasetRef: numbers}]"
    )


def test_special_values_in_every_place_of_a_slice(workspace: Workspace) -> None:
    """Slices with NaN are read one by one, as they are; the others all as one file."""
    (numbers,) = workspace.add(ROOT)
    every = " UNION ALL ".join(
        f"SELECT event_time, '{name}' AS name, n FROM numbers WHERE {where}"
        for name, (where, _) in QUERIES.items()
    )
    (found,) = workspace.add(derivative(every, name="found", inputs="[{datasetRef: numbers}]"), check=False)
    (total,) = workspace.add(derivative(TOTAL, name="total", inputs="[{datasetRef: numbers}]"), check=False)
    values: list[float | None] = []
    for rows in slices():
        add_slice(numbers, table_of(len(values), rows))
        values += rows
        if any(f is not None and math.isnan(f) for f in rows):
            found.pull()
    found.pull()
    total.pull()
    made = found.scan().to_arrow().to_pylist()
    for name, (_, holds) in QUERIES.items():
        wanted = [n for n, f in enumerate(values) if holds(f)]
        assert [row["n"] for row in made if row["name"] == name] == wanted, name
    net = sum(row["n"] * (1 if row["op"] in (0, 3) else -1) for row in total.scan().to_arrow().to_pylist())
    assert net == sum(row["name"] == "greater" for row in made)
    reports = workspace.verify([found, total], replay=True)
    assert [(r.alias, r.verdict, r.faults) for r in reports] == [(n, "clean", []) for n in ("found", "total")]


def test_slices_whose_bounds_lie(workspace: Workspace) -> None:
    """Wrong and truncated bounds, null counts, and operations that are said to be appends."""
    (numbers,) = workspace.add(ROOT)
    (large,) = workspace.add(
        query("f > 2", "large", "op, date_trunc('YEAR', event_time) AS event_time, f"), check=False
    )
    (small,) = workspace.add(query("f < 9 AND n < 3", "small"), check=False)
    for rows, said in (
        (table_of(0, [5.0, 7.0, 1.0]), table_of(90, [0.0, 1.0, 0.5])),
        (table_of(3, [3.0, 4.0]), table_of(0, [9.0, 9.0])),
        (table_of(5, [5.0, 7.0, 9.0], [1, 2, 3]), table_of(0, [1.0, 1.0, 1.0])),
    ):
        add_slice(numbers, rows, said)
        large.pull()
        small.pull()
    found = [(row["op"], row["f"]) for row in large.scan().to_arrow().to_pylist()]
    assert found == [(0, 5), (0, 7), (0, 3), (0, 4), (1, 5), (2, 7), (3, 9)]
    assert small.scan().to_arrow()["n"].to_pylist() == [0, 1, 2]


def test_a_preprocessing_query_over_parquet(workspace: Workspace, tmp_path: Path) -> None:
    text = """
kind: DatasetSnapshot
version: 1
content:
  name: read
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Parquet}
      preprocess: {kind: Sql, engine: spark, query: "SELECT event_time, f FROM input WHERE f > 2"}
      merge: {kind: Append}
"""
    (dataset,) = workspace.add(text)
    times = pa.array([START] * 4, MS)
    pq.write_table(pa.table({"event_time": times, "f": [NAN, 1.0, 2.5, NAN]}), tmp_path / "a.parquet")
    write_lying(
        tmp_path / "b.parquet",
        pa.table({"event_time": times, "f": [4.0] * 4}),
        pa.table({"event_time": times, "f": [1.0] * 4}),
    )
    dataset.ingest([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert len(dataset.scan().to_arrow()) == 3 + 4


def test_every_session_looks_at_every_row(engine: SparkEngine, tmp_path: Path) -> None:
    """That of merges and checkpoints, and both in which queries run."""
    transforms = SparkTransformEngine(lambda: engine.session)
    path = tmp_path / "rows.parquet"
    write_lying(path, table_of(0, [NAN, 5.0, None]), table_of(7, [1.0, 1.0, None]))
    for session in (engine.session, transforms.session(), transforms.session(interpreted=True)):
        frame = session.read.schema("f double, n bigint").parquet(spark_path(path))
        assert frame.where("f > 2 AND n < 5").count() == 2
        for reader in ("csv", "json"):
            assert session.conf.get(f"spark.sql.{reader}.filterPushdown.enabled") == "false"


def test_settings_that_decide_what_is_recorded_cannot_be_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"spark\.sql\.parquet\.filterPushdown is true.* it is always false"):
        SparkEngine(tmp_path, conf={"spark.sql.parquet.filterPushdown": "true"})
    SparkEngine(tmp_path, conf={"spark.sql.ansi.enabled": "true", "spark.ui.enabled": "true"}).close()
