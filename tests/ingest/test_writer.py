"""The writer: every case of writer_cases.json, and its rules beyond them. Differences are listed in RFC-001 and RFC-009."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import BadInputError, IngestError, NothingToCommitError, SchemaError
from odfchain.ingest.history import WriterState
from odfchain.ingest.schema_fit import fit
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow, schema_of_event
from odfchain.odf.enums import TimeUnit
from odfchain.odf.sources import (
    FetchStepUrl,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepNdJson,
    ReadStepParquet,
)
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import from_tree
from odfchain.workspace.dataset_state import DatasetState, SystemColumns
from tests.kit.commits import make_seeded
from tests.kit.reader_harness import Harness, csv_step, merge_in_force, parquet_columns, to_csv
from tests.kit.support import ROOT, conformance, no_session

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine


FACTS = conformance("writer_cases")
CITY = ["city", "population"]
DDL = "city STRING, population BIGINT"
SNAPSHOT, LEDGER = MergeStrategySnapshot(primary_key=("city",)), MergeStrategyLedger(primary_key=("a",))


Make = Callable[..., Harness]


def push(merge: MergeStrategy) -> ev.AddPushSource:
    return ev.AddPushSource(source_name="default", read=ReadStepNdJson(), merge=merge)


@pytest.fixture
def made(tmp_path: Path, engine: SparkEngine) -> Make:
    """Makes a dataset of these events."""
    return functools.partial(Harness, tmp_path, engine.session)


@pytest.fixture
def harness(made: Make) -> Harness:
    return made()


@pytest.fixture
def snapshot(made: Make) -> Harness:
    return made(push(SNAPSHOT))


# --- schema_check_matrix ---------------------------------------------------------------------------

INT, TEXT = ds.DataTypeInt64(), ds.DataTypeString()
MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")


def schema(*fields: tuple[str, ds.DataType]) -> ds.DataSchema:
    return ds.DataSchema(fields=tuple(ds.DataField(name=n, type=t) for n, t in fields))


def struct(*fields: tuple[str, ds.DataType]) -> ds.DataType:
    return ds.DataTypeStruct(fields=schema(*fields).fields)


BASE = schema(("a", INT), ("b", ds.optional(TEXT)))
MATRIX: dict[str, list[tuple[ds.DataSchema, ds.DataSchema, str | None]]] = {
    "identical": [(BASE, BASE, None)],
    "orig nullable, new required": [(BASE, schema(("a", INT), ("b", TEXT)), None)],
    "orig required, new nullable": [(BASE, schema(("a", ds.optional(INT)), ("b", ds.optional(TEXT))), None)],
    "column count differs (even a missing OPTIONAL column)": [
        (BASE, schema(("a", INT)), None),
        (BASE, schema(("b", TEXT)), "missing a"),
        (BASE, schema(("a", INT), ("b", TEXT), ("c", TEXT)), r"unexpected c \(a new column must be optional\)"),
        (BASE, schema(("a", INT), ("b", TEXT), ("c", ds.optional(TEXT))), None),
        (BASE, schema(("a", INT), ("c", ds.optional(TEXT))), "missing b; unexpected c"),
    ],
    "same columns, different order": [(BASE, schema(("b", TEXT), ("a", INT)), None)],
    "name differs by case": [(BASE, schema(("A", INT), ("b", TEXT)), "missing a; unexpected A")],
    "Struct": [
        (schema(("s", struct(("x", INT)))), schema(("s", struct(("x", INT)))), None),
        (schema(("s", struct(("x", INT)))), schema(("s", struct(("y", INT)))), "column s is STRUCT<x BIGINT NOT NULL>"),
        (schema(("s", struct(("x", INT), ("y", INT)))), schema(("s", struct(("y", INT), ("x", INT)))), "column s"),
    ],
    "List / LargeList / ListView / LargeListView": [
        (schema(("l", ds.DataTypeList(item_type=INT))), schema(("l", ds.DataTypeList(item_type=INT))), None),
        (schema(("l", ds.DataTypeList(item_type=INT))), schema(("l", ds.DataTypeList(item_type=TEXT))), "column l"),
    ],
    "any other type difference (Int32 vs Int64, Float32 vs Float64, Date vs Timestamp, timestamp unit or tz, decimal p/s, Null vs anything)": [
        (schema(("a", INT)), schema(("a", ds.DataTypeInt32())), "column a is BIGINT, the input has INT"),
        (schema(("a", ds.DataTypeFloat64())), schema(("a", ds.DataTypeFloat32())), "column a is DOUBLE"),
        (schema(("a", MS)), schema(("a", ds.DataTypeDate())), r"column a is TIMESTAMP\(3\), the input has DATE"),
        (schema(("a", ds.DataTypeDecimal(precision=5, scale=2))), schema(("a", ds.DataTypeDecimal(precision=5, scale=1))),
         r"column a is DECIMAL\(5, ?2\)"),
        (schema(("a", INT)), schema(("a", ds.DataTypeNull())), "column a is BIGINT"),
    ],
    "Arrow field metadata differs": [
        (BASE, ds.DataSchema(fields=(ds.DataField(name="a", type=INT, extra=ds.ExtraAttributes({"x": 1})), BASE.fields[1])), None)
    ],
}  # fmt: skip
ENCODINGS = {"Utf8 / LargeUtf8 / Utf8View", "Binary / LargeBinary / BinaryView"}
"""Different encodings of one logical type: see `test_encodings_of_one_type_are_interchangeable`."""


def test_the_matrix_is_covered() -> None:
    assert {row["situation"] for row in FACTS["schema_check_matrix"]} == set(MATRIX) | ENCODINGS


@pytest.mark.parametrize(
    ("dataset", "data", "problem"),
    [pytest.param(*c, id=f"{name[:30]}-{i}") for name, many in MATRIX.items() for i, c in enumerate(many)],
)
def test_schema_check(dataset: ds.DataSchema, data: ds.DataSchema, problem: str | None) -> None:
    """Columns are matched by name, optional ones may be missing or new, and attributes do not matter (RFC-015)."""
    said = rf"(?m)^in\.csv: .*{problem}.*\(dataset - .* \| input \+ .*\)$"
    with pytest.raises(SchemaError, match=said) if problem else contextlib.nullcontext():
        fit(dataset, data, ev.DatasetVocabulary(), "in.csv")


def test_encodings_of_one_type_are_interchangeable(harness: Harness) -> None:
    small = [pa.string(), pa.binary(), pa.list_(pa.int64())]
    large = [pa.large_string(), pa.large_binary(), pa.large_list(pa.int64())]
    for kinds in (small, large):
        columns = [pa.array([v], kind) for v, kind in zip(["x", b"y", [1]], kinds, strict=True)]
        write_parquet(harness, pa.table(columns, names=list("tbl")))
    assert [row[4:] for row in harness.rows()] == [["x", b"y", [1]]]
    assert harness.state.record_count == 2


def write_parquet(harness: Harness, table: pa.Table) -> None:
    path = harness.folder / "in.parquet"
    pq.write_table(table, path)
    harness.write(path.read_bytes(), ReadStepParquet())


# --- bad_input_errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["offset", "system_time", "op"])
def test_a_column_with_the_name_of_a_system_column(harness: Harness, name: str) -> None:
    with pytest.raises(BadInputError, match=f"column `{name}` conflicts with the system column name"):
        harness.write_csv([name, "x"], [["1", "2"]], f"{name} BIGINT, x BIGINT")


@pytest.mark.parametrize("kind", ["STRING", "BIGINT", "DOUBLE", "BOOLEAN"])
def test_an_event_time_that_is_not_a_time(made: Make, kind: str) -> None:
    """writer.event_time_string_rejected, and other types."""
    harness = made(ev.SetVocab(event_time_column="date"))
    with pytest.raises(BadInputError, match=f"`date` is {kind}, it must be DATE or TIMESTAMP"):
        harness.write_csv(["date", "x"], [["1", "2"]], f"date {kind}, x BIGINT")


REQUIRED = ds.DataSchema(fields=(ds.DataField(name="x", type=ds.DataTypeList(item_type=INT)),))
NESTED = ("x STRUCT<y: STRUCT<z: ARRAY<INT>>>",)


@pytest.mark.parametrize(
    ("read", "text", "column"),
    [
        (ReadStepNdJson(schema=REQUIRED), '{"x": [1]}\n{"x": [1, null]}\n', "x"),
        (ReadStepNdJson(ddl_schema=NESTED),
         '{"x": {"y": {"z": [1]}}}\n{"x": null}\n{"x": {"y": {"z": [1, null]}}}\n', r"x\.y\.z"),
    ],
)  # fmt: skip
def test_a_null_in_a_list_of_required_items(
    harness: Harness, read: ReadStepNdJson, text: str, column: str
) -> None:
    said = f"List column `{column}` contains 1 null elements while none were expected"
    with pytest.raises(BadInputError, match=said):
        harness.write(text, read)


def test_types_that_have_no_logical_hash_are_refused_before_spark_runs(harness: Harness) -> None:
    with pytest.raises(SchemaError, match="no logical hash is defined for type struct"):
        harness.write('{"x": [{"y": 1}]}\n', ReadStepNdJson())


# --- inference -------------------------------------------------------------------------------------

INFERRED = FACTS["inference_when_no_read_schema_and_no_preprocess"]["cases"]


@pytest.mark.parametrize("case", INFERRED, ids=range(len(INFERRED)))
def test_inference(harness: Harness, case: dict[str, Any]) -> None:
    now = "2050-01-01T12:00:00Z"
    harness.write(json.dumps(case["input"]) + "\n", ReadStepNdJson(), system_time=now, event_time=now)
    assert harness.rows() == [case["row"]]
    if "columns" in case:
        assert pq.read_schema(harness.newest_slice()).names == case["columns"]


def test_a_taken_name_gets_another_underscore(harness: Harness) -> None:
    harness.write('{"_op": 1, "op": 2}\n', ReadStepNdJson())
    assert pq.read_schema(harness.newest_slice()).names[4:] == ["_op", "__op"]


@pytest.mark.parametrize("merge", [MergeStrategyChangelogStream, MergeStrategyUpsertStream])
def test_streams_take_their_operations_from_the_input(made: Make, merge: type[Any]) -> None:
    harness = made(push(merge(primary_key=("city",))))
    read = ReadStepCsv(header=True, ddl_schema=("op INT", "city STRING"))
    harness.write("op,city\n0,a\n0,b\n", read)
    harness.write("op,city\n1,a\n", read)
    assert [[row[1], row[4]] for row in harness.rows(0)] == [[0, "a"], [0, "b"]]
    assert [[row[1], row[4]] for row in harness.rows(1)] == [[1, "a"]]


def test_a_changelog_without_its_column_of_operations(made: Make) -> None:
    harness = made(push(MergeStrategyChangelogStream(primary_key=("city",))))
    read = ReadStepCsv(header=True, ddl_schema=("city STRING",))
    with pytest.raises(SchemaError) as caught:
        harness.write("city\na\n", read)
    said = "merge ChangelogStream takes what each row does from the column 'op', which the input does not have (it has city"
    assert said in str(caught.value)


# --- times -----------------------------------------------------------------------------------------


def test_rows_are_ordered_by_event_time_after_missing_ones_are_filled(harness: Harness) -> None:
    rows = [["2000-06-01", "late"], ["", "fallback"], ["1999-01-01", "early"], ["", "second"]]
    harness.write_csv(["event_time", "x"], rows, "event_time TIMESTAMP, x STRING")
    assert [row[4] for row in harness.rows()] == ["early", "fallback", "second", "late"]


def test_equal_event_times_keep_the_order_of_the_file(harness: Harness) -> None:
    rows = [["2020-01-01", n] for n in (5, 3, 9, 1, 7)] * 200
    harness.write_csv(["event_time", "x"], rows, "event_time DATE, x BIGINT")
    assert [row[4] for row in harness.rows()] == [n for _, n in rows]


def test_an_event_time_of_dates_is_kept_as_dates(harness: Harness) -> None:
    harness.write_csv(["event_time", "x"], [["2020-01-01", 1], ["", 2]], "event_time DATE, x BIGINT")
    table = pq.read_table(harness.newest_slice())
    assert table.schema.field("event_time").type == pa.date32()
    assert table["event_time"].to_pylist() == [dt.date(2000, 1, 1), dt.date(2020, 1, 1)]
    assert harness.state.watermark == Timestamp.parse("2020-01-01T00:00:00Z")


def test_other_columns_of_an_event_time_vocabulary(made: Make) -> None:
    harness = made(
        ev.SetVocab(
            offset_column="n", operation_type_column="o", system_time_column="s", event_time_column="day"
        )
    )
    harness.write_csv(["x", "day"], [["1", "2020-01-01"]], "x BIGINT, day DATE")
    assert pq.read_schema(harness.newest_slice()).names == ["n", "o", "s", "day", "x"]
    with pytest.raises(BadInputError, match="`o` conflicts"):
        harness.write_csv(["o", "day"], [["1", "2020-01-01"]], "o BIGINT, day DATE")


def test_timestamps_keep_their_unit_and_are_utc_at_the_top(harness: Harness) -> None:
    us = pa.timestamp("us")
    at = dt.datetime(2020, 1, 1, 0, 0, 0, 123456)  # noqa: DTZ001 - naive is the point
    table = pa.table({"t": pa.array([at], us), "s": pa.array([{"u": at}], pa.struct([("u", us)]))})
    write_parquet(harness, table)
    written = pq.read_schema(harness.newest_slice())
    assert written.field("t").type == pa.timestamp("us", "UTC")
    assert pq.read_table(harness.newest_slice())["t"].to_pylist() == [at.replace(tzinfo=dt.UTC)]
    assert written.field("s").type.field("u").type.unit == "us"


# --- what is committed -----------------------------------------------------------------------------


def test_an_empty_first_input_declares_the_schema_and_no_data(harness: Harness) -> None:
    assert [e.KIND for e in harness.write_csv(CITY, [], DDL).events] == ["SetDataSchema"]
    with pytest.raises(NothingToCommitError):
        harness.write_csv(CITY, [], DDL)


def test_a_source_state_is_carried_until_there_is_a_new_one(harness: Harness) -> None:
    state = ev.SourceState(source_name="default", kind="odf/etag", value="1")
    harness.write_csv(CITY, [["a", 1]], DDL, source_state=state)
    harness.write_csv(CITY, [["b", 1]], DDL)
    assert harness.state.source_state == state


# --- guards ----------------------------------------------------------------------------------------


def fill(harness: Harness, count: int, **options: float) -> None:
    harness.write_csv(CITY, [[f"c{n}", n] for n in range(count)], DDL, **options)


def test_zero_bytes_are_an_empty_snapshot_too(snapshot: Harness) -> None:
    fill(snapshot, 2)
    undeclared = ReadStepCsv(header=True, infer_schema=True)
    with pytest.raises(IngestError, match="empty"):
        snapshot.write(b"", undeclared)
    snapshot.write(b"", undeclared, allow_empty=True)
    assert [row[1] for row in snapshot.rows()] == [1, 1]


def test_a_snapshot_that_retracts_too_much_is_refused(snapshot: Harness) -> None:
    fill(snapshot, 10)
    with pytest.raises(
        IngestError, match=r"would retract 6 of 10 recorded rows \(60%, at most 50% is allowed\)"
    ):
        fill(snapshot, 4, max_retract_ratio=0.5)
    fill(snapshot, 5, max_retract_ratio=0.5)
    assert len(snapshot.rows()) == 5


def test_the_share_is_of_what_is_recorded_now(snapshot: Harness) -> None:
    """Keys that were retracted earlier do not count."""
    fill(snapshot, 10)
    snapshot.write_csv(CITY, [["c0", 0], ["c1", 1]], DDL)
    with pytest.raises(IngestError, match="retract 2 of 2"):
        snapshot.write_csv(CITY, [["new", 1]], DDL, max_retract_ratio=0.5)
    snapshot.write_csv(CITY, [["c0", 0]], DDL, max_retract_ratio=0.5)


def test_corrections_are_no_retractions(snapshot: Harness) -> None:
    fill(snapshot, 3)
    snapshot.write_csv(CITY, [[f"c{n}", n + 1] for n in range(3)], DDL, max_retract_ratio=0.0)
    assert [row[1] for row in snapshot.rows()] == [2, 3] * 3


# --- keys and columns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("merge", "problem"),
    [
        (MergeStrategyLedger(primary_key=("town",)), "primaryKey names column 'town'"),
        (dataclasses.replace(SNAPSHOT, compare_columns=("town",)), "compareColumns names column 'town'"),
        (dataclasses.replace(SNAPSHOT, compare_columns=()), "compareColumns of the source is empty"),
    ],
)
def test_columns_that_the_strategy_names_must_be_there(
    made: Make, merge: MergeStrategy, problem: str
) -> None:
    harness = made(push(merge))
    with pytest.raises(SchemaError, match=problem):
        harness.write_csv(CITY, [["a", 1]], DDL)


def test_odd_column_names(made: Make) -> None:
    names = ["a.b", "c`d", "e f", "É", "select"]
    merge = MergeStrategySnapshot(primary_key=("a.b",))
    harness = made(push(merge))
    fields = tuple(ds.DataField(name=n, type=ds.optional(TEXT)) for n in names)
    read = ReadStepCsv(header=True, schema=ds.DataSchema(fields=fields))
    harness.write(to_csv(names, [["k", "1", "2", "3", "4"], ["l", "1", "2", "3", "4"]]), read)
    harness.write(to_csv(names, [["k", "1", "x", "3", "4"], ["l", "1", "2", "3", "4"]]), read)
    expected = [[2, "k", "1", "2", "3", "4"], [3, "k", "1", "x", "3", "4"]]
    assert [[row[1], *row[4:]] for row in harness.rows()] == expected


# --- `writer_cases.json`: every case, on Spark and on disk. Differences are listed in RFC-001 and RFC-009 ---


CASES = {case["id"]: case for case in FACTS["cases"]}


def polling(merge: MergeStrategy) -> ev.SetPollingSource:
    fetch = FetchStepUrl(url="https://example.com")
    return ev.SetPollingSource(fetch=fetch, read=ReadStepNdJson(), merge=merge)


def source_of(case: dict[str, Any]) -> list[ev.MetadataEvent]:
    if case["source_def"] is None:
        return []
    return [polling(from_tree(MergeStrategy, case["source_def"]["merge"]))]  # type: ignore[arg-type]


# --- cases told in rounds --------------------------------------------------------------------------

ROUNDS = [
    pytest.param(case, id=case["id"]) for case in CASES.values() if "csv_rows" in case.get("rounds", [{}])[0]
]
ERRORS = {
    "EmptyCommit": NothingToCommitError,
    "IncompatibleSchema": SchemaError,
    "ExecutionError": BadInputError,
}


@pytest.mark.parametrize("system_columns", SystemColumns)
@pytest.mark.parametrize("case", ROUNDS)
def test_rounds(case: dict[str, Any], system_columns: SystemColumns, made: Make) -> None:
    harness = made(*source_of(case))
    for step in case["rounds"]:
        run_round(harness, step, system_columns)


def run_round(harness: Harness, step: dict[str, Any], system_columns: SystemColumns) -> None:
    expect, before = step["expect"], harness.state
    kwargs: dict[str, Any] = {"system_columns": system_columns}
    if "system_time" in step:
        kwargs |= {"system_time": step["system_time"], "event_time": step["source_event_time"]}
    if "new_source_state" in step:
        kwargs["source_state"] = from_tree(ev.SourceState, step["new_source_state"])
    if "error" in expect:
        with pytest.raises(ERRORS[expect["error"]]) as caught:
            harness.write_csv(step["csv_header"], step["csv_rows"], step["ddl"], **kwargs)
        message = expect.get("message", expect.get("message_contains", ""))
        assert message.lower() in str(caught.value).lower()
        assert harness.state.head == before.head
        return
    harness.write_csv(step["csv_header"], step["csv_rows"], step["ddl"], **kwargs)
    check_round(harness, expect, before, system_columns)


def check_round(
    harness: Harness, expect: dict[str, Any], before: DatasetState, system_columns: SystemColumns
) -> None:
    state = harness.state
    count = state.head_block.sequence_number - before.head_block.sequence_number
    added = harness.added(count)
    if "blocks_added" in expect:
        assert [e.KIND for e in added] == expect["blocks_added"]
    if "set_data_schema" in expect:
        check_schema(added[0], expect["set_data_schema"], system_columns)
    if "parquet_columns" in expect:
        assert parquet_columns(harness.newest_slice()) == expect["parquet_columns"]
        if system_columns is SystemColumns.SPECIFICATION:
            check_unsigned(harness.newest_slice())
        else:
            found = pq.read_schema(harness.newest_slice())
            assert [str(found.field(i).type) for i in (0, 1)] == ["int64", "int32"]
    if "columns" in expect:
        assert pq.read_schema(harness.newest_slice()).names == expect["columns"]
    if "rows" in expect:
        assert harness.rows() == expect["rows"]
    if "watermark" in expect:
        assert state.watermark == Timestamp.parse(expect["watermark"])
    last = added[-1]
    assert isinstance(last, ev.AddData)
    if "new_data" in expect:
        assert last.new_data is expect["new_data"]
    if "source_state" in expect:
        assert last.new_source_state.value == expect["source_state"]["value"]


def check_schema(event: ev.MetadataEvent, expected: list[list[str]], system_columns: SystemColumns) -> None:
    """As the case says, except for the two system columns that RFC-001 writes as the specification does."""
    assert isinstance(event, ev.SetDataSchema)
    schema = schema_of_event(event.raw_arrow_schema, event.schema)
    names = {"Int64": INT, "Int32": ds.DataTypeInt32(), "String": TEXT, "Timestamp(ms,UTC)": MS}
    wanted = {name: names.get(kind) for name, kind in expected}
    if system_columns is SystemColumns.SPECIFICATION:
        wanted |= {"offset": ds.DataTypeUInt64(), "op": ds.DataTypeUInt8()}
    assert {f.name: f.type for f in schema.fields} == wanted
    assert [f.name for f in schema.fields] == [name for name, _ in expected]


def check_unsigned(path: Path) -> None:
    schema = pq.ParquetFile(path).schema
    assert str(schema.column(0).logical_type) == "Int(bitWidth=64, isSigned=false)"
    assert str(schema.column(1).logical_type) == "Int(bitWidth=8, isSigned=false)"


# --- single cases ----------------------------------------------------------------------------------


def test_offsets_sequential_large(made: Make) -> None:
    """writer.offsets_sequential_large"""
    case = CASES["writer.offsets_sequential_large"]
    harness = made(*source_of(case))
    start = Timestamp.parse("2010-01-01T00:00:00Z").epoch_ms
    times = [str(Timestamp.from_epoch_ms(start + 60_000 * minute)) for minute in range(50_000)]
    lines = [
        json.dumps({"event_time": at, "city": city, "population": str(minute)})
        for minute, at in enumerate(times)
        for city in "ABC"
    ]
    read = ReadStepNdJson(ddl_schema=("event_time TIMESTAMP", "city STRING", "population BIGINT"))
    harness.write("\n".join(lines) + "\n", read)
    table = pq.read_table(harness.newest_slice())
    assert table["offset"].to_pylist() == list(range(150_000))
    assert table["population"].to_pylist() == [n for n in range(50_000) for _ in "ABC"]
    assert table["city"].to_pylist() == list("ABC") * 50_000


def test_parquet_encoding(harness: Harness) -> None:
    """writer.parquet_encoding; the encodings are those of the specification's "Common Data Schema"."""
    harness.write_csv(["city"], [["A"], ["B"]], "city STRING")
    file = pq.ParquetFile(harness.newest_slice())
    assert file.metadata.num_row_groups == 1
    columns = {c.path_in_schema: c for c in map(file.metadata.row_group(0).column, range(5))}
    assert list(columns)[:3] == CASES["writer.parquet_encoding"]["expect"]["columns_0_1_2"]
    encodings = {"offset": "DELTA_BINARY_PACKED", "op": "RLE_DICTIONARY", "system_time": "RLE_DICTIONARY"}
    for name, encoding in encodings.items():
        assert columns[name].compression == "SNAPPY"
        assert encoding in columns[name].encodings
    assert page_types(harness.newest_slice()) == {0, 2}, "data pages of version 1 and dictionary pages"


