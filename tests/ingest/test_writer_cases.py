"""`writer_cases.json`: every case, on Spark and on disk. Differences are listed in RFC-001 and RFC-009."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import BadInputError, NothingToCommitError, SchemaError
from odfchain.ingest.history import WriterState
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import TimeUnit
from odfchain.odf.sources import (
    FetchStepUrl,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepNdJson,
)
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_state import DatasetState, SystemColumns
from tests.kit.commits import make_seeded
from tests.kit.reader_harness import Harness, csv_step, merge_in_force, parquet_columns
from tests.kit.support import ROOT, conformance, no_session

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

CASES = {case["id"]: case for case in conformance("writer_cases")["cases"]}
MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")


def polling(merge: MergeStrategy) -> ev.SetPollingSource:
    return ev.SetPollingSource(
        fetch=FetchStepUrl(url="https://example.com"), read=ReadStepNdJson(), merge=merge
    )


def source_of(case: dict[str, Any]) -> list[ev.MetadataEvent]:
    if case["source_def"] is None:
        return []
    merge = case["source_def"]["merge"]
    kinds = {"Snapshot": MergeStrategySnapshot, "Ledger": MergeStrategyLedger}
    return [polling(kinds[merge["kind"]](primary_key=tuple(merge["primaryKey"])))]


@pytest.fixture
def harness(tmp_path: Path, engine: SparkEngine) -> Harness:
    return Harness(tmp_path, engine.session)


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
def test_rounds(
    case: dict[str, Any], system_columns: SystemColumns, tmp_path: Path, engine: SparkEngine
) -> None:
    harness = Harness(tmp_path, engine.session, *source_of(case))
    for step in case["rounds"]:
        run_round(harness, step, system_columns)


def run_round(harness: Harness, step: dict[str, Any], system_columns: SystemColumns) -> None:
    expect, before = step["expect"], harness.state
    kwargs: dict[str, Any] = {"system_columns": system_columns}
    if "system_time" in step:
        kwargs |= {"system_time": step["system_time"], "event_time": step["source_event_time"]}
    if "new_source_state" in step:
        state = step["new_source_state"]
        kwargs["source_state"] = ev.SourceState(
            source_name=state["sourceName"], kind=state["kind"], value=state["value"]
        )
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
        assert last.new_source_state is not None
        assert last.new_source_state.value == expect["source_state"]["value"]


def check_schema(event: ev.MetadataEvent, expected: list[list[str]], system_columns: SystemColumns) -> None:
    """As the case says, except for the two system columns that RFC-001 writes as the specification does."""
    from odfchain.odf.arrow_schema import schema_of_event

    assert isinstance(event, ev.SetDataSchema)
    schema = schema_of_event(event.raw_arrow_schema, event.schema)
    names = {
        "Int64": ds.DataTypeInt64(), "Int32": ds.DataTypeInt32(), "String": ds.DataTypeString(), "Timestamp(ms,UTC)": MS,
    }  # fmt: skip
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


def test_offsets_sequential_large(tmp_path: Path, engine: SparkEngine) -> None:
    """writer.offsets_sequential_large"""
    case = CASES["writer.offsets_sequential_large"]
    harness = Harness(tmp_path, engine.session, *source_of(case))
    start = Timestamp.parse("2010-01-01T00:00:00Z").epoch_ms
    lines = []
    for minute in range(50_000):
        at = str(Timestamp.from_epoch_ms(start + 60_000 * minute))
        for city in "ABC":
            lines.append(json.dumps({"event_time": at, "city": city, "population": str(minute)}))
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
    for name in ("offset", "op", "system_time"):
        assert columns[name].compression == "SNAPPY"
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert "RLE_DICTIONARY" in columns["op"].encodings
    assert "RLE_DICTIONARY" in columns["system_time"].encodings
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


CITY = ["city", "population"]
THREE = [["A", 1000], ["B", 2000], ["C", 3000]]
DDL = "city STRING, population BIGINT"


def odf_schema(harness: Harness, **changes: Any) -> ds.DataSchema:
    """The dataset's schema with some fields changed."""
    schema = harness.state.schema
    assert schema is not None
    fields = tuple(dataclasses.replace(f, **changes.get(f.name, {})) for f in schema.fields)
    return ds.DataSchema(fields=fields)


def explicit(*, optional: bool, legacy_types: bool = True) -> ds.DataSchema:
    def maybe(data_type: ds.DataType) -> ds.DataType:
        return ds.optional(data_type) if optional else data_type

    return ds.DataSchema(
        fields=(
            ds.DataField(name="offset", type=ds.DataTypeInt64() if legacy_types else ds.DataTypeUInt64()),
            ds.DataField(name="op", type=ds.DataTypeInt32() if legacy_types else ds.DataTypeUInt8()),
            ds.DataField(name="system_time", type=MS),
            ds.DataField(name="event_time", type=maybe(MS)),
            ds.DataField(name="city", type=maybe(ds.DataTypeString())),
            ds.DataField(name="population", type=maybe(ds.DataTypeInt64())),
        )
    )


