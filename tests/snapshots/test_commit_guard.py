"""Profiles at commits: what drifts too far is refused as a whole, and the profile of the new head is written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.errors import IngestError, ManifestError, StoreError, UsageError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.profiles import published
from odfchain.profiles.published import KeptParts, object_of
from odfchain.profiles.published import published as published_objects
from odfchain.workspace.config import DatasetConfig, OwnSnapshots, ProfileWhen, change_config
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.branch_rows import add, keyed, record, schema_event, schema_with
from tests.kit.support import Notes, unchanged

POLICY = "kind: DriftPolicy\nversion: 1\ncontent: {minRows: 10}\n"
COLUMNS = (pa.field("k", pa.string()), pa.field("country", pa.string()), pa.field("people", pa.int64()))
ROWS = [("+A", n, f"k{n}", "DE" if n % 2 else "FR", n) for n in range(40)]


class Scene:
    """A dataset of 40 rows whose commits are held to a policy."""

    def __init__(self, folder: Path, *, guard: str = "drift.yaml", profile: str = "demand") -> None:
        self.folder = folder
        self.workspace = Workspace.init(folder)
        settings = f"{{profile: {profile}, guard: '{guard}'}}"
        (folder / ".odfchain" / "config.yaml").write_text(
            f"kind: WorkspaceConfig\nversion: 1\ncontent: {{snapshots: {settings}}}\n"
        )
        (folder / "drift.yaml").write_text(POLICY)
        self.files = keyed(self.workspace, columns=COLUMNS, merge="Snapshot")
        record(self.files, ROWS, COLUMNS)

    @property
    def dataset(self) -> Dataset:
        return self.workspace["d"]

    def fixes(self, rows: list[dict[str, Any]]) -> Path:
        """A file of corrections."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path = self.folder / "fixes.csv"
        path.write_text(text.getvalue())
        return path

    def all_french(self) -> Path:
        """What changes a column beyond the limits."""
        return self.fixes([{"k": f"k{n}", "country": "FR"} for n in range(40)])

    def one_german_less(self) -> Path:
        return self.fixes([{"k": "k1", "country": "FR"}])

    def profiles(self) -> list[dict[str, Any]]:
        """What was written, the newest first."""
        files = self.dataset._files
        lines = published_objects(files, SnapshotKind.PROFILE)
        return [json.loads(object_of(files, line)) for line in lines]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_what_drifts_too_far_is_refused_as_a_whole(scene: Scene, tmp_path: Path) -> None:
    file = scene.all_french()
    with unchanged(scene.dataset.path), pytest.raises(IngestError) as caught:
        scene.dataset.correct(file)
    assert caught.value.exit_code == 3
    assert caught.value.message == (
        "d: 1 limit is exceeded, nothing was committed: country js 0.557923, limit 0.1 (FR 50.0 % → 100.0 %)"
    )
    assert caught.value.hint == (
        f"if this is intended, run again with --allow-drift, or raise the limits in {tmp_path / 'drift.yaml'}"
    )
    (kept,) = KeptParts(scene.files).folder.iterdir()
    (first,) = scene.dataset.summary.slices()
    assert kept.name.startswith(str(first.slice.physical_hash))


def test_what_is_within_the_limits_or_allowed_is_committed(scene: Scene) -> None:
    assert scene.dataset.correct(scene.one_german_less()).operations == {"-C": 1, "+C": 1}
    assert scene.dataset.correct(scene.all_french(), allow_drift=True).operations == {"-C": 19, "+C": 19}


def test_the_first_rows_have_nothing_to_be_compared_with(scene: Scene) -> None:
    other = keyed(scene.workspace, columns=COLUMNS, name="e", merge="Snapshot")
    scene.workspace["e"].correct(
        scene.fixes([{"k": "a", "country": "x", "event_time": "2026-01-01"}]), allow_new=True
    )
    assert DatasetState.read(other.chain).record_count == 1


