"""Where two slices differ first, whatever their types, their encodings and their row groups."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odfchain.audit.replay import Difference, first_difference
from odfchain.errors import BadInputError

NAN = math.nan
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def table(count: int, **columns: Any) -> pa.Table:
    return pa.table({"offset": pa.array(range(5, 5 + count), pa.uint64()), **columns})


def difference(
    one: pa.Table, other: pa.Table, folder: Path, groups: tuple[int, int] = (1_000, 1_000)
) -> Difference | None:
    paths = folder / "one", folder / "other"
    for path, written, size in zip(paths, (one, other), groups, strict=True):
        pq.write_table(written, path, row_group_size=size)
    return first_difference(*paths, offset_column="offset")


VALUES: dict[str, tuple[pa.DataType, list[Any], Any, str]] = {
    "number": (pa.int64(), [1, 2, 3], 9, "recorded 2, replayed 9"),
    "null": (pa.int64(), [1, 2, 3], None, "recorded 2, replayed null"),
    "text": (pa.string(), ["a", "b\nc", "d"], "é", r"recorded 'b\nc', replayed 'é'"),
    "long text": (pa.string(), ["a", "b" * 500, "d"], "", "recorded '" + "b" * 78 + "…, replayed ''"),
    "bytes": (pa.binary(), [b"a", b"\0\1", b""], b"", "recorded 0x0001, replayed 0x"),
    "boolean": (pa.bool_(), [True, True, True], False, "recorded True, replayed False"),
    "not a number": (pa.float64(), [NAN, NAN, 1.0], 0.5, "recorded nan, replayed 0.5"),
    "zeros": (pa.float64(), [0.0, 0.0, 0.0], -0.0, "recorded 0.0, replayed -0.0"),
    "list": (pa.list_(pa.int32()), [[1], [1, 2], None], [2, 1], "recorded [1, 2], replayed [2, 1]"),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]), [None, {"x": 1, "y": "a"}, None], {"x": 1, "y": "b"},
        "recorded {'x': 1, 'y': 'a'}, replayed {'x': 1, 'y': 'b'}",
    ),
    "time": (
        pa.timestamp("ms", "UTC"), [DAY] * 3, DAY.replace(day=2),
        "recorded 2024-01-01T00:00:00+00:00, replayed 2024-01-02T00:00:00+00:00",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value(name: str, tmp_path: Path) -> None:
    data_type, values, other, said = VALUES[name]
    one = table(3, v=pa.array(values, data_type))
    assert difference(one, one, tmp_path, (1, 2)) is None
    changed = table(3, v=pa.array([values[0], other, values[2]], data_type))
    assert str(difference(one, changed, tmp_path)) == f"offset 6, column `v`: {said}"


ONE, THREE = table(1, a=["x"], b=[1]), table(3, a=["x", "y", "z"], b=[1, 2, 3])
NARROW, WIDE = (pa.array([{"x": 1}], pa.struct([("x", kind)])) for kind in (pa.int32(), pa.int64()))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (THREE, table(3, a=["x", "Y", "z"], b=[1, 0, 3]), "offset 6, column `a`: recorded 'y', replayed 'Y'"),
        (THREE, table(3, a=["x", "y", "Z"], b=[0, 2, 3]), "offset 5, column `b`: recorded 1, replayed 0"),
        (ONE, table(1, b=[1]), "column `a`: recorded string, replayed nothing"),
        (table(1, b=[1]), ONE, "column `a`: recorded nothing, replayed string"),
        (ONE, table(1, b=[1], a=["x"]), "columns: recorded offset, a, b, replayed offset, b, a"),
        (ONE, table(1, a=["x"], b=pa.array([1], pa.int32())), "column `b`: recorded int64, replayed int32"),
        (table(1, a=NARROW), table(1, a=WIDE), "column `a`: recorded struct<x: int32>, replayed struct<x: int64>"),
        (THREE, THREE.slice(0, 2), "offset 7, record: recorded offset=7, a='z', b=3, replayed nothing"),
        (THREE.slice(0, 2), THREE, "offset 7, record: recorded nothing, replayed offset=7, a='z', b=3"),
        (THREE, THREE.slice(0, 0), "offset 5, record: recorded offset=5, a='x', b=1, replayed nothing"),
        (THREE, THREE.slice(1), "offset 5, column `offset`: recorded 5, replayed 6"),
        (THREE.slice(0, 0), THREE.slice(0, 0), "None"),
        (pa.table({"a": [1, 2, 3]}), pa.table({"a": [1, 2, 4]}), "offset 2, column `a`: recorded 3, replayed 4"),
    ],
    ids=[
        "earliest row, first column", "earliest row", "a column less", "a column more", "order of columns", "type",
        "type within", "a row less", "a row more", "no row", "the first row less", "no rows at all", "no offsets",
    ],
)  # fmt: skip
def test_what_differs_first(one: pa.Table, other: pa.Table, said: str, tmp_path: Path) -> None:
    assert str(difference(one, other, tmp_path)) == said


def test_encodings_make_no_difference(tmp_path: Path) -> None:
    one = table(3, a=pa.array(["x", None, "x"]))
    other = table(3, a=pa.array(["x", None, "x"], pa.large_string()).dictionary_encode())
    assert difference(one, other, tmp_path) is None


def test_what_is_no_parquet(tmp_path: Path) -> None:
    pq.write_table(table(1), tmp_path / "good")
    (tmp_path / "bad").write_bytes(b"PAR1 no PAR1")
    for pair in (("good", "bad"), ("bad", "good"), ("good", "missing")):
        with pytest.raises(BadInputError, match="not a readable Parquet file"):
            first_difference(*(tmp_path / name for name in pair), offset_column="offset")


def test_more_than_one_batch(tmp_path: Path) -> None:
    count = 20_000
    one = table(count, a=pa.array(range(count)))
    changed = list(range(count))
    changed[17_321] = -1
    found = difference(one, table(count, a=pa.array(changed)), tmp_path, (3_000, 7_001))
    assert found == Difference(17_326, "a", "17321", "-1")


CELLS = st.one_of(st.none(), st.integers(-3, 3).map(float), st.just(NAN))
TEXTS = st.one_of(st.none(), st.text(max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.data())
def test_one_changed_cell_is_found(tmp_path: Path, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(CELLS, TEXTS), min_size=1, max_size=12))
    groups = data.draw(st.tuples(st.integers(1, 13), st.integers(1, 13)))
    column, row = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(rows) - 1))

    def made() -> pa.Table:
        numbers, texts = zip(*rows, strict=True)
        return table(len(rows), a=pa.array(numbers, pa.float64()), b=pa.array(texts, pa.string()))

    one = made()
    assert difference(one, one, tmp_path, groups) is None
    rows[row] = (77.0, rows[row][1]) if column == 0 else (rows[row][0], "changed")
    found = difference(one, made(), tmp_path, groups)
    assert (found.offset, found.column) == (5 + row, "ab"[column])
