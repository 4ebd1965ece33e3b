"""Rows that are worked out here become a transaction as every other write makes it, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.report import MERGES
from odfchain.branches import recording
from odfchain.branches.recording import Recorded, _write_state, stage_changes
from odfchain.errors import BadInputError
from odfchain.odf import events as ev
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.workspace import read_slices
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.config import change_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeRecord
from odfchain.workspace.read_slices import RecordedRows
from tests.kit import query_datasets
from tests.kit.query_datasets import moment, polling
from tests.kit.support import manifest, unchanged

NOW = Timestamp.parse("2024-02-01T00:00:00Z")
SOURCE = ev.SourceState(source_name=POLLING_SOURCE, kind="odf/etag", value="abc")
COLUMNS = [["k", "string"], ["a", "int64"]]
ROWS = [["+A", "2024-01-02", "A", 1], ["+A", "2024-01-01", "B", 2]]


def cities(folder: Path, *key: str, rows: list[Any] = ROWS) -> DatasetFiles:
    return query_datasets.cities(Workspace.init(folder / "ws"), polling(*key), COLUMNS, rows)


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    return cities(tmp_path, "k")


def table(*rows: tuple[int, str, str, int | None], **more: list[Any]) -> pa.Table:
    columns: list[Any] = list(zip(*rows, strict=True)) or [[], [], [], []]
    times = [moment(text) for text in columns[1]]
    return pa.table(
        {
            "op": pa.array(columns[0], pa.int32()),
            "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
            "k": pa.array(columns[2], pa.string()),
            "a": pa.array(columns[3], pa.int64()),
            **more,
        }
    )


CORRECTION = [(2, "2024-01-02", "A", 1), (3, "2024-01-02", "A", 9), (0, "2024-01-03", "C", None)]


def write(dataset: DatasetFiles, rows: pa.Table | None, **more: Any) -> Recorded:
    state = DatasetState.read(dataset.chain)
    with dataset.staging() as staging:
        made = stage_changes(dataset, state, rows, staging=staging, system_time=NOW, **more)
        made.commit(dataset, state, NOW)
    return made


def newest(dataset: DatasetFiles) -> Any:
    return DatasetState.read(dataset.chain).last_data


def record(dataset: DatasetFiles) -> MergeRecord:
    head = DatasetState.read(dataset.chain).head
    return MergeRecord(base=(head,), source=head, source_ref="fix", target=head)


def with_source_state(dataset: DatasetFiles, state: ev.SourceState = SOURCE) -> None:
    """The state of the source as a poll leaves it."""
    now = DatasetState.read(dataset.chain)
    event = ev.AddData(prev_offset=now.last_offset, new_watermark=now.watermark, new_source_state=state)
    commit(dataset, now, [event], [], system_time=NOW)


def test_a_watermark_is_held_back_as_the_source_says_and_never_goes_back(dataset: DatasetFiles) -> None:
    delay = WatermarkRule(max_delay=Duration(86_400_000))
    change_config(dataset, lambda config: type(config)(watermarks={POLLING_SOURCE: delay}))
    for rows, options, mark in (
        (CORRECTION, {}, "2024-01-02"),
        ([(1, "2023-01-01", "A", 9)], {}, "2024-01-02"),
        ([(0, "2999-01-01", "D", 9)], {"bound": NOW}, "2024-01-31"),
    ):
        write(dataset, table(*rows), **options)
        assert newest(dataset).new_watermark == Timestamp.parse(f"{mark}T00:00:00Z")


def test_without_a_source_state_a_merge_is_one_block_and_its_record_is_no_source_state(
    dataset: DatasetFiles,
) -> None:
    made = write(dataset, table(*CORRECTION), record=record(dataset))
    assert len(made.events) == 1
    state = DatasetState.read(dataset.chain)
    assert (state.source_state, state.state_of_source(POLLING_SOURCE)) == (None, None)
    write(dataset, table((1, "2024-01-02", "A", 9)))
    assert newest(dataset).new_source_state is None, "a record is not carried on"


def test_a_record_that_another_tool_carried_on_is_no_source_state(dataset: DatasetFiles) -> None:
    with_source_state(dataset)
    assert DatasetState.read(dataset.chain).source_state == SOURCE
    write(dataset, None, record=(merge := record(dataset)))
    with_source_state(dataset, merge.to_state())
    assert newest(dataset).new_source_state == merge.to_state()
    assert DatasetState.read(dataset.chain).source_state == SOURCE


def test_what_does_not_fit_is_refused_and_nothing_written(dataset: DatasetFiles) -> None:
    rows = table((0, "2024-01-03", "C", 1)).set_column(
        1, "event_time", pa.nulls(1, pa.timestamp("ms", "UTC"))
    )
    with pytest.raises(BadInputError, match="event_time"), unchanged(dataset.folder):
        write(dataset, rows)


# --- state checkpoints -----------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are due as soon as half as many rows as the state has have been added, however few."""
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 2)


