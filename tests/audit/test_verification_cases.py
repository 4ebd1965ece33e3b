"""The verification cases of the conformance file, each by its id. None of them starts an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.report import CHECKS, Report
from odfchain.errors import UsageError
from odfchain.limits import LINEAGE
from odfchain.odf import events as ev
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.derived_dataset import Made, block_at, derive, executions, forge, with_level
from tests.kit.root_rows import MADE
from tests.kit.support import Run, conformance, hash_of


def slice_path(dataset: DatasetFiles) -> Path:
    new = DatasetState.read(dataset.chain).slices()[0].slice
    return dataset.data.verified_path(new.physical_hash)


def overwrite(dataset: DatasetFiles, table: Callable[[pa.Table], pa.Table], **options: object) -> Path:
    """Another file in the place of the first slice."""
    path = slice_path(dataset)
    changed = table(pq.ParquetFile(path).read())
    path.unlink()
    pq.write_table(changed, path, **options)
    return path


def verified(workspace: Workspace, dataset: DatasetFiles) -> Report:
    report = workspace[dataset.id].verify()
    assert workspace._engines.spark is None
    return report


def the_fault(workspace: Workspace, dataset: DatasetFiles) -> tuple[int, str, str]:
    """(check, kind, name of the file) of the only fault."""
    (fault,) = verified(workspace, dataset).faults
    return fault.check, fault.message.split(":")[0], Path(fault.file).name


def check_derivative_content(workspace: Workspace, made: Made) -> None:
    _, copied = made
    size = slice_path(copied).stat().st_size
    path = overwrite(copied, with_level(1, 9))
    assert path.stat().st_size == size
    assert the_fault(workspace, copied) == (7, "LogicalHashMismatch", path.name)
    assert "the records differ" in verified(workspace, copied).faults[0].message


def check_root_content(workspace: Workspace, made: Made) -> None:
    root, _ = made
    size = slice_path(root).stat().st_size
    path = overwrite(root, with_level(1, 9))
    assert path.stat().st_size == size
    assert the_fault(workspace, root) == (6, "PhysicalHashMismatch", path.name)


def check_size(workspace: Workspace, made: Made) -> None:
    for dataset in made:
        path = overwrite(dataset, lambda t: t.slice(0, 2))
        assert the_fault(workspace, dataset) == (5, "SizeMismatch", path.name)
    assert "the records differ" in verified(workspace, made[1]).faults[0].message


def check_checkpoint_without_data(workspace: Workspace, made: Made) -> None:
    _, copied = made
    state = DatasetState.read(copied.chain)
    last = state.last_data
    content = b"a checkpoint"
    checkpoint = ev.Checkpoint(physical_hash=copied.checkpoints.put(content), size=len(content))
    read = tuple(
        ev.ExecuteTransformInput(
            dataset_id=i.dataset_id, prev_block_hash=i.last_block_hash, prev_offset=i.last_offset
        )
        for i in last.query_inputs
    )
    event = ev.ExecuteTransform(query_inputs=read, prev_offset=last.last_offset, new_checkpoint=checkpoint)
    commit(copied, state, [event], [], system_time=MADE)
    assert verified(workspace, copied).ok
    path = Path(copied.checkpoints.locate(checkpoint.physical_hash))
    path.chmod(0o644)
    path.write_bytes(b"b" + content[1:])
    assert the_fault(workspace, copied) == (6, "PhysicalHashMismatch", path.name)
    path.write_bytes(content * 2)
    assert the_fault(workspace, copied) == (5, "SizeMismatch", path.name)


def check_recursive(workspace: Workspace, made: Made) -> None:
    copied = [workspace[made[1].id]]
    for recursive, names in ((True, ["readings", "copied"]), (False, ["copied"])):
        reports = workspace.verify(copied, recursive=recursive)
        assert [(r.alias, r.ok) for r in reports] == [(name, True) for name in names]


def check_integrity_only(workspace: Workspace, made: Made) -> None:
    root, copied = made
    workspace.delete(str(root.alias), force=True)
    report = verified(workspace, copied)
    assert (report.ok, report.unchecked, report.replay) == (True, [], None)


CASES = {
    "verify_integrity_derivative_content": check_derivative_content,
    "verify_integrity_root_content": check_root_content,
    "verify_integrity_size": check_size,
    "verify_checkpoint_without_data": check_checkpoint_without_data,
    "verify_recursive": check_recursive,
    "verify_integrity_only": check_integrity_only,
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, workspace: Workspace, made: Made) -> None:
    assert all(verified(workspace, dataset).ok for dataset in made)
    CASES[case](workspace, made)


def test_every_case_has_a_test() -> None:
    assert {c["id"] for c in conformance("transform_cases")["verification_cases"]} == set(CASES)


def test_the_same_records_written_anew_are_a_note(workspace: Workspace, made: Made) -> None:
    root, copied = made
    size = slice_path(copied).stat().st_size
    path = overwrite(copied, lambda t: t, compression="gzip", use_dictionary=False)
    assert path.stat().st_size != size
    report = verified(workspace, copied)
    assert report.ok
    (note,) = report.notes
    assert note.startswith(f"{path}: the slice was written anew, with the same records")
    path = overwrite(root, lambda t: t, compression="gzip", use_dictionary=False)
    assert the_fault(workspace, root) == (5, "SizeMismatch", path.name), "its data come from nowhere else"


def test_no_damaged_byte_of_a_derivative_slice_makes_other_records(workspace: Workspace, made: Made) -> None:
    _, copied = made
    path = slice_path(copied)
    data = path.read_bytes()
    path.chmod(0o644)
    for position in range(0, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        report = verified(workspace, copied)
        assert len(report.faults) + len(report.notes) == 1, position
    path.write_bytes(data[: len(data) // 2])
    assert the_fault(workspace, copied)[:2] == (5, "SizeMismatch")


def test_recursive_names_what_is_missing_and_goes_on(made: Made, workspace: Workspace, verify: Run) -> None:
    root, copied = made
    said = f"its input readings ({root.id}) is not in this workspace"
    done = verify("copied", "--recursive")
    named = [line.split(":")[0] for line in done.out.splitlines() if not line.startswith("  ")]
    assert (done.code, named) == (0, ["ok    readings", "ok    copied"])
    workspace.delete("readings", force=True)
    assert verify("copied").code == 0
    done = verify("copied", "--recursive")
    first, second, *_ = done.out.splitlines()
    assert (done.code, second) == (7, f"  not checked, blocks 3, 4: {said}")
    assert first.startswith("PART  copied: 5 blocks, 2 slices, 6 records")
    done = verify("copied", "--recursive", "-o", "json")
    (report,) = done.rows
    assert done.code == 7
    assert (report["verdict"], report["faults"], report["counts"]["replayed"]) == ("incomplete", [], 0)
    assert report["unchecked"] == [{"check": 14, "message": said, "blocks": [3, 4]}]
    assert [check["number"] for check in report["checks"]] == list(CHECKS)
    assert [check["state"] for check in report["checks"]][13:15] == ["notChecked", "notChecked"]
    slice_path(copied).unlink()
    assert verify("copied", "--recursive").code == 6, "a fault weighs more"


def test_recursive_verifies_what_cannot_be_read(workspace: Workspace, made: Made) -> None:
    root, copied = made
    (copied.folder / "refs" / "head").write_text("nonsense")
    (root.folder / "blocks" / str(root.chain.head())).unlink()
    datasets = [d for d in workspace if d.path in (root.folder, copied.folder)]
    reports = workspace.verify(datasets, recursive=True)
    assert sorted((r.alias, [f.check for f in r.faults]) for r in reports) == [
        ("copied", [1]),
        ("readings", [1, 2]),
    ]


def test_a_range_is_checked_and_nothing_else(workspace: Workspace, made: Made) -> None:
    _, copied = made
    slice_path(copied).unlink()
    dataset = workspace[copied.id]
    (fault,) = dataset.verify().faults
    number = fault.sequence_number
    names = {b.block.sequence_number: b.hash for b in copied.chain.walk()}
    for after in (number, names[number]):
        report = dataset.verify(after=after)
        assert report.faults == []
        assert (report.slices, [line.sequence_number for line in report.lines]) == (1, [number + 1])
        assert (report.after, report.upto) == (names[number], None)
    for upto in (number - 1, names[number - 1]):
        assert dataset.verify(upto=upto).faults == []
    assert [f.check for f in dataset.verify(after=number - 1, upto=number).faults] == [5]
    with pytest.raises(UsageError, match="the range begins after block"):
        dataset.verify(after=number, upto=number - 1)
    for unknown in (99, hash_of("x")):
        with pytest.raises(UsageError, match=f"block {unknown} is not in its chain"):
            dataset.verify(upto=unknown)


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_range_is_for_one_dataset(option: str, made: Made, verify: Run) -> None:
    head = made[1].chain.head()
    assert verify("copied", option, head).code == verify("copied", option, "1").code == 0
    refused = verify("%", option, head)
    assert (refused.code, "a range of blocks is for one dataset, these are 2" in refused.err) == (2, True)
    refused = verify("copied", "--replay", option, "head")
    assert (refused.code, refused.err[:21]) == (2, "error: block 'head': ")
    assert "hint: a block is given by its hash or its sequence number" in refused.err


def test_the_first_execution_begins_with_the_first_block_of_inputs(workspace: Workspace, made: Made) -> None:
    """A replay reads no more than is named, so it would not notice what was left out."""
    root, copied = made
    blocks = list(root.chain.walk())[::-1]
    number = executions(copied)[0]
    event = copied.chain.get(block_at(copied, number)).event
    (item,) = event.query_inputs
    forge(copied, number, query_inputs=(dataclasses.replace(item, prev_block_hash=blocks[1].hash),))
    (fault,) = verified(workspace, copied).faults
    assert (fault.check, fault.sequence_number) == (14, number)
    assert f"what comes before is left out: block {blocks[1].hash}" in fault.message


def test_a_long_line_of_inputs_ends(
    workspace: Workspace, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odfchain.audit.verification.LINEAGE", dataclasses.replace(LINEAGE, depth=3))
    last = made[1]
    for number in range(4):
        last = derive(workspace, f"d{number}", "SELECT * FROM readings", str(last.alias))._files
    (report,) = workspace.verify([workspace[last.id]])
    names, inputs = [], report.inputs
    while inputs:
        names.append(inputs[0]["alias"])
        assert not inputs[0]["missing"]
        inputs = inputs[0]["inputs"]
    assert names == ["d2", "d1", "d0"]
