"""What is committed was checked before: against the rules of a dataset, and so that verify finds no fault in it."""

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

from odfchain.api.dataset import Dataset
from odfchain.api.settings import Configuration
from odfchain.api.workspace import Workspace
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.errors import BadInputError, IngestError, OdfchainError
from odfchain.spark.session import SparkEngine
from tests.kit.foreign_key_cases import manifest as keyed_manifest
from tests.kit.polled_sources import LEDGER, file_url, polled, touch
from tests.kit.pushed_files import push, put
from tests.kit.support import Notes, Result, Run, derivative, limit_slices, manifest, unchanged

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
EXAMPLES = {"ci": 2, "local": 20, "soak": 40, "deep": 400}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]


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


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def stream(workspace: Workspace, *, times: bool) -> Dataset:
    columns = ["op INT", "k DOUBLE", "v DOUBLE", *(["event_time TIMESTAMP"] if times else [])]
    (dataset,) = workspace.add(manifest(CHANGELOG, json.dumps(columns), kind="NdJson"))
    return dataset


def record(dataset: Dataset, *rows: tuple[Any, ...], at: str) -> None:
    """Rows are (operation, key, value, event time)."""
    named = [dict(zip(("op", "k", "v", "event_time"), row, strict=False)) for row in rows]
    push(dataset, lines(named), "in.ndjson", system_time=at)


def recorded(dataset: Dataset) -> list[tuple[Any, ...]]:
    rows = dataset.scan(["op", "k", "v", "event_time"]).to_arrow().to_pylist()
    return [(row["op"], row["k"], row["v"], str(row["event_time"])[:10]) for row in rows]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((1, 2.0, 1.0, "2020-01-01T00:00:00Z"), id="a key that was never there"),
        pytest.param((1, 1.0, 9.0, "2020-01-01T00:00:00Z"), id="another value", marks=pytest.mark.soak),
        pytest.param((1, 1.0, 1.0, "2020-01-02T00:00:00Z"), id="another event time", marks=pytest.mark.soak),
        pytest.param((1, 1.0, 9.0), id="another value, of no event time"),
        pytest.param((2, 1.0, 9.0), id="a correction of another value", marks=pytest.mark.soak),
    ],
)
def test_what_was_never_there_is_not_taken_back(workspace: Workspace, row: tuple[Any, ...]) -> None:
    dataset = stream(workspace, times=True)
    record(dataset, (0, 1.0, 1.0, "2020-01-01T00:00:00Z"), at="2030-01-01T00:00:00Z")
    after = [(3, row[1], 2.0)] if row[0] == 2 else []
    with unchanged(dataset.path), pytest.raises(BadInputError) as caught:
        record(dataset, (0, 0.5, 0.5), row, *after, at="2030-01-02T00:00:00Z")
    said = "takes back (-R, 1, or -C, 2) values that no row in force has"
    assert str(caught.value) == f"{workspace.path.parent}/in.ndjson: row 2: {said}"
    assert "the event time that were recorded" in str(caught.value.hint)
    assert dataset.verify().ok


def test_nothing_is_taken_back_twice(workspace: Workspace) -> None:
    dataset = stream(workspace, times=False)
    record(dataset, (0, 1.0, 1.0), (1, 1.0, 1.0), at="2030-01-01T00:00:00Z")
    for rows in ([(1, 1.0, 1.0)], [(0, 1.0, 1.0), (1, 1.0, 1.0), (1, 1.0, 1.0)]):
        with unchanged(dataset.path), pytest.raises(BadInputError, match=f"row {len(rows)}: takes back"):
            record(dataset, *rows, at="2030-01-02T00:00:00Z")
    assert dataset.verify().ok


@pytest.mark.parametrize("times", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_what_takes_back_without_an_event_time_means_that_of_the_row(
    workspace: Workspace, times: bool
) -> None:
    """Whether it was recorded before or comes in the same input; what is added has the time of the source."""
    dataset = stream(workspace, times=times)
    record(dataset, (0, 1.0, 1.0), (0, 2.0, -0.0), (0, 3.0, 3.0), at="2030-01-01T00:00:00Z")
    rows = [(1, 1.0, 1.0), (0, 1.0, 2.0), (2, 2.0, 0.0), (3, 2.0, 4.0), (1, 2.0, 4.0), (0, 3.0, 5.0)]
    record(dataset, *rows, at="2030-01-02T00:00:00Z")
    record(dataset, (1, 1.0, 2.0), (2, 3.0, 3.0), (3, 3.0, "NaN"), at="2030-01-03T00:00:00Z")
    first, second, third = ("2030-01-01", "2030-01-02", "2030-01-03")
    expected = [
        (0, 1.0, 1.0, first), (0, 2.0, 0.0, first), (0, 3.0, 3.0, first),
        (1, 1.0, 1.0, first), (0, 1.0, 2.0, second), (2, 2.0, 0.0, first), (3, 2.0, 4.0, second),
        (1, 2.0, 4.0, second), (0, 3.0, 5.0, second),
        (1, 1.0, 2.0, second), (2, 3.0, 3.0, first), (3, 3.0, math.nan, third),
    ]  # fmt: skip
    assert repr(recorded(dataset)).replace("-0.0", "0.0") == repr(expected)
    assert dataset.verify().ok


@pytest.mark.parametrize(
    "kind", [k if k in ("snapshot", "changelog") else pytest.param(k, marks=pytest.mark.soak) for k in MERGES]
)
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
    for rows in releases(draw, operations=operations, times=times):
        before = dataset.head
        try:
            push(dataset, lines(rows), "in.ndjson", allow_retract=True, allow_empty=True)
        except OdfchainError as error:
            assert isinstance(error, IngestError), error
            assert "in.ndjson" in str(error)
            assert dataset.head == before, "nothing of it is recorded"
    report = dataset.verify()
    assert report.ok, (report.faults, MERGES[kind])
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["ledger", "snapshot", "upsert"])
def test_a_value_that_is_written_otherwise_is_no_news(workspace: Workspace, kind: str) -> None:
    """Keys and values of floats, at any depth: there is one zero and one NaN (RFC-009)."""
    columns = ["k DOUBLE", "s FLOAT", "v STRUCT<x: DOUBLE, y: ARRAY<FLOAT>>"]
    merge = MERGES[kind].replace("[k]", "[k, s]")
    (dataset,) = workspace.add(manifest(merge, json.dumps(columns), kind="NdJson"))
    for zero, blocks in (("0.0", 2), ("-0.0", 0), ("0.0", 0)):
        value = {"x": zero, "y": [zero, "NaN"]}
        rows = [{"k": k, "s": s, "v": value} for k in (zero, "NaN") for s in (zero, "NaN")]
        assert push(dataset, lines(rows), "in.ndjson").blocks == blocks
    assert dataset.verify().ok


