"""Documents in pieces give what the exact parser gives of the whole, or refuse what it refuses."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from odfchain.errors import BadInputError
from odfchain.ingest.read_formats import open_input
from odfchain.odf.schema import parse_ddl
from odfchain.odf.sources import ReadStepGeoJson, ReadStepJson
from odfchain.spark import json_pieces
from odfchain.spark.documents import DocumentInputError, LineFile, line_batches, piece_batches, record_batches
from odfchain.spark.executor_files import InputFile, text_ranges
from odfchain.spark.json_pieces import (
    PieceReader,
    SplitDocument,
    TypedColumn,
    UnsureError,
    without_geometries,
)
from odfchain.spark.json_values import (
    FeatureCollection,
    Fields,
    JsonArray,
    RecordError,
    parse_feature,
    parse_object,
)
from tests.kit.json_documents import Writer
from tests.kit.reader_harness import Harness
from tests.kit.support import unchanged

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

DDL = (
    "a BIGINT", "s STRING", "l ARRAY<STRING>", "o STRUCT<x: INT, y: ARRAY<STRUCT<x: STRING>>>", "g BOOLEAN",
    "geometry STRING", "m MAP<STRING, STRING>",
)  # fmt: skip
FIELDS = parse_ddl(DDL).fields
WITHOUT_MAP = FIELDS[:-1]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every document is in pieces, of about one record."""
    monkeypatch.setattr(json_pieces, "SMALL", 0)
    monkeypatch.setattr(json_pieces, "PIECE", 40)
    monkeypatch.setattr(json_pieces, "_CHUNK", 64)


def rows(batches: Any, fields: Fields = FIELDS) -> list[Any] | None:
    """All rows, whole records by what tells their types; None where the document is refused."""
    try:
        found = [row for batch in batches for row in batch.to_pylist()]
    except DocumentInputError:
        return None
    return found if fields is not None else [row | {"c0": kinds(json.loads(row["c0"]))} for row in found]


def kinds(value: Any) -> Any:
    """A value as far as it tells a type: fractions, and texts, are all alike."""
    match value:
        case dict():
            return {key: kinds(v) for key, v in value.items()}
        case list():
            return [kinds(v) for v in value]
        case str():
            return "text"
    return 0.5 if isinstance(value, float) else value


def compare(document: JsonArray, fields: Fields, seen: Counter[str]) -> None:
    """Both ways give the same."""
    exact = rows(record_batches(document.records(), fields), fields)
    found = SplitDocument.of(document)
    if not isinstance(found, SplitDocument):
        seen["whole"] += 1
        return
    seen["pieces" if exact is not None else "refused"] += 1
    pieces = rows(piece_batches(found, range(len(found.pieces)), fields), fields)
    assert pieces == exact, Path(document.path).read_bytes()


DOCUMENTS = 300 if os.environ.get("HYPOTHESIS_PROFILE", "ci") == "ci" else 1_500


