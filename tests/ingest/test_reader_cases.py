"""`reader_cases.json`, every case; where we differ stands in RFC-010.

The shapefiles are made here: the file of `shapefile.schema` and `shapefile.infer` is not at hand, so one with
the same members, columns, 27 names in order and encoding stands in for it. Its shapes are squares.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import BadInputError, OdfchainError
from odfchain.ingest.read_formats import open_input
from odfchain.lazy import F
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.odf.sources import (
    ReadStep,
    ReadStepEsriShapefile,
    ReadStepParquet,
)
from odfchain.odf.tree import from_tree
from odfchain.spark.input_frames import FINER, first_bad_row
from odfchain.spark.jobs import explain
from tests.kit.reader_harness import Harness, plain
from tests.kit.shapefiles import SQUARE_TEXT, WGS84, archive, named, parts, ukraine
from tests.kit.support import ROOT, conformance

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
TYPES: dict[str, ds.DataType] = {
    "string": ds.DataTypeString(), "int32": ds.DataTypeInt32(), "int64": ds.DataTypeInt64(),
    "uint64": ds.DataTypeUInt64(), "float64": ds.DataTypeFloat64(), "bool": ds.DataTypeBool(),
    "date": ds.DataTypeDate(), "timestamp(ms,UTC)": MS, "timestamp(s, no tz)": MS,
}  # fmt: skip
CASES = conformance("reader_cases")["cases"]

OK = {
    "csv.quote_empty": (["a", "b"], [["a", "b"]]),
    "csv.encoding_other": (["a"], [["x"]]),
    "csv.escape_empty": (["a", "b"], [["a", "b"]]),
    "ndjson.number_into_string": (["a"], [["1"]]),
}
"""Read here: quoting can be turned off, encodings are supported, a JSON number keeps its text as a string."""

assert len(CASES) == 58

REFUSED = {
    "csv.date_format_other": "'x' is not a valid DATE",
    "ndjson.float_into_int_truncates": "'1.9' is not a valid BIGINT",
    "ndjson.options": "not valid JSON",
}
"""Here these are options that work, or values that would be changed silently."""

DIFFERENT = {
    "geojson.null_geometry": "null, as RFC 7946 allows; the reference refuses the file",
    "geojson.missing_type_key": "one line that says so; the reference fails without an explanation",
    "json.malformed": "bad input with the record's number; the reference reports an internal error",
    "shapefile.infer": "columns without any value are text, since a slice has no null type",
    "shapefile.dates": "2020-01-05; the reference does not pad",
    "shapefile.encoding": ".cpg and .cst files count, else UTF-8 when valid, else ISO-8859-1",
    "shapefile.projection": "kept as they are too, but a note says so unless it is WGS 84",
}
"""What the other formats do better here, by case."""

FEATURE = (
    '{"type":"Feature","id":7,"bbox":[0,0,1,1],"properties":{"a":1,"geometry":"x"},'
    '"geometry":{"type":"Point","coordinates":[1.0,2]}}'
)
MADE = {"geojson.feature_id_bbox_dropped": f'{{"type":"FeatureCollection","features":[{FEATURE}]}}'}
"""Inputs that a case only describes."""


def schema_of(columns: list[list[str]]) -> ds.DataSchema:
    def field(name: str, kind: str, needed: str) -> ds.DataField:
        return ds.DataField(name=name, type=TYPES[kind] if needed == "required" else ds.optional(TYPES[kind]))

    return ds.DataSchema(fields=tuple(field(*column) for column in columns))


def step_of(case: dict[str, Any]) -> ReadStep:
    options = {name: value for name, value in case["step"].items() if name != "schema"}
    columns = case["step"].get("schema")
    if case["id"] in OK:
        columns = columns or [[name, "string", "optional"] for name in OK[case["id"]][0]]
    elif case["id"] == "csv.date_format_other":
        columns = columns or [["a", "date", "optional"]]
    step: ReadStep = from_tree(ReadStep, options)  # type: ignore[arg-type]
    return dataclasses.replace(step, schema=schema_of(columns)) if columns else step


def write_input(case: dict[str, Any], path: Path) -> None:
    given = MADE.get(case["id"], case["input"])
    if isinstance(given, dict):
        arrow = {"uint64": pa.uint64(), "int64": pa.int64(), "string": pa.string()}
        arrays, fields, columns = [], [], zip(*given["file_rows"], strict=True)
        for (name, kind, needed), values in zip(given["file_columns"], columns, strict=True):
            times = kind.startswith("timestamp")
            fields.append(
                pa.field(name, pa.timestamp("ms", "UTC") if times else arrow[kind], needed == "optional")
            )
            arrays.append(
                pa.array(map(dt.datetime.fromisoformat, values) if times else values, fields[-1].type)
            )
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    elif given == "<bytes 0xE9 0x0A>":
        path.write_bytes(b"\xe9\x0a")
    else:
        path.write_text(given)


def read(case: dict[str, Any], tmp_path: Path, engine: SparkEngine) -> tuple[ds.DataSchema, list[list[Any]]]:
    """The schema and the rows, or the project's error."""
    path = tmp_path / "input"
    write_input(case, path)
    source = open_input(lambda: engine.session, path, step_of(case), scratch=tmp_path)
    names = source.schema.names
    try:
        rows = source.frame.select(*[f"`{n}`" for n in names]).collect()
    except Exception as error:
        raise first_bad_row(source, frozenset()) or explain(error) from error
    if source.reader is not None:
        finer = [f"{FINER}{name}" for name in source.finer]
        batches = list(source.reader())
        numbered = source.frame.select(
            *[F.col(f"`{n}`").alias(f"c{i}") for i, n in enumerate([*names, *finer])]
        )
        given = [list(zip(*[c.to_pylist() for c in batch.columns], strict=True)) for batch in batches]
        assert all(batch.schema.names == [*names, *finer] for batch in batches)
        assert repr([row for part in given for row in part]) == repr(
            list(zip(*[c.to_pylist() for c in numbered.toArrow().columns], strict=True))
        )
    return source.schema, [[plain(v) for v in row] for row in rows]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c["id"])
        for c in CASES
        if c["id"] != "parquet.reserved_columns" and c["step"]["kind"] != "EsriShapefile"
    ],
)
def test_case(case: dict[str, Any], tmp_path: Path, engine: SparkEngine) -> None:
    expect = case["expect"]
    if case["id"] in OK:
        assert read(case, tmp_path, engine)[1] == OK[case["id"]][1]
    elif case["id"] in REFUSED:
        with pytest.raises(BadInputError, match=REFUSED[case["id"]]):
            read(case, tmp_path, engine)
    elif case["id"] == "geojson.null_geometry":
        assert read(case, tmp_path, engine)[1] == [[None, 0]]
    elif case["id"] == "geojson.feature_id_bbox_dropped":
        schema, rows = read(case, tmp_path, engine)
        assert list(schema.names) == ["a", "geometry"]
        assert rows == [[1, '{"coordinates":[1.0,2],"type":"Point"}']]
    elif case["id"] == "ndgeojson.blank_lines":
        assert [row[1:] for row in read(case, tmp_path, engine)[1]] == [[0, "A", "00101"], [1, "B", "00202"]]
    elif "error" in expect or "error_at" in expect:
        with pytest.raises(OdfchainError) as caught:
            read(case, tmp_path, engine)
        assert "Spark failed" not in str(caught.value), "an explanation, not what Spark says"
        if (said := str(expect.get("error", ""))).startswith("BadInput '"):
            assert str(caught.value).endswith(said.removeprefix("BadInput ")[1:-1])
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


