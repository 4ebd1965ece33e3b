"""Merges into and from branches that poll a source: what the source had stays known. No Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import MergeConflictError
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import is_merge_state
from tests.kit.polled_sources import touch
from tests.kit.query_datasets import AT, cities, polling

SECONDS = 1_600_000_000
STATE = ev.SourceState(source_name="default", kind="odf/last-modified", value="2020-09-13T12:26:40Z")
NEWER = ev.SourceState(source_name="default", kind="odf/last-modified", value="2020-09-13T12:28:20Z")


def polled(folder: Path) -> tuple[Dataset, Path]:
    """A dataset that has polled a file, and the file."""
    path = folder / "in.csv"
    touch(path, "k,a\nA,x\nB,y\n", SECONDS)
    rows = [["+A", "2024-01-02", "A", "x"], ["+A", "2024-01-02", "B", "y"]]
    workspace = Workspace.init(folder / "ws")
    cities(workspace, polling("k", url=path.as_uri()), [["k", "string"], ["a", "string"]], rows)
    dataset = workspace["cities"]
    know(dataset._files, STATE)
    return dataset, path


def know(files: DatasetFiles, state: ev.SourceState) -> None:
    """The state of the source as a poll without news in its rows records it."""
    now = DatasetState.read(files.chain)
    event = ev.AddData(prev_offset=now.last_offset, new_watermark=now.watermark, new_source_state=state)
    commit(files, now, [event], [], system_time=now.next_system_time(Timestamp.parse(AT)))


def fixes(folder: Path, text: str) -> Path:
    path = folder / "fixes.csv"
    path.write_text("k,a\n" + text)
    return path


def newest(dataset: Dataset) -> Any:
    return dataset.summary.last_data


def test_case_57_a_polled_dataset_is_up_to_date_after_a_merge(tmp_path: Path) -> None:
    dataset, _ = polled(tmp_path)
    fix = dataset.create_branch("fix")
    fix.correct(fixes(tmp_path, "A,q\n"))
    fix.set_watermark("2024-01-05T00:00:00Z")
    before = dataset.summary.head_block.sequence_number
    dataset.merge("fix")
    event = newest(dataset)
    assert dataset.summary.head_block.sequence_number == before + 2
    assert (event.new_data, event.new_source_state) == (None, STATE)
    assert str(event.new_watermark) == "2024-01-05T00:00:00Z"
    assert dataset.pull().status == "up to date"
    report = dataset.verify()
    assert (report.faults, report.unchecked) == ([], [])
    assert any("2024-01-05T00:00:00Z by hand" in note for note in report.notes)


def test_a_merge_without_changes_keeps_the_state_too(tmp_path: Path) -> None:
    dataset, _ = polled(tmp_path)
    fix = dataset.create_branch("fix")
    for branch in (dataset, fix):
        branch.correct(fixes(tmp_path, "A,q\n"))
    dataset.merge("fix")
    assert newest(dataset).new_source_state == STATE
    assert dataset.pull().status == "up to date"


def test_what_was_polled_on_a_branch_is_known_where_it_is_merged(tmp_path: Path) -> None:
    """The branch's state, because the head's stood still; then a correction stands until upstream conflicts."""
    dataset, path = polled(tmp_path)
    upstream = dataset.create_branch("upstream")
    upstream.correct(fixes(tmp_path, "B,new\n"))  # stands for what a poll brought
    know(upstream._files, NEWER)
    touch(path, "k,a\nA,x\nB,new\n", SECONDS + 100)
    dataset.correct(fixes(tmp_path, "A,mine\n"))
    dataset.merge("upstream")
    assert newest(dataset).new_source_state == NEWER
    assert dataset.pull().status == "up to date"
    assert sorted(dataset.state(["a"]).to_arrow()["a"].to_pylist()) == ["mine", "new"]
    upstream.correct(fixes(tmp_path, "A,theirs\n"))
    with pytest.raises(MergeConflictError, match="A"):
        dataset.merge("upstream")
    assert dataset.verify().faults == []


def test_case_64_a_correction_and_its_revert_keep_the_state_of_the_source(tmp_path: Path) -> None:
    dataset, _ = polled(tmp_path)
    done = dataset.correct(fixes(tmp_path, "A,q\n"))
    assert newest(dataset).new_source_state == STATE
    assert dataset.pull().status == "up to date"
    dataset.revert(done.number)
    assert newest(dataset).new_source_state == STATE
    states = [block.block.event.new_source_state for block, _ in zip(dataset.log(), range(2), strict=False)]
    assert [is_merge_state(state) for state in states] == [False, True]
    assert dataset.pull().status == "up to date"
    assert dataset.verify().faults == []
