"""Signatures cannot be stripped, moved, replayed or bent: each attack by its name, against the file."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable

import pytest

from odfchain.chain.signed_heads import HeadSignature, SignatureStatus, check_head
from odfchain.chain.signed_lines import AUDITS
from odfchain.chain.statements import (
    Problem,
    StatementType,
    check_public_key,
    read_statement,
)
from odfchain.errors import SignatureError
from odfchain.odf.identity import DatasetId
from tests.kit import curve
from tests.kit.forge import (
    AUDITORS,
    DATASET,
    HEAD,
    OWNER,
    SEQUENCE,
    STRANGER,
    attestation,
    b64,
    container,
    header,
    signed,
    spaced,
)
from tests.kit.support import hash_of

VALID = signed().sign(OWNER).encode()
PARTS = VALID.split(b".")


def check(content: bytes | None) -> HeadSignature:
    return check_head(content, DATASET, HEAD, SEQUENCE)


def hs256(text: bytes) -> bytes:
    """The public key as the secret of a symmetric algorithm."""
    return hmac.new(DATASET.public_key, text, hashlib.sha256).digest().ljust(64, b"\0")


def malleable(text: bytes) -> bytes:
    """The same signature with the group's order added to S (RFC 8032, section 8.4)."""
    made = OWNER.sign(text)
    number = int.from_bytes(made[32:], "little") + curve.L
    return made[:32] + number.to_bytes(32, "little")


def payload() -> dict[str, object]:
    return signed().to_json()


def twice(text: bytes, member: str) -> bytes:
    """A JSON text with one of its members a second time, so that readers may differ."""
    value = json.loads(text)[member]
    return text[:-1] + b"," + json.dumps({member: value}).encode()[1:]


JWK = {"kty": "OKP", "crv": "Ed25519", "x": b64(STRANGER.dataset_id.public_key).decode()}
ZERO_KEY = DatasetId(b"\0" * 32)
ONE_KEY = DatasetId(b"\1" + b"\0" * 31)
NON_CANONICAL_KEY = DatasetId((curve.P + 3).to_bytes(32, "little"))
NOT_ON_THE_CURVE = DatasetId((2).to_bytes(32, "little"))
NEUTRAL_SIGNATURE = b"\1" + b"\0" * 63
"""R the neutral element and S zero: valid under keys of small order for many texts."""


def by(key: DatasetId) -> bytes:
    """A head of another dataset whose key is weak, with the signature that such keys accept."""
    return container(header(kid=str(key)), payload() | {"datasetId": str(key)}, lambda _: NEUTRAL_SIGNATURE)


