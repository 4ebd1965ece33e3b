"""State checkpoints: the same rows as without them, and less to look back at (RFC-018)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import ObjectCorruptedError
from odfchain.odf import events as ev
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.sources import MergeStrategySnapshot, ReadStepCsv
from odfchain.odf.times import Timestamp
from odfchain.workspace import read_slices
from odfchain.workspace.commit import StagedFile, commit
from tests.kit.support import copied, manifest, unchanged

SNAPSHOT = "{kind: Snapshot, primaryKey: [city]}"
UPSERT = "{kind: UpsertStream, primaryKey: [city]}"
COLUMNS = '["city STRING", "population BIGINT"]'


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are due as soon as half as many rows as the state has have been added, however few."""
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)


def cities(workspace: Workspace, merge: str = SNAPSHOT, name: str = "cities") -> Dataset:
    (dataset,) = workspace.add(manifest(merge, COLUMNS, name=name))
    return dataset


def push(dataset: Dataset, rows: Iterable[tuple[str, int]], columns: str = "city,population") -> None:
    path = dataset.path.parent / "in.csv"
    path.write_text("\n".join([columns, *(f"{city},{number}" for city, number in rows)]) + "\n")
    dataset.ingest([path], allow_empty=True)


def newest(dataset: Dataset) -> ev.AddData:
    event = dataset.summary.last_data
    assert isinstance(event, ev.AddData)
    return event


def files(dataset: Dataset) -> list[Path]:
    return [p for p in (dataset.path / "checkpoints").iterdir() if p.is_file()]


def content(dataset: Dataset) -> list[dict[str, object]]:
    named = newest(dataset).new_checkpoint
    assert named is not None
    table = pq.read_table(dataset._files.checkpoints.verified_path(named.physical_hash))
    return table.select(["offset", "op", "city", "population"]).to_pylist()


def row(offset: int, op: int, city: str, population: int) -> dict[str, object]:
    return {"offset": offset, "op": op, "city": city, "population": population}


# --- what is in it, and when -----------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_holds_the_rows_in_force(workspace: Workspace) -> None:
    dataset = cities(workspace)
    push(dataset, [("A", 1), ("B", 2), ("C", 3)])
    assert newest(dataset).new_checkpoint is None, "the first slice is the state"
    push(dataset, [("A", 1), ("B", 20), ("D", 4)])
    assert content(dataset) == [row(0, 0, "A", 1), row(4, 3, "B", 20), row(6, 0, "D", 4)]
    event = newest(dataset)
    (path,) = files(dataset)
    assert event.new_checkpoint is not None
    assert event.prev_checkpoint is None
    assert (event.new_checkpoint.size, path.name) == (
        path.stat().st_size,
        str(event.new_checkpoint.physical_hash),
    )
    assert dataset.verify().ok


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_stays_in_force_until_there_is_another(workspace: Workspace) -> None:
    dataset = cities(workspace)
    first = [(f"city {n:02}", n) for n in range(20)]
    push(dataset, first)
    push(dataset, [(c, n + 1) for c, n in first])
    made = newest(dataset).new_checkpoint
    assert made is not None
    push(dataset, [(c, n + 1 + (n == 0)) for c, n in first])
    assert (newest(dataset).prev_checkpoint, newest(dataset).new_checkpoint) == (made.physical_hash, made)
    dataset.set_watermark("2090-01-01T00:00:00Z", allow_future=True)
    assert (newest(dataset).prev_checkpoint, newest(dataset).new_checkpoint) == (made.physical_hash, made)
    push(dataset, first)
    after = newest(dataset)
    assert after.prev_checkpoint == made.physical_hash
    assert after.new_checkpoint not in {None, made}
    assert len(content(dataset)) == 20
    assert dataset.verify().ok


def test_many_small_slices_make_one_due() -> None:
    def slices(*rows: int) -> read_slices.RecordedRows:
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        return read_slices.RecordedRows(
            tuple(
                read_slices.RecordedSlice(ev.OffsetInterval(start=end - n, end=end - 1), Path)
                for n, end in zip(rows, ends, strict=True)
            )
        )

    assert not read_slices.checkpoint_is_due(slices(1_000_000))
    assert not read_slices.checkpoint_is_due(slices(10, *[5] * 31))
    assert read_slices.checkpoint_is_due(slices(10, *[5] * 32))
    assert not read_slices.checkpoint_is_due(slices(100_000, 49_999))
    assert read_slices.checkpoint_is_due(slices(100_000, 25_000, 25_000))
    assert not read_slices.checkpoint_is_due(slices(1_000_000, 499_999))
    assert read_slices.checkpoint_is_due(slices(1_000_000, 500_000))