def page_types(path: Path) -> set[int]:
    """Page types in the file, read from the Thrift headers (field 1 of each)."""
    metadata, data = pq.ParquetFile(path).metadata, path.read_bytes()
    found = set()
    for index in range(metadata.num_columns):
        column = metadata.row_group(0).column(index)
        for offset in (column.dictionary_page_offset, column.data_page_offset):
            if offset is not None:
                assert data[offset] == 0x15, "field 1, i32"
                found.add(data[offset + 1] >> 1)
    return found


THREE = [["A", 1000], ["B", 2000], ["C", 3000]]


def odf_schema(harness: Harness, **changes: Any) -> ds.DataSchema:
    """The dataset's schema with some fields changed."""
    schema = harness.state.schema
    fields = tuple(dataclasses.replace(f, **changes.get(f.name, {})) for f in schema.fields)
    return ds.DataSchema(fields=fields)


def explicit(*, optional: bool) -> ds.DataSchema:
    """With the reference's own types of the system columns."""
    data = {"event_time": MS, "city": TEXT, "population": INT}
    system = [("offset", INT), ("op", ds.DataTypeInt32()), ("system_time", MS)]
    return schema(*system, *((name, ds.optional(t) if optional else t) for name, t in data.items()))


def test_schema_evolution_attributes_only(harness: Harness) -> None:
    """writer.schema_evolution_attributes_only"""
    harness.write_csv(CITY, THREE, DDL)
    assert [f.optional for f in odf_schema(harness).fields[4:]] == [True, True]
    note = {"extra": ds.ExtraAttributes({"opendatafabric.org/description": "x"})}
    harness.append(ev.SetDataSchema(schema=odf_schema(harness, event_time=note, city=note, population=note)))
    written = harness.write_csv(CITY, [["D", 4000]], DDL)
    assert [e.KIND for e in written.events] == ["AddData"]
    assert harness.rows() == [[3, 0, "2010-01-01T12:00:00Z", "2000-01-01T12:00:00Z", "D", 4000]]
    assert [f.extra for f in odf_schema(harness).fields if f.name == "city"] == [note["extra"]]


