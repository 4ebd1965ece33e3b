"""Another query takes the place of one that remembers something: nothing is dropped without a word."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.audit.blame import Blame
from odfchain.errors import EngineError, TransformError
from odfchain.odf.events import ExecuteTransform, SetTransform
from odfchain.odf.manifests import read_snapshots
from odfchain.transform.validate import StateChange
from tests.kit.support import Notes, Run, check_replay, derivative, ingest_rows, manifest, net, unchanged

EXAMPLES = {"ci": 1, "local": 6, "soak": 40, "deep": 200}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
SCHEMA = '["event_time TIMESTAMP", "k STRING", "v BIGINT"]'
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

HOURLY = "SELECT window(event_time, '1 hour').start AS event_time, k, sum(v) AS n FROM rows GROUP BY 1, k"
TWO_HOURS = HOURLY.replace("1 hour", "2 hours")
TOTAL = "SELECT max(event_time) AS event_time, k, sum(v) AS n FROM rows GROUP BY k"
COUNT = "SELECT max(event_time) AS event_time, k, count(*) AS n FROM rows GROUP BY k"
PLAIN = "SELECT event_time, k, v AS n FROM rows"
LARGE = "SELECT event_time, k, v AS n FROM rows WHERE v > 3"
COLUMNS = ("event_time", "k", "n")
QUERIES = (HOURLY, TWO_HOURS, TOTAL, COUNT, PLAIN, LARGE)

Row = tuple[int, str, int]
"""Minute, key, value."""


@pytest.fixture
def rows(workspace: Workspace) -> Dataset:
    (dataset,) = workspace.add(manifest(schema=SCHEMA, name="rows"))
    return dataset


def add(dataset: Dataset, *rows: Row) -> None:
    lines = [f"{(START + dt.timedelta(minutes=m)).isoformat()},{k},{v}" for m, k, v in rows]
    ingest_rows(dataset, "event_time,k,v", lines)


def derived(query: str, name: str = "derived") -> str:
    return derivative(query, name=name, inputs="[{datasetRef: rows}]")


def change(workspace: Workspace, query: str, state: StateChange | None) -> tuple[list[str], list[str]]:
    """(kinds of the events that were recorded, what was said)."""
    notes, (snapshot,) = Notes(), read_snapshots(derived(query))
    _, events = workspace.update(snapshot, state=state, check=False, progress=notes)
    return [event.KIND for event in events], notes.texts


def events_of(dataset: Dataset, kind: type[Any]) -> list[Any]:
    """Newest first."""
    return [b.block.event for b in dataset._files.chain.walk() if isinstance(b.block.event, kind)]


def anew(workspace: Workspace, query: str, name: str) -> Counter[str]:
    (dataset,) = workspace.add(derived(query, name), check=False)
    dataset.pull()
    return net(dataset, *COLUMNS)


def totals(workspace: Workspace, rows: Dataset) -> Dataset:
    (dataset,) = workspace.add(derived(TOTAL), check=False)
    add(rows, (0, "a", 1), (10, "b", 5), (20, "a", 7))
    dataset.pull()
    return dataset


def stream(seed: int) -> list[list[Row]]:
    """Several releases of rows that are mostly in order."""
    found, minute, made = random.Random(seed), 0, []
    for _ in range(found.randint(3, 4)):
        rows = []
        for _ in range(found.randint(1, 6)):
            minute += found.randint(0, 50)
            time = max(0, minute - found.choice((0, 0, 0, 5)))
            rows.append((time, found.choice("ab"), found.randint(1, 6)))
        made.append(rows)
    return made


@pytest.mark.hypothesis  # a property, though not by that library: `make soak` runs it longer
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_rebuild_makes_the_output_what_the_query_says(
    workspace: Workspace, rows: Dataset, seed: int
) -> None:
    chosen = random.Random(f"queries {seed}")
    old, new = ((HOURLY, TOTAL), (TOTAL, TWO_HOURS))[seed] if seed < 2 else chosen.sample(QUERIES, 2)
    (dataset,) = workspace.add(derived(old), check=False)
    *first, last = stream(seed)
    for release in first:
        add(rows, *release)
        if chosen.random() < 0.7:
            dataset.pull()
    dataset.pull()
    before = dataset.scan().to_arrow()
    assert change(workspace, new, StateChange.REBUILD)[0] == ["SetTransform"]
    if chosen.random() < 0.5:
        add(rows, *last)
        last = []
    dataset.pull()
    assert net(dataset, *COLUMNS) == anew(workspace, new, "fresh")
    assert dataset.scan().to_arrow().slice(0, len(before)).equals(before), "nothing recorded is written anew"
    assert dataset.pull().blocks == 0
    fresh = workspace["fresh"]
    add(rows, *last, (10_000, "a", 5), (10_001, "b", 2))
    dataset.pull()
    fresh.pull()
    assert net(dataset, *COLUMNS) == net(fresh, *COLUMNS), "what is remembered is that of the new query"
    check_replay(dataset)


def test_from_now(workspace: Workspace, rows: Dataset) -> None:
    """The old query finishes what its watermark allows; what is given up is counted."""
    (dataset,) = workspace.add(derived(HOURLY), check=False)
    add(rows, (0, "a", 1), (70, "a", 2))
    dataset.pull()
    add(rows, (90, "a", 4), (130, "b", 3), (140, "b", 3))
    kinds, notes = change(workspace, COUNT, StateChange.FROM_NOW)
    assert kinds == ["SetTransform"]
    assert "what the old query remembers is given up: 2 rows; its result so far stays" in notes
    number = dataset.summary.head_block.sequence_number
    assert notes[-1] == f"the new query counts from block {number} on; what was recorded before stays"
    assert [(r["k"], r["n"]) for r in dataset.scan().to_arrow().to_pylist()] == [("a", 1), ("a", 6)]
    add(rows, (150, "c", 1), (500, "z", 1))
    dataset.pull()
    assert ("c", 1) in [(r["k"], r["n"]) for r in dataset.scan().to_arrow().to_pylist()]
    check_replay(dataset)


def test_what_remembers_nothing_is_changed_as_before(workspace: Workspace, rows: Dataset) -> None:
    (dataset,) = workspace.add(derived(PLAIN), check=False)
    assert change(workspace, HOURLY, None) == (["SetTransform"], []), "nothing was executed so far"
    assert change(workspace, PLAIN, StateChange.REBUILD)[1] == [
        "nothing was computed so far, so there is nothing to compute anew"
    ]
    add(rows, (0, "a", 1), (10, "b", 5))
    dataset.pull()
    kinds, notes = change(workspace, LARGE, None)
    number = dataset.summary.head_block.sequence_number
    assert kinds == ["SetTransform"]
    assert notes == [f"the new query counts from block {number} on; what was recorded before stays"]
    assert change(workspace, LARGE, None) == ([], [])
    assert change(workspace, LARGE, StateChange.REBUILD)[0] == ["SetTransform"], "also of the same query"
    dataset.pull()
    assert [(r["op"], r["n"]) for r in dataset.scan().to_arrow().to_pylist()] == [(0, 1), (0, 5), (1, 1)]
    check_replay(dataset)


def test_a_rebuild_that_was_interrupted(workspace: Workspace, rows: Dataset) -> None:
    """The chain asks for it until it is done, also when the query changes once more in between."""
    dataset = totals(workspace, rows)
    change(workspace, COUNT, StateChange.REBUILD)
    killed = mock.patch("odfchain.transform.execute.write_difference", side_effect=EngineError("killed"))
    with killed, unchanged(dataset.path), pytest.raises(EngineError, match="killed"):
        dataset.pull()
    kinds, notes = change(workspace, TWO_HOURS, None)
    assert kinds == ["SetTransform"]
    assert notes[0] == "the rebuild that was asked for is still to come, and is now one by this query"
    dataset.pull()
    assert net(dataset, *COLUMNS) == anew(workspace, TWO_HOURS, "fresh")
    assert dataset.pull().blocks == 0
    check_replay(dataset)
    executed = events_of(dataset, ExecuteTransform)
    newest, oldest = executed[0], executed[-1]
    assert newest.query_inputs[0].prev_offset == oldest.query_inputs[0].new_offset, "intervals continue"


@pytest.mark.parametrize("query", [PLAIN, TOTAL, HOURLY])
def test_a_rebuild_that_changes_nothing_is_done_once(workspace: Workspace, rows: Dataset, query: str) -> None:
    """Also when it leaves the checkpoint as it was; the query goes on, with what it remembers."""
    (dataset,) = workspace.add(derived(query), check=False)
    add(rows, (0, "a", 1), (10, "b", 5), (70, "a", 7))
    dataset.pull()
    records = dataset.summary.record_count
    change(workspace, query, StateChange.REBUILD)
    assert dataset.pull().blocks == 1
    assert dataset.summary.record_count == records
    assert dataset.pull().blocks == 0, "once"
    assert change(workspace, query, None) == ([], [])
    if query != PLAIN:
        with pytest.raises(TransformError, match="the query changes, and the one in force remembers"):
            change(workspace, COUNT, None)
    add(rows, (80, "a", 1), (500, "b", 2))
    dataset.pull()
    assert net(dataset, *COLUMNS) == anew(workspace, query, "fresh")
    check_replay(dataset)


def test_a_rebuild_that_is_given_up(workspace: Workspace, rows: Dataset) -> None:
    """What is remembered is that of the query executed last: kept for the same one, counted for another."""
    dataset = totals(workspace, rows)
    change(workspace, COUNT, StateChange.REBUILD)
    notes = change(workspace, TOTAL, StateChange.FROM_NOW)[1]
    assert not any("remembers" in note for note in notes), "it goes on"
    with pytest.raises(TransformError, match="the one in force remembers 3 rows"):
        change(workspace, COUNT, None)
    add(rows, (30, "b", 1))
    dataset.pull()
    assert net(dataset, *COLUMNS) == anew(workspace, TOTAL, "fresh")
    change(workspace, COUNT, StateChange.REBUILD)
    notes = change(workspace, TWO_HOURS, StateChange.FROM_NOW)[1]
    assert "what the old query remembers is given up: 4 rows; its result so far stays" in notes
    assert change(workspace, HOURLY, None)[0] == ["SetTransform"], "nothing is left to be given up"
    check_replay(dataset)


def test_the_mark_is_in_the_chain_and_in_no_manifest(workspace: Workspace, rows: Dataset) -> None:
    """A replay goes by it: the records are not what the query gives for the blocks that are new."""
    dataset = totals(workspace, rows)
    change(workspace, COUNT, StateChange.REBUILD)
    dataset.pull()
    (marked, _) = events_of(dataset, SetTransform)
    assert str(marked.transform.version).endswith("+rebuild")
    assert change(workspace, COUNT, None) == ([], [])
    last = Blame.of(workspace._files, dataset._files, dataset.summary.record_count - 1)
    assert last.transactions[0].reads[0].offsets == (0, 2), "its lineage is everything"
    add(rows, (30, "a", 1))
    dataset.pull()
    assert net(dataset, *COLUMNS) == anew(workspace, COUNT, "fresh"), (
        "the steps that follow are ordinary ones"
    )


def test_the_command_line(
    workspace: Workspace, rows: Dataset, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.path)
    dataset = totals(workspace, rows)
    path = tmp_path / "changed.yaml"
    path.write_text(derived(COUNT))
    for options, said in (
        (["--rebuild"], "--rebuild says how a query is changed: add --update"),
        (["--from-now"], "--from-now says how a query is changed: add --update"),
        (["--update", "--rebuild", "--from-now"], "--rebuild and --from-now exclude each other"),
    ):
        refused = run_cli("add", path, "--no-check", *options)
        assert refused.code == 2
        assert said in refused.err
    with unchanged(dataset.path):
        refused = run_cli("add", path, "--update", "--no-check")
    assert refused.code == 3
    for said in (
        "changed.yaml", "the query changes, and the one in force remembers 3 rows",
        "--rebuild computes the new query over everything", "--from-now",
    ):  # fmt: skip
        assert said in refused.err
    done = run_cli("add", path, "--update", "--no-check", "--rebuild")
    assert done.code == 0, done.err
    assert "updated derived (SetTransform)" in done.err
    assert "the next pull computes the query over everything" in done.err
