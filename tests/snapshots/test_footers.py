"""What manifests say of columns, and which files conditions skip: the cases of the fixtures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.codec.document_bytes import canonical_bytes
from odfchain.errors import CodecError, QueryError
from odfchain.manifest.skipping import may_match, parse_where
from odfchain.manifest.snapshot_manifest import times_of
from odfchain.slices.footers import ColumnStats, FileStats, file_stats
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
    schema = pa.schema([(name, pa.int64()) for name in SKIPPING["columns"]])
    assert may_match(stats_of_fixture(), parse_where(text, schema)) is kept


@pytest.mark.parametrize("text", ["nope = 1", "i = = 2", "i = 1; DROP TABLE x", "", "i = 1 GROUP BY i"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(QueryError):
        parse_where(text, pa.schema([("i", pa.int64())]))


def test_what_canonical_json_cannot_hold_is_an_error() -> None:
    for value in (math.nan, "\ud800", b"", {1: 2}):
        with pytest.raises(CodecError):
            canonical_bytes({"value": value})
