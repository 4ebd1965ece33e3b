"""`dataset_identity.json`: ids, names, references, patterns, and real keys."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import InvalidIdError
from odfchain.odf.identity import FINAL_PREFIXES, DatasetId, DatasetKey, encode
from odfchain.odf.names import (
    AccountName,
    AmbiguousAlias,
    DatasetAlias,
    DatasetAliasRemote,
    DatasetName,
    DatasetNamePattern,
    DatasetPattern,
    DatasetUrl,
    RemoteDatasetId,
    RepoName,
    parse_ref,
    parse_ref_any,
    parse_ref_remote,
)
from tests.kit.support import cases, conformance, seeded_id


def parse_ref_pattern(text: str) -> Any:
    """As a workspace understands what names several datasets."""
    return DatasetPattern.parse(text) if "%" in text else parse_ref(text)


PARSERS: dict[str, Any] = {
    "DatasetName": DatasetName,
    "DatasetAlias": DatasetAlias.parse,
    "DatasetAliasRemote": DatasetAliasRemote.parse,
    "DatasetID": DatasetId.parse,
    "DatasetRef": parse_ref,
    "DatasetRefRemote": parse_ref_remote,
    "DatasetRefAny": parse_ref_any,
}


def described(value: object, type_name: str) -> dict[str, Any]:
    """A parsed value in the words of the conformance file."""
    account = getattr(value, "account", None)
    named = {"account": str(account) if account else None, "dataset": str(getattr(value, "name", value))}
    match value:
        case DatasetName():
            return {"kind": "DatasetName", "dataset": str(value)}
        case DatasetId():
            return {"kind": "DatasetID" if type_name == "DatasetID" else "ID", "id": str(value)}
        case RemoteDatasetId():
            return {"kind": "ID", "repo": str(value.repo) if value.repo else None, "id": str(value.id)}
        case DatasetAlias():
            return {"kind": "LocalAlias" if type_name == "DatasetRefAny" else "Alias"} | named
        case DatasetAliasRemote():
            return {"kind": "RemoteAlias", "repo": str(value.repo)} | named
        case AmbiguousAlias():
            return {"kind": "AmbiguousAlias", "prefix": value.prefix, "dataset": str(value.name)}
        case DatasetUrl():
            return {"kind": "Url", "url": value.url}
    raise AssertionError(value)


@pytest.mark.parametrize("case", cases("dataset_identity", "parse_cases"))
def test_parse(case: dict[str, Any]) -> None:
    parse = PARSERS[case["type"]]
    if not case["accept"]:
        with pytest.raises(InvalidIdError):
            parse(case["text"])
        return
    assert described(parse(case["text"]), case["type"]) == case["parsed"]


@pytest.mark.parametrize("case", cases("dataset_identity", "parse_order", "ambiguity_cases"))
def test_ambiguity(case: dict[str, Any]) -> None:
    value = parse_ref_any(case["text"])
    if isinstance(value, AmbiguousAlias):
        value = value.resolve(prefix_is_repo=case["prefix_is_repo"])
    expected = case.get("as_remote") or case["as_local"]
    found = described(value, "")
    assert {k: v for k, v in found.items() if k != "kind"} == expected


@pytest.mark.parametrize("pair", conformance("dataset_identity")["case_insensitivity"]["equal"])
def test_case_does_not_matter(pair: list[str]) -> None:
    a, b = (parse_ref_any(text) for text in pair)
    assert a == b or (isinstance(a, AmbiguousAlias) and _as_remote(a) == _as_remote(b))
    assert DatasetAlias.parse(pair[0]) == DatasetAlias.parse(pair[1]) if pair[0].count("/") < 2 else True


def _as_remote(value: Any) -> DatasetAliasRemote:
    return value.resolve(prefix_is_repo=True)


@pytest.mark.parametrize("pair", conformance("dataset_identity")["case_insensitivity"]["not_equal"])
def test_different_names_differ(pair: list[str]) -> None:
    assert parse_ref_any(pair[0]) != parse_ref_any(pair[1])


def test_names_keep_their_case_and_sort_without_it() -> None:
    names = [DatasetName("b"), DatasetName("A"), DatasetName("C")]
    assert [str(n) for n in sorted(names)] == ["A", "b", "C"]
    assert len({DatasetName("Foo"), DatasetName("foo")}) == 1
    assert DatasetName("foo") != AccountName("foo")
    assert hash(RepoName("X.y")) == hash(RepoName("x.Y"))


@pytest.mark.parametrize("text", conformance("dataset_identity")["name_patterns"]["accept"])
def test_pattern_accepted(text: str) -> None:
    assert str(DatasetNamePattern(text)) == text


@pytest.mark.parametrize("case", cases("dataset_identity", "name_patterns", "partial_or_reject"))
def test_pattern_refused(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidIdError):
        DatasetNamePattern(case["text"])


@pytest.mark.parametrize("case", cases("dataset_identity", "name_patterns", "ref_pattern_parse"))
def test_reference_pattern(case: dict[str, Any]) -> None:
    if case["type"] != "DatasetRefPattern":
        return  # patterns name datasets of this workspace only
    if case.get("error"):
        with pytest.raises(InvalidIdError):
            parse_ref_pattern(case["text"])
        return
    found, expected = parse_ref_pattern(case["text"]), case["parsed"]
    match expected["kind"]:
        case "Pattern":
            account = expected["account"]
            assert found == DatasetPattern(
                AccountName(account) if account else None, DatasetNamePattern(expected["pattern"])
            )
        case "PatternLocal":
            assert found == DatasetPattern(None, DatasetNamePattern(expected["pattern"]))
        case "Ref":
            assert not isinstance(found, DatasetPattern)
        case _:
            raise AssertionError(expected)


@pytest.mark.parametrize("case", cases("dataset_identity", "name_patterns", "match_cases"))
def test_pattern_match(case: dict[str, Any]) -> None:
    account = case.get("account")
    alias = DatasetAlias(AccountName(account) if account else None, DatasetName(case["name"]))
    dataset_id = DatasetId.parse(case["id"]) if "id" in case else seeded_id("other")
    ref = parse_ref_pattern(case["pattern"])
    found = ref.matches(alias) if isinstance(ref, DatasetPattern) else ref in (dataset_id, alias)
    assert found is case["matches"]


@pytest.mark.parametrize("case", cases("dataset_identity", "seeded_id", "expected"))
def test_seeded_id(case: dict[str, Any]) -> None:
    found = seeded_id(case["seed_utf8"])
    assert found.to_bytes().hex() == case["id_bytes_hex"]
    assert str(found) == case["did_odf"]
    assert str(found.as_did_key()) == case["did_key"]
    assert DatasetId.parse(case["did_odf"]) == found
    assert DatasetId.from_bytes(bytes.fromhex(case["id_bytes_hex"])) == found


@pytest.mark.parametrize("case", cases("dataset_identity", "id_formats_cases"))
def test_id_formats(case: dict[str, Any]) -> None:
    text = case.get("did_odf_base58_input") or case["did_odf"]
    found = DatasetId.parse(text)
    assert str(found) == (case.get("canonical") or case["did_odf"])
    if "did_key" in case:
        assert str(found.as_did_key()) == case["did_key"]


@pytest.mark.parametrize("case", cases("dataset_identity", "push_target_cases_head_only"))
def test_push_targets_can_be_told_apart(case: dict[str, Any]) -> None:
    """Push targets are a later command; their texts already parse as what they are."""
    match case["kind"]:
        case "Url":
            assert isinstance(parse_ref_remote(case["text"]), DatasetUrl)
        case "Alias":
            assert described(parse_ref_remote(case["text"]), "") == {
                "kind": "RemoteAlias", "repo": case["repo"], "account": case["account"], "dataset": case["dataset"],
            }  # fmt: skip
        case "Repository":
            assert str(RepoName(case["text"])) == case["text"]


@pytest.mark.parametrize("encoding", sorted(FINAL_PREFIXES.values()))
def test_an_id_is_a_reference_in_every_final_encoding(encoding: str) -> None:
    for key in (bytes(range(32)), b"\xfb\xff" * 16):  # of - and _ in base64url
        found = DatasetId(key)
        text = f"did:odf:{encode(found.to_bytes(), encoding)}"
        assert parse_ref(text) == found
        assert parse_ref_any(text) == parse_ref_remote(text) == RemoteDatasetId(None, found)
        assert parse_ref_remote(f"repo/{text}") == RemoteDatasetId(RepoName("repo"), found)


def test_a_real_key_pair_makes_an_identity() -> None:
    key = DatasetKey.generate()
    assert str(key.dataset_id).startswith("did:odf:fed01")
    assert DatasetKey.from_pem(key.to_pem()).dataset_id == key.dataset_id
    assert DatasetKey.generate().dataset_id != key.dataset_id


def test_a_signature_verifies_under_the_identity() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = DatasetKey.generate()
    signature = key.sign(b"head")
    Ed25519PublicKey.from_public_bytes(key.dataset_id.public_key).verify(signature, b"head")


def test_a_key_never_shows_itself() -> None:
    key = DatasetKey.generate()
    secret = key._private.private_bytes_raw().hex()
    assert secret not in repr(key)
    assert secret not in str(key)


def test_foreign_key_files_are_refused() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for pem in (b"", b"not a key", other):
        with pytest.raises(InvalidIdError):
            DatasetKey.from_pem(pem)


@given(st.text(max_size=60))
def test_parsing_raises_only_the_projects_error(text: str) -> None:
    for parse in (*PARSERS.values(), parse_ref_pattern):
        with contextlib.suppress(InvalidIdError):
            parse(text)


@pytest.mark.parametrize(
    "text",
    ["..", "a/../b", "a\\b", "a%2eb", "a\0", "é", "a" * 300, "con..x", " a", "a\n", ".lock", "a/b/c/d/e"],
)
def test_no_text_becomes_a_name_that_escapes(text: str) -> None:
    with pytest.raises(InvalidIdError):
        DatasetAlias.parse(text)
