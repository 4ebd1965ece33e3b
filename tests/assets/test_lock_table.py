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
from odfchain.assets.hrefs import checked_location, parse_href
from odfchain.assets.lock_table import (
    SCHEMA,
    SCHEMA_WITH_CHECKSUM,
    AssetRow,
    LockFile,
    row_fault,
    surely_in_order,
)
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import Facts
from odfchain.errors import AssetError
from odfchain.odf.logical_hash import LogicalDigest
from tests.kit.asset_cases import Case, Hold, held, numbered_rows, written_rows
from tests.kit.memory_growth import growth_of_commands
from tests.kit.support import Run

FIXTURE = json.loads(Path("fixtures/assets/tables.json").read_text())


def rows(count: int = 3, *, checksums: bool = False) -> list[AssetRow]:
    found = []
    for values, checksum in zip(FIXTURE["rows"][:count], FIXTURE["checksums"], strict=False):
        row = dict(zip(SCHEMA.names, values, strict=True))
        location = checked_location(*values[2:6])
        facts = Facts(row["size_bytes"], row["etag"], row["last_modified"], checksum if checksums else None)
        found.append(AssetRow(row["item_id"], row["asset_key"], location, facts))
    return found


def hold_hash(case: Case, tmp_path: Path) -> None:
    chosen = rows(case["rows"], checksums=case["checksums"])
    table = table_of(reversed(chosen), checksums=case["checksums"])
    AssetLock(table, tmp_path).write(tmp_path / "assets.lock.parquet")
    read = pq.read_table(tmp_path / "assets.lock.parquet")
    assert read.schema.equals(SCHEMA_WITH_CHECKSUM if case["checksums"] else SCHEMA, check_metadata=True)
    digest = LogicalDigest(read.schema)
    for batch in read.to_batches():
        digest.update(batch)
    assert str(digest.finish()) == case["logical"]
    assert list(AssetLock(read, tmp_path).rows) == chosen
    assert list(LockFile(tmp_path / "assets.lock.parquet").faults()) == []


def number_of(case: Case) -> int:
    """The row that is faulty."""
    return 3 if "repeat" in case else case.get("row", 0)


def foreign(case: Case, tmp_path: Path) -> Path:
    """The rows of the fixture as a lock of somebody else's, with a fault."""
    records = [dict(zip(SCHEMA.names, values, strict=True)) for values in FIXTURE["rows"]]
    number = number_of(case)
    if "repeat" in case:
        records.append(records[case["repeat"]])
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
    return path


def hold_fault(case: Case, tmp_path: Path) -> None:
    path, number = foreign(case, tmp_path), number_of(case)
    try:
        faults = list(LockFile(path).faults())
    except AssetError as error:
        assert case["fault"] in str(error)
        return
    assert [fault.number for fault in faults] == [number]
    assert case["fault"] in faults[0].message
    with pytest.raises(AssetError, match=r"faulty|lock") as refused:
        AssetLock.read(path)
    assert refused.value.exit_code == 6
    assert str(faults[0]) in refused.value.message


HELD = {"hashes": (hold_hash, ("logical",)), "faulty": (hold_fault, ("fault",))}


@held(FIXTURE, HELD)
def test_cases(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)


@pytest.mark.parametrize("case", FIXTURE["faulty"], ids=lambda case: case["id"])
def test_case_21_the_command_names_each_faulty_row(case: Case, tmp_path: Path, assets: Run) -> None:
    path = foreign(case, tmp_path)
    shown = assets("check", path, "--offline", "-o", "ndjson")
    assert shown.code == 6
    if "extra" in case or "type" in case:
        assert case["fault"] in shown.err
        return
    (document,) = map(json.loads, shown.out.splitlines())
    row = pq.read_table(path).to_pylist()[number_of(case)]
    assert [document["item_id"], document["asset_key"]] == [row["item_id"], row["asset_key"]]
    assert case["fault"] in document["errors"][0]
    assert (document["valid"], document["status"]) == (False, "faulty")