# --- shapefiles ------------------------------------------------------------------------------------


def shapefile_case(case_id: str) -> dict[str, Any]:
    (found,) = [c for c in CASES if c["id"] == case_id]
    return dict(found)


def read_shapes(
    path: Path, step: ReadStepEsriShapefile, engine: SparkEngine
) -> tuple[ds.DataSchema, list[dict[str, Any]], tuple[str, ...]]:
    """(schema, rows, notes) of an archive."""
    notes: list[str] = []
    source = open_input(lambda: engine.session, path, step, scratch=path.parent, note=notes.append)
    rows = source.frame.select(*source.schema.names).collect()
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing unpacked is left"
    return source.schema, [r.asDict() for r in rows], tuple(notes)


def ukraine_zip(tmp_path: Path) -> Path:
    fields = shapefile_case("shapefile.schema")["input"]["dbf_fields"]
    return archive(tmp_path / "ukraine.zip", ukraine([tuple(f) for f in fields]))


def test_shapefile_schema(tmp_path: Path, engine: SparkEngine) -> None:
    """shapefile.schema, on a stand-in for its file."""
    case = shapefile_case("shapefile.schema")
    schema = schema_of(case["step"]["schema"])
    found, rows, _ = read_shapes(ukraine_zip(tmp_path), ReadStepEsriShapefile(schema=schema), engine)
    assert found == schema
    assert len(rows) == case["expect"]["rows_count"]
    assert {(r["iso"], r["name_0"]) for r in rows} == {(case["expect"]["iso"], case["expect"]["name_0"])}
    assert [r["name_1"] for r in rows] == case["expect"]["name_1_in_order"]


