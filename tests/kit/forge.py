"""Forged and twisted signed statements: every part of the container is in the hands of the attacker."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import jsonschema

from odfchain.chain.statements import Attestation, EngineUsed, SignedHead, StatementType, Verdict
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.identity import DatasetKey
from odfchain.odf.times import Timestamp
from tests.kit.support import ROOT, hash_of

OWNER, STRANGER = DatasetKey.generate(), DatasetKey.generate()
AUDITORS = [DatasetKey.generate() for _ in range(18)]
DATASET = OWNER.dataset_id
HEAD, SEQUENCE = hash_of("head"), 5
TIME = Timestamp.parse("2026-01-02T03:04:05Z")


def later(seconds: int) -> Timestamp:
    return Timestamp(TIME.epoch_ns + seconds * 1_000_000_000)


def signed(**changes: Any) -> SignedHead:
    """The owner's word on the head, with some members changed."""
    members: dict[str, Any] = {"dataset_id": DATASET, "head": HEAD, "sequence_number": SEQUENCE, "time": TIME}
    return SignedHead(**(members | changes))


def attestation(key: DatasetKey = AUDITORS[0], **changes: Any) -> Attestation:
    """An auditor's word on the head, with some members changed."""
    members: dict[str, Any] = {
        "auditor": key.dataset_id.as_did_key(),
        "dataset_id": DATASET,
        "head": HEAD,
        "sequence_number": SEQUENCE,
        "time": TIME,
        "verdict": Verdict.CLEAN,
        "report": hash_of("report"),
        "checks": (1, 2, 3, 15),
        "not_checked": (14,),
        "engines": (EngineUsed("spark", "4.2.0"),),
        "tool": "odfchain 0.1.0",
    }
    return Attestation(**(members | changes))


def b64(data: bytes) -> bytes:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def header(**changes: Any) -> dict[str, Any]:
    """The header of a signed head; None removes a member."""
    found = {"alg": "EdDSA", "kid": str(DATASET), "typ": str(StatementType.HEAD)} | changes
    return {name: value for name, value in found.items() if value is not None}


def container(
    protected: dict[str, Any] | bytes,
    payload: dict[str, Any] | bytes,
    sign: Callable[[bytes], bytes] = OWNER.sign,
) -> bytes:
    """A compact signature over anything, made without the code that is tested."""
    head = protected if isinstance(protected, bytes) else canonical_json(protected)
    body = payload if isinstance(payload, bytes) else canonical_json(payload)
    text = b64(head) + b"." + b64(body)
    return text + b"." + b64(sign(text))


def spaced(value: dict[str, Any]) -> bytes:
    """The same JSON in another text."""
    return json.dumps(value).encode()


def assert_proof_is_valid(data: bytes) -> None:
    """A proof of two histories is as `schemas/Evidence.json` says, and would not be without any member."""
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / "schemas" / "Evidence.json").read_text()))
    document = json.loads(data)
    validator.validate(document)
    for member in document:
        assert not validator.is_valid({k: v for k, v in document.items() if k != member}), member