def test_a_lock_is_written_as_every_lock_is(tmp_path: Path) -> None:
    """Section 3 of the guide: the version, the codec, the groups, the order and what the schema is called."""
    path = written_rows(tmp_path / "x.parquet", 65_537)
    with pq.ParquetFile(path) as file:
        footer, schema = file.metadata, file.schema_arrow
    assert footer.format_version == "2.6"
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [65_536, 1]
    assert {footer.row_group(0).column(n).compression for n in range(9)} == {"SNAPPY"}
    assert [(field.name, str(field.type), field.nullable) for field in schema] == [
        (name, "int64" if name == "size_bytes" else "string", name not in ("item_id", "asset_key"))
        for name in (
            "item_id", "asset_key", "store_type", "store_container", "store_endpoint_url", "key", "size_bytes",
            "etag", "last_modified",
        )
    ]  # fmt: skip
    assert schema.metadata == {b"stacpkg:schema-kind": b"asset-lock", b"stacpkg:schema-version": b"v1"}
    names = ["Z", "a", "é", "\uff5e", "\U00010000"]  # in UTF-16 the last two are the other way round
    made = table_of(AssetRow(name, "x", parse_href("x.tif")) for name in reversed(names))
    assert made.column("item_id").to_pylist() == names
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_a_lock_names_each_asset_once() -> None:
    with pytest.raises(AssetError, match="named twice"):
        table_of([*rows(), rows()[0]])


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
    assert surely_in_order(table_of(rows()).to_batches()[0]).all()


def told(table: pa.Table, path: Path, group: int = 1_000) -> list[tuple[int, str]]:
    pq.write_table(table, path, row_group_size=group)
    return [(fault.number, fault.message) for fault in LockFile(path).faults()]


def test_pairs_are_unique_in_sorted_rows_and_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_table, "_READ", 1_000)
    table, path = numbered_rows(3_000), tmp_path / "assets.lock.parquet"
    assert told(table, path) == []
    numbers = [*range(1_000), 999, *range(1_000, 3_000), 2_999, 2_999]
    beside = [(1_000, "named twice"), (3_001, "named twice"), (3_002, "named twice")]
    assert told(table.take(numbers), path) == beside, "neighbours, in one batch and in two"
    backwards = table.take(list(range(2_999, -1, -1)))
    assert told(backwards, path) == []
    assert AssetLock.read(path).table.equals(table), "a lock that is read is in order"
    far = pa.concat_tables([backwards.slice(0, 1_500), backwards.slice(1_499)])
    assert told(pa.concat_tables([far, backwards.slice(0, 1)]), path) == [
        (1_500, "named twice"), (3_001, "named twice"),
    ]  # fmt: skip


def test_of_sorted_rows_no_hash_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(lock_table, "hash_rows")
    strange = ["", "a", "z", "\u00e9", "\uff5e", "\U0001f600"]  # in UTF-8 order, which UTF-16 has not
    table = numbered_rows(len(strange)).set_column(1, SCHEMA.field("asset_key"), pa.array(strange))
    table = table.set_column(0, SCHEMA.field("item_id"), pa.array(["S2A"] * len(strange)))
    assert told(table, tmp_path / "x.parquet") == [(0, "`asset_key` is empty")]


def test_many_faults_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "assets.lock.parquet"
    table = numbered_rows(5_000)
    told(table.set_column(7, "etag", pa.array(["\x1b"] * 5_000)), path)
    with pytest.raises(AssetError, match=r"faulty|lock") as refused:
        AssetLock.read(path)
    assert (
        "5,000 of 5,000 rows faulty: row 0 (S2A_33UWP_000000000 B04): `etag` has control characters; row 1 ("
        in str(refused.value)
    )
    assert "and 4,980 more" in refused.value.message
    assert "\x1b" not in str(refused.value)


def test_rows_that_were_judged_are_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = AssetLock.read(written_rows(tmp_path / "assets.lock.parquet", 5_000))
    monkeypatch.delattr(lock_table, "row_faults")
    assert [row.item_id for row in lock.only(items=["S2A_33UWP_000004999"]).rows] == ["S2A_33UWP_000004999"]
    assert len(list(lock.hrefs())) == 5_000


def test_rows_from_elsewhere_are_judged(tmp_path: Path) -> None:
    table = numbered_rows(3).set_column(5, "key", pa.array(["a", "../b", "c"]))
    with pytest.raises(AssetError, match=r"row 1 \(.* B04\)"):
        _ = AssetLock(table, tmp_path).rows


@pytest.mark.parametrize("rows", [500_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_the_memory_of_a_check_is_that_of_a_batch(rows: int, tmp_path: Path) -> None:
    """Beyond what a batch of rows takes; the table alone would be some 150 bytes a row."""
    few, many = written_rows(tmp_path / "few.parquet", 65_536), written_rows(tmp_path / "many.parquet", rows)
    first, second = (["assets", "check", str(path), "--offline"] for path in (few, many))
    one, other, grown = growth_of_commands(first, second)
    assert (one, other) == (0, 0)
    assert grown < 80
