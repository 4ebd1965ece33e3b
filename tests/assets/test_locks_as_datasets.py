"""Locks with a history: only what differs is recorded, a half-read catalog is refused, any block is a lock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import odfchain as odf
from odfchain.api.asset_locks import with_known_facts
from odfchain.api.templates import manifest_template
from odfchain.assets.lock_table import SCHEMA
from tests.kit.lying_objects import LyingObjects

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

STORES = odf.StoreOptions(allow_private=True)


@pytest.fixture(scope="module")
def server() -> Iterator[LyingObjects]:
    with LyingObjects({f"/{n}.tif": {} for n in range(20)}) as found:
        yield found


def derived(server: LyingObjects, folder: Path, numbers: range, *, probe: bool = True) -> odf.AssetLock:
    items = [
        {"type": "Feature", "id": f"s{n:02}", "assets": {"B04": {"href": f"{server.origin}/{n}.tif"}}}
        for n in numbers
    ]
    path = folder / "items.ndjson"
    path.write_text("".join(json.dumps(each) + "\n" for each in items))
    return odf.AssetLock.derive([str(path)], folder=folder, stores=STORES, probe=probe)


def operations(outcome: odf.IngestOutcome) -> dict[str, int]:
    return {name: count for item in outcome.inputs for name, count in item.operations.items() if count}


def test_cases_45_to_48(server: LyingObjects, tmp_path: Path, engine: SparkEngine) -> None:
    workspace = odf.init(tmp_path)
    workspace._engines.spark = engine
    (dataset,) = workspace.add(manifest_template(odf.DatasetAlias.parse("s2.assets"), "assets"))
    first = derived(server, tmp_path, range(10))
    assert operations(dataset.ingest_frame(first.table)) == {"+A": 10}
    block = dataset.summary.head_block.sequence_number
    # 45: nothing new, no block; and an exported lock is nothing new, either
    assert dataset.ingest_frame(derived(server, tmp_path, range(10)).table).up_to_date
    assert dataset.lock().table.equals(first.table, check_metadata=True)
    assert dataset.ingest_frame(dataset.lock().table).up_to_date
    assert dataset.summary.head_block.sequence_number == block
    # what nobody probed keeps the facts that are known
    unprobed = derived(server, tmp_path, range(10), probe=False)
    assert unprobed.rows[0].facts.etag is None
    assert dataset.ingest_frame(with_known_facts(unprobed, dataset.lock()).table).up_to_date
    # 46: an entity tag changed, an asset is gone, another is new
    server.answers["/3.tif"] = {"etag": '"other"'}
    outcome = dataset.ingest_frame(derived(server, tmp_path, range(1, 11)).table)
    assert operations(outcome) == {"+A": 1, "-R": 1, "-C": 1, "+C": 1}
    # 47: a catalog that was half read
    part = derived(server, tmp_path, range(1, 5))
    with pytest.raises(odf.GuardError) as refused:
        dataset.ingest_frame(part.table)
    assert refused.value.exit_code == 3
    assert operations(dataset.ingest_frame(part.table, allow_retract=True)) == {"-R": 6}
    # 48: the lock of an earlier block, and what has changed since
    old = dataset.at(block).dataset.lock()
    assert old.table.equals(first.table, check_metadata=True)
    old.write(tmp_path / "old.parquet")
    read = odf.AssetLock.read(tmp_path / "old.parquet")
    assert read.table.schema.equals(SCHEMA, check_metadata=True), "T22: one schema, metadata included"
    found = {each.row.item_id: each.status.value for each in read.check(stores=STORES)}
    assert {name for name, status in found.items() if status != "same"} == {"s03"}
    assert found["s03"] == "changed"