def test_schema_evolution_attributes_only(harness: Harness) -> None:
    """writer.schema_evolution_attributes_only"""
    harness.write_csv(CITY, THREE, DDL)
    assert [f.optional for f in odf_schema(harness).fields[4:]] == [True, True]
    note = {"extra": ds.ExtraAttributes({"opendatafabric.org/description": "x"})}
    harness.append(ev.SetDataSchema(schema=odf_schema(harness, event_time=note, city=note, population=note)))
    written = harness.write_csv(CITY, [["D", 4000]], DDL)
    assert [e.KIND for e in written.events] == ["AddData"]
    assert harness.rows() == [[3, 0, "2010-01-01T12:00:00Z", "2000-01-01T12:00:00Z", "D", 4000]]
    field = odf_schema(harness).field("city")
    assert field is not None
    assert field.extra == note["extra"]


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
    url = ds.DataField(name="census_url", type=ds.optional(ds.DataTypeString()))
    harness.append(ev.SetDataSchema(schema=ds.DataSchema(fields=(*fields, url))))


def test_add_optional_column_append(harness: Harness) -> None:
    """writer.add_optional_column_append"""
    case = CASES["writer.add_optional_column_append"]
    harness.write_csv(CITY, THREE, "city STRING NOT NULL, population BIGINT NOT NULL")
    add_url_column(harness)
    harness.write_csv([*CITY, "census_url"], case["input_rows"], WITH_URL)
    assert pq.read_schema(harness.newest_slice()).names == case["expect"]["columns"]
    assert harness.rows() == case["expect"]["rows"]


def test_add_optional_column_ledger(tmp_path: Path, engine: SparkEngine) -> None:
    """writer.add_optional_column_ledger"""
    case = CASES["writer.add_optional_column_ledger"]
    ledger = polling(MergeStrategyLedger(primary_key=("event_time", "city")))
    harness = Harness(tmp_path, engine.session, ledger)
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
    link = ds.ExtraAttributes(
        {"opendatafabric.org/type": {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}}}
    )
    added = ds.DataField(name="census_hash", type=ds.optional(ds.DataTypeString()), extra=link)
    return ds.DataSchema(fields=(*explicit(optional=True).fields, added))


@pytest.mark.parametrize(
    ("case_id", "chain", "merge", "event_time"),
    [
        ("writer_state.scan_no_source", [ev.SetVocab(event_time_column="foo")], MergeStrategyAppend(), "foo"),
        ("writer_state.scan_polling_source", [polling(MergeStrategyLedger(primary_key=("a",)))],
         MergeStrategyLedger(primary_key=("a",)), "event_time"),
        ("writer_state.scan_push_source",
         [ev.AddPushSource(source_name="default", read=ReadStepNdJson(), merge=MergeStrategyLedger(primary_key=("a",)))],
         MergeStrategyLedger(primary_key=("a",)), "event_time"),
    ],
)  # fmt: skip
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


def test_event_time_string_rejected(tmp_path: Path, engine: SparkEngine) -> None:
    """writer.event_time_string_rejected"""
    harness = Harness(tmp_path, engine.session, ev.SetVocab(event_time_column="date"))
    with pytest.raises(BadInputError, match="`date` is STRING, it must be DATE or TIMESTAMP"):
        harness.write_csv(["date", "city"], [["2020-01-01", "A"]], "date STRING, city STRING")


def test_case_sensitive_columns(tmp_path: Path, engine: SparkEngine) -> None:
    """writer.case_sensitive_columns"""
    ledger = polling(MergeStrategyLedger(primary_key=("date",)))
    harness = Harness(tmp_path, engine.session, ev.SetVocab(event_time_column="date"), ledger)
    header, ddl = ["date", "UPPER", "lower"], "date DATE, UPPER STRING, lower STRING"
    harness.write_csv(header, [["2020-01-01", "a", "b"]], ddl)
    harness.write_csv(header, [["2020-01-01", "a", "b"], ["2020-01-02", "c", "d"]], ddl)
    assert pq.read_schema(harness.newest_slice()).names == [
        "offset",
        "op",
        "system_time",
        "date",
        "UPPER",
        "lower",
    ]
    assert harness.rows() == [[1, 0, "2010-01-01T12:00:00Z", "2020-01-02", "c", "d"]]


def test_every_case_is_run() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [i for i in CASES if i not in text and i not in {p.id for p in ROUNDS}]
    assert missing == []


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "009-merge-and-writer-rules.md").read_text(encoding="utf-8")
    for case_id in ("writer.object_link", "writer.happy_path_snapshot", "writer.parquet_encoding"):
        assert f"`{case_id}`" in text
