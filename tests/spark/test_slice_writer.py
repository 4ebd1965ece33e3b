"""Slices: one pass, both hashes, the encodings of the specification, nothing left behind. No JVM here."""

from __future__ import annotations

import datetime as dt
import errno
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import UUID_MARK, to_arrow
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.logical_hash import LogicalDigest
from odfchain.odf.physical_hash import hash_file
from odfchain.slices.reader import hash_parquet, open_parquet
from odfchain.slices.writer import ObservedParquet, SliceFacts, SliceInputError, SliceObserver, write_slice
from odfchain.text import find_marker
from tests.kit.slice_batches import MS, NOW, SYSTEM, US, batch, spec
from tests.kit.support import IMPORTABLE

CITY = pa.field("city", pa.string())


def written(rows: Iterable[pa.RecordBatch], folder: Path, *fields: pa.Field, **options: Any) -> SliceFacts:
    facts = write_slice(iter(rows), spec(folder, *fields, **options))
    assert facts is not None
    return facts


def test_a_slice(tmp_path: Path) -> None:
    batches = [
        batch(2, city=pa.array(["a", "b"])),
        batch(0, city=pa.array([], pa.string())),
        batch(3, 2, [0, 1, 3], city=pa.array(["c", None, "e"])),
    ]
    facts = written(batches, tmp_path, CITY, start=7)
    assert (facts.rows, facts.ops, facts.max_event_time_ms) == (5, {"0": 3, "1": 1, "3": 1}, 4_000)
    path = Path(facts.path)
    assert path.stat().st_size == facts.size
    assert str(hash_file(path)[0]) == facts.physical_hash
    logical, rows = hash_parquet(path)
    assert (str(logical), rows) == (facts.logical_hash, 5)
    table = pq.read_table(path)
    assert table.schema.names == ["offset", "op", "system_time", "event_time", "city"]
    assert table["offset"].to_pylist() == [7, 8, 9, 10, 11]
    assert set(table["system_time"].cast(pa.int64()).to_pylist()) == {NOW}
    assert table["city"].to_pylist() == ["a", "b", "c", None, "e"]


def test_items_that_a_window_leaves_out_do_not_count(tmp_path: Path) -> None:
    """Several slices are windows of one batch; a null among the required items of another is no matter of it."""
    items = pa.list_(pa.field("item", pa.float64(), nullable=False))
    rows = batch(3, l=pa.array([[1.0], [2.0, None], [3.0]], pa.list_(pa.float64())))
    for start, there in ((0, [1.0]), (2, [3.0])):
        facts = written([rows.slice(start, 1)], tmp_path, pa.field("l", items))
        assert pq.read_table(facts.path)["l"].to_pylist() == [there]
    with pytest.raises(SliceInputError, match="contains 1 null elements"):
        written([rows.slice(1, 1)], tmp_path, pa.field("l", items))


