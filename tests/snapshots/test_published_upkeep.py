"""Upkeep keeps what signed lines of a dataset's blocks name, and takes away the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.chain.signed_lines import SNAPSHOTS
from odfchain.limits import AttestLimits
from odfchain.odf.identity import DatasetKey
from odfchain.profiles.published import object_of
from odfchain.storage import fsio
from odfchain.transfer import snapshot_objects
from odfchain.upkeep.fsck import State
from odfchain.upkeep.garbage import collect
from odfchain.workspace.options import GcOptions
from tests.kit.query_datasets import make
from tests.kit.snapshot_columns import fixture
from tests.kit.support import tree_of
from tests.kit.upkeep_scenes import later

DROP = GcOptions(drop_refs=True)


@pytest.fixture
def workspace(tmp_path: Path) -> odf.Workspace:
    return odf.init(tmp_path / "ws")


@pytest.fixture
def cities(workspace: odf.Workspace) -> odf.Dataset:
    make(workspace, "cities", fixture("manifests")["dataset"])
    dataset = workspace["cities"]
    dataset.at(2).write_manifest()
    dataset.write_manifest()
    dataset.write_profile()
    return dataset


def stored(dataset: odf.Dataset) -> set[str]:
    """The files of both kinds, temporary ones, too."""
    return {path.name for kind in ("manifests", "profiles") for path in (dataset.path / kind).glob("*")}


def named(dataset: odf.Dataset) -> set[str]:
    return {str(line.object) for line in dataset.published()}


def test_garbage_collection_keeps_what_a_line_names_and_removes_the_rest(cities: odf.Dataset) -> None:
    better = cities.write_profile(cities.profile(stage="other"))
    assert (len(stored(cities)), len(named(cities))) == (4, 3)
    for folder in ("manifests", "profiles"):
        (cities.path / folder / f"{fsio.TEMP_PREFIX}left").write_bytes(b"x")
    before = tree_of(cities.path)
    planned = collect(cities._files, GcOptions(dry_run=True), now=later)
    assert tree_of(cities.path) == before
    done = collect(cities._files, now=later)
    assert planned.removed == done.removed
    removed = {item.kind: item.files for item in done.removed}
    assert (removed["profiles"], removed["unfinished files"]) == (1, 2)
    assert stored(cities) == named(cities)
    assert str(better.object) in stored(cities)


def test_what_is_young_stays(cities: odf.Dataset) -> None:
    cities.write_profile(cities.profile(stage="other"))
    found = collect(cities._files)
    assert (found.young.files, len(stored(cities))) == (1, 4)


def test_a_reset_leaves_lines_out_and_gives_them_back_until_the_old_head_is_dropped(
    cities: odf.Dataset,
) -> None:
    old, all_lines = cities.head, cities.published()
    cities.reset(2, force=True)
    assert [line.sequence_number for line in cities.published()] == [2]
    collect(cities._files, now=later)
    assert len(stored(cities)) == 3
    cities.reset(old)
    assert cities.published() == all_lines
    cities.reset(2, force=True)
    collect(cities._files, DROP, now=later)
    assert stored(cities) == named(cities)
    (line,) = SNAPSHOTS.lines_of(SNAPSHOTS.content(cities.path), cities.id)
    assert line.statement == cities.published()[0]


def test_lines_go_with_the_last_of_their_blocks(cities: odf.Dataset) -> None:
    cities.reset(1, force=True)
    collect(cities._files, DROP, now=later)
    assert not (cities.path / SNAPSHOTS.key).exists()
    assert stored(cities) == set()


def test_hard_compaction_keeps_what_describes_blocks_that_stay(workspace: odf.Workspace) -> None:
    spec = fixture("manifests")["dataset"]
    make(workspace, "cities", spec | {"blocks": [each for each in spec["blocks"] if "event" not in each]})
    cities = workspace["cities"]
    for block in (1, 3):
        cities.at(block).write_manifest()
    cities.compact()
    assert len(cities.manifest().files) == 1
    assert [line.sequence_number for line in cities.published()] == [1]
    written = cities.write_manifest()
    assert written.published
    collect(cities._files, DROP, now=later)
    assert stored(cities) == named(cities)
    assert cities.published_document(cities.published()[0]) == cities.manifest().content


def test_another_name_changes_nothing(workspace: odf.Workspace, cities: odf.Dataset) -> None:
    lines = cities.published()
    workspace.rename("cities", "towns")
    assert workspace["towns"].published() == lines
    assert workspace["towns"].published_document(lines[0])


def test_fsck_repairs_what_is_damaged_and_does_not_miss_what_comes_on_demand(
    cities: odf.Dataset, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    cities.push(place.as_uri())
    newest, profile, older = cities.published()
    (cities.path / "manifests" / str(older.object)).unlink()
    path = cities.path / "manifests" / str(newest.object)
    good = path.read_bytes()
    assert cities.fsck().findings == []
    path.write_bytes(good[:-1])
    (cities.path / "profiles" / str(profile.object)).write_bytes(b"")
    found = cities.fsck().findings
    assert [(each.kind, each.state) for each in found] == [
        ("manifest", State.BROKEN), ("profile", State.BROKEN),
    ]  # fmt: skip
    assert all("it can be made again" in (each.hint or "") for each in found)
    dry = cities.fsck(dry_run=True).findings
    assert {each.state for each in dry} == {State.BROKEN}
    report = cities.fsck(place.as_uri())
    assert {each.state for each in report.findings} == {State.REPAIRED}
    assert path.read_bytes() == good
    assert cities.fsck().findings == []


def test_a_lying_size_is_no_damage(cities: odf.Dataset) -> None:
    key, line = DatasetKey.generate(), cities.published()[0]
    lie = replace(line, signer=key.dataset_id.as_did_key(), size=line.size + 7)
    SNAPSHOTS.add(cities.path, cities.id, lie.sign(key))
    assert cities.fsck().findings == []


def test_a_copy_without_the_older_objects_is_whole(
    cities: odf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cities.push((tmp_path / "place").as_uri())
    monkeypatch.setattr(snapshot_objects, "ATTEST", AttestLimits(snapshots_pulled=1))
    other = odf.init(tmp_path / "other")
    copy = other.pull((tmp_path / "place").as_uri(), name="cities").dataset
    assert len(stored(copy)) == 1
    assert copy.fsck().findings == []
    assert copy.verify().ok
    collect(copy._files, now=later)
    assert object_of(copy._files, copy.published()[0])
