"""Changes as rows: the same ones, in the same order, as a Snapshot ingest writes."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from odfchain.branches.row_diff import net_of, rows_of_changes
from odfchain.odf.events import DatasetVocabulary
from odfchain.slices.ordering import order_of
from tests.kit.support import manifest

if TYPE_CHECKING:
    from pathlib import Path

    from odfchain.api.workspace import Workspace
    from odfchain.spark.session import SparkEngine

NAMES = DatasetVocabulary()
SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.string())])


NAN = float("nan")
MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["", "a", "B", "ä", "\uffff", "\U00010000", "a\0", None]),
    "bytes": (pa.binary(), [b"", b"\x7f", b"\x80", b"\xff\x00", None]),
    "double": (pa.float64(), [NAN, -float("inf"), -0.0, 1.5, float("inf"), None]),
    "single": (pa.float32(), [NAN, 0.0, -1.5, None]),
    "number": (pa.int32(), [-1, 0, 2**31 - 1, None]),
    "truth": (pa.bool_(), [True, False, None]),
    "time": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT + dt.timedelta(microseconds=1), None]),
    "day": (pa.date32(), [dt.date(1900, 1, 1), dt.date(2024, 1, 1), None]),
    "exact": (pa.decimal128(20, 2), [decimal.Decimal("-1.5"), decimal.Decimal(7), None]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, None], [1, 2], [0, 9], None]),
    "pair": (
        pa.struct([("x", pa.string()), ("y", pa.float64())]),
        [{"x": None, "y": 1.0}, {"x": "a", "y": NAN}, {"x": "a", "y": 2.0}, {"x": "b", "y": None}, None],
    ),
}


def test_keys_have_the_order_of_spark(engine: SparkEngine) -> None:
    """Of one column and of three, for all types that a key may have."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    chance = random.Random(7)
    count = 400
    table = pa.table(
        {name: pa.array(chance.choices(values, k=count), kind) for name, (kind, values) in COLUMNS.items()}
    ).append_column("row", pa.array(range(count), pa.int64()))
    keys = [[name] for name in COLUMNS] + [chance.sample(list(COLUMNS), 3) for _ in range(2)]
    frame = engine.session.createDataFrame(table).coalesce(1)
    places = [F.row_number().over(Window.orderBy(*key, "row")).alias(str(n)) for n, key in enumerate(keys)]
    found = pa.Table.from_batches(frame.select("row", *places).toArrow().to_batches()).sort_by("row")
    for number, key in enumerate(keys):
        expected = np.argsort(found.column(str(number)).to_numpy())
        assert order_of(table, [*key, "row"]).tolist() == expected.tolist(), key


@pytest.mark.soak
def test_the_same_rows_as_a_snapshot_writes(workspace: Workspace, tmp_path: Path) -> None:
    """Two lists of random rows: what the second one writes is what lies between them."""
    chance = random.Random(11)
    columns = '["k STRING", "n DOUBLE", "a STRING", "b BIGINT"]'
    (dataset,) = workspace.add(manifest("{kind: Snapshot, primaryKey: [k, n]}", columns, name="cities"))
    words = ["a", "B", "ä", "\uffff", "\U00010000", "zz", ""]
    for number in range(2):
        keys = {(chance.choice(words) + str(chance.randint(0, 9)), chance.randint(-9, 9)) for _ in range(150)}
        lines = [f"{k},{n or ''},{chance.choice(words)},{chance.randint(0, 1)}" for k, n in keys]
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["k,n,a,b", *lines]) + "\n", encoding="utf-8")
        dataset.ingest(path, allow_retract=True, event_time="2024-01-01T00:00:00Z")
    table = dataset.scan().to_arrow()
    first, second = dataset.summary.slices()
    data = table.drop_columns(["offset", "op", "system_time"])
    operations = table["op"].to_numpy()
    begin, count = second.slice.offset_interval.start, second.slice.offset_interval.count
    net = net_of(operations[begin:], data.slice(begin), ("k", "n"))
    rows = rows_of_changes(net, dataset.summary.vocabulary)
    assert count > 150
    assert rows["op"].to_pylist() == operations[begin:].tolist()
    assert rows.drop_columns(["op"]).to_pylist() == data.slice(begin).to_pylist()
    assert first.slice.offset_interval.count == begin
