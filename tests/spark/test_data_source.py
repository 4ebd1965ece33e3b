"""`format("odf")`: a dataset as Spark reads it, from folder, server and bucket, at one block, and as a stream."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.spark.session import SparkEngine
from tests.kit.query_datasets import make
from tests.kit.stand_ins import BUCKET, simulated_s3
from tests.kit.support import ROOT
from tests.kit.web_peers import by_threads

FIRST = [["city", "string"], ["population", "int64"]]
COLUMNS = [*FIRST, ["big", "uint64"], ["x", "float64"], ["parts", "list"]]
ROWS = [
    {"at": "2026-01-10T09:00:00Z", "columns": FIRST},
    {"at": "2026-01-10T10:00:00Z", "rows": [["+A", "2026-01-01", "a", 1000], ["+A", "2026-01-02", "b", 2000]]},
    {"at": "2026-01-10T11:00:00Z", "columns": COLUMNS},
    {"at": "2026-01-10T12:00:00Z", "rows": [["-C", "2026-01-02", "b", 2000], ["+C", "2026-01-02", "b", 2500, 2**63 + 5, 0.5, [1, None]]]},
    {"at": "2026-01-10T13:00:00Z", "rows": [["+A", "2026-01-03", "c", 3000, 7, 2.0, []]]},
]  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> odf.Dataset:
    workspace = odf.init(tmp_path / "here")
    make(workspace, "cities", {"made": "2026-01-10T09:00:00Z", "blocks": ROWS})
    return workspace["cities"]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with simulated_s3() as address:
        yield address


def read(engine: SparkEngine, **options: str) -> Any:
    return engine.session.read.format("odf").options(**options)


def as_spark_has_them(dataset: odf.Dataset) -> list[dict[str, Any]]:
    """All rows, with decimals for the large whole numbers."""
    rows = dataset.scan().to_arrow().to_pylist()
    return [{**row, "big": row["big"] and Decimal(row["big"])} for row in rows]


@pytest.mark.parametrize("by", ["folder", "http"])
def test_42_rows_and_types_are_the_same_wherever_the_dataset_is(
    engine: SparkEngine, dataset: odf.Dataset, tmp_path: Path, by: str
) -> None:
    place = tmp_path / "there" / "cities"
    dataset.push(place.as_uri())
    with by_threads(place.parent) as web:
        frame = read(engine).load(place.as_uri() if by == "folder" else web.publish(place).text)
        found = frame.orderBy("offset").toArrow().to_pylist()
    assert frame.schema.simpleString() == (
        "struct<offset:bigint,op:smallint,system_time:timestamp,event_time:timestamp,city:string,"
        "population:bigint,big:decimal(20,0),x:double,parts:array<bigint>>"
    )
    assert found == as_spark_has_them(dataset)


def test_42_a_bucket_is_read_by_tasks_that_know_only_their_part(
    dataset: odf.Dataset, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have the environment that Java was started with, so the tasks are run here, from their bytes."""
    from pyspark.cloudpickle import dumps

    from pyspark_odf import DefaultSource

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    place = f"s3+{moto}/{BUCKET}/{tmp_path.name}/cities"
    dataset.push(place)
    for cache in ({}, {"cachedir": str(tmp_path / "cache")}):
        source = pickle.loads(dumps(DefaultSource({"path": place} | cache)))  # noqa: S301 - what Spark does
        schema = source.schema()
        reader = pickle.loads(dumps(source.reader(schema)))  # noqa: S301 - what Spark does
        tasks = pickle.loads(dumps(reader.partitions()))  # noqa: S301 - what Spark does
        assert len(tasks) == 3
        found = pa.Table.from_batches([batch for task in tasks for batch in reader.read(task)])
        assert found.to_pylist() == as_spark_has_them(dataset)
    assert len(list((tmp_path / "cache" / "data").iterdir())) == 3


