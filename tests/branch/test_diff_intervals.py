"""What a chain did after a block: its slices and their rows, and that nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.branches.intervals import Interval, MergedColumns, read_rows
from odfchain.branches.row_diff import net_of
from odfchain.errors import ObjectCorruptedError, SchemaError
from odfchain.odf.events import SetVocab
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.branch_rows import COLUMNS, add, branch, give_columns, keyed, record


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path / "workspace") as workspace:
        yield workspace


@pytest.fixture
def dataset(ws: odf.Workspace) -> DatasetFiles:
    return keyed(ws)


def view(*heads: DatasetFiles) -> MergedColumns:
    return MergedColumns.of(*(DatasetState.read(head.chain) for head in heads))


def test_system_columns_are_matched_by_what_they_are_for(ws: odf.Workspace) -> None:
    dataset = keyed(ws, columns=None)
    fix = branch(dataset, "fix")
    fork = fix.chain.head()
    give_columns(fix, COLUMNS)
    upto = record(fix, [("+A", 2, "2", "x", "y")])
    add(dataset, SetVocab(operation_type_column="what", event_time_column="happened"))
    give_columns(dataset, COLUMNS, {"op": "what", "event_time": "happened"})
    rows = read_rows(Interval(fix, fork, upto), view(dataset, fix))
    assert rows.column_names == ["offset", "what", "happened", "k", "a", "b"]
    assert rows["happened"].null_count == 0
    assert rows["what"].to_pylist() == [0]


def test_columns_of_two_heads_are_those_of_the_first_then_the_new_ones(dataset: DatasetFiles) -> None:
    record(dataset, [("+A", 1, "1", "x", "y")])
    fix = branch(dataset, "fix")
    give_columns(dataset, (*COLUMNS, pa.field("mine", pa.int64())))
    give_columns(fix, (*COLUMNS, pa.field("theirs", pa.int64()), pa.field("mine", pa.int64())))
    both = view(dataset, fix)
    assert both.data.names == ["event_time", "k", "a", "b", "mine", "theirs"]
    assert both.declared is not None
    other = branch(dataset, "other")
    give_columns(other, (*COLUMNS, pa.field("mine", pa.int64()), pa.field("theirs", pa.string())))
    with pytest.raises(SchemaError, match=r"`theirs` has two types: STRING and BIGINT"):
        view(other, fix)


def test_a_column_that_one_side_requires_is_not_required_of_the_other(ws: odf.Workspace) -> None:
    dataset = keyed(ws, columns=None)
    fix = branch(dataset, "fix")
    give_columns(dataset, COLUMNS)
    give_columns(fix, [*COLUMNS, pa.field("n", pa.int64(), nullable=False)])
    declared = view(dataset, fix).declared
    assert [each.optional for each in declared.fields if each.name == "n"] == [True]


def test_a_slice_that_is_not_what_its_block_says_is_refused(dataset: DatasetFiles) -> None:
    fork = record(dataset, [("+A", 1, "1", "x", "y")])
    upto = record(dataset, [("+A", 1, "2", "x", "y")])
    interval = Interval(dataset, fork, upto)
    path = Path(dataset.data.locate(interval.slices()[0].slice.physical_hash))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ObjectCorruptedError):
        read_rows(interval, view(dataset))


def test_who_does_not_believe_the_first_rows_looks_the_touched_keys_up(ws: odf.Workspace) -> None:
    dataset = keyed(ws, merge="ChangelogStream")
    record(dataset, [("+A", 1, "1", "x", "y"), ("+A", 1, "2", "x", "y"), ("+A", 1, None, "n", "n")])
    fork = record(dataset, [("-R", 1, "2", "x", "y"), ("+A", 2, "1", "x", "new"), ("+A", 1, "9", "u", "u")])
    upto = record(dataset, [
        ("-C", 1, "1", "lie", "lie"), ("+C", 3, "1", "x", "z"),  # what it says of the old values is not so
        ("-R", 1, "2", "x", "y"), ("+C", 1, None, "m", "m"),
    ])  # fmt: skip
    interval = Interval.of(dataset, fork, upto, trusted=True)
    rows = read_rows(interval, view(dataset), ["k"])
    diff = net_of(rows.column(1).to_numpy(), rows.select(range(2, rows.num_columns)), ["k"])
    assert not interval.believed
    found = zip(
        diff.rows_of_keys()["k"].to_pylist(), *(
            [(row["a"], row["b"]) for row in side.to_pylist()] for side in (diff.before, diff.after)
        ), strict=True,
    )  # fmt: skip
    assert set(found) == {("1", ("x", "new"), ("x", "z")), (None, ("n", "n"), ("m", "m"))}


@pytest.mark.parametrize(
    ("merge", "trusted", "believed"),
    [
        ("Snapshot", True, True),
        ("Ledger", True, True),
        ("UpsertStream", True, True),
        ("UpsertStream", False, False),
    ],
)
def test_what_looks_up_what_it_records_is_believed(
    ws: odf.Workspace, merge: str, *, trusted: bool, believed: bool
) -> None:
    dataset = keyed(ws, merge=merge)
    fork = record(dataset, [("+A", 1, "1", "x", "y")])
    upto = record(dataset, [("+A", 1, "2", "x", "y")])
    assert Interval.of(dataset, fork, upto, trusted=trusted).believed is believed
