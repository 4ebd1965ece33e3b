"""Frames in and out: native DataFrames of any session, and frames that are ingested, each batch once."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain as odf
import odfchain.spark
from odfchain.spark.session import SparkEngine
from tests.kit.query_datasets import CASES, make
from tests.kit.support import push_source, snapshot

DATASETS = CASES["datasets"]
LEDGER = {"kind": "Ledger", "primaryKey": ["id"]}


def pushed(workspace: odf.Workspace, merge: dict[str, Any]) -> odf.Dataset:
    (dataset,) = workspace.add(snapshot("orders", push_source(merge, "NdJson")))
    return dataset


def test_a_native_frame_is_what_a_scan_is(workspace: odf.Workspace, engine: SparkEngine) -> None:
    session = engine.session.newSession()
    session.conf.set("spark.sql.parquet.filterPushdown", "true")
    session.conf.set("spark.sql.caseSensitive", "false")
    make(workspace, "x", DATASETS["x"])
    make(workspace, "keyless", DATASETS["keyless"])
    frame = odfchain.spark.read(session, workspace["x"])
    assert frame.sparkSession is session
    assert dict(frame.dtypes)["offset"] == "bigint"
    assert frame.count() == 8
    path = workspace.path.parent / "x"
    for source, key in ((path, "x"), (str(path.with_name("keyless")), "keyless")):
        now = odfchain.spark.read(session, source, state=True, columns=["offset"])
        expected = workspace[key].state(["offset"], key=workspace[key].summary.primary_key).to_arrow()
        assert sorted(row.offset for row in now.collect()) == expected["offset"].to_pylist()
    early = odfchain.spark.read(session, path, state=True, at="2026-01-10T10:30:00Z", columns=["city", "pop"])
    assert sorted(map(tuple, early.collect())) == [("a", 1000), ("b", 2000), ("c", 3000)]
    # read where it is, without its workspace
    folder = workspace["x"].path
    assert odfchain.spark.read(session, folder.as_uri()).count() == 8
    with odf.open_dataset(str(folder), at=3) as opened:
        assert odfchain.spark.read(session, opened, state=True).count() == 3
        with pytest.raises(odf.errors.UsageError, match="one block already"):
            odfchain.spark.read(session, opened, at=2)
    with pytest.raises(odf.errors.UsageError, match="expected a dataset or the path of one, got int"):
        odfchain.spark.read(session, 7)
    with pytest.raises(odf.errors.DatasetNotFoundError):
        odfchain.spark.read(session, path.with_name("y"))


def test_statistics_decide_nothing_in_sessions_of_others(
    workspace: odf.Workspace, engine: SparkEngine
) -> None:
    """1.0 and NaN: by the bounds of the file nothing in it is larger than 2."""
    session = engine.session.newSession()
    session.conf.set("spark.sql.parquet.filterPushdown", "true")
    made, rows = "2026-01-10T09:00:00Z", [["+A", "2026-01-01", v] for v in (1.0, float("nan"))]
    blocks = [{"at": made, "columns": [["v", "float64"]]}, {"at": made, "rows": rows}]
    make(workspace, "floats", {"made": made, "blocks": blocks})
    assert odfchain.spark.read(session, workspace["floats"]).where("v > 2.0").count() == 1


def orders(*numbers: int) -> pa.Table:
    time = dt.datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "amount": pa.array([None] * len(numbers), pa.decimal128(18, 2)),
            "event_time": pa.array([time] * len(numbers), pa.timestamp("ms", "UTC")),
        }
    )


def test_a_batch_is_ingested_once(workspace: odf.Workspace, engine: SparkEngine) -> None:
    dataset = pushed(workspace, {"kind": "Append"})
    frame = engine.session.newSession().createDataFrame(orders(1, 2))
    first = dataset.ingest_frame(frame, batch=("orders", 0))
    assert not first.up_to_date
    assert (first.inputs[0].file, first.inputs[0].rows) == ("the frame", 2)
    state = dataset.summary.source_state
    assert (state.kind, json.loads(state.value)) == ("odfchain/batch", {"orders": 0})
    # a process that died after the commit brings the batch again, and others may have written meanwhile
    dataset.ingest_frame(orders(7))
    dataset.ingest_frame(orders(8), batch=("other", 4))
    again = dataset.ingest_frame(frame, batch=("orders", 0))
    assert again.up_to_date
    assert again.head == dataset.head
    assert not dataset.ingest_frame(orders(3), batch=("orders", 1)).up_to_date
    assert dataset.ingest_frame(orders(3), batch=("other", 4)).up_to_date
    assert dataset.ingest_frame(orders(), batch=("orders", 9)).up_to_date
    found = dataset.scan().to_arrow()
    assert found["id"].to_pylist() == [1, 2, 7, 8, 3]
    assert found.schema.field("amount").type == pa.decimal128(18, 2)
    assert found.schema.field("event_time").type == pa.timestamp("ms", "UTC")
    dataset.verify().raise_if_faulty()


def test_frames_pass_the_same_guards(workspace: odf.Workspace, engine: SparkEngine, tmp_path: Path) -> None:
    dataset = pushed(workspace, LEDGER)
    # several tasks, and rows in the order of the frame
    frame = engine.session.range(100, numPartitions=3).selectExpr("id", "timestamp '2026-01-01' event_time")
    assert dataset.ingest_frame(frame).inputs[0].rows == 100
    assert dataset.scan(["id"]).to_arrow()["id"].to_pylist() == list(range(100))
    head = dataset.head
    assert dataset.ingest_frame(frame).up_to_date
    with pytest.raises(odf.errors.BadInputError, match="the frame"):
        dataset.ingest_frame(pa.table({"id": [1000, 1000], "v": ["a", "b"]}), batch=("s", 0))
    with pytest.raises(odf.errors.QueryError, match="the frame"):
        dataset.ingest_frame(frame.selectExpr("cast('a' || id as bigint) id", "event_time"))
    with pytest.raises(odf.errors.UsageError, match="expected a data frame"):
        dataset.ingest_frame([1, 2])
    with pytest.raises(odf.errors.UsageError, match="a number"):
        dataset.ingest_frame(frame, batch=("s", -1))
    with pytest.raises(TypeError, match="input_format"):
        dataset.ingest_frame(frame, input_format="csv")  # type: ignore[call-arg]
    assert dataset.head == head


def test_a_stream_writes_by_foreach_batch(
    workspace: odf.Workspace, engine: SparkEngine, tmp_path: Path
) -> None:
    """Killed after the commit of its second batch and before its acknowledgement: no row comes twice."""
    dataset = pushed(workspace, {"kind": "Append"})
    source = tmp_path / "source"
    source.mkdir()
    session = engine.session
    died = False

    def ingest(frame: Any, number: int) -> None:
        nonlocal died
        dataset.ingest_frame(frame, batch=("numbers", number))
        if number == 1 and not died:
            died = True
            raise RuntimeError("gone")

    def run() -> None:
        stream = session.readStream.schema("id bigint, event_time timestamp").option("maxFilesPerTrigger", 1)
        query = (
            stream.json(str(source))
            .writeStream.foreachBatch(ingest)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in range(3):
        (source / f"{number}.json").write_text(f'{{"id": {number}, "event_time": "2026-01-01T00:00:00Z"}}\n')
    with pytest.raises(Exception, match="gone"):
        run()
    assert dataset.scan(["id"]).to_arrow().num_rows == 2
    run()
    assert sorted(dataset.scan(["id"]).to_arrow()["id"].to_pylist()) == [0, 1, 2]