@pytest.mark.soak
def test_43_a_schema_chooses_columns_and_filters_may_be_handed_over(
    engine: SparkEngine, dataset: odf.Dataset
) -> None:
    place = str(dataset.path)
    chosen = read(engine).schema("population bigint, city string").load(place)
    assert chosen.columns == ["population", "city"]
    assert chosen.where("population > 2000").orderBy("population").collect() == [(2500, "b"), (3000, "c")]
    setting = "spark.sql.python.filterPushdown.enabled"
    assert read(engine, filterPushdown="false").load(place).where("offset = 4").count() == 1
    engine.session.conf.set(setting, "true")
    try:
        pruned = read(engine, filterPushdown="true").load(place)
        later = pruned.where("offset >= 3 and city <> 'x'").orderBy("offset").collect()
        assert [row.city for row in later] == ["b", "c"]
        assert pruned.where("x > 1.0").count() == 1
        assert read(engine).load(place).where("offset = 4").count() == 1
    finally:
        engine.session.conf.unset(setting)
    assert read(engine).load(place).count() == 5
    with pytest.raises(Exception, match="has no column 'town'"):
        read(engine).schema("town string").load(place).count()
    with pytest.raises(Exception, match="'city' is string, and int was asked for"):
        read(engine).schema("city int").load(place).count()


def test_one_frame_is_one_block(engine: SparkEngine, dataset: odf.Dataset) -> None:
    place = str(dataset.path.parent.parent.parent)
    frame = read(engine, dataset="cities").load(place)
    assert [
        read(engine, dataset="cities", **{name: text}).load(place).count()
        for name, text in (("point", "2"), ("asAt", "2026-01-10T12:30:00Z"), ("block", str(dataset.head)))
    ] == [2, 4, 5]
    state = read(engine, dataset="cities", projection="state").load(place)
    rows = state.select("offset", "city").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(0, "a"), (3, "b"), (4, "c")]
    last = dataset.summary.slices()[-1].slice.physical_hash
    path = Path(dataset._files.data.locate(last))
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with pytest.raises(Exception, match="hashes to"):
        frame.collect()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"colour": "red"}, "no option 'colour'"),
        ({"point": "1", "asAt": "2026"}, "say the same thing"),
        ({"projection": "all"}, "records or state"),
        ({"verify": "perhaps"}, "true or false"),
        ({"point": "99"}, "no block 99"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    dataset: odf.Dataset, options: dict[str, str], says: str
) -> None:
    from pyspark_odf.pinned import pin

    with pytest.raises(odf.OdfchainError, match=says):
        pin({"path": str(dataset.path)} | {name.lower(): text for name, text in options.items()})


def test_writing_is_refused_with_the_way(engine: SparkEngine) -> None:
    with pytest.raises(Exception, match=r"not written by format|ingest_frame"):
        engine.session.range(1).write.format("odf").mode("append").save("/tmp/x")


def test_large_slices_are_split_and_many_are_folded(dataset: odf.Dataset) -> None:
    import dataclasses

    from odfchain.odf.events import OffsetInterval
    from pyspark_odf.pinned import pin
    from pyspark_odf.rows import MOST_TASKS, Piece, pieces_of, tasks_of

    pinned = pin({"path": str(dataset.path)})
    (item, *_) = pinned.slices
    large = dataclasses.replace(item, size=256 << 20, offsets=OffsetInterval(start=0, end=(4 << 20) + 4))
    found = pieces_of(dataclasses.replace(pinned, slices=(large,)))
    assert [(p.low, p.high) for p in found] == [(0, 2 << 20), (2 << 20, 4 << 20), (4 << 20, (4 << 20) + 5)]
    remote = dataclasses.replace(
        pinned, slices=(large,), origin=dataclasses.replace(pinned.origin, folder=None)
    )
    assert len(pieces_of(remote)) == 1
    many = tasks_of([Piece(item, n, n + 1) for n in range(25_000)])
    assert len(many) <= MOST_TASKS
    assert [p.low for task in many for p in task] == list(range(25_000))


