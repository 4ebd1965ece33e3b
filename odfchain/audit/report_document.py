"""A report as the document that others read: `odfchain-report/1`, described by `schemas/Report.json`.

The document is what an auditor signs, so it says everything: what was found, what was looked at, what was
not, and in which range of the chain.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from odfchain.audit.checks import CHECKS
from odfchain.audit.report import Report
from odfchain.ids.multihash import Multihash
from odfchain.versions import __version__

FORMAT = "odfchain-report/1"


def to_document(report: Report) -> dict[str, Any]:
    """The report of one dataset; keys and their order are those of the schema."""
    hashes = {line.sequence_number: str(line.hash) for line in report.lines}
    return {
        "format": FORMAT,
        "tool": f"odfchain {__version__}",
        "time": str(report.time),
        "dataset": {
            "id": report.dataset_id,
            "alias": report.alias,
            "kind": report.kind.value.lower() if report.kind is not None else None,
        },
        "head": report.head,
        "sequenceNumber": report.sequence_number,
        "range": {"from": _text(report.after), "to": _text(report.upto)},
        "verdict": report.verdict,
        "counts": {
            "blocks": report.blocks,
            "slices": report.slices,
            "records": report.records,
            "bytes": report.data_bytes,
            "replayed": report.replay.transactions if report.replay is not None else 0,
        },
        "checks": [_check(report, number) for number in CHECKS],
        "faults": [
            {
                "check": fault.check,
                "file": fault.file,
                "message": fault.message,
                "sequenceNumber": fault.sequence_number,
                "block": hashes.get(fault.sequence_number) if fault.sequence_number is not None else None,
            }
            for fault in report.faults
        ],
        "unchecked": [
            {"check": item.check, "message": item.message, "blocks": list(item.blocks)}
            for item in report.unchecked
        ],
        "notes": list(report.notes),
        "blocks": _blocks(report),
        "signature": asdict(report.signature),
        "attestations": [
            {
                "auditor": item.auditor,
                "head": item.head,
                "sequenceNumber": item.sequence_number,
                "time": item.time,
                "verdict": item.verdict,
                "trusted": item.trusted,
            }
            for item in report.attestations
        ],
        "engines": [_engine(text) for text in (report.replay.engines if report.replay else ())],
        "inputs": report.inputs,
    }


def _text(name: Multihash | None) -> str | None:
    return None if name is None else str(name)


def _check(report: Report, number: int) -> dict[str, Any]:
    state = report.state(number)
    return {
        "number": number,
        "name": CHECKS[number].name,
        "section": CHECKS[number].section,
        "state": state,
        "checked": report.done.get(number, 0),
        "faults": sum(fault.check == number for fault in report.faults),
        "reason": report.reasons.get(number),
    }


def _blocks(report: Report) -> list[dict[str, Any]]:
    faults: dict[int | None, list[int]] = {}
    for index, fault in enumerate(report.faults):
        faults.setdefault(fault.sequence_number, []).append(index)
    unchecked = {block for item in report.unchecked for block in item.blocks}
    return [
        {
            "sequenceNumber": line.sequence_number,
            "hash": str(line.hash),
            "systemTime": str(line.system_time),
            "event": line.event,
            "records": line.records,
            "watermark": None if line.watermark is None else str(line.watermark),
            "faults": faults.get(line.sequence_number, []),
            "state": (
                "faulty"
                if line.sequence_number in faults
                else "unchecked"
                if line.sequence_number in unchecked
                else "ok"
            ),
        }
        for line in report.lines
    ]


def _engine(text: str) -> dict[str, str]:
    """`odfchain_1-spark_4.3.0` or `flink at localhost:2884` as a name and a version."""
    name, _, version = text.partition("_") if " at " not in text else text.partition(" at ")
    return {"name": name, "version": version or text}
