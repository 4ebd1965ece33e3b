"""Datasets that are verified where they are: in a folder, and behind a server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY
from odfchain.chain.signed_lines import AUDITS
from odfchain.chain.statements import create_key_file
from odfchain.odf.identity import DidKey
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.derived_dataset import FIRST, SECOND, on_paper
from tests.kit.report_documents import SCHEMA, Document
from tests.kit.support import Run
from tests.kit.web_peers import by_threads


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A signed root dataset that someone else publishes."""

    url: str
    workspace: Workspace
    dataset: DatasetFiles
    other: DatasetFiles

    @property
    def folder(self) -> Path:
        return self.dataset.folder

    def slices(self) -> list[Path]:
        found = DatasetState.read(self.dataset.chain).slices()
        return [Path(self.dataset.data.locate(item.slice.physical_hash)) for item in found]


@pytest.fixture(params=["folder", "static", "server"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    workspace = Workspace.init(tmp_path / "elsewhere")
    root, copied = on_paper(workspace, FIRST, SECOND)
    if request.param == "folder":
        yield Elsewhere(f"{root.folder.as_uri()}/", workspace, root, copied)
        return
    if request.param == "static":
        with by_threads(root.folder, "HTTP/1.0") as web:
            yield Elsewhere(f"http://127.0.0.1:{web.port}/", workspace, root, copied)
        return
    with RepositoryServer(WorkspaceFiles.find(tmp_path / "elsewhere")) as server:
        yield Elsewhere(f"{server.url}readings/", workspace, root, copied)


Verify = Callable[..., tuple[int, Document]]


@pytest.fixture
def verify(tmp_path: Path, elsewhere: Elsewhere, run: Run) -> Iterator[Verify]:
    """(exit code, report) of a verification; afterwards nothing of the dataset is in the workspace."""
    here = tmp_path / "here"
    Workspace.init(here)

    def verified(*args: object) -> tuple[int, Document]:
        result = run("-w", here, "verify", "--remote", elsewhere.url, *args, "-o", "json")
        (report,) = result.rows
        SCHEMA.validate(report)
        assert str(here) not in json.dumps(report)
        return result.code, report

    yield verified
    left = [p for p in (here / ".odfchain" / "run").rglob("*") if p.is_file() and p.name != ".lock"]
    assert left == []
    assert len(Workspace.open(here)) == 0


def places(report: Document) -> set[tuple[int, str]]:
    return {(fault["check"], fault["file"]) for fault in report["faults"]}


def replace(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_dataset_elsewhere_is_verified_with_its_signature(verify: Verify, elsewhere: Elsewhere) -> None:
    code, report = verify("--require-signature")
    assert (code, report["verdict"], report["counts"]["records"]) == (0, "clean", 6)
    signature = report["signature"]
    assert (signature["status"], signature["signer"]) == ("signed", str(elsewhere.dataset.id))
    assert report["checks"][15]["state"] == "passed"


def test_faults_elsewhere_name_the_objects_there_all_at_once(verify: Verify, elsewhere: Elsewhere) -> None:
    one, other = elsewhere.slices()
    one.unlink()
    data = bytearray(other.read_bytes())
    data[9] ^= 1
    replace(other, bytes(data))
    code, report = verify()
    assert (code, report["counts"]["blocks"]) == (6, 4)
    assert places(report) == {
        (5, f"{elsewhere.url}data/{one.name}"),
        (6, f"{elsewhere.url}data/{other.name}"),
    }
    assert {fault["sequenceNumber"] for fault in report["faults"]} == {2, 3}


def test_a_slice_of_another_length_elsewhere(verify: Verify, elsewhere: Elsewhere) -> None:
    path = elsewhere.slices()[0]
    replace(path, path.read_bytes() + b"x")
    code, report = verify()
    assert (code, {file for _, file in places(report)}) == (6, {f"{elsewhere.url}data/{path.name}"})


def test_a_block_that_a_peer_does_not_give(verify: Verify, elsewhere: Elsewhere) -> None:
    head = (elsewhere.folder / "refs" / "head").read_text().strip()
    (elsewhere.folder / "blocks" / head).unlink()
    code, report = verify()
    expected = {(1, f"{elsewhere.url}refs/head"), (2, f"{elsewhere.url}blocks/{head}")}
    assert (code, places(report)) == (6, expected), "either may be the wrong one"


def test_a_block_with_other_bytes(verify: Verify, elsewhere: Elsewhere) -> None:
    chain = elsewhere.dataset.chain
    before = chain.get(chain.head()).prev_block_hash
    path = elsewhere.folder / "blocks" / str(before)
    replace(path, path.read_bytes()[:-1] + b"x")
    code, report = verify()
    assert (code, places(report)) == (6, {(2, f"{elsewhere.url}blocks/{before}")})


def test_no_dataset_elsewhere(verify: Verify, elsewhere: Elsewhere) -> None:
    (elsewhere.folder / "refs" / "head").unlink()
    code, report = verify()
    assert (code, places(report)) == (6, {(1, f"{elsewhere.url}refs/head")})


def test_a_replay_elsewhere_is_refused(elsewhere: Elsewhere, tmp_path: Path, run: Run) -> None:
    Workspace.init(tmp_path / "here")
    result = run("-w", tmp_path / "here", "verify", "--remote", elsewhere.url, "--replay")
    assert (result.code, "pull the datasets" in result.err) == (2, True)


def test_a_stripped_signature_is_a_fault_where_one_is_required(verify: Verify, elsewhere: Elsewhere) -> None:
    (elsewhere.folder / HEAD_SIGNATURE_KEY).unlink()
    code, report = verify()
    found = report["signature"]["status"], report["checks"][15]["state"]
    assert (code, *found) == (0, "unsigned", "notChecked")
    code, report = verify("--require-signature")
    assert (code, places(report)) == (6, {(16, f"{elsewhere.url}{HEAD_SIGNATURE_KEY}")})


@pytest.mark.parametrize("damage", ["flipped", "cut", "nonsense", "empty"])
def test_a_damaged_signature_is_a_fault(verify: Verify, elsewhere: Elsewhere, damage: str) -> None:
    path = elsewhere.folder / HEAD_SIGNATURE_KEY
    data = path.read_bytes()
    replace(
        path,
        {
            "flipped": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
            "cut": data[:-1],
            "nonsense": b"no signature\n",
            "empty": b"",
        }[damage],
    )
    code, report = verify()
    assert (code, places(report)) == (6, {(16, f"{elsewhere.url}{HEAD_SIGNATURE_KEY}")})
    assert report["signature"]["status"] == "invalid"


def test_the_signature_of_another_dataset_elsewhere(verify: Verify, elsewhere: Elsewhere) -> None:
    shutil.copy(elsewhere.other.folder / HEAD_SIGNATURE_KEY, elsewhere.folder / HEAD_SIGNATURE_KEY)
    code, report = verify()
    (fault,) = report["faults"]
    assert (code, fault["check"], "another dataset" in fault["message"]) == (6, 16, True)


@pytest.mark.parametrize("elsewhere", ["folder", "static"], indirect=True)
def test_a_signature_that_cannot_be_read_is_not_known(verify: Verify, elsewhere: Elsewhere) -> None:
    """It proves nothing against the owner, and it is not what was required."""
    path = elsewhere.folder / HEAD_SIGNATURE_KEY
    replace(path, b"x" * 10_000_000)
    code, report = verify()
    assert (code, report["signature"]["status"], report["faults"]) == (0, "notChecked", [])
    assert "cannot be read" in report["checks"][15]["reason"]
    code, report = verify("--require-signature")
    assert (code, report["verdict"], report["unchecked"][0]["check"]) == (7, "incomplete", 16)


def test_attestations_elsewhere_are_read(verify: Verify, elsewhere: Elsewhere, tmp_path: Path) -> None:
    key = create_key_file(tmp_path / "auditor.pem")
    elsewhere.workspace["readings"].attest(tmp_path / "auditor.pem")
    code, report = verify()
    (line,) = report["attestations"]
    assert (code, line["auditor"]) == (0, str(DidKey(key.dataset_id.public_key)))
    assert (line["sequenceNumber"], line["verdict"], line["trusted"]) == (3, "clean", False)


def test_damaged_attestations_elsewhere_are_a_fault(
    verify: Verify, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    create_key_file(tmp_path / "auditor.pem")
    elsewhere.workspace["readings"].attest(tmp_path / "auditor.pem")
    path = elsewhere.folder / AUDITS.key
    replace(path, path.read_bytes()[:-20] + b"\n")
    code, report = verify()
    assert (code, places(report)) == (6, {(16, f"{elsewhere.url}{AUDITS.key}")})
    assert report["signature"]["status"] == "signed"


@pytest.mark.parametrize("elsewhere", ["folder", "static"], indirect=True)
def test_attestations_that_cannot_be_read_are_noted(verify: Verify, elsewhere: Elsewhere) -> None:
    path = elsewhere.folder / AUDITS.key
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * 10_000_000)
    code, report = verify()
    assert (code, report["attestations"], report["verdict"]) == (0, [], "clean")
    (note,) = report["notes"]
    assert note.startswith("the attestations of auditors cannot be read: ")


def test_a_flipped_byte_is_told_as_where_the_dataset_is(
    verify: Verify, elsewhere: Elsewhere, run: Run, tmp_path: Path
) -> None:
    path = elsewhere.slices()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    replace(path, bytes(data))
    code, report = verify()
    (local,) = run("-w", tmp_path / "elsewhere", "verify", "readings", "-o", "json").rows
    assert (code, report["counts"]) == (6, local["counts"])
    assert elsewhere.url not in report["faults"][0]["message"]
    assert report["checks"][6:11] == local["checks"][6:11]
