"""What a file says of its rows decides nothing: NaN is in no bounds, and the bounds of foreign files may be wrong."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import UsageError
from odfchain.odf.times import Timestamp
from odfchain.spark.input_frames import spark_path
from odfchain.spark.session import SparkEngine
from odfchain.transform.spark_engine import SparkTransformEngine
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.root_rows import START, TIME, add_root, append, records, schema_with
from tests.kit.support import check_replay, derivative, manifest, write_lying

SCHEMA = schema_with(pa.field("f", pa.float64()), pa.field("n", pa.int64()))
NAN, INF = math.nan, math.inf


def table_of(start: int, values: Sequence[float | None], ops: Sequence[int] | None = None) -> pa.Table:
    numbers = range(start, start + len(values))
    times = [START + dt.timedelta(minutes=number) for number in numbers]
    return records(SCHEMA, start, ops or [0] * len(values), times, values, numbers)


def add_slice(dataset: DatasetFiles, table: pa.Table, said: pa.Table | None = None) -> None:
    """Record a slice as a foreign writer made it; its watermark is a day after its rows."""
    mark = START + dt.timedelta(days=1 + table["offset"][0].as_py())
    append(dataset, table, Timestamp.from_epoch_ms(int(mark.timestamp() * 1_000)), said)


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


def derived(workspace: Workspace, query: str, name: str) -> Dataset:
    text = derivative(query, name=name, inputs="[{datasetRef: numbers}]")
    return workspace.add(text, check=False)[0]


def test_special_values_in_every_place_of_a_slice(workspace: Workspace) -> None:
    """Slices with NaN are read one by one, as they are; the others all as one file."""
    numbers = add_root(workspace, "numbers", SCHEMA)
    every = " UNION ALL ".join(
        f"SELECT event_time, '{name}' AS name, n FROM numbers WHERE {where}"
        for name, (where, _) in QUERIES.items()
    )
    found, total = derived(workspace, every, "found"), derived(workspace, TOTAL, "total")
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
    check_replay(found)
    check_replay(total)


def test_slices_whose_bounds_lie(workspace: Workspace) -> None:
    """Wrong and truncated bounds, null counts, and operations that are said to be appends."""
    numbers = add_root(workspace, "numbers", SCHEMA)
    of_year = "SELECT op, date_trunc('YEAR', event_time) AS event_time, f FROM numbers WHERE f > 2"
    large = derived(workspace, of_year, "large")
    small = derived(workspace, "SELECT event_time, f, n FROM numbers WHERE f < 9 AND n < 3", "small")
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
    query = "preprocess: {kind: Sql, engine: spark, query: 'SELECT event_time, f FROM input WHERE f > 2'}"
    text = manifest(schema="~", kind="Parquet").replace("      merge", f"      {query}\n      merge")
    (dataset,) = workspace.add(text)

    def with_values(*values: float) -> pa.Table:
        return pa.table({"event_time": pa.array([START] * len(values), TIME), "f": values})

    pq.write_table(with_values(NAN, 1.0, 2.5, NAN), tmp_path / "a.parquet")
    write_lying(tmp_path / "b.parquet", with_values(*[4.0] * 4), with_values(*[1.0] * 4))
    dataset.ingest([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert len(dataset.scan().to_arrow()) == 3 + 4


def test_every_session_looks_at_every_row(
    engine: SparkEngine, transforms: SparkTransformEngine, tmp_path: Path
) -> None:
    """That of merges and checkpoints, and both in which queries run."""
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