def test_schema_evolution_explicit_all_required(harness: Harness) -> None:
    """writer.schema_evolution_explicit_all_required"""
    harness.append(ev.SetDataSchema(schema=explicit(optional=False)))
    written = harness.write_csv(CITY, THREE, DDL)
    assert [e.KIND for e in written.events] == ["AddData"]
    assert [row[0] for row in harness.rows()] == [0, 1, 2]
    assert {c[2] for c in parquet_columns(harness.newest_slice())} == {"REQUIRED"}


def test_schema_legacy_raw_arrow(harness: Harness) -> None:
    """writer.schema_legacy_raw_arrow; the reference's own system columns are continued as declared."""
    harness.append(ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(explicit(optional=True))))
    written = harness.write_csv(CITY, THREE, DDL)
    assert [e.KIND for e in written.events] == ["AddData"]
    assert pq.read_schema(harness.newest_slice()).types[:2] == [pa.int64(), pa.int32()]
    harness.append(ev.SetDataSchema(schema=explicit(optional=False)))
    harness.write_csv(CITY, [["D", 4000]], DDL)
    assert harness.rows()[0][0] == 3


WITH_URL = "city STRING, population BIGINT, census_url STRING"


def add_url_column(harness: Harness) -> None:
    fields = odf_schema(harness).fields
    url = ds.DataField(name="census_url", type=ds.optional(TEXT))
    harness.append(ev.SetDataSchema(schema=ds.DataSchema(fields=(*fields, url))))