@pytest.mark.hypothesis  # a property, though not by that library: `make soak` runs it longer
@pytest.mark.parametrize("fields", [FIELDS, WITHOUT_MAP, None], ids=["maps", "columns", "inferred"])
def test_random_documents(
    tmp_path: Path, small_pieces: None, fields: Fields, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of them by the quick way as make the comparison worth something."""
    seen: Counter[str] = Counter()
    columns = PieceReader._texts

    def counted(self: PieceReader, *arguments: Any, **named: Any) -> list[pa.Array]:
        try:
            found = columns(self, *arguments, **named)
        except UnsureError:
            seen["unsure"] += 1
            raise
        seen["quick"] += 1
        return found

    monkeypatch.setattr(PieceReader, "_texts", counted)
    for seed in range(DOCUMENTS):
        compare(Writer(seed).document(tmp_path / "in"), fields, seen)
    enough = DOCUMENTS // 8
    assert seen["pieces"] > enough, seen
    assert seen["refused"] > enough, seen
    assert seen["quick"] > 5 * enough or fields is FIELDS, seen
    assert seen["unsure"] > enough, seen


@pytest.mark.hypothesis
@pytest.mark.parametrize("form", [parse_object, parse_feature])
@pytest.mark.parametrize("fields", [FIELDS, WITHOUT_MAP, None], ids=["maps", "columns", "inferred"])
def test_random_lines(tmp_path: Path, fields: Fields, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are read together give what each gives by itself; some of them are torn, or glued."""
    monkeypatch.setattr(json_pieces, "PIECE", 150)
    seen: Counter[str] = Counter()
    path = tmp_path / "in"
    for seed in range(DOCUMENTS):
        writer = Writer(seed)
        records = [
            writer.feature() if form is parse_feature else writer.object()
            for _ in range(writer.rng.randrange(1, 9))
        ]
        if writer.rng.random() < 0.8:
            records = [" ".join(record.split("\n")).replace("\r", " ") for record in records]
        text = writer.rng.choice(["\n", "\n", "\r\n", "\n\n", "\n \n"]).join(records)
        path.write_bytes(writer.broken(text).encode("utf-8", "surrogatepass"))
        try:
            file = LineFile(path, form)
            exact = rows(record_batches((record for _, record in file.records()), fields), fields)
        except (RecordError, UnicodeDecodeError):
            exact = None
        ranges = text_ranges(InputFile(path), size=400)
        try:
            found = rows(line_batches(ranges, range(len(ranges.cuts) - 1), form, fields), fields)
        except UnicodeDecodeError:
            found = None
        assert found == exact, path.read_bytes()
        seen["read" if exact else "refused"] += 1
    assert min(seen["read"], seen["refused"]) > DOCUMENTS // 10, seen


TORN = [
    ['{"a":[1', "2]}", '{"a":1},{"a":2}'],
    ['{"a":[{"x":1}', '{"y":2}]}', '{"a":1},null,{"a":2}'],
    ['{"a":1},{"a":2}', '{"a":', "3}"],
    ['{"a":1}{"a":2}'],
    ['{"a":1},{"a":2}'],
    ["", '{"a":1}', "null"],
]


@pytest.mark.parametrize("lines", TORN)
@pytest.mark.parametrize("typed", [False, True])
def test_a_line_is_one_record(tmp_path: Path, lines: list[str], typed: bool) -> None:
    path = tmp_path / "in"
    path.write_text("\n".join(lines))
    fields = parse_ddl(("a BIGINT",)).fields
    columns = tuple(c for f in fields if (c := TypedColumn.of(f)) is not None) if typed else None
    with pytest.raises(DocumentInputError):
        list(line_batches(text_ranges(InputFile(path)), range(1), parse_object, fields, columns))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (json.dumps({f"k{n}": 1 for n in range(10_001)}), "10,001 keys"),
        ('{"a":' + "[" * 33 + "1" + "]" * 33 + "}", "nested more than 32 levels deep"),
        ('{"a":[{"" :1}]}', "a key is empty"),
        ('{"a":1e400,"a":2}', "occurs twice"),
        ('{"a":NaN}', "NaN is not a JSON number"),
    ],
)
def test_types_are_of_lines_that_may_have_types(tmp_path: Path, line: str, message: str) -> None:
    """Usual lines are given to inference as they are written."""
    path = tmp_path / "in"
    for lines in ([line], [line, line.replace("1", "2", 1)], ['{"a": 1}', line, '{"a": 1}']):
        path.write_text("\n".join(lines))
        with pytest.raises(DocumentInputError, match=message):
            list(line_batches(text_ranges(InputFile(path)), range(1), parse_object))
    path.write_text('{"a": { } }\n{"a": 1}')
    (batch,) = line_batches(text_ranges(InputFile(path)), range(1), parse_object)
    assert batch.column("c0").to_pylist() == ['{"a":null}', '{"a":1}']
    path.write_text('{"a": [1] }\n\n {"b":1.50}')
    (batch,) = line_batches(text_ranges(InputFile(path)), range(1), parse_object)
    assert batch.column("c0").to_pylist() == ['{"a": [1] }', '{"b":1.50}']


@pytest.mark.parametrize("fields", [parse_ddl(("a STRING",)).fields, None])
def test_lines_are_no_deeper_than_they_may_be(tmp_path: Path, fields: Fields) -> None:
    """Nor are those that are read together with usual ones."""
    path = tmp_path / "in"
    path.write_text('{"a":1}\n{"a":' + "[" * 250 + "]" * 250 + "}")
    for columns in (None, tuple(TypedColumn(f, pa.string(), text=True) for f in fields or ())):
        with pytest.raises(DocumentInputError, match="nested more than 200 levels"):
            list(line_batches(text_ranges(InputFile(path)), range(1), parse_object, fields, columns))


TWO = '{"a":1},{"a":2}'
LONG = '"' + "x" * 60 + '"'


@pytest.mark.parametrize(
    "text",
    [
        f"[{TWO},]", f"[,{TWO}]", f"[{TWO}\x0b,{TWO}]", f"[{TWO}],[{TWO}]",
        f'[{{"s":{LONG}}} {{"s":{LONG}}}]',
        f'[{{"s":{LONG}}},{{"s":{LONG}}},]',
        f'[{{"s":{LONG}}}, x]',
        f'[{{"s":{LONG}}},,{{"s":{LONG}}}]',
        f'[{{"s":{LONG}}}, {{"s":{LONG}}}, 7]',
        '[{"s":"\\\\"},{"s":"\\""},{"s":"\\\\\\""}]',
        '[{"s":"' + "\\\\" * 100 + '"},{"s":"}"}]',
    ],
)  # fmt: skip
def test_lists_at_the_seams_of_pieces(tmp_path: Path, small_pieces: None, text: str) -> None:
    path = tmp_path / "in"
    path.write_text(text)
    compare(JsonArray(str(path)), FIELDS, Counter())
    path.write_text(f'{{"y":[{{"a":9}}],"x":{{"a":{text}}}}}')
    compare(JsonArray(str(path), "utf-8", "x.a"), FIELDS, Counter())


