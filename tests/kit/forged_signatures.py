"""Signatures of a head that are none, or another one's: what an attacker makes of a line that the owner signed."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

from odfchain.chain.statements import Problem, SignedHead
from odfchain.odf.identity import DatasetId
from tests.kit import curve
from tests.kit.forge import DATASET, OWNER, STRANGER, attestation, b64, container, header, spaced
from tests.kit.support import hash_of

ZERO_KEY = DatasetId(b"\0" * 32)
ONE_KEY = DatasetId(b"\1" + b"\0" * 31)
NON_CANONICAL_KEY = DatasetId((curve.P + 3).to_bytes(32, "little"))
NOT_ON_THE_CURVE = DatasetId((2).to_bytes(32, "little"))
NEUTRAL_SIGNATURE = b"\1" + b"\0" * 63
"""R the neutral element and S zero: valid under keys of small order for many texts."""
JWK = {"kty": "OKP", "crv": "Ed25519", "x": b64(STRANGER.dataset_id.public_key).decode()}


def hs256(text: bytes) -> bytes:
    """The public key as the secret of a symmetric algorithm."""
    return hmac.new(DATASET.public_key, text, hashlib.sha256).digest().ljust(64, b"\0")


def malleable(text: bytes) -> bytes:
    """The same signature with the group's order added to S (RFC 8032, section 8.4)."""
    made = OWNER.sign(text)
    number = int.from_bytes(made[32:], "little") + curve.L
    return made[:32] + number.to_bytes(32, "little")


def _zeros(_: bytes) -> bytes:
    return b"\0" * 64


def _neutral(_: bytes) -> bytes:
    return NEUTRAL_SIGNATURE