def test_add_optional_column_append(harness: Harness) -> None:
    """writer.add_optional_column_append"""
    case = CASES["writer.add_optional_column_append"]
    harness.write_csv(CITY, THREE, "city STRING NOT NULL, population BIGINT NOT NULL")
    add_url_column(harness)
    harness.write_csv([*CITY, "census_url"], case["input_rows"], WITH_URL)
    assert pq.read_schema(harness.newest_slice()).names == case["expect"]["columns"]
    assert harness.rows() == case["expect"]["rows"]


def test_add_optional_column_ledger(made: Make) -> None:
    """writer.add_optional_column_ledger"""
    case = CASES["writer.add_optional_column_ledger"]
    ledger = polling(MergeStrategyLedger(primary_key=("event_time", "city")))
    harness = made(ledger)
    time = "event_time TIMESTAMP, "
    rows = [["2021-01-01", *row] for row in THREE]
    harness.write_csv(["event_time", *CITY], rows, time + "city STRING NOT NULL, population BIGINT NOT NULL")
    add_url_column(harness)
    rows = [["2021-02-01" if row[0] == "D" else "2021-01-01", *row] for row in case["input_rows"]]
    harness.write_csv(["event_time", *CITY, "census_url"], rows, time + WITH_URL)
    assert pq.read_schema(harness.newest_slice()).names == case["expect"]["columns"]
    assert harness.rows() == case["expect"]["rows"]


