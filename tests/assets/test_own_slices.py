"""Locks of a dataset's own slices: whatever a place says, hashes decide."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.assets.locks import AssetLock
from odfchain.assets.objects import StoreOptions
from odfchain.errors import CorruptedPeerError, SourceNotFoundError, UsageError
from tests.kit.query_datasets import make
from tests.kit.small_branches import SPEC, add
from tests.kit.support import Run

Published = tuple[odf.Dataset, Path]


@pytest.fixture
def published(tmp_path: Path) -> Published:
    """A dataset of three slices, and a folder where they lie, too."""
    workspace = odf.init(tmp_path / "owner")
    make(workspace, "d", SPEC)
    dataset = workspace["d"]
    add(dataset, "c")
    place = tmp_path / "lake"
    shutil.copytree(dataset.path / "data", place / "data")
    return dataset, place


def copy_without_slices(dataset: odf.Dataset, tmp_path: Path) -> odf.Dataset:
    dataset.push((tmp_path / "published").as_uri())
    other = odf.init(tmp_path / "other")
    other.pull((tmp_path / "published").as_uri() + "/", name="d", metadata_only=True)
    return other["d"]


def test_case_50_slices_come_from_where_a_lock_says(published: Published, tmp_path: Path) -> None:
    dataset, place = published
    lock = dataset.slices_lock(str(place))
    assert [row.asset_key.partition("/")[0] for row in lock.rows] == ["data"] * 3
    assert all(f"f{row.facts.file_checksum}" == row.asset_key.partition("/")[2] for row in lock.rows)
    lock.write(tmp_path / "slices.lock.parquet")
    copied = copy_without_slices(dataset, tmp_path)
    read = AssetLock.read(tmp_path / "slices.lock.parquet")
    copied.fetch_from_locks([read], stores=StoreOptions(trust_files=True))
    assert copied.verify().verdict == "clean"


def test_case_50_a_flipped_byte_is_refused_unless_another_has_it(
    published: Published, tmp_path: Path
) -> None:
    dataset, place = published
    moved = dataset.slices_lock(str(place)).relocate(
        str(tmp_path / "mirror"), layout="source-key", prefix=place.as_uri()
    )
    assert not moved.faults
    good = dataset.slices_lock(str(place))
    victim = next((place / "data").iterdir())
    data = bytearray(victim.read_bytes())
    data[50] ^= 1
    victim.write_bytes(data)
    refused = good.relocate(str(tmp_path / "second"))
    names = [Path(row.location.key).name for row in refused.rows]
    assert names == [row.asset_key.partition("/")[2] for row in refused.rows], "what slices are called stays"
    assert [fault.error.exit_code for fault in refused.faults] == [6]
    copied = copy_without_slices(dataset, tmp_path)
    with pytest.raises(CorruptedPeerError) as error:
        copied.fetch_from_locks([good])
    assert error.value.exit_code == 6
    copied.fetch_from_locks([good, moved])
    assert copied.verify().verdict == "clean"


def test_a_lock_of_another_dataset_is_no_help(published: Published, tmp_path: Path) -> None:
    dataset, place = published
    third = odf.init(tmp_path / "third")
    make(third, "x", SPEC)
    with pytest.raises(UsageError, match="no row of the lock is of this dataset"):
        third["x"].fetch_from_locks([dataset.slices_lock(str(place))])
    with pytest.raises(SourceNotFoundError):
        dataset.slices_lock(str(tmp_path / "nowhere"))


def test_the_command_makes_a_lock_of_slices_and_fetches_by_it(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    dataset, place = published
    monkeypatch.chdir(tmp_path)
    derive, slices = (
        ["-w", "owner", "assets", "derive", "--output", "l.parquet"],
        ["--slices", "d", "--at", place],
    )
    assert run(*derive, *slices).code == 0
    copied = copy_without_slices(dataset, tmp_path)
    assert run("-w", "other", "fetch", "d", "--lock", "l.parquet").code == 0, "relative paths are ours"
    assert copied.verify().verdict == "clean"
    assert run(*derive, *slices, "--allow-retract").code == run(*derive).code == 2
