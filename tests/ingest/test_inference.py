"""What is inferred from files without a schema: never more than every value bears out."""

from __future__ import annotations

import datetime as dt
import functools
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import BadInputError, InvalidIdError, SchemaError, UsageError
from odfchain.ingest.importing import (
    ColumnValues,
    FileImport,
    ImportPlan,
    InferredFile,
    infer_file,
)
from odfchain.odf.events import AddPushSource, SetVocab
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import parse_ddl, type_name
from odfchain.progress import SILENT, Silent, WorkDone
from odfchain.spark.json_values import parse_object
from tests.kit.pushed_files import put
from tests.kit.support import fixture

CASES = fixture("ingest/inference.yaml")
FEATURE = '{"type": "Feature", "properties": {"a": 1}, "geometry": null}'


def of_texts(*texts: str, json: bool = False) -> tuple[str, str | None]:
    """The type of a column with these texts, or these JSON values, and what is said of it."""
    column = ColumnValues()
    for row, text in enumerate(texts, start=1):
        if not json:
            column.add(text, row)
        elif (value := parse_object(f'{{"v": {text}}}')["v"]) is not None:
            column.add_json(value, row)
    data_type, note = column.inferred()
    return type_name(data_type), note


of_json = functools.partial(of_texts, json=True)


def inferred(path: Path, content: str | bytes) -> InferredFile:
    return infer_file(put(path.parent, content, path.name), path.parent)


class Screen(Silent):
    """Somebody who looks."""

    shows_work = True

    def __init__(self) -> None:
        self.told: list[WorkDone] = []

    def work(self, done: WorkDone) -> None:
        self.told.append(done)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'a,b\n1,"x"\n2,y\n'),
        ("a.ndjson", '{"a": 1}\n\n{"a": 2}\n'),
        ("a.json", '[{"a": 1}, {"a": 2}]'),
        ("a.geojson", '{"type": "FeatureCollection", "features": [%s, %s]}' % ((FEATURE,) * 2)),
    ],
)
def test_rows_and_bytes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    monkeypatch.setattr("odfchain.progress._BETWEEN_REPORTS", 0)
    screen, path = Screen(), put(tmp_path, content, name)
    infer_file(path, tmp_path, screen)
    last, size = screen.told[-1], path.stat().st_size
    assert (last.step, last.rows, last.read_bytes, last.total_bytes) == (
        f"Inferring the columns of {name}", 2, size, size,
    )  # fmt: skip


def types(found: InferredFile) -> dict[str, str]:
    return {c.name: c.type for c in found.columns}


def notes(found: InferredFile) -> dict[str, str]:
    return {c.name: c.note for c in found.columns if c.note}


# --- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    CASES["values_that_agree_have_a_type"],
)
def test_values_that_agree_have_a_type(texts: tuple[str, ...], expected: str) -> None:
    assert of_texts(*texts)[0] == expected


@pytest.mark.parametrize(
    ("texts", "why"),
    CASES["what_is_in_doubt_stays_text_and_says_why"],
)
def test_what_is_in_doubt_stays_text_and_says_why(texts: tuple[str, ...], why: str) -> None:
    found, note = of_texts(*texts)
    assert found == "STRING"
    assert why in (note or "")
    assert (note or "").endswith("kept as text")


@pytest.mark.parametrize(
    "text",
    ["12E3", "0x1F", "1d", "NaN", "inf", "٣", "--1", "-", ".", "1.", "yes", "t", "24:00", "2024-13-01",
     "0000-01-01", "2024-05-01T12:00:60Z", "2024-05-01T24:00:00Z", "0001-01-01T00:00:00+05:00", "2024-5-1",
     "2024-05-01T12:00:00+19:00", "2024-05-01T12:00.5Z", "2024-05-01T12:00:00 Z", "2024-05-01T12:00Z", "20240501T120000Z"],
)  # fmt: skip
def test_what_only_resembles_a_value_is_text(text: str) -> None:
    assert of_texts(text) in (("STRING", None), ("STRING", f"text, such as {text!r} in row 1: kept as text"))


def test_a_few_numbers_among_texts_are_no_doubt() -> None:
    assert of_texts("a", "b", "12") == ("STRING", None)
    assert of_texts("a", "b") == ("STRING", None)