ATTACKS: dict[str, tuple[bytes, Problem]] = {
    # --- the file ---
    "empty": (b"", Problem.DAMAGED),
    "a line end alone": (b"\n", Problem.DAMAGED),
    "no line end": (VALID, Problem.DAMAGED),
    "two line ends": (VALID + b"\n\n", Problem.DAMAGED),
    "two lines": (VALID + b"\n" + VALID + b"\n", Problem.DAMAGED),
    "the line end of another system": (VALID + b"\r\n", Problem.DAMAGED),
    "white space in front": (b" " + VALID + b"\n", Problem.DAMAGED),
    "white space behind": (VALID + b" \n", Problem.DAMAGED),
    "a byte order mark": (b"\xef\xbb\xbf" + VALID + b"\n", Problem.DAMAGED),
    "a zero byte": (VALID + b"\0\n", Problem.DAMAGED),
    "not ASCII": ("Ä".encode() + VALID + b"\n", Problem.DAMAGED),
    "huge": (b"A" * (1 << 20) + b"\n", Problem.DAMAGED),
    "JSON serialisation": (
        json.dumps(
            {"payload": PARTS[1].decode(), "protected": PARTS[0].decode(), "signature": PARTS[2].decode()}
        ).encode()
        + b"\n",
        Problem.DAMAGED,
    ),
    # --- the encoding ---
    "padded base64": (VALID + b"==\n", Problem.DAMAGED),
    "a padded header": (PARTS[0] + b"=." + PARTS[1] + b"." + PARTS[2] + b"\n", Problem.DAMAGED),
    "base64 of the other alphabet": (VALID[:-3] + b"+/A\n", Problem.DAMAGED),
    "trailing bits in the last character": (
        VALID[:-1] + bytes([VALID[-1] + 1]) + b"\n",
        Problem.DAMAGED,
    ),
    "header, no payload": (PARTS[0] + b".." + PARTS[2] + b"\n", Problem.DAMAGED),
    "no signature": (PARTS[0] + b"." + PARTS[1] + b".\n", Problem.DAMAGED),
    "two signatures": (VALID + b"." + PARTS[2] + b"\n", Problem.DAMAGED),
    "a short signature": (VALID[:-2] + b"\n", Problem.DAMAGED),
    # --- the header ---
    "alg none": (container(header(alg="none"), payload(), lambda _: b"\0" * 64) + b"\n", Problem.WRONG_ALGORITHM),
    "alg none without a signature": (
        container(header(alg="none"), payload(), lambda _: b"") + b"\n",
        Problem.DAMAGED,
    ),
    "alg HS256 with the public key as secret": (
        container(header(alg="HS256"), payload(), hs256) + b"\n",
        Problem.WRONG_ALGORITHM,
    ),
    "alg in another case": (container(header(alg="eddsa"), payload()) + b"\n", Problem.WRONG_ALGORITHM),
    "alg Ed448": (container(header(alg="Ed448"), payload()) + b"\n", Problem.WRONG_ALGORITHM),
    "alg missing": (container(header(alg=None), payload()) + b"\n", Problem.WRONG_ALGORITHM),
    "alg a list": (container(header(alg=["EdDSA"]), payload()) + b"\n", Problem.WRONG_ALGORITHM),
    "jwk in the header": (
        container(header(jwk=JWK), payload(), STRANGER.sign) + b"\n",
        Problem.FOREIGN_HEADER,
    ),
    "jku in the header": (
        container(header(jku="https://example.com/keys"), payload(), STRANGER.sign) + b"\n",
        Problem.FOREIGN_HEADER,
    ),
    "x5c in the header": (container(header(x5c=["AAAA"]), payload()) + b"\n", Problem.FOREIGN_HEADER),
    "crit in the header": (container(header(crit=["exp"]), payload()) + b"\n", Problem.FOREIGN_HEADER),
    "b64 false": (
        container(header(b64=False, crit=["b64"]), payload()) + b"\n",
        Problem.FOREIGN_HEADER,
    ),
    "an unknown member in the header": (container(header(note="x"), payload()) + b"\n", Problem.FOREIGN_HEADER),
    "kid missing": (container(header(kid=None), payload()) + b"\n", Problem.DAMAGED),
    "kid a number": (container(header(kid=7), payload()) + b"\n", Problem.DAMAGED),
    "kid a URL": (container(header(kid="https://example.com/key"), payload()) + b"\n", Problem.DAMAGED),
    "kid in another spelling": (
        container(header(kid=str(DATASET).replace("did:odf:f", "did:odf:F").upper()), payload()) + b"\n",
        Problem.DAMAGED,
    ),
    "kid in another multibase": (
        container(header(kid="did:odf:" + str(DATASET.as_did_key()).removeprefix("did:key:")), payload()) + b"\n",
        Problem.DAMAGED,
    ),
    "header with white space": (container(spaced(header()), payload()) + b"\n", Problem.DAMAGED),
    "header with a member twice": (
        container(twice(json.dumps(header(), separators=(",", ":")).encode(), "alg"), payload()) + b"\n",
        Problem.DAMAGED,
    ),
    "header that is a list": (container(b'["alg","EdDSA"]', payload()) + b"\n", Problem.DAMAGED),
    "header of brackets": (container(b"[" * 9000, payload()) + b"\n", Problem.DAMAGED),
    "header with a huge number": (container(b'{"alg":' + b"9" * 5000 + b"}", payload()) + b"\n", Problem.DAMAGED),
    "header that is not UTF-8": (container(b"\xff\xfe", payload()) + b"\n", Problem.DAMAGED),
    "header with half a character": (container(b'{"alg":"\\ud800"}', payload()) + b"\n", Problem.DAMAGED),
    # --- the key ---
    "zero key": (by(ZERO_KEY) + b"\n", Problem.WEAK_KEY),
    "small-order key": (by(ONE_KEY) + b"\n", Problem.WEAK_KEY),
    "non-canonical key": (by(NON_CANONICAL_KEY) + b"\n", Problem.WEAK_KEY),
    "key that is no point": (by(NOT_ON_THE_CURVE) + b"\n", Problem.NOT_VERIFIED),
    "kid of another": (container(header(kid=str(STRANGER.dataset_id)), payload()) + b"\n", Problem.NOT_VERIFIED),
    "made by another in the owner's name": (
        container(header(), payload(), STRANGER.sign) + b"\n",
        Problem.NOT_VERIFIED,
    ),
    "made by another in its own name": (
        container(header(kid=str(STRANGER.dataset_id)), payload(), STRANGER.sign) + b"\n",
        Problem.OTHER_KEY,
    ),
    "the owner's key under the other DID method": (
        container(header(kid=str(DATASET.as_did_key())), payload()) + b"\n",
        Problem.OTHER_KEY,
    ),
    # --- the signature ---
    "zero signature": (container(header(), payload(), lambda _: b"\0" * 64) + b"\n", Problem.NOT_VERIFIED),
    "neutral signature": (
        container(header(), payload(), lambda _: NEUTRAL_SIGNATURE) + b"\n",
        Problem.NOT_VERIFIED,
    ),
    "non-canonical S": (container(header(), payload(), malleable) + b"\n", Problem.NOT_VERIFIED),
    "the signature of another text": (
        PARTS[0] + b"." + PARTS[1] + b"." + container(header(), b"{}").split(b".")[2] + b"\n",
        Problem.NOT_VERIFIED,
    ),
    # --- the statement ---
    "right signature of another dataset": (
        signed(dataset_id=STRANGER.dataset_id).sign(STRANGER).encode() + b"\n",
        Problem.OTHER_DATASET,
    ),
    "right signature of another head": (
        signed(head=hash_of("fork")).sign(OWNER).encode() + b"\n",
        Problem.OTHER_HEAD,
    ),
    "right signature of an older head": (
        signed(head=hash_of("older"), sequence_number=4).sign(OWNER).encode() + b"\n",
        Problem.OLDER_HEAD,
    ),
    "right signature of a newer head": (
        signed(head=hash_of("newer"), sequence_number=6).sign(OWNER).encode() + b"\n",
        Problem.NEWER_HEAD,
    ),
    "right signature of this head at an older sequence": (
        signed(sequence_number=4).sign(OWNER).encode() + b"\n",
        Problem.OLDER_HEAD,
    ),
    "right signature of another type": (
        attestation(OWNER, auditor=DATASET).sign(OWNER).encode() + b"\n",
        Problem.WRONG_TYPE,
    ),
    "a head under the type of another use": (
        container(header(typ="JWT"), payload()) + b"\n",
        Problem.WRONG_TYPE,
    ),
    "type missing": (container(header(typ=None), payload()) + b"\n", Problem.WRONG_TYPE),
    "an attestation under the type of a head": (
        container(header(), attestation(OWNER).to_json()) + b"\n",
        Problem.DAMAGED,
    ),
    "an unknown member": (container(header(), payload() | {"until": "2030"}) + b"\n", Problem.DAMAGED),
    "a member missing": (
        container(header(), {k: v for k, v in payload().items() if k != "time"}) + b"\n",
        Problem.DAMAGED,
    ),
    "a member twice": (
        container(header(), twice(json.dumps(payload(), separators=(",", ":")).encode(), "head")) + b"\n",
        Problem.DAMAGED,
    ),
    "payload with white space": (container(header(), spaced(payload())) + b"\n", Problem.DAMAGED),
    "payload that is not JSON": (container(header(), b"head") + b"\n", Problem.DAMAGED),
    "sequence number as text": (container(header(), payload() | {"sequenceNumber": "5"}) + b"\n", Problem.DAMAGED),
    "sequence number as a fraction": (
        container(header(), spaced(payload() | {"sequenceNumber": 5.0}).replace(b", ", b",").replace(b": ", b":"))
        + b"\n",
        Problem.DAMAGED,
    ),
    "sequence number true": (container(header(), payload() | {"sequenceNumber": True}) + b"\n", Problem.DAMAGED),
    "sequence number below zero": (container(header(), payload() | {"sequenceNumber": -1}) + b"\n", Problem.DAMAGED),
    "sequence number of 65 bits": (container(header(), payload() | {"sequenceNumber": 2**64}) + b"\n", Problem.DAMAGED),
    "hash in another spelling": (
        container(header(), payload() | {"head": str(HEAD).upper().replace("F", "f", 1)}) + b"\n",
        Problem.DAMAGED,
    ),
    "hash of another algorithm": (
        container(header(), payload() | {"head": "f1220" + "0" * 64}) + b"\n",
        Problem.DAMAGED,
    ),
    "time in another zone": (
        container(header(), payload() | {"time": "2026-01-02T04:04:05+01:00"}) + b"\n",
        Problem.DAMAGED,
    ),
}  # fmt: skip


