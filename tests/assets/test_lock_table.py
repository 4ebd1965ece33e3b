"""Asset locks as tables: their hashes, what makes one faulty, and that the quick judgement lets no fault through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.assets import lock_table
from odfchain.assets.hrefs import checked_location
from odfchain.assets.lock_table import (
    SCHEMA,
    SCHEMA_WITH_CHECKSUM,
    AssetRow,
    Facts,
    faults_of,
    row_fault,
    surely_in_order,
)
from odfchain.digest.logical import LogicalDigest
from odfchain.errors import AssetError, SchemaError

FIXTURE = json.loads(Path("fixtures/assets/tables.json").read_text())


def rows(count: int = 3, *, checksums: bool = False) -> list[AssetRow]:
    found = []
    for values, checksum in zip(FIXTURE["rows"][:count], FIXTURE["checksums"], strict=False):
        row = dict(zip(SCHEMA.names, values, strict=True))
        location = checked_location(*values[2:6])
        facts = Facts(row["size_bytes"], row["etag"], row["last_modified"], checksum if checksums else None)
        found.append(AssetRow(row["item_id"], row["asset_key"], location, facts))
    return found


@pytest.mark.parametrize("case", FIXTURE["hashes"], ids=lambda case: case["id"])
def test_hashes(case: dict[str, Any], tmp_path: Path) -> None:
    chosen = rows(case["rows"], checksums=case["checksums"])
    table = lock_table.table_of(reversed(chosen), checksums=case["checksums"])
    lock_table.write_lock(table, tmp_path / "assets.lock.parquet")
    read = pq.read_table(tmp_path / "assets.lock.parquet")
    assert read.schema.equals(SCHEMA_WITH_CHECKSUM if case["checksums"] else SCHEMA, check_metadata=True)
    digest = LogicalDigest(read.schema)
    for batch in read.to_batches():
        digest.update(batch)
    assert str(digest.finish()) == case["logical"]
    assert list(lock_table.rows_of(read)) == chosen
    assert list(faults_of(tmp_path / "assets.lock.parquet")) == []


@pytest.mark.parametrize("case", FIXTURE["faulty"], ids=lambda case: case["id"])
def test_faults(case: dict[str, Any], tmp_path: Path) -> None:
    records = [dict(zip(SCHEMA.names, values, strict=True)) for values in FIXTURE["rows"]]
    number = case.get("row", 0)
    if "repeat" in case:
        records.append(records[case["repeat"]])
        number = 3
    for name, value in case.get("change", {}).items():
        records[number][name] = value["repeat"][0] * value["repeat"][1] if isinstance(value, dict) else value
    fields = [
        pa.field(f.name, pa.type_for_alias(case.get("type", {}).get(f.name, str(f.type)))) for f in SCHEMA
    ]
    if "extra" in case:
        fields.append(pa.field(case["extra"], pa.string()))
    if "type" in case:
        records = [{**record, "size_bytes": 7} for record in records]
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.Table.from_pylist(records, pa.schema(fields)), path)
    try:
        faults = list(faults_of(path))
    except SchemaError as error:
        assert case["fault"] in str(error)
        return
    assert [fault.number for fault in faults] == [number]
    assert case["fault"] in faults[0].message


def test_a_lock_names_each_asset_once() -> None:
    with pytest.raises(AssetError, match="named twice"):
        lock_table.table_of([*rows(), rows()[0]])


texts = st.one_of(
    st.none(),
    st.sampled_from(
        FIXTURE["rows"][0][2:6]
        + FIXTURE["rows"][1][2:6]
        + FIXTURE["rows"][1][7:9]
        + ["file", "", "..", "a/./b", "AKIAIOSFODNN7EXAMPLE", "http://h:80", "é"]
    ),
    st.text(max_size=8),
)


@given(st.lists(st.tuples(*[texts] * 6, st.one_of(st.none(), st.integers(-2, 2)), texts, texts), max_size=8))
def test_the_quick_judgement_lets_no_fault_through(given_rows: list[tuple[Any, ...]]) -> None:
    records = [dict(zip(SCHEMA.names, values, strict=True)) for values in given_rows]
    loose = pa.schema([field.with_nullable(True) for field in SCHEMA])
    try:
        batch = pa.RecordBatch.from_pylist(records, loose)
    except UnicodeEncodeError:
        return
    for sure, record in zip(surely_in_order(batch), records, strict=True):
        if sure:
            assert row_fault(record) is None


def test_what_is_usual_is_judged_at_once() -> None:
    assert surely_in_order(lock_table.table_of(rows()).to_batches()[0]).all()
