"""`odfchain diff` and `Dataset.diff`: what they show, in each format, and where they begin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import odfchain as odf
from tests.kit.airport_branches import AIRPORTS, GENEVA, airports
from tests.kit.branch_cases import run_here
from tests.kit.branch_rows import branch, keyed, record
from tests.kit.support import Result

Run = Callable[..., Result]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[odf.Workspace]:
    """Airports whose branch fix-names corrects one and retracts another, while the head goes on."""
    with odf.init(tmp_path / "workspace") as workspace:
        head, _ = airports(workspace)
        record(head, [*GENEVA, ("+A", 2, "LUG", "Lugano", None)], AIRPORTS)
        yield workspace


@pytest.fixture
def run(workspace: odf.Workspace) -> Run:
    return run_here(workspace)


def test_one_point_is_what_it_changed_since_the_merge_base(run: Run) -> None:
    """Case 62: the head has moved since, and nothing of that is shown."""
    result = run("diff", "airports", "fix-names")
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()] == [
        ["iata", "change", "column", "from", "to"], ["XXA", "removed"], ["ZRH", "changed", "name", "Zurich", "Zürich"],
    ]  # fmt: skip
    assert result.err.strip() == (
        "2 records: 1 changed, 1 removed. After block 3, which both have: 1 block up to fix-names, 1 up to head"
    )


def test_points_may_be_written_with_the_dataset(run: Run) -> None:
    one = run("diff", "airports", "head", "fix-names", "-o", "json")
    for args in (("airports@head", "airports@fix-names"), ("airports@head", "fix-names")):
        assert run("diff", *args, "-o", "json") == one
    assert run("diff", "airports@fix-names").out == run("diff", "airports", "fix-names").out
    assert (
        run("diff", "airports@fix-names", "airports").out == run("diff", "airports", "fix-names", "head").out
    )
    refused = run("merge", "airports@fix-names", "other")
    assert (refused.code, "odfchain merge airports other --into fix-names" in refused.err) == (2, True)
    for args in (("airports@3", "others@4"), ("airports@3", "airports@4", "5")):
        refused = run("diff", *args)
        assert (refused.code, "the points are of one dataset" in refused.err) == (2, True)
    refused = run("diff", "airports")
    assert (refused.code, "odfchain diff airports A [B]" in refused.err) == (2, True)


def test_what_does_not_differ_is_said(run: Run) -> None:
    result = run("diff", "airports", "head")
    assert (result.code, result.out.split()) == (0, ["iata", "change", "column", "from", "to"])
    assert (
        result.err.strip()
        == "no records differ. After block 4, which both have: 0 blocks up to head, 0 up to head"
    )


def test_formats_for_programs(run: Run) -> None:
    rows = run("diff", "airports", "fix-names", "-o", "json").rows
    lines = run("diff", "airports", "fix-names", "-o", "ndjson").out.splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert rows[0] == {
        "iata": "XXA", "change": "removed", "from": {"event_time": "2026-01-02T00:00:00Z", "name": "Ghost", "elevation": 0},
        "to": None, "columns": [],
    }  # fmt: skip
    assert (rows[1]["columns"], rows[1]["to"]["name"]) == (["name"], "Zürich")
    assert run("diff", "airports", "fix-names", "-o", "csv").out.splitlines() == [
        "iata,change,column,from,to", "XXA,removed,event_time,2026-01-02T00:00:00Z,", "XXA,removed,name,Ghost,",
        "XXA,removed,elevation,0,", "ZRH,changed,name,Zurich,Zürich",
    ]  # fmt: skip


def test_how_much_differs_and_which_records(run: Run) -> None:
    assert run("diff", "airports", "fix-names", "--stat", "-o", "json").rows == [
        {"change": "changed", "column": None, "records": 1}, {"change": "removed", "column": None, "records": 1},
        {"change": "changed", "column": "name", "records": 1},
    ]  # fmt: skip
    assert run("diff", "airports", "fix-names", "--keys-only", "-o", "csv").out.splitlines() == [
        "iata,change", "XXA,removed", "ZRH,changed",
    ]  # fmt: skip
    keys = run("diff", "airports", "fix-names", "--keys-only", "-o", "ndjson").out
    assert json.loads(keys.splitlines()[0]) == {"iata": "XXA", "change": "removed"}
    assert run("diff", "airports", "fix-names", "--keys-only", "--stat").code == 2


def test_any_point_is_compared(run: Run, workspace: odf.Workspace) -> None:
    dataset = workspace["airports"]
    block = str(dataset.branch("fix-names").head)
    assert run("diff", "airports", "3", "fix-names:4").out == run("diff", "airports", "fix-names").out
    result = run("diff", "airports", "3", block)
    assert result.out == run("diff", "airports", "fix-names").out
    assert f"After block 3, which both have: 1 block up to {block[:12]}…, 0 up to block 3" in result.err
    assert run("diff", "airports", "nothing").code == 4
    assert run("diff", "airports", "2999-01-01").code == 3
    found = dataset.diff("head", "fix-names")
    changed = found.counts[odf.results.Change.CHANGED]
    assert (changed, found.key, found.ahead, found.behind) == (2, ("iata",), 1, 1)


def test_without_a_key_whole_records_are_shown_that_each_side_added(workspace: odf.Workspace) -> None:
    head = keyed(workspace, ())
    record(head, [("+A", 1, "1", "x", "y")])
    fix = branch(head, "fix")
    record(fix, [("+A", 1, "r", "x", None), ("-R", 1, "1", "x", "y")])
    record(head, [("+A", 1, "r", "x", None)])
    run = run_here(workspace)
    assert run("diff", "d", "head", "fix", "-o", "csv").out.splitlines() == [
        "change,event_time,k,a,b", "removed,2026-01-02T00:00:00Z,r,x,", "inserted,2026-01-02T00:00:00Z,r,x,",
        "removed,2026-01-02T00:00:00Z,1,x,y",
    ]  # fmt: skip
    assert run("diff", "d", "fix", "--keys-only").code == 2
    assert workspace["d"].diff("fix").key == ()


def test_a_missing_slice_is_named(run: Run, workspace: odf.Workspace) -> None:
    """Case 67."""
    files = workspace["airports"].branch("fix-names")._files
    first, *_, last = odf.results.DatasetState.read(files.chain).slices()
    Path(files.data.locate(first.slice.physical_hash)).unlink()
    assert run("diff", "airports", "fix-names").code == 0
    path = Path(files.data.locate(last.slice.physical_hash))
    path.unlink()
    result = run("diff", "airports", "fix-names")
    assert result.code == 7
    assert path.name in result.err
    assert "odfchain fetch airports" in result.err


def test_a_partial_copy_takes_the_blocks_of_others_at_their_word(tmp_path: Path) -> None:
    """Case 67, in the copy of somebody else's dataset: nothing can be looked up, and that is said."""
    with odf.init(tmp_path / "owner") as owner, odf.init(tmp_path / "copies") as workspace:
        theirs = keyed(owner)
        record(theirs, [("+A", 1, "1", "x", "y"), ("+A", 1, "2", "x", "y")])
        copy = owner["d"].path
        assert run_here(workspace)("pull", copy.as_uri(), "--as", "copy").code == 0
        mine = branch(workspace["copy"]._files, "mine")
        record(mine, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "x", "z")])
        record(theirs, [("-R", 1, "2", "x", "y")])
        run = run_here(workspace)
        assert run("pull", "copy").code == 0
        whole = run("diff", "copy", "head", "mine", "-o", "csv", "--keys-only")
        assert whole.out.splitlines() == ["k,change", "1,changed", "2,inserted"]
        assert "note" not in whole.err
        first = odf.results.DatasetState.read(mine.chain).slices()[0]
        Path(mine.data.locate(first.slice.physical_hash)).unlink()
        partial = run("diff", "copy", "head", "mine", "-o", "csv", "--keys-only")
        assert (partial.code, partial.out) == (0, whole.out)
        assert "note: slices before these blocks are not here" in partial.err
        assert "note" not in run("diff", "copy", "mine").err


