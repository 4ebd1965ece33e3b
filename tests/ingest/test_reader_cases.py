"""`reader_cases.json`: CSV, NDJSON and Parquet; where this differs stands in RFC-010. The rest comes later."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import plain
from support import ROOT, conformance

from odfchain.errors import BadInputError, OdfchainError
from odfchain.ingest.formats import open_input
from odfchain.metadata import data_schema as ds
from odfchain.metadata.ddl import type_name
from odfchain.metadata.enums import TimeUnit
from odfchain.metadata.sources import ReadStep, ReadStepCsv, ReadStepNdJson, ReadStepParquet
from odfchain.spark.failure import explain
from odfchain.spark.read import first_bad_row

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
TYPES: dict[str, ds.DataType] = {
    "string": ds.DataTypeString(), "int32": ds.DataTypeInt32(), "int64": ds.DataTypeInt64(),
    "uint64": ds.DataTypeUInt64(), "float64": ds.DataTypeFloat64(), "bool": ds.DataTypeBool(),
    "date": ds.DataTypeDate(), "timestamp(ms,UTC)": MS, "timestamp(s, no tz)": MS,
}  # fmt: skip
STEPS = {"Csv": ReadStepCsv, "NdJson": ReadStepNdJson, "Parquet": ReadStepParquet}
CASES = [c for c in conformance("reader_cases")["cases"] if c["step"]["kind"] in STEPS]

OK = {
    "csv.quote_empty": (["a", "b"], [["a", "b"]]),
    "csv.encoding_other": (["a"], [["x"]]),
    "csv.escape_empty": (["a", "b"], [["a", "b"]]),
    "ndjson.number_into_string": (["a"], [["1"]]),
}
"""Read here: quoting can be turned off, encodings are supported, a JSON number keeps its text as a string."""

assert len(CASES) > 30

REFUSED = {
    "csv.date_format_other": "'x' is not a valid DATE",
    "ndjson.float_into_int_truncates": "'1.9' is not a valid BIGINT",
    "ndjson.options": "not valid JSON",
}
"""Here these are options that work, or values that would be changed silently."""


def schema_of(columns: list[list[str]]) -> ds.DataSchema:
    fields = []
    for name, kind, needed in columns:
        data_type = TYPES[kind]
        fields.append(
            ds.DataField(name=name, type=data_type if needed == "required" else ds.optional(data_type))
        )
    return ds.DataSchema(fields=tuple(fields))


def step_of(case: dict[str, Any]) -> ReadStep:
    options = {k: v for k, v in case["step"].items() if k not in ("kind", "schema")}
    names = {"inferSchema": "infer_schema", "dateFormat": "date_format"}
    fields = {names.get(k, k): v for k, v in options.items()}
    if "schema" in case["step"]:
        fields["schema"] = schema_of(case["step"]["schema"])
    elif case["id"] in OK:
        fields["schema"] = schema_of([[n, "string", "optional"] for n in OK[case["id"]][0]])
    elif case["id"] == "csv.date_format_other":
        fields["schema"] = schema_of([["a", "date", "optional"]])
    step: ReadStep = STEPS[case["step"]["kind"]](**fields)
    return step


def write_input(case: dict[str, Any], path: Path) -> None:
    given = case["input"]
    if isinstance(given, dict):
        arrow = {"uint64": pa.uint64(), "int64": pa.int64(), "string": pa.string()}
        schema = pa.schema(
            [
                pa.field(n, arrow.get(t, pa.timestamp("ms", "UTC")), r == "optional")
                for n, t, r in given["file_columns"]
            ]
        )
        rows = [
            {n: time_of(v) if t.startswith("timestamp") else v
             for (n, t, _), v in zip(given["file_columns"], row, strict=True)}
            for row in given["file_rows"]
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    elif given == "<bytes 0xE9 0x0A>":
        path.write_bytes(b"\xe9\x0a")
    else:
        path.write_text(given)


def time_of(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def read(case: dict[str, Any], tmp_path: Path, engine: SparkEngine) -> tuple[ds.DataSchema, list[list[Any]]]:
    """The schema and the rows, or the project's error."""
    path = tmp_path / "input"
    write_input(case, path)
    opened = open_input(lambda: engine.session, path, step_of(case), scratch=tmp_path)
    source = opened.frame
    assert source is not None
    names = source.schema.names
    try:
        rows = source.frame.select(*[f"`{n}`" for n in names]).collect()
    except Exception as error:
        found = opened.malformed() if opened.malformed is not None else None
        raise found or first_bad_row(source, frozenset()) or explain(error) from error
    return source.schema, [[plain(v) for v in row] for row in rows]


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["id"]) for c in CASES if c["id"] != "parquet.reserved_columns"]
)
def test_case(case: dict[str, Any], tmp_path: Path, engine: SparkEngine) -> None:
    expect = case["expect"]
    if case["id"] in OK:
        assert read(case, tmp_path, engine)[1] == OK[case["id"]][1]
    elif case["id"] in REFUSED:
        with pytest.raises(BadInputError, match=REFUSED[case["id"]]):
            read(case, tmp_path, engine)
    elif "error" in expect or "error_at" in expect:
        with pytest.raises(OdfchainError) as caught:
            read(case, tmp_path, engine)
        assert "Spark failed" not in str(caught.value), "an explanation, not what Spark says"
    else:
        check(case, *read(case, tmp_path, engine))


def check(case: dict[str, Any], schema: ds.DataSchema, rows: list[list[Any]]) -> None:
    expect = case["expect"]
    if expect.get("same_columns_and_rows"):
        expect = {"columns": case["input"]["file_columns"], "rows": case["input"]["file_rows"]}
    if "column_names" in expect:
        assert list(schema.names) == expect["column_names"]
    if case["id"] == "ndjson.nested":
        assert type_name(schema.fields[0].type) == "STRUCT<b ARRAY<BIGINT>>"
    elif "columns" in expect:
        assert schema == schema_of(expect["columns"])
    if "rows" in expect:
        assert rows == expect["rows"]


def test_parquet_reserved_columns(tmp_path: Path, engine: SparkEngine) -> None:
    """parquet.reserved_columns: an exported slice is read; undeclared, its system columns are renamed."""
    from harness import Harness

    table = pa.table({"offset": pa.array([7], pa.int64()), "op": pa.array([0], pa.int32()), "city": ["A"]})
    pq.write_table(table, tmp_path / "slice.parquet")
    harness = Harness(tmp_path, engine.session)
    harness.write((tmp_path / "slice.parquet").read_bytes(), ReadStepParquet())
    assert pq.read_schema(harness.newest_slice()).names == [
        "offset", "op", "system_time", "event_time", "_offset", "_op", "city"
    ]  # fmt: skip
    declared = ReadStepParquet(ddl_schema=("offset BIGINT", "city STRING"))
    with pytest.raises(BadInputError, match="`offset` conflicts with the system column name"):
        Harness(tmp_path / "other", engine.session).write((tmp_path / "slice.parquet").read_bytes(), declared)


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "010-reading-text.md").read_text(encoding="utf-8")
    for case_id in [*OK, *REFUSED]:
        assert case_id == "csv.escape_empty" or f"`{case_id}`" in text, case_id
