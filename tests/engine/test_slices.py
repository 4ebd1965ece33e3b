"""Input slices: exactly the records of an interval, in order, in one file."""

from __future__ import annotations

import datetime as dt
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.errors import BadInputError, StorageFullError, StoreError
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.transform.step_files import Cut, CutByWorkers, RowFacts
from tests.kit.folder_files import FolderFiles
from tests.kit.root_rows import TIME as MS
from tests.kit.root_rows import schema_with
from tests.kit.support import write_lying

VOCABULARY = DatasetVocabulary()
SYSTEM = [*schema_with()]
CITY = pa.field("city", pa.string())
SCHEMA = schema_with(CITY)
TIME = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def table(offsets: list[int], schema: pa.Schema = SCHEMA, **columns: list[Any]) -> pa.Table:
    count = len(offsets)
    values = {
        "offset": offsets,
        "op": [0] * count,
        "system_time": [TIME] * count,
        "event_time": [TIME] * count,
        "city": [f"city {n}" for n in offsets],
    } | columns
    return pa.table({f.name: pa.array(values[f.name], f.type) for f in schema}, schema=schema)


def write(
    path: Path, offsets: list[int], schema: pa.Schema = SCHEMA, rows: int = 1 << 20, **columns: list[Any]
) -> Path:
    pq.write_table(table(offsets, schema, **columns), path, row_group_size=rows, store_schema=False)
    return path


def span(start: int, end: int) -> list[int]:
    return list(range(start, end + 1))


def between(start: int, end: int) -> OffsetInterval:
    return OffsetInterval(start=start, end=end)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "cut").mkdir()
    return made


