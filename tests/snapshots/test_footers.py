"""What manifests say of columns, and which files conditions skip: the cases of the fixtures."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import CodecError, QueryError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.profiles.manifests import times_of
from odfchain.slices.conditions import parse_where
from odfchain.slices.footers import ColumnStats, FileStats, file_stats
from odfchain.slices.skipping import about, may_match
from tests.kit.snapshot_columns import column, fixture, type_of, value_of

COLUMNS = fixture("columns")["cases"]
SKIPPING = fixture("skipping")


def expanded(value: Any) -> Any:
    if isinstance(value, dict) and "repeat" not in value:
        return {name: expanded(inner) for name, inner in value.items()}
    return value_of(value, pa.string())


@pytest.mark.parametrize("case", COLUMNS, ids=lambda case: case["id"])
def test_footers(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({name: column(*given) for name, given in case["columns"].items()})
    path = tmp_path / "slice.parquet"
    pq.write_table(table, path)
    if "created_by" in case:
        # a file of another writer: its footer has another name in the same number of bytes
        written = pq.read_metadata(path).created_by.encode()
        other = case["created_by"].ljust(len(written)).encode()
        path.write_bytes(path.read_bytes().replace(written, other))
    found = file_stats(path)
    stats = json.loads(canonical_bytes(found.to_document()))
    assert stats == {"row_count": table.num_rows, "columns": [expanded(each) for each in case["stats"]]}
    if "times" in case:
        assert times_of([found], case["event_time"]) == case["times"]
        # one file without bounds: nothing is said
        assert times_of([found, FileStats(1, ())], case["event_time"]) == {}


def stats_of_fixture() -> FileStats:
    columns = [
        ColumnStats(name, type_of(given["type"]), given["null_count"], given.get("min"), given.get("max"))
        for name, given in SKIPPING["stats"].items()
    ]
    present = frozenset([*SKIPPING["stats"], *SKIPPING["unreported"]])
    return FileStats(SKIPPING["rows"], tuple(columns), present)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param(text, which == "kept", id=f"{case['id']}-{text}")
        for case in SKIPPING["cases"]
        for which in ("skipped", "kept")
        for text in case[which]
    ],
)
def test_conditions_skip_what_cannot_match(text: str, kept: bool) -> None:
    types = {name: type_of(given["type"]) for name, given in SKIPPING["stats"].items()}
    others = {"m": pa.string(), "c": pa.int64()}
    schema = pa.schema([(name, {**types, **others}[name]) for name in SKIPPING["columns"]])
    assert may_match(stats_of_fixture(), parse_where(text, schema).condition) is kept


def test_what_canonical_json_cannot_hold_is_an_error() -> None:
    for value in (math.nan, "\ud800", b"", {1: 2}):
        with pytest.raises(CodecError):
            canonical_bytes({"value": value})


@pytest.mark.parametrize(
    ("kind", "low", "high", "text"),
    [
        pytest.param(pa.float64(), 0.0, 0.0, "c < 0.0", id="minus-zero-is-below-zero-for-some"),
        pytest.param(pa.float32(), 0.10000000149011612, 1.0, "c = 0.1", id="rounded-to-a-smaller-float"),
        pytest.param(pa.int64(), 2**53 + 1, 2**53 + 1, "c = 9007199254740992.0", id="compared-as-doubles"),
        pytest.param(pa.int64(), 1, 2, "c < 99999999999999999999", id="larger-than-integers"),
        pytest.param(pa.decimal128(20, 2), Decimal("2.50"), Decimal("2.50"), "c = 2.499", id="finer-than-it"),
        pytest.param(pa.timestamp("ms", "UTC"), 0, 0, "c >= '1970-01-01T00:00:00.0005Z'", id="finer-times"),
        pytest.param(pa.timestamp("ns"), 1_500, 1_500, "c = '1970-01-01T00:00:00.000001'", id="cut-times"),
        pytest.param(pa.timestamp("ms", "Asia/Tokyo"), 0, 0, "c > '1970-01-01 01:00:00'", id="zones"),
        pytest.param(pa.date32(), 0, 0, "c = '1970-W01-4'", id="dates-of-weeks"),
        pytest.param(pa.date32(), 5, 5, "c = '1970-01-01 12:00:00'", id="a-day-and-a-time"),
        pytest.param(pa.string(), "a", "b", "c = 5", id="a-text-and-a-number"),
        pytest.param(pa.string(), "a", "b", r"c = 'x\\ty'", id="backslashes"),
        pytest.param(pa.string(), "a", "b", "c = 'x''y'", id="quotes"),
        pytest.param(pa.string(), "a", "b", 'c = "c"', id="a-name-in-quotes"),
        pytest.param(pa.string(), "a", "b", "c LIKE 'x%' ESCAPE 'x'", id="other-escapes"),
        pytest.param(pa.string(), "a", "b", "c NOT LIKE 'x%'", id="unlike"),
        pytest.param(pa.string(), "a", "b", "c ILIKE 'A%'", id="like-in-any-case"),
        pytest.param(pa.int64(), 1, 2, "c BETWEEN SYMMETRIC 5 AND 0", id="symmetric"),
        pytest.param(pa.int64(), 1, 2, "c IS DISTINCT FROM 5", id="distinct"),
        pytest.param(pa.int64(), 1, 2, "c <=> 5", id="null-safe"),
        pytest.param(pa.int64(), 1, 2, "c = c", id="itself"),
        pytest.param(pa.int64(), 1, 2, "c = '5'", id="a-number-as-text"),
        pytest.param(pa.int64(), 1, 2, "c + 1 = 2 OR c = 1", id="computed"),
    ],
)
def test_what_engines_may_compare_otherwise_skips_nothing(
    kind: pa.DataType, low: Any, high: Any, text: str
) -> None:
    stats = FileStats(2, (ColumnStats("c", kind, 0, low, high),), frozenset("c"))
    assert may_match(stats, parse_where(text, pa.schema([("c", kind)])).condition)


def test_a_nan_with_a_sign_is_below_all_numbers_for_the_embedded_engine() -> None:
    stats = FileStats(2, (ColumnStats("c", pa.float64(), 0, 1.0, 2.0),), frozenset("c"))
    below = parse_where("c < 0", pa.schema([("c", pa.float64())])).condition
    assert not may_match(stats, below)
    assert may_match(stats, below, signed_nan=True)


def test_a_column_of_another_type_decides_nothing() -> None:
    stats = FileStats(2, (ColumnStats("c", pa.int64(), 0, 1, 2),), frozenset("c"))
    for kind, text in (
        (pa.string(), "c = 'x'"),
        (pa.float64(), "c = 5.0"),
        (pa.date32(), "c = '2020-01-01'"),
    ):
        assert may_match(stats, parse_where(text, pa.schema([("c", kind)])).condition)


def test_names_are_as_in_queries() -> None:
    schema = pa.schema([("Size", pa.int64()), ("a b", pa.int64()), ("x`y", pa.int64()), ("n", pa.int64())])
    found = parse_where(
        'N = 1 AND size IS NULL OR "a b" = 2 AND `x``y` = Size', pa.schema([*schema, ("size", pa.int64())])
    )
    assert found.text == "`n` = 1 AND `size` IS NULL OR `a b` = 2 AND `x``y` = `size`"
    assert parse_where("Size = 1", schema).text == "`Size` = 1"
    with pytest.raises(QueryError, match="there is no column `size`"):
        parse_where("size = 1", schema)
    with pytest.raises(QueryError, match="there is no column `SIZE`"):
        parse_where('"SIZE" = 1', schema)


def test_what_a_condition_says_of_a_key_is_true_of_every_row_of_it() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    stats = FileStats(2, (ColumnStats("k", pa.int64(), 0, 1, 2), ColumnStats("v", pa.int64(), 0, 1, 2)))
    for text, kept in (("k = 5 AND v = 1", False), ("k = 1 AND v = 5", True), ("k = 5 OR v = 5", True)):
        assert may_match(stats, about(parse_where(text, schema).condition, {"k"})) is kept


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53) + 1, 2**53 - 1)
values = st.recursive(
    st.none()
    | st.booleans()
    | numbers
    | st.text(max_size=4)
    | st.sampled_from([1e21, 1e-7, 5e-324, -0.0, 2.0**60]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_canonical_json_is_that_of_the_standard(document: dict[str, Any]) -> None:
    assert canonical_bytes(document) == rfc8785.dumps(document)
