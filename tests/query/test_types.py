"""Values come out as they were recorded: every type, NaN under every question, numbers beyond 2^63."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.odf.times import Timestamp
from odfchain.spark.session import SparkEngine
from tests.kit.query_datasets import CASES, on_spark
from tests.kit.root_rows import START, add_root, append, records, schema_with

NAN = CASES["nan"]
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint16": (pa.uint16(), [0, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [2**63 + 5, 2**64 - 1]),
    "float32": (pa.float32(), [0.5, -math.inf]),
    "float64": (pa.float64(), [0.1, math.nan]),
    "decimal": (pa.decimal128(38, 10), [decimal.Decimal("0.0000000001"), decimal.Decimal(-1)]),
    "decimal256": (pa.decimal256(60, 2), [decimal.Decimal("9" * 58 + ".99"), decimal.Decimal("0.01")]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time_ms": (pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999000)]),
    "time_us": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "timestamp_s": (pa.timestamp("s"), [-(10**9), 7 * 10**9]),
    "timestamp_ms": (pa.timestamp("ms", "UTC"), [START, START]),
    "timestamp_us": (pa.timestamp("us", "UTC"), [START.replace(microsecond=1), START]),
    "timestamp_ns": (pa.timestamp("ns"), [1, 2]),
    "string": (pa.string(), ["", "ä 😀"]),
    "binary": (pa.binary(), [b"", b"\0\xff"]),
    "fixed": (pa.binary(16), [bytes(16), bytes(range(16))]),
    "list": (pa.list_(pa.string()), [[], ["a", None]]),
    "struct": (
        pa.struct([("a", pa.string()), ("b", pa.int64())]),
        [{"a": "x", "b": None}, {"a": None, "b": 1}],
    ),
}
"""Column types, each with two values; a third row is null."""
WATERMARK = Timestamp.parse("2024-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> odf.Workspace:
    workspace = odf.init(tmp_path_factory.mktemp("types"))
    schema = schema_with(*(pa.field(name, kind) for name, (kind, _) in TYPES.items()))
    root = add_root(workspace, "types", schema)
    values = [[*two, None] for _, two in TYPES.values()]
    append(root, records(schema, 0, [0] * 3, [START] * 3, *values), WATERMARK)
    floats = schema_with(pa.field("file", pa.int64()), pa.field("v", pa.float64()))
    root = add_root(workspace, "floats", floats)
    start = 0
    for number, texts in enumerate(NAN["files"]):
        column = [None if text is None else float(text) for text in texts]
        signed = [
            math.copysign(math.nan, -1) if text == "-nan" else v
            for text, v in zip(texts, column, strict=True)
        ]
        rows = records(floats, start, [0] * len(texts), [START] * len(texts), [number] * len(texts), signed)
        append(root, rows, WATERMARK)
        start += len(texts)
    return workspace


def test_every_type_comes_out_as_it_is_declared(workspace: odf.Workspace) -> None:
    recorded = workspace["types"].scan().to_arrow()
    found = workspace.sql('select * from types order by "offset"').to_arrow()
    assert found.schema.types == recorded.schema.types
    assert str(found.to_pylist()) == str(recorded.to_pylist())
    assert found["uint64"].to_pylist() == [2**63 + 5, 2**64 - 1, None]
    state = workspace.sql("""select * from state('types', NULL, 'int32') order by "offset" """).to_arrow()
    assert str(state.to_pylist()) == str(recorded.to_pylist())


def asked(workspace: odf.Workspace, where: str, **options: Any) -> list[int]:
    rows = workspace.sql(f'select "offset" as o from floats where {where} order by 1', **options).to_arrow()
    return [int(row["o"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("question", NAN["questions"])
def test_statistics_without_nan_change_no_answer(workspace: odf.Workspace, question: str) -> None:
    """As over the same rows in memory, where nothing can be pruned."""
    import datafusion

    context = datafusion.SessionContext()
    rows = workspace["floats"].scan().to_arrow()
    context.register_record_batches("floats", [rows.to_batches()])
    expected = context.sql(f'select "offset" as o from floats where {question} order by 1').to_pydict()["o"]
    assert asked(workspace, question) == expected
    # and with the rows of one file alone, whose bounds say the most
    for number in range(len(NAN["files"])):
        alone = f"file = {number} and {question}"
        expected = context.sql(f'select "offset" as o from floats where {alone} order by 1').to_pydict()["o"]
        assert asked(workspace, alone) == expected


def test_extremes_are_of_the_rows_and_not_of_the_statistics(workspace: odf.Workspace) -> None:
    found = workspace.sql("select file, max(v) as m from floats group by file order by file").to_arrow()
    assert str(found["m"][0].as_py()) == "nan"
    assert str(workspace.sql("select max(v) as m from floats").to_arrow()["m"][0].as_py()) == "nan"


def test_the_files_would_have_misled(workspace: odf.Workspace) -> None:
    """The fixture is one that can fail: bounds of its files leave NaN out."""
    paths = (workspace["floats"].path / "data").iterdir()
    bounds = [pq.read_metadata(path).row_group(0).column(5).statistics for path in paths]
    assert any(b is not None and b.has_min_max and b.max == 1.0 for b in bounds)


CARRIED = [
    name for name, (kind, _) in TYPES.items()
    if kind not in (pa.decimal256(60, 2), pa.timestamp("ns"), pa.timestamp("s"))
    and not pa.types.is_time(kind)
]  # fmt: skip


def test_spark_says_the_same(tmp_path: Path, workspace: odf.Workspace, engine: SparkEngine) -> None:
    """Every question about NaN at once, and every type that Spark has."""
    with on_spark(workspace, engine):
        parts = [
            f'select {number} as q, "offset" as o from floats where {question}'
            for number, question in enumerate(NAN["questions"])
        ]
        sql = " union all ".join(parts) + " order by 1, 2"
        # to Spark every NaN is the largest number; to the embedded engine one with a sign is the least
        rows = workspace["floats"].scan(["offset", "v"]).to_arrow()
        memory = engine.session.createDataFrame(rows.cast(pa.schema([("offset", "int64"), ("v", "float64")])))
        memory.createOrReplaceTempView("floats")
        expected = [list(row) for row in engine.session.sql(sql.replace('"', "`")).collect()]
        found = workspace.sql(sql, engine="spark").to_arrow().to_pylist()
        assert [list(row.values()) for row in found] == expected
        assert [0, 5] in expected
        with pytest.raises(odf.errors.QueryError, match="cannot be processed by Spark"):
            workspace.sql("select bool from types", engine="spark")
        schema = schema_with(*(pa.field(name, TYPES[name][0]) for name in CARRIED))
        values = [[*TYPES[name][1], None] for name in CARRIED]
        with odf.init(tmp_path) as other:
            root = add_root(other, "some", schema)
            append(root, records(schema, 0, [0] * 3, [START] * 3, *values), WATERMARK)
            with on_spark(other, engine):
                one, two = (
                    other.sql('select * from some order by "offset"', engine=name).to_arrow()
                    for name in ("datafusion", "spark")
                )
        whole = two["uint64"].cast(pa.uint64())
        same = two.set_column(two.schema.get_field_index("uint64"), "uint64", whole)
        assert str(one.to_pylist()) == str(same.to_pylist())
        assert two.schema.field("uint64").type == pa.decimal128(20, 0)
        assert two.schema.field("offset").type == pa.int64()


def test_a_name_that_would_be_cut_is_refused(tmp_path: Path) -> None:
    """Names end at a null character on their way to the engine, which then would find no such column."""
    with odf.init(tmp_path) as workspace:
        for name, column in (
            ("plain", pa.field("a\0b", pa.int64())),
            ("nested", pa.field("s", pa.struct([("a\0b", pa.int64())]))),
        ):
            schema = schema_with(column)
            root = add_root(workspace, name, schema)
            value = 7 if name == "plain" else {"a\0b": 7}
            append(root, records(schema, 0, [0], [START], [value]), WATERMARK)
            for asked in (f"select * from {name}", f"select * from state({name})"):
                with pytest.raises(odf.errors.QueryError, match="null character") as caught:
                    workspace.sql(asked).to_arrow()
                assert caught.value.hint == "use --engine spark"
