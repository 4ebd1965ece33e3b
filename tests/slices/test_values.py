"""Every value of a slice is one of its type, whoever wrote it: on the way in and on the way out (RFC-012)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from odfchain.slices.reader import check_values, first_gap, open_parquet
from tests.kit.support import Result, derivative, manifest, unchanged

DAY = 86_400
LAST = 253_402_300_799
"""The last second of the year 9999, since 1970."""
FIRST = -62_135_596_800


def not_text(*texts: bytes) -> pa.Array:
    return pa.array(texts, pa.binary()).cast(pa.string(), safe=False)


UTC = pa.timestamp("s", "UTC")
GOOD: list[pa.Array] = [
    pa.array(["Zürich", None, ""]),
    pa.array([FIRST, LAST, None], UTC),
    pa.array([FIRST * 10**6, LAST * 10**6 + 999_999], pa.timestamp("us")),
    pa.array([FIRST // DAY, LAST // DAY], pa.int32()).view(pa.date32()),
    pa.array([0, DAY * 1_000 - 1], pa.int32()).view(pa.time32("ms")),
    pa.array([0, DAY * 10**6 - 1], pa.int64()).view(pa.time64("us")),
    pa.array([None, None], pa.timestamp("ms")),
    pa.array([[1], None, []], pa.list_(pa.timestamp("s"))),
]
BAD: list[tuple[pa.Array, str]] = [
    (not_text(b"a", b"\xff"), "a text is not UTF-8"),
    (pa.ListArray.from_arrays([0, 1], not_text(b"\xff")), "a text is not UTF-8"),
    (pa.array([LAST + 1], UTC), r"253402300800 is no timestamp\[s, tz=UTC\] of the years 1 to 9999"),
    (pa.array([FIRST * 1_000 - 1], pa.timestamp("ms")), "-62135596800001 is no timestamp"),
    (pa.array([LAST // DAY + 1], pa.int32()).view(pa.date32()), r"2932897 is no date32\[day\]"),
    (pa.array([DAY], pa.int32()).view(pa.time32("s")), r"time32\[s\] 86400 is not within"),
    (pa.array([-1], pa.int64()).view(pa.time64("ns")), r"time64\[ns\] -1 is not within"),
    (pa.array([{"x": [LAST + 1]}], pa.struct([("x", pa.list_(UTC))])), "253402300800 is no timestamp"),
    (pa.array([[("k", LAST + 1)]], pa.map_(pa.string(), UTC)), "253402300800 is no timestamp"),
]  # fmt: skip


@pytest.mark.parametrize("column", GOOD, ids=lambda column: str(column.type))
def test_good_values(column: pa.Array) -> None:
    check_values(column, "x")


@pytest.mark.parametrize(("column", "message"), BAD, ids=lambda item: str(getattr(item, "type", "")))
def test_bad_values(column: pa.Array, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"column `x`: {message}"):
        check_values(column, "x")
    if column.type.id not in (pa.time32("s").id, pa.time64("ns").id):
        pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
        with open_parquet(tmp_path / "x.parquet") as file, pytest.raises(BadInputError, match="column `x`: "):
            list(file.batches())


def test_what_is_below_a_null_is_no_value() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([LAST + 1], UTC)], ["x"], mask=pa.array([True]))
    check_values(hidden, "x")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (not_text(b"\xc3("), "column `x`: a text is not UTF-8"),
        (pa.array([LAST * 1_000 + 1_000], pa.timestamp("ms", "UTC")), "column `x`: 2534023008000"),
    ],
    ids=["text", "time"],
)
def test_none_is_recorded(
    workspace: Workspace, tmp_path: Path, column: Any, message: str, run_cli: Callable[..., Result]
) -> None:
    bare = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: bare, kind: Root, metadata: []}"
    (dataset,) = workspace.add(bare)
    pq.write_table(pa.table({"x": column}), tmp_path / "in.parquet")
    with unchanged(dataset.path):
        done = run_cli("-w", workspace.path, "ingest", "bare", tmp_path / "in.parquet")
    assert done.code == 3
    assert f"in.parquet: {message}" in done.err


def test_no_query_makes_one(workspace: Workspace, tmp_path: Path, run_cli: Callable[..., Result]) -> None:
    (root,) = workspace.add(manifest())
    (made,) = workspace.add(derivative("SELECT event_time, CAST(unhex('C328') AS STRING) AS bad FROM cities"))
    (tmp_path / "in.csv").write_text("city,population\nA,1\n")
    root.ingest([tmp_path / "in.csv"])
    with unchanged(made.path):
        done = run_cli("-w", workspace.path, "pull", "derived")
    assert done.code == 3
    assert "column `bad`: a text is not UTF-8" in done.err


@pytest.mark.parametrize(
    ("offsets", "kind", "expected", "gap"),
    [
        ([5, 6, 7], pa.uint64(), 5, None), ([5, 6, 8], pa.int32(), 5, 2), ([5, None], pa.int64(), 5, 0),
        ([2**64 - 2, 2**64 - 1], pa.uint64(), 2**64 - 2, None), ([2**64 - 1, 0, 1], pa.uint64(), 2**64 - 1, 1),
        ([-1], pa.int64(), 2**64 - 1, 0), ([0], pa.uint64(), 2**64, 0), ([127, -128], pa.int8(), 127, 1),
    ],
)  # fmt: skip
def test_offsets_do_not_begin_again_behind_the_largest_number(
    offsets: list[int | None], kind: pa.DataType, expected: int, gap: int | None
) -> None:
    assert first_gap(pa.array(offsets, kind), expected) == gap
