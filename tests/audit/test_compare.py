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


def table(count: int, **columns: Any) -> pa.Table:
    return pa.table({"offset": pa.array(range(5, 5 + count), pa.uint64()), **columns})


def difference(
    one: pa.Table, other: pa.Table, folder: Path, groups: tuple[int, int] = (1_000, 1_000)
) -> Difference | None:
    paths = folder / "one", folder / "other"
    for path, written, size in zip(paths, (one, other), groups, strict=True):
        pq.write_table(written, path, row_group_size=size)
    return first_difference(*paths, offset_column="offset")


def text(one: pa.Table, other: pa.Table, folder: Path) -> str:
    return str(difference(one, other, folder))


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
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [None, {"x": 1, "y": "a"}, None],
        {"x": 1, "y": "b"},
        "recorded {'x': 1, 'y': 'a'}, replayed {'x': 1, 'y': 'b'}",
    ),
    "time": (
        pa.timestamp("ms", "UTC"),
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 3,
        dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
        "recorded 2024-01-01T00:00:00+00:00, replayed 2024-01-02T00:00:00+00:00",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value(name: str, tmp_path: Path) -> None:
    data_type, values, other, said = VALUES[name]
    one = table(3, v=pa.array(values, data_type))
    assert difference(one, one, tmp_path, (1, 2)) is None
    changed = [values[0], other, values[2]]
    found = text(one, table(3, v=pa.array(changed, data_type)), tmp_path)
    assert found == f"offset 6, column `v`: {said}"
    assert "\n" not in found


def test_the_earliest_row_and_in_it_the_first_column(tmp_path: Path) -> None:
    one = table(3, a=["x", "y", "z"], b=[1, 2, 3])
    other = table(3, a=["x", "Y", "z"], b=[1, 0, 3])
    assert difference(one, other, tmp_path) == Difference(6, "a", "'y'", "'Y'")
    other = table(3, a=["x", "y", "Z"], b=[0, 2, 3])
    assert difference(one, other, tmp_path) == Difference(5, "b", "1", "0")


def test_columns(tmp_path: Path) -> None:
    one = table(1, a=["x"], b=[1])
    assert text(one, table(1, b=[1]), tmp_path) == "column `a`: recorded string, replayed nothing"
    assert text(table(1, b=[1]), one, tmp_path) == "column `a`: recorded nothing, replayed string"
    assert (
        text(one, table(1, b=[1], a=["x"]), tmp_path)
        == "columns: recorded offset, a, b, replayed offset, b, a"
    )
    other = table(1, a=["x"], b=pa.array([1], pa.int32()))
    assert text(one, other, tmp_path) == "column `b`: recorded int64, replayed int32"
    nested = pa.array([{"x": 1}], pa.struct([("x", pa.int32())]))
    assert text(table(1, a=nested), table(1, a=nested.cast(pa.struct([("x", pa.int64())]))), tmp_path) == (
        "column `a`: recorded struct<x: int32>, replayed struct<x: int64>"
    )


def test_encodings_make_no_difference(tmp_path: Path) -> None:
    one = table(3, a=pa.array(["x", None, "x"]))
    other = table(3, a=pa.array(["x", None, "x"], pa.large_string()).dictionary_encode())
    assert difference(one, other, tmp_path) is None


def test_a_row_too_many_or_too_few(tmp_path: Path) -> None:
    one = table(3, a=["x", "y", "z"])
    assert (
        text(one, one.slice(0, 2), tmp_path) == "offset 7, record: recorded offset=7, a='z', replayed nothing"
    )
    assert (
        text(one.slice(0, 2), one, tmp_path) == "offset 7, record: recorded nothing, replayed offset=7, a='z'"
    )
    assert text(one, one.slice(0, 0), tmp_path).startswith("offset 5, record: recorded offset=5")
    assert difference(one.slice(0, 0), one.slice(0, 0), tmp_path) is None
    assert text(one, one.slice(1), tmp_path) == "offset 5, column `offset`: recorded 5, replayed 6"


def test_without_an_offset_column_the_place_counts(tmp_path: Path) -> None:
    one = pa.table({"a": [1, 2, 3]})
    assert difference(one, pa.table({"a": [1, 2, 4]}), tmp_path) == Difference(2, "a", "3", "4")


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
    count = data.draw(st.integers(1, 12))
    columns: dict[str, list[Any]] = {
        "a": data.draw(st.lists(CELLS, min_size=count, max_size=count)),
        "b": data.draw(st.lists(TEXTS, min_size=count, max_size=count)),
    }
    types = {"a": pa.float64(), "b": pa.string()}
    one = table(count, **{n: pa.array(v, types[n]) for n, v in columns.items()})
    groups = data.draw(st.tuples(st.integers(1, 13), st.integers(1, 13)))
    assert difference(one, one, tmp_path, groups) is None
    name, row = data.draw(st.sampled_from(["a", "b"])), data.draw(st.integers(0, count - 1))
    other = "changed" if name == "b" else 77.0
    changed = {n: [*v[:row], other, *v[row + 1 :]] if n == name else v for n, v in columns.items()}
    found = difference(
        one, table(count, **{n: pa.array(v, types[n]) for n, v in changed.items()}), tmp_path, groups
    )
    assert found is not None
    assert (found.offset, found.column) == (5 + row, name)