def test_object_link(harness: Harness) -> None:
    """writer.object_link is not followed (RFC-009): links are text here, nothing is counted or checked."""
    harness.append(ev.SetDataSchema(schema=link_schema()))
    case = CASES["writer.object_link"]
    ddl = "city STRING, population BIGINT, census_hash STRING"
    for step in case["rounds"]:
        harness.write_csv([*CITY, "census_hash"], step["rows"], ddl)
        (event,) = harness.added(1)
        assert isinstance(event, ev.AddData)
        assert event.extra is None
    assert [row[-1] for row in harness.rows()] == ["not-a-multihash"]


def link_schema() -> ds.DataSchema:
    kind = {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}}
    link = ds.ExtraAttributes({"opendatafabric.org/type": kind})
    added = ds.DataField(name="census_hash", type=ds.optional(TEXT), extra=link)
    return ds.DataSchema(fields=(*explicit(optional=True).fields, added))


@pytest.mark.parametrize(
    ("case_id", "chain", "merge", "event_time"),
    [
        ("writer_state.scan_no_source", [ev.SetVocab(event_time_column="foo")], MergeStrategyAppend(), "foo"),
        ("writer_state.scan_polling_source", [polling(LEDGER)], LEDGER, "event_time"),
        ("writer_state.scan_push_source", [push(LEDGER)], LEDGER, "event_time"),
    ],
)
def test_writer_state(
    case_id: str, chain: list[Any], merge: MergeStrategy, event_time: str, tmp_path: Path
) -> None:
    assert case_id in CASES
    dataset = make_seeded(tmp_path / "d", *chain)
    state = DatasetState.read(dataset.chain)
    writer = WriterState.of(dataset, state, merge_in_force(state), no_session)
    assert writer.merge == merge
    assert writer.vocabulary.event_time_column == event_time
    assert (writer.schema, writer.prev_offset, writer.checkpoint) == (None, None, None)
    assert (writer.watermark, writer.source_state, list(writer.recorded().slices)) == (None, None, [])


