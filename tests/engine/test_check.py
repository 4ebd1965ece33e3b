"""What an engine wrote is right, or the error says what is wrong and at which offset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.errors import EngineError, StoreError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.slices import reader
from odfchain.slices.reader import hash_parquet
from odfchain.transform.execute import check_output, measure, rewrite, schema_difference
from tests.kit.root_rows import TIME as MS
from tests.kit.root_rows import schema_with

VOCABULARY = DatasetVocabulary()
NOW = Timestamp.parse("2020-01-01T12:00:00.123Z")
OTHER = dt.datetime(2021, 1, 1, tzinfo=dt.UTC)
SYSTEM = [*schema_with()]
TIMES = [field.with_nullable(True) for field in SYSTEM[2:]]
FOREIGN = [pa.field("offset", pa.int64()), pa.field("op", pa.int32()), *TIMES]
CITY = pa.field("city", pa.string())


def write(
    path: Path, count: int = 4, *, start: int = 10, fields: Sequence[pa.Field] = (*SYSTEM, CITY),
    rows: int = 2, **columns: list[Any],
) -> Path:  # fmt: skip
    schema = pa.schema(fields)
    values: dict[str, list[Any]] = {
        "offset": list(range(start, start + count)),
        "op": [0] * count,
        "system_time": [NOW.to_datetime()] * count,
        "event_time": [dt.datetime(2020, 1, 1 + i % 28, tzinfo=dt.UTC) for i in range(count)],
        "city": [f"city {i}" for i in range(count)],
    } | columns
    table = pa.table({f.name: pa.array(values[f.name], f.type) for f in schema}, schema=schema)
    pq.write_table(table, path, row_group_size=rows, store_schema=False)
    return path


def schema_of(*fields: pa.Field, system: list[pa.Field] = SYSTEM) -> ds.DataSchema:
    return from_arrow([*system, *fields])


def checked(
    path: Path, count: int = 4, start: int = 10, schema: Any = None, vocabulary: Any = VOCABULARY
) -> ds.DataSchema:
    interval = OffsetInterval(start=start, end=start + count - 1) if count else None
    return check_output(path, vocabulary=vocabulary, schema=schema, interval=interval, system_time=NOW)


def rewritten(path: Path, folder: Path, *more: pa.Field) -> Any:
    return rewrite(path, schema_of(CITY, *more), VOCABULARY, 10, NOW.epoch_ms, folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("count", [4, 0])
def test_the_schema_is_that_of_the_file(path: Path, count: int) -> None:
    write(path, count)
    for declared in (None, schema_of(CITY)):
        assert checked(path, count, schema=declared) == schema_of(CITY)


def test_signed_system_columns_and_stricter_columns(path: Path) -> None:
    required = pa.field("city", pa.string(), nullable=False)
    write(path, fields=[*FOREIGN, required])
    assert checked(path, schema=schema_of(CITY)) == schema_of(required, system=FOREIGN)


def test_dates_and_other_names(path: Path) -> None:
    names = DatasetVocabulary(offset_column="o.1", operation_type_column="kind", event_time_column="day")
    offset, op = SYSTEM[0].with_name("o.1"), SYSTEM[1].with_name("kind")
    fields = [offset, op, SYSTEM[2], pa.field("day", pa.date32())]
    columns = {"o.1": [5, 6], "kind": [2, 3], "day": [dt.date(2020, 1, 1)] * 2}
    write(path, 2, fields=[*fields, pa.field("o", pa.int8())], o=[1, None], **columns)
    assert checked(path, 2, 5, vocabulary=names).names == ("o.1", "kind", "system_time", "day", "o")


def test_a_declared_order_counts_more_than_the_usual_one(path: Path) -> None:
    fields = [*SYSTEM[:3], CITY, SYSTEM[3]]
    write(path, fields=fields)
    assert checked(path, schema=from_arrow(fields)) == from_arrow(fields)


def test_arrows_own_schema_in_the_file(path: Path) -> None:
    """Encodings that it asks for are not types."""
    table = pq.read_table(write(path, op=[0, 1, 2, 3]))
    table = table.set_column(4, "city", table["city"].dictionary_encode())
    other_zone = table["event_time"].cast(pa.int64()).cast(pa.timestamp("ms", "+00:00"))
    pq.write_table(table.set_column(3, "event_time", other_zone), path)
    stored = pq.read_schema(path)
    assert pa.types.is_dictionary(stored.field("city").type)
    assert stored.field("event_time").type.tz == "+00:00"
    assert checked(path, schema=schema_of(CITY)).names == (*VOCABULARY.columns, "city")


OPERATIONS = st.lists(st.sampled_from([[0], [1], [2, 3]]), min_size=1, max_size=40).map(
    lambda groups: [op for group in groups for op in group]
)


@settings(max_examples=60)
@given(
    ops=OPERATIONS,
    start=st.integers(0, 2**62) | st.integers(2**64 - 200, 2**64 - 100),
    rows=st.integers(1, 100),
    foreign=st.booleans(),
    batch=st.integers(1, 50),
)
def test_a_right_output_passes(
    ops: list[int], start: int, rows: int, foreign: bool, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    system = FOREIGN if foreign and start < 2**62 else SYSTEM
    path = tmp_path_factory.mktemp("right") / "data"
    write(path, len(ops), start=start, fields=[*system, CITY], rows=rows, op=ops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BATCH_ROWS", batch)
        assert checked(path, len(ops), start, schema=schema_of(CITY)) == schema_of(CITY, system=system)
        assert measure(path, VOCABULARY).ops == {str(op): ops.count(op) for op in sorted(set(ops))}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"offset": [10, 11, 13, 14]}, "row at offset 12 has offset 13; offsets have no gaps"),
        ({"offset": [9, 10, 11, 12]}, "row at offset 10 has offset 9; offsets have no gaps"),
        ({"offset": [10, 11, 11, 12]}, "row at offset 12 has offset 11; offsets have no gaps"),
        ({"offset": [10, 12, 11, 13]}, "row at offset 11 has offset 12; offsets have no gaps"),
        ({"offset": [10, 11, None, 13]}, "the offset column has nulls, the first at offset 12"),
        ({"offset": [10, 11, 12, -1]}, "row at offset 13 has offset -1; offsets have no gaps"),
        ({"op": [0, 0, 0, 4]}, "row at offset 13 has operation 4; known are 0 to 3"),
        ({"op": [0, -1, 0, 0]}, "row at offset 11 has operation -1; known are 0 to 3"),
        ({"op": [0, 0, None, 0]}, "the operation column has nulls, the first at offset 12"),
        ({"op": [2, 0, 0, 0]}, "row at offset 10: a -C without the +C after it"),
        ({"op": [0, 2, 0, 3]}, "row at offset 11: a -C without the +C after it"),
        ({"op": [0, 2, 2, 3]}, "row at offset 11: a -C without the +C after it"),
        ({"op": [0, 0, 0, 2]}, "row at offset 13: a -C without the +C after it"),
        ({"op": [3, 0, 0, 0]}, "row at offset 10: a +C without the -C before it"),
        ({"op": [2, 3, 3, 0]}, "row at offset 12: a +C without the -C before it"),
        ({"system_time": [NOW.to_datetime()] * 3 + [OTHER]},
         "row at offset 13: the system time is not 2020-01-01T12:00:00.123Z"),
        ({"system_time": [None] + [NOW.to_datetime()] * 3}, "the system time column has nulls, the first at offset 10"),
        ({"event_time": [OTHER, OTHER, None, OTHER]}, "column `event_time` is declared required and has nulls, the first at offset 12"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_records(
    columns: dict[str, list[Any]], message: str, batch: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_ROWS", batch)
    write(path, fields=[*FOREIGN, CITY], **columns)
    with pytest.raises(EngineError) as found:
        checked(path)
    assert str(found.value) == f"the engine broke its contract: {message}"


def test_a_wrong_number_of_records(path: Path) -> None:
    write(path)
    for count in (0, 3, 5):
        with pytest.raises(EngineError, match=f"contract: {count} records are declared, the file has 4"):
            checked(path, count)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "the first columns of the output must be offset, op, system_time, event_time, they are none"),
        (SYSTEM[1:], "must be offset, op, system_time, event_time, they are op, system_time, event_time"),
        ([*SYSTEM[:3], CITY, SYSTEM[3]], "they are offset, op, system_time, city"),
        ([SYSTEM[1], SYSTEM[0], *SYSTEM[2:]], "they are op, offset, system_time, event_time"),
        ([SYSTEM[0].with_type(pa.int32()), *SYSTEM[1:]], "column `offset` must be BIGINT UNSIGNED or BIGINT, it is INT"),
        ([SYSTEM[0], pa.field("op", pa.int64()), *SYSTEM[2:]], "column `op` must be TINYINT UNSIGNED or INT, it is BIGINT"),
        ([*SYSTEM[:2], pa.field("system_time", pa.timestamp("us", "UTC")), SYSTEM[3]],
         "column `system_time` must be "),
        ([*SYSTEM[:3], pa.field("event_time", pa.timestamp("ms"))], "column `event_time` must be "),
        ([*SYSTEM[:3], pa.field("event_time", pa.timestamp("us", "UTC"))], "column `event_time` must be "),
        ([*SYSTEM[:3], pa.field("event_time", pa.string())], "or DATE, it is STRING"),
        ([*SYSTEM[:3], pa.field("event_time", pa.struct([CITY]))], "column `event_time` must be "),
        ([*SYSTEM, CITY, CITY], "column `city` comes twice"),
    ],
)  # fmt: skip
def test_system_columns(fields: list[pa.Field], message: str, path: Path) -> None:
    pq.write_table(pa.schema(fields).empty_table(), path, store_schema=False)
    with pytest.raises(EngineError) as found:
        checked(path, 0)
    assert message in str(found.value)


NUMBER = pa.field("n", pa.int64())
DECLARED: list[tuple[list[pa.Field], list[pa.Field], str | None]] = [
    ([CITY, NUMBER], [CITY, NUMBER], None),
    ([CITY, NUMBER], [CITY], "column `n` is missing"),
    ([CITY], [CITY, NUMBER], "column `n` is not declared"),
    ([CITY, NUMBER], [NUMBER, CITY], "the order of columns is offset, op, system_time, event_time, n, city"),
    ([NUMBER], [pa.field("n", pa.int32())], "column `n` is INT, declared is BIGINT"),
    ([NUMBER], [pa.field("n", pa.uint64())], "column `n` is BIGINT UNSIGNED, declared is BIGINT"),
    ([pa.field("n", pa.int64(), nullable=False)], [NUMBER], "column `n` may be null, declared is NOT NULL"),
    ([NUMBER], [pa.field("n", pa.int64(), nullable=False)], None),
    ([pa.field("s", pa.struct([CITY, NUMBER]))], [pa.field("s", pa.struct([CITY, NUMBER]))], None),
    ([pa.field("s", pa.struct([CITY, NUMBER]))], [pa.field("s", pa.struct([CITY]))], "column `s` is "),
    ([pa.field("s", pa.struct([CITY, NUMBER]))], [pa.field("s", pa.struct([NUMBER, CITY]))], "column `s` is "),
    ([pa.field("s", pa.struct([CITY]))], [pa.field("s", pa.struct([CITY.with_nullable(False)]))], None),
    ([pa.field("s", pa.struct([CITY.with_nullable(False)]))], [pa.field("s", pa.struct([CITY]))], "column `s` is "),
    ([pa.field("l", pa.list_(pa.int32(), 3))], [pa.field("l", pa.list_(pa.int32()))], None),
    ([pa.field("l", pa.list_(pa.int32()))], [pa.field("l", pa.list_(pa.int64()))], "column `l` is "),
    ([pa.field("m", pa.map_(pa.string(), pa.int8(), keys_sorted=True))], [pa.field("m", pa.map_(pa.string(), pa.int8()))], None),
    ([pa.field("m", pa.map_(pa.string(), pa.int8()))], [pa.field("m", pa.map_(pa.int8(), pa.int8()))], "column `m` is "),
    ([pa.field("t", pa.timestamp("s", "UTC"))], [pa.field("t", MS)], None),
    ([pa.field("t", MS)], [pa.field("t", pa.timestamp("ms"))], "column `t` is "),
    ([pa.field("t", pa.time32("s"))], [pa.field("t", pa.time32("ms"))], None),
    ([pa.field("d", pa.decimal128(9, 2))], [pa.field("d", pa.decimal128(9, 3))], "column `d` is "),
    ([pa.field("d", pa.date64())], [pa.field("d", pa.date32())], None),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "found", "message"), DECLARED)
@pytest.mark.parametrize("system", [SYSTEM, FOREIGN])
def test_the_declared_schema(
    declared: list[pa.Field], found: list[pa.Field], message: str | None, system: list[pa.Field], path: Path
) -> None:
    pq.write_table(pa.schema([*system, *found]).empty_table(), path, store_schema=False)
    in_file = from_arrow(pq.read_schema(path))
    if message is None:
        assert checked(path, 0, schema=schema_of(*declared)) == in_file
        return
    with pytest.raises(EngineError) as error:
        checked(path, 0, schema=schema_of(*declared))
    assert f"does not have the schema of the dataset: {message}" in str(error.value)


def test_names_of_system_columns_matter(path: Path) -> None:
    names = DatasetVocabulary(offset_column="n")
    declared, found = from_arrow([NUMBER]), from_arrow([pa.field("n", pa.uint64())])
    assert schema_difference(declared, found, names) is None
    assert schema_difference(declared, found, DatasetVocabulary()) is not None


def test_files_that_are_none(path: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no output file"):
        checked(path)
    path.mkdir()
    (link := tmp_path / "link").symlink_to(write(tmp_path / "real"))
    for wrong in (path, link):
        with pytest.raises(EngineError, match="is not a plain file"):
            checked(wrong)


def test_files_that_are_no_parquet(path: Path, tmp_path: Path) -> None:
    data = write(path).read_bytes()
    for content in (b"", b"PAR1", data[:-1], data[:-20], b"x" * len(data)):
        path.write_bytes(content)
        for call in (
            lambda: checked(path),
            lambda: measure(path, VOCABULARY),
            lambda: rewritten(path, tmp_path),
        ):
            with pytest.raises(EngineError, match="is not a readable Parquet file") as found:
                call()
            assert "\n" not in str(found.value)
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_end_in_our_errors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("damaged") / "data")
    content = bytearray(path.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content))
    try:
        assert checked(path).names[:4] == VOCABULARY.columns
    except EngineError as error:
        assert "\n" not in str(error)


def test_measured(path: Path) -> None:
    write(path, op=[0, 1, 2, 3])
    facts = measure(path, VOCABULARY)
    assert (facts.path, facts.rows, facts.size) == (str(path), 4, path.stat().st_size)
    assert facts.physical_hash == str(hash_file(path)[0])
    assert facts.logical_hash == str(hash_parquet(path)[0])
    assert facts.max_event_time_ms == Timestamp.parse("2020-01-04T00:00:00Z").epoch_ms
    assert facts.ops == {"0": 1, "1": 1, "2": 1, "3": 1}
    day = pa.field("event_time", pa.date32())
    write(path, 2, fields=[*SYSTEM[:3], day], event_time=[dt.date(2020, 1, 2), dt.date(1960, 1, 1)])
    assert measure(path, VOCABULARY).max_event_time_ms == Timestamp.parse("2020-01-02T00:00:00Z").epoch_ms
    assert measure(write(path, 0), VOCABULARY).max_event_time_ms is None


def test_a_foreign_file_in_the_declared_types(path: Path, tmp_path: Path) -> None:
    write(path, fields=[*FOREIGN, CITY], op=[0, 1, 2, 3])
    facts = rewritten(path, tmp_path)
    written = Path(facts.path)
    assert written.parent == tmp_path
    assert written != path
    assert checked(written, schema=schema_of(CITY)) == schema_of(CITY)
    assert replace(facts, footer=None) == measure(written, VOCABULARY)
    before = pq.read_table(path)
    assert pq.read_table(written).cast(before.schema).equals(before)
    ours = write(tmp_path / "ours", op=[0, 1, 2, 3])
    assert measure(ours, VOCABULARY).logical_hash == facts.logical_hash


def test_nothing_to_rewrite(path: Path, tmp_path: Path) -> None:
    write(path, 0, fields=[*FOREIGN, CITY])
    assert rewritten(path, tmp_path) is None
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_rewritten(path: Path, tmp_path: Path) -> None:
    write(path, fields=[*FOREIGN, CITY], op=[0, 0, 0, 300])
    with pytest.raises(EngineError, match="`op`: Integer value 300"):
        rewritten(path, tmp_path)
    with pytest.raises(EngineError, match="column `n` is missing"):
        rewritten(path, tmp_path, NUMBER)
    write(path, fields=[*FOREIGN, CITY], event_time=[OTHER, None, OTHER, OTHER])
    with pytest.raises(EngineError, match="Column `event_time` contains 1 null"):
        rewritten(path, tmp_path)
    write(path)
    with pytest.raises(StoreError, match="No such file"):
        rewritten(path, tmp_path / "missing")
    assert list(tmp_path.iterdir()) == [path]