class Remembers(SliceObserver):
    """Keeps what it is shown, and says so when something comes in another order than promised."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.bytes = b""
        self.finished = 0

    def batch(self, rows: pa.RecordBatch) -> None:
        assert rows.num_rows
        assert not self.finished
        self.rows += rows.to_pylist()

    def data(self, view: memoryview) -> None:
        assert not self.finished
        self.bytes += view

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("threads", [0, 2])
def test_observers_see_all_rows_and_bytes_once_and_in_order(tmp_path: Path, threads: int) -> None:
    seen, path = Remembers(), tmp_path / "slice"
    rows = pa.table({"offset": pa.array(range(1_000), pa.uint64()), "city": ["x"] * 1_000})
    with ThreadPoolExecutor(threads or 1) as pool:
        executor = pool if threads else None
        with ObservedParquet(path, rows.schema, DatasetVocabulary(), [seen], executor=executor) as file:
            for cut in rows.to_batches(7):
                file.write(cut)
    assert (seen.rows, seen.bytes, seen.finished) == (rows.to_pylist(), path.read_bytes(), 1)


def test_an_observer_that_fails_ends_the_slice(tmp_path: Path) -> None:
    class Fails(Remembers):
        def batch(self, rows: pa.RecordBatch) -> None:
            raise ValueError("no more")

    seen, rows = Fails(), pa.table({"offset": pa.array([0], pa.uint64())})
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ValueError, match="no more"),
        ObservedParquet(tmp_path / "x", rows.schema, DatasetVocabulary(), [seen], executor=pool) as file,
    ):
        file.write(rows.to_batches()[0])
    assert seen.finished == 0


def test_no_rows_no_file(tmp_path: Path) -> None:
    nothing = iter([batch(0, city=pa.array([], pa.string()))])
    assert write_slice(nothing, spec(tmp_path, CITY)) is None
    assert write_slice(iter([]), spec(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_hashes_do_not_depend_on_batches(tmp_path: Path) -> None:
    cities = [f"city {i % 17}" for i in range(1_000)]

    def in_batches_of(size: int) -> tuple[str, int]:
        parts = [(i, cities[i : i + size]) for i in range(0, 1_000, size)]
        facts = written((batch(len(part), i, city=pa.array(part)) for i, part in parts), tmp_path, CITY)
        return facts.logical_hash, facts.rows

    assert len({in_batches_of(size) for size in (1, 7, 999, 1_000)}) == 1


def test_layout(tmp_path: Path) -> None:
    """Encodings and repetition of the "Common Data Schema"; no schema of Arrow's beside Parquet's own."""
    fields = [CITY.with_nullable(False), pa.field("tags", pa.list_(pa.string()))]
    cities, tags = pa.array(["a", "b"] * 50), pa.array([["x"], None] * 50)
    facts = written([batch(100, city=cities, tags=tags)], tmp_path, *fields)
    file = pq.ParquetFile(facts.path)
    assert file.metadata.metadata is None
    columns = {c.path_in_schema: c for c in map(file.metadata.row_group(0).column, range(6))}
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    for name in ("op", "system_time", "event_time", "city", "tags.list.element"):
        assert "RLE_DICTIONARY" in columns[name].encodings, name
    assert {c.compression for c in columns.values()} == {"SNAPPY"}
    levels = {c.path: c.max_definition_level for c in map(file.schema.column, range(6))}
    assert levels == {
        "offset": 0, "op": 0, "system_time": 0, "event_time": 0, "city": 0, "tags.list.element": 3
    }  # fmt: skip


CARRIED: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.decimal128(20, 0), pa.uint64(), [Decimal(0), Decimal(2**64 - 1), None]),
    (pa.int64(), pa.uint32(), [0, 2**32 - 1, None]),
    (pa.int32(), pa.uint16(), [0, 2**16 - 1, None]),
    (pa.int16(), pa.uint8(), [0, 255, None]),
    (pa.int64(), pa.time32("ms"), [0, 86_399_999, None]),
    (pa.int64(), pa.time64("us"), [0, 1, None]),
    (pa.float32(), pa.float16(), [0.0, 1.5, None]),
    (US, MS, [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC), None]),
    (pa.string(), pa.large_string(), ["a", "", None]),
    (pa.binary(), pa.binary(16), [b"0123456789abcdef", None, None]),
    (pa.decimal128(5, 2), pa.decimal128(5, 2), [Decimal("1.25"), Decimal("-1.25"), None]),
    (pa.list_(pa.int16()), pa.list_(pa.uint8()), [[1, 255], [], None]),
    (pa.string(), pa.null(), [None, None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("physical", "target", "values"), CARRIED, ids=[str(c[1]) for c in CARRIED])
def test_carriers_become_the_declared_types(
    tmp_path: Path, physical: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    facts = written([batch(3, x=pa.array(values, physical))], tmp_path, pa.field("x", target))
    column = pq.read_table(facts.path)["x"]
    assert [str(v) for v in column.to_pylist()] == [
        str(v.as_py()) for v in pa.array(values, physical).cast(pa.int32() if pa.types.is_time32(target) else physical)
        .cast(target if not pa.types.is_null(target) else physical)
    ]  # fmt: skip


REFUSED: list[tuple[pa.DataType, pa.Field, list[Any], str]] = [
    (pa.int64(), pa.field("x", pa.uint32()), [1, 2**32, 3], "bad-cast"),
    (pa.int16(), pa.field("x", pa.uint8()), [1, -1, 3], "bad-cast"),
    (pa.int64(), pa.field("x", pa.int64(), nullable=False), [1, None, 3], "null-in-required"),
    (pa.list_(pa.string()), pa.field("x", pa.list_(pa.field("item", pa.string(), nullable=False))), [["a"], [None], []],
     "null-in-required"),
]  # fmt: skip


@pytest.mark.parametrize(("physical", "field", "values", "kind"), REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_does_not_fit_leaves_no_file(
    tmp_path: Path, physical: pa.DataType, field: pa.Field, values: list[Any], kind: str
) -> None:
    good = batch(2, x=pa.array([[], []] if pa.types.is_list(physical) else [1, 2], physical))
    with pytest.raises(SliceInputError) as caught:
        written([good, batch(3, x=pa.array(values, physical))], tmp_path, field)
    found = find_marker(str(caught.value))
    assert (found["kind"], found["column"]) == (kind, "x")
    assert list(tmp_path.iterdir()) == []


def test_a_date_is_an_event_time_too(tmp_path: Path) -> None:
    system = [*SYSTEM[:3], pa.field("event_time", pa.date32(), nullable=False)]
    given = pa.RecordBatch.from_pydict(
        {"op": pa.array([0, 0], pa.int32()), "event_time": [dt.date(2020, 1, 2), dt.date(2020, 1, 1)]}
    )
    facts = written([given], tmp_path, system=system)
    assert facts.max_event_time_ms == 1_577_923_200_000


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    """A real limit: the process may not write files of more than 20,000 bytes."""
    code = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from tests.kit.slice_batches import batch, pa, spec
        from odfchain.slices.writer import write_slice
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        rows = (batch(1_000, i, x=pa.array([f"{i}-{n}" * 9 for n in range(1_000)])) for i in range(50))
        try:
            write_slice(rows, spec(Path(sys.argv[1]), pa.field("x", pa.string())))
        except OSError as error:
            print(error.errno)
    """)
    program = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(program, env=IMPORTABLE, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == str(errno.EFBIG), result.stderr
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Peak memory does not grow with the rows: 6 million rows cost about what 1 million cost."""
    code = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from tests.kit.slice_batches import batch, pa, spec
        from odfchain.slices.writer import write_slice
        one = batch(50_000, x=pa.array(range(50_000), pa.int64()))
        write_slice((one for _ in range(int(sys.argv[2]))), spec(Path(sys.argv[1]), pa.field("x", pa.int64())))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """)

    def peak(batches: int) -> int:
        program = [sys.executable, "-c", code, str(tmp_path), str(batches)]
        result = subprocess.run(program, env=IMPORTABLE, capture_output=True, text=True, check=True)
        return int(result.stdout)

    assert peak(120) < 1.3 * peak(20)


