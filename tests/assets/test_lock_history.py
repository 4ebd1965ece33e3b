"""A lock is a dataset like any other: compared, explained, branched, reverted, attested, signed and pulled."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import odfchain as odf
from tests.kit.lock_datasets import lock_dataset
from tests.kit.support import Run


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> odf.Dataset:
    monkeypatch.chdir(tmp_path)
    return lock_dataset(odf.init(tmp_path))


@pytest.fixture
def shown(run: Run) -> Callable[..., str]:
    """What a command prints."""

    def shown(*command: str, code: int = 0) -> str:
        found = run(*command)
        assert found.code == code
        return found.out + found.err

    return shown


def keys(lock: odf.AssetLock) -> dict[str, str]:
    return {row.item_id: row.location.key for row in lock.rows}


def test_what_differs_between_two_blocks(dataset: odf.Dataset, shown: Callable[..., str]) -> None:
    screen = shown("diff", "s2.assets", "3", "5")
    assert re.search(r'^s1 +B04 +changed +etag +"1" +"2"$', screen, re.MULTILINE)
    assert re.search(r"^s2 +B04 +removed$", screen, re.MULTILINE)
    assert re.search(r"^s4 +B04 +inserted +key +s4/B04.tif$", screen, re.MULTILINE)
    assert "3 records: 1 inserted, 1 changed, 1 removed" in screen
    tail = [line.split()[1:6:4] for line in shown("tail", "s2.assets", "-n", "4").splitlines()[1:5]]
    assert [op for op, *_ in tail] == ["-C", "+C", "-R", "+A"]


def test_since_when_an_asset_is_there(dataset: odf.Dataset, shown: Callable[..., str]) -> None:
    by_key = shown("blame", "s2.assets", "item_id=s1", "asset_key=B04")
    assert by_key == shown("blame", "s2.assets", "--offset", "4")
    assert "record 4: block 4\n" in by_key
    assert "+C offset=4, op=3, system_time=2026-01-03T02:00:00Z" in by_key
    assert "of the record 0 (block 3): +A" in by_key
    assert "store_endpoint_url=∅" in by_key
    gone = shown("blame", "s2.assets", "item_id=s2", "asset_key=B04")
    assert "-R offset=5" in gone
    then = shown("blame", "s2.assets@3", "item_id=s2", "asset_key=B04")
    assert "record 1: block 3\n" in then
    never = shown("blame", "s2.assets", "item_id=s9", "asset_key=B04", code=2)
    assert "no row with this key was ever recorded" in never
    for wrong in ([], ["item_id=s1", "--offset", "4"], ["item_id=s1", "--to", "4"], ["s1"]):
        assert "error: " in shown("blame", "s2.assets", *wrong, code=2)
    history = shown("history", "s2.assets", "item_id=s1", "asset_key=B04")
    assert re.search(r'4 .* size_bytes 7 → 9, etag "1" → "2"', history)


def test_a_night_in_which_nothing_changed_starts_no_spark(dataset: odf.Dataset) -> None:
    before = dataset.head
    outcome = dataset.record_lock(dataset.lock())
    assert outcome.up_to_date
    assert dataset.head == before
    assert [each.input_rows for each in outcome.inputs] == [3]
    assert dataset._workspace._engines.spark is None or not dataset._workspace._engines.spark.started


def test_profiles_and_manifests(dataset: odf.Dataset, shown: Callable[..., str]) -> None:
    assert re.search(r"^size_bytes +int64 .* 7 … 9", shown("profile", "s2.assets"), re.MULTILINE)
    assert "3 → 3 rows" in shown("diff", "--profile", "s2.assets")
    assert "block 5  3 slices  7 records" in shown("manifest", "s2.assets")


def test_a_branch_with_corrected_places_is_merged_and_reverted(
    dataset: odf.Dataset, tmp_path: Path, shown: Callable[..., str]
) -> None:
    (tmp_path / "moved.csv").write_text("item_id,asset_key,key\ns3,B04,elsewhere/s3.tif\n")
    shown("branch", "create", "s2.assets", "moved")
    assert "1 corrected" in shown("correct", "s2.assets@moved", "moved.csv")
    assert keys(dataset.lock())["s3"] == "s3/B04.tif"
    hrefs = shown("assets", "href", "s2.assets@moved").splitlines()
    assert hrefs == ["s3://scenes/s1/B04.tif", "s3://scenes/elsewhere/s3.tif", "s3://scenes/s4/B04.tif"]
    screen = shown("diff", "s2.assets", "moved")
    assert re.search(r"^s3 +B04 +changed +key +s3/B04.tif +elsewhere/s3.tif$", screen, re.MULTILINE)
    assert "1 corrected, no conflicts" in shown("merge", "s2.assets", "moved")
    assert keys(dataset.lock())["s3"] == "elsewhere/s3.tif"
    assert "merged from moved" in shown("blame", "s2.assets", "item_id=s3", "asset_key=B04")
    shown("revert", "s2.assets", "6")
    assert keys(dataset.lock()) == keys(dataset.at(5).lock())


def test_a_lock_is_attested_signed_pushed_and_pulled(
    dataset: odf.Dataset, tmp_path: Path, shown: Callable[..., str]
) -> None:
    shown("key", "create", "auditor.key")
    said = shown("attest", "s2.assets", "--key", "auditor.key")
    assert "attested as clean by did:key:" in said
    dataset.sign()
    place = (tmp_path / "pushed").as_uri()
    dataset.push(place)
    other = odf.init(tmp_path / "other")
    other.pull(f"{place}/", name="copy", require_signature=True)
    copy = other["copy"]
    assert copy.lock().table.equals(dataset.lock().table, check_metadata=True)
    assert copy.verify().verdict == "clean"
    (attested,) = copy.attestations()
    assert attested.in_chain
    assert attested.line.statement.head == dataset.head
    assert dataset.lock().is_ours
    assert not copy.lock().is_ours, "absolute paths of somebody else's lock are not read"
    assert copy.lock().folder == tmp_path / "other"
