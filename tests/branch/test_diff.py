"""Diffs of points: against brute force on random histories, and what they say where somebody lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.branches.diff import Change
from odfchain.branches.row_diff import key_text
from odfchain.errors import ChainError, SchemaError
from odfchain.odf.events import AddPushSource
from odfchain.odf.sources import MergeStrategyLedger, ReadStepCsv
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.airport_branches import AIRPORTS, GENEVA, airports
from tests.kit.branch_histories import between, head_of, random_histories
from tests.kit.branch_rows import COLUMNS, add, branch, give_columns, keyed, record
from tests.kit.opened_files import opened_files


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[DatasetFiles]:
    with odf.init(tmp_path / "workspace") as workspace:
        yield keyed(workspace)


@pytest.mark.parametrize("seed", range(5))
def test_a_diff_is_what_brute_force_finds_and_leads_from_state_to_state(tmp_path: Path, seed: int) -> None:
    random_histories(tmp_path, seed, 4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_a_diff_is_what_brute_force_finds_on_many_histories(tmp_path: Path, seed: int) -> None:
    random_histories(tmp_path, seed, 30)


# --- what is read, and what is said ----------------------------------------------------------------------


def test_what_one_side_did_and_what_both_did(tmp_path: Path) -> None:
    """The example of two branches that both changed ZRH."""
    with odf.init(tmp_path / "workspace") as workspace:
        head, fix = airports(workspace, ("+A", 1, "LUG", "Lugano", 900))
        fork = head_of(head)
        elevation = ("-C", 1, "ZRH", "Zurich", 1416), ("+C", 1, "ZRH", "Zurich", 1417)
        record(head, [*elevation, *GENEVA], AIRPORTS)
        with opened_files(head.folder / "data") as opened:
            found = between(head, head_of(head), head_of(fix))
        later = [s.slice.physical_hash for s in DatasetState.read(head.chain).slices()[-1:]]
        later += [s.slice.physical_hash for s in DatasetState.read(fix.chain).slices()[-1:]]
        one = between(head, fork, head_of(fix))
    assert set(opened) == set(map(str, later)), "a slice at or before the fork was opened"
    assert [(row["iata"], row["change"], row["columns"]) for row in found.changes.to_pylist()] == [
        ("GVA", "changed", ["name"]), ("XXA", "removed", []), ("ZRH", "changed", ["name", "elevation"]),
    ]  # fmt: skip
    assert found.counts == {Change.INSERTED: 0, Change.CHANGED: 2, Change.REMOVED: 1}
    assert found.changed_columns == {"name": 2, "elevation": 1}
    assert found.fork == fork
    assert [(row["iata"], row["columns"]) for row in one.changes.to_pylist()] == [
        ("XXA", []),
        ("ZRH", ["name"]),
    ]


def test_two_bases_of_one_key_are_a_fault(dataset: DatasetFiles) -> None:
    record(dataset, [("+A", 1, "1", "x", "y")])
    fix = branch(dataset, "fix")
    record(fix, [("-C", 1, "1", "lie", "y"), ("+C", 1, "1", "x", "z")])
    record(dataset, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "q", "y")])
    with pytest.raises(ChainError, match="k=1") as caught:
        between(dataset, head_of(dataset), head_of(fix))
    assert caught.value.exit_code == 6
    # who does not believe what they say looks it up
    found = between(dataset, head_of(dataset), head_of(fix), trusted=False)
    assert found.changes["columns"].to_pylist() == [["a", "b"]]


def test_keys_are_named_as_history_takes_them() -> None:
    rows = pa.table({
        "k": ["a\x1bb", "x" * 100], "day": pa.array([None, 1], pa.date32()), "n": pa.array([2**60, 1]),
    })  # fmt: skip
    assert key_text(rows) == rf"k=a\x1bb, day=null, n={2**60}"
    assert key_text(rows, 1) == f"k={'x' * 59}…, day=1970-01-02, n=1"


def test_a_new_column_is_null_on_the_other_side(dataset: DatasetFiles) -> None:
    record(dataset, [("+A", 1, "1", "x", "y"), ("+A", 1, "2", "x", "y")])
    fix = branch(dataset, "fix")
    more = (*COLUMNS, pa.field("c", pa.int64()))
    give_columns(fix, more)
    record(fix, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "x", "y", 5)], more)
    (row,) = between(dataset, head_of(dataset), head_of(fix)).changes.to_pylist()
    assert (row["columns"], row["from"]["c"], row["to"]["c"]) == (["c"], None, 5)


def test_other_primary_keys_are_refused(dataset: DatasetFiles) -> None:
    record(dataset, [("+A", 1, "1", "x", "y")])
    fix = branch(dataset, "fix")
    ledger = MergeStrategyLedger(primary_key=("k", "a"))
    add(fix, AddPushSource(source_name="default", read=ReadStepCsv(), merge=ledger))
    with pytest.raises(SchemaError, match="different primary keys: k and k, a"):
        between(dataset, head_of(dataset), head_of(fix))