def test_values_of_every_type_are_carried() -> None:
    from pyspark_odf.rows import carried

    for values, kind, target, expected in (
        ([5, None], pa.time32("ms"), pa.int64(), [5, None]),
        ([5, None], pa.time64("us"), pa.int64(), [5, None]),
        ([5], pa.duration("ms"), pa.int64(), [5]),
        ([None], pa.null(), pa.string(), [None]),
        ([2**64 - 1], pa.uint64(), pa.decimal128(20, 0), [2**64 - 1]),
        ([[1, None], None], pa.list_(pa.uint8()), pa.list_(pa.int16()), [[1, None], None]),
        ([[1, 2]], pa.list_(pa.uint8(), 2), pa.list_(pa.int16()), [[1, 2]]),
        (
            [{"a": 1}, None],
            pa.struct([("a", pa.time32("s"))]),
            pa.struct([("a", pa.int64())]),
            [{"a": 1}, None],
        ),
        (
            [[("k", 1)], None],
            pa.map_(pa.string(), pa.uint8()),
            pa.map_(pa.string(), pa.int16()),
            [[("k", 1)], None],
        ),
    ):
        made = pa.StructArray.from_arrays(
            [pa.array([v["a"] if v else None for v in values], pa.int32()).cast(pa.time32("s"))],
            ["a"], mask=pa.array([v is None for v in values]),
        ) if pa.types.is_struct(kind) else (
            pa.array(values, pa.int32() if kind == pa.time32("ms") else pa.int64()).cast(kind)
            if pa.types.is_time(kind) or pa.types.is_duration(kind) else pa.array(values, kind)
        )  # fmt: skip
        for offset in (0, len(made) - 1):
            found = carried(made.slice(offset), target)
            assert (found.type, found.to_pylist()) == (target, expected[offset:])


def test_row_groups_are_left_out_only_where_bounds_can_be_believed(tmp_path: Path) -> None:
    from pyspark.sql import datasource as d

    from pyspark_odf.pruning import may_hold

    table = pa.table({"n": [1, 5], "v": [1.0, float("nan")], "s": ["b", "d"], "z": pa.array([None, 1])})
    pq.write_table(table, tmp_path / "x.parquet")
    group = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
    for wanted, expected in (
        (d.EqualTo(("n",), 6), False), (d.EqualTo(("n",), 3), True), (d.GreaterThan(("n",), 5), False),
        (d.GreaterThanOrEqual(("n",), 5), True), (d.LessThan(("n",), 1), False), (d.LessThanOrEqual(("n",), 1), True),
        (d.In(("n",), (0, 9)), False), (d.In(("s",), ("c",)), True), (d.EqualTo(("s",), "a"), False),
        (d.GreaterThan(("v",), 2.0), True), (d.EqualTo(("v",), 9.0), True), (d.IsNull(("n",)), False),
        (d.IsNull(("z",)), True), (d.IsNotNull(("z",)), True), (d.Not(d.EqualTo(("n",), 1)), True),
        (d.EqualTo(("n",), 6.0), True), (d.EqualTo(("absent",), 1), True), (d.StringStartsWith(("s",), "z"), True),
    ):  # fmt: skip
        assert may_hold(group, wanted) is expected, wanted


def stream(engine: SparkEngine, place: str, folder: Path) -> Any:
    frame = engine.session.readStream.format("odf").option("maxRecordsPerTrigger", "2")
    return (
        frame.schema("offset bigint, city string").load(place).writeStream.format("json")
        .option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )  # fmt: skip


def written(folder: Path) -> list[int]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["offset"] for line in lines)


def test_44_a_stream_gives_each_record_once_and_refuses_a_rewritten_history(
    engine: SparkEngine, dataset: odf.Dataset, tmp_path: Path
) -> None:
    place = str(dataset.path)
    first = stream(engine, place, tmp_path).start()
    first.awaitTermination(60)
    assert written(tmp_path) == [0, 1, 2, 3, 4]
    batches = [json.loads(progress.json) for progress in first.recentProgress]
    ends = [batch["sources"][0]["endOffset"] for batch in batches if batch["numInputRows"]]
    assert [end["offset"] for end in ends] == [1, 3, 4]
    # killed after the last batch was planned and written, before that was noted: it is done again
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        if path.name.strip(".").startswith("2"):
            path.unlink()
    stream(engine, place, tmp_path).start().awaitTermination(60)
    assert written(tmp_path) == [0, 1, 2, 3, 4]
    old = dataset.head
    dataset.reset(4, force=True)
    with pytest.raises(Exception, match=f"{old}.*{dataset.head}"):
        stream(engine, place, tmp_path).start().awaitTermination(60)
    assert written(tmp_path) == [0, 1, 2, 3, 4]