def test_a_column_that_is_new_since_the_last_rows_is_noticed(scene: Scene, tmp_path: Path) -> None:
    """Also where the schema changed in a block of its own."""
    add(scene.files, schema_event(schema_with(*COLUMNS, pa.field("area", pa.float64()))))
    (tmp_path / "drift.yaml").write_text(POLICY.replace("minRows: 10", "schema: {added: fail}"))
    with pytest.raises(IngestError, match=r"area schema added \(float64 is new\)"):
        scene.dataset.correct(scene.one_german_less())


def test_a_merge_is_judged_and_so_is_moving_to_a_branch(scene: Scene) -> None:
    scene.dataset.create_branch("proposed").correct(scene.all_french(), allow_drift=True)
    head = scene.dataset.head
    for how in ({"fast_forward": True}, {}, {"dry_run": True}):
        with pytest.raises(IngestError, match="country js"):
            scene.dataset.merge("proposed", **how)
        assert scene.dataset.head == head
    merged = scene.dataset.merge("proposed", allow_drift=True).head
    assert merged != head
    with pytest.raises(IngestError, match="country js"):
        scene.dataset.revert(merged)
    assert not scene.dataset.revert(merged, allow_drift=True).up_to_date


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, UsageError, r"snapshots.guard: .*drift.yaml: no such file"),
        ("kind: Other\n", ManifestError, "kind: must be 'DriftPolicy'"),
    ],
)
def test_without_its_policy_nothing_is_let_through(
    scene: Scene, tmp_path: Path, text: str | None, error: type[Exception], message: str
) -> None:
    (tmp_path / "drift.yaml").unlink()
    if text is not None:
        (tmp_path / "drift.yaml").write_text(text)
    head = scene.dataset.head
    with pytest.raises(error, match=message):
        scene.dataset.correct(scene.one_german_less())
    assert scene.dataset.head == head


def test_a_dataset_may_have_another_policy_or_none(scene: Scene, tmp_path: Path) -> None:
    change_config(scene.files, lambda _: DatasetConfig(snapshots=OwnSnapshots(guard="own.yaml")))
    (tmp_path / "own.yaml").write_text(POLICY.replace("minRows: 10", "minRows: 10, columns: {country: skip}"))
    assert not scene.dataset.correct(scene.all_french()).up_to_date
    change_config(scene.files, lambda _: DatasetConfig(snapshots=OwnSnapshots(guard="")))
    assert not scene.dataset.correct(
        scene.fixes([{"k": f"k{n}", "country": "X"} for n in range(40)])
    ).up_to_date
    change_config(scene.files, lambda _: DatasetConfig())
    with pytest.raises(IngestError):
        scene.dataset.correct(scene.all_french())


@pytest.mark.parametrize("guard", ["", "drift.yaml"])
def test_a_commit_writes_the_profile_of_the_new_head(tmp_path: Path, guard: str) -> None:
    scene = Scene(tmp_path, guard=guard, profile="commit")
    for row in ({"k": "k1", "country": "FR"}, {"k": "k2", "people": 7}):
        scene.dataset.correct(scene.fixes([row]))
        (newest, *_) = scene.profiles()
        again = scene.dataset.profile()
        assert canonical_bytes(newest) == again.content
        assert newest["snapshot_id"] == str(scene.dataset.head)
    assert [found["odf"]["sequence_number"] for found in scene.profiles()] == [5, 4]


def test_a_commit_without_rows_writes_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path, profile="commit")
    scene.dataset.set_watermark("2026-02-12T00:00:00Z")
    assert scene.profiles() == []


def test_a_profile_that_cannot_be_written_is_said_and_the_commit_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, guard="", profile="commit")
    said = Notes()

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("no room")

    monkeypatch.setattr(published, "store_of_kind", full)
    outcome = scene.dataset.correct(scene.one_german_less(), progress=said)
    assert outcome.head == scene.dataset.head
    assert said.texts == ["the profile was not written: no room"]


def test_a_dataset_may_be_profiled_at_commits_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, guard="")
    change_config(scene.files, lambda _: DatasetConfig(snapshots=OwnSnapshots(profile=ProfileWhen.COMMIT)))
    scene.dataset.correct(scene.one_german_less())
    assert len(scene.profiles()) == 1
