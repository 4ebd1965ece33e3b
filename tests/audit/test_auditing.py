"""Reports that others read, datasets that are verified where they are, and verdicts that are signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.audit.report import CHECKS
from odfchain.audit.verification import vouched_for
from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY
from odfchain.chain.signed_lines import AUDITS
from odfchain.chain.statements import Attestation, Verdict, create_key_file, read_attestation
from odfchain.errors import SignatureError, UsageError
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.identity import DatasetKey, DidKey
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.derived_dataset import Made, forge, with_level
from tests.kit.report_documents import SCHEMA, Document
from tests.kit.support import Run


@pytest.fixture
def run(tmp_path: Path, run: Run) -> Run:
    return lambda *args: run("-w", tmp_path, *args)


@pytest.fixture
def auditor(tmp_path: Path) -> DatasetKey:
    """Its key is in `auditor.pem`."""
    return create_key_file(tmp_path / "auditor.pem")


def did_of(key: DatasetKey) -> DidKey:
    return DidKey(key.dataset_id.public_key)


def trust(workspace: Workspace, key: DatasetKey) -> None:
    config = workspace.path / "config.yaml"
    config.write_text(
        config.read_text().replace("trustedAuditors: []", f"trustedAuditors: ['{did_of(key)}']")
    )


def first_slice(dataset: DatasetFiles) -> Path:
    return Path(dataset.data.locate(DatasetState.read(dataset.chain).slices()[0].slice.physical_hash))


def documents(run: Run, *args: object) -> list[Document]:
    found = run("verify", *args, "-o", "json").rows
    for document in found:
        SCHEMA.validate(document)
    return found


def test_reports_are_as_their_schema_says(run: Run, made: Made, workspace: Workspace) -> None:
    root, copied = made
    one, other = documents(run, "copied", "--recursive")
    assert (one["dataset"]["kind"], other["dataset"]["kind"]) == ("root", "derivative")
    assert (one["signature"]["status"], one["signature"]["signer"]) == ("signed", str(root.id))
    assert other["inputs"] == [
        {"id": str(root.id), "alias": "readings", "kind": "root", "missing": False, "inputs": []}
    ]
    assert [block["event"] for block in one["blocks"]] == ["Seed", "SetDataSchema", "AddData", "AddData"]
    first_slice(root).unlink()
    (report,) = documents(run, "readings")
    (fault,) = report["faults"]
    block = report["blocks"][fault["sequenceNumber"]]
    assert (block["hash"], block["state"], block["faults"]) == (fault["block"], "faulty", [0])
    (report,) = documents(run, "copied", "--from", "3")
    assert (report["range"]["to"], len(report["blocks"])) == (None, 1)
    (copied.folder / "refs" / "head").unlink()
    (report,) = documents(run, "copied")
    assert (report["head"], report["verdict"]) == (None, "faulty")
    assert {check["state"] for check in report["checks"][1:]} == {"notChecked"}
    workspace.delete("readings", force=True)
    (report,) = documents(run, "copied", "--recursive")


def test_a_stripped_signature_is_a_note_and_where_one_is_required_a_fault(run: Run, made: Made) -> None:
    assert run("verify", "readings", "--require-signature").code == 0
    path = made[0].folder / HEAD_SIGNATURE_KEY
    path.unlink()
    (report,) = documents(run, "readings")
    assert (report["verdict"], report["signature"]["status"]) == ("clean", "unsigned")
    assert report["checks"][15]["state"] == "notChecked"
    result = run("verify", "readings", "--require-signature", "-o", "json")
    assert (result.code, result.rows[0]["faults"][0]["file"]) == (6, str(path))


def test_an_outcome_is_signed_kept_and_listed(
    run: Run, made: Made, workspace: Workspace, auditor: DatasetKey, tmp_path: Path
) -> None:
    root, did = made[0], did_of(auditor)
    result = run(
        "attest", "readings", "--key", tmp_path / "auditor.pem", "--report", tmp_path / "r", "-o", "jws"
    )
    assert result.code == 0
    found = read_attestation(result.out.strip().encode())
    assert (found.auditor, found.dataset_id, found.head) == (did, root.id, root.chain.head())
    assert (found.verdict, set(found.checks) | set(found.not_checked)) == (Verdict.CLEAN, set(CHECKS))
    document = json.loads((tmp_path / "r").read_text())
    SCHEMA.validate(document)
    assert hash_bytes(canonical_json(document)) == found.report
    (row,) = run("attestations", "readings", "-o", "json").rows
    listed = {"auditor": str(did), "verdict": "clean", "status": "valid", "trusted": False}
    assert row | listed == row
    trust(workspace, auditor)
    (row,) = run("attestations", "readings", "-o", "json").rows
    assert row["trusted"] is True
    (report,) = documents(run, "readings")
    (line,) = report["attestations"]
    assert (line["auditor"], line["head"], line["trusted"]) == (str(did), str(root.chain.head()), True)


@pytest.mark.usefixtures("auditor")
def test_faults_are_signed_only_on_purpose(run: Run, made: Made, tmp_path: Path) -> None:
    root, _ = made
    first_slice(root).unlink()
    call = ["attest", "readings", "--key", tmp_path / "auditor.pem"]
    result = run(*call)
    assert result.code == 6
    assert "error: readings: 1 fault found; nothing was signed" in result.err
    assert result.out == run("verify", "readings").out
    assert not (root.folder / AUDITS.key).exists()
    assert run(*call, "--faulty").code == 6
    (row,) = run("attestations", "readings", "-o", "json").rows
    assert row["verdict"] == "faulty"


@pytest.mark.usefixtures("auditor")
def test_attestations_of_others_are_of_this_chain(workspace: Workspace, made: Made, tmp_path: Path) -> None:
    chain, readings = made[0].chain, workspace["readings"]
    done = readings.attest(tmp_path / "auditor.pem")
    path = made[0].folder / AUDITS.key
    kept = path.read_bytes()
    path.unlink()
    readings.add_attestation(done.text + "\n")
    assert path.read_bytes() == kept
    with pytest.raises(SignatureError, match="another dataset"):
        workspace["copied"].add_attestation(done.text)
    with pytest.raises(SignatureError):
        readings.add_attestation(done.text[:-3])
    head = chain.head()
    chain.set_ref("head", chain.get(head).prev_block_hash, expected=head)
    with pytest.raises(UsageError, match="is not in its chain"):
        workspace["readings"].add_attestation(done.text)
    (listed,) = workspace["readings"].attestations()
    assert listed.in_chain is False
    with pytest.raises(UsageError, match="no such file"):
        workspace["readings"].attest(tmp_path / "no.pem")


def word(key: DatasetKey, number: int, *, odf: bool = False, **changes: Any) -> Attestation:
    fields: dict[str, Any] = {
        "auditor": key.dataset_id if odf else did_of(key),
        "dataset_id": DatasetKey.generate().dataset_id,
        "head": hash_bytes(b"%d" % number),
        "sequence_number": number,
        "time": Timestamp.from_epoch_ms(0),
        "verdict": Verdict.CLEAN,
        "report": hash_bytes(b""),
        "checks": (1, 15),
        "tool": "x",
    }
    return Attestation(**(fields | changes))


def test_whose_word_is_enough() -> None:
    one, two, stranger = (DatasetKey.generate() for _ in range(3))
    trusted = [str(did_of(key)) for key in (one, two)]

    def newest(least: int, *words: Attestation) -> int | None:
        found = vouched_for(words, trusted, least, 15)
        return None if found is None else found[0]

    assert newest(1, word(one, 3), word(two, 5)) == 5
    assert newest(2, word(one, 3), word(two, 5)) == 3, "who vouched for 5 vouched for 3"
    assert newest(2, word(one, 3), word(one, 5, odf=True)) is None, "one key is one auditor"
    assert newest(1, word(stranger, 3)) is None
    assert newest(1, word(one, 3, verdict=Verdict.INCOMPLETE), word(two, 4, verdict=Verdict.FAULTY)) is None
    assert newest(1, word(one, 3, checks=(1, 2), not_checked=(15,))) is None, "it was not replayed"


def test_what_auditors_replayed_is_spared(
    run: Run, workspace: Workspace, made: Made, auditor: DatasetKey
) -> None:
    _, copied = made
    forge(copied, 4, with_level(0, 77))
    head = copied.chain.head()
    found = word(auditor, 4, dataset_id=copied.id, head=head)
    workspace["copied"].add_attestation(found.sign(auditor))
    assert run("verify", "copied", "--replay", "--trusted-by", "1").code == 2, "nobody is trusted"
    trust(workspace, auditor)
    result = run("verify", "copied", "--trusted-by", "1")
    assert (result.code, "add --replay" in result.err) == (2, True), (
        "without a replay there is nothing to spare"
    )
    (report,) = workspace.verify(["copied"], replay=True, trusted_by=1)
    assert workspace._engines.spark is None
    assert report.replay.transactions == 0
    said = f"blocks up to 4 were not computed again: {did_of(auditor)} attested block 4 ({head})"
    assert report.notes == [said]
    assert report.state(15) == "notChecked"
