"""The rule of CSV (RFC-010): what is a record, what is refused, and that Spark is given what the rule says."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odfchain.errors import BadInputError, OdfchainError, SchemaError
from odfchain.ingest import read_csv
from odfchain.ingest.read_csv import LONGEST_SHORT_LINE, CsvDialect, CsvRecords, first_misfit, scan_text
from odfchain.ingest.read_formats import open_input
from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.odf.sources import ReadStepCsv
from odfchain.spark import executor_files, text_values
from odfchain.spark.input_frames import CsvTexts
from odfchain.spark.jobs import explain
from tests.kit.pushed_files import put
from tests.kit.support import no_session

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

BACKSLASH = CsvDialect(escape="\\")
DOUBLED = CsvDialect()
APOSTROPHE = CsvDialect(quote="'", escape="\\")
UNQUOTED = CsvDialect(quote="")
TABS = CsvDialect(separator="\t", escape="\\")


def records(tmp_path: Path, text: str, dialect: CsvDialect = BACKSLASH) -> list[list[str | None]]:
    path = tmp_path / "in.csv"
    path.write_bytes(text.encode(dialect.encoding))
    return list(CsvRecords(path, dialect, "f"))


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        ('"a""b",2\n', DOUBLED, [['a"b', "2"]]),
        ('"a""b",2\n', BACKSLASH, [['a"b', "2"]]),
        ('"a\\"b",2\n', BACKSLASH, [['a"b', "2"]]),
        ('"a\\\\",2\n', BACKSLASH, [["a\\", "2"]]),
        ('"a\\\\\\"b",2\n', BACKSLASH, [['a\\"b', "2"]]),
        ('"C:\\new\\\\x",2\n', BACKSLASH, [["C:\\new\\\\x", "2"]]),
        ('"a\\",2\n', DOUBLED, [["a\\", "2"]]),
        ('x"y, "z",\\"\n', BACKSLASH, [['x"y', ' "z"', '\\"']]),
        ("'a''b\\'',2\n", APOSTROPHE, [["a'b'", "2"]]),
        ('"x,1\n', UNQUOTED, [['"x', "1"]]),
        ('"","",\n', BACKSLASH, [["", "", None]]),
        ('"x\r\ny",1\r2,\n', BACKSLASH, [["x\r\ny", "1"], ["2", None]]),
        ("\n \n\t\n\nx\n", BACKSLASH, [[" "], ["\t"], ["x"]]),
        ("a\tb\n\t\n1\t2", TABS, [["a", "b"], [None, None], ["1", "2"]]),
        ("\ufeffa,\ufeff\n", BACKSLASH, [["a", "\ufeff"]]),
        ("«a««b«,2\n", CsvDialect(quote="«"), [["a«b", "2"]]),
        ("a\u2028b\x85\n", BACKSLASH, [["a\u2028b\x85"]]),
    ],
)  # fmt: skip
def test_records(tmp_path: Path, text: str, dialect: CsvDialect, expected: list[list[str | None]]) -> None:
    assert records(tmp_path, text, dialect) == expected


AFTER = "text after a closing quote: %s; a separator or the end of the line was expected"


@pytest.mark.parametrize(
    ("text", "dialect", "message"),
    [
        ('"x"y,2\n', BACKSLASH, "line 1: " + AFTER % "'y,2'"),
        ('"x"y,2\n', DOUBLED, "line 1: " + AFTER % "'y,2'"),
        ('a,b\n1,"x" \n', BACKSLASH, "line 2: " + AFTER % "' '"),
        ("'x'y,2\n", APOSTROPHE, "line 1: " + AFTER % "'y,2'"),
        ('"x"\ty\t2\n', CsvDialect(separator="|"), "line 1: " + AFTER % r"'\ty\t2'"),
        ('"x\ny"z,2\n', BACKSLASH, "line 2: " + AFTER % "'z,2'"),
        ('"a\\\\"b",2\n', BACKSLASH, "line 1: " + AFTER % "'b\",2'"),
        ('1,2\n"x,1\n2,3\n', BACKSLASH, "line 2: a quoted field that begins here has no closing quote"),
        ('"a\\",2\n', BACKSLASH, "line 1: a quoted field that begins here has no closing quote"),
        ("1,2\na\0b,1\n", BACKSLASH, "line 2: a NUL character"),
        ('"a\n\0b",1\n', BACKSLASH, "line 2: a NUL character"),
    ],
)
def test_what_breaks_the_rule(tmp_path: Path, text: str, dialect: CsvDialect, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        records(tmp_path, text, dialect)
    assert str(caught.value) == f"f: {message}"


PIECES = st.lists(
    st.sampled_from(['"', '""', ",", "\n", "\r\n", "\r", " ", "\t", "a", "\\", '\\"', "é", ";"]), max_size=16
)


@given(pieces=PIECES)
def test_the_rule_is_that_of_the_csv_module_where_that_is_strict(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    """Without an escape character: what Python's strict reader takes we take alike, and refuse the rest."""
    text = "".join(pieces)
    path = tmp_path_factory.getbasetemp() / "rule.csv"
    path.write_bytes(text.encode())
    try:
        expected = [r for r in csv.reader(io.StringIO(text, newline=""), strict=True) if r]
    except csv.Error:
        with pytest.raises(BadInputError):
            list(CsvRecords(path, DOUBLED, "f"))
        return
    found = [["" if f is None else f for f in record] for record in CsvRecords(path, DOUBLED, "f")]
    assert found == expected


