"""`odfchain profile`: what is said beside the statistics, and what is stored and signed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.chain.statements import create_key_file
from odfchain.cli.main import main
from odfchain.odf import events as ev
from odfchain.odf import sources as src
from odfchain.profiles.reader import read_profile
from tests.kit.branch_rows import add, keyed, record


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace.init(tmp_path / "ws")
    files = keyed(made)
    record(files, [("+A", n, f"k{n}", "x", None) for n in range(5)])
    record(files, [("-C", 1, "k1", "x", None), ("+C", 1, "k1", "y", None), ("-R", 2, "k2", "x", None)])
    return made


def run(workspace: Workspace, *args: str) -> int:
    return main(["--workspace", str(workspace.path.parent), *args])


def test_what_is_said_of_a_block_and_its_source(workspace: Workspace) -> None:
    found = workspace["d"].profile().document
    assert (found["source_type"], found["dataset_path"]) == ("push", f"odf:{workspace['d'].id}")
    assert found["transform_description"] == "1 corrected, 1 retracted"
    assert workspace["d"].at(3).profile().document["transform_description"] == "5 added"
    assert workspace["d"].profile(description="cleaned").document["transform_description"] == "cleaned"
    poll = src.FetchStepUrl(url="https://user:secret@example.org/a.csv?key=${{ env.KEY }}&token=secret")
    merge = src.MergeStrategySnapshot(primary_key=("k",))
    add(workspace["d"]._files, ev.DisablePushSource(source_name="default"))
    add(workspace["d"]._files, ev.SetPollingSource(fetch=poll, read=src.ReadStepCsv(), merge=merge))
    found = workspace["d"].profile().document
    assert (found["source_type"], found["dataset_path"]) == (
        "http",
        "https://example.org/a.csv?key=${{ env.KEY }}&token=…",
    )
    assert found["transform_description"] == "", "the block has no rows"


def test_a_profile_is_stored_and_signed(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(workspace, "profile", "d", "--stage", "raw", "--write", "-o", "json") == 0
    out, err = capsys.readouterr()
    (line,) = workspace["d"].published()
    document = read_profile(out.encode())
    assert document == json.loads(workspace["d"].published_document(line))
    assert document["created_by"] == str(workspace["d"].id)
    assert f"profile {line.object} is stored and signed" in err
    key = tmp_path / "auditor.pem"
    create_key_file(key)
    assert run(workspace, "profile", "d", "--key", str(key), "-o", "html") == 0
    (mine, other) = workspace["d"].published()
    assert (mine.by_owner(), other.by_owner()) == (True, False)
    theirs = json.loads(workspace["d"].published_document(other))
    assert theirs["created_by"] == str(other.signer)
    assert theirs["created_by"].startswith("did:key:")


def test_what_is_not_here_is_said(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(workspace, "inspect", "profile", "d") == 4
    assert "hint: `odfchain profile d` makes one" in capsys.readouterr().err
    assert run(workspace, "profile", "d", "--tag", "x") == 2