NAMES = st.sampled_from(["a", "b c", "ü", "d.e", "f`g", "list", "key_value"])


@settings(max_examples=40)
@given(data=st.data())
def test_any_schema_round_trips(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Names with dots and nested types find their encodings; what is read back hashes as what was written."""

    def fields(types: Any, least: int, most: int) -> Any:
        found = st.lists(st.tuples(NAMES, types), min_size=least, max_size=most, unique_by=lambda p: p[0])
        return found.map(lambda pairs: tuple(ds.DataField(name=n, type=t) for n, t in pairs))

    simple = [ds.DataTypeInt64(), ds.DataTypeString(), ds.DataTypeBool(), ds.DataTypeFloat64()]
    leaf = st.sampled_from(simple).map(ds.optional)
    leaves = st.one_of(leaf, leaf.map(lambda t: ds.optional(ds.DataTypeList(item_type=t))))
    nested = st.recursive(
        leaves,
        lambda inner: fields(inner, 1, 2).map(lambda found: ds.optional(ds.DataTypeStruct(fields=found))),
        max_leaves=3,
    )
    schema = to_arrow(ds.DataSchema(fields=data.draw(fields(nested, 0, 3))))
    folder = tmp_path_factory.mktemp("slice")
    facts = written([batch(2, **{f.name: pa.array([None, None], f.type) for f in schema})], folder, *schema)
    table = pq.read_table(facts.path)
    assert table.schema.names[4:] == schema.names
    digest = LogicalDigest(table.schema)
    for part in table.to_batches():
        digest.update(part)
    assert str(digest.finish()) == facts.logical_hash


NESTED = pa.struct(
    [
        pa.field("t", pa.time32("ms"), nullable=False),
        pa.field("u", pa.binary(16), nullable=False, metadata=UUID_MARK),
        pa.field("l", pa.list_(pa.field("item", pa.time32("ms"), nullable=False)), nullable=False),
        pa.field("s", pa.struct([pa.field("d", pa.decimal128(5, 2), nullable=False)]), nullable=False),
    ]
)


def test_a_struct_that_is_null_may_have_members_that_are_required(tmp_path: Path) -> None:
    """And times of day are in structs and lists, where they come as numbers of 64 bits."""
    inner = pa.struct([("d", pa.decimal128(5, 2))])
    carried = pa.struct({"t": pa.int64(), "u": pa.binary(), "l": pa.list_(pa.int64()), "s": inner})
    value = {"t": 1, "u": bytes(16), "l": [2], "s": {"d": Decimal("1.50")}}
    whole = pa.array([value, value, value], carried)
    members = [whole.field(i).take(pa.array([0, None, 2])) for i in range(carried.num_fields)]
    column = pa.StructArray.from_arrays(members, fields=list(carried), mask=pa.array([False, True, False]))
    facts = written([batch(3, x=column)], tmp_path, pa.field("x", NESTED))
    assert str(hash_parquet(Path(facts.path))[0]) == facts.logical_hash
    time = dt.time(0, 0, 0, 1000)
    back = {**value, "t": time, "l": [dt.time(0, 0, 0, 2000)]}
    with open_parquet(Path(facts.path)) as file:
        (read,) = file.batches()
    assert read.column("x").to_pylist() == [back, None, back]
    assert read.schema.field("x").type == NESTED
    lacking = pa.StructArray.from_arrays(members, fields=list(carried))
    with pytest.raises(SliceInputError, match=r"Column `x\.t` contains 1 null values"):
        written([batch(3, x=lacking)], tmp_path, pa.field("x", NESTED))
