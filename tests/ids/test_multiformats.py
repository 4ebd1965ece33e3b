"""`multiformats.json`: codes, varints, multihashes, multibase and did:key."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import InvalidIdError
from odfchain.odf import identity
from odfchain.odf.identity import DatasetId, DidKey, Multicodec, Multihash, decode_varint, encode_varint
from odfchain.odf.physical_hash import hash_bytes
from tests.kit.support import cases, conformance, seeded_id


@pytest.mark.parametrize("code", cases("multiformats", "multicodec", "codes"))
def test_codec(code: dict[str, Any]) -> None:
    codec = Multicodec.from_code(int(code["code"], 16))
    assert str(codec) == code["name"]
    if "varint_hex" in code:
        assert encode_varint(codec).hex() == code["varint_hex"]


def test_codec_numbers_agree_with_the_public_table() -> None:
    import multiformats.multicodec as table

    for codec in Multicodec:
        if int(codec) < 0x300000 and codec is not Multicodec.MULTIDID:
            assert table.get(str(codec)).code == int(codec)


def test_unknown_codec_code() -> None:
    with pytest.raises(InvalidIdError, match="0x13"):
        Multicodec.from_code(0x13)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=4))
def test_varint_round_trip(value: int, rest: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded + rest) == (value, len(encoded))


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x00", b"\xff\x00", b"\xff\xff\xff\xff\x1f", b"\x80" * 6]
)
def test_varint_refused(data: bytes) -> None:
    with pytest.raises(InvalidIdError):
        decode_varint(data)


@pytest.mark.parametrize("case", cases("multiformats", "cases", "multihash_of_bytes"))
def test_multihash_of_bytes(case: dict[str, Any]) -> None:
    found = hash_bytes(case["input_utf8"].encode())
    assert found.to_bytes().hex() == case["binary_hex"]
    assert str(found) == case["base16"]
    assert str(found.codec) == case["codec"]
    if "base58btc" in case:
        assert identity.encode(found.to_bytes(), "base58btc") == case["base58btc"]
    if "short" in case:
        assert found.short == case["short"]


@pytest.mark.parametrize("case", cases("multiformats", "cases", "multihash_parse"))
def test_multihash_parse(case: dict[str, Any]) -> None:
    if not case["accept"]:
        with pytest.raises(InvalidIdError):
            Multihash.parse(case["text"])
        return
    found = Multihash.parse(case["text"])
    if "codec" in case:
        assert str(found.codec) == case["codec"]
    if "digest_hex" in case:
        assert found.digest.hex() == case["digest_hex"]
    if "equals" in case:
        assert found == Multihash.parse(case["equals"])
        assert hash(found) == hash(Multihash.parse(case["equals"]))
    if "not_equals" in case:
        assert found != Multihash.parse(case["not_equals"])
    if "base58btc" in case:
        assert identity.encode(found.to_bytes(), "base58btc") == case["base58btc"]


@pytest.mark.parametrize("case", cases("multiformats", "cases", "arrow0_sha3_256"))
def test_logical_hash_layout(case: dict[str, Any]) -> None:
    digest = hash_bytes(case["digest_of_utf8"].encode()).digest
    found = Multihash(Multicodec.ARROW0_SHA3_256, digest)
    assert found.to_bytes().hex() == case["binary_hex"]
    assert str(found) == case["base16"]
    assert Multihash.parse(case["base16"]) == found


@pytest.mark.parametrize("case", cases("multiformats", "cases", "did_key"))
def test_did_key(case: dict[str, Any]) -> None:
    if "seed_utf8" in case:
        did = seeded_id(case["seed_utf8"]).as_did_key()
        assert str(did) == case["did_key"]
        assert identity.encode(did.to_bytes(), "base58btc") == case["base58btc"]
        assert identity.encode(did.to_bytes(), "base16") == case["base16"]
        return
    if not case["accept"]:
        with pytest.raises(InvalidIdError):
            DidKey.parse(case["text"])
        return
    did = DidKey.parse(case["text"])
    if "canonical" in case:
        assert str(did) == case["canonical"]
    if "as_did_odf" in case:
        assert str(DatasetId(did.public_key)) == case["as_did_odf"]
    if "equals" in case:
        assert did == DidKey.parse(case["equals"])
    if "not_equals" in case:
        assert did != DidKey.parse(case["not_equals"])


def test_did_key_needs_no_prefix_at_its_own_entry_point() -> None:
    text = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    assert DidKey.from_multibase(text) == DidKey.parse(f"did:key:{text}")


@pytest.mark.parametrize("encoding", conformance("multiformats")["multibase"]["encodings"])
def test_reference_encodings_are_read(encoding: dict[str, Any]) -> None:
    name = {"base64url, no padding": "base64url"}.get(encoding["name"], encoding["name"])
    data = bytes(range(34))
    text = identity.encode(data, name)
    assert text[0] == encoding["prefix"]
    for prefix in encoding["decode_prefixes"]:
        body = text[1:].upper() if prefix == "F" else text[1:]
        assert identity.decode(prefix + body) == data


@pytest.mark.parametrize("name", sorted(identity.FINAL_PREFIXES.values()))
@given(data=st.binary(min_size=1, max_size=40))
def test_every_final_encoding_is_read(name: str, data: bytes) -> None:
    """The specification asks for all encodings in state "final" (RFC-001)."""
    import multiformats.multibase as reference

    assert identity.decode(reference.encode(data, name)) == data


@pytest.mark.parametrize("text", ["", "f1", "fxy", "zO0", "1620", "x12", "b1", "f" * 300, "z" + "é"])
def test_multibase_refused(text: str) -> None:
    with pytest.raises(InvalidIdError):
        identity.decode(text)


@given(st.text(max_size=90))
def test_parsing_raises_only_the_projects_error(text: str) -> None:
    for parse in (Multihash.parse, DidKey.parse, identity.decode):
        with contextlib.suppress(InvalidIdError):
            parse(text)


def test_over_long_digest_refused() -> None:
    with pytest.raises(InvalidIdError, match="33 bytes"):
        Multihash.from_bytes(b"\x16\x21" + bytes(33))