def test_the_untouched_file_is_signed() -> None:
    found = check(VALID + b"\n")
    assert (found.status, found.problem, found.message) == (SignatureStatus.SIGNED, None, None)
    assert (found.signer, found.signed, found.text) == (DATASET, signed(), VALID.decode())
    assert found.require() == signed()


def test_dropped() -> None:
    found = check(None)
    assert (found.status, found.problem) == (SignatureStatus.UNSIGNED, Problem.MISSING)
    with pytest.raises(SignatureError, match=r"^place: the head is not signed: .* stripped$") as caught:
        found.require("place")
    assert caught.value.problem == Problem.MISSING


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(attack: str) -> None:
    content, problem = ATTACKS[attack]
    found = check(content)
    assert (found.status, found.problem) == (SignatureStatus.INVALID, problem)
    assert found.message
    assert found.message.isprintable()
    assert len(found.message) < 400
    with pytest.raises(SignatureError) as caught:
        found.require()
    assert caught.value.problem == problem
    assert str(caught.value) == found.message


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ("right signature of another dataset", r"of another dataset, did:odf:fed01"),
        ("right signature of another head", "another head with the same sequence number 5.*two histories"),
        ("right signature of an older head", r"older head \(block 4; the head here is block 5\).*replayed"),
        ("right signature of a newer head", r"newer head \(block 6; .*set back"),
        ("made by another in its own name", "not signed by the dataset's key but by did:odf"),
        ("right signature of another type", "'odf-attestation.jws', not odf-head"),
        ("zero key", "small order: anyone can sign"),
        ("non-canonical key", "not in canonical form"),
        ("alg none", "algorithm is 'none'"),
        ("jwk in the header", "header has 'jwk'"),
    ],
)
def test_the_message_names_the_attack(attack: str, words: str) -> None:
    import re

    assert re.search(words, check(ATTACKS[attack][0]).message or "")


