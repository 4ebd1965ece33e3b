"""Signed statements as JSON Web Signatures, in one strict form (RFC 7515, RFC 8037).

    BASE64URL({"alg":"EdDSA","kid":"did:…","typ":"odf-…"}) . BASE64URL(payload) . BASE64URL(signature)

There is nothing to choose. The header has exactly these three members, the key is what `kid` names and
nothing else, and header and payload are canonical JSON in canonical base64url: a statement has one text, so
any changed bit of a file is noticed. `typ` separates the kinds: a signature of one is none of another.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from odfchain.errors import InvalidIdError, SignatureError, UsageError
from odfchain.ids.keys import DatasetKey
from odfchain.limits import ATTEST
from odfchain.text import printable
from odfchain.trust.canonical import canonical_json
from odfchain.trust.problems import Problem
from odfchain.trust.signing_keys import Did, check_public_key, parse_did, verify_signature

ALGORITHM = "EdDSA"

_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{86})")
_HEADER = {"alg", "kid", "typ"}
_SHOWN = 40


class StatementType(StrEnum):
    """The kinds of statements, as `typ` names them."""

    HEAD = "odf-head+jws"
    REF = "odf-ref+jws"
    """A branch's newest block: branches may be set back, so this proves nothing against anybody."""
    ATTESTATION = "odf-attestation+jws"
    SNAPSHOT = "odf-snapshot+jws"


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A statement whose signature was verified, and whose it is."""

    signer: Did
    payload: dict[str, Any]


def sign_statement(key: DatasetKey, signer: Did, kind: StatementType, payload: dict[str, Any]) -> str:
    """The signed form of a statement, one line without its end.

    Raises:
        UsageError: the key is not the signer's, or the statement is too large or not made of JSON.
    """
    if signer.public_key != key.dataset_id.public_key:
        raise UsageError(f"the key is not that of {signer}")
    header = {"alg": ALGORITHM, "kid": str(signer), "typ": str(kind)}
    signed = b".".join(_encode(canonical_json(part)) for part in (header, payload))
    text = b".".join((signed, _encode(key.sign(signed)))).decode("ascii")
    if len(text) > ATTEST.statement_bytes:
        raise UsageError(f"a statement of {len(text)} bytes (at most {ATTEST.statement_bytes})")
    return text


def read_statement(text: bytes, kind: StatementType, *, verified: bool = True) -> SignedStatement:
    """The statement that `text` is the one signed form of; its signature is verified.

    Without `verified` it only has the form of one, and nobody's word may be taken for it.

    Raises:
        SignatureError: it is anything else; `problem` says what.
    """
    if len(text) > ATTEST.statement_bytes:
        raise _damaged(f"it is longer than {ATTEST.statement_bytes} bytes")
    match = _COMPACT.fullmatch(text)
    if match is None:
        raise _damaged("empty, cut, or with characters that do not belong there")
    header, payload, signature = (_decode(part) for part in match.groups())
    signer = _signer(_object(header, "header"), kind)
    if verified:
        verify_signature(signer.public_key, signature, text[: match.end(2)])
    return SignedStatement(signer, _object(payload, "payload"))


def _signer(header: dict[str, Any], kind: StatementType) -> Did:
    algorithm, kid, typ = (header.get(name) for name in ("alg", "kid", "typ"))
    if algorithm != ALGORITHM:
        raise SignatureError(
            Problem.WRONG_ALGORITHM,
            f"the signature's algorithm is {_shown(algorithm)} (only {ALGORITHM} counts)",
        )
    if foreign := sorted(header.keys() - _HEADER):
        raise SignatureError(
            Problem.FOREIGN_HEADER,
            f"the signature's header has {_shown(foreign[0])}, which may not decide how it is checked",
        )
    if typ != kind:
        raise SignatureError(Problem.WRONG_TYPE, f"a signed statement of type {_shown(typ)}, not {kind}")
    try:
        signer = parse_did(kid if isinstance(kid, str) else "")
    except InvalidIdError:
        raise _damaged(f"its signer {_shown(kid)} is not a did:odf or did:key") from None
    check_public_key(signer.public_key)
    return signer


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decode(part: bytes) -> bytes:
    try:
        data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise _damaged("it is cut") from None
    if _encode(data) != part:
        raise _damaged("its base64 has bits that mean nothing")
    return data


def _object(data: bytes, part: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
        if isinstance(found, dict) and canonical_json(found) == data:
            return found
    except (ValueError, RecursionError, UsageError):
        pass
    raise _damaged(f"its {part} is not canonical JSON")


def _damaged(why: str) -> SignatureError:
    return SignatureError(Problem.DAMAGED, f"not a signed statement: {why}")


def _shown(value: Any) -> str:
    """What an untrusted publisher wrote, as one short printable word."""
    return repr(printable(value, _SHOWN)) if isinstance(value, str) else type(value).__name__
