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
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.sources import MergeStrategySnapshot, ReadStepCsv
from odfchain.odf.times import Timestamp
from odfchain.workspace import read_slices
from odfchain.workspace.commit import StagedFile, commit
from tests.kit.polled_sources import SNAPSHOT, rows
from tests.kit.pushed_files import push
from tests.kit.support import copied, manifest, unchanged

UPSERT = "{kind: UpsertStream, primaryKey: [city]}"
COLUMNS = ["offset", "op", "city", "population"]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are due as soon as half as many rows as the state has have been added, however few."""
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)


def cities(workspace: Workspace, merge: str = SNAPSHOT, name: str = "cities") -> Dataset:
    (dataset,) = workspace.add(manifest(merge, name=name))
    return dataset


def record(dataset: Dataset, rows: Iterable[tuple[str, int]]) -> None:
    text = "".join(f"{city},{number}\n" for city, number in rows)
    push(dataset, f"city,population\n{text}", allow_empty=True)


def newest(dataset: Dataset) -> ev.AddData:
    event = dataset.summary.last_data
    assert isinstance(event, ev.AddData)
    return event


def files(dataset: Dataset) -> list[Path]:
    return [p for p in (dataset.path / "checkpoints").iterdir() if p.is_file()]


def recorded(dataset: Dataset) -> list[dict[str, object]]:
    return dataset.scan(COLUMNS).to_arrow().to_pylist()


def content(dataset: Dataset) -> list[dict[str, object]]:
    named = newest(dataset).new_checkpoint
    table = pq.read_table(dataset._files.checkpoints.verified_path(named.physical_hash))
    return table.select(COLUMNS).to_pylist()


def row(offset: int, op: int, city: str, population: int) -> dict[str, object]:
    return {"offset": offset, "op": op, "city": city, "population": population}


# --- what is in it, and when -----------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_holds_the_rows_in_force(workspace: Workspace) -> None:
    dataset = cities(workspace)
    record(dataset, [("A", 1), ("B", 2), ("C", 3)])
    assert newest(dataset).new_checkpoint is None, "the first slice is the state"
    record(dataset, [("A", 1), ("B", 20), ("D", 4)])
    assert content(dataset) == [row(0, 0, "A", 1), row(4, 3, "B", 20), row(6, 0, "D", 4)]
    event = newest(dataset)
    (path,) = files(dataset)
    expected = ev.Checkpoint(physical_hash=Multihash.parse(path.name), size=path.stat().st_size)
    assert (event.prev_checkpoint, event.new_checkpoint) == (None, expected)
    assert dataset.verify().ok


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_stays_in_force_until_there_is_another(workspace: Workspace) -> None:
    dataset = cities(workspace)
    first = [(f"city {n:02}", n) for n in range(20)]
    record(dataset, first)
    record(dataset, [(c, n + 1) for c, n in first])
    made = newest(dataset).new_checkpoint
    assert made is not None
    record(dataset, [(c, n + 1 + (n == 0)) for c, n in first])
    assert (newest(dataset).prev_checkpoint, newest(dataset).new_checkpoint) == (made.physical_hash, made)
    dataset.set_watermark("2090-01-01T00:00:00Z", allow_future=True)
    assert (newest(dataset).prev_checkpoint, newest(dataset).new_checkpoint) == (made.physical_hash, made)
    record(dataset, first)
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
    rounds = [[(city, draw.randrange(3)) for city in "ABCDEFGH" if draw.random() < 0.6] for _ in range(4)]
    rounds.append([])
    with_them, without = cities(workspace, merge), cities(workspace, merge, name="plain")
    for given in rounds:
        record(without, given)
    assert files(without) == []
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    for given in rounds:
        record(with_them, given)
    assert len(files(with_them)) >= 2
    assert recorded(with_them) == recorded(without)
    assert with_them.verify().ok


# --- what is read ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    """Two slices, and a checkpoint for both: A=1, B=20."""
    workspace = new_workspace()
    dataset = cities(workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_slices, "_SMALLEST_DELTA", 1)
        record(dataset, [("A", 1), ("B", 2)])
        record(dataset, [("A", 1), ("B", 20)])
    assert content(dataset) == [row(0, 0, "A", 1), row(3, 3, "B", 20)]
    return workspace


@pytest.fixture
def grown(made: Workspace, workspace: Workspace, eager: None) -> Dataset:
    return copied(made, workspace)["cities"]


def test_slices_that_a_checkpoint_stands_for_are_not_read(grown: Dataset) -> None:
    for path in (grown.path / "data").iterdir():
        path.unlink()
    record(grown, [("A", 1), ("B", 21)])
    tail = pq.read_table(grown._files.data.verified_path(grown.summary.slices()[-1].slice.physical_hash))
    assert tail.select(COLUMNS).to_pylist() == [row(4, 2, "B", 20), row(5, 3, "B", 21)]


def test_a_missing_checkpoint_only_costs_time(grown: Dataset) -> None:
    files(grown)[0].unlink()
    record(grown, [("A", 1), ("B", 21)])
    assert recorded(grown)[-2:] == [row(4, 2, "B", 20), row(5, 3, "B", 21)]
    assert content(grown) == [row(0, 0, "A", 1), row(5, 3, "B", 21)]


def test_a_damaged_checkpoint_stops_the_run(grown: Dataset) -> None:
    (path,) = files(grown)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with unchanged(grown.path), pytest.raises(ObjectCorruptedError):
        record(grown, [("A", 1), ("B", 21)])


def redefine(dataset: Dataset, key: str, *columns: str) -> None:
    """The push source again, with another key, or more columns."""
    read = ReadStepCsv(header=True, ddl_schema=("city STRING", "population BIGINT", *columns))
    merge = MergeStrategySnapshot(primary_key=(key,))
    event = ev.AddPushSource(source_name="default", read=read, merge=merge)
    commit(dataset._files, dataset.summary, [event], [], system_time=Timestamp.now())


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_of_another_key_is_not_used(workspace: Workspace) -> None:
    dataset = cities(workspace)
    record(dataset, [("A", 1), ("B", 1)])
    record(dataset, [("A", 1)])
    assert content(dataset) == [row(0, 0, "A", 1)]
    redefine(dataset, "population")
    record(dataset, [("A", 1)])  # by population, the last word on 1 is that it was retracted
    assert recorded(dataset)[3:] == [row(3, 0, "A", 1)]
    assert dataset.verify().ok


def test_what_was_corrected_away_is_not_in_force_by_another_key(grown: Dataset) -> None:
    redefine(grown, "population")
    record(grown, [("A", 1), ("B", 20)])  # by population: 1 is A, 2 was corrected, 20 is B
    assert grown.summary.record_count == 4


def test_a_checkpoint_of_another_engine(workspace: Workspace) -> None:
    """It stays while no rows are added, and is given up when rows are that its engine has not seen."""
    dataset = cities(workspace)
    record(dataset, [("A", 1), ("B", 2)])
    body = b"state of some engine"
    staged = dataset.path / "staging" / "foreign"
    staged.write_bytes(body)
    name = hash_bytes(body)
    last = newest(dataset)
    foreign = ev.Checkpoint(physical_hash=name, size=len(body))
    event = ev.AddData(prev_offset=1, new_checkpoint=foreign, new_watermark=last.new_watermark)
    commit(
        dataset._files, dataset.summary, [event], [], checkpoints=[StagedFile(staged, name)],
        system_time=dataset.summary.next_system_time(),
    )  # fmt: skip
    dataset.set_watermark("2090-01-01T00:00:00Z", allow_future=True)
    assert newest(dataset).new_checkpoint == foreign
    record(dataset, [("A", 1), ("B", 3)])
    assert (newest(dataset).prev_checkpoint, newest(dataset).new_checkpoint) == (name, None)
    assert dataset.verify().ok


@pytest.mark.usefixtures("eager")
def test_columns_that_came_after_the_checkpoint(grown: Dataset) -> None:
    redefine(grown, "city", "mayor STRING")
    push(grown, "city,population,mayor\nA,1,\nB,20,X\n")
    assert rows(grown, "op", "city", "mayor")[-2:] == [[2, "B", None], [3, "B", "X"]]