# --- Drift of what Spark writes: slices are profiled before they are committed, and the profile is written after ---


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


def test_ingestion_is_held_to_the_policy(guarded: Workspace, run_cli: Run, tmp_path: Path) -> None:
    (dataset,) = guarded.add(manifest())

    def ingest(text: str, *more: object) -> Result:
        return run_cli("-w", guarded.path, "ingest", "cities", put(tmp_path, text), *more)

    assert ingest(FEW).code == 0
    before = dataset.head
    refused = ingest(MANY)
    assert (refused.code, dataset.head) == (3, before)
    assert (
        "error: cities: 2 limits are exceeded, nothing was committed: population ks 0.769999" in refused.err
    )
    assert "hint: if this is intended, run again with --allow-drift" in refused.err
    assert ingest(MANY, "--allow-drift").code == 0
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
    for dataset in (cities, derived):
        before = dataset.head
        with pytest.raises(IngestError, match="population ks"):
            dataset.pull()
        assert dataset.head == before
        assert dataset.pull(allow_drift=True).blocks
        document = json.loads(dataset.published_document(dataset.published(SnapshotKind.PROFILE)[0]))
        assert (document["snapshot_id"], document["num_rows"]) == (str(dataset.head), 40)


# --- Foreign keys of what Spark writes: slices are read back before they are committed -------------


TO_PARENT = "foreignKeys: [{columns: [p], references: {dataset: parent}}]"


def test_ingestion_is_checked_and_says_what_is_missing(
    workspace: Workspace, run_cli: Run, tmp_path: Path
) -> None:
    workspace.add(keyed_manifest("parent", {"key": ["p"]}), check=False)
    workspace.add(keyed_manifest("child", {"key": ["c"], "constraints": TO_PARENT}), check=False)
    listed = tmp_path / "broken.ndjson"

    def ingest(dataset: str, text: str, *more: object) -> Result:
        return run_cli("-w", workspace.path, "ingest", dataset, put(tmp_path, text), *more)

    assert ingest("parent", "p\np1\np2\n").code == 0
    before = workspace["child"].head
    refused = ingest("child", "c,p\nc1,p1\nc2,p9\nc3,\n", "--violations", listed)
    assert (refused.code, workspace["child"].head) == (3, before)
    assert "error: 1 row of child refers by p to what parent does not have as p" in refused.err
    assert '  p = p9, in {"c": "c2"}\n' in refused.err
    assert "hint: record them in parent first" in refused.err
    (line,) = map(json.loads, listed.read_text().splitlines())
    assert (line["value"], line["columns"]) == ("p9", '["p"]')
    assert ingest("child", "c,p\nc1,p1\n").code == 0
    gone = ingest("parent", "op,p\n1,p1\n")
    assert (gone.code, "of child first" in gone.err) == (3, True)
    assert workspace["child"].verify().state(18) == "passed"


@pytest.mark.soak
def test_derivatives_report_and_commit(workspace: Workspace, tmp_path: Path) -> None:
    workspace.add(keyed_manifest("parent", {"key": ["p"]}), check=False)
    query = "SELECT event_time, p || '!' AS p FROM parent"
    more = f"""    - kind: SetAttachments
      attachments: {{kind: Embedded, items: [{{path: CONSTRAINTS.yaml, content: "{TO_PARENT}"}}]}}
"""
    made = derivative(query, name="shouted", inputs="[{datasetRef: parent}]", more=more)
    workspace.add(made, check=False)
    push(workspace["parent"], "p\np1\np2\n")
    notes, path = Notes(), tmp_path / "broken.csv"
    outcome = workspace["shouted"].pull(progress=notes, violations=path)
    assert outcome.blocks
    assert any("2 rows of shouted refer by p" in note and "reported only" in note for note in notes.texts), (
        notes.texts
    )
    assert len(path.read_text().splitlines()) == 3
    report = workspace["shouted"].verify()
    assert (report.faults, any("2 rows of shouted" in note for note in report.notes)) == ([], True)
