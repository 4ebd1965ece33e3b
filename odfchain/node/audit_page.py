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
from odfchain.chain.checkpoints import note_in
from odfchain.chain.equivocation import KeptEvidence
from odfchain.errors import OdfchainError
from odfchain.node.dataset_head import DatasetHead, head_of, render_below, shown_origin
from odfchain.node.overview import download
from odfchain.node.pages import DATASET, Page
from odfchain.node.trust import NEVER, verdict_line
from odfchain.node.visit import Visit, not_found
from odfchain.odf.tree import record_of
from odfchain.transfer.witnesses import known_witnesses

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
    witnesses: tuple[Mapping[str, Any], ...] = ()
    """`name`, `block`, and the `time` of those that this node knows."""
    command: str = ""


def audit(visit: Visit) -> Audit:
    """The last report of these blocks, attestations, evidence; of a damaged chain as much as can be read."""
    files, top, report = visit.files, None, None
    head, attestations, evidence = head_of(visit, files), list[ListedAttestation](), list[KeptEvidence]()
    with suppress(OdfchainError):
        report = kept_report(files, visit.node.problem)
        top, evidence = files.chain.head(), visit.node.workspace.evidence.list(files.id)
        attestations = visit.dataset.attestations()
    line = verdict_line(
        head.name, report, head.blocks - 1, lambda number: files.chain.hash_at(number, top) if top else None
    )
    if head.head is not None and line.word == NEVER:
        report = None  # of another history
    if report is not None:
        report = json.loads(visit.node.public(json.dumps(report, ensure_ascii=False)))
    return Audit(
        head,
        line.text if head.head or not report else str(report["verdict"]),
        report,
        tuple(_attestation(visit, each) for each in attestations[-_MOST:]),
        tuple(_evidence(visit, each) for each in evidence[-_MOST:]),
        _witnesses(visit) if head.head is not None else (),
        f"odfchain verify {head.name}",
    )


def _attestation(visit: Visit, listed: ListedAttestation) -> Mapping[str, Any]:
    said = listed.line.statement
    if said is None:
        return {"problem": visit.node.public(str(listed.line.message))}
    named = record_of(said, "auditor", "block:sequence_number", "head", "time", "verdict", "tool")
    return named | {"trusted": listed.trusted, "inChain": listed.in_chain}


def _witnesses(visit: Visit) -> tuple[Mapping[str, Any], ...]:
    if (note := note_in(visit.files.folder, visit.files.id)) is None:
        return ()
    found = note.times(known_witnesses(visit.node.files.config.trust))
    times = {(key.name, key.id): str(time) for key, time in found.items()}
    block = note.checkpoint.sequence_number
    return tuple(
        {"name": line.name, "block": block, "time": times.get((line.name, line.key_id))}
        for line in note.lines[1:]
    )


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
    render = render_below(visit, view, "Audit", "audit")
    return render_page([view.report], render=render) if view.report else render("", "")


def _file(_: Visit, view: Audit) -> Response:
    if view.report is None:
        raise not_found(f"{view.dataset.name} was never verified here", hint=view.command)
    name = f"{view.dataset.name}-verification.html"
    return HTMLResponse(render_page([view.report]), headers=download(name))


PAGES = (Page(f"{DATASET}/-/audit", "audit", audit, {"html": _file}, made_by=_page),)