def checkpoint_of(dataset: DatasetFiles) -> pa.Table:
    named = newest(dataset).new_checkpoint
    path = dataset.checkpoints.verified_path(named.physical_hash)
    assert named.size == path.stat().st_size
    return pq.read_table(path)


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_that_is_due_is_made(tmp_path: Path) -> None:
    dataset = cities(tmp_path, "k", rows=ROWS[::-1])
    write(dataset, table(*CORRECTION))
    rows = checkpoint_of(dataset)
    assert b"odfchain.state" in rows.schema.metadata
    assert rows.to_pydict() == {
        "offset": [3, 0, 4],
        "op": [3, 0, 0],
        "event_time": [moment("2024-01-02"), moment("2024-01-01"), moment("2024-01-03")],
        "k": ["A", "B", "C"],
        "a": [9, 2, None],
    }
    first = newest(dataset).new_checkpoint
    write(dataset, table((1, "2024-01-02", "A", 9)))
    assert newest(dataset).new_checkpoint == first, "one that is not due again stays named"
    assert newest(dataset).prev_checkpoint == first.physical_hash
    write(dataset, table((1, "2024-01-03", "C", None)), record=record(dataset))
    assert checkpoint_of(dataset)["k"].to_pylist() == ["B"]
    faults = Workspace.open(tmp_path / "ws")["cities"].verify().faults
    assert [fault for fault in faults if fault.check != MERGES] == [], "nobody merged what is recorded here"


@pytest.mark.soak
@pytest.mark.usefixtures("eager")
def test_a_checkpoint_is_the_file_that_a_snapshot_makes(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest("{kind: Snapshot, primaryKey: [city]}"))
    for number, text in enumerate(["Zug,1\nBern,2\nÄ,3\n", "Zug,1\nBern,5\nx,3\n"]):
        path = tmp_path / f"{number}.csv"
        path.write_text("city,population\n" + text, encoding="utf-8")
        dataset.ingest(path)
    made = newest(dataset._files).new_checkpoint
    state = DatasetState.read(dataset._files.chain)
    with dataset._files.staging() as staging:
        slices = RecordedRows(RecordedRows.of(dataset._files, state).slices)
        again, _ = _write_state(slices, ("city",), state, state.schema, staging)
    assert again == made


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_of_others_is_not_named_again(tmp_path: Path) -> None:
    dataset = cities(tmp_path)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"state of an engine")
    name, size = hash_file(foreign)
    state = DatasetState.read(dataset.chain)
    event = ev.AddData(
        prev_offset=state.last_offset,
        new_checkpoint=ev.Checkpoint(physical_hash=name, size=size),
        new_watermark=state.watermark,
    )
    commit(dataset, state, [event], [], checkpoints=[StagedFile(foreign, name)], system_time=NOW)
    write(dataset, table((0, "2024-01-03", "C", 1)))
    assert (newest(dataset).new_checkpoint, newest(dataset).prev_checkpoint) == (None, name)


@pytest.mark.usefixtures("eager")
def test_looking_back_ends_at_the_checkpoint(dataset: DatasetFiles) -> None:
    write(dataset, table(*CORRECTION))
    write(dataset, table((1, "2024-01-02", "A", 9)))
    state = DatasetState.read(dataset.chain)
    found, named = RecordedRows.since_checkpoint(dataset, state, ("k",))
    assert named
    assert found.checkpoint is not None
    assert [piece.offsets.start for piece in found.slices] == [5]
    other, named = RecordedRows.since_checkpoint(dataset, state, ("a",))
    assert named
    assert (other.checkpoint, len(other.slices)) == (None, 3)


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_that_is_too_large_for_one_process_is_left_to_the_next_write(
    dataset: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "IN_PROCESS_BYTES", 100)
    write(dataset, table(*CORRECTION))
    assert newest(dataset).new_checkpoint is None
    monkeypatch.undo()
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    write(dataset, table((1, "2024-01-02", "A", 9)))
    assert checkpoint_of(dataset)["k"].to_pylist() == ["B", "C"]
