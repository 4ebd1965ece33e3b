"""Signatures cannot be stripped, moved, replayed or bent: each attack by its name, against the file."""

from __future__ import annotations

import re

import pytest

from odfchain.chain.signed_heads import HeadSignature, SignatureStatus, check_head
from odfchain.chain.signed_lines import AUDITS
from odfchain.chain.statements import Problem, StatementType, check_public_key, read_statement
from odfchain.errors import SignatureError
from tests.kit import curve
from tests.kit.forge import AUDITORS, DATASET, HEAD, OWNER, SEQUENCE, STRANGER, attestation, signed
from tests.kit.forged_signatures import NEUTRAL_SIGNATURE, ONE_KEY, forged, malleable
from tests.kit.support import hash_of

VALID = signed().sign(OWNER).encode()


def check(content: bytes | None) -> HeadSignature:
    return check_head(content, DATASET, HEAD, SEQUENCE)


ATTACKS = forged(signed())


def test_the_untouched_file_is_signed() -> None:
    found = check(VALID + b"\n")
    assert (found.status, found.problem, found.message) == (SignatureStatus.SIGNED, None, None)
    assert (found.signer, found.signed, found.text) == (DATASET, signed(), VALID.decode())
    assert found.require() == signed()


def test_dropped() -> None:
    found = check(None)
    assert (found.status, found.problem) == (SignatureStatus.UNSIGNED, Problem.MISSING)
    with pytest.raises(
        SignatureError, match=r"^place: unsigned commits since block 0: .* stripped$"
    ) as caught:
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
    assert re.search(words, check(ATTACKS[attack][0]).message or "")


def test_valid_words_about_other_heads_are_kept_as_proof() -> None:
    content = ATTACKS["right signature of another head"][0]
    found = check(content)
    assert found.signed == signed(head=hash_of("fork"))
    assert (found.signer, found.text) == (DATASET, content[:-1].decode())


def test_an_older_head_of_the_same_chain_leaves_the_newest_blocks_unsigned() -> None:
    chain = {4: hash_of("older"), 5: HEAD}
    content = ATTACKS["right signature of an older head"][0]
    found = check_head(content, DATASET, HEAD, SEQUENCE, block_at=chain.get)
    assert (found.status, found.problem) == (SignatureStatus.UNSIGNED, Problem.OLDER_HEAD)
    assert found.unsigned_since == 5
    with pytest.raises(SignatureError, match="unsigned commits since block 5: the owner signed block 4 last"):
        found.require()


@pytest.mark.parametrize("chain", [{}, {4: HEAD}])
def test_an_older_head_that_is_not_in_the_chain_is_another_history(chain: dict[int, object]) -> None:
    content = ATTACKS["right signature of an older head"][0]
    found = check_head(content, DATASET, HEAD, SEQUENCE, block_at=chain.get)
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
    texts = {
        StatementType.HEAD: signed().sign(OWNER),
        StatementType.ATTESTATION: attestation().sign(AUDITORS[0]),
    }
    for other, text in texts.items():
        if other is kind:
            assert read_statement(text.encode(), kind)[1]
        else:
            with pytest.raises(SignatureError) as caught:
                read_statement(text.encode(), kind)
            assert caught.value.problem == Problem.WRONG_TYPE
