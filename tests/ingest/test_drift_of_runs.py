"""Drift of what Spark writes: slices are profiled before they are committed, and the profile is written after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.settings import Configuration
from odfchain.api.workspace import Workspace
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.errors import IngestError
from tests.kit.polled_sources import LEDGER, file_url, polled, touch
from tests.kit.support import Result, derivative, manifest

POLICY = "kind: DriftPolicy\nversion: 1\ncontent: {minRows: 3, rows: {max: null}}\n"
FEW = "city,population\n" + "".join(f"A{n},{n}\n" for n in range(10))
MANY = "city,population\n" + "".join(f"B{n},{n + 1000}\n" for n in range(30))


@pytest.fixture
def guarded(workspace: Workspace) -> Workspace:
    (workspace.path.parent / "drift.yaml").write_text(POLICY)
    settings = Configuration(workspace.path)
    settings.set("snapshots.guard", ["drift.yaml"])
    settings.set("snapshots.profile", ["commit"])
    return workspace


def test_ingestion_is_held_to_the_policy(
    guarded: Workspace, run_cli: Callable[..., Result], tmp_path: Path
) -> None:
    (dataset,) = guarded.add(manifest())
    files = {"few": FEW, "many": MANY}
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)

    def ingest(file: str, *more: object) -> Result:
        return run_cli("-w", guarded.path, "ingest", "cities", tmp_path / f"{file}.csv", *more)

    assert ingest("few").code == 0
    before = dataset.head
    refused = ingest("many")
    assert (refused.code, dataset.head) == (3, before)
    assert (
        "error: cities: 2 limits are exceeded, nothing was committed: population ks 0.769999" in refused.err
    )
    assert "hint: if this is intended, run again with --allow-drift" in refused.err
    assert ingest("many", "--allow-drift").code == 0
    newest, oldest = dataset.published(SnapshotKind.PROFILE)
    assert (str(newest.block), str(oldest.block)) == (str(dataset.head), str(before))
    assert dataset.published_document(newest) == dataset.profile().content
    report = dataset.verify(profiles=True)
    assert (report.faults, report.state(21)) == ([], "passed")


@pytest.mark.soak
def test_pulls_are_held_to_the_policy(guarded: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "cities.csv"
    touch(source, FEW, 1_000)
    cities = polled(guarded, file_url(source), merge=LEDGER)
    guarded.add(derivative("SELECT event_time, city, population FROM cities"))
    derived = guarded["derived"]
    assert cities.pull().blocks
    assert derived.pull().blocks
    touch(source, FEW + MANY.split("\n", 1)[1], 2_000)
    for dataset, options in ((cities, {}), (derived, {})):
        before = dataset.head
        with pytest.raises(IngestError, match="population ks"):
            dataset.pull(**options)
        assert dataset.head == before
        assert dataset.pull(allow_drift=True).blocks
        document = json.loads(dataset.published_document(dataset.published(SnapshotKind.PROFILE)[0]))
        assert (document["snapshot_id"], document["num_rows"]) == (str(dataset.head), 40)
