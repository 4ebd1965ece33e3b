"""The audit of a dataset: the last report here, what auditors say, and proofs that its owner signed two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, Response

from odfchain.audit.page import render_page
from odfchain.audit.report import ListedAttestation, kept_report
from odfchain.chain.equivocation import KeptEvidence
from odfchain.errors import OdfchainError
from odfchain.node.dataset_head import DatasetHead, head_of, render_below, shown_origin
from odfchain.node.overview import download
from odfchain.node.pages import DATASET, Page
from odfchain.node.trust import Verdict
from odfchain.node.visit import Visit, not_found
from odfchain.odf.tree import record_of
from odfchain.workspace.dataset_files import DatasetFiles

_MOST = 200
"""Attestations and proofs on the page [count]."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What is said of a dataset's blocks, and by whom; every signature was checked for this page."""

    dataset: DatasetHead
    verdict: str
    report: dict[str, Any] | None
    attestations: tuple[Mapping[str, Any], ...] = ()
    """`auditor`, `block`, `time`, `verdict`, `trusted`, `inChain`; `problem` where a line is none."""
    evidence: tuple[Mapping[str, Any], ...] = ()
    """`sequenceNumber`, the two `blocks`, the two signed `heads`, and where both were met."""
    command: str = ""


def audit(visit: Visit) -> Audit:
    """The last report of these blocks, attestations, evidence."""
    files = visit.files
    head, report = head_of(visit, files), None
    attestations: list[ListedAttestation] = []
    evidence: list[KeptEvidence] = []
    with suppress(OdfchainError):  # of a damaged chain as much as can be read
        report = _report(visit, files, head)
        evidence = visit.node.workspace.evidence.list(files.id)
        attestations = visit.dataset.attestations()
    return Audit(
        head,
        _verdict(files, head, report),
        report,
        tuple(_attestation(visit, each) for each in attestations[-_MOST:]),
        tuple(_evidence(visit, each) for each in evidence[-_MOST:]),
        f"odfchain verify {head.name}",
    )


def _report(visit: Visit, files: DatasetFiles, head: DatasetHead) -> dict[str, Any] | None:
    found = kept_report(files, visit.node.problem)
    if found is None:
        return None
    if head.head is not None and _line(files, head, found).word == "never verified here":
        return None  # of another history
    public: dict[str, Any] = json.loads(visit.node.public(json.dumps(found, ensure_ascii=False)))
    return public


def _line(files: DatasetFiles, head: DatasetHead, report: dict[str, Any] | None) -> Verdict:
    top = files.chain.head()
    return Verdict.of(
        head.name, report, head.blocks - 1, lambda number: files.chain.hash_at(number, top) if top else None
    )


def _verdict(files: DatasetFiles, head: DatasetHead, report: dict[str, Any] | None) -> str:
    return str(report["verdict"]) if report and head.head is None else _line(files, head, report).text


def _attestation(visit: Visit, listed: ListedAttestation) -> Mapping[str, Any]:
    said = listed.line.statement
    if said is None:
        return {"problem": visit.node.public(str(listed.line.message))}
    named = record_of(said, "auditor", "block:sequence_number", "head", "time", "verdict", "tool")
    return named | {"trusted": listed.trusted, "inChain": listed.in_chain}


def _evidence(visit: Visit, kept: KeptEvidence) -> Mapping[str, Any]:
    if kept.evidence is None:
        return {"problem": visit.node.public(str(kept.problem))}
    proof = kept.evidence
    return {
        "sequenceNumber": proof.sequence_number,
        "blocks": [str(each) for each in proof.hashes],
        "heads": [record_of(each, "head", "sequence_number", "time") for each in proof.signed],
        "met": [{"time": str(each.time), "from": shown_origin(each.where)} for each in kept.sightings],
    }


def _page(visit: Visit, view: Audit) -> str:
    render = render_below(visit, view.dataset, "Audit", "audit", view=view, on_command_line=view.command)
    return render_page([view.report], render=render) if view.report else render("", "")


def _file(_: Visit, view: Audit) -> Response:
    if view.report is None:
        raise not_found(f"{view.dataset.name} was never verified here", hint=view.command)
    name = f"{view.dataset.name}-verification.html"
    return HTMLResponse(render_page([view.report]), headers=download(name))


PAGES = (Page(f"{DATASET}/-/audit", "audit", audit, {"html": _file}, made_by=_page),)
