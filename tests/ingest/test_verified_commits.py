"""No commit records what `verify` refuses: random inputs of every strategy are verified, or refused (RFC-052)."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odfchain.api import Dataset, Workspace
from odfchain.errors import BadInputError, IngestError, OdfchainError
from odfchain.model.enums import TAKES_BACK
from odfchain.spark.session import SparkEngine
from tests.kit.support import limit_slices, manifest, unchanged

CHANGELOG = "{kind: ChangelogStream, primaryKey: [k]}"
MERGES = {
    "append": "{kind: Append}",
    "ledger": "{kind: Ledger, primaryKey: [k]}",
    "snapshot": "{kind: Snapshot, primaryKey: [k]}",
    "compared": "{kind: Snapshot, primaryKey: [k, s], compareColumns: [v]}",
    "upsert": "{kind: UpsertStream, primaryKey: [k]}",
    "changelog": CHANGELOG,
    "of two columns": "{kind: ChangelogStream, primaryKey: [k, s]}",
}
TIMES = [None, None, "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", "1969-12-31T23:59:59.999Z"]
FLOATS = [None, "NaN", "-0.0", "0.0", "1.5"]
EXAMPLES = {"ci": 6, "local": 20, "soak": 200, "deep": 2_000}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
OPTIONS: dict[str, Any] = {"allow_retract": True, "allow_empty": True}


def drawn(draw: random.Random, *, operations: bool, times: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"op": draw.choice([0, 0, 0, 1, 1, 2, 3, None])} if operations else {}
    row |= {"k": draw.choice(FLOATS), "s": draw.choice([None, "", "a"]), "v": draw.choice(FLOATS)}
    row["l"] = draw.choice([None, [], ["-0.0"], ["0.0"], ["NaN", None]])
    return row | ({"event_time": draw.choice(TIMES)} if times else {})


def releases(draw: random.Random, *, operations: bool, times: bool) -> Iterator[list[dict[str, Any]]]:
    """Inputs of rows, of which many come again; a changelog mostly takes back what it has said."""
    said: list[dict[str, Any]] = []
    for _ in range(draw.randrange(2, 5)):
        rows: list[dict[str, Any]] = []
        for _ in range(draw.randrange(7)):
            row = drawn(draw, operations=operations, times=times)
            if said and draw.random() < 0.6:
                row = draw.choice(said) | ({"op": draw.choice([0, 1, 1])} if operations else {})
                if times and draw.random() < 0.3:
                    row["event_time"] = None
            rows.append(row)
            if row.get("op") == 2 and draw.random() < 0.8:
                rows.append(row | {"op": 3, "v": draw.choice(FLOATS)})
        said += [row for row in rows if row.get("op", 0) in (0, 3)]
        yield rows


@pytest.mark.parametrize("kind", MERGES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_what_is_recorded_is_verified(
    engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    draw = random.Random(f"{kind} {seed}")
    operations, times = kind in ("upsert", "changelog", "of two columns"), draw.random() < 0.7
    columns = [*(["op INT"] if operations else []), "k DOUBLE", "s STRING", "v FLOAT", "l ARRAY<DOUBLE>"]
    columns += ["event_time TIMESTAMP"] if times else []
    folder = tmp_path_factory.mktemp("verified")
    workspace = Workspace.init(folder / "workspace")
    workspace._engines.spark = engine
    if draw.random() < 0.2:
        limit_slices(workspace, 60)
    (dataset,) = workspace.add(manifest(MERGES[kind], json.dumps(columns), kind="NdJson"))
    path = folder / "in.ndjson"
    for rows in releases(draw, operations=operations, times=times):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        before = dataset.head
        try:
            dataset.ingest([path], **OPTIONS)
        except OdfchainError as error:
            assert isinstance(error, IngestError), error
            assert "in.ndjson" in str(error)
            assert dataset.head == before, "nothing of it is recorded"
    report = dataset.verify()
    assert report.ok, (report.faults, MERGES[kind])
    shutil.rmtree(folder)
