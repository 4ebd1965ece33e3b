"""Attestations are kept beside the dataset, one line each, and exchanged without losing or believing any."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.chain import signed_lines
from odfchain.chain.signed_lines import AUDITS, Merged, read_attestations
from odfchain.chain.statements import (
    Attestation,
    EngineUsed,
    Problem,
    SignedHead,
    StatementType,
    Verdict,
    create_key_file,
    parse_did,
    read_attestation,
    read_head,
    read_key_file,
    sign_statement,
)
from odfchain.errors import (
    InvalidIdError,
    NameCollisionError,
    SignatureError,
    StoreError,
    UsageError,
    WorkspaceError,
)
from odfchain.limits import ATTEST, AttestLimits
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.identity import DatasetKey
from odfchain.odf.times import Timestamp
from tests.kit.forge import AUDITORS, DATASET, OWNER, STRANGER, TIME, attestation, container, later, signed
from tests.kit.support import hash_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset's folder, as far as attestations need it."""
    (tmp_path / "info").mkdir()
    return tmp_path


def text_of(index: int = 0, **changes: Any) -> str:
    return attestation(AUDITORS[index], **changes).sign(AUDITORS[index])


def valid(folder: Path) -> list[Attestation]:
    return [line.statement for line in read_attestations(folder, DATASET) if line.statement]


# --- values ----------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2_000_000_000_000_000_000),
    st.sampled_from(Verdict),
    st.sets(st.integers(1, 999), max_size=30),
    st.lists(st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20), max_size=5),
)
def test_what_is_signed_is_read_back(
    number: int, time: int, verdict: Verdict, checks: set[int], names: list[str]
) -> None:
    ordered = sorted(checks)
    value = attestation(
        sequence_number=number, time=Timestamp(time), verdict=verdict,
        checks=tuple(ordered[::2]), not_checked=tuple(ordered[1::2]),
        engines=tuple(EngineUsed(name, "1") for name in names if name.isprintable()),
    )  # fmt: skip
    assert read_attestation(value.sign(AUDITORS[0]).encode()) == value
    head = signed(sequence_number=number, time=Timestamp(time))
    assert read_head(head.sign(OWNER).encode()) == (DATASET, head)


def test_a_dataset_may_attest_another() -> None:
    value = attestation(auditor=STRANGER.dataset_id)
    assert read_attestation(value.sign(STRANGER).encode()).auditor == STRANGER.dataset_id


def test_nobody_signs_in_the_name_of_another() -> None:
    with pytest.raises(UsageError, match="the key is not that of did:key:z"):
        attestation(AUDITORS[0]).sign(AUDITORS[1])
    with pytest.raises(UsageError, match="the key is not that of did:odf:"):
        signed().sign(STRANGER)


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": (2, 1)}, {"checks": (1, 1)}, {"checks": (0,)}, {"checks": (1,), "not_checked": (1,)},
        {"checks": tuple(range(1, 66))}, {"tool": ""}, {"tool": "x" * 101}, {"tool": "line\nend"},
        {"engines": (EngineUsed("", "1"),)}, {"engines": (EngineUsed("x", "\x1b[31m"),)},
        {"engines": (EngineUsed("x", "1"),) * 65}, {"sequence_number": -1}, {"sequence_number": 2**64},
    ],
    ids=str,
)  # fmt: skip
def test_an_attestation_that_nobody_could_read_is_not_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="unreadable attestation"):
        text_of(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "fine"}, {"verdict": None}, {"checks": "1"}, {"checks": [True]}, {"checks": [1.0]},
        {"engines": ["spark"]}, {"engines": [{"name": "spark"}]},
        {"engines": [{"name": "spark", "version": "4", "more": 1}]},
        {"report": "f1220" + "0" * 64}, {"auditor": "did:key:z"},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_attestation_is_refused_though_its_signature_is_right(changes: dict[str, Any]) -> None:
    header = {"alg": "EdDSA", "kid": str(STRANGER.dataset_id), "typ": str(StatementType.ATTESTATION)}
    payload = attestation().to_json() | changes
    raw = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(SignatureError) as caught:
        read_attestation(container(header, raw, STRANGER.sign))
    assert caught.value.problem == Problem.DAMAGED