def test_times_say_what_becomes_of_their_zone() -> None:
    assert of_texts("2024-05-01T12:00:00")[1] == "no zone is given: taken as UTC"
    assert of_texts("2024-05-01T12:00:00+02:00")[1] == "recorded in UTC"
    assert of_texts("2024-05-01T12:00:00Z", "2024-05-01T12:00:00+02:00")[1] == "recorded in UTC"
    assert of_texts("2024-05-01T12:00:00Z")[1] is None


@pytest.mark.parametrize(("values", "expected"), CASES["json_values"])
def test_json_values(values: tuple[str, ...], expected: str) -> None:
    assert of_json(*values)[0] == expected


def test_texts_in_json_that_look_like_numbers_are_no_doubt() -> None:
    assert of_json('"007"', '"1"') == ("STRING", None)
    assert "mixed" in (of_json("1", '"2"')[1] or "")


# --- files -----------------------------------------------------------------------------------------


def test_a_csv_file(tmp_path: Path) -> None:
    found = inferred(
        tmp_path / "a.csv",
        "\ufeffid,Straße,note,when,gone,flag\r\n"
        '1,"Größe, 5","two\nlines",2024-05-01,,true\r\n'
        '2,x,"say ""hi""",2024-05-02,,\r\n',
    )
    assert types(found) == {
        "id": "BIGINT", "Straße": "STRING", "note": "STRING", "when": "DATE", "gone": "STRING",
        "flag": "BOOLEAN",
    }  # fmt: skip
    assert (found.rows, [c.values for c in found.columns]) == (2, [2, 2, 2, 2, 0, 1])
    assert notes(found) == {"gone": "no values: kept as text"}
    assert found.read.ddl_schema is not None
    assert parse_ddl(found.read.ddl_schema).names == tuple(types(found))


def test_quoted_empty_cells_are_no_values(tmp_path: Path) -> None:
    assert types(inferred(tmp_path / "a.csv", '"n","t"\n"1",""\n"","x"\n')) == {"n": "BIGINT", "t": "STRING"}


def test_other_separators_are_found_and_said(tmp_path: Path) -> None:
    for separator in ";\t|":
        found = inferred(tmp_path / "a.csv", f'"a, b"{separator}c\n1{separator}2,5\n')
        assert types(found) == {"a, b": "BIGINT", "c": "STRING"}
        assert found.notes[0] == f"the separator is {separator!r}"
        assert "c: a query of the manifest" in found.notes[1]
        assert found.read.separator == separator  # type: ignore[union-attr]
    assert types(inferred(tmp_path / "a.csv", "a\n1\n")) == {"a": "BIGINT"}


def test_dates_that_stay_text_say_why(tmp_path: Path) -> None:
    path = put(tmp_path, "id,day,at\n1,02.01.2026,2.1.2026 10:30\n2,03.02.2026,\n")
    found = infer_file(path, tmp_path)
    assert types(found) == {"id": "BIGINT", "day": "STRING", "at": "STRING"}
    assert found.columns[1].note == "dates as day.month.year, such as '02.01.2026' in row 1: kept as text"
    assert found.notes == (
        "day, at: a query of the manifest makes dates of day.month.year (odfchain help start)",
    )


@pytest.mark.parametrize(
    ("written", "given", "note"),
    [
        ("utf-16", None, "the encoding is utf-16, as its first bytes show"),
        ("utf-16-le", None, "the encoding is utf-16-le, as its first bytes show"),
        ("utf-16-be", None, "the encoding is utf-16-be, as its first bytes show"),
        ("cp1252", "windows-1252", None),
    ],
)
def test_encodings_are_seen_or_said(
    tmp_path: Path, written: str, given: str | None, note: str | None
) -> None:
    path = put(tmp_path, "ort;n\nZürich;1\n".encode(written))
    found = infer_file(path, tmp_path, encoding=given)
    assert types(found) == {"ort": "STRING", "n": "BIGINT"}
    assert found.notes == (*([note] if note else []), "the separator is ';'")
    assert found.read.encoding == (given or written)  # type: ignore[union-attr]