def test_shapefile_infer_and_encoding(tmp_path: Path, engine: SparkEngine) -> None:
    """shapefile.infer and shapefile.encoding, on a stand-in: as there, but no column has the type null."""
    columns = shapefile_case("shapefile.infer")["expect"]["columns"]
    found, rows, notes = read_shapes(ukraine_zip(tmp_path), ReadStepEsriShapefile(), engine)
    assert found == schema_of([[n, "string" if t == "null" else t, r] for n, t, r in columns])
    assert {n for n, t, _ in columns if t == "null"} == {n for n in found.names if rows[0][n] is None}
    (crimea,) = [r for r in rows if r["name_1"] == "Crimea"]
    assert crimea["varname_1"] == "Crimée|Criméia|Krim", "the .cst file says ISO-8859-1"
    assert crimea["geometry"] == SQUARE_TEXT
    assert notes == ()


DESCRIBED = (
    "shapefile.none", "shapefile.sub_path_glob", "shapefile.dates", "shapefile.projection",
    "shapefile.decompression",
)  # fmt: skip
ON_A_FILE = ("shapefile.schema", "shapefile.infer", "shapefile.encoding")
assert {*DESCRIBED, *ON_A_FILE} == {c["id"] for c in CASES if c["step"]["kind"] == "EsriShapefile"}


@pytest.mark.parametrize("case_id", DESCRIBED)
def test_shapefile_case(case_id: str, tmp_path: Path, engine: SparkEngine) -> None:
    """The cases that only describe their input."""
    files = parts([("d", "D")], [[dt.date(2020, 1, 5)]])
    path = tmp_path / "input"
    if case_id == "shapefile.none":
        archive(path, {"a.txt": b"x"})
        with pytest.raises(BadInputError, match=r"Archive does not contain any \.shp files"):
            read_shapes(path, ReadStepEsriShapefile(), engine)
    elif case_id == "shapefile.decompression":
        path.write_bytes(files["shp"])
        with pytest.raises(BadInputError, match="not a readable ZIP archive"):
            read_shapes(path, ReadStepEsriShapefile(), engine)
    elif case_id == "shapefile.sub_path_glob":
        archive(path, named("other/x", files) | named("dir/y", files))
        assert len(read_shapes(path, ReadStepEsriShapefile(sub_path="dir/*.shp"), engine)[1]) == 1
    else:
        archive(path, named("a", files) | {"a.prj": WGS84})
        _, rows, notes = read_shapes(path, ReadStepEsriShapefile(), engine)
        assert (rows, notes) == ([{"d": "2020-01-05", "geometry": SQUARE_TEXT}], ())


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "010-reading-text.md").read_text(encoding="utf-8")
    for case_id in [*OK, *REFUSED, *DIFFERENT]:
        assert case_id == "csv.escape_empty" or f"`{case_id}`" in text, case_id