def test_a_statement_that_is_too_large_is_not_signed() -> None:
    with pytest.raises(UsageError, match=r"a statement of \d+ bytes \(at most 16384\)"):
        sign_statement(OWNER, DATASET, StatementType.HEAD, {"x": "y" * ATTEST.statement_bytes})


# --- the digest of a report ------------------------------------------------------------------------


def test_a_report_has_one_digest_however_it_is_written() -> None:
    assert (
        canonical_json({"b": [1, None, True], "a": "é\n\u2028"})
        == '{"a":"é\\n\u2028","b":[1,null,true]}'.encode()
    )
    one, other = ({"a": 1, "b": {"d": 2, "c": 3}}, {"b": {"c": 3, "d": 2}, "a": 1})
    assert canonical_json(one) == canonical_json(other)
    assert canonical_json({"a": 1}) != canonical_json({"a": "1"})
    assert canonical_json({}) == b"{}"


@pytest.mark.parametrize("value", [1.5, float("nan"), {1: 2}, b"x", "\ud800", {"a": [{1}]}], ids=repr)
def test_what_has_no_single_text_has_no_digest(value: object) -> None:
    with pytest.raises(UsageError):
        canonical_json(value)


# --- the file --------------------------------------------------------------------------------------


def test_no_file_is_no_attestations(folder: Path) -> None:
    assert read_attestations(folder, DATASET) == []


def test_attestations_are_kept_one_per_line_in_one_order(folder: Path) -> None:
    for index in (2, 0, 1):
        AUDITS.add(folder, DATASET, text_of(index))
    content = (folder / AUDITS.key).read_bytes()
    assert content.count(b"\n") == 3
    assert content.endswith(b"\n")
    assert {a.auditor for a in valid(folder)} == {key.dataset_id.as_did_key() for key in AUDITORS[:3]}
    keys = [a.auditor.public_key for a in valid(folder)]
    assert keys == sorted(keys)


def test_the_same_attestation_twice_is_one(folder: Path) -> None:
    AUDITS.add(folder, DATASET, text_of())
    before = (folder / AUDITS.key).stat()
    AUDITS.add(folder, DATASET, text_of())
    after = (folder / AUDITS.key).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "not even written again"


def test_the_latest_word_of_an_auditor_on_a_head_stands(folder: Path) -> None:
    AUDITS.add(folder, DATASET, text_of())
    AUDITS.add(folder, DATASET, text_of(time=later(1), verdict=Verdict.FAULTY))
    with pytest.raises(StoreError, match="already signed a newer statement about block f1620"):
        AUDITS.add(folder, DATASET, text_of())
    AUDITS.add(folder, DATASET, text_of(head=hash_of("next"), sequence_number=6))
    found = [(a.sequence_number, a.verdict) for a in valid(folder)]
    assert found == [(5, Verdict.FAULTY), (6, Verdict.CLEAN)]


def test_one_key_is_one_auditor_under_either_method(folder: Path) -> None:
    AUDITS.add(folder, DATASET, text_of())
    AUDITS.add(folder, DATASET, text_of(auditor=AUDITORS[0].dataset_id, time=later(1)))
    assert [a.auditor for a in valid(folder)] == [AUDITORS[0].dataset_id]


def test_what_is_no_valid_attestation_of_the_dataset_is_not_added(folder: Path) -> None:
    for text in ("", "x", text_of()[:-1], text_of() + "\n", signed().sign(OWNER)):
        with pytest.raises(SignatureError):
            AUDITS.add(folder, DATASET, text)
    with pytest.raises(SignatureError, match="of another dataset") as caught:
        AUDITS.add(folder, STRANGER.dataset_id, text_of())
    assert caught.value.problem == Problem.OTHER_DATASET
    assert not (folder / AUDITS.key).exists()