def test_44_batches_end_at_slices_where_the_limit_allows(dataset: odf.Dataset) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from pyspark_odf import DefaultSource

    def reader(**options: str) -> Any:
        source = DefaultSource({"path": str(dataset.path)} | options)
        return source.streamReader(source.schema())

    earliest = reader()
    start = earliest.initialOffset()
    head = dataset.head
    names = dataset._files.chain.hashes(head)
    assert start == {"offset": -1, "block": str(names[0])}
    for most, expected in ((1, 0), (2, 1), (3, 1), (4, 3), (5, 4), (99, 4)):
        assert earliest.latestOffset(start, ReadMaxRows(most))["offset"] == expected, most
    end = earliest.latestOffset(start, ReadAllAvailable())
    assert end == {"offset": 4, "block": str(names[-1])}
    assert earliest.latestOffset(end, ReadAllAvailable()) == end
    assert earliest.partitions(end, end) == []
    one = {"offset": 0, "block": str(names[2])}
    worker = pickle.loads(pickle.dumps(earliest))  # noqa: S301 - what Spark does
    rows = [batch.to_pylist() for task in earliest.partitions(one, end) for batch in worker.read(task)]
    assert [row["offset"] for batch in rows for row in batch] == [1, 2, 3, 4]
    assert reader(startingoffset="latest").initialOffset() == end
    assert reader(startingoffset="3").initialOffset()["offset"] == 2
    with pytest.raises(odf.errors.UsageError, match="startingOffset"):
        reader(startingoffset="7").initialOffset()
    with pytest.raises(odf.errors.UsageError, match="no projection"):
        reader(projection="state")
    earliest.stop()


KILLED = """
import sys
from pyspark.sql import SparkSession
place, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.readStream.format("odf").option("maxRecordsPerTrigger", "1").schema("offset bigint, city string").load(place)
def seen(rows, number):
    rows.write.mode("append").json(folder + "/out")
    print("batch", number, flush=True)
    sys.stdin.readline()  # until it is killed
frame.writeStream.option("checkpointLocation", folder + "/checkpoint").foreachBatch(seen).start().awaitTermination()
"""


@pytest.mark.soak
def test_44_a_stream_that_is_killed_goes_on_where_it_was(
    engine: SparkEngine, dataset: odf.Dataset, tmp_path: Path
) -> None:
    """Killed after a batch was written and before that was noted: the batch comes again, with the same rows."""
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(dataset.path), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "batch 0\n"
        os.killpg(process.pid, signal.SIGKILL)
    before = written(tmp_path)
    batches: dict[int, list[int]] = {}

    def seen(rows: Any, number: int) -> None:
        batches[number] = sorted(row.offset for row in rows.collect())

    frame = engine.session.readStream.format("odf").option("maxRecordsPerTrigger", "1")
    query = (
        frame.schema("offset bigint, city string").load(str(dataset.path)).writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(60)
    assert batches[0] == before == [0]
    assert [offset for number in sorted(batches) for offset in batches[number]] == [0, 1, 2, 3, 4]


@pytest.mark.soak
def test_44_a_compacted_source_is_an_error(engine: SparkEngine, dataset: odf.Dataset, tmp_path: Path) -> None:
    stream(engine, str(dataset.path), tmp_path).start().awaitTermination(60)
    old = dataset.head
    dataset.compact(force=True)
    assert dataset.head != old
    with pytest.raises(Exception, match=f"{old}.*{dataset.head}"):
        stream(engine, str(dataset.path), tmp_path).start().awaitTermination(60)
    assert written(tmp_path) == [0, 1, 2, 3, 4]
