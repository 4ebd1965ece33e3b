"""Documents of the form that `odfchain verify -o json` prints, for pages: small, large, faulty, hostile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema

from tests.kit.support import ROOT

Document = dict[str, Any]

SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "schemas" / "Report.json").read_text()))
CHECKS = (
    ("head reference", "Metadata Chain"),
    ("block bytes", "Metadata Block Hashing"),
    ("chain links", "MetadataBlock"),
    ("append rules", "Metadata Reference"),
    ("files present and sizes", "DataSlice, Checkpoint"),
    ("physical hashes", "Physical and Logical Hashes"),
    ("logical hashes", "Physical and Logical Hashes"),
    ("offsets and row counts", "Offset"),
    ("system columns", "Common Data Schema"),
    ("corrections and retractions", "Representation of Retractions and Corrections"),
    ("declared schema", "Schema Format"),
    ("watermarks", "Watermark"),
    ("checkpoints", "Checkpoint"),
    ("recorded inputs", "Derivative Transformations"),
    ("replayed transformations", "Dataset Validation"),
    ("signature of the head", "Metadata Chain"),
)
REPLAY = 15
FIRST_DAY = datetime(2026, 1, 5, 6, 30, tzinfo=UTC)
DATASET = "did:odf:fed01c9a2f6b1d3e5a7908172635445362718091a2b3c4d5e6f708192a3b4c5d6e7f8"
INPUT = DATASET.replace("1c9a", "77aa")
GONE = DATASET.replace("1c9a", "88bb")
AUDITOR = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"


def block_hash(number: int, seed: str = "") -> str:
    return "f1620" + hashlib.sha3_256(f"{seed}{number}".encode()).hexdigest()


def event_of(number: int, kind: str) -> str:
    start = (
        ("Seed", "SetInfo", "SetTransform") if kind == "derivative" else ("Seed", "SetInfo", "AddPushSource")
    )
    if number < len(start):
        return start[number]
    if number % 97 == 0:
        return "SetDataSchema"
    return "ExecuteTransform" if kind == "derivative" else "AddData"


def document(
    alias: str = "city-population",
    blocks: int = 11,
    *,
    kind: str = "root",
    faulty: Mapping[int, str] | None = None,
    unchecked: Iterable[int] = (),
    why: str = "the slice is not in this partial copy; `odfchain fetch city-population` brings it",
    replayed: int = 0,
) -> Document:
    """A report; `faulty` says what is wrong in which blocks, `unchecked` which could not be looked at."""
    wrong, left = dict(faulty or {}), sorted(set(unchecked))
    faults = [
        {
            "check": 6,
            "file": f"/srv/odf/{alias}/data/{block_hash(n, 'data')}",
            "message": text,
            "sequenceNumber": n,
            "block": block_hash(n),
        }
        for n, text in sorted(wrong.items())
    ]
    index = {n: i for i, n in enumerate(sorted(wrong))}
    listed = []
    for n in range(blocks):
        event = event_of(n, kind)
        data = event in ("AddData", "ExecuteTransform")
        time = FIRST_DAY + timedelta(hours=5 * n)
        state = "faulty" if n in wrong else "unchecked" if n in left else "ok"
        listed.append(
            {
                "sequenceNumber": n,
                "hash": block_hash(n),
                "systemTime": time.isoformat().replace("+00:00", "Z"),
                "event": event,
                "records": 120 + n % 40 if data else 0,
                "watermark": (time - timedelta(hours=6)).isoformat().replace("+00:00", "Z") if data else None,
                "faults": [index[n]] if n in wrong else [],
                "state": state,
            }
        )
    slices = sum(1 for b in listed if b["records"])
    return {
        "format": "odfchain-report/1",
        "tool": "odfchain 0.1.0",
        "time": "2026-03-02T14:05:09.250Z",
        "dataset": {"id": DATASET, "alias": alias, "kind": kind},
        "head": block_hash(blocks - 1) if blocks else None,
        "sequenceNumber": blocks - 1 if blocks else None,
        "range": {"from": None, "to": None},
        "verdict": "faulty" if faults else "incomplete" if left else "clean",
        "counts": {
            "blocks": blocks,
            "slices": slices,
            "records": sum(b["records"] for b in listed),
            "bytes": slices * 7_345,
            "replayed": replayed,
        },
        "checks": [check(n, kind, len(faults), blocks, replayed, left) for n in range(1, len(CHECKS) + 1)],
        "faults": faults,
        "unchecked": [{"check": 6, "message": why, "blocks": left}] if left else [],
        "notes": [],
        "blocks": listed,
        "signature": {
            "status": "signed", "signer": DATASET, "time": "2026-03-01T09:00:00Z", "message": None,
        },
        "attestations": [],
        "engines": [{"name": "spark", "version": "4.2.0"}] if replayed else [],
        "inputs": [],
    }  # fmt: skip


def check(
    number: int, kind: str, faults: int, blocks: int, replayed: int, unchecked: list[int]
) -> dict[str, Any]:
    name, section = CHECKS[number - 1]
    state, reason = "passed", None
    if number in (14, REPLAY) and kind == "root":
        state, reason = "notApplicable", "a root dataset has no inputs"
    elif number == REPLAY and not replayed:
        state, reason = "notChecked", "a replay was not asked for; `odfchain verify --replay` makes it"
    elif number == 6 and faults:
        state = "failed"
    elif number == 6 and unchecked:
        state, reason = "notChecked", "not all slices are in this copy"
    return {
        "number": number,
        "name": name,
        "section": section,
        "state": state,
        "checked": 0 if state == "notApplicable" else replayed if number == REPLAY else blocks,
        "faults": faults if state == "failed" else 0,
        "reason": reason,
    }


def upstream(*inputs: Document, name: str = "weather", missing: bool = False, id_: str = INPUT) -> Document:
    """A dataset of a lineage."""
    kind = None if missing else "derivative" if inputs else "root"
    return {"id": id_, "alias": name, "kind": kind, "missing": missing, "inputs": list(inputs)}


def attestation(head: str, *, auditor: str = AUDITOR, trusted: bool = True) -> Document:
    return {
        "auditor": auditor,
        "head": head,
        "sequenceNumber": 10,
        "time": "2026-03-02T08:00:00Z",
        "verdict": "clean",
        "trusted": trusted,
    }


ALTERED = (
    "PhysicalHashMismatch: the slice's bytes hash to f1620"
    "8d0c71de4cc9b4fbb4a4c1d1fdca8aeb2d53f1d2f1f1f5aa1f6e0c3f9f5d1b7a"
)


def clean() -> Document:
    """A derivative dataset of which everything was checked, with an attestation."""
    found = document("report.by-region", kind="derivative", replayed=7)
    found["attestations"] = [attestation(found["head"]), attestation(block_hash(3), trusted=False)]
    found["inputs"] = [
        upstream(
            upstream(name="stations"), upstream(name="sensor-feed", missing=True, id_=GONE), name="weather"
        ),
        upstream(name="regions", id_=DATASET.replace("1c9a", "99cc")),
    ]
    found["notes"] = ["block 4: the slice was written anew, with the same records"]
    return found


def faulty() -> Document:
    found = document(faulty={4: ALTERED, 7: "SizeMismatch: the slice has 10 bytes, its block says 7,345"})
    found["signature"] = {"status": "unsigned", "signer": None, "time": None, "message": None}
    return found


def incomplete() -> Document:
    found = document("partial-copy", 8, unchecked=(3, 4, 5, 7))
    found["signature"] = {
        "status": "notChecked", "signer": None, "time": None, "message": "the head cannot be read",
    }  # fmt: skip
    return found


def large(blocks: int = 10_000) -> Document:
    """A chain too long for a line each."""
    faults = {17: ALTERED, 4_200: ALTERED, 4_201: ALTERED, blocks - 1: ALTERED}
    return document("sensor.readings", blocks, faulty=faults, unchecked=range(6_000, 6_450))