def test_more_than_sixteen_for_one_head_are_refused_and_trusted_ones_come_first(folder: Path) -> None:
    for index in range(16):
        AUDITS.add(folder, DATASET, text_of(index))
    before = (folder / AUDITS.key).read_bytes()
    with pytest.raises(StoreError, match="has 16 attestations already"):
        AUDITS.add(folder, DATASET, text_of(16))
    assert (folder / AUDITS.key).read_bytes() == before
    AUDITS.add(folder, DATASET, text_of(16, head=hash_of("next"), sequence_number=6))
    trusted = AUDITORS[17].dataset_id  # under either method: it is the same key
    merged = AUDITS.merge(folder, DATASET, text_of(17).encode() + b"\n", trusted=[trusted])
    assert merged.added == 1
    assert len([a for a in valid(folder) if a.sequence_number == 5]) == 16
    assert trusted.as_did_key() in {a.auditor for a in valid(folder)}


def test_the_file_does_not_grow_beyond_its_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_lines, "ATTEST", AttestLimits(attestations_bytes=2 * (len(text_of()) + 1)))
    AUDITS.add(folder, DATASET, text_of(0))
    AUDITS.add(folder, DATASET, text_of(1))
    with pytest.raises(StoreError, match=r"no room for more than \d+ bytes"):
        AUDITS.add(folder, DATASET, text_of(2))
    assert len(valid(folder)) == 2


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    (folder / "attestations").mkdir()
    (folder / AUDITS.key).write_bytes(b"\n" * (ATTEST.attestations_bytes + 1))
    (line,) = read_attestations(folder, DATASET)
    assert line.problem == Problem.DAMAGED
    assert "more than 1048576 bytes" in (line.message or "")


def test_a_file_of_junk_is_given_up_and_what_came_before_is_read() -> None:
    line = text_of().encode() + b"\n"
    junk = b"\n" * (ATTEST.attestations_bytes - len(line))
    found = AUDITS.lines_of(line + junk, DATASET)
    assert found[0].statement
    assert len(found) == 102
    assert found[-1].message == "after 100 bad lines the rest is not read"
    few = AUDITS.lines_of(b"\n" * 99 + line, DATASET)
    assert (len(few), few[-1].statement) == (100, found[0].statement)


def test_damage_beside_valid_lines_is_told_and_goes_with_the_next_writing(folder: Path) -> None:
    AUDITS.add(folder, DATASET, text_of(0))
    path = folder / AUDITS.key
    path.write_bytes(path.read_bytes() + b"rubbish \x1b[31m\n" + text_of(1).encode()[:50])
    found = read_attestations(folder, DATASET)
    assert [(line.number, line.problem) for line in found] == [
        (1, None), (2, Problem.DAMAGED), (3, Problem.DAMAGED),
    ]  # fmt: skip
    assert all(line.message is None or line.message.isprintable() for line in found)
    AUDITS.add(folder, DATASET, text_of(1))
    assert [line.problem for line in read_attestations(folder, DATASET)] == [None, None]


def test_a_link_in_place_of_the_file_is_refused(folder: Path) -> None:
    (folder / "attestations").mkdir()
    (folder / "target").write_bytes(text_of().encode() + b"\n")
    (folder / AUDITS.key).symlink_to(folder / "target")
    with pytest.raises(StoreError, match="a link is not followed"):
        read_attestations(folder, DATASET)


# --- merging ---------------------------------------------------------------------------------------


def test_what_a_peer_brings_is_joined_with_what_is_here(folder: Path) -> None:
    AUDITS.add(folder, DATASET, text_of(0))
    wrong = attestation(AUDITORS[3], dataset_id=STRANGER.dataset_id).sign(AUDITORS[3])
    received = "".join(f"{line}\n" for line in (text_of(0), text_of(1), "rubbish", wrong)).encode()
    merged = AUDITS.merge(folder, DATASET, received)
    assert merged.added == 1
    assert [reason.split(":")[0] for reason in merged.refused] == ["line 3", "line 4"]
    assert len(valid(folder)) == 2
    assert AUDITS.merge(folder, DATASET, received).added == 0


