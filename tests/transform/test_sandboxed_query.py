"""A query of a dataset that was not created here runs in the sandbox, and without a sandbox not at all."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError
from tests.kit.support import FIXTURES


@pytest.fixture
def foreign(tmp_path: Path) -> Workspace:
    """Datasets without their keys, and a workspace with the settings that one has from the start."""
    with zipfile.ZipFile(FIXTURES / "chains" / "rules-1.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / ".odfchain" / "config.yaml").unlink(missing_ok=True)
    return Workspace.open(tmp_path)


@pytest.mark.soak
def test_a_replay_in_the_sandbox_finds_what_was_recorded(foreign: Workspace) -> None:
    (report,) = foreign.verify(["totals"], replay=True)
    assert (report.faults, report.unchecked) == ([], [])
    # the index is one of an earlier release, whose rows were shorter
    assert [note for note in report.notes if "chain-index" not in note] == []
    assert report.replay is not None
    assert report.replay.transactions == 4
    assert foreign._engines.spark is None or not foreign._engines.spark.started


def test_without_a_sandbox_the_query_is_not_run(
    foreign: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="bubblewrap is not installed") as caught:
        foreign.verify(["totals"], replay=True)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("apt-get install bubblewrap; ")
