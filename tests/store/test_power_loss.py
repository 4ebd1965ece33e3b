"""Promises 2 and 3: every disk that may be there after a loss of power is sound, and syncs come in their order."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.spark.session import SparkEngine
from tests.kit.power_scenes import SCENES, Promise, Scene, check_opened, faults_of, laid_out, reached
from tests.kit.recording_disk import RecordedDisk, Synced, disks_after_losses, recording
from tests.kit.run_length import scaled
from tests.kit.support import fixture, manifest

Note = Callable[[str, object], None]

COMBINATIONS = scaled(16, 200, 1_500)
"""Disks of a loss at one moment, at most: where there may be more, these are drawn."""
OPENED = scaled(2, 8, 25)
"""Disks of a scene that are opened, continued, and given the same command."""


def recorded(scene: Scene, folder: Path) -> RecordedDisk:
    """The scene, on a disk that is recorded."""
    scene.prepare(folder)
    with recording(folder) as disk:
        scene.work(folder, lambda *what: disk.acknowledge(what))
    return disk


def check_all(disk: RecordedDisk, scene: Scene, folder: Path, note: Note, opened: int = OPENED) -> None:
    """No disk has a fault; some of them, drawn by seed, are opened."""
    rng, chosen, count = random.Random(scene.name), [], 0
    for found in disks_after_losses(disk, COMBINATIONS):
        assert (faults_of(found, disk), found.after) == ([], found.after)
        count += 1
        if len(chosen) < opened:
            chosen.append(found)
        elif (at := rng.randrange(count)) < opened:
            chosen[at] = found
    for found in chosen:
        check_opened(laid_out(found, folder), scene)
    moments = sum(not isinstance(each, Synced) for each in disk.log)
    note("disks", count)
    note("moments", moments)
    note("opened", len(chosen))
    assert count > moments / 2
    assert len(chosen) == opened


@pytest.mark.parametrize("name", SCENES)
def test_nothing_promised_is_lost(name: str, tmp_path: Path, record_property: Note) -> None:
    disk = recorded(SCENES[name], tmp_path / "at")
    check_all(disk, SCENES[name], tmp_path / "at", record_property)


def test_nothing_promised_of_eight_files_is_lost(
    tmp_path: Path, engine: SparkEngine, record_property: Note
) -> None:
    """Slices that a JVM and pyarrow write are synced before a block names them."""
    files = [tmp_path / f"{number}.csv" for number in range(8)]
    for number, path in enumerate(files):
        path.write_text("city,population\n" + "".join(f"c{number}.{n},{n}\n" for n in range(200)))

    def opened(folder: Path) -> Workspace:
        workspace = Workspace.open(folder)
        workspace._engines.spark = engine
        return workspace

    def work(folder: Path, promise: Promise) -> None:
        dataset = opened(folder)["d"]
        dataset.ingest(files, event_time="2049-01-01T00:00:00Z", system_time="2050-01-01T00:00:00Z")
        promise(reached(folder, dataset._files))

    scene = Scene("ingest", lambda folder: Workspace.init(folder).add(manifest(name="d")), work)
    disk = recorded(scene, tmp_path / "at")
    assert len(opened(tmp_path / "at")["d"].scan().to_arrow()) == 1_600
    check_all(disk, scene, tmp_path / "at", record_property, opened=scaled(1, 3, 8))


# --- the order ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["commit", "pull", "merge"])
def test_the_operations_are_those_that_are_written_down(name: str, tmp_path: Path) -> None:
    """Any that is new, gone, or at another place fails: `fixtures/power_loss/operations.yaml`."""
    assert recorded(SCENES[name], tmp_path / "at").operations == fixture("power_loss/operations.yaml")[name]


@pytest.mark.parametrize(
    "name", ["commit", *(pytest.param(name, marks=pytest.mark.soak) for name in SCENES if name != "commit")]
)
def test_a_sync_that_is_left_out_is_noticed(name: str, tmp_path: Path, record_property: Note) -> None:
    """Left out one at a time: in most places that loses something, as the fixture says which do not."""
    disk = recorded(SCENES[name], tmp_path / "at")
    texts = [text.removeprefix("sync ") for text in disk.texts if text.startswith("sync ")]
    assert len(texts) == sum(isinstance(each, Synced) for each in disk.log)

    def noticed(left_out: int | None) -> bool:
        return any(
            faults_of(found, disk)
            for found in disks_after_losses(disk, scaled(20, 60, 60), leave_out=left_out)
        )

    assert not noticed(None)
    unnoticed = [text for number, text in enumerate(texts) if not noticed(number)]
    record_property("left out", len(texts))
    record_property("noticed", len(texts) - len(unnoticed))
    assert set(unnoticed) <= set(fixture("power_loss/operations.yaml")["unnoticed"].get(name, []))


# --- the model ---------------------------------------------------------------------------------------------


def disks(disk: RecordedDisk) -> list[dict[str, Any]]:
    return [found.files for found in disks_after_losses(disk, 10_000)]


def test_what_is_not_synced_is_there_in_part_as_zeros_or_not_at_all(tmp_path: Path) -> None:
    with recording(tmp_path) as disk:
        (tmp_path / "a").write_bytes(b"x" * 1_000)
    found = disks(disk)
    for content in (b"", b"x" * 512, b"x" * 1_000, b"x" * 512 + bytes(488), bytes(1_000)):
        assert {"a": content} in found
    assert {} in found


def test_a_rename_is_done_or_not_and_a_sync_of_its_folder_is_the_end_of_that(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"new")
    with recording(tmp_path) as disk:
        (tmp_path / "b").replace(tmp_path / "a")
    assert disks(disk) == [{"a": b"old", "b": b"new"}, {"a": b"new"}]