def test_a_peer_without_a_valid_line_changes_nothing(folder: Path) -> None:
    for received in (b"", b"\n", b"\xff" * 2_000_000):
        assert AUDITS.merge(folder, DATASET, received).added == 0
    assert not (folder / "attestations").exists()


def test_attestations_of_blocks_that_are_not_wanted_are_left_out(folder: Path) -> None:
    received = f"{text_of(0)}\n{text_of(1, head=hash_of('unknown'))}\n".encode()
    merged = AUDITS.merge(folder, DATASET, received, accept=lambda a: a.head == hash_of("head"))
    assert merged == Merged(1)
    assert [a.auditor for a in valid(folder)] == [AUDITORS[0].dataset_id.as_did_key()]


def test_copies_that_exchanged_theirs_are_equal_in_whatever_order(tmp_path: Path) -> None:
    batches = [
        f"{text_of(0)}\n{text_of(1)}\n".encode(),
        f"{text_of(0, time=later(5), verdict=Verdict.FAULTY)}\n".encode(),
        f"{text_of(2)}\n{text_of(1, time=later(-5))}\n".encode(),
    ]
    results = set()
    for number, order in enumerate(itertools.permutations(batches)):
        folder = tmp_path / str(number)
        (folder / "info").mkdir(parents=True)
        for received in order:
            AUDITS.merge(folder, DATASET, received)
        results.add((folder / AUDITS.key).read_bytes())
    (content,) = results
    verdicts = [line.statement.verdict for line in AUDITS.lines_of(content, DATASET) if line.statement]
    assert verdicts.count(Verdict.FAULTY) == 1


# --- keys in files ---------------------------------------------------------------------------------


def test_a_key_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "auditor.pem"
    key = create_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_file(path).dataset_id == key.dataset_id
    with pytest.raises(NameCollisionError, match="already exists"):
        create_key_file(path)
    assert read_key_file(path).dataset_id == key.dataset_id


def test_key_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "auditor.pem"
    with pytest.raises(UsageError, match=r"auditor\.pem: no such file"):
        read_key_file(path)
    create_key_file(path)
    path.chmod(0o640)
    with pytest.raises(WorkspaceError, match="mode 0640 lets others read") as caught:
        read_key_file(path)
    assert caught.value.hint == f"chmod 600 {path}"
    path.chmod(0o600)
    for content in (b"", b"\xff" * 100, b"x" * 100_000):
        path.write_bytes(content)
        with pytest.raises(InvalidIdError, match=r"auditor\.pem: "):
            read_key_file(path)
    with pytest.raises(StoreError, match="not an ordinary file"):
        read_key_file(tmp_path)
    with pytest.raises(StoreError):
        create_key_file(tmp_path / "missing" / "auditor.pem")


@given(
    st.text(max_size=80)
    | st.text(max_size=60).map("did:odf:".__add__)
    | st.text(max_size=60).map("did:key:".__add__)
)
def test_a_signer_is_parsed_or_refused_with_one_error(text: str) -> None:
    with contextlib.suppress(InvalidIdError):
        assert str(parse_did(text)) == text


def test_signers_have_one_spelling() -> None:
    key = DatasetKey.generate().dataset_id
    assert parse_did(str(key)) == key
    assert parse_did(str(key.as_did_key())) == key.as_did_key()
    for other in (str(key).upper(), str(key) + " ", "did:odf:" + str(key.as_did_key())[8:]):
        with pytest.raises(InvalidIdError):
            parse_did(other)


def test_signed_heads_are_values() -> None:
    assert signed() == SignedHead(DATASET, hash_of("head"), 5, TIME)
    assert len({signed(), signed(), signed(sequence_number=6)}) == 2