@pytest.mark.parametrize("merge", [SNAPSHOT, UPSERT])
def test_the_rows_are_those_without_checkpoints(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    draw = random.Random(7)
    rounds = [[(city, draw.randrange(3)) for city in "ABCDEFGH" if draw.random() < 0.6] for _ in range(4)] + [
        []
    ]
    with_them, without = cities(workspace, merge), cities(workspace, merge, name="plain")
    for rows in rounds:
        push(without, rows)
    assert files(without) == []
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    for rows in rounds:
        push(with_them, rows)
    assert len(files(with_them)) >= 2
    columns = ["offset", "op", "city", "population"]
    assert with_them.scan(columns).to_arrow() == without.scan(columns).to_arrow()
    assert with_them.verify().ok


# --- what is read ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    """Two slices, and a checkpoint for both: A=1, B=20."""
    workspace = new_workspace()
    dataset = cities(workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_slices, "_SMALLEST_DELTA", 1)
        push(dataset, [("A", 1), ("B", 2)])
        push(dataset, [("A", 1), ("B", 20)])
    assert content(dataset) == [row(0, 0, "A", 1), row(3, 3, "B", 20)]
    return workspace


@pytest.fixture
def grown(made: Workspace, workspace: Workspace, eager: None) -> Dataset:
    return copied(made, workspace)["cities"]


def test_slices_that_a_checkpoint_stands_for_are_not_read(grown: Dataset) -> None:
    for path in (grown.path / "data").iterdir():
        path.unlink()
    push(grown, [("A", 1), ("B", 21)])
    tail = pq.read_table(grown._files.data.verified_path(grown.summary.slices()[-1].slice.physical_hash))
    assert tail.select(["offset", "op", "city", "population"]).to_pylist() == [
        row(4, 2, "B", 20),
        row(5, 3, "B", 21),
    ]


def test_a_missing_checkpoint_only_costs_time(grown: Dataset) -> None:
    files(grown)[0].unlink()
    push(grown, [("A", 1), ("B", 21)])
    assert grown.scan(["op", "population"]).to_arrow().to_pylist()[-2:] == [
        {"op": 2, "population": 20},
        {"op": 3, "population": 21},
    ]
    assert content(grown) == [row(0, 0, "A", 1), row(5, 3, "B", 21)]


def test_a_damaged_checkpoint_stops_the_run(grown: Dataset) -> None:
    (path,) = files(grown)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with unchanged(grown.path), pytest.raises(ObjectCorruptedError):
        push(grown, [("A", 1), ("B", 21)])


def keyed_by_population(dataset: Dataset) -> None:
    read = ReadStepCsv(header=True, ddl_schema=("city STRING", "population BIGINT"))
    merge = MergeStrategySnapshot(primary_key=("population",))
    event = ev.AddPushSource(source_name="default", read=read, merge=merge)
    commit(dataset._files, dataset.summary, [event], [], system_time=Timestamp.now())


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_of_another_key_is_not_used(workspace: Workspace) -> None:
    dataset = cities(workspace)
    push(dataset, [("A", 1), ("B", 1)])
    push(dataset, [("A", 1)])
    assert content(dataset) == [row(0, 0, "A", 1)]
    keyed_by_population(dataset)
    push(dataset, [("A", 1)])  # by population, the last word on 1 is that it was retracted
    assert dataset.scan(["offset", "op", "city", "population"]).to_arrow().to_pylist()[3:] == [
        row(3, 0, "A", 1)
    ]
    assert dataset.verify().ok


def test_what_was_corrected_away_is_not_in_force_by_another_key(grown: Dataset) -> None:
    keyed_by_population(grown)
    push(grown, [("A", 1), ("B", 20)])  # by population: 1 is A, 2 was corrected, 20 is B
    assert grown.summary.record_count == 4


def test_a_checkpoint_of_another_engine(workspace: Workspace) -> None:
    """It stays while no rows are added, and is given up when rows are that its engine has not seen."""
    dataset = cities(workspace)
    push(dataset, [("A", 1), ("B", 2)])
    body = b"state of some engine"
    staged = dataset.path / "staging" / "foreign"
    staged.write_bytes(body)
    name = hash_bytes(body)
    last = newest(dataset)
    foreign = ev.Checkpoint(physical_hash=name, size=len(body))
    event = ev.AddData(
        prev_offset=1, new_checkpoint=foreign, new_watermark=last.new_watermark,
    )  # fmt: skip
    commit(
        dataset._files, dataset.summary, [event], [], checkpoints=[StagedFile(staged, name)],
        system_time=dataset.summary.next_system_time(),
    )  # fmt: skip
    dataset.set_watermark("2090-01-01T00:00:00Z", allow_future=True)
    assert newest(dataset).new_checkpoint == foreign
    push(dataset, [("A", 1), ("B", 3)])
    assert (newest(dataset).prev_checkpoint, newest(dataset).new_checkpoint) == (name, None)
    assert dataset.verify().ok


@pytest.mark.usefixtures("eager")
def test_columns_that_came_after_the_checkpoint(grown: Dataset) -> None:
    read = ReadStepCsv(header=True, ddl_schema=("city STRING", "population BIGINT", "mayor STRING"))
    merge = MergeStrategySnapshot(primary_key=("city",))
    event = ev.AddPushSource(source_name="default", read=read, merge=merge)
    commit(grown._files, grown.summary, [event], [], system_time=Timestamp.now())
    path = grown.path.parent / "in.csv"
    path.write_text("city,population,mayor\nA,1,\nB,20,X\n")
    grown.ingest([path])
    assert grown.scan(["op", "city", "mayor"]).to_arrow().to_pylist()[-2:] == [
        {"op": 2, "city": "B", "mayor": None},
        {"op": 3, "city": "B", "mayor": "X"},
    ]
