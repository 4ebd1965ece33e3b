"""Branches and merges as they are shown: drawn in the log, named in lineage and blame."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.audit.drawings import GraphDrawing
from odfchain.audit.lineage import source_of
from odfchain.audit.page import render_page
from odfchain.odf.events import AddData
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.branch_cases import run_here
from tests.kit.query_datasets import make
from tests.kit.small_branches import SPEC, add, merged
from tests.kit.support import ROOT


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    workspace = Workspace.init(tmp_path)
    make(workspace, "d", SPEC)
    return workspace


def day(number: int) -> str:
    return f"2026-02-{number:02}T00:00:00Z"


def drawn(dataset: odf.Dataset, limit: int | None = None) -> list[str]:
    lines: list[str] = []
    for item in dataset.log_graph(limit):
        names = f" ({', '.join(item.references)})" if item.references else ""
        note = f" {(item.note or '').partition(' (')[0]}" if item.note else ""
        number = item.block.block.sequence_number
        lines += [*item.before, f"{item.line} {number}{names}{note}", *item.after]
    return lines


def test_a_chain_without_branches_is_one_lane(ws: Workspace) -> None:
    assert drawn(ws["d"]) == ["● 3 (head)", "● 2", "● 1", "● 0"]
    assert drawn(ws["d"], 2) == ["● 3 (head)", "● 2"]


def test_a_branch_is_merged_and_goes_on(ws: Workspace) -> None:
    d = ws["d"]
    fix = d.create_branch("fix-names")
    add(fix, "c", day(1))
    add(d, "h", day(2))
    merged(d, fix, day(3))
    add(fix, "e", day(4))
    assert drawn(fix) == [
        "● 5 (fix-names)",
        "│ ● 5 (head) merged from fix-names",
        "├─┤",
        "│ ● 4",
        "● │ 4",
        "├─╯",
        "● 3",
        "● 2",
        "● 1",
        "● 0",
    ]


def test_several_branches_begin_at_one_block(ws: Workspace) -> None:
    d = ws["d"]
    for number, name in enumerate(("one", "two", "three"), 1):
        add(d.create_branch(name, at=2), name, day(number))
    d.create_branch("same")
    merged(d, d.branch("one"), day(9))
    assert drawn(d) == [
        "● 4 (head) merged from one",
        "├─╮",
        "│ │ ● 3 (three)",
        "│ │ │ ● 3 (two)",
        "│ ● │ │ 3 (one)",
        "● │ │ │ 3 (same)",
        "├─╯ │ │",
        "├───╯ │",
        "├─────╯",
        "● 2",
        "● 1",
        "● 0",
    ]


def with_a_merge(ws: Workspace) -> tuple[odf.Dataset, odf.Dataset]:
    """The dataset, and its branch `fix` that it has merged."""
    d = ws["d"]
    fix = d.create_branch("fix")
    add(fix, "c", day(1))
    merged(d, fix, day(2))
    return d, fix


def test_what_was_merged_and_deleted_is_still_drawn(ws: Workspace) -> None:
    d, _ = with_a_merge(ws)
    d.delete_branch("fix")
    assert drawn(d)[:4] == ["● 4 (head) merged from fix", "├─╮", "│ ● 4", "├─╯"]


def test_the_log_draws_and_says_what_was_merged(ws: Workspace) -> None:
    (d, fix), run = with_a_merge(ws), run_here(ws)
    first, lane, second = run("--no-color", "log", "d", "--graph", "-n", "2").out.splitlines()
    assert first == f"● #4 {str(d.head)[:12]}  {day(2)}  AddData  (head)  merged from fix"
    assert (lane, second[:6]) == ("├─╮", "│ ● #4")
    assert f"    merged from fix ({fix.head})" in run("log", "d", "-n", "1").out
    assert run("log", "d@fix", "--graph").code == run("log", "d", "--graph", "-o", "json").code == 2


def test_a_record_that_was_carried_on_says_nothing_of_later_blocks(ws: Workspace) -> None:
    d, _ = with_a_merge(ws)
    state = DatasetState.read(d._files.chain)
    carried, mark = state.source_state, odf.Timestamp.parse(day(2))
    again = AddData(prev_offset=state.last_offset, new_source_state=carried, new_watermark=mark)
    commit(d._files, state, [again], [], system_time=state.next_system_time())
    newest, merge, *_ = d.log()
    assert source_of(d._files.chain, newest).merged is None
    found = source_of(d._files.chain, merge)
    assert (found.kind, found.name, found.problem) == ("merge", "fix", None)
    assert [line.split(" ")[1] for line in drawn(d)[:2]] == ["5", "4"]  # one merge, not two


def test_lineage_names_branches_and_merges(ws: Workspace) -> None:
    d, fix = with_a_merge(ws)
    add(fix, "e", day(3))
    merged(d, fix, day(4))
    d.create_branch("old", at=2)
    d.rename_branch("fix", "better")
    graph = d.lineage()
    (tree,) = graph.to_trees()
    assert [line.text for line in tree.below] == [
        "branch better: 2 behind", "branch old: 3 behind", "merged fix 2 times, last in block 5",
    ]  # fmt: skip
    (node,) = graph.to_document()["nodes"]
    assert [branch["name"] for branch in node["branches"]] == ["better", "old"]
    assert node["merged"] == [{"branch": "fix", "blocks": [4, 5]}]
    dot = GraphDrawing(graph).to_dot()
    assert 'label="d@fix\\ndeleted"' in dot
    assert 'n0b2 -> n0 [style=dotted, label="merged fix 2 times, last in block 5"]' in dot
    assert "branch better: 2 behind" in GraphDrawing(graph).to_html()


def test_reports_and_their_page_say_which_block_merged_what(ws: Workspace) -> None:
    d, _ = with_a_merge(ws)
    document = d.verify().to_document()
    jsonschema.Draft202012Validator(json.loads((ROOT / "schemas" / "Report.json").read_text())).validate(
        document
    )
    assert [block.get("merged") for block in document["blocks"]] == [None] * 4 + ["fix"]
    page = render_page([document])
    assert "AddData, merged from fix" in page
    assert "branch merged: 1 block" in page
