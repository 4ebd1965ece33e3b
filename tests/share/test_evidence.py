"""An owner who signs two histories is caught by whoever sees both, and anybody can check the proof."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from odfchain.chain import equivocation as evidence_module
from odfchain.chain.equivocation import (
    Claim,
    Evidence,
    EvidenceStore,
    SignedBranch,
    evidence_of,
    read_evidence,
    read_evidence_file,
)
from odfchain.chain.statements import SignedHead
from odfchain.errors import ChainsDifferError, NameCollisionError, SignatureError, StoreError
from odfchain.limits import ATTEST
from odfchain.transfer.pulling import SyncStatus
from odfchain.transfer.signed_statements import SignaturePolicy
from tests.kit.forge import OWNER, STRANGER, assert_proof_is_valid, container, header, signed
from tests.kit.scenario import Chain
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.signed_heads import COMMON, NOW, Reader, head_of, line, now, owned, publish
from tests.kit.support import Run, hash_of

ONE = owned([*COMMON, "one", "two"])
FORK = owned([*COMMON[:-1], "other", "thing", "more", "yet more"])
"""Parts from `ONE` at block 4."""
PLAIN = SignaturePolicy(now=now)
OTHER = hash_of("b")


@pytest.fixture
def forked(reader: Reader, peer: Path) -> Reader:
    """A reader with a copy of `ONE`, from where there is `FORK` now."""
    publish(peer, ONE)
    reader.pull(peer.as_uri(), PLAIN)
    publish(peer, FORK)
    return reader


def refused(reader: Reader, peer: Path) -> ChainsDifferError:
    with pytest.raises(ChainsDifferError, match="than was seen") as caught:
        reader.pull(peer.as_uri(), PLAIN)
    return caught.value


def claim(chain: Chain, number: int = -1) -> Claim:
    said = head_of(chain, number)
    blocks = dict(zip(chain.hashes, chain.blocks, strict=True))
    return Claim(said.sign(OWNER), said, lambda n: chain.hashes[n], blocks.__getitem__)


def proof(one: Chain = ONE, other: Chain = FORK) -> Evidence:
    found = claim(one).prove(claim(other))
    assert found is not None
    return found


def strangers(statement: SignedHead) -> str:
    """A head of the owner's dataset, signed by a stranger in the stranger's name."""
    return container(header(kid=str(STRANGER.dataset_id)), statement.to_json(), STRANGER.sign).decode()


def only(reader: Reader) -> Evidence:
    (kept,) = reader.sharing.evidence.list()
    assert kept.evidence is not None
    return kept.evidence


# --- the proof -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(FORK, id="longer"),
        pytest.param(owned([*COMMON, "one", "another two"]), id="as long"),
        pytest.param(owned([COMMON[0], "other"]), id="shorter"),
    ],
)
def test_two_histories_are_proved_and_read_back(other: Chain) -> None:
    found = proof(other=other)
    number = min(len(ONE.hashes), len(other.hashes)) - 1
    assert found.sequence_number == number
    assert set(found.hashes) == {ONE.hashes[number], other.hashes[number]}
    assert read_evidence(found.to_bytes(), "file") == found
    assert claim(other).prove(claim(ONE)) == found
    parted = sum(a == b for a, b in zip(ONE.hashes, other.hashes, strict=False))
    lengths = sorted(len(chain.hashes) - parted for chain in (ONE, other))
    assert sorted(len(branch.blocks) for branch in found.branches) == lengths, "down to where they part"


def test_a_proof_is_as_its_schema_says() -> None:
    assert_proof_is_valid(proof().to_bytes())


def test_one_history_is_no_proof() -> None:
    assert claim(ONE, 3).prove(claim(ONE)) is None
    assert claim(ONE).prove(claim(ONE)) is None
    with pytest.raises(SignatureError, match="both heads are of one history: its block 6"):
        evidence_of(*(SignedBranch(claim(ONE).statement),) * 2)


def test_what_is_not_at_hand_proves_nothing() -> None:
    blind = Claim(claim(FORK).statement, claim(FORK).signed, lambda _: None, lambda _: b"")
    assert claim(ONE).prove(blind) is None


def test_two_heads_with_one_number_need_no_blocks() -> None:
    statements = [signed(head=hash_of(text)).sign(OWNER) for text in ("a", "b")]
    found = evidence_of(*map(SignedBranch, statements))
    assert (found.sequence_number, set(found.hashes)) == (5, {hash_of("a"), hash_of("b")})
    assert read_evidence(found.to_bytes(), "file") == found


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (strangers(signed(head=OTHER)), "not signed by the dataset's key but by"),
        (signed(head=OTHER, dataset_id=STRANGER.dataset_id).sign(STRANGER), "the heads are of two datasets"),
        (signed(head=OTHER, sequence_number=6).sign(OWNER), "do not lead from block 6 to block 5"),
    ],
)
def test_what_proves_nothing_is_refused(statement: str, words: str) -> None:
    with pytest.raises(SignatureError, match=words):
        evidence_of(SignedBranch(signed().sign(OWNER)), SignedBranch(statement))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda blocks: blocks[1:], "does not hash to its name"),
        (lambda blocks: (*blocks[:1], *blocks[2:]), "does not hash to its name"),
        (lambda blocks: (blocks[0] + b"x", *blocks[1:]), "does not hash to its name"),
        (lambda blocks: (), "do not lead from block 7 to block 6"),
        (lambda blocks: (*blocks, b"junk"), "block 3 of a signed history does not hash"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(
    change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]], words: str
) -> None:
    lower, higher = proof().branches
    with pytest.raises(SignatureError, match=words):
        evidence_of(lower, SignedBranch(higher.statement, change(higher.blocks)))


def test_a_flipped_bit_of_every_byte_and_every_truncation_is_refused() -> None:
    one = owned(["one"])
    data = proof(one, owned(["other", "more"])).to_bytes()
    assert read_evidence(data, "file")
    for length in range(len(data)):
        with pytest.raises(SignatureError, match="file: not a proof"):
            read_evidence(data[:length], "file")
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(SignatureError, match="file: not a proof"):
            read_evidence(bytes(damaged), "file")


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b"[" * 9_000, b'{"heads":[]}', b'{"heads":[{},{}]}', b"\xff",
     b'{"heads":[{"statement":1,"blocks":[]},{"statement":2,"blocks":[]}]}',
     b'{"heads":[{"statement":"\\ud800","blocks":[]},{"statement":"x","blocks":[]}]}'],
)  # fmt: skip
def test_other_files_are_no_proofs(text: bytes) -> None:
    with pytest.raises(SignatureError) as caught:
        read_evidence(text, "file")
    assert str(caught.value).startswith("file: not a proof of two histories: ")
    assert str(caught.value).isprintable()


def test_the_same_proof_in_another_spelling_is_refused() -> None:
    spaced = json.dumps(json.loads(proof().to_bytes())).encode()
    with pytest.raises(SignatureError, match="changed, or not written in canonical form"):
        read_evidence(spaced, "file")


def test_context_that_is_too_long_is_left_out_and_a_proof_that_is_too_long_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence_module, "ATTEST", replace(ATTEST, evidence_context=4))
    found = proof()
    assert [len(branch.blocks) for branch in found.branches] == [0, 1]  # only what proves it
    assert read_evidence(found.to_bytes(), "file") == found
    monkeypatch.setattr(evidence_module, "ATTEST", replace(ATTEST, evidence_blocks=0))
    with pytest.raises(StoreError, match="a proof of 1 blocks"):
        proof()


# --- it is kept ----------------------------------------------------------------------------------------


def test_a_fork_is_refused_and_the_proof_kept(forked: Reader, peer: Path) -> None:
    for _ in range(2):  # the second time adds nothing
        assert (refused(forked, peer).hint or "").endswith("`odfchain evidence`")
    assert only(forked) == proof()
    (kept,) = forked.sharing.evidence.list(OWNER.dataset_id)
    assert [(s.time, s.where) for s in kept.sightings] == [(NOW, f"{peer.as_uri()}/")]
    assert forked.sharing.evidence.list(STRANGER.dataset_id) == []


def test_force_takes_the_other_history_and_keeps_the_proof(forked: Reader, peer: Path) -> None:
    outcome = forked.pull(peer.as_uri(), PLAIN, force=True).outcome
    assert outcome.status is SyncStatus.OVERWRITTEN
    assert any("has signed two blocks 6" in text for text in outcome.warnings)
    assert only(forked) == proof()
    assert forked.signature() == line(head_of(FORK))
    # and back again: the same proof
    publish(peer, ONE)
    forked.pull(peer.as_uri(), PLAIN, force=True)
    assert only(forked) == proof()
    assert forked.signature() == line(head_of(ONE))


def test_a_fork_is_proved_also_after_the_copy_was_deleted(forked: Reader, peer: Path) -> None:
    (dataset,) = forked.files.datasets()
    forked.files.delete(dataset)
    refused(forked, peer)
    found = only(forked)
    assert (found.sequence_number, set(found.hashes)) == (6, {ONE.hashes[6], FORK.hashes[6]})


def test_a_fork_that_is_pulled_under_another_name_is_proved_too(forked: Reader, peer: Path) -> None:
    before = forked.state()
    with pytest.raises(NameCollisionError) as caught:
        forked.pull(peer.as_uri(), PLAIN, name="other")
    assert "`odfchain evidence`" in (caught.value.hint or "")
    assert set(only(forked).hashes) == {ONE.hashes[6], FORK.hashes[6]}
    assert forked.state() == before


def test_blocks_of_strangers_are_no_proof_against_the_owner(forked: Reader, peer: Path) -> None:
    for signature in (strangers(signed(head=FORK.head, sequence_number=7)).encode() + b"\n", None):
        publish(peer, FORK, signature)
        refused(forked, peer)
    assert forked.sharing.evidence.list() == []


def test_owners_who_meet_their_own_dataset_with_another_history_are_told(tmp_path: Path, peer: Path) -> None:
    owner = Reader(tmp_path / "owner")
    dataset = make_dataset(owner.files, "mine", 10, 20)
    owner.sharing.push("mine", peer.as_uri())
    other = Reader(tmp_path / "twin")  # the owner's other machine: a copy of the workspace
    shutil.rmtree(other.files.root)
    shutil.copytree(owner.files.root, other.files.root)
    (twin,) = other.files.datasets()
    add_slice(twin, 30)
    other.sharing.push("mine", peer.as_uri())
    add_slice(dataset, 40)
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common") as caught:
        owner.pull(peer.as_uri(), name="mine")
    assert "`odfchain evidence`" in (caught.value.hint or "")
    assert only(owner).dataset_id == dataset.id


def test_a_damaged_file_is_made_anew_when_the_conflict_is_met_again(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path / "evidence")
    path = store.keep(proof(), "here", NOW)
    path.write_bytes(path.read_bytes()[:-5])
    (kept,) = store.list()
    assert kept.evidence is None
    assert str(path) in (kept.problem or "")
    assert store.keep(proof(), "there", NOW) == path
    (kept,) = store.list()
    assert kept.evidence == proof()
    assert [s.where for s in kept.sightings] == ["here", "there"]


# --- the command ---------------------------------------------------------------------------------------


def test_the_command_lists_exports_and_checks(forked: Reader, peer: Path, tmp_path: Path, run: Run) -> None:
    at = ("-w", forked.root)
    assert run(*at, "evidence").err == "no owner is known to have signed two histories\n"
    refused(forked, peer)

    (row,) = run(*at, "evidence", "-o", "json").rows
    assert row["dataset"] == "copy"
    assert row["sequenceNumber"] == 6
    assert {row["block"], row["otherBlock"]} == {str(ONE.hashes[6]), str(FORK.hashes[6])}
    assert row["sightings"] == [{"time": str(NOW), "from": f"{peer.as_uri()}/"}]
    assert [head["sequenceNumber"] for head in row["signed"]] == [6, 7]
    assert run(*at, "evidence", "copy", "-o", "json").rows == [row]
    assert run(*at, "evidence", STRANGER.dataset_id, "-o", "json").rows == []

    file = tmp_path / "proof.json"
    assert run(*at, "evidence", "--export", file).code == 0
    assert read_evidence_file(file) == proof()
    again = run(*at, "evidence", "--export", file)
    assert (again.code, "already exists" in again.err) == (7, True)
    assert run(*at, "evidence", "--export", tmp_path).code == 0
    checked = run("-w", tmp_path / "nowhere", "evidence", "--check", file, "-o", "json")
    assert (checked.code, checked.rows[0]["id"]) == (0, str(OWNER.dataset_id))
    file.write_bytes(file.read_bytes().replace(b'"sequenceNumber":6', b'"sequenceNumber":5'))
    damaged = run("evidence", "--check", file)
    assert damaged.code == 6
    assert f"error: {file}: not a proof of two histories" in damaged.err


def test_the_command_names_damaged_proofs(reader: Reader, run: Run) -> None:
    path = EvidenceStore(reader.files.root / "evidence").keep(proof(), "here", NOW)
    path.write_bytes(b"{}")
    found = run("-w", reader.root, "evidence")
    assert found.code == 6
    assert f"warning: {path}: not a proof" in found.err
    assert "1 of 1 proofs are damaged" in found.err


def test_what_the_command_cannot_do(reader: Reader, tmp_path: Path, run: Run) -> None:
    missing = run("evidence", "--check", tmp_path / "missing")
    assert (missing.code, "no such file" in missing.err) == (2, True)
    assert run("evidence", "x", "--check", tmp_path).code == 2
    assert run("-w", reader.root, "evidence", "--export", tmp_path / "x").code == 2
