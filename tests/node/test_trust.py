"""The lines of trust: signature, verdict and attestations, and the report that is kept (cases 16 to 19)."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.audit.report import KEPT_BYTES, BlockLine, Fault, LeftOut, Report, keep_report, kept_report
from odfchain.chain.statements import SignedHead, create_key_file
from odfchain.node.trust import TrustLine, attestations_line, signature_line, verdict_line
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.private_notes import report_path
from tests.kit.derived_dataset import FIRST, SCHEMA, SECOND, add_rows
from tests.kit.root_rows import add_root
from tests.kit.support import fixture, hash_of


def case(number: int) -> dict[str, Any]:
    found: dict[str, Any] = fixture(f"node/cases/{number:02}.yaml")
    return found


@pytest.fixture
def home(tmp_path: Path) -> odf.Workspace:
    return odf.init(tmp_path)


@pytest.fixture
def cities(home: odf.Workspace) -> DatasetFiles:
    """A dataset of four blocks."""
    made = add_root(home, "cities", SCHEMA)
    for rows in (FIRST, SECOND):
        add_rows(made, rows)
    return made


def newest(files: DatasetFiles) -> int:
    head = files.chain.head()
    assert head is not None
    return files.chain.get(head).sequence_number


def verdict(files: DatasetFiles, log: list[str] | None = None) -> TrustLine:
    report, head = kept_report(files, (log if log is not None else []).append), files.chain.head()
    assert head is not None
    return verdict_line("cities", report, newest(files), lambda n: files.chain.hash_at(n, head))


@pytest.mark.parametrize("given", case(16)["signature"], ids=lambda given: given["signed"])
def test_case_16_signatures(home: odf.Workspace, cities: DatasetFiles, given: dict[str, Any]) -> None:
    path, number, key = cities.folder / "refs" / "head.jws", newest(cities), home._files.key(cities.id)
    head = cities.chain.head()
    assert head is not None
    earlier = cities.chain.hash_at(number - 1, head)

    def line(of: Any, number: int) -> bytes:
        return SignedHead(cities.id, of, number, Timestamp.now()).sign(key).encode() + b"\n"

    written = {
        "head": line(head, number),
        "earlier": line(earlier, number - 1),
        "garbage": b"garbage\n",
        "other": line(hash_of("other"), number),
    }
    path.unlink()
    if given["signed"] in written:
        path.write_bytes(written[given["signed"]])
    found = signature_line("cities", cities.head_signature(), has_key=True)
    assert (found.word, found.icon, given["text"] in found.text) == (given["word"], given["icon"], True)
    assert signature_line("cities", cities.head_signature(), proofs=1).word == "two histories"


@pytest.mark.parametrize("given", case(17)["verdict"], ids=lambda given: given["word"])
def test_case_17_newer_blocks_are_counted(
    home: odf.Workspace, cities: DatasetFiles, given: dict[str, Any]
) -> None:
    assert verdict(cities).word == "never verified here"
    home["cities"].verify()
    for _ in range(given["commits"]):
        add_rows(cities, SECOND)
    found = verdict(cities)
    assert (found.word, found.icon, given["text"] in found.text) == (given["word"], given["icon"], True)
    home["cities"].verify(last=2)
    assert verdict(cities).word == "clean at head"


def test_case_18_faults_are_counted(home: odf.Workspace, cities: DatasetFiles) -> None:
    for path in (cities.folder / "data").iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        break
    home["cities"].verify()
    found, expected = verdict(cities), case(18)["verdict"]
    assert expected["text"] in found.text
    assert (found.word, found.icon, found.command) == tuple(
        expected[name] for name in ("word", "icon", "command")
    )
    path.write_bytes(whole)
    home.fsck()
    assert verdict(cities).word == "never verified here"


@pytest.mark.parametrize("given", case(19)["files"])
def test_case_19_what_is_no_report_of_it_says_nothing(
    home: odf.Workspace, cities: DatasetFiles, given: str
) -> None:
    home["cities"].verify()
    path = report_path(cities)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    whole = path.read_bytes()
    document = json.loads(whole)
    other = document["dataset"] | {"id": str(add_root(home, "other", SCHEMA).id)}
    path.write_bytes({
        "truncated": whole[:-9],
        "empty": b"",
        "too long": whole + b" " * KEPT_BYTES,
        "of another dataset": json.dumps(document | {"dataset": other}).encode(),
        "no object": b"[]",
        "of another history": json.dumps(document | {"head": str(hash_of("x"))}).encode(),
    }[given])  # fmt: skip
    log: list[str] = []
    assert verdict(cities, log).word == case(19)["word"]
    assert [case(19)["log"] in line for line in log] == [True] * (given != "of another history")


def test_reports_fit_and_are_a_convenience(home: odf.Workspace, cities: DatasetFiles) -> None:
    report = Report(str(cities.id), "cities", str(cities.chain.head()), sequence_number=newest(cities))
    head = cities.chain.head()
    assert head is not None
    report.lines, report.blocks = (
        [BlockLine(n, head, Timestamp.now(), "AddData") for n in range(5_000)],
        5_000,
    )
    report.add(LeftOut("a part\u202e", 1))
    keep_report(cities, report)
    assert len(kept_report(cities, print)["blocks"]) == 5_000  # type: ignore[index]
    assert (verdict(cities).word, "a part" in verdict(cities).text) == ("incomplete", True)
    for _ in range(2_000):
        report.add(Fault(5, "é" * 2_000, "é" * 2_000, 1))
    keep_report(cities, report)
    assert report_path(cities).stat().st_size < KEPT_BYTES
    assert verdict(cities).word == "faulty: 2,000 faults"
    folder = report_path(cities).parent
    report_path(cities).unlink()
    folder.rmdir()
    folder.write_bytes(b"")
    assert home["cities"].verify().ok
    folder.unlink()
    home["cities"].verify()
    home.delete("cities")
    assert [*folder.iterdir()] == []


def test_attestations_by_whom(home: odf.Workspace, cities: DatasetFiles, tmp_path: Path) -> None:
    dataset = home["cities"]
    assert attestations_line("cities", dataset.attestations()).word == "none"
    create_key_file(tmp_path / "a.pem")
    dataset.attest(tmp_path / "a.pem")
    found = attestations_line("cities", dataset.attestations())
    assert (found.word, found.icon, verdict(cities).word) == ("1 by others", "none", "clean at head")
