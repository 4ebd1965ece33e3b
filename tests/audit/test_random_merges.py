"""Random histories: whatever is merged passes check 17, and nothing else that could stand there does."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.report import CORRECTIONS, MERGES, SIGNATURE
from odfchain.branches.intervals import Interval, MergedColumns, read_rows
from odfchain.branches.recording import stage_changes
from odfchain.odf.identity import Multihash
from odfchain.storage.local import HEAD
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeMode, MergeRecord, RecordedMerge, Resolution, merges
from odfchain.workspace.points import refs_of
from tests.kit.branch_cases import Scene, sorted_state
from tests.kit.verified import verify_dataset

Row = tuple[str, str, str, int]


class History:
    """A dataset on its head and a branch, both of which change at random and merge each other."""

    def __init__(self, seed: int, workspace: Workspace, folder: Path) -> None:
        self.random = random.Random(seed)
        self.workspace = workspace
        self.scene = Scene.of({"base": [f"{k}xy" for k in "123456"]}, workspace, folder, None)  # type: ignore[arg-type]
        self.scene.take({"branch": "theirs"})

    def rows(self, on: str) -> dict[str, tuple[Any, ...]]:
        dataset = self.scene.on(on)
        state = sorted_state(dataset, DatasetState.read(dataset.chain), ["k", "a", "b"])
        return {values[0]: (values, day) for _, day, values in state}

    def change(self, on: str) -> None:
        """One block of random changes."""
        before, rows = self.rows(on), list[str]()
        for key in self.random.sample("123456789", 3):
            old = before.get(key)
            new = f"{key}{self.random.choice('xqp')}{self.random.choice('yzw')} @{self.random.randint(1, 4)}"
            if old is None:
                rows.append(new)
                continue
            was = f"{''.join(old[0])} @{old[1]}"
            if self.random.random() < 0.25:
                rows.append(f"-R {was}")
            elif was != new:
                rows += [f"-C {was}", f"+C {new}"]
        if rows:
            self.scene.take({"on": on, "rows": rows})

    def merge(self) -> None:
        into, source = self.random.choice([(HEAD, "theirs"), (HEAD, "theirs"), ("theirs", HEAD)])
        dataset = self.workspace["d"]
        target = dataset if into == HEAD else dataset.branch(into)
        target.merge(
            source, by_row=self.random.random() < 0.3, resolve=self.random.choice(["ours", "theirs"])
        )

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.change(HEAD)
            self.change("theirs")
            self.merge()


def forged(
    dataset: DatasetFiles, merge: RecordedMerge, rows: pa.Table, record: MergeRecord, ref: str
) -> None:
    """The merge as it would be on another branch, with other rows and another record."""
    refs_of(dataset).compare_and_swap(ref, None, merge.record.target)
    branch = dataset.on(ref)
    before = DatasetState.read(branch.chain)
    time = merge.block.block.system_time
    with branch.staging() as staging:
        stage_changes(
            branch, before, rows if rows.num_rows else None, staging=staging, system_time=time, record=record
        ).commit(branch, before, time)


def mutated(rows: pa.Table, record: MergeRecord, dice: random.Random) -> tuple[pa.Table, MergeRecord, str]:
    """Something else in the place of what is right, and what it is."""
    found = rows.to_pylist()
    kinds = ["conflicts", "extra"]
    kinds += ["cell", "missing", "time"] if found else []
    if record.resolution is Resolution.NONE:
        kinds.append("resolution")
    kind = dice.choice(kinds)
    after = [row for row in found if row["op"] in (0, 3)]
    if kind == "cell" and after:
        dice.choice(after)["a"] = "forged"
    elif kind == "time" and after:
        row = dice.choice(after)
        row["event_time"] = row["event_time"].replace(hour=1)
    elif kind == "missing":
        key = dice.choice(found)["k"]
        found = [row for row in found if row["k"] != key]
    elif kind == "extra" or kind in ("cell", "time"):
        time = (
            found[0]["event_time"]
            if found
            else pa.scalar(0).cast(rows.schema.field("event_time").type).as_py()
        )
        found.append({"op": 0, "event_time": time, "k": "z", "a": "x", "b": "y"})
    elif kind == "conflicts":
        record = dataclasses.replace(record, conflicts=record.conflicts + 1)
    else:
        record = dataclasses.replace(record, conflicts=1, resolution=Resolution.OURS)
    return pa.Table.from_pylist(found, rows.schema), record, kind


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 6), *(pytest.param(n, 25, marks=pytest.mark.soak) for n in range(2, 10))]
)
def test_what_was_merged_passes_and_what_was_not_does_not(tmp_path: Path, seed: int, rounds: int) -> None:
    with Workspace.init(tmp_path / "workspace") as workspace:
        history = History(seed, workspace, tmp_path)
        history.play(rounds)
        count = 0
        for name in (HEAD, "theirs"):
            dataset = history.scene.on(name)
            report = verify_dataset(dataset)
            assert [fault for fault in report.faults if fault.check != SIGNATURE] == [], name
            found = merges(dataset.chain, DatasetState.read(dataset.chain).head)
            assert report.done.get(MERGES, 0) == len(found)
            count += len(found)
            for number, merge in enumerate(found[-3:] if rounds < 10 else found):
                assert merge.record.mode is MergeMode.MERGE
                ref = f"forged-{name}-{number}"
                rows = written(dataset, merge)
                forged(dataset, merge, *mutated(rows, merge.record, history.random)[:2], ref)
                faults = verify_dataset(dataset.on(ref)).faults
                assert {fault.check for fault in faults} & {MERGES, CORRECTIONS}, (ref, rows.to_pylist())
        assert count >= rounds - 2


def written(dataset: DatasetFiles, merge: RecordedMerge) -> pa.Table:
    """Operation and data of the rows of a merge block."""
    state = DatasetState.read(dataset.chain)
    rows = read_rows(
        Interval(dataset, merge.record.target, Multihash.parse(str(merge.block.hash))),
        MergedColumns.of(state),
    )
    return rows.drop_columns("offset")