def test_empty_first_ingest_no_schema(harness: Harness) -> None:
    """writer.empty_first_ingest_no_schema"""
    state = ev.SourceState(source_name="default", kind="odf/etag", value="1")
    harness.write(b"", csv_step(None), source_state=state)
    (event,) = harness.added(1)
    assert event == ev.AddData(new_source_state=state)
    assert harness.state.schema is None


def test_case_sensitive_columns(made: Make) -> None:
    """writer.case_sensitive_columns"""
    ledger = polling(MergeStrategyLedger(primary_key=("date",)))
    harness = made(ev.SetVocab(event_time_column="date"), ledger)
    header, ddl = ["date", "UPPER", "lower"], "date DATE, UPPER STRING, lower STRING"
    harness.write_csv(header, [["2020-01-01", "a", "b"]], ddl)
    harness.write_csv(header, [["2020-01-01", "a", "b"], ["2020-01-02", "c", "d"]], ddl)
    names = ["offset", "op", "system_time", "date", "UPPER", "lower"]
    assert pq.read_schema(harness.newest_slice()).names == names
    assert harness.rows() == [[1, 0, "2010-01-01T12:00:00Z", "2020-01-02", "c", "d"]]


def test_every_case_is_run() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [i for i in CASES if i not in text and i not in {p.id for p in ROUNDS}]
    assert missing == []


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "009-merge-and-writer-rules.md").read_text(encoding="utf-8")
    for case_id in ("writer.object_link", "writer.happy_path_snapshot", "writer.parquet_encoding"):
        assert f"`{case_id}`" in text