def test_valid_words_about_other_heads_are_kept_as_proof() -> None:
    found = check(ATTACKS["right signature of another head"][0])
    assert found.signed == signed(head=hash_of("fork"))
    assert (found.signer, found.text) == (
        DATASET,
        ATTACKS["right signature of another head"][0][:-1].decode(),
    )


def test_an_older_head_of_the_same_chain_leaves_the_newest_blocks_unsigned() -> None:
    chain = {4: hash_of("older"), 5: HEAD}
    content = ATTACKS["right signature of an older head"][0]
    found = check_head(content, DATASET, HEAD, SEQUENCE, block_at=chain.get)
    assert (found.status, found.problem) == (SignatureStatus.UNSIGNED, Problem.OLDER_HEAD)
    with pytest.raises(SignatureError, match="older head"):
        found.require()


@pytest.mark.parametrize("chain", [{}, {4: HEAD}])
def test_an_older_head_that_is_not_in_the_chain_is_another_history(chain: dict[int, object]) -> None:
    content = ATTACKS["right signature of an older head"][0]
    found = check_head(content, DATASET, HEAD, SEQUENCE, block_at=chain.get)  # type: ignore[arg-type]
    assert (found.status, found.problem) == (SignatureStatus.INVALID, Problem.OTHER_HEAD)
    assert "two histories" in (found.message or "")


