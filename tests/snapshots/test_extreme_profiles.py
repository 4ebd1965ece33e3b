"""Profiles of what is extreme: nothing at all, nothing but nulls, and more than is ever held in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.odf.times import Timestamp
from tests.kit.root_rows import START, add_root, append, records, schema_with

KINDS = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32(), pa.binary(), pa.list_(pa.int32())]
SCHEMA = schema_with(*(pa.field(f"c{n}", kind) for n, kind in enumerate(KINDS)))


def test_a_dataset_without_rows_and_columns_without_values(tmp_path: Path) -> None:
    with Workspace.init(tmp_path) as workspace:
        root = add_root(workspace, "nothing", SCHEMA)
        empty = workspace["nothing"].profile().document
        nulls = [[None] * 3 for _ in KINDS]
        append(
            root, records(SCHEMA, 0, [0] * 3, [START] * 3, *nulls), Timestamp.parse("2024-01-01T00:00:00Z")
        )
        found = workspace["nothing"].profile().document
        gone = [[None] * 3 for _ in KINDS]
        append(root, records(SCHEMA, 3, [1] * 3, [START] * 3, *gone), Timestamp.parse("2024-01-01T00:00:00Z"))
        again = workspace["nothing"].profile().document
    names = [f"c{n}" for n in range(len(KINDS))]
    assert (empty["num_rows"], empty["near_duplicate_estimate"], empty["constant_columns"]) == (0, 0, [])
    assert (found["num_rows"], found["constant_columns"]) == (3, ["event_time", *names])
    assert found["high_null_columns"] == names
    assert (found["duplicate_row_fraction"], found["near_duplicate_estimate"]) == (2 / 3, 1)
    for name in names:
        assert found["column_stats"][name]["null_fraction"] == 1
        assert found["column_stats"][name]["num_unique"] == 0
    assert again["column_stats"] == empty["column_stats"], "all were taken back"
    assert again["row_hyperloglog"] == empty["row_hyperloglog"]


_MEASURE = """
import resource, sys
import numpy as np, pyarrow as pa
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.profiles.document import column_statistics
from odfchain.profiles.totals import Totals
from odfchain.profiles.state_totals import to_bytes

def add_up(schema, batches, **options):
    found = Totals(schema, **options)
    first = 0
    for batch in batches:
        found.update(batch, np.arange(first, first + len(batch), dtype=np.uint64))
        first += len(batch)
    stats = {{c.name: column_statistics(c, found.sampled_values(c)) for c in found.columns}}
    return found, len(canonical_bytes(stats)), len(to_bytes(found))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

small = pa.RecordBatch.from_pydict({{"id": [1], "t": ["a"]}})
add_up(small.schema, [small], near_duplicates=True)
before = peak()
{extreme}
print(peak() - before)
"""
WIDE = """
def batches():
    for part in range(4):
        numbers = np.arange(part * 5_000, part * 5_000 + 5_000)
        yield pa.RecordBatch.from_pydict(
            {f"c{n}": (numbers * (n + 1) % 20_011 if n % 2 else pa.array([f"v {x * n}" for x in numbers]))
             for n in range(200)})
first = next(batches())
found, size, kept = add_up(first.schema, batches())
assert (len(found.columns), found.rows) == (200, 20_000) and size < 2 << 20 and kept < 256 << 20
"""
LONG = """
def batches():
    for row in range(0, 2_000, 10):
        yield pa.RecordBatch.from_pydict({"t": [f"{row + n} " + "wörter " * 150_000 for n in range(10)]})
found, size, kept = add_up(pa.schema([("t", pa.string())]), batches())
assert (found.rows, found.columns[0].distinct) == (2_000, 2_000) and size < 1 << 20 and kept < 16 << 20
"""
MANY = """
def batches():
    for start in range(0, 10_000_000, 65_536):
        numbers = np.arange(start, min(start + 65_536, 10_000_000))
        yield pa.RecordBatch.from_pydict({"id": numbers * 7919, "x": np.sqrt(numbers)})
schema = next(batches()).schema
found, size, kept = add_up(schema, batches(), near_duplicates=NEAR)
assert found.rows == 10_000_000 and abs(found.columns[0].distinct / 1e7 - 1) < 0.05
assert kept < 4 << 20 or NEAR
assert found.near_duplicates == (0 if NEAR else None)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("extreme", "most"),
    [
        pytest.param(WIDE, 700, id="200-columns"),
        pytest.param(LONG, 400, id="2000-texts-of-a-megabyte"),
        pytest.param(MANY.replace("NEAR", "False"), 200, id="ten-million-keys"),
        pytest.param(MANY.replace("NEAR", "True"), 1_000, id="ten-million-keys-near-duplicates"),
    ],
)
def test_what_is_extreme_is_profiled_in_bounded_memory(extreme: str, most: int) -> None:
    """`most` [MiB] beyond what the program itself takes."""
    code = _MEASURE.format(extreme=extreme)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most, f"{done.stdout} MiB"
