"""Settings of one dataset in place of the workspace's."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.api.settings import Configuration, DatasetConfiguration
from odfchain.api.workspace import Workspace
from odfchain.errors import ManifestError, OdfchainError, UsageError
from odfchain.workspace.config import ProfileWhen
from tests.kit.branch_rows import keyed

POLICY = "kind: DriftPolicy\nversion: 1\n"


def test_a_dataset_has_its_own_until_they_are_unset(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    files = keyed(workspace)
    for name in ("all.yaml", "own.yaml"):
        (tmp_path / name).write_text(POLICY)
    shared, own = Configuration(workspace.path), DatasetConfiguration.of(workspace["d"])
    shared.set("snapshots.guard", ["all.yaml"])
    assert own.get("snapshots.guard") is None
    assert own.set("snapshots.guard", ["own.yaml"]) == "snapshots.guard"
    own.set("snapshots.profile", ["commit"])
    assert list(own.all()) == [
        ("snapshots.profile", "commit", False), ("snapshots.guard", "own.yaml", False),
        ("pull.every", None, True),
    ]  # fmt: skip
    found = workspace._files.config.snapshots.of(files)
    assert (found.guard, found.profile) == ("own.yaml", ProfileWhen.COMMIT)
    workspace.rename("d", "e")
    assert DatasetConfiguration.of(workspace["e"]).get("snapshots.guard") == "own.yaml"
    own.set("snapshots.guard", [""])
    assert workspace._files.config.snapshots.of(files).guard == ""
    for name in ("snapshots.guard", "snapshots.profile"):
        own.unset(name)
    found = workspace._files.config.snapshots.of(files)
    assert (found.guard, found.profile) == ("all.yaml", ProfileWhen.DEMAND)
    assert "snapshots" not in own.file.read_text()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("snapshots.guard", "nothing.yaml", UsageError, "nothing.yaml: no such file"),
        ("snapshots.guard", "other.yaml", ManifestError, "kind: must be 'DriftPolicy'"),
        ("snapshots.profile", "sometimes", OdfchainError, "sometimes"),
    ],
)
@pytest.mark.parametrize("dataset", [None, "d"])
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, dataset: str | None, name: str, value: str, error: type[Exception], message: str
) -> None:
    workspace = Workspace.init(tmp_path)
    keyed(workspace)
    (tmp_path / "other.yaml").write_text("kind: Other\n")
    settings = (
        Configuration(workspace.path) if dataset is None else DatasetConfiguration.of(workspace[dataset])
    )
    before = list(settings.all())
    with pytest.raises(error, match=message):
        settings.set(name, [value])
    assert list(settings.all()) == before


def test_other_settings_are_of_the_workspace(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    keyed(workspace)
    with pytest.raises(UsageError, match=r"share\.parallel is of the whole workspace"):
        DatasetConfiguration.of(workspace["d"]).set("share.parallel", ["3"])
