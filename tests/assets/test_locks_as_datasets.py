"""Locks with a history: only what differs is recorded, a half-read catalog is refused, any block is a lock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import odfchain as odf
from odfchain.assets.lock_table import SCHEMA, AssetRow
from odfchain.assets.locks import table_of
from odfchain.assets.objects import Facts
from odfchain.cli.start import manifest_template
from odfchain.storage.locations import Location
from tests.kit.asset_cases import Case, Hold, held, wrong_cases
from tests.kit.lying_objects import LyingObjects
from tests.kit.support import Notes

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

STORES = odf.StoreOptions(allow_private=True)
CASES = json.loads(Path("fixtures/assets/datasets.json").read_text())


@pytest.fixture
def server() -> Iterator[LyingObjects]:
    with LyingObjects({f"/{n}.tif": {} for n in range(20)}) as found:
        yield found


def new(folder: Path, engine: SparkEngine, merge: str = "Snapshot") -> odf.Dataset:
    workspace = odf.init(folder)
    workspace._engines.spark = engine
    (dataset,) = workspace.add(manifest_template(odf.DatasetAlias.parse("s2.assets"), "assets", merge=merge))
    return dataset


def derived(server: LyingObjects, folder: Path, case: Case) -> odf.AssetLock:
    """The lock of a case's catalog."""
    sizes = case.get("sizes", {})
    path = folder / "items.ndjson"
    with path.open("w") as file:
        for n in range(*case["catalog"]):
            asset: dict[str, Any] = {"href": f"{server.origin}/{n}.tif"}
            if str(n) in sizes:
                asset["file:size"] = sizes[str(n)]
            item = {"type": "Feature", "id": f"s{n:02}", "assets": {"B04": asset}}
            file.write(json.dumps(item) + "\n")
    return odf.AssetLock.derive([str(path)], folder=folder, stores=STORES, probe=case.get("probe", True))


@dataclass(frozen=True)
class Recorded:
    """What came of recording a lock."""

    operations: dict[str, int]
    said: str
    blocks: int
    refused: int | None = None


def recorded(server: LyingObjects, dataset: odf.Dataset, folder: Path, case: Case) -> Recorded:
    """Do what a case says."""
    for number, answer in case.get("objects", {}).items():
        server.answers[f"/{number}.tif"] = answer
    lock = dataset.lock() if case.get("exported") else derived(server, folder, case)
    chosen = {name: case[name] for name in ("allow_retract", "late_edits") if name in case}
    before, notes = dataset.summary.head_block.sequence_number, Notes()
    probed = case.get("probe", True)
    done, said, refused = dict[str, int](), "", None
    try:
        done = operations(dataset.record_lock(lock, probed=probed, progress=notes, **chosen))
        said = "\n".join(notes.texts)
    except odf.OdfchainError as error:
        said, refused = str(error), error.exit_code
    return Recorded(done, said, dataset.summary.head_block.sequence_number - before, refused)


def hold_recorded(case: Case, found: Recorded) -> None:
    assert found.refused == case.get("refused"), case["id"]
    assert found.operations == case.get("operations", {}), case["id"]
    assert bool(found.blocks) == bool(found.operations), "nothing new makes no block"
    wanted = case.get("said", "")
    assert wanted in found.said if "refused" in case else wanted == found.said, case["id"]


def record(server: LyingObjects, dataset: odf.Dataset, folder: Path, case: Case) -> None:
    """Do what a case says, and compare what is recorded: with what it expects, and with what it does not."""
    found = recorded(server, dataset, folder, case)
    hold_recorded(case, found)
    for _, wrong in wrong_cases(case, ("operations", "said", "refused")):
        with pytest.raises(AssertionError):
            hold_recorded(wrong, found)


def operations(outcome: odf.results.IngestOutcome) -> dict[str, int]:
    return {name: count for item in outcome.inputs for name, count in item.operations.items() if count}


def test_cases_45_to_49(server: LyingObjects, tmp_path: Path, engine: SparkEngine) -> None:
    dataset = new(tmp_path, engine)
    assert dataset.lock().table.equals(SCHEMA.empty_table(), check_metadata=True), "no rows yet"
    first, *cases = CASES["cases"]
    record(server, dataset, tmp_path, first)
    begin = dataset.lock()
    assert begin.table.equals(derived(server, tmp_path, first).table, check_metadata=True)
    block = dataset.summary.head_block.sequence_number
    for case in cases:
        record(server, dataset, tmp_path, case)
    assert dataset.lock().table.equals(derived(server, tmp_path, cases[-1]).table)
    # 48: the lock of an earlier block, and what has changed since
    wanted = CASES["check_of_the_first"]
    old = dataset.lock(at=block)
    assert old.table.equals(begin.table, check_metadata=True)
    old.write(tmp_path / "old.parquet")
    read = odf.AssetLock.read(tmp_path / "old.parquet")
    assert read.table.schema.equals(SCHEMA, check_metadata=True), "T22: one schema, metadata included"
    found_now = [(each.row.label, each.status.value) for each in read.check(stores=STORES)]
    hold_statuses(wanted, found_now)
    for _, wrong in wrong_cases(wanted, ("statuses", "not_same")):
        with pytest.raises(AssertionError):
            hold_statuses(wrong, found_now)


def hold_statuses(case: Case, found: list[tuple[str, str]]) -> None:
    assert Counter(status for _, status in found) == case["statuses"], case["id"]
    assert [label for label, status in found if status != "same"] == case["not_same"]


def test_ledgers_of_fixed_objects(server: LyingObjects, tmp_path: Path, engine: SparkEngine) -> None:
    dataset = new(tmp_path, engine, "Ledger")
    for case in CASES["ledger"]:
        record(server, dataset, tmp_path, case)


def hold_known_facts(case: Case, folder: Path) -> None:
    def lock(facts: list[Any] | None, key: str = "x.tif") -> odf.AssetLock:
        rows = [] if facts is None else [AssetRow("s1", "B04", Location("s3", "b", None, key), Facts(*facts))]
        return odf.AssetLock(table_of(rows), folder)

    new = lock([case["claimed"], None, None], case.get("key", "x.tif"))
    (row,) = new.completed_by(lock(case["known"]), probed=False).rows
    assert [row.facts.size_bytes, row.facts.etag, row.facts.last_modified] == case["facts"]


HELD = {"known_facts": (hold_known_facts, ("facts",))}


@held(CASES, HELD)
def test_what_nobody_probed_keeps_what_is_known(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)
