"""Documents and lines of JSON: streamed record by record as strictly as any line; what is odd is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import BadInputError, SchemaError
from odfchain.ingest.read_formats import open_input, read_step_for
from odfchain.limits import INPUT
from odfchain.odf.schema import parse_ddl
from odfchain.odf.sources import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
)
from odfchain.spark import json_values
from odfchain.spark.documents import BATCH_ROWS, LineFile, record_batches
from odfchain.spark.input_frames import first_bad_row
from odfchain.spark.jobs import explain
from odfchain.spark.json_values import (
    FeatureCollection,
    JsonArray,
    RecordError,
    json_text,
    parse_feature,
    parse_object,
)
from tests.kit.memory_growth import rows_and_growth
from tests.kit.reader_harness import Harness
from tests.kit.support import no_session, unchanged

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine


LONE = "line 1: not valid JSON: \\u%s is half of a surrogate pair, without the other half"
FEATURE = '{"type":"Feature","properties":{"a":1},"geometry":null}'


def put(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "in"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def array(tmp_path: Path, content: str | bytes, sub_path: str = "", encoding: str = "utf-8") -> list[str]:
    return [json_text(r) for r in JsonArray(put(tmp_path, content), encoding, sub_path).records()]


def fault(call: Callable[[], object]) -> tuple[int | None, str]:
    with pytest.raises(RecordError) as caught:
        call()
    return caught.value.row, caught.value.message


# --- the records of a document ---------------------------------------------------------------------


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    record = '{"a":1.50,"b":0.0000001,"c":123456789012345678901234567890,"d":-0.0,"e":1E+5,"f":0.10000000000000000000000001}'
    assert array(tmp_path, f"[{record}]".replace("1E+5", " 1E5 ")) == [record]


def test_every_kind_of_value_is_carried(tmp_path: Path) -> None:
    value = {"s": 'é"\\\n\u0000😀', "n": None, "t": True, "f": False, "o": {}, "l": [[], {}, [1, [2]], None]}
    assert [json.loads(r) for r in array(tmp_path, json.dumps([value, value]))] == [value, value]


def test_what_surrounds_the_array_is_passed_over(tmp_path: Path) -> None:
    text = '{"x":{"a":[{"no":1}]},"a":{"y":[1,{"b":[]}],"b":[{"yes":1}],"z":{"b":1}},"w":[[{"a":1}]]}'
    assert array(tmp_path, text, "a.b") == ['{"yes":1}']


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252"])
def test_encodings_with_and_without_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    codec = "utf-8" if encoding == "utf-8-sig" else encoding
    assert array(tmp_path, '[{"ä":"é"}]'.encode(encoding), encoding=codec) == ['{"ä":"é"}']


@pytest.mark.parametrize(
    ("text", "sub_path", "row", "message"),
    [
        ('{"a":{"b":{}}}', "a.b.c", None, "Sub-path not found: a.b.c"),
        ('{"a":{"x":{}}}', "a.b.c", None, "Sub-path not found: a.b"),
        ('{"a":5}', "a.b.c", None, "Sub-path not found: a.b"),
        ('{"a":null}', "a", None, "Sub-path not found: a"),
        ("[]", "a", None, "Sub-path not found: a"),
        ("null", "", None, "Sub-path does not specify an array: ."),
        ('{"a":[],"b":0,"a":[]}', "a", None, "Sub-path occurs twice: a"),
        ('[{"a":1}, [2]]', "", 2, "not a JSON object"),
        ("[1]", "", 1, "not a JSON object"),
        ('[{"a":1},{"a":tru}]', "", 2, "not valid JSON: lexical error: invalid string in json text."),
        ('[{"a":1},{"a":NaN}]', "", 2, "not valid JSON: lexical error: invalid char in json text."),
        ('[{"a":1},{"a":', "", 2, "not valid JSON: parse error: premature EOF"),
        ('{"a":[{"a":1}],"b":', "a", None, "not valid JSON: parse error: premature EOF"),
        ('[{"a":1,"b":2,"a":3}]', "", 1, "key 'a' occurs twice in one object"),
        ('[{"a":1},{"b":[{"x":1,"x":1}]}]', "", 2, "key 'x' occurs twice in one object"),
        (r'[{"a":"\ud800"}]', "", 0, LONE % "d800"),
        (r'[{"a":"\\\udc00\ud800"}]', "", 0, LONE % "dc00"),
        (r'[{"\ud800x":1}]', "", 0, LONE % "d800"),
        ('[]"', "", None, "not valid JSON: parse error: trailing garbage"),
        ('[]"x}', "", None, "not valid JSON: parse error: trailing garbage"),
        ("[] []", "", None, "not valid JSON: parse error: trailing garbage"),
        ("  ", "", None, "not valid JSON: parse error: premature EOF"),
        (b'[\n{"a":1},\n{"a":"\xff"}]', "", 0, "line 3: byte 0xff is not valid utf-8"),
        (b'[{"a":"\xc3', "", 0, "line 1: byte 0xc3 is not valid utf-8"),
        ('[{"a":1},{"a":' + "7" * 5000 + "}]", "", 2, "a number of more than 1,000 digits"),
        ('[{"a":1},{"a":0.' + "7" * 2000 + "}]", "", 2, "a number of more than 1,000 digits"),
        ('[{"a":1},{"a":1e' + "7" * 30 + "}]", "", 2, "a number of more than 1,000 digits"),
    ],
)
def test_a_bad_document(
    tmp_path: Path, text: str | bytes, sub_path: str, row: int | None, message: str
) -> None:
    assert fault(lambda: array(tmp_path, text, sub_path)) == (row, message)


def test_depth_is_bounded_in_and_around_records(tmp_path: Path) -> None:
    limit = INPUT.json_depth
    inside = '[{"a":' + "[" * limit + "]" * limit + "}]"
    assert len(array(tmp_path, inside)) == 1
    too_deep = (1, "nested more than 200 levels deep")
    assert fault(lambda: array(tmp_path, '[{"a":' + "[" * 100_000)) == too_deep
    around = '{"x":' + '{"x":' * 1_000
    assert fault(lambda: array(tmp_path, around, "a")) == (None, too_deep[1])
    features = '{"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"coordinates":'
    path = put(tmp_path, features + "[" * 100_000)
    assert fault(lambda: list(FeatureCollection(path).records())) == too_deep


def test_the_size_of_a_record_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "INPUT", dataclasses.replace(INPUT, record_bytes=1 << 20))
    many = ",".join(['{"a":"' + "x" * 1_000 + '"}'] * 3_000)
    assert len(array(tmp_path, f"[{many}]")) == 3_000, "many records may be larger together"
    huge = '{"a":[' + ",".join(["1"] * 1_000_000) + "]}"
    assert fault(lambda: array(tmp_path, f"[{{}},{huge}]"))[0] == 2
    around = '{"x":[' + many + '],"a":[{"b":1}]}'
    assert array(tmp_path, around, "a") == ['{"b":1}'], "and so may what is passed over"


# --- features --------------------------------------------------------------------------------------


def collection(tmp_path: Path, text: str) -> list[str]:
    return [json_text(r) for r in FeatureCollection(put(tmp_path, text)).records()]


def test_geometries_have_sorted_keys_and_their_own_numbers(tmp_path: Path) -> None:
    text = (
        '{"features":[{"geometry":{"type":"GeometryCollection","geometries":'
        '[{"type":"Point","coordinates":[0.0, 1.50, -7]}]},"properties":null,"type":"Feature"}],'
        '"crs":{"a":[1]},"type":"FeatureCollection"}'
    )
    (record,) = collection(tmp_path, text)
    expected = '{"geometries":[{"coordinates":[0.0,1.50,-7],"type":"Point"}],"type":"GeometryCollection"}'
    assert json.loads(record) == {"geometry": expected}


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("[]", None, "Expected FeatureCollection type but got none"),
        ("{}", None, "Expected FeatureCollection type but got none"),
        ('{"features":[]}', None, "Expected FeatureCollection type but got none"),
        ('{"type":"Feature"}', None, 'Expected FeatureCollection type but got "Feature" instead'),
        ('{"type":[1]}', None, "Expected FeatureCollection type but got [1] instead"),
        ('{"type":"FeatureCollection"}', None, "the FeatureCollection has no 'features'"),
        ('{"type":"FeatureCollection","features":{}}', None, "'features' is not an array"),
        ('{"type":"FeatureCollection","features":[],"features":[]}', None, "'features' occurs twice"),
        (
            f'{{"features":[{FEATURE}],"type":"x"}}',
            None,
            'Expected FeatureCollection type but got "x" instead',
        ),
        (f'{{"features":[{FEATURE},7]}}', 2, "not a JSON object"),
        (f'{{"features":[{FEATURE},{{}}]}}', 2, "Expected Feature type but got none"),
        (f'{{"features":[{FEATURE},{{"type":1}}]}}', 2, "Expected Feature type but got 1 instead"),
        ('{"features":[{"geometry":[]}]}', 1, "Invalid geojson: 'geometry' is neither an object nor null"),
        ('{"features":[{"properties":1}]}', 1, "Invalid geojson: 'properties' is neither an object nor null"),
    ],
)
def test_a_bad_collection(tmp_path: Path, text: str, row: int | None, message: str) -> None:
    assert fault(lambda: collection(tmp_path, text)) == (row, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{FEATURE}\n\n[1]", "line 3: not a JSON object"),
        (f"{FEATURE}\n{{}}", "line 2: Expected Feature type but got none"),
        (f"{FEATURE}\n{FEATURE[:-1]}\n", "line 2: not valid JSON: Expecting ',' delimiter at column 56"),
        (f"{FEATURE} {FEATURE}", "line 1: something follows the JSON value, at column 57"),
        ('{"type":"Feature","type":"Feature"}', "line 1: key 'type' occurs twice in one object"),
    ],
)
def test_a_bad_line_of_features(tmp_path: Path, text: str, message: str) -> None:
    error = LineFile(Path(put(tmp_path, text)), parse_feature).first_bad(None, "f")
    assert str(error).startswith(f"f: {message}")


def test_a_line_of_features() -> None:
    assert parse_feature(FEATURE + "\r\n") == {"a": "1", "geometry": None}


# --- batches ---------------------------------------------------------------------------------------


def test_batches_are_bounded(tmp_path: Path) -> None:
    put(tmp_path, "[" + ",".join(['{"a":1}'] * (2 * BATCH_ROWS + 1)) + "]")
    batches = list(record_batches(JsonArray(str(tmp_path / "in")).records()))
    assert [len(b) for b in batches] == [BATCH_ROWS, BATCH_ROWS, 1]


IMPORTS = """
from odfchain.odf.schema import parse_ddl
from odfchain.spark.documents import piece_batches, record_batches
from odfchain.spark.json_pieces import SplitDocument, TypedColumn
from odfchain.spark.json_values import JsonArray
fields = parse_ddl(("text STRING", "numbers ARRAY<DOUBLE>")).fields
"""
PIECES = "piece_batches(document := SplitDocument.of(JsonArray(path)), range(len(document.pieces))%s)"


@pytest.mark.parametrize(
    ("way", "width", "count", "times"),
    [
        pytest.param(
            "record_batches(JsonArray(path).records())", 2_000, 5_000, 12, id="whole", marks=pytest.mark.soak
        ),
        pytest.param(PIECES % "", 500, 40_000, 6, id="pieces"),
        pytest.param(
            PIECES % ", fields, tuple(TypedColumn.of(f) for f in fields)", 500, 40_000, 6, id="typed"
        ),
    ],
)
def test_memory_does_not_grow_with_the_document(
    tmp_path: Path, way: str, width: int, count: int, times: int
) -> None:
    element = '{"text":"' + "x" * width + '","numbers":[1,2.5]}'
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_text("[" + ",".join([element] * count) + "]")
    large.write_text("[" + ",".join([element] * count * times) + "]")
    rows, grown = rows_and_growth(IMPORTS, way, small, large)
    assert rows == count * times
    assert grown < 16, "less than its size"


# --- on Spark --------------------------------------------------------------------------------------


def refused(path: str, step: ReadStep, engine: SparkEngine) -> BadInputError:
    """The error for an input that is refused, when it is opened or when it is written."""
    harness = Harness(Path(path).parent / "d", engine.session)
    with unchanged(harness.dataset.folder), pytest.raises(BadInputError) as caught:
        harness.write(Path(path).read_bytes(), step)
    return caught.value


def test_a_document_with_a_schema_and_formats(tmp_path: Path, engine: SparkEngine) -> None:
    step = ReadStepJson(
        sub_path="data",
        ddl_schema=("d DATE", "t TIMESTAMP", "n DECIMAL(10,7)", "l ARRAY<INT>", "s STRING"),
        date_format="dd.MM.yyyy",
        timestamp_format="dd.MM.yyyy HH:mm",
        encoding="latin-1",
    )
    row = '{"s": "é", "d": "05.01.2020", "t": "05.01.2020 10:30", "n": 0.0000001, "l": [1, 2], "more": 1}'
    harness = Harness(tmp_path / "d", engine.session)
    harness.write(f'{{"data": [{row}, {{"t": 1500, "s": 2.50}}]}}'.encode("latin-1"), step)
    first, second = (r[4:] for r in harness.rows())
    assert [str(v) for v in first] == ["2020-01-05", "2020-01-05T10:30:00Z", "1E-7", "[1, 2]", "é"]
    assert second == [None, "1970-01-01T00:00:01.500Z", None, None, "2.50"], "milliseconds; digits as written"


def test_types_are_inferred_from_all_records(tmp_path: Path, engine: SparkEngine) -> None:
    rows = [{"b": 1, "none": None}] * 5_000 + [{"b": 1.5, "a": {"x": [1]}}]
    path = Path(put(tmp_path, json.dumps(rows)))
    opened = open_input(lambda: engine.session, path, ReadStepJson(), scratch=tmp_path)
    kinds = [(f.name, f.value_type.KIND, f.optional) for f in opened.schema.fields]
    assert kinds == [("a", "Struct", True), ("b", "Float64", True), ("none", "String", True)]
    assert opened.frame.count() == 5_001


@pytest.mark.parametrize("step", [ReadStepJson(), ReadStepGeoJson(), ReadStepNdGeoJson()])
def test_nothing_in_it(tmp_path: Path, engine: SparkEngine, step: ReadStep) -> None:
    """Without a schema there are no columns then, as for an empty file; with one there are no rows."""
    empty = {"Json": "[ ]", "GeoJson": '{"type":"FeatureCollection","features":[]}', "NdGeoJson": "\n\n"}
    path = Path(put(tmp_path, empty[step.KIND]))
    assert open_input(lambda: engine.session, path, step, scratch=tmp_path) is None
    declared = type(step)(ddl_schema=("a INT",))
    source = open_input(lambda: engine.session, path, declared, scratch=tmp_path)
    assert source.frame.count() == 0


def test_records_without_any_property(tmp_path: Path, engine: SparkEngine) -> None:
    error = refused(put(tmp_path, "[{}]"), ReadStepJson(), engine)
    assert "the objects have no properties, so there are no columns" in str(error)


BROKEN = [
    ('[{"a":1},{"a":', 2, "row 2: not valid JSON: parse error: premature EOF"),
    ('[{"a":1},5]', 2, "row 2: not a JSON object"),
    ('{"a":1}', None, "Sub-path does not specify an array: ."),
]
UNFIT = [
    ('[{"a":1,"l":[1]},{"a":"x"}]', 2, "row 2: column `a`: 'x' is not a valid INT"),
    ('[{"a":1},{"a":1.50}]', 2, "row 2: column `a`: '1.50' is not a valid INT"),
    ('[{"a":1},{"a":2},{"a":null}]', 3, "row 3: Column `a` contains 1 null values"),
    (
        '[{"a":1},{"a":2,"l":"no list"}]',
        2,
        "row 2: column `l`: a value does not fit the nested type of its column",
    ),
    ('[{"a":1},{"a":2,"l":[1,2.5]}]', 2, "row 2: column `l`: ['1', '2.5'] is not a valid ARRAY<INT>"),
    ('[{"a":1},{"A":2}]', 2, "row 2: key 'A' differs from column 'a' only by case"),
]
DECLARED = ReadStepJson(ddl_schema=("a INT NOT NULL", "l ARRAY<INT>"))


@pytest.mark.parametrize(
    ("step", "text", "row", "message"),
    [(DECLARED, *case) for case in BROKEN + UNFIT] + [(ReadStepJson(), *case) for case in BROKEN],
)
def test_bad_input_names_file_and_row(
    tmp_path: Path, engine: SparkEngine, step: ReadStep, text: str, row: int | None, message: str
) -> None:
    error = refused(put(tmp_path, text), step, engine)
    assert message in str(error)
    assert error.row == row
    assert str(error).startswith(str(tmp_path))
    assert len(str(error).splitlines()) == 1


def test_an_unknown_encoding(tmp_path: Path) -> None:
    path = Path(put(tmp_path, "[]"))
    with pytest.raises(SchemaError, match="unknown encoding 'klingon'"):
        open_input(no_session, path, ReadStepJson(encoding="klingon"), scratch=tmp_path)


# --- names of formats ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("a.json", ReadStepJson), ("a.JSONL", ReadStepNdJson), ("a.geojson", ReadStepGeoJson),
        ("a.ndgeojson", ReadStepNdGeoJson), ("a.shp.zip", ReadStepEsriShapefile), ("a.shp", ReadStepEsriShapefile),
    ],
)  # fmt: skip
def test_extensions(name: str, step: type) -> None:
    assert type(read_step_for(Path(name), None, None)) is step


def test_an_archive_is_a_shapefile_unless_something_else_is_declared() -> None:
    assert isinstance(read_step_for(Path("a.zip"), None, None), ReadStepEsriShapefile)
    assert isinstance(read_step_for(Path("a.zip"), None, ReadStepCsv()), ReadStepCsv)
    declared: Any = ReadStepEsriShapefile(sub_path="x/*.shp")
    assert read_step_for(Path("a.zip"), None, declared) is declared
    assert read_step_for(Path("a.zip"), "shapefile", declared) is declared


def test_another_format_keeps_the_schema() -> None:
    declared = ReadStepCsv(separator=";", ddl_schema=("a INT",))
    assert read_step_for(Path("a"), "geojson", declared) == ReadStepGeoJson(ddl_schema=("a INT",))


# --- What JSON leaves open is refused with file and line: by one rule, for lines, documents and features ---


FIELDS = parse_ddl(("a BIGINT", "s STRING", "o STRUCT<x: INT>")).fields
AFTER = "something follows the JSON value, at column %s"
BAD = [
    ('{"a":1}{"a":2}', AFTER % "8: '{\"a\":2}'"),
    ('{"a":1} oops', AFTER % "9: 'oops'"),
    ('{"a":1}]', AFTER % "8: ']'"),
    ('{"a":1}\0', AFTER % r"8: '\x00'"),
    ('{"a":1} //x', AFTER % "9: '//x'"),
    ('{"a":1},', AFTER % "8: ','"),
    ('{"a":1,"a":1}', "key 'a' occurs twice in one object"),
    ('{"s":[{"x":1,"x":2}]}', "key 'x' occurs twice in one object"),
    ('{"a":NaN}', "not valid JSON: NaN is not a JSON number"),
    ('{"s":-Infinity}', "not valid JSON: -Infinity is not a JSON number"),
    ("{'a':1}", "not valid JSON: Expecting property name enclosed in double quotes at column 2"),
    ('{"a":01}', "not valid JSON: Expecting ',' delimiter at column 7"),
    ('{"a":1,}', "not valid JSON: Expecting property name enclosed in double quotes at column 8"),
    ('{"s":"x\ty"}', "not valid JSON: Invalid control character at column 8"),
    ('{"s":"\\x"}', "not valid JSON: Invalid \\escape at column 7"),
    ('{"s":"\\ud800"}', "not valid JSON: \\ud800 is half of a surrogate pair, without the other half"),
    ('{"\\udc00":1}', "not valid JSON: \\udc00 is half of a surrogate pair, without the other half"),
    ('{"s":' + "[" * 200 + "]" * 200 + "}", "nested more than 200 levels deep"),
    ('{"s":' + "[" * 100_000, "nested more than 200 levels deep"),
    ('{"a":' + "7" * 1_001 + "}", "a number of more than 1,000 digits"),
    ("\ufeff{}", "not valid JSON: Expecting value at column 1"),
    ("\x1c", "not valid JSON: Expecting value at column 1"),
    ("\xa0", "not valid JSON: Expecting value at column 1"),
    ('"x"', "not a JSON object"),
    ("null", "not a JSON object"),
    ('{"A":1}', "key 'A' differs from column 'a' only by case"),
    ('{"a":1,"A":2}', "key 'A' differs from column 'a' only by case"),
    ('{"o":{"X":1}}', "column `o`: key 'X' differs from column 'x' only by case"),
    ('{"o":[1]}', "column `o`: a value does not fit the nested type of its column: '[1]' where an object was expected"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "in"
    path.write_text('\ufeff{"a":1}\n \t\n' + line + '\n{"a":3}\n', encoding="utf-8", newline="")
    assert str(LineFile(path, parse_object).first_bad(FIELDS, "f.ndjson")) == f"f.ndjson: line 3: {message}"


def test_what_is_json_is_read_as_it_is_written() -> None:
    text = ' {"é":"\\ud83d\\ude00\\u0000","n":-0,"m":1.50e+400,"l":[{},null,[true]]}\r\n'
    assert parse_object(text) == {"é": "😀\0", "n": "-0", "m": "1.50e+400", "l": [{}, None, [True]]}
    assert len(parse_object('{"s":' + "[" * 199 + "]" * 199 + "}")) == 1


def test_keys_that_are_no_columns_are_left_out(tmp_path: Path) -> None:
    """Whatever they hold, they have to be JSON."""
    path = tmp_path / "in"
    path.write_text('{"a":1,"zip":{"b":[1]}}')
    assert LineFile(path, parse_object).first_bad(FIELDS, "f") is None
    path.write_text('{"a":1,"zip":{"b":1,"b":1}}')
    assert LineFile(path, parse_object).first_bad(FIELDS, "f") is not None
    with pytest.raises(RecordError, match="occurs twice"):
        parse_object('{"zip":1,"zip":1}')


# --- on Spark --------------------------------------------------------------------------------------


def read(engine: SparkEngine, path: Path, text: str, *ddl: str) -> str:
    """The rows, or why the file is refused, as the writer says it."""
    path.write_text(text, encoding="utf-8", newline="")
    opened = None
    try:
        step = ReadStepNdJson(ddl_schema=ddl or None)
        opened = open_input(lambda: engine.session, path, step, scratch=path.parent)
        assert opened is not None
        return str([tuple(r) for r in opened.frame.drop("__odfchain_row").collect()])
    except BadInputError as error:
        return str(error).removeprefix(f"{path}: ")
    except Exception as error:
        assert opened is not None
        found = first_bad_row(opened, frozenset()) or explain(error)
        return str(found).removeprefix(f"{path}: ")


def test_lines_on_spark_with_a_schema_and_without(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "in"
    dropped = '{"a":1}\n{"a":1}{"a":2}\n'
    assert read(engine, path, dropped, "a BIGINT") == "line 2: " + AFTER % "8: '{\"a\":2}'"
    assert read(engine, path, dropped) == "line 2: " + AFTER % "8: '{\"a\":2}'"
    apart = "differ only by case"
    assert read(engine, path, '{"a":1}\n\n{"A":1}\n') == f"line 3: the keys 'a' and 'A' {apart}"
    nested = '{"o":[{"x":1}]}\n{"o":[{"y":1},{"X":2}]}\n'
    assert read(engine, path, nested) == f"line 2: the keys 'x' and 'X' {apart}"
    unnamed = "line 2: a key is empty, which no column can be; declare a schema to leave it out"
    assert read(engine, path, '{"a":1}\n{"":1,"a":2}\n') == unnamed
    assert read(engine, path, '{"a":1}\n{"b":[{"":1}]}\n') == unnamed
    assert read(engine, path, '{"":1,"a":2}\n', "a BIGINT") == "[(2,)]"
    reserved = read(engine, path, '{"__odfchain_row":1}\n')
    assert reserved.startswith("column '__odfchain_row': names that begin")
    assert read(engine, path, '{"a":1}\r\n\r\n{"a":2}\r{"a":3}') == "[(1,), (2,), (3,)]"
    assert read(engine, path, '{"a":{},"b":1}\n') == "[('{}', 1)]", "no column is dropped"
    deep = '{"a":' + "[" * 40 + "]" * 40 + "}"
    assert read(engine, path, deep).startswith("line 1: column 'a': nested more than 32 levels deep")


NESTED = (
    "l ARRAY<INT>", "d ARRAY<DOUBLE>", "m ARRAY<DECIMAL(4,2)>", "t ARRAY<DATE>", "o STRUCT<x: INT, `y.z`: STRING>"
)  # fmt: skip


def test_nested_values_follow_the_rules_of_columns(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "in"
    good = '{"l":[1,null],"d":[1e3],"m":[1.250],"t":["2020-01-05"],"o":{"x":7,"y.z":{"k":1.10}}}'
    assert read(engine, path, good, *NESTED) == (
        "[([1, None], [1000.0], [Decimal('1.25')], [datetime.date(2020, 1, 5)], Row(x=7, y.z='{\"k\":1.10}'))]"
    )
    for bad, column in [
        ('{"l":[1,2.5]}', "l"), ('{"l":[3000000000]}', "l"), ('{"d":[1e400]}', "d"), ('{"m":[1.005]}', "m"),
        ('{"t":["10:00"]}', "t"), ('{"o":{"x":"y"}}', "o"),
    ]:  # fmt: skip
        assert read(engine, path, f"{{}}\n{bad}\n", *NESTED).startswith(f"row 2: column `{column}`: "), bad
