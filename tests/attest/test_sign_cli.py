"""The commands sign and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY, SignatureStatus
from odfchain.chain.signed_lines import AUDITS
from odfchain.storage.local import HEAD
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import Run, manifest


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in a workspace with one dataset."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cities.yaml").write_text(manifest())
    assert run("init").code == 0
    assert run("add", "cities.yaml").code == 0
    return run


def test_sign_says_what_was_signed(run: Run) -> None:
    result = run("sign", "cities", "-o", "json")
    cities = WorkspaceFiles.find(Path()).dataset("cities")
    (row,) = result.rows
    assert result.code == 0
    assert row["dataset"] == "cities"
    assert (row["sequenceNumber"], row["head"]) == (1, str(cities.chain.head()))
    assert row["signer"] == str(cities.id)
    assert str(cities.chain.head()) in run("sign", "cities").out


def test_sign_without_the_key_ends_in_one_line(run: Run) -> None:
    (key,) = Path(".odfchain/keys").iterdir()
    key.unlink()
    result = run("sign", "cities")
    assert (result.code, result.out) == (4, "")
    assert "is not in this workspace" in result.err
    assert len(result.err.splitlines()) == 1
    assert run("sign", "towns").code == 4


def test_signing_a_head_that_was_set_back_is_asked_for(run: Run) -> None:
    files = WorkspaceFiles.find(Path())
    cities = files.dataset("cities")
    head = cities.chain.head()
    first = cities.chain.hashes(head)[0]
    cities.chain.set_ref(HEAD, first, expected=head)
    before = (cities.folder / HEAD_SIGNATURE_KEY).read_bytes()
    refused = run("sign", "cities")
    assert refused.code == 2
    assert "set back" in refused.err
    assert (cities.folder / HEAD_SIGNATURE_KEY).read_bytes() == before
    (row,) = run("-y", "sign", "cities", "-o", "json").rows
    assert (row["sequenceNumber"], row["head"]) == (0, str(first))


def test_a_link_in_place_of_the_signature_is_replaced(run: Run, tmp_path: Path) -> None:
    cities = WorkspaceFiles.find(Path()).dataset("cities")
    path = cities.folder / HEAD_SIGNATURE_KEY
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    result = run("sign", "cities")
    assert result.code == 0
    assert "a link is not followed" in result.err
    assert not path.is_symlink()
    assert cities.head_signature().status is SignatureStatus.SIGNED
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_is_made_and_shown(run: Run) -> None:
    made = run("key", "create", "me.pem")
    assert made.code == 0
    assert made.out.startswith("did:key:z6Mk")
    (row,) = run("key", "show", "me.pem", "-o", "json").rows
    assert row["didKey"] == made.out.strip()
    assert row["didOdf"].startswith("did:odf:fed01")
    assert row["privateKeyHere"] is True
    assert made.out.strip() in run("key", "show", "me.pem").out
    again = run("key", "create", "me.pem")
    assert again.code == 5
    assert "already exists" in again.err


def test_the_key_of_a_dataset_is_shown_without_anything_private(run: Run) -> None:
    cities = WorkspaceFiles.find(Path()).dataset("cities")
    result = run("key", "show", "cities", "-o", "json")
    assert result.rows == [
        {"didKey": str(cities.id.as_did_key()), "didOdf": str(cities.id), "privateKeyHere": True}
    ]
    (key,) = Path(".odfchain/keys").iterdir()
    assert key.read_text().splitlines()[1] not in result.out
    key.unlink()
    assert json.loads(run("key", "show", "cities", "-o", "json").out)[0]["privateKeyHere"] is False


@pytest.mark.parametrize(("what", "code"), [("nobody", 4), ("missing.pem", 2), ("./cities.yaml", 2)])
def test_what_has_no_key_ends_in_one_error(run: Run, what: str, code: int) -> None:
    result = run("key", "show", what)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")


def test_attestations_are_listed_taken_in_and_judged(run: Run, tmp_path: Path) -> None:
    assert run("key", "create", "auditor.key").code == 0
    made = run("attest", "cities", "--key", "auditor.key", "--report", "report.json", "-o", "jws")
    assert made.code in (0, 7)
    assert json.loads((tmp_path / "report.json").read_text())["dataset"]["alias"] == "cities"
    (row,) = run("attestations", "cities", "-o", "json").rows
    assert (row["block"], row["trusted"]) == (1, False)

    kept = WorkspaceFiles.find(Path()).dataset("cities").folder / AUDITS.key
    kept.unlink()
    (tmp_path / "statement").write_text(made.out)
    assert run("attestations", "cities", "--add", "statement").code == 0
    assert kept.read_text() == made.out
    assert str(row["auditor"]) in run("attest", "cities", "--key", "auditor.key").out

    kept.write_text(made.out.replace(".", "A.", 1))
    listed = run("attestations", "cities")
    assert listed.code == 6
    assert "line 1: " in listed.out
    (tmp_path / "statement").write_bytes(b"\xff\xfe")
    refused = run("attestations", "cities", "--add", "statement")
    assert (refused.code, refused.out) == (2, "")
    assert "is not text" in refused.err