def test_lists_of_coordinates_are_lists_one_by_one(tmp_path: Path, small_pieces: None) -> None:
    """Joined they would be as many lists."""
    path = tmp_path / "in"
    geometries = ["[1],[2]", "[[1]", "[2]]"]
    feature = '{"type":"Feature","geometry":{"type":"Point","coordinates":%s}}'
    features = ",".join([feature % geometry for geometry in geometries])
    path.write_text(f'{{"type":"FeatureCollection","features":[{features}]}}')
    compare(FeatureCollection(str(path)), FIELDS, Counter())
    rest, texts = without_geometries(features.encode(), b"0", as_written=False)
    assert (rest, len(texts)) == (features.encode(), 0)


def test_another_list_of_that_name_is_not_taken(tmp_path: Path, small_pieces: None) -> None:
    path = tmp_path / "in"
    path.write_text('{"z":{"b":[{"a":1}]},"a":{"b":[{"a":2}]}}')
    document = JsonArray(str(path), "utf-8", "a.b")
    assert SplitDocument.of(document) is document


def test_small_and_deep_documents_and_other_encodings_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in"
    path.write_text(f"[{TWO}]")
    assert isinstance(SplitDocument.of(JsonArray(str(path))), JsonArray)
    monkeypatch.setattr(json_pieces, "SMALL", 0)
    assert isinstance(SplitDocument.of(JsonArray(str(path))), SplitDocument)
    assert isinstance(SplitDocument.of(JsonArray(str(path), "utf-16")), JsonArray)
    assert isinstance(SplitDocument.of(JsonArray(str(tmp_path / "none"))), JsonArray)
    path.write_text('[{"a":' + "[" * 40 + "]" * 40 + "}]")
    assert isinstance(SplitDocument.of(JsonArray(str(path))), JsonArray)


def test_columns_of_batches_have_one_form(tmp_path: Path, small_pieces: None) -> None:
    """Whichever way they come."""
    path = tmp_path / "in"
    path.write_text('[{"l":[1],"o":{"x":1,"y":[{"x":2}]},"s":{"k":[1.50]}}]')
    found = SplitDocument.of(JsonArray(str(path)))
    assert isinstance(found, SplitDocument)
    (quick,) = piece_batches(found, [0], WITHOUT_MAP)
    (exact,) = record_batches(found.records(), WITHOUT_MAP)
    assert quick.equals(exact, check_metadata=True)
    quick.validate(full=True)


# --- on Spark --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [ReadStepJson(), ReadStepGeoJson()], ids=lambda step: step.KIND)
@pytest.mark.parametrize("ddl", [None, ("a BIGINT", "s STRING")])
def test_pieces_on_spark_give_the_rows_in_order(
    tmp_path: Path,
    engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    step: Any,
    ddl: tuple[str, ...] | None,
) -> None:
    records, around = [f'{{"a":{n},"s":"{n}x"}}' for n in range(500)], "[%s]"
    if isinstance(step, ReadStepGeoJson):
        records = [f'{{"type":"Feature","properties":{record}}}' for record in records]
        around = '{"type":"FeatureCollection","features":[%s]}'
    monkeypatch.setattr(json_pieces, "SMALL", 0)
    monkeypatch.setattr(json_pieces, "PIECE", 200)
    path = tmp_path / "in"
    path.write_text(around % ",".join(records))
    opened = open_input(lambda: engine.session, path, type(step)(ddl_schema=ddl), scratch=tmp_path)
    assert opened.frame.rdd.getNumPartitions() > 2
    found = opened.frame.orderBy("__odfchain_row").select("a", "s").collect()
    assert [tuple(r) for r in found] == [(n, f"{n}x") for n in range(500)]


DECLARED = ("a BIGINT NOT NULL",)
PARSED, TWICE, HALF = (
    ("tru", "row 81: not valid JSON: lexical error: invalid string in json text."),
    ('1,"a":1', "row 81: key 'a' occurs twice in one object"),
    (r'"\ud800"', r"line 3: not valid JSON: \ud800 is half of a surrogate pair, without the other half"),
)


@pytest.mark.parametrize(
    ("bad", "message", "ddl"),
    [
        (*PARSED, None), (*TWICE, DECLARED), (*HALF, None),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((*PARSED, DECLARED), (*TWICE, None), (*HALF, DECLARED))),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_piece_is_said_as_of_the_whole(
    tmp_path: Path,
    engine: SparkEngine,
    small_pieces: None,
    bad: str,
    message: str,
    ddl: tuple[str, ...] | None,
) -> None:
    good = ",".join(['{"a":1}'] * 80)
    text = f'[\n{good},\n{{"a":{bad}}},{good}]'
    harness = Harness(tmp_path / "d", engine.session)
    with unchanged(harness.dataset.folder), pytest.raises(BadInputError) as caught:
        harness.write(text.encode(), ReadStepJson(ddl_schema=ddl))
    assert message in str(caught.value)
