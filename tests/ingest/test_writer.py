"""The writer rules beyond the cases: what fits a dataset, times, watermarks, guards, inference."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import (
    BadInputError,
    IngestError,
    NothingToCommitError,
    SchemaError,
)
from odfchain.ingest.schema_fit import fit
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.sources import (
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
from tests.kit.reader_harness import Harness
from tests.kit.support import conformance

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

FACTS = conformance("writer_cases")
CITY = ["city", "population"]
DDL = "city STRING, population BIGINT"
SNAPSHOT = MergeStrategySnapshot(primary_key=("city",))


def push(merge: MergeStrategy) -> ev.AddPushSource:
    return ev.AddPushSource(source_name="default", read=ReadStepNdJson(), merge=merge)


@pytest.fixture
def harness(tmp_path: Path, engine: SparkEngine) -> Harness:
    return Harness(tmp_path, engine.session)


@pytest.fixture
def snapshot(tmp_path: Path, engine: SparkEngine) -> Harness:
    return Harness(tmp_path, engine.session, push(SNAPSHOT))


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
    vocabulary = ev.DatasetVocabulary()
    if problem is None:
        fit(dataset, data, vocabulary, "in.csv")
        return
    with pytest.raises(SchemaError, match=rf"^in\.csv: .*{problem}.*\(dataset - .* \| input \+ .*\)$"):
        fit(dataset, data, vocabulary, "in.csv")


def test_without_a_source_no_column_is_added() -> None:
    data = schema(("a", INT), ("b", TEXT), ("c", ds.optional(TEXT)))
    with pytest.raises(SchemaError, match="unexpected c"):
        fit(BASE, data, ev.DatasetVocabulary(), "in.csv", may_grow=False)


def test_encodings_of_one_type_are_interchangeable(harness: Harness) -> None:
    for text, binary, items in (
        (pa.string(), pa.binary(), pa.list_(pa.int64())),
        (pa.large_string(), pa.large_binary(), pa.large_list(pa.int64())),
    ):
        table = pa.table(
            {"t": pa.array(["x"], text), "b": pa.array([b"y"], binary), "l": pa.array([[1]], items)}
        )
        path = harness.folder / "in.parquet"
        pq.write_table(table, path, store_schema=True)
        harness.write(path.read_bytes(), ReadStepParquet())
    assert [row[4:] for row in harness.rows()] == [["x", b"y", [1]]]
    assert harness.state.record_count == 2


# --- bad_input_errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["offset", "system_time", "op"])
def test_a_column_with_the_name_of_a_system_column(harness: Harness, name: str) -> None:
    with pytest.raises(BadInputError, match=f"column `{name}` conflicts with the system column name"):
        harness.write_csv([name, "x"], [["1", "2"]], f"{name} BIGINT, x BIGINT")


@pytest.mark.parametrize("kind", ["STRING", "BIGINT", "DOUBLE", "BOOLEAN"])
def test_an_event_time_that_is_not_a_time(harness: Harness, kind: str) -> None:
    with pytest.raises(BadInputError, match=f"`event_time` is {kind}, it must be DATE or TIMESTAMP"):
        harness.write_csv(["event_time", "x"], [["1", "2"]], f"event_time {kind}, x BIGINT")


def test_a_null_in_a_required_column(harness: Harness) -> None:
    with pytest.raises(
        BadInputError, match="row 2: Column `x` contains 1 null values while none were expected"
    ):
        harness.write_csv(["x", "y"], [["1", "a"], ["", "b"]], "x BIGINT NOT NULL, y STRING")


def test_a_null_in_a_list_of_required_items(harness: Harness) -> None:
    items = ds.DataTypeList(item_type=INT)
    declared = ReadStepNdJson(schema=ds.DataSchema(fields=(ds.DataField(name="x", type=items),)))
    with pytest.raises(
        BadInputError, match="List column `x` contains 1 null elements while none were expected"
    ):
        harness.write('{"x": [1]}\n{"x": [1, null]}\n', declared)


def test_a_null_in_a_list_inside_a_struct(harness: Harness) -> None:
    declared = ReadStepNdJson(ddl_schema=("x STRUCT<y: STRUCT<z: ARRAY<INT>>>",))
    said = r"List column `x\.y\.z` contains 1 null elements while none were expected"
    with pytest.raises(BadInputError, match=said):
        harness.write('{"x": {"y": {"z": [1]}}}\n{"x": null}\n{"x": {"y": {"z": [1, null]}}}\n', declared)


def test_types_that_have_no_logical_hash_are_refused_before_spark_runs(harness: Harness) -> None:
    with pytest.raises(SchemaError, match="no logical hash is defined for type struct"):
        harness.write('{"x": [{"y": 1}]}\n', ReadStepNdJson())


# --- inference -------------------------------------------------------------------------------------

INFERRED = FACTS["inference_when_no_read_schema_and_no_preprocess"]["cases"]


@pytest.mark.parametrize("case", INFERRED, ids=range(len(INFERRED)))
def test_inference(harness: Harness, case: dict[str, Any]) -> None:
    import json

    now = "2050-01-01T12:00:00Z"
    harness.write(json.dumps(case["input"]) + "\n", ReadStepNdJson(), system_time=now, event_time=now)
    assert harness.rows() == [case["row"]]
    if "columns" in case:
        assert pq.read_schema(harness.newest_slice()).names == case["columns"]


def test_a_taken_name_gets_another_underscore(harness: Harness) -> None:
    harness.write('{"_op": 1, "op": 2}\n', ReadStepNdJson())
    assert pq.read_schema(harness.newest_slice()).names[4:] == ["_op", "__op"]


@pytest.mark.parametrize("merge", [MergeStrategyChangelogStream, MergeStrategyUpsertStream])
def test_streams_take_their_operations_from_the_input(
    tmp_path: Path, engine: SparkEngine, merge: type[Any]
) -> None:
    harness = Harness(tmp_path, engine.session, push(merge(primary_key=("city",))))
    read = ReadStepCsv(header=True, ddl_schema=("op INT", "city STRING"))
    harness.write("op,city\n0,a\n0,b\n", read)
    harness.write("op,city\n1,a\n", read)
    assert [[row[1], row[4]] for row in harness.rows(0)] == [[0, "a"], [0, "b"]]
    assert [[row[1], row[4]] for row in harness.rows(1)] == [[1, "a"]]


def test_a_changelog_without_its_column_of_operations(tmp_path: Path, engine: SparkEngine) -> None:
    harness = Harness(tmp_path, engine.session, push(MergeStrategyChangelogStream(primary_key=("city",))))
    read = ReadStepCsv(header=True, ddl_schema=("city STRING",))
    with pytest.raises(SchemaError) as caught:
        harness.write("city\na\n", read)
    assert "merge ChangelogStream takes what each row does from the column 'op'" in str(caught.value)
    assert "which the input does not have (it has city" in str(caught.value)
    assert "0 for +A, 1 for -R, 2 for -C, 3 for +C" in str(caught.value.hint)


def test_an_operation_that_does_not_exist(tmp_path: Path, engine: SparkEngine) -> None:
    harness = Harness(tmp_path, engine.session, push(MergeStrategyChangelogStream(primary_key=("city",))))
    read = ReadStepCsv(header=True, ddl_schema=("op INT", "city STRING"))
    with pytest.raises(BadInputError, match="operation"):
        harness.write("op,city\n7,a\n", read)


# --- times -----------------------------------------------------------------------------------------


def test_the_watermark_is_the_largest_event_time_and_never_goes_back(harness: Harness) -> None:
    ddl = "event_time TIMESTAMP, x BIGINT"
    header = ["event_time", "x"]
    harness.write_csv(header, [["2020-01-03", 1], ["2020-01-01", 2]], ddl)
    assert harness.state.watermark == Timestamp.parse("2020-01-03T00:00:00Z")
    harness.write_csv(header, [["2019-01-01", 3]], ddl)
    assert harness.state.watermark == Timestamp.parse("2020-01-03T00:00:00Z")


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


def test_other_columns_of_an_event_time_vocabulary(tmp_path: Path, engine: SparkEngine) -> None:
    vocabulary = ev.SetVocab(
        offset_column="n", operation_type_column="o", system_time_column="s", event_time_column="day"
    )
    harness = Harness(tmp_path, engine.session, vocabulary)
    harness.write_csv(["x", "day"], [["1", "2020-01-01"]], "x BIGINT, day DATE")
    assert pq.read_schema(harness.newest_slice()).names == ["n", "o", "s", "day", "x"]
    with pytest.raises(BadInputError, match="`o` conflicts"):
        harness.write_csv(["o", "day"], [["1", "2020-01-01"]], "o BIGINT, day DATE")


def test_timestamps_keep_their_unit_and_are_utc_at_the_top(harness: Harness) -> None:
    us = pa.timestamp("us")
    at = dt.datetime(2020, 1, 1, 0, 0, 0, 123456)  # noqa: DTZ001 - naive is the point
    table = pa.table({"t": pa.array([at], us), "s": pa.array([{"u": at}], pa.struct([("u", us)]))})
    path = harness.folder / "in.parquet"
    pq.write_table(table, path)
    harness.write(path.read_bytes(), ReadStepParquet())
    written = pq.read_schema(harness.newest_slice())
    assert written.field("t").type == pa.timestamp("us", "UTC")
    assert pq.read_table(harness.newest_slice())["t"].to_pylist() == [at.replace(tzinfo=dt.UTC)]
    assert written.field("s").type.field("u").type.unit == "us"


# --- what is committed -----------------------------------------------------------------------------


def test_an_empty_first_input_declares_the_schema_and_no_data(harness: Harness) -> None:
    written = harness.write("city,population\n", ReadStepCsv(header=True, ddl_schema=tuple(DDL.split(", "))))
    assert [e.KIND for e in written.events] == ["SetDataSchema"]
    with pytest.raises(NothingToCommitError):
        harness.write("city,population\n", ReadStepCsv(header=True, ddl_schema=tuple(DDL.split(", "))))


def test_a_source_state_is_carried_until_there_is_a_new_one(harness: Harness) -> None:
    state = ev.SourceState(source_name="default", kind="odf/etag", value="1")
    harness.write_csv(CITY, [["a", 1]], DDL, source_state=state)
    harness.write_csv(CITY, [["b", 1]], DDL)
    assert harness.state.source_state == state


# --- guards ----------------------------------------------------------------------------------------


def fill(harness: Harness, count: int) -> None:
    harness.write_csv(CITY, [[f"c{n}", n] for n in range(count)], DDL)


def test_an_empty_snapshot_is_refused(snapshot: Harness) -> None:
    fill(snapshot, 4)
    with pytest.raises(IngestError, match="the snapshot is empty: it would retract all 4") as caught:
        snapshot.write_csv(CITY, [], DDL)
    assert "--allow-empty" in str(caught.value.hint)
    snapshot.write_csv(CITY, [], DDL, allow_empty=True)
    assert [row[1] for row in snapshot.rows()] == [1, 1, 1, 1]
    assert [row[4] for row in snapshot.rows()] == ["c0", "c1", "c2", "c3"]


def test_zero_bytes_are_an_empty_snapshot_too(snapshot: Harness) -> None:
    fill(snapshot, 2)
    undeclared = ReadStepCsv(header=True, infer_schema=True)
    with pytest.raises(IngestError, match="empty"):
        snapshot.write(b"", undeclared)
    snapshot.write(b"", undeclared, allow_empty=True)
    assert [row[1] for row in snapshot.rows()] == [1, 1]


@pytest.mark.parametrize(("left", "refused"), [(5, False), (4, True), (1, True)])
def test_a_snapshot_that_retracts_too_much_is_refused(snapshot: Harness, left: int, refused: bool) -> None:
    fill(snapshot, 10)
    rows = [[f"c{n}", n] for n in range(left)]
    if refused:
        message = rf"would retract {10 - left} of 10 recorded rows \({10 - left}0%, at most 50% is allowed\)"
        with pytest.raises(IngestError, match=message) as caught:
            snapshot.write_csv(CITY, rows, DDL, max_retract_ratio=0.5)
        assert "--allow-retract" in str(caught.value.hint)
        return
    snapshot.write_csv(CITY, rows, DDL, max_retract_ratio=0.5)
    assert len(snapshot.rows()) == 10 - left


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
    "merge",
    [MergeStrategyLedger(primary_key=("city",)), SNAPSHOT, MergeStrategyUpsertStream(primary_key=("city",))],
)
def test_a_null_key_is_named_with_its_row(tmp_path: Path, engine: SparkEngine, merge: MergeStrategy) -> None:
    harness = Harness(tmp_path, engine.session, push(merge))
    with pytest.raises(BadInputError, match="row 2: primary key column `city` is null"):
        harness.write_csv(CITY, [["a", 1], ["", 2], ["b", 3]], DDL)
    assert harness.state.record_count == 0


@pytest.mark.parametrize("merge", [MergeStrategyLedger(primary_key=("city",)), SNAPSHOT])
def test_a_repeated_key_is_named_with_both_rows(
    tmp_path: Path, engine: SparkEngine, merge: MergeStrategy
) -> None:
    harness = Harness(tmp_path, engine.session, push(merge))
    with pytest.raises(BadInputError, match=r"row 4: primary key \(city='b'\) occurs twice: also in row 2"):
        harness.write_csv(CITY, [["a", 1], ["b", 2], ["c", 3], ["b", 4]], DDL)


def test_compare_columns_limit_what_counts_as_a_change(tmp_path: Path, engine: SparkEngine) -> None:
    merge = MergeStrategySnapshot(primary_key=("city",), compare_columns=("population",))
    harness = Harness(tmp_path, engine.session, push(merge))
    ddl = "city STRING, population BIGINT, note STRING"
    harness.write_csv([*CITY, "note"], [["a", 1, "x"], ["b", 2, "y"]], ddl)
    harness.write_csv([*CITY, "note"], [["a", 1, "other"], ["b", 3, "other"]], ddl)
    assert [[row[1], *row[4:]] for row in harness.rows()] == [[2, "b", 2, "y"], [3, "b", 3, "other"]]


@pytest.mark.parametrize(
    ("merge", "problem"),
    [
        (MergeStrategyLedger(primary_key=("town",)), "primaryKey names column 'town'"),
        (
            MergeStrategySnapshot(primary_key=("city",), compare_columns=("town",)),
            "compareColumns names column 'town'",
        ),
        (
            MergeStrategySnapshot(primary_key=("city",), compare_columns=()),
            "compareColumns of the source is empty",
        ),
    ],
)
def test_columns_that_the_strategy_names_must_be_there(
    tmp_path: Path, engine: SparkEngine, merge: MergeStrategy, problem: str
) -> None:
    harness = Harness(tmp_path, engine.session, push(merge))
    with pytest.raises(SchemaError, match=problem):
        harness.write_csv(CITY, [["a", 1]], DDL)


def test_odd_column_names(tmp_path: Path, engine: SparkEngine) -> None:
    names = ["a.b", "c`d", "e f", "É", "select"]
    merge = MergeStrategySnapshot(primary_key=("a.b",))
    harness = Harness(tmp_path, engine.session, push(merge))
    fields = tuple(ds.DataField(name=n, type=ds.optional(TEXT)) for n in names)
    read = ReadStepCsv(header=True, schema=ds.DataSchema(fields=fields))
    from tests.kit.reader_harness import to_csv

    harness.write(to_csv(names, [["k", "1", "2", "3", "4"], ["l", "1", "2", "3", "4"]]), read)
    harness.write(to_csv(names, [["k", "1", "x", "3", "4"], ["l", "1", "2", "3", "4"]]), read)
    assert [[row[1], *row[4:]] for row in harness.rows()] == [
        [2, "k", "1", "2", "3", "4"],
        [3, "k", "1", "x", "3", "4"],
    ]


def test_values_that_are_hard_to_compare(tmp_path: Path, engine: SparkEngine) -> None:
    """NaN equals NaN, zero has no sign, nested values compare as wholes: no change without a change."""
    harness = Harness(tmp_path, engine.session, push(MergeStrategySnapshot(primary_key=("k",))))
    rows = '{"k": 1, "x": "NaN", "l": [1, 2], "s": {"a": null}}\n{"k": 2, "x": 0.0, "l": [], "s": null}\n'
    again = '{"k": 1, "x": "NaN", "l": [1, 2], "s": {"a": null}}\n{"k": 2, "x": -0.0, "l": [], "s": null}\n'
    read = ReadStepNdJson(ddl_schema=("k INT", "x DOUBLE", "l ARRAY<INT>", "s STRUCT<a INT>"))
    harness.write(rows, read)
    with pytest.raises(NothingToCommitError):
        harness.write(again, read)


def test_append_takes_everything(harness: Harness) -> None:
    assert isinstance(MergeStrategyAppend(), MergeStrategyAppend)
    for _ in range(2):
        harness.write_csv(CITY, [["a", 1], ["a", 1]], DDL)
    assert [row[0] for row in harness.rows()] == [2, 3]
