"""Pieces that Arrow's reader makes typed have the values that the strict rules give, or are left to these."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.ingest.read_formats import open_input
from odfchain.odf import schema as ds
from odfchain.odf.schema import parse_ddl
from odfchain.odf.sources import ReadStepJson
from odfchain.spark import json_pieces
from odfchain.spark.documents import DocumentInputError, LineFile, line_batches, piece_batches, record_batches
from odfchain.spark.executor_files import InputFile, text_ranges
from odfchain.spark.json_pieces import (
    Form,
    SplitDocument,
    TypedColumn,
    TypedReader,
    UnsureError,
    without_geometries,
)
from odfchain.spark.json_values import (
    FeatureCollection,
    JsonArray,
    RecordError,
    json_text,
    parse_feature,
    parse_object,
    text_type,
)
from tests.kit.json_documents import NUMBERS, Writer
from tests.kit.run_length import scaled

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

DDL = (
    "a BIGINT", "i SMALLINT", "d DOUBLE", "f FLOAT", "n DECIMAL(10,2)", "s STRING", "g BOOLEAN", "t TIMESTAMP",
    "day DATE", "l ARRAY<DOUBLE>", "o STRUCT<x: INT, y: ARRAY<STRUCT<x: STRING>>>", "geometry STRING",
)  # fmt: skip
FIELDS = parse_ddl(DDL).fields
TYPED = tuple(column for f in FIELDS if (column := TypedColumn.of(f)) is not None)
assert len(TYPED) == len(FIELDS)
TIMES = [
    "2020-01-05T10:00:00Z", "2020-01-05T10:00:00.1Z", "2020-01-05T10:00:00.123Z", "2020-01-05T10:00:00.1239Z",
    "2020-02-30T10:00:00Z", "2020-01-05T24:00:00Z", "2020-01-05T10:00:60Z", "0000-01-05T10:00:00Z", "2020-01-05",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "2020-01-05T10:00:00+02:00", "2020-01-05 10:00:00", "",
    "2020-01-05T10:00:00Z\n", " 2020-01-05T10:00:00Z", "2020-01-05T10:00:00", "2020-1-5T10:00:00Z", "x", "1580000000000",
]  # fmt: skip
DAYS = [
    "2020-01-05", "2020-02-30", "0000-01-01", "0001-01-01", "9999-12-31", "2020-1-5", "2020-01-05 ", "x", "", "20200105"
]  # fmt: skip
FLOATS = [
    "0", "-0", "0.0", "-0.0", "-0e5", "1e400", "1e-400", "1e-46", "4.9e-324", "1e39", "1.5", "1E5", "9007199254740993",
    "1e-05", "0.1", "1.7976931348623157e308", "1.7976931348623159e308", "2.2250738585072014e-308", "123456789012345678901",
    "NaN", "Infinity", "-Infinity", "7.0064923216240853e-46", "16777217", "1e23", "8.41e21", "5e-324", "2.4703282292062327e-324", "1e-5",
]  # fmt: skip
DECIMALS = [
    "1", "1.5", "1.50", "1.500", "1.505", "-0", "-0.00", "12345678.91", "123456789.1", "-99999999.99", "-100000000", "1e2", "1E-1", '"1.5"',
]  # fmt: skip
INTEGERS = [
    "0", "-0", "7", "32767", "32768", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1.0",
    "1e3", '"5"', "true",
]  # fmt: skip


class TypedWriter(Writer):
    """Documents whose values nearly always are what their columns say."""

    keys = ("a", "i", "d", "f", "n", "s", "g", "t", "day", "l", "o", "geometry", "more", "é")
    fits = 0.995

    def mostly(self, usual: list[str], odd: list[str]) -> str:
        return self.rng.choice(odd if self.rng.random() < 0.03 else usual)

    def geometry(self) -> str:
        if self.rng.random() < 0.1:
            return super().geometry()
        point = self.mostly(
            ["[1.50, -2]", "[ 1 ,0.0]", "[]"],
            ["[1 2]", "[-0,1]", "[1e5,1]", "[1E-7]", "[[1]", "[01]", "[1,]"],
        )
        lists = f"[{point}, [3,4]]" if self.rng.random() < 0.5 else point
        return f'{{"type": "Polygon", "coordinates": {lists}}}'

    def fitting(self) -> dict[str, Callable[[], str]]:
        floats = self.mostly(["1.5", "0.0", "-2", "12.25", "null"], FLOATS)
        return {
            "a": lambda: self.mostly(["1", "-12", "null"], INTEGERS),
            "i": lambda: self.mostly(["1", "-12", "null"], INTEGERS),
            "d": lambda: floats,
            "f": lambda: floats,
            "n": lambda: self.mostly(["1", "1.5", "-3.25"], DECIMALS),
            "s": lambda: self.mostly([self.text("x"), '"é\\n"'], ['"' + "y" * 2_000 + '"', "1.50", "[1]", '"\\u0000"']),
            "g": lambda: self.mostly(["true", "false", "null"], ['"true"', "1"]),
            "t": lambda: json.dumps(self.mostly(TIMES[:3], TIMES)) if self.rng.random() < 0.99 else "1580000000000",
            "day": lambda: json.dumps(self.mostly(DAYS[:1], DAYS)),
            "l": lambda: self.listed([floats, "2"]),
            "o": lambda: self.mostly(['{"x":1,"y":[{"x":"z"},null]}', '{"z":{"k":[1]}}', "{}"], ['{"X":1}', '{"x":2.5}', "[]"]),
            "more": lambda: self.mostly(['{"k":[1,2.5]}', '{"k":null}'], ["NaN", '{"k":1,"k":1}', "[" * 40 + "]" * 40]),
            "geometry": lambda: '"p"',
            "é": lambda: self.mostly(["1", "2.5"], NUMBERS),
        }  # fmt: skip


def float_of(text: str, bits: int) -> float:
    value = float(text)
    if bits == 32:
        value = struct.unpack("f", struct.pack("f", value))[0]
    assert math.isfinite(value)
    assert value or not re.search("^[^eE]*[1-9]", text)
    return value


def meaning(text: Any, data_type: ds.DataType) -> Any:
    """What a text means by the rules, told without the code that reads it; a failure where it means nothing."""
    if text is None:
        return None
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return meaning(text, inner)
        case ds.DataTypeBool():
            return {"true": True, "false": False}[text]
        case ds.DataTypeInt16() | ds.DataTypeInt32() | ds.DataTypeInt64():
            assert re.fullmatch("-?[0-9]+", text)
            bits = int(data_type.KIND.removeprefix("Int"))
            assert int(text) in range(-(2 ** (bits - 1)), 2 ** (bits - 1))
            return int(text)
        case ds.DataTypeFloat64():
            return repr(float_of(text, 64))
        case ds.DataTypeFloat32():
            return repr(float_of(text, 32))
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            assert re.fullmatch(rf"-?[0-9]*(\.[0-9]{{0,{scale}}}0*)?", text)
            assert abs(Decimal(text)) < 10 ** (precision - scale)
            return Decimal(text)
        case ds.DataTypeTimestamp():
            assert len(text.rstrip("Z").partition(".")[2]) <= 3
            return dt.datetime.fromisoformat(text)
        case ds.DataTypeDate():
            return dt.date.fromisoformat(text)
        case ds.DataTypeList(item_type=item):
            return [meaning(v, item) for v in text]
        case ds.DataTypeStruct(fields=fields):
            return {f.name: meaning(text[f.name], f.type) for f in fields}
    return text


def plain(value: Any) -> Any:
    """With floats as texts, so that zeros of both signs differ."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return [plain(v) for v in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def batches_of(batches: Any) -> list[Any] | None:
    try:
        return list(batches)
    except DocumentInputError:
        return None


