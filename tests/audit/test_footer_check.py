"""Check 19: what a footer says of rows is true, whoever wrote it; where it is not, the slice is named."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.audit.page import render_page
from odfchain.audit.report import STATISTICS
from odfchain.audit.slice_checks import FooterCheck
from odfchain.slices.footers import file_stats
from odfchain.slices.reader import open_parquet
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import START, add_root, append, records, schema_with
from tests.kit.support import Run, write_lying


def findings(path: Path) -> list[str]:
    with open_parquet(path) as file:
        check = FooterCheck(file.metadata, file.schema_arrow)
        for batch in file.batches(most_rows=7):
            check.update(batch)
    return [item.message for item in check.finish()]


POOLS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-(2**63), 2**63 - 1, 0, 7],
    pa.uint8(): [0, 200, 255],
    pa.uint32(): [0, 1, 2**32 - 1],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.float32(): [math.nan, math.inf, -1.5, 0.0, -0.0],
    pa.float64(): [math.nan, -math.inf, math.inf, 0.1, 0.0, -0.0],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "é", "😀", "é" * 3000],
    pa.large_string(): ["", "b", "\U0010ffff", "\ufffd"],
    pa.binary(): [b"", b"\xff", b"a", b"\xff" * 5000],
    pa.binary(2): [b"ab", b"\xff\x00", b"\x00\xff"],
    pa.date32(): [dt.date.min, dt.date.max, dt.date(1970, 1, 1)],
    pa.time32("ms"): [0, 1, 86_399_999],
    pa.time64("us"): [0, 1, 86_399_999_999],
    pa.timestamp("ms", "UTC"): [-(10**13), 0, 10**13],
    pa.timestamp("us"): [-(10**15), 1, 10**15],
    pa.timestamp("ns"): [-(10**18), 0, 10**18],
    pa.decimal128(10, 2): [Decimal("-2.05"), Decimal("100.00"), Decimal(0)],
    pa.decimal256(60, 3): [Decimal("-2.5"), Decimal(10**40)],
    pa.duration("us"): [-1, 0, 1],
    pa.list_(pa.int64()): [[], [1, None], [3]],
    pa.map_(pa.string(), pa.int64()): [[], [("a", 1)], [("b", None)]],
    pa.struct([("x", pa.int64()), ("y.z", pa.list_(pa.string()))]): [
        {"x": 1, "y.z": ["a"]},
        {"x": None},
        {"x": 3},
    ],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
    pa.null(): [None],
}


@pytest.mark.parametrize("seed", range(12))
def test_what_writers_say_is_true(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    rows, nulls = chance.choice([0, 1, 9, 40]), chance.choice([0, 0.3, 1])
    columns = [
        pa.array([None if chance.random() < nulls else chance.choice(pool) for _ in range(rows)], kind)
        for kind, pool in POOLS.items()
    ]
    table = pa.table(columns, names=[f"c{n}" for n in range(len(columns))])
    for version in ("1.0", "2.4", "2.6"):
        group, dictionary = chance.randint(1, 20), chance.choice([True, False])
        pq.write_table(
            table, tmp_path / "slice", row_group_size=group, version=version, use_dictionary=dictionary
        )
        assert findings(tmp_path / "slice") == []


DAY, CENTS, TIMES = dt.date(2024, 1, 1), Decimal("1.25"), pa.timestamp("ms", "UTC")
LIES: dict[str, tuple[list[Any], list[Any], pa.DataType | None, str]] = {
    "text": (["a", "é"], ["b", "zz"], None, "'b' … 'zz', the rows have 'a' … 'é'"),
    "less": ([-5, 3], [1, 3], None, "1 … 3, the rows have -5 … 3"),
    "more": ([1, 4], [1, 3], None, "1 … 3, the rows have 1 … 4"),
    "float": ([1.0, 9.5], [1.0, 9.0], None, "1.0 … 9.0, the rows have 1.0 … 9.5"),
    "day": (
        [DAY], [DAY.replace(day=2)], None, "2024-01-02 … 2024-01-02, the rows have 2024-01-01 … 2024-01-01",
    ),
    "time": (
        [1_500], [1_000], TIMES,
        "1970-01-01T00:00:01Z … 1970-01-01T00:00:01Z, the rows have 1970-01-01T00:00:01.500Z",
    ),
    "decimal": ([CENTS], [Decimal("1.20")], None, "1.20 … 1.20, the rows have 1.25 … 1.25"),
    "member": ([{"x": 7}], [{"x": 8}], None, "column `c.x`: the footer says 8 … 8, the rows have 7 … 7"),
}  # fmt: skip
"""What the rows are, what the footer says of them, and their type."""


@pytest.mark.parametrize("name", LIES)
def test_bounds_that_do_not_hold(name: str, tmp_path: Path) -> None:
    *values, kind, message = LIES[name]
    rows, said = (pa.table({"c": pa.array(each, kind)}) for each in values)
    write_lying(tmp_path / "slice", rows, said)
    (found,) = findings(tmp_path / "slice")
    assert message in found


def test_each_row_group_is_looked_at(tmp_path: Path) -> None:
    """The bounds of the whole file hold."""
    values = list(range(30))
    swapped = pa.table({"i": [*values[10:20], *values[:10], *values[20:]]})
    write_lying(tmp_path / "slice", pa.table({"i": values}), swapped, row_group_size=10)
    assert findings(tmp_path / "slice") == [
        "column `i`: the footer says 10 … 19, the rows have 0 … 9 (row group 1 of 3)"
    ]


@pytest.mark.parametrize(
    ("told", "message"), [(78, "78 nulls, the rows have 77"), (76, "76 nulls, the rows")]
)
def test_counts_of_nulls_are_exact(told: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "slice"
    pq.write_table(pa.table({"s": ["a"] + [None] * 77}), path)
    before, after = (b"\x36" + bytes([2 * n & 127 | 128, 2 * n >> 7]) for n in (77, told))
    data = path.read_bytes()
    assert before in data, "the field of a footer that counts nulls"
    path.write_bytes(data.replace(before, after))
    (found,) = findings(path)
    assert message in found


def test_footers_of_other_writers(tmp_path: Path) -> None:
    path = tmp_path / "slice"
    table = pa.table({"s": ["b" * 70, "c" * 70], "i": [1, None]})
    pq.write_table(table, path, write_statistics=False)
    assert findings(path) == []
    # cut and raised bounds hold, although no row has them
    wider = pa.table({"s": ["a" * 70, "d" * 70], "i": [1, None]})
    write_lying(path, table, wider)
    assert findings(path) == []


def test_bounds_that_no_text_can_hold(tmp_path: Path) -> None:
    """A text that is cut within a character, and a year that JSON cannot say: no bounds of manifests."""
    path = tmp_path / "slice"
    years = pa.array([2**31 - 1], pa.int32())
    pq.write_table(pa.table({"s": ["zé"], "d": years.cast(pa.date32())}), path, compression="none")
    data, cut = path.read_bytes(), "zé".encode()
    first = data.index(cut) + len(cut)
    path.write_bytes(data[:first] + data[first:].replace(cut, b"z\xc3\xff"))
    stats = file_stats(path).to_document()
    assert stats["columns"] == [{"name": "s", "null_count": 0}, {"name": "d", "null_count": 0}]


def test_a_lying_slice_fails_a_verification(workspace: odf.Workspace, verify: Run) -> None:
    schema = schema_with(pa.field("city", pa.string()))
    root = add_root(workspace, "cities", schema)
    watermark = odf.Timestamp.from_datetime(START)
    append(root, records(schema, 0, [0], [START], ["Rome"]), watermark)
    (report,) = workspace.verify([workspace["cities"]])
    assert (report.verdict, report.done[STATISTICS]) == ("clean", 1)
    table = records(schema, 1, [0, 0], [START, START], ["Bonn", "Oslo"])
    append(root, table, watermark, records(schema, 1, [0, 0], [START, START], ["Bonn", "Lima"]))
    (_, lying) = DatasetState.read(root.chain).slices()
    path = root.data.locate(lying.slice.physical_hash)
    done = verify("cities", "-o", "json")
    (document,) = done.rows
    assert done.code == 6
    (fault,) = document["faults"]
    message = "column `city`: the footer says 'Bonn' … 'Lima', the rows have 'Bonn' … 'Oslo'"
    assert (fault["check"], fault["file"], fault["message"]) == (STATISTICS, path, message)
    assert fault["sequenceNumber"] == lying.sequence_number
    check = document["checks"][STATISTICS - 1]
    assert (check["name"], check["state"], check["checked"]) == ("slice statistics", "failed", 2)
    page = render_page([document])
    assert "<title>Faulty: cities " in page
    assert "slice statistics" in page
    assert path in page
    assert message in verify("cities").out
