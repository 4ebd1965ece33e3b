"""Where slices are cut, and what is in them, follows from the rows alone (RFC-049)."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odfchain.slices.ordering import Numbers
from odfchain.spark import slice_runs as runs
from odfchain.spark.slice_runs import Run, RunLayout, cuts, row_sizes, rows_between, write_runs

SCHEMA = pa.schema(
    [
        ("op", pa.int32()),
        ("price", pa.float64()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float32()), ("y", pa.binary())])),
    ]
)
KEYS = {
    "times": (
        pa.timestamp("us", "UTC"),
        [None, *(dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2))],
    ),
    "numbers": (pa.float64(), [None, math.nan, -0.0, 0.0, -1.5, math.inf, -math.inf]),
    "texts": (pa.string(), [None, "", "a", "ä", "\U0001f600", "\uffff"]),
    "decimals": (pa.decimal128(10, 2), [None, Decimal("-1.10"), Decimal("2.00")]),
    "structures": (pa.struct([("a", pa.int64())]), [None, {"a": None}, {"a": 1}, {"a": -1}]),
    "lists": (pa.list_(pa.int64()), [None, [], [None], [1], [1, 2], [2]]),
}
LAYOUT = RunLayout(columns=5, order=(5, 6), operation=0)
"""By a column of `KEYS`, and by the number of the row."""


def row(draw: random.Random) -> dict[str, Any]:
    return {
        "op": 0,
        "price": draw.choice([None, 0.5, math.nan]),
        "name": draw.choice([None, "", "x" * draw.randrange(200)]),
        "tags": draw.choice([None, [], ["a", None, "bcd"]]),
        "place": draw.choice([None, {"x": 1.0, "y": None}, {"x": None, "y": b"12345"}]),
    }


def comparable(value: Any) -> Any:
    """As Spark orders: nulls first, NaN last, texts by their bytes."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0 if math.isnan(value) else value)
    if isinstance(value, dict):
        return (1, *map(comparable, value.values()))
    if isinstance(value, list):
        return (1, *map(comparable, value))
    return (1, value.encode() if isinstance(value, str) else value)


def opened(tables: Sequence[pa.Table], folder: Path, rows_of_a_batch: int) -> list[Run]:
    folder.mkdir(exist_ok=True)
    written = [
        facts
        for table in tables
        for facts in write_runs(table.to_batches(max_chunksize=rows_of_a_batch), LAYOUT, str(folder))
    ]
    return [Run.of_file(facts) for facts in written]


def sliced(found: Sequence[Run], max_bytes: int) -> list[pa.Table]:
    ends = cuts(found, max_bytes)
    starts = [(0,) * len(found), *ends]
    return [
        pa.Table.from_batches(rows_between(found, start, end))
        for start, end in zip(starts, ends, strict=False)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("key", list(KEYS))
def test_slices_do_not_depend_on_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, seed: int
) -> None:
    """Of one task, of eight, and of tasks that have what rows they like: the same rows in the same slices."""
    monkeypatch.setattr(runs, "BATCH_ROWS", 16)
    monkeypatch.setattr(runs, "BATCH_BYTES", 16 * 120)
    monkeypatch.setattr(runs, "KEY_ROWS", 3 if seed else 7)
    draw, (kind, values) = random.Random(f"{key} {seed}"), KEYS[key]
    rows = [row(draw) | {"key": draw.choice(values), "row": number} for number in range(150)]
    rows.sort(key=lambda each: (comparable(each["key"]), each["row"]))
    schema = pa.schema([*SCHEMA, ("key", kind), ("row", pa.int64())])
    whole = pa.Table.from_pylist(rows, schema)
    monkeypatch.setattr(runs, "_RUN_ROWS", 40)
    expected = None
    for tasks in (1, 8, 40):
        of_task = [draw.randrange(tasks) for _ in rows]
        read = draw.sample(range(len(rows)), len(rows))
        tables = [
            whole.take(pa.array([n for n in read if of_task[n] == task], pa.int64())) for task in range(tasks)
        ]
        found = sliced(opened(tables, tmp_path / str(tasks), draw.randrange(1, 30)), 2_000)
        assert repr(pa.concat_tables(found).to_pylist()) == repr(whole.select(range(5)).to_pylist())
        assert len(found) > 4
        largest = max(
            row_sizes(batch).sum() for table in found for batch in table.combine_chunks().to_batches()
        )
        assert largest <= 2_000 + 400
        shape = [(table.num_rows, [batch.num_rows for batch in table.to_batches()]) for table in found]
        assert expected in (None, shape)
        expected = shape


def corrected(number: int) -> list[dict[str, Any]]:
    return [{"op": op, "name": "x" * 50, "key": number, "row": op} for op in (2, 3)]


@pytest.mark.parametrize("max_bytes", range(100, 700, 50))
def test_a_correction_is_in_one_slice(tmp_path: Path, max_bytes: int) -> None:
    """The new values stand right behind the old ones, in the same slice; also where the cut is between tasks."""
    schema = pa.schema([*SCHEMA, ("key", pa.int64()), ("row", pa.int64())])
    rows = [each for number in range(40) for each in corrected(number)]
    whole = pa.Table.from_pylist(rows, schema)
    shapes = set()
    for way in (lambda n: n % 2, lambda n: n // 21, lambda n: n % 7):
        tasks = [way(number) for number in range(len(rows))]
        tables = [whole.filter(pa.array([t == task for t in tasks])) for task in sorted(set(tasks))]
        found = sliced(opened(tables, tmp_path, 5), max_bytes)
        assert [value for table in found for value in table["op"].to_pylist()] == [2, 3] * 40
        assert all(table["op"].to_pylist()[0] == 2 for table in found)
        shapes.add(tuple(table.num_rows for table in found))
    assert len(shapes) == 1
    assert 1 < len(found) <= 40


def test_what_a_row_takes() -> None:
    """It follows from its values, whatever batch it is in."""
    kinds = {
        "null": (pa.null(), None, 0),
        "bool": (pa.bool_(), True, 1),
        "int": (pa.int32(), None, 4),
        "decimal": (pa.decimal128(20, 2), None, 16),
        "text": (pa.string(), "ä", 6),
        "no text": (pa.string(), None, 4),
        "list": (pa.list_(pa.string()), ["a", None], 4 + 5 + 4),
        "no list": (pa.list_(pa.int64()), None, 4),
        "map": (pa.map_(pa.string(), pa.int64()), [("ab", 1)], 4 + 6 + 8),
        "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": None, "b": "x"}, 8 + 5),
    }
    rows = pa.record_batch({name: pa.array([None, value], kind) for name, (kind, value, _) in kinds.items()})
    assert row_sizes(rows.slice(1)).tolist() == [16 + sum(size for _, _, size in kinds.values())]
    assert row_sizes(rows)[1:].tolist() == row_sizes(rows.slice(1)).tolist()
    assert row_sizes(rows.slice(0, 0)).tolist() == []


def test_what_fails_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Numbers:
        raise OSError

    monkeypatch.setattr(runs, "row_sizes", full)
    with pytest.raises(OSError):
        list(write_runs([pa.record_batch({"x": [1]})], RunLayout(1, (0,), 0), str(tmp_path)))
    assert list(write_runs([pa.record_batch({"x": []})], RunLayout(1, (0,), 0), str(tmp_path))) == []
    assert list(tmp_path.iterdir()) == []