def rows(batches: Any) -> list[Any] | None:
    made = batches_of(batches)
    return None if made is None else [row for batch in made for row in batch.to_pylist()]


def compare(document: JsonArray, seen: Counter[str]) -> None:
    """Each value is that of the exact parser's text, or is this text."""
    found = SplitDocument.of(document)
    if not isinstance(found, SplitDocument):
        return
    exact = rows(record_batches(document.records(), FIELDS))
    batches = batches_of(piece_batches(found, range(len(found.pieces)), FIELDS, TYPED))
    same(batches, exact, Path(document.path).read_bytes(), seen)


def same(batches: list[Any] | None, exact: list[Any] | None, text: bytes, seen: Counter[str]) -> None:
    """Each value is that of the exact parser's text, or is this text."""
    assert (batches is None) == (exact is None), text
    ours = [row for batch in batches or [] for row in zip(itertools.repeat(batch.schema), batch.to_pylist())]
    assert len(ours) == len(exact or []), text
    for (schema, row), theirs in zip(ours, exact or [], strict=True):
        for index, f in enumerate(FIELDS):
            value, said = row[f"c{index}"], theirs[f"c{index}"]
            if schema.field(index).type == text_type(f.type):
                assert value == said, text
            else:
                if value is not None:
                    seen[f.name] += 1
                assert plain(value) == meaning(said, f.type), text


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every document is in pieces of few records, and each of them is tried."""
    monkeypatch.setattr(json_pieces, "SMALL", 0)
    monkeypatch.setattr(json_pieces, "PIECE", 150)
    monkeypatch.setattr(json_pieces, "_CHUNK", 64)
    monkeypatch.setattr(json_pieces, "TRIES", 1_000)


def test_random_documents(tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, count = counted(monkeypatch), scaled(500, 2_500, 2_500)
    for seed in range(count):
        compare(TypedWriter(seed).document(tmp_path / "in"), seen)
    assert min(seen["unsure"], seen["records"], seen["features"]) > 0.08 * count, seen
    assert all(seen[c.field.name] > 0.048 * count for c in TYPED if not c.text), seen


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many pieces of each kind are read by columns from now on, or are not."""
    seen: Counter[str] = Counter()
    columns = TypedReader.columns

    def count(self: TypedReader, members: bytes, rows: int, geometries: Any) -> Any:
        try:
            found = columns(self, members, rows, geometries)
        except UnsureError:
            seen["unsure"] += 1
            raise
        seen["records" if geometries is None else "features"] += 1
        seen["geometries"] += len(geometries or ())
        return found

    monkeypatch.setattr(TypedReader, "columns", count)
    return seen