def test_wrong_encodings_and_separators(tmp_path: Path) -> None:
    path = put(tmp_path, "ort;n\nZürich;1\n".encode("latin1"))
    with pytest.raises(BadInputError, match="line 2: byte 0xfc") as caught:
        infer_file(path, tmp_path)
    assert "--encoding windows-1252" in str(caught.value.hint)
    for name in ("a.csv", "b.csv.gz"):
        with pytest.raises(BadInputError, match="this is gzip") as caught:
            infer_file(put(tmp_path, gzip.compress(b"a,b\n1,2\n"), name), tmp_path)
        assert caught.value.hint == f"decompress it: gunzip -c {name} > FILE"
    with pytest.raises(BadInputError, match="BOM") as caught:
        infer_file(path, tmp_path, encoding="utf-16")
    assert "utf-16le" in str(caught.value.hint)
    for options in ({"encoding": "klingon"}, {"separator": "ab", "encoding": "latin1"}):
        with pytest.raises(SchemaError):
            infer_file(path, tmp_path, **options)
    tabs = put(tmp_path, "a;b\tc\n1;2\t3\n")
    for separator in ("tab", r"\t", "\t"):
        assert list(types(infer_file(tabs, tmp_path, separator=separator))) == ["a;b", "c"]
    with pytest.raises(UsageError, match="are for CSV"):
        infer_file(put(tmp_path, "{}", "a.json"), tmp_path, separator=";")


@pytest.mark.parametrize(
    ("header", "message"), CASES["names_that_columns_cannot_have_are_refused_with_others"]
)
def test_names_that_columns_cannot_have_are_refused_with_others(
    tmp_path: Path, header: str, message: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        inferred(tmp_path / "a.csv", f"{header}\n1,2,3\n")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "no rows"),
        ("a.csv", b"a,b\n", "no rows"),
        ("a.ndjson", b"\n", "no rows"),
        ("a.json", b"[]", "no rows"),
        ("a.csv", b"a,b\n1,2\n3\n", "(row 2)|row 2"),
        ("a.csv", b"a\n\xff\n", "line 2"),
        ("a.csv", b'a,b\n1,"2\n', "no closing quote"),
        ("a.ndjson", b'{"a": 1}\n{"a": \n', "line 2"),
        ("a.ndjson", b"{}\n", "no properties"),
        ("a.ndjson", b'{"a": 1}\n{"A": 1}\n', "differ only by case"),
        ("a.json", b'[{"a": 1}, 5]', "row 2"),
        ("a.parquet", b"PAR", "Parquet"),
    ],
)
def test_files_of_which_no_columns_can_be_made(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(BadInputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        inferred(tmp_path / name, content)


def test_json_files_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    lines = '{"z": 1, "a": "x"}\n\n{"m": [1.5], "z": null}\n'
    feature = (
        '{"type": "Feature", "properties": {"n": 1}, "geometry": {"type": "Point", "coordinates": [1, 2]}}'
    )
    collection, of_features = (
        f'{{"type": "FeatureCollection", "features": [{feature}]}}',
        "n BIGINT, geometry STRING",
    )
    for name, content, expected in (
        ("a.ndjson", lines, "z BIGINT, a STRING, m ARRAY<DOUBLE>"),
        ("a.json", '[{"z": 1}, {"a": {"b": 2}}]', "z BIGINT, a STRING"),
        ("a.ndgeojson", feature, of_features),
        ("a.geojson", collection, of_features),
    ):
        found = types(inferred(tmp_path / name, content))
        assert ", ".join(f"{column} {kind}" for column, kind in found.items()) == expected


def test_parquet_says_its_types_itself(tmp_path: Path) -> None:
    kinds = pa.int32(), pa.timestamp("ns", "UTC"), pa.date32()
    values = 1, dt.datetime(2024, 5, 1, tzinfo=dt.UTC), dt.date(2024, 5, 1)
    table = pa.table([pa.array([v], kind) for v, kind in zip(values, kinds, strict=True)], names=list("ntd"))
    pq.write_table(table, tmp_path / "a.parquet")
    found = infer_file(tmp_path / "a.parquet", tmp_path)
    assert (types(found), found.rows) == ({"n": "INT", "t": "TIMESTAMP(6)", "d": "DATE"}, 1)


def test_parquet_types_without_a_name_are_refused_with_their_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "none": pa.nulls(1)}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match="column 'none': type Null has no DDL name"):
        infer_file(tmp_path / "a.parquet", tmp_path)


# --- the dataset -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "name"), CASES["a_name_is_made_of_the_files"])
def test_a_name_is_made_of_the_files(file: str, name: str) -> None:
    assert FileImport.of(Path("x") / file).name == DatasetAlias.parse(name)