def take(paths: list[Path], start: int, end: int, folder: Path, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The cut, which is a new file."""
    found = Cut(tuple(paths), between(start, end), schema, VOCABULARY).into(folder, "input-0")
    assert found == folder / "input-0.parquet"
    assert list(folder.iterdir()) == [found]
    cut_table = pq.ParquetFile(found).read()
    assert cut_table.schema.equals(schema)
    assert cut_table["offset"].to_pylist() == span(start, end)
    return cut_table


def test_nothing_without_an_interval(folder: Path) -> None:
    assert Cut((Path("missing"),), None, SCHEMA, VOCABULARY).into(folder, "a") is None
    assert list(folder.iterdir()) == []


def test_the_file_itself_when_it_is_the_interval(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "a", span(5, 9), rows=2)
    assert Cut((path,), between(5, 9), SCHEMA, VOCABULARY).into(folder, "a") == path
    assert list(folder.iterdir()) == []


def test_parts_of_several_files(tmp_path: Path, folder: Path) -> None:
    paths = [write(tmp_path / "a", span(0, 9), rows=3), write(tmp_path / "b", span(10, 19), rows=4)]
    found = take(paths, 4, 14, folder)
    assert found["city"].to_pylist() == [f"city {n}" for n in span(4, 14)]
    assert take(paths, 0, 19, folder).num_rows == 20
    assert take(paths[:1], 9, 9, folder).num_rows == 1


def test_a_worker_cuts_slices_of_a_store_as_the_driver_has_cut_them(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = FolderFiles(str(tmp_path / "store"))
    paths = (write(tmp_path / "a", span(0, 9), rows=3), write(tmp_path / "b", span(10, 19), rows=4))
    for path in paths:
        files.put(path, f"data/{path.name}")
    made_of = Cut(paths, between(4, 14), SCHEMA, VOCABULARY)
    by_driver = made_of.into(folder, "input-0")
    by_worker = CutByWorkers(files, ("data/a", "data/b"), replace(made_of, paths=()))
    brought = by_worker.bring("")
    assert brought.read_bytes() == by_driver.read_bytes()
    assert by_worker.bring("") == brought, "it is kept"
    other = replace(by_worker, made_of=replace(by_worker.made_of, interval=between(5, 14)))
    assert pq.read_metadata(other.bring("")).num_rows == 10
    whole = CutByWorkers(files, ("data/a",), Cut((), between(0, 9), SCHEMA, VOCABULARY))
    assert whole.bring("") == files.bring("data/a")


def test_one_row_group_and_one_file_in_spite_of_many_small_ones(tmp_path: Path, folder: Path) -> None:
    paths = [write(tmp_path / str(n), span(10 * n, 10 * n + 9), rows=1) for n in range(20)]
    take(paths, 3, 196, folder)
    assert pq.ParquetFile(folder / "input-0.parquet").metadata.num_row_groups == 1


def test_signed_system_columns_and_other_encodings(tmp_path: Path, folder: Path) -> None:
    fields = [pa.field("offset", pa.int64()), pa.field("op", pa.int32()), *SCHEMA][:2]
    old = pa.schema([*fields, *list(SYSTEM)[2:], pa.field("city", pa.large_string())])
    path = tmp_path / "a"
    cities = pa.array(["a", "b", "a", None]).dictionary_encode()
    pq.write_table(
        table(span(0, 3), old).set_column(4, "city", cities), path
    )  # with Arrow's own schema in it
    assert pa.types.is_dictionary(pq.ParquetFile(path).schema_arrow.field("city").type)
    assert take([path], 0, 3, folder)["city"].to_pylist() == ["a", "b", "a", None]
    signed = pa.schema([*fields, *list(SCHEMA)[2:]])
    assert take([write(tmp_path / "b", span(0, 3))], 1, 2, folder, signed)["op"].to_pylist() == [0, 0]


def test_columns_that_an_older_file_lacks_are_null(tmp_path: Path, folder: Path) -> None:
    place = pa.field("place", pa.struct([pa.field("lat", pa.float64()), pa.field("alt", pa.int32())]))
    flat = pa.field("place", pa.struct([pa.field("lat", pa.float64())]))
    old = write(tmp_path / "a", [0], pa.schema(SYSTEM))
    middle = write(tmp_path / "b", [1], pa.schema([*SYSTEM, flat]), place=[{"lat": 1.5}])
    new = pa.schema([*SYSTEM, place, pa.field("city", pa.string())])
    last = write(tmp_path / "c", [2], new, place=[None])
    found = take([old, middle, last], 0, 2, folder, new)
    assert found["place"].to_pylist() == [None, {"lat": 1.5, "alt": None}, None]
    assert found["city"].to_pylist() == [None, None, "city 2"]


def test_columns_are_found_by_name(tmp_path: Path, folder: Path) -> None:
    turned = pa.schema(list(SCHEMA)[::-1])
    assert take([write(tmp_path / "a", span(0, 2), turned)], 0, 2, folder)["city"].to_pylist() == [
        "city 0", "city 1", "city 2"
    ]  # fmt: skip


def test_what_parquet_does_not_keep(tmp_path: Path, folder: Path) -> None:
    types = {"pair": pa.list_(pa.int32(), 2), "second": pa.timestamp("s", "UTC"), "day": pa.date64()}
    declared = schema_with(*(pa.field(name, kind) for name, kind in types.items()))
    values = {"pair": [[1, 2], None], "second": [TIME, None], "day": [dt.date(2020, 1, 1), None]}
    path = tmp_path / "a"
    pq.write_table(table([0, 1], declared, **values), path, store_schema=False)
    found = Cut((path,), between(0, 1), declared, VOCABULARY).into(folder, "a")
    assert found == folder / "a.parquet"
    assert pq.read_table(found).select([*types]).to_pydict() == values


def test_offsets_beyond_signed_numbers(tmp_path: Path, folder: Path) -> None:
    top = 2**64 - 1
    path = write(tmp_path / "a", span(top - 9, top), rows=2)
    assert take([path], top - 5, top - 2, folder).num_rows == 4
    assert Cut((path,), between(top - 9, top), SCHEMA, VOCABULARY).into(folder, "b") == path


@settings(max_examples=40)
@given(data=st.data())
def test_any_cut_of_any_files(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("any")
    first = data.draw(st.integers(0, 100), label="first")
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4), label="sizes")
    paths, at = [], first
    for index, size in enumerate(sizes):
        rows = data.draw(st.integers(1, 10), label="rows of a group")
        paths.append(write(base / str(index), span(at, at + size - 1), rows=rows))
        at += size
    start = data.draw(st.integers(first, at - 1), label="start")
    end = data.draw(st.integers(start, at - 1), label="end")
    found = Cut(tuple(paths), between(start, end), SCHEMA, VOCABULARY).into(base, "cut")
    assert pq.ParquetFile(found).read().equals(table(span(start, end)))


@pytest.mark.parametrize(
    ("files", "interval", "message"),
    [
        ([span(0, 3), span(5, 9)], (0, 9), "1: offset 4 was expected, the next record has 5"),
        ([[0, 1, 3, 4]], (0, 4), "0: offset 2 was expected, the next record has 3"),
        ([[0, 2, 1]], (0, 2), "0: offset 1 was expected, the next record has 2"),
        ([[0, 1, 1, 2]], (0, 2), "0: offset 2 was expected, the next record has 1"),
        ([span(3, 5), span(0, 2)], (0, 5), "0: offset 0 was expected, the next record has 3"),
        ([span(0, 5), span(4, 9)], (0, 9), "1: offset 6 was expected, the next record has 4"),
        ([span(2, 5)], (0, 5), "0: offset 0 was expected, the next record has 2"),
        ([span(0, 3)], (0, 5), "0: offsets 4 to 5 are missing"),
        ([span(0, 3)], (7, 8), "0: offsets 7 to 8 are missing"),
        ([], (0, 0), "offsets 0 to 0 are missing"),
        ([span(0, 3), span(0, 3)], (0, 3), "1: offset 4 was expected, the next record has 0"),
    ],
)
def test_gaps_and_repetitions(
    files: list[list[int]], interval: tuple[int, int], message: str, tmp_path: Path, folder: Path
) -> None:
    paths = [write(tmp_path / str(i), offsets) for i, offsets in enumerate(files)]
    with pytest.raises(BadInputError) as found:
        Cut(tuple(paths), between(*interval), SCHEMA, VOCABULARY).into(folder, "a")
    assert str(found.value).removeprefix(f"{tmp_path}/") == message
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "values", "declared", "message"),
    [
        ([CITY], {}, [pa.field("city", pa.int64())], "column `city` is string, int64 was expected"),
        ([CITY], {}, [CITY, pa.field("n", pa.int64(), nullable=False)], "required column `n` is missing"),
        ([CITY], {}, [], "column `city` is not in the schema of the dataset"),
        ([CITY], {"city": ["a", None]}, [pa.field("city", pa.string(), nullable=False)],
         "Column `city` contains 1 null values while none were expected"),
        ([pa.field("n", pa.int64())], {"n": [1, 2]}, [pa.field("n", pa.int32())],
         "column `n` is int64, int32 was expected"),
        ([pa.field("t", pa.timestamp("us", "UTC"))], {"t": [TIME, TIME]}, [pa.field("t", MS)],
         "column `t` is timestamp[us, tz=UTC], timestamp[ms, tz=UTC] was expected"),
        ([pa.field("s", pa.struct([pa.field("a", pa.int32())]))], {"s": [None, None]},
         [pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)]))],
         "column `s` is struct<a: int32>, struct<a: int32, b: int32 not null> was expected"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit(
    fields: list[pa.Field], values: dict[str, Any], declared: list[pa.Field], message: str,
    tmp_path: Path, folder: Path,
) -> None:  # fmt: skip
    path = write(tmp_path / "a", [0, 1], pa.schema([*SYSTEM, *fields]), **values)
    with pytest.raises(BadInputError) as found:
        Cut((path,), between(0, 1), pa.schema([*SYSTEM, *declared]), VOCABULARY).into(folder, "a")
    assert str(found.value) == f"{path}: {message}"
    assert list(folder.iterdir()) == []


def test_system_columns_that_do_not_fit(tmp_path: Path, folder: Path) -> None:
    def refused(schema: pa.Schema, message: str, **values: list[Any]) -> None:
        path = write(tmp_path / "a", [0, 1], schema, **values)
        with pytest.raises(BadInputError, match=message):
            Cut((path,), between(0, 1), SCHEMA, VOCABULARY).into(folder, "a")
        assert list(folder.iterdir()) == []

    for index, field in enumerate(SYSTEM):
        refused(SCHEMA.remove(index), f"required column `{field.name}` is missing")
    refused(SCHEMA.set(1, pa.field("op", pa.int32())), "`op`: .*not in range", op=[0, 300])
    refused(SCHEMA.set(1, pa.field("op", pa.string())), "`op` is string, uint8 was expected", op=["0", "1"])
    refused(SCHEMA.set(0, pa.field("offset", pa.int64())), "`offset` has nulls", offset=[0, None])
    refused(SCHEMA.set(0, pa.field("offset", pa.int64())), "a: offset -1 is negative", offset=[0, -1])
    refused(SCHEMA.set(0, pa.field("offset", pa.string())), "`offset` is string, uint64", offset=["0", "1"])


def test_files_that_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    good = write(tmp_path / "good", span(0, 1))
    data = good.read_bytes()
    bad = tmp_path / "bad"
    for content in (b"", b"PAR1", data[:-20], data[20:], b"x" * len(data)):
        bad.write_bytes(content)
        for paths in ([bad], [good, bad]):
            with pytest.raises(BadInputError, match="bad: not a readable Parquet file"):
                Cut(tuple(paths), between(0, 5), SCHEMA, VOCABULARY).into(folder, "a")
    for content in (b"", data[:-20]):
        bad.write_bytes(content)
        with pytest.raises(BadInputError, match="bad: not a readable Parquet file"):
            RowFacts.of(bad, VOCABULARY)
    with pytest.raises(BadInputError, match="missing: not a readable Parquet file"):
        Cut((tmp_path / "missing",), between(0, 5), SCHEMA, VOCABULARY).into(folder, "a")
    assert list(folder.iterdir()) == []


def test_no_room_for_the_new_file(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "a", span(0, 9))
    (folder / "a.parquet").symlink_to("/dev/full")
    with pytest.raises(StorageFullError, match="no space left"):
        Cut((path,), between(0, 5), SCHEMA, VOCABULARY).into(folder, "a")
    assert list(folder.iterdir()) == []
    with pytest.raises(StoreError, match="No such file"):
        Cut((path,), between(0, 5), SCHEMA, VOCABULARY).into(tmp_path / "missing", "a")


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("data_type", [pa.uint8(), pa.int32()])
def test_changes(tmp_path: Path, statistics: bool, data_type: pa.DataType) -> None:
    path = tmp_path / "a"
    schema = SCHEMA.set(1, pa.field("op", data_type))
    for ops, expected in (([0] * 5, False), ([0, 0, 0, 0, 1], True), ([3, 3, 3, 3, 3], True), ([], False)):
        found = table(span(0, len(ops) - 1), schema, op=ops)
        pq.write_table(found, path, row_group_size=2, write_statistics=statistics)
        assert RowFacts.of(path, VOCABULARY).has_changes is expected


def test_changes_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    time = pa.array([0], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"op": [1], "kind": [0], "event_time": time}), path)
    assert RowFacts.of(path, DatasetVocabulary(operation_type_column="kind")).has_changes is False
    assert RowFacts.of(path, VOCABULARY).has_changes is True
    for names in ({"operation_type_column": "what"}, {"event_time_column": "what"}):
        with pytest.raises(BadInputError, match="required column `what` is missing"):
            RowFacts.of(path, DatasetVocabulary(**names))
    pq.write_table(pa.table({"op": pa.array([None], pa.int32()), "event_time": time}), path)
    with pytest.raises(BadInputError, match="column `op` has nulls"):
        RowFacts.of(path, VOCABULARY)


@pytest.mark.parametrize(
    ("data_type", "values", "oldest"),
    [
        (pa.timestamp("ms", "UTC"), [5, None, -7], -7),
        (pa.timestamp("us", "UTC"), [-1_500, 3], -2),
        (pa.date32(), [1, -1, None], -86_400_000),
        (pa.timestamp("ms", "UTC"), [None, None], None),
        (pa.timestamp("ms", "UTC"), [], None),
    ],
)
def test_the_oldest_event_time(
    tmp_path: Path, data_type: pa.DataType, values: list[int | None], oldest: int | None
) -> None:
    path = tmp_path / "a"
    times = pa.array(values, pa.int32() if pa.types.is_date(data_type) else pa.int64()).cast(data_type)
    pq.write_table(pa.table({"op": pa.array([0] * len(values), pa.uint8()), "event_time": times}), path)
    assert RowFacts.of(path, VOCABULARY) == RowFacts(has_changes=False, oldest_ms=oldest)


def test_what_a_file_says_of_its_rows_is_not_believed(tmp_path: Path, folder: Path) -> None:
    """Bounds of foreign files may be wrong: retractions would be appends, and rows would be left out."""
    path = tmp_path / "a"
    times = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) - dt.timedelta(days=n) for n in range(4)]
    rows = table(span(0, 3), op=[0, 1, 0, 0], event_time=times)
    write_lying(path, rows, table([100] * 4, event_time=times[:1] * 4, city=["city 9"] * 4), row_group_size=2)
    oldest = int(times[-1].timestamp() * 1_000)
    assert RowFacts.of(path, VOCABULARY) == RowFacts(has_changes=True, oldest_ms=oldest)
    assert take([path], 1, 2, folder)["op"].to_pylist() == [1, 0]