def compare_lines(path: Path, form: Any, seen: Counter[str]) -> None:
    """The same of lines, which each are read by themselves by the exact parser."""
    try:
        exact = rows(record_batches((record for _, record in LineFile(path, form).records()), FIELDS))
    except (RecordError, UnicodeDecodeError):
        exact = None
    ranges = text_ranges(InputFile(path), size=2_000)
    try:
        batches = batches_of(line_batches(ranges, range(len(ranges.cuts) - 1), form, FIELDS, TYPED))
    except UnicodeDecodeError:
        batches = None
    same(batches, exact, path.read_bytes(), seen)


@pytest.mark.parametrize("form", [parse_object, parse_feature])
def test_random_lines(tmp_path: Path, small_pieces: None, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are torn, or glued, or have blanks around them."""
    seen, path, count = counted(monkeypatch), tmp_path / "in", scaled(200, 800, 800)
    for seed in range(count):
        writer = TypedWriter(seed)
        write = writer.feature if form is parse_feature else writer.object
        made = [re.sub(r"[\r\n]", " ", write()) for _ in range(writer.rng.randrange(1, 9))]
        between = writer.rng.choice(["\n", "\n", "\n", "\r\n", "\r", "\n\n", " \n \t\n"])
        path.write_bytes(writer.broken(between.join(made)).encode("utf-8", "surrogatepass"))
        compare_lines(path, form, seen)
    assert seen["unsure"] > count / 16, seen
    assert seen["features" if form is parse_feature else "records"] > count / 16, seen
    assert form is parse_object or seen["geometries"] > count / 8, seen
    assert all(seen[c.field.name] > count / 40 for c in TYPED if not c.text), seen


USUAL = {
    parse_object: '{"a": 12, "d": 1.5, "n": 2.50, "s": "x\\n", "t": "2020-01-05T10:00:00Z", "l": [1, null], "more": {"k": [1]}}',
    parse_feature: '{"type": "Feature", "properties": {"a": 12, "d": 0.5, "s": "é"}, "geometry": {"type": "Polygon", '
    '"coordinates": [[[1, -2.5], [0, 1e-7], [3, 4]], []]}, "id": 7}',
}  # fmt: skip
ODD = [
    "", '"', "\\", "{", "}", "[", "]", ",", ":", " ", "0", "-", "e", ".", "\n", "\t", "\0", "}\n{", "null", "N", "\r", "1 ", "é"
]  # fmt: skip


@pytest.mark.parametrize("form", list(USUAL))
def test_one_character_of_usual_lines_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    """At every place, and in every record of a document as well."""
    monkeypatch.setattr(json_pieces, "SMALL", 0)
    seen, path = counted(monkeypatch), tmp_path / "in"
    lines = [USUAL[form]] * 3
    for at in range(len(lines[0])):
        for odd in ODD[at % 7 :: scaled(14, 7, 7)]:
            changed = [lines[0], lines[1][:at] + odd + lines[1][at + 1 :], lines[2]]
            path.write_text("\n".join(changed))
            compare_lines(path, form, seen)
            around = "[%s]" if form is parse_object else '{"type":"FeatureCollection","features":[%s]}'
            path.write_text(around % ",".join(changed))
            compare((JsonArray if form is parse_object else FeatureCollection)(str(path)), seen)
    enough = scaled(25, 50, 50)
    assert seen["unsure"] > enough, seen
    assert seen["features" if form is parse_feature else "records"] > enough, seen


POINT = '{"type":"Point","coordinates":[1, 2]}'


INNER = [POINT, "null", "true", "{}"]
OTHER = [
    f'"geometry":{POINT},', f'"more":[{POINT}],', f'"s":{{"geometry":{POINT}}},', '"type":"Other",', '"Geometry":1,', ""
]  # fmt: skip


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", [*INNER, '{"bbox":[1],"type":"Point","coordinates":[3]}'])
@pytest.mark.parametrize("other", OTHER)
def test_geometries_are_those_of_features(
    tmp_path: Path, small_pieces: None, inner: str, outer: str, other: str
) -> None:
    """Not what is called so elsewhere."""
    usual = f'{{"type":"Feature","properties":{{"a":1}},"geometry":{POINT}}}'
    odd = f'{{"type":"Feature","properties":{{{other}"a":1,"geometry":{inner}}},"geometry":{outer}}}'
    twice = f'{{"type":"Feature",{other}"geometry":{outer},"properties":{{"a":1}}}}'
    path = tmp_path / "in"
    for features in ([odd], [odd, odd], [usual, odd], [twice], [usual, twice]):
        path.write_text("\n".join(features))
        compare_lines(path, parse_feature, Counter())
        path.write_text(f'{{"type":"FeatureCollection","features":[{",".join(features)}]}}')
        compare(FeatureCollection(str(path)), Counter())


@pytest.mark.parametrize("kind", ["BIGINT", "DOUBLE", "TIMESTAMP"])
def test_geometries_are_texts_in_columns_of_any_type(tmp_path: Path, kind: str) -> None:
    """What is none of its type is said by the rules for texts."""
    fields = parse_ddl(("a BIGINT", f"geometry {kind}")).fields
    typed = tuple(column for f in fields if (column := TypedColumn.of(f)) is not None)
    path = tmp_path / "in"
    path.write_text(f'{{"type":"Feature","properties":{{"a":1}},"geometry":{POINT}}}')
    (batch,) = line_batches(text_ranges(InputFile(path)), range(1), parse_feature, fields, typed)
    assert batch.column("c1").to_pylist() == ['{"coordinates":[1,2],"type":"Point"}']


def test_geometries_are_the_texts_that_the_exact_parser_makes() -> None:
    seen, count = Counter[str](), scaled(1_500, 4_000, 4_000)
    for seed in range(count):
        writer = TypedWriter(seed)
        geometry = writer.geometry() if seed % 2 else Writer.geometry(writer)
        for as_written in (True, False):
            text = f'{{"geometry":{geometry}}}'
            if re.search("[0-9]{40}|1e9999", text):
                continue  # its caller leaves them to the exact parser
            rest, texts = without_geometries(text.encode(), b"0", as_written=as_written)
            if not len(texts):
                assert rest.decode() == text
                continue
            (found,) = texts.to_pylist()
            assert rest == b'{"geometry":0}'
            members = f"[{text}]".encode()
            values = [parse_object(text)] if as_written else JsonArray("").records_of(io.BytesIO(members))
            assert [found] == [json_text(value["geometry"], sort_keys=True) for value in values], text
            seen[geometry[:3]] += 1
    assert seen.total() > count // 4, seen


@pytest.mark.parametrize(
    "coordinates", ["[1 2]", "[1\n2]", "[[1,2] [3,4]]", "[1,2]]", "[1,2],[3,4]", "[[1,2]", "[-]"]
)
def test_lists_of_coordinates_are_looked_at_as_they_are_written(
    tmp_path: Path, small_pieces: None, coordinates: str
) -> None:
    """Without their blanks some would be right, and other numbers."""
    path = tmp_path / "in"
    for other in ("[[1,2],[3,4]]", "[1e5]"):
        features = [
            f'{{"type":"Feature","properties":{{}},"geometry":{{"type":"Point","coordinates":{lists}}}}}'
            for lists in (other, other, coordinates, other)
        ]
        path.write_text(f'{{"type":"FeatureCollection","features":[{",".join(features)}]}}')
        document = FeatureCollection(str(path))
        compare(document, Counter())
        found = SplitDocument.of(document)
        if isinstance(found, SplitDocument):
            assert rows(piece_batches(found, range(len(found.pieces)), FIELDS)) is None


@pytest.mark.parametrize(
    "member",
    [
        '"more":NaN', '"more":-Infinity', '"more":1e400', '"more":[[{"k":1,"k":1}]]', '"more":"\\ud800"', '"more":"\0"',
        '"more":"\x01"', '"more":' + "7" * 1_001, '"more":' + "[" * 50 + "]" * 50, '"more":null,"more":null',
        '"\\u0061":2', '"A":1', '"":1', '"more":\0', '"o":{"x":1,"x":1}', '"o":{"X":null}', '"d":1e-400', '"d":-0',
        '"more":"\xff"', '"more":"\\udc00\\ud800"', '"s":"\\ud83d\\ude00 \\u0000"', '"s":"' + "é" * 100_000 + '"',
        '"more":1}],"r":[{"a":1', '"more":1}]}{"r":[{"a":1', '"more":1}]}\0', '"s":"\x7f"', '"more":{"coordinates":[1,2]}',
        '"t":"2020-02-30T10:00:00Z"', '"geometry":{"type":"Point","coordinates":[1]}',
    ],
)  # fmt: skip
def test_one_odd_member_among_usual_records(tmp_path: Path, small_pieces: None, member: str) -> None:
    """Also where it is the first record that tells which other keys there are."""
    path = tmp_path / "in"
    usual = '{"a":1,"d":0.0,"s":"x","t":"2020-01-05T10:00:00Z","o":{"x":1,"y":null},"more":[1.5]}'
    odd = (
        f'{{"a":1,{member}}}'
        if '"more"' in member
        else f'{{"a":1,{member},"more":[1.5]}}'.replace('{"a":1,"\\u', '{"a":1,"more":[1.5],"\\u')
    )
    encoding = "latin-1" if "\xff" in member else "utf-8"
    for records in ([usual] * 5 + [odd], [odd] + [usual] * 5):
        path.write_text("[" + " ,\r\n\t".join(records) + " \n]", encoding, newline="")
        compare(JsonArray(str(path)), Counter())
        features = ",".join([f'{{"type":"Feature","properties":{r},"geometry":null}}' for r in records])
        path.write_text(f'{{"type":"FeatureCollection","features":[{features}]}}', encoding, newline="")
        compare(FeatureCollection(str(path)), Counter())


@pytest.mark.soak
def test_many_keys_that_are_no_columns_take_no_memory(tmp_path: Path, small_pieces: None) -> None:
    """In columns they would be as many values as keys times records."""
    path = tmp_path / "in"
    path.write_text("[" + ",".join([f'{{"a":1,"k{n}":1}}' for n in range(20_000)]) + "]")
    document = JsonArray(str(path))
    typed = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE", 1 << 20)
        compare(document, typed)
    assert not typed


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('{"a":1}', 2), ('{"a":1},null', 2), ('{"a":1},null', 1), ('{"a":1}]}{"r":[{"a":1}', 1), ("", 0), ('{"a":1}]}\0', 1),
        ('{"a":1}],"x":[{}', 1), ('{"a":1},5', 2), ('{"s":"\n"}', 1), ('{"s":"\r"}', 1), ('{"a":1}\0', 1),
    ],
)  # fmt: skip
def test_members_of_another_list_are_not_taken(text: str, rows: int) -> None:
    with pytest.raises(UnsureError):
        TypedReader(TYPED, Form(), "").columns(text.encode(), rows, None)


def test_keys_that_come_later_are_learned(
    tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in"
    usual, later = '{"a":1,"more":null}', '{"a":1,"more":[{"k":1}],"s":"x","d":0.5,"new":{"y":[true]}}'
    path.write_text(f"[{','.join([usual] * 300 + [later] * 300)}]")
    monkeypatch.setattr(json_pieces, "PIECE", 1 << 20)
    seen: Counter[str] = Counter()
    compare(JsonArray(str(path)), seen)
    assert seen == {"a": 600, "d": 300}


# --- on Spark --------------------------------------------------------------------------------------


def test_pieces_have_the_values_of_whole_documents(
    tmp_path: Path, engine: SparkEngine, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed by Arrow's reader, and by Spark from texts; with the same notes about digits that are cut off."""
    path = tmp_path / "in"
    days, floats = ["2020-01-05", "1583-01-01"], ["-0.0", "0.1", "16777217", "9007199254740993", "null"]
    exponents = ["1e-05", "1E5", "5e-324", "1.7976931348623157e308"]
    records = [
        f'{{"t":"{TIMES[n % 3]}","day":"{days[n % 2]}","d":{(floats if n < 150 else exponents)[n % 4]},"a":{n},"s":"",'
        f'"o":{{"x":{n},"more":1,"y":[{{"x":"z"}},null]}},"l":[1,null,{n}.5],"n":{n}.50,"g":{str(n > 9).lower()}}}'
        for n in range(300)
    ]
    path.write_text("[" + ",\n".join(records) + "]")

    def read() -> tuple[list[Any], bool]:
        opened = open_input(lambda: engine.session, path, ReadStepJson(ddl_schema=DDL), scratch=tmp_path)
        in_pieces = opened.texts.count > 1
        return [plain(r.asDict(recursive=True)) for r in opened.frame.orderBy("a").collect()], in_pieces

    pieces, in_pieces = read()
    assert in_pieces
    monkeypatch.setattr(json_pieces, "SMALL", 1 << 30)
    whole, in_pieces = read()
    assert not in_pieces
    assert len(whole) == 300
    assert [r | {"__odfchain_row": 0} for r in pieces] == [r | {"__odfchain_row": 0} for r in whole]