# --- damage ----------------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_truncation_of_a_head_signature() -> None:
    content = VALID + b"\n"
    for position in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        assert check(bytes(flipped)).status is SignatureStatus.INVALID, position
    for length in range(len(content)):
        assert check(content[:length]).status is SignatureStatus.INVALID, length


def test_every_flipped_bit_and_every_truncation_of_an_attestation() -> None:
    content = attestation().sign(AUDITORS[0]).encode() + b"\n"
    (line,) = AUDITS.lines_of(content, DATASET)
    assert line.statement == attestation()

    def is_noticed(damaged: bytes) -> bool:
        return all(line.statement is None and line.problem and line.message for line in lines(damaged))

    def lines(damaged: bytes) -> list[object]:
        found = AUDITS.lines_of(damaged, DATASET)
        assert found
        return found

    for position in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        assert is_noticed(bytes(flipped)), position
    for length in range(len(content)):
        assert is_noticed(content[:length]), length


def test_damage_to_one_attestation_leaves_the_others() -> None:
    texts = [attestation(key).sign(key).encode() + b"\n" for key in AUDITORS[:3]]
    damaged = bytearray(texts[1])
    damaged[100] ^= 1
    found = AUDITS.lines_of(texts[0] + bytes(damaged) + texts[2], DATASET)
    assert [line.statement is not None for line in found] == [True, False, True]
    assert [line.number for line in found] == [1, 2, 3]


# --- keys ------------------------------------------------------------------------------------------


def test_the_small_orders_that_are_refused_are_those_of_the_curve() -> None:
    points = curve.small_order()
    assert len(points) == 8
    assert all(curve.multiply(point, 8) == curve.NEUTRAL for point in points)
    refused = {encoding for point in points for encoding in curve.encodings(point)}
    assert len(refused) == 14
    for encoding in refused:
        with pytest.raises(SignatureError) as caught:
            check_public_key(encoding)
        assert caught.value.problem == Problem.WEAK_KEY


def test_every_encoding_that_is_not_canonical_is_refused() -> None:
    for y in range(curve.P, 2**255):
        for sign in (0, 1):
            with pytest.raises(SignatureError, match="canonical"):
                check_public_key((y | sign << 255).to_bytes(32, "little"))


def test_ordinary_keys_are_accepted() -> None:
    for key in (OWNER, STRANGER, *AUDITORS):
        check_public_key(key.dataset_id.public_key)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(SignatureError, match=f"public key of {length} bytes"):
        check_public_key(b"\5" * length)


def test_without_the_rim_a_small_order_key_would_accept_a_signature_that_nobody_made() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(ONE_KEY.public_key)
    key.verify(NEUTRAL_SIGNATURE, b"any text at all")  # raises when the signature is refused


def test_the_library_itself_refuses_a_signature_with_the_order_added() -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(DATASET.public_key)
    key.verify(OWNER.sign(b"text"), b"text")
    with pytest.raises(InvalidSignature):
        key.verify(malleable(b"text"), b"text")


@pytest.mark.parametrize("kind", list(StatementType))
def test_a_statement_is_read_as_its_own_kind_only(kind: StatementType) -> None:
    texts: dict[StatementType, Callable[[], str]] = {
        StatementType.HEAD: lambda: signed().sign(OWNER),
        StatementType.ATTESTATION: lambda: attestation().sign(AUDITORS[0]),
    }
    for other, made in texts.items():
        if other is kind:
            assert read_statement(made().encode(), kind)[1]
        else:
            with pytest.raises(SignatureError) as caught:
                read_statement(made().encode(), kind)
            assert caught.value.problem == Problem.WRONG_TYPE