@pytest.mark.parametrize("points", [["fix"], ["head", "fix"]], ids=["one", "two"])
@pytest.mark.parametrize("output", ["table", "csv", "json", "ndjson"])
def test_before_there_is_a_schema_nothing_differs(
    workspace: odf.Workspace, points: list[str], output: str
) -> None:
    branch(keyed(workspace, columns=None), "fix")
    result = run_here(workspace)("diff", "d", *points, "-o", output)
    assert (result.code, "no records differ" in result.err) == (0, True), result.err


def test_what_was_merged_crosswise_is_not_shown_again(workspace: odf.Workspace) -> None:
    """Of two branches that have merged each other the base is the merge of both bases."""
    head = keyed(workspace)
    record(head, [("+A", 1, key, "x", "y") for key in "1234"])
    fix, dataset, run = branch(head, "fix"), workspace["d"], run_here(workspace)
    record(head, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "q", "y")])
    record(fix, [("-C", 1, "2", "x", "y"), ("+C", 1, "2", "p", "y")])
    dataset.create_branch("head-before")
    dataset.create_branch("fix-before", at="fix")
    for command in (["fix-before"], ["head-before", "--into", "fix"]):
        result = run("merge", "d", *command)
        assert result.code == 0, result.err
    assert run("diff", "d", "fix", "-o", "csv").out.splitlines() == ["k,change,column,from,to"]
    record(fix, [("-C", 1, "3", "x", "y"), ("+C", 1, "3", "x", "z"), ("-R", 1, "4", "x", "y")])
    result = run("diff", "d", "fix", "--keys-only", "-o", "csv")
    assert result.out.splitlines() == ["k,change", "3,changed", "4,removed"]
    assert "2 blocks up to fix, 1 up to head" in result.err
    assert dataset.plan_merge("fix").changes["k"].to_pylist() == ["3", "4"]