def test_names_that_cannot_be_made() -> None:
    with pytest.raises(UsageError, match="no name") as caught:
        FileImport.of(Path("東京.csv"))
    assert "--as" in str(caught.value.hint)
    with pytest.raises(InvalidIdError):
        FileImport.of(Path("a.csv"), "my sales")
    assert len(str(FileImport.of(Path("x" * 240 + ".csv")).name)) <= 240


def test_which_merge_strategy_is_meant() -> None:
    path = Path("a.csv")
    for given, merge in (
        ({}, "append"),
        ({"key": ("id",)}, "snapshot"),
        ({"key": ("id",), "merge": "ledger"}, "ledger"),
    ):
        assert FileImport.of(path, **given).merge == merge
    for merge, key in (("append", ("id",)), ("snapshot", ()), ("ledger", ()), ("upsert", ("id",))):
        with pytest.raises(UsageError):
            FileImport.of(path, key=key, merge=merge)


def plan(
    tmp_path: Path, content: str, *, key: tuple[str, ...] = (), event_time: str | None = None
) -> ImportPlan:
    return FileImport.of(put(tmp_path, content), key=key).plan(
        tmp_path, SILENT, event_time, input_format=None
    )


def test_the_event_time_is_a_column_by_the_vocabulary(tmp_path: Path) -> None:
    made = plan(tmp_path, "id,when\n1,2024-05-01T12:00:00.000001Z\n2,\n", key=("id",), event_time="when")
    vocabulary, source = made.snapshot.metadata
    assert vocabulary == SetVocab(event_time_column="when")
    assert isinstance(source, AddPushSource)
    assert source.read.ddl_schema == ("id BIGINT", "when TIMESTAMP(3)")
    assert made.notes == (
        "rows without an event time: 1; they get the time of ingestion",
        "event times are kept to the millisecond: what is finer is cut off",
    )
    days = plan(tmp_path, "event_time,n\n2024-05-01,1\n")
    assert days.event_time == "event_time"
    assert len(days.snapshot.metadata) == 1
    assert days.notes[0] == "the event times are days: each counts as its midnight in UTC"
    assert plan(tmp_path, "a\n1\n").event_time is None


@pytest.mark.parametrize(
    ("content", "proposed"),
    [
        ("n,id\n1,a\n1,b\n", "id"),
        ("id,code\n1,a\n,b\n", "code"),
        ("price,ok,a b\n1.5,true,x\n2.5,false,y\n", "'a b'"),
        ("price,ok\n1.5,true\n2.5,false\n", None),
        ("a\n1\n", None),
        ("a,b\n" + "".join(f"{i % 99},{i % 98}\n" for i in range(100)), None),
        ("a,b\n" + "".join(f"{i % 99},{i}\n" for i in range(100)), "b"),
    ],
)
def test_a_key_is_proposed_where_every_row_has_another_value(
    tmp_path: Path, content: str, proposed: str | None
) -> None:
    *notes, last = plan(tmp_path, content).notes
    assert last.startswith("without a key later files are appended")
    assert [n.partition("--key ")[2].partition("?")[0] for n in notes] == ([proposed] if proposed else [])
    path = put(tmp_path, content)
    explicit = FileImport.of(path, merge="append").plan(tmp_path, SILENT)
    assert explicit.notes == (last,), "it was said that there is none"


@pytest.mark.parametrize("event_time", ["event_time", None])
def test_an_event_time_that_is_no_time_is_refused(tmp_path: Path, event_time: str | None) -> None:
    with pytest.raises(BadInputError, match="'event_time' cannot be the event time: it is STRING"):
        plan(tmp_path, "event_time\nsoon\n", event_time=event_time)
    with pytest.raises(BadInputError) as caught:
        plan(tmp_path, "event_time\n01.05.2024\n", event_time=event_time)
    assert "make times of it by a query" in str(caught.value.hint)
    with pytest.raises(BadInputError, match="it is BIGINT"):
        plan(tmp_path, "event_time\n1714557600\n", event_time=event_time)


def test_columns_that_are_not_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column 'ids'") as caught:
        plan(tmp_path, "id\n1\n", key=("ids",))
    assert "'id'" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no column 'when'"):
        plan(tmp_path, "id\n1\n", event_time="when")


def test_nothing_in_a_name_acts_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a\nkind: x.csv"
    path.write_text("id\n1\n")
    made = FileImport.of(path, "a").plan(tmp_path, SILENT, None, input_format="csv")
    assert made.manifest.startswith("# The columns are those of a\\nkind: x.csv,")