@given(pieces=PIECES)
def test_a_rewritten_file_has_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    base = tmp_path_factory.getbasetemp()
    path, target = base / "from.csv", base / "to.csv"
    path.write_bytes("".join(pieces).encode())
    target.unlink(missing_ok=True)
    try:
        breaks = CsvRecords(path, BACKSLASH, "f").rewrite(target)
    except BadInputError:
        return
    expected = list(CsvRecords(path, BACKSLASH, "f"))
    assert list(CsvRecords(target, DOUBLED, "f")) == expected
    assert not scan_text(target, csv=DOUBLED).irregular or breaks
    assert breaks == any("\n" in f or "\r" in f for r in expected for f in r if f is not None)


TEXTS = st.lists(
    st.sampled_from([
        '"', '""', ",", ",", "\n", "\n", "\r\n", "\r", " ", "\t", "a", "NA", "\\", '\\"', "é", "\xa0", "\0", ";", "'",
        "\ufeff", "\u2028", "\x85", "\x1c", '"a', 'a"', '"NA"', "1,2\n", '"x\ny",z\n',
    ]),
    max_size=24,
)  # fmt: skip


@given(
    pieces=TEXTS,
    size=st.integers(1, 20),
    null_value=st.sampled_from(["", "NA", "a"]),
    dialect=st.sampled_from([DOUBLED, BACKSLASH, APOSTROPHE, UNQUOTED, CsvDialect(separator=";")]),
    header=st.booleans(),
)
@example(pieces=['""', ","], size=1, null_value="NA", dialect=DOUBLED, header=False)
@example(pieces=["\ufeff", "\ufeff"], size=1, null_value="", dialect=DOUBLED, header=False)
def test_pieces_are_read_as_the_rule_says(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[str], size: int, null_value: str, dialect: CsvDialect, header: bool,
) -> None:  # fmt: skip
    """Wherever a file is cut, its records are those of the rule; what breaks the rule is not read at all."""
    base = tmp_path_factory.getbasetemp()
    path, plain = base / "pieces.csv", base / "plain.csv"
    path.write_bytes("".join(pieces).encode())
    plain.unlink(missing_ok=True)
    traits = scan_text(path, csv=dialect)
    given_, given_dialect, multiline = path, dialect, traits.multiline
    try:
        expected = list(CsvRecords(path, dialect, "f"))
        if traits.irregular:
            multiline = CsvRecords(path, dialect, "f").rewrite(plain)
            given_, given_dialect = plain, DOUBLED
    except BadInputError:
        # a forgotten quote at the end is found by who reads the records
        assert traits.irregular or traits.multiline or "".join(pieces).count(dialect.quote) % 2
        return
    if not expected:
        return
    columns = tuple(f"c{n}" for n in range(len(expected[0])))
    quote = given_dialect.quote if multiline else ""
    file = executor_files.InputFile(given_)
    ranges = executor_files.text_ranges(file, quote=quote, header=header, size=size)
    texts = CsvTexts(ranges, columns, columns, given_dialect.separator, given_dialect.quote, null_value)
    expected = expected[header:]
    try:
        found = [list(row.values()) for b in texts(range(len(ranges.cuts) - 1)) for row in b.to_pylist()]
    except RuntimeError:
        assert any(len(record) != len(columns) for record in expected)
        return
    nulls = (None, null_value)
    assert found == [[None if field in nulls else field for field in record] for record in expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": '"'}, "read.quote: '\"' is the separator already"),
        ({"separator": "\\"}, r"read.escape: '\\' is the separator already"),
        ({"separator": "\n"}, "read.separator: must not be a line break or NUL"),
        ({"quote": "\0"}, "read.quote: must not be a line break or NUL"),
    ],
)
def test_characters_that_cannot_be_told_apart(tmp_path: Path, options: dict[str, str], message: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text("a\n")
    with pytest.raises(SchemaError) as caught:
        open_input(no_session, path, ReadStepCsv(**options), scratch=tmp_path)
    assert message in str(caught.value)


def test_what_stands_for_a_null_is_no_text_of_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns with such texts are read whole; value by value they take many times as long."""
    texts = pa.array(["1", "NA", "-2"])
    monkeypatch.setattr(text_values, "_one_by_one", None)
    found = text_values.read_texts(
        pc.if_else(pc.equal(texts, "NA"), None, texts), ds.DataTypeInt32(), text_values.DEFAULT_RULES
    )
    assert found.values.to_pylist() == [1, None, -2]


# --- the first look at a file ------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [3, 1_000, 4_096, 4_097, 1 << 20])
@pytest.mark.parametrize(
    ("lengths", "long"),
    [
        ([LONGEST_SHORT_LINE], False),
        ([LONGEST_SHORT_LINE + 1], True),
        ([5, LONGEST_SHORT_LINE, 0, 7], False),
        ([LONGEST_SHORT_LINE - 1, LONGEST_SHORT_LINE + 1, 3], True),
        ([1] * 9_000, False),
        ([], False),
    ],
)
def test_long_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, lengths: list[int], long: bool
) -> None:
    monkeypatch.setattr(read_csv, "_CHUNK", chunk)
    path = put(tmp_path, b"\n".join(b"x" * n for n in lengths))
    assert scan_text(path).long_lines is long


@pytest.mark.parametrize("before", range(4))
def test_a_broken_byte_is_found_at_every_place_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(read_csv, "_CHUNK", 3)
    path = put(tmp_path, b"x" * before + b"\n\xc3abc\n")
    with pytest.raises(BadInputError, match="line 2: byte 0xc3 is not valid utf-8"):
        scan_text(path)


# --- on Spark --------------------------------------------------------------------------------------


def read(engine: SparkEngine, tmp_path: Path, text: bytes, step: ReadStepCsv) -> list[list[str | None]] | str:
    """The rows, or the message of the refusal."""
    path = tmp_path / "in.csv"
    path.write_bytes(text)
    opened = None
    try:
        opened = open_input(lambda: engine.session, path, step, scratch=tmp_path)
        if opened is None:
            return []
        return [list(r) for r in opened.frame.drop("__odfchain_row").collect()]
    except OdfchainError as error:
        return str(error)
    except Exception as error:
        found = opened.malformed() if opened is not None and opened.malformed is not None else None
        return str(found or explain(error))


ODD = (
    b'a,b\n"x"y,2\n', b'a,b\n"x" ,2\n', b'a,b\n"x\ry",1\n', b'a,b\n"x\r\ny",1\r\n1,2\r\n', b"a\n \nx\n",
    b'a,b\n"C:\\new\\\\x",1\n"q\\"r""s",2\n', b'a,b\n"x\ny",2\n3,4\r\n5,6\r7,8\n', b"a,b\n\0x,1\n",
    b'"a\nb",c\r\n1,2\r\n3,4\n5,6\r\n', b"a,b\n1,2\n" + b",".join([b"x"] * 30_000) + b"\n", b"a,b\n1\n",
    b'\xef\xbb\xbf"a",b\n1,"x\ny"\n', "a,b\né,ü\n".encode("utf-16"), b'a,b\n"x,1\n',
)  # fmt: skip


def test_spark_reads_what_the_rule_says(engine: SparkEngine, tmp_path: Path) -> None:
    """Records of the rule, or its refusal, for files that Spark alone would read otherwise."""
    for number, text in enumerate(ODD):
        folder = tmp_path / str(number)
        folder.mkdir()
        encoding = "utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
        step = ReadStepCsv(header=True, encoding=encoding)
        found = read(engine, folder, text, step)
        try:
            dialect = CsvDialect(escape="\\", encoding=encoding)
            header, *expected = CsvRecords(folder / "in.csv", dialect, str(folder / "in.csv"))
        except BadInputError as error:
            assert found == str(error)
            continue
        if any(len(r) != len(header) for r in expected):
            assert isinstance(found, str)
            assert f"expected {len(header)} fields" in found
        else:
            assert found == [[f or None for f in r] for r in expected], text


def test_a_forgotten_quote_takes_no_more_than_a_record_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers refuse the range before they read it; the driver says on which line it begins."""
    path = tmp_path / "in.csv"
    path.write_text('a,b\n1,2\n3,"4\n' + "5,6\n" * 500_000)
    monkeypatch.setattr(executor_files, "INPUT", INPUT.__class__(record_bytes=1 << 20))
    monkeypatch.setattr(executor_files, "RANGE_BYTES", 4)
    monkeypatch.setattr(read_csv, "INPUT", INPUT.__class__(record_bytes=1 << 20))
    ranges = executor_files.text_ranges(executor_files.InputFile(path), quote='"', header=True)
    texts = CsvTexts(ranges, ("a", "b"), ("a", "b"), ",", '"', "")
    with pytest.raises(RuntimeError, match="a record has more than 1 MiB"):
        list(texts(range(len(ranges.cuts) - 1)))
    found = first_misfit(path, DOUBLED, ["a", "b"], header=True, file="in.csv")
    assert found is not None
    assert "line 3: a quoted field that begins here has more than 1 MiB" in str(found)