def _twice(value: dict[str, Any], member: str) -> bytes:
    """JSON with one of its members a second time, so that readers may differ."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return text[:-1] + b"," + json.dumps({member: value[member]}).encode()[1:]


def forged(said: SignedHead) -> dict[str, tuple[bytes, Problem]]:
    """Files in the place of the signature of a head by name, and what is wrong with each."""
    valid, payload, number = said.sign(OWNER).encode(), said.to_json(), said.sequence_number
    first, body, signature = valid.split(b".")
    stranger, word = str(STRANGER.dataset_id), attestation(head=said.head, sequence_number=number)
    own_word = replace(word, auditor=DATASET)
    serialised = {"payload": body.decode(), "protected": first.decode(), "signature": signature.decode()}
    fraction = spaced(payload | {"sequenceNumber": float(number)}).replace(b", ", b",").replace(b": ", b":")

    def by(key: DatasetId) -> bytes:
        """A head of another dataset whose key is weak, with the signature that such keys accept."""
        return container(header(kid=str(key)), payload | {"datasetId": str(key)}, _neutral)

    def headed(**changes: Any) -> bytes:
        return container(header(**changes), payload)

    def stating(**changes: Any) -> bytes:
        return container(header(), payload | changes)

    def signed(**changes: Any) -> bytes:
        return replace(said, **changes).sign(OWNER).encode()

    files = {
        "empty": b"",
        "a line end alone": b"\n",
        "no line end": valid,
        "half of it": valid[: len(valid) // 2],
        "two line ends": valid + b"\n\n",
        "two lines": valid + b"\n" + valid + b"\n",
        "the line end of another system": valid + b"\r\n",
        "white space in front": b" " + valid + b"\n",
        "white space behind": valid + b" \n",
        "a byte order mark": b"\xef\xbb\xbf" + valid + b"\n",
        "a zero byte": valid + b"\0\n",
        "not ASCII": "Ä".encode() + valid + b"\n",
        "huge": b"A" * (1 << 20) + b"\n",
    }
    lines = {
        Problem.DAMAGED: {
            "JSON serialisation": json.dumps(serialised).encode(),
            # --- the encoding ---
            "padded base64": valid + b"==",
            "a padded header": first + b"=." + body + b"." + signature,
            "base64 of the other alphabet": valid[:-3] + b"+/A",
            "trailing bits in the last character": valid[:-1] + bytes([valid[-1] + 1]),
            "header, no payload": first + b".." + signature,
            "no signature": first + b"." + body + b".",
            "two signatures": valid + b"." + signature,
            "a short signature": valid[:-2],
            # --- the header ---
            "alg none without a signature": container(header(alg="none"), payload, lambda _: b""),
            "kid missing": headed(kid=None),
            "kid a number": headed(kid=7),
            "kid a URL": headed(kid="https://example.com/key"),
            "kid in another spelling": headed(kid=str(DATASET).replace("did:odf:f", "did:odf:F").upper()),
            "kid in another multibase": headed(
                kid="did:odf:" + str(DATASET.as_did_key()).removeprefix("did:key:")
            ),
            "header with white space": container(spaced(header()), payload),
            "header with a member twice": container(_twice(header(), "alg"), payload),
            "header that is a list": container(b'["alg","EdDSA"]', payload),
            "header of brackets": container(b"[" * 9000, payload),
            "header with a huge number": container(b'{"alg":' + b"9" * 5000 + b"}", payload),
            "header that is not UTF-8": container(b"\xff\xfe", payload),
            "header with half a character": container(b'{"alg":"\\ud800"}', payload),
            # --- the statement ---
            "an attestation under the type of a head": container(header(), own_word.to_json()),
            "an unknown member": stating(until="2030"),
            "a member missing": container(header(), {k: v for k, v in payload.items() if k != "time"}),
            "a member twice": container(header(), _twice(payload, "head")),
            "payload with white space": container(header(), spaced(payload)),
            "payload that is not JSON": container(header(), b"head"),
            "sequence number as text": stating(sequenceNumber=str(number)),
            "sequence number as a fraction": container(header(), fraction),
            "sequence number true": stating(sequenceNumber=True),
            "sequence number below zero": stating(sequenceNumber=-1),
            "sequence number of 65 bits": stating(sequenceNumber=2**64),
            "hash in another spelling": stating(head=str(said.head).upper().replace("F", "f", 1)),
            "hash of another algorithm": stating(head="f1220" + "0" * 64),
            "time in another zone": stating(time="2026-01-02T04:04:05+01:00"),
        },
        Problem.WRONG_ALGORITHM: {
            "alg none": container(header(alg="none"), payload, _zeros),
            "alg HS256 with the public key as secret": container(header(alg="HS256"), payload, hs256),
            "alg in another case": headed(alg="eddsa"),
            "alg Ed448": headed(alg="Ed448"),
            "alg missing": headed(alg=None),
            "alg a list": headed(alg=["EdDSA"]),
        },
        Problem.FOREIGN_HEADER: {
            "jwk in the header": container(header(jwk=JWK), payload, STRANGER.sign),
            "jku in the header": container(header(jku="https://example.com/keys"), payload, STRANGER.sign),
            "x5c in the header": headed(x5c=["AAAA"]),
            "crit in the header": headed(crit=["exp"]),
            "b64 false": headed(b64=False, crit=["b64"]),
            "an unknown member in the header": headed(note="x"),
        },
        Problem.WEAK_KEY: {
            "zero key": by(ZERO_KEY),
            "small-order key": by(ONE_KEY),
            "non-canonical key": by(NON_CANONICAL_KEY),
        },
        Problem.NOT_VERIFIED: {
            "key that is no point": by(NOT_ON_THE_CURVE),
            "kid of another": headed(kid=stranger),
            "made by another in the owner's name": container(header(), payload, STRANGER.sign),
            "zero signature": container(header(), payload, _zeros),
            "neutral signature": container(header(), payload, _neutral),
            "non-canonical S": container(header(), payload, malleable),
            "the signature of another text": first + b"." + body + b"." + container(header(), b"{}").split(b".")[2],
        },
        Problem.OTHER_KEY: {
            "made by another in its own name": container(header(kid=stranger), payload, STRANGER.sign),
            "the owner's key under the other DID method": headed(kid=str(DATASET.as_did_key())),
        },
        Problem.OTHER_DATASET: {
            "right signature of another dataset": replace(said, dataset_id=STRANGER.dataset_id)
            .sign(STRANGER)
            .encode(),
        },
        Problem.OTHER_HEAD: {"right signature of another head": signed(head=hash_of("fork"))},
        Problem.OLDER_HEAD: {
            "right signature of an older head": signed(head=hash_of("older"), sequence_number=number - 1),
            "right signature of this head at an older sequence": signed(sequence_number=number - 1),
        },
        Problem.NEWER_HEAD: {
            "right signature of a newer head": signed(head=hash_of("newer"), sequence_number=number + 1)
        },
        Problem.WRONG_TYPE: {
            "right signature of another type": own_word.sign(OWNER).encode(),
            "a head under the type of another use": headed(typ="JWT"),
            "type missing": headed(typ=None),
        },
    }  # fmt: skip
    made = {name: (text + b"\n", problem) for problem, found in lines.items() for name, text in found.items()}
    return {name: (content, Problem.DAMAGED) for name, content in files.items()} | made
