"""Ledgers whose sources change what they said (RFC-009)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from odfchain.workspace.config import LateEdits
from tests.kit.support import Result, copied, manifest, unchanged

FIRST = "event_time,city,population\n2020-01-01,A,1\n2020-01-02,B,2\n2020-01-03,C,\n"
SECOND = "event_time,city,population\n2020-01-04,D,4\n2020-01-02,B,20\n2020-01-01,A,1\n2020-01-03,C,3\n"


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    workspace = new_workspace()
    folder = workspace.path.parent
    schema = '["event_time TIMESTAMP", "city STRING", "population BIGINT"]'
    (dataset,) = workspace.add(manifest("{kind: Ledger, primaryKey: [city]}", schema))
    (folder / "first.csv").write_text(FIRST)
    dataset.ingest([folder / "first.csv"])
    return workspace


@pytest.fixture
def ledger(made: Workspace, workspace: Workspace, tmp_path: Path) -> Dataset:
    (tmp_path / "second.csv").write_text(SECOND)
    return copied(made, workspace)["cities"]


def added(dataset: Dataset, edits: LateEdits, path: Path) -> list[tuple[int, str, int | None]]:
    """Rows that an input adds: operation, city, population."""
    dataset.ingest([path], late_edits=edits)
    return [
        tuple(row.values()) for row in dataset.scan(["op", "city", "population"]).to_arrow().to_pylist()[3:]
    ]


def test_they_are_ignored_unless_asked_for(ledger: Dataset, tmp_path: Path) -> None:
    assert added(ledger, LateEdits.IGNORE, tmp_path / "second.csv") == [(0, "D", 4)]


def test_they_are_recorded_as_corrections(ledger: Dataset, tmp_path: Path) -> None:
    corrected = [(2, "B", 2), (3, "B", 20), (2, "C", None), (3, "C", 3), (0, "D", 4)]
    assert added(ledger, LateEdits.CORRECT, tmp_path / "second.csv") == corrected
    assert added(ledger, LateEdits.CORRECT, tmp_path / "second.csv") == corrected, "and only once"
    (tmp_path / "back.csv").write_text("event_time,city,population\n2020-01-02,B,2\n")
    assert added(ledger, LateEdits.CORRECT, tmp_path / "back.csv")[5:] == [(2, "B", 20), (3, "B", 2)]
    assert ledger.verify().ok


def test_the_first_one_stops_the_run(ledger: Dataset, tmp_path: Path) -> None:
    said = r"second.csv: row 2: key \(city='B'\) is recorded with another population: 2, not 20"
    with unchanged(ledger.path), pytest.raises(BadInputError, match=said):
        added(ledger, LateEdits.REFUSE, tmp_path / "second.csv")
    (tmp_path / "timeless.csv").write_text("event_time,city,population\n,B,20\n")
    said = r"timeless.csv: row 1: key \(city='B'\) is recorded with another population: 2, not 20"
    with unchanged(ledger.path), pytest.raises(BadInputError, match=said):
        added(ledger, LateEdits.REFUSE, tmp_path / "timeless.csv")
    (tmp_path / "fine.csv").write_text("event_time,city,population\n2020-01-01,A,1\n,C,\n2020-01-05,E,5\n")
    assert added(ledger, LateEdits.REFUSE, tmp_path / "fine.csv") == [(0, "E", 5)]


def test_they_are_told(ledger: Dataset, tmp_path: Path, run_cli: Callable[..., Result]) -> None:
    home = ledger.path.parent.parent.parent
    run = ("-w", home, "ingest", "cities", tmp_path / "second.csv", "--late-edits", "warn")
    done = run_cli(*run)
    assert "second.csv: 2 rows have a recorded key and other values; they were ignored" in done.err
    assert len(ledger.scan(["op"]).to_arrow()) == 4


def test_the_workspace_says_what_is_done(
    ledger: Dataset, tmp_path: Path, run_cli: Callable[..., Result]
) -> None:
    home = ledger.path.parent.parent
    (home / "config.yaml").write_text(
        "kind: WorkspaceConfig\nversion: 1\ncontent: {ingest: {lateEdits: refuse}}\n"
    )
    assert run_cli("-w", home.parent, "ingest", "cities", tmp_path / "second.csv").code == 3
    told = run_cli("-w", home.parent, "ingest", "cities", tmp_path / "second.csv", "--late-edits", "ignore")
    assert told.code == 0
