"""Derivatives on a branch: each input is read on the branch of that name, else on its head (RFC-035)."""

from __future__ import annotations

from pathlib import Path

import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.audit.report import INPUTS
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.transform.planner import PlannedStep, plan_next, plan_recorded
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.query_datasets import make
from tests.kit.small_branches import DAYS, SPEC, add
from tests.kit.support import derivative


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    """The root `d`, and `made` of it, which was executed once."""
    workspace = Workspace.init(tmp_path)
    make(workspace, "d", SPEC)
    query = "SELECT event_time, k, v FROM d"
    workspace.add(derivative(query, name="made", inputs="[{datasetRef: d, alias: d}]"), check=False)
    execute(workspace, workspace["made"])
    return workspace


def execute(ws: Workspace, made: odf.Dataset) -> Multihash | None:
    """One step, as far as blocks record it; returns the block of the input that it read up to."""
    files = made._files
    state = DatasetState.read(files.chain)
    step = plan_next(files, state, ws._files.inputs_of(files))
    assert isinstance(step, PlannedStep)
    record(made, tuple(item.event for item in step.inputs))
    return step.inputs[0].event.new_block_hash


def record(made: odf.Dataset, inputs: tuple[ev.ExecuteTransformInput, ...]) -> None:
    files = made._files
    state = DatasetState.read(files.chain)
    last = state.watermark or Timestamp.parse(DAYS[0])
    mark = Timestamp.from_epoch_ms(last.epoch_ms + 1)
    event = ev.ExecuteTransform(query_inputs=inputs, new_watermark=mark)
    commit(files, state, [event], [], system_time=state.next_system_time())


def of_inputs(made: odf.Dataset) -> tuple[list[str], int]:
    """What check 14 found, and how often it was done."""
    report = made.verify()
    assert report.state(INPUTS) != "notChecked"
    return [fault.message for fault in report.faults if fault.check == INPUTS], report.done[INPUTS]


def test_inputs_are_read_on_the_same_branch(ws: Workspace) -> None:
    d, made = ws["d"], ws["made"]
    draft, made_draft = d.create_branch("draft"), made.create_branch("draft")
    add(draft, "x")
    add(d, "h")
    assert d.summary.record_count == 4
    index = (d.path / "info" / "chain-index").read_bytes()
    assert [branch.name for branch in made.branches()] == ["draft"]
    assert execute(ws, made_draft) == draft.head
    assert execute(ws, made) == d.head
    assert of_inputs(made_draft) == of_inputs(made) == ([], 2)
    steps = list(plan_recorded(made_draft._files, [d._files]))
    assert [step.step.inputs[0].dataset.ref for step in steps] == ["head", "draft"]
    assert (d.path / "info" / "chain-index").read_bytes() == index  # the head's is never made to fit a branch
    d.delete_branch("draft", force=True)
    assert made_draft.verify().state(INPUTS) == "notChecked"
    made.delete_branch("draft", force=True)
    assert made.branches() == []


def test_without_such_a_branch_the_head_of_an_input_is_read(ws: Workspace) -> None:
    d, made = ws["d"], ws["made"]
    d.create_branch("other", at=2)
    mine = made.create_branch("mine")
    add(d, "h")
    assert execute(ws, mine) == d.head
    assert of_inputs(mine) == ([], 2)
    found = ws._files.with_upstream([mine._files, made._files])
    assert [item.label for item in found] == ["d", "made", "made@mine"]
    assert [report.alias for report in ws.verify([mine], recursive=True)] == ["d", "made@mine"]


def test_what_is_on_two_branches_is_not_one_after_the_other(ws: Workspace) -> None:
    d, made = ws["d"], ws["made"]
    draft = d.create_branch("draft")
    add(d, "h")
    assert execute(ws, made) == d.head
    add(draft, "x")
    add(draft, "y")
    mixed = ev.ExecuteTransformInput(
        dataset_id=d.id, prev_block_hash=d.head, new_block_hash=draft.head, prev_offset=3, new_offset=4
    )
    record(made, (mixed,))
    (message,), _ = of_inputs(made)
    assert "does not come after prevBlockHash" in message
