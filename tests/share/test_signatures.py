"""Signatures and attestations travel with a dataset: from owner to destination, from peer to copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.chain.signed_heads import SignatureStatus
from odfchain.errors import (
    ChainsDifferError,
    ManifestError,
    SignatureError,
    StoreError,
    TransferError,
    UsageError,
)
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias, RepoName
from odfchain.odf.times import Timestamp
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import HEAD_KEY, SignedFile
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncOptions, SyncOutcome, SyncStatus, policy_of, pull_dataset
from odfchain.transfer.signed_statements import NO_POLICY, Seen, SeenHeads, SignaturePolicy, read_offer
from tests.kit.forge import AUDITORS, OWNER, attestation, signed
from tests.kit.memory_peer import MemoryPeer
from tests.kit.scenario import Chain
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.signed_heads import COMMON, REQUIRE, Reader, head_of, line, now, owned, publish
from tests.kit.support import Run, hash_of, unchanged

OLD = owned(COMMON)
NEW = owned([*COMMON, "d3", "note 2"])
PLAIN = SignaturePolicy(now=now)
LATER = Timestamp.parse("2026-01-02T03:30:00Z")


def status(outcome: SyncOutcome) -> SignatureStatus:
    return outcome.signature.status


def offer(reader: Reader, peer: Path, chain: Chain, *signature: bytes | None, **options: Any) -> SyncOutcome:
    """The chain is published, signed by its owner unless another signature is given, and pulled."""
    publish(peer, chain, *signature)
    return reader.pull(peer.as_uri(), **options).outcome


def said(chain: Chain, auditor: int = 0, number: int = -1) -> bytes:
    """A line of an attestations file."""
    head = head_of(chain, number)
    made = attestation(AUDITORS[auditor], head=head.head, sequence_number=head.sequence_number)
    return made.sign(AUDITORS[auditor]).encode() + b"\n"


def put_audits(folder: Path, *lines: bytes) -> None:
    (folder / "attestations").mkdir(exist_ok=True)
    (folder / "attestations/audits.jws").write_bytes(b"".join(lines))


def attested(folder: Path) -> list[bytes]:
    path = folder / "attestations/audits.jws"
    return sorted(path.read_bytes().splitlines(keepends=True)) if path.exists() else []


# --- a copy --------------------------------------------------------------------------------------------


def test_a_copy_has_the_signature_of_its_head(reader: Reader, peer: Path) -> None:
    created = offer(reader, peer, OLD)
    assert (created.status, created.warnings) == (SyncStatus.CREATED, ())
    assert status(created) is SignatureStatus.SIGNED
    assert reader.signature() == line(head_of(OLD))
    assert status(offer(reader, peer, NEW)) is SignatureStatus.SIGNED
    assert reader.signature() == line(head_of(NEW))


def test_a_head_that_is_signed_anew_is_taken_and_an_older_signature_is_not(
    reader: Reader, peer: Path
) -> None:
    young = line(head_of(OLD, time=LATER))
    old = line(head_of(OLD))
    for content, kept in ((old, old), (young, young), (old, young)):
        assert status(offer(reader, peer, OLD, content)) is SignatureStatus.SIGNED
        assert reader.signature() == kept


def test_an_unsigned_head_is_said_and_accepted(reader: Reader, peer: Path) -> None:
    outcome = offer(reader, peer, OLD, None)
    assert (status(outcome), outcome.warnings) == (SignatureStatus.UNSIGNED, ())
    assert reader.signature() is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"junk\n", "the head's signature: not a signed statement"),
        (line(signed(head=hash_of("x"), sequence_number=6)), "two histories of this dataset exist"),
        (line(head_of(owned([*COMMON, "d3", "note 2", "more"]))), "blocks were withheld"),
    ],
)
def test_an_invalid_signature_is_said_and_not_kept(
    content: bytes, words: str, reader: Reader, peer: Path
) -> None:
    offer(reader, peer, OLD)
    outcome = offer(reader, peer, NEW, content)
    assert (outcome.status, status(outcome)) == (SyncStatus.UPDATED, SignatureStatus.INVALID)
    (warning,) = outcome.warnings
    assert words in warning
    assert warning.endswith("this signature is not kept")
    # what was signed of this chain before is still true
    assert reader.signature() == line(head_of(OLD))
    assert reader.files.dataset("copy").head_signature().status is SignatureStatus.UNSIGNED


def test_the_signature_of_an_older_block_of_the_chain_is_kept_as_that(reader: Reader, peer: Path) -> None:
    outcome = offer(reader, peer, NEW, line(head_of(NEW, 4)))
    assert status(outcome) is SignatureStatus.UNSIGNED
    assert reader.signature() == line(head_of(NEW, 4))


def test_a_wrong_signature_does_not_survive_a_history_that_is_replaced(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD)
    assert offer(reader, peer, owned([COMMON[0], "other"]), None, force=True).status is SyncStatus.OVERWRITTEN
    assert reader.signature() is None


def test_something_else_in_the_place_of_the_signature_is_replaced(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD)
    path = reader.copy / "refs/head.jws"
    path.unlink()
    path.symlink_to(peer / "refs/head.jws")
    reader.pull(peer.as_uri())
    assert not path.is_symlink()
    assert reader.signature() == line(head_of(OLD))


@pytest.mark.parametrize("content", [b"", b"junk\n"])
def test_a_dataset_that_was_signed_and_is_not_any_more_is_said_loudly(
    content: bytes, reader: Reader, peer: Path
) -> None:
    offer(reader, peer, OLD)
    (warning,) = offer(reader, peer, NEW, content or None).warnings
    assert ("was signed when it was last seen" if not content else "not kept") in warning
    (reader.copy / "refs/head.jws").unlink()
    (dataset,) = reader.files.datasets()
    reader.files.delete(dataset)  # the memory stays
    (warning,) = offer(reader, peer, NEW, None).warnings
    assert "block 4 was signed when it was last seen (2026-01-02T03:04:05Z)" in warning


def test_blocks_that_somebody_added_to_a_signed_dataset_are_said(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD)
    outcome = offer(reader, peer, NEW, line(head_of(OLD)))
    assert status(outcome) is SignatureStatus.UNSIGNED
    assert outcome.signature is not None
    assert (outcome.warnings, outcome.signature.unsigned_since) == ((), len(OLD.blocks))


def test_a_signature_of_the_future_is_said(reader: Reader, peer: Path) -> None:
    for time, words in (("2026-01-02T04:05:00Z", 0), ("2026-01-02T04:05:01Z", 1)):
        signature = line(head_of(OLD, time=Timestamp.parse(time)))
        assert len(offer(reader, peer, OLD, signature, policy=PLAIN).warnings) == words


FUTURE = Timestamp.parse("2999-01-01T00:00:00Z")


def test_a_signature_of_the_future_gives_way_to_one_of_the_present(reader: Reader, peer: Path) -> None:
    for content in (line(head_of(OLD, time=FUTURE)), line(head_of(OLD))):
        offer(reader, peer, OLD, content, policy=PLAIN)
        assert reader.signature() == content
    offer(reader, peer, OLD, line(head_of(OLD, time=FUTURE)), policy=PLAIN)
    assert reader.signature() == line(head_of(OLD))


def test_unsigned_blocks_that_a_peer_adds_to_a_dataset_whose_key_is_here_are_said(
    tmp_path: Path, peer: Path
) -> None:
    owner, twin = Reader(tmp_path / "owner"), Reader(tmp_path / "twin")
    make_dataset(owner.files, "mine", 10)
    owner.sharing.push("mine", peer.as_uri())
    twin.pull(peer.as_uri())
    for alone in (True, False):
        (dataset,) = twin.files.datasets()
        add_slice(dataset, 20)
        twin.sharing.push("copy", peer.as_uri())
        if alone:
            assert not any("your next commit" in text for text in twin.pull(peer.as_uri()).outcome.warnings)
        warnings = owner.pull(peer.as_uri(), name="mine").outcome.warnings
        assert any("which is here: your next commit signs them, too" in text for text in warnings)
    assert owner.pull(peer.as_uri(), name="mine").outcome.status is SyncStatus.UP_TO_DATE
    owner.files.sign_head(owner.files.dataset("mine"))
    owner.sharing.push("mine", peer.as_uri())
    assert owner.pull(peer.as_uri(), name="mine").outcome.warnings == ()


def test_owners_who_force_an_older_head_over_a_signed_one_are_told_what_that_means(
    tmp_path: Path, peer: Path
) -> None:
    owner = Reader(tmp_path / "owner")
    dataset = make_dataset(owner.files, "mine", 10)
    owner.sharing.push("mine", peer.as_uri())
    assert owner.pull(peer.as_uri(), name="mine", force=True).outcome.warnings == ()
    add_slice(dataset, 20)
    given_up = dataset.chain.head()
    (warning,) = owner.pull(peer.as_uri(), name="mine", force=True).outcome.warnings
    assert f"block 3 {given_up} is given up" in warning
    assert "can prove equivocation once you commit again" in warning


# --- owners who commit meanwhile -----------------------------------------------------------------------


class Moving(MemoryPeer):
    """An owner who publishes another head as soon as something was asked for."""

    def __init__(self, chain: Chain, when: str, then: Callable[[Moving], None]) -> None:
        super().__init__(chain)
        self.statements[SignedFile.HEAD] = line(head_of(chain))

        def act(key: str) -> None:
            if key == when:
                self.before = lambda _: None
                then(self)

        self.before = act


def take_new(peer: MemoryPeer) -> None:
    peer.chain = NEW
    peer.statements[SignedFile.HEAD] = line(head_of(NEW))


def pulled(reader: Reader, peer: MemoryPeer, policy: SignaturePolicy | None = REQUIRE) -> SyncOutcome:
    alias = DatasetAlias.parse("copy")
    return pull_dataset(reader.files, Store(peer), alias, SyncOptions(signature=policy))


def test_a_head_that_moves_before_its_signature_is_read_is_read_again(reader: Reader) -> None:
    peer = Moving(OLD, SignedFile.HEAD.value, take_new)
    outcome = pulled(reader, peer)
    assert (outcome.new, status(outcome)) == (NEW.head, SignatureStatus.SIGNED)


def test_a_signature_that_follows_its_head_is_waited_for_once(reader: Reader) -> None:
    peer = MemoryPeer(NEW)
    peer.statements[SignedFile.HEAD] = line(head_of(OLD))
    asked = 0

    def sign(key: str) -> None:
        nonlocal asked
        asked += key == HEAD_KEY
        if asked == 2:
            peer.statements[SignedFile.HEAD] = line(head_of(NEW))

    peer.before = sign
    assert status(pulled(reader, peer)) is SignatureStatus.SIGNED
    assert asked == 2


@pytest.mark.parametrize("late", [1, 2, 3])
def test_the_signature_of_another_head_is_waited_for_where_one_is_required(late: int) -> None:
    peer, waited = MemoryPeer(NEW), list[float]()
    peer.statements[SignedFile.HEAD] = line(head_of(OLD))

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == late:
            peer.statements[SignedFile.HEAD] = line(head_of(NEW))

    found = read_offer(Store(peer), REQUIRE, pause)
    assert found.fits == (late < 3)
    assert waited == [0.02, 0.1][:late]


@pytest.mark.parametrize("content", [None, b"junk\n"])
def test_what_is_no_signature_is_not_waited_for(content: bytes | None) -> None:
    peer, waited = MemoryPeer(NEW), list[float]()
    if content is not None:
        peer.statements[SignedFile.HEAD] = content
    read_offer(Store(peer), REQUIRE, waited.append)
    peer.statements[SignedFile.HEAD] = line(head_of(OLD))
    read_offer(Store(peer), PLAIN, waited.append)
    assert waited == []


def test_without_a_policy_a_missing_signature_is_asked_for_once(reader: Reader) -> None:
    peer = MemoryPeer(OLD)
    asked: list[str] = []
    peer.before = asked.append
    pulled(reader, peer, None)
    assert asked.count(HEAD_KEY) == asked.count(SignedFile.HEAD.value) == 1


class Failing(MemoryPeer):
    """A peer that cannot give what is signed."""

    def find(self, key: str) -> bytes | None:
        if key.endswith(".jws"):
            raise TransferError(f"{self.where}{key}: too slow")
        return super().find(key)


def test_what_is_signed_and_cannot_be_read_fails_only_where_it_is_required(reader: Reader) -> None:
    outcome = pulled(reader, Failing(OLD), None)
    assert status(outcome) is SignatureStatus.UNSIGNED
    words = ["attestations of", "cannot be read", "keys statements of", "lines about snapshots of"]
    assert [sum(word in text for text in outcome.warnings) for word in words] == [1] * len(words)
    assert all("too slow" in text for text in outcome.warnings)
    with pytest.raises(SignatureError, match=r"copy at memory://peer/: .* cannot be read: .*too slow"):
        pulled(reader, Failing(OLD))


# --- policies ------------------------------------------------------------------------------------------


def test_a_policy_is_remembered_with_the_copy_until_it_is_lifted(reader: Reader, peer: Path) -> None:
    publish(peer, OLD)
    a_second_later = Timestamp.parse("2026-01-02T03:04:06Z")
    reader.pull(peer.as_uri(), SignaturePolicy(max_age=60, now=lambda: a_second_later))
    dataset = reader.files.dataset("copy")
    assert policy_of(dataset) == SignaturePolicy(require=True, max_age=60)
    with unchanged(dataset.folder), pytest.raises(SignatureError, match="frozen"):
        reader.sharing.pull("copy")
    publish(peer, NEW, None)
    reader.pull(peer.as_uri(), SignaturePolicy(require=False))
    assert policy_of(dataset) == NO_POLICY
    assert "Signature" not in (dataset.folder / "info/config").read_text()
    assert reader.sharing.pull("copy").outcome.status is SyncStatus.UP_TO_DATE


def test_a_pull_that_is_refused_remembers_no_policy(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD, None)
    with pytest.raises(SignatureError):
        reader.pull(peer.as_uri(), REQUIRE)
    assert reader.sharing.pull("copy").outcome.status is SyncStatus.UP_TO_DATE


@pytest.mark.parametrize("by_url", [False, True])
def test_a_repository_may_want_signatures(by_url: bool, reader: Reader, peer: Path) -> None:
    repositories = reader.sharing.repositories
    wanted = SignaturePolicy(require=True)
    known = repositories.add(RepoName("friends"), peer.as_uri(), wanted)
    assert repositories.list() == [known]
    assert known.policy == wanted
    publish(peer / "cities", OLD, None)
    ref = (peer / "cities").as_uri() if by_url else "friends/cities"
    with pytest.raises(SignatureError, match=r"cities at file:.*signature is required"):
        reader.sharing.pull(ref)
    assert list(reader.files.datasets()) == []
    publish(peer / "cities", OLD)
    assert reader.sharing.pull(ref).outcome.status is SyncStatus.CREATED
    assert repositories.policy(PeerUrl.parse("file:///elsewhere")) == NO_POLICY


def test_what_a_repository_required_is_required_of_other_mirrors_too(
    reader: Reader, peer: Path, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    publish(peer, OLD)
    publish(mirror, NEW, None)
    wanted = SignaturePolicy(max_age=10**10)
    reader.sharing.repositories.add(RepoName("friends"), peer.as_uri(), wanted)
    reader.pull(peer.as_uri())
    dataset = reader.files.dataset("copy")
    assert policy_of(dataset) == SignaturePolicy(require=True), "the age stays the repository's"
    with unchanged(dataset.folder), pytest.raises(SignatureError, match="signature is required"):
        reader.pull(mirror.as_uri())
    lifted = reader.pull(mirror.as_uri(), SignaturePolicy(require=False))
    assert lifted.outcome.status is SyncStatus.UPDATED
    assert policy_of(dataset) == NO_POLICY


def test_policies_add_up() -> None:
    day, week = SignaturePolicy(max_age=86_400), SignaturePolicy(max_age=7 * 86_400)
    assert NO_POLICY.and_also(NO_POLICY) == NO_POLICY
    assert not NO_POLICY.required
    assert week.required
    assert week.and_also(day).max_age == day.and_also(week).max_age == 86_400
    assert SignaturePolicy(require=True).and_also(NO_POLICY).required
    with pytest.raises(UsageError, match="younger than 0"):
        SignaturePolicy(max_age=0)


def test_a_malformed_age_names_its_file(reader: Reader) -> None:
    reader.sharing.repositories.add(RepoName("r"), "file:///x", SignaturePolicy(max_age=1))
    path = reader.files.root / "repos/r"
    path.write_text(path.read_text().replace("Seconds: 1", "Seconds: 0"))
    with pytest.raises(ManifestError, match=r"repos/r:6: maxSignatureAgeSeconds: 0 is outside 1 to"):
        reader.sharing.repositories.list()


# --- attestations --------------------------------------------------------------------------------------


def test_attestations_of_blocks_of_the_chain_come_with_a_pull(reader: Reader, peer: Path) -> None:
    publish(peer, OLD)
    foreign = owned([*COMMON[:-1], "other"])
    put_audits(peer, said(OLD, 0), said(OLD, 1, 2), said(foreign, 2), said(NEW, 3), b"junk\n")
    outcome = reader.pull(peer.as_uri()).outcome
    assert outcome.attestations == 2
    assert attested(reader.copy) == sorted([said(OLD, 0), said(OLD, 1, 2)])
    (warning,) = outcome.warnings
    assert "were not taken: line 5: not a signed statement" in warning
    # those that are here already stay
    put_audits(peer, said(OLD, 4))
    again = reader.pull(peer.as_uri()).outcome
    assert (again.status, again.attestations) == (SyncStatus.UP_TO_DATE, 1)
    assert len(attested(reader.copy)) == 3


def test_attestations_that_cannot_be_written_do_not_undo_a_pull(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD)
    (reader.copy / "attestations").mkdir(exist_ok=True)
    path = reader.copy / "attestations/audits.jws"
    path.symlink_to(peer)
    publish(peer, NEW)
    put_audits(peer, said(NEW))
    outcome = reader.pull(peer.as_uri()).outcome
    assert (outcome.status, outcome.new) == (SyncStatus.UPDATED, NEW.head)
    assert status(outcome) is SignatureStatus.SIGNED
    assert any("were not taken" in text and str(path) in text for text in outcome.warnings)


# --- pushing -------------------------------------------------------------------------------------------


@pytest.fixture
def owner(tmp_path: Path) -> Reader:
    found = Reader(tmp_path / "owner")
    make_dataset(found.files, "mine", 10, 20)
    return found


def test_a_push_takes_the_signature_along_and_a_pull_requires_it(
    owner: Reader, reader: Reader, peer: Path
) -> None:
    (dataset,) = owner.files.datasets()
    for size in (30, 40):
        assert owner.sharing.push("mine", peer.as_uri()).signature is SignatureStatus.SIGNED
        assert (peer / "refs/head.jws").read_bytes() == owner.signature()
        reader.pull(peer.as_uri(), SignaturePolicy(require=True))
        assert reader.signature() == owner.signature()
        add_slice(dataset, size)


def test_a_push_of_nothing_new_brings_a_younger_signature(owner: Reader, peer: Path) -> None:
    owner.sharing.push("mine", peer.as_uri())
    owner.files.sign_head(owner.files.dataset("mine"))
    assert (peer / "refs/head.jws").read_bytes() != owner.signature()
    outcome = owner.sharing.push("mine", peer.as_uri())
    assert (outcome.up_to_date, outcome.signature) == (True, SignatureStatus.SIGNED)
    assert (peer / "refs/head.jws").read_bytes() == owner.signature()


def test_a_mirror_without_the_signature_does_not_strip_the_destinations(
    owner: Reader, reader: Reader, peer: Path
) -> None:
    owner.sharing.push("mine", peer.as_uri())
    reader.pull(peer.as_uri())
    (reader.copy / "refs/head.jws").unlink()
    outcome = reader.sharing.push("copy", peer.as_uri())
    assert outcome.signature is SignatureStatus.SIGNED
    assert (peer / "refs/head.jws").read_bytes() == owner.signature()


def test_a_wrong_signature_at_the_destination_is_removed(owner: Reader, peer: Path) -> None:
    owner.sharing.push("mine", peer.as_uri())
    (owner.copy / "refs/head.jws").unlink()
    for content in (b"junk", b"x" * (17 << 10)):
        (peer / "refs/head.jws").write_bytes(content)
        assert owner.sharing.push("mine", peer.as_uri()).signature is SignatureStatus.UNSIGNED
        assert not (peer / "refs/head.jws").exists()


def test_attestations_of_both_sides_are_joined_by_a_push(owner: Reader, peer: Path) -> None:
    owner.sharing.push("mine", peer.as_uri())
    (dataset,) = owner.files.datasets()
    head = dataset.chain.head()

    def said_of(auditor: int, name: Multihash, number: int) -> bytes:
        key = AUDITORS[auditor]
        made = attestation(key, dataset_id=dataset.id, head=name, sequence_number=number)
        return made.sign(key).encode() + b"\n"

    for folder, auditor in ((dataset.folder, 0), (peer, 1)):
        put_audits(folder, said_of(auditor, head, 3), said_of(auditor + 5, hash_of("given up"), 2))
    owner.sharing.push("mine", peer.as_uri())
    assert attested(peer) == sorted(said_of(auditor, head, 3) for auditor in (0, 1))


def test_a_signature_that_cannot_be_written_is_said_and_the_push_is_done(owner: Reader, peer: Path) -> None:
    (peer / "refs/head.jws/in the way").mkdir(parents=True)
    outcome = owner.sharing.push("mine", peer.as_uri())
    assert "not all signed statements were written" in (outcome.problem or "")
    assert (peer / "refs/head").read_text() == str(outcome.plan.new_head)


def test_a_push_replaces_a_signature_of_the_future_by_one_of_the_present(owner: Reader, peer: Path) -> None:
    (dataset,) = owner.files.datasets()
    state = owner.files.sign_head(owner.files.dataset("mine"))
    key = owner.files.key(dataset.id)
    (dataset.folder / "refs/head.jws").write_bytes(line(replace(state, time=FUTURE), key))
    owner.sharing.push("mine", peer.as_uri())
    owner.files.sign_head(owner.files.dataset("mine"))
    assert (peer / "refs/head.jws").read_bytes() != owner.signature()
    owner.sharing.push("mine", peer.as_uri())
    assert (peer / "refs/head.jws").read_bytes() == owner.signature()


def test_a_link_in_place_of_the_signature_does_not_undo_a_push(owner: Reader, peer: Path) -> None:
    path = owner.copy / "refs/head.jws"
    path.unlink()
    path.symlink_to(peer)
    outcome = owner.sharing.push("mine", peer.as_uri())
    assert f"{path}: a link is not followed" in (outcome.problem or "")
    assert (peer / "refs/head").read_text() == str(outcome.plan.new_head)
    (dataset,) = owner.files.datasets()
    assert SeenHeads(owner.files.root / "seen").get(dataset.id) == Seen(3, outcome.plan.new_head)
    assert owner.sharing.push("mine").up_to_date, "the place is remembered"


def test_what_was_pushed_is_remembered_so_that_nobody_sends_its_owner_back(owner: Reader, peer: Path) -> None:
    owner.sharing.push("mine", peer.as_uri())
    (dataset,) = owner.files.datasets()
    first = dataset.chain.head()
    old = (peer / "refs/head").read_bytes()
    add_slice(dataset, 30)
    owner.sharing.push("mine", peer.as_uri())
    owner.files.delete(dataset)
    (peer / "refs/head").write_bytes(old)
    with pytest.raises(ChainsDifferError, match="offers an older chain"):
        owner.pull(peer.as_uri())
    assert old.decode() == str(first)


# --- the memory ----------------------------------------------------------------------------------------


def test_the_memory_keeps_the_newest_signature(tmp_path: Path) -> None:
    memory = SeenHeads(tmp_path / "seen")
    texts = {n: line(head_of(NEW, n)).decode().rstrip() for n in (3, 4, 6)}
    young = line(head_of(NEW, 4, LATER)).decode().rstrip()
    for given, expected in (
        (Seen(4, NEW.hashes[4], texts[4]), Seen(4, NEW.hashes[4], texts[4])),
        (Seen(5, NEW.hashes[5]), Seen(5, NEW.hashes[5], texts[4])),
        (Seen(3, NEW.hashes[3], texts[3]), Seen(5, NEW.hashes[5], texts[4])),
        (Seen(4, NEW.hashes[4], young), Seen(5, NEW.hashes[5], young)),
        (Seen(4, NEW.hashes[4], texts[4]), Seen(5, NEW.hashes[5], young)),
        (Seen(6, NEW.hashes[6], texts[6]), Seen(6, NEW.hashes[6], texts[6])),
    ):
        memory.remember(OWNER.dataset_id, given)
        assert memory.get(OWNER.dataset_id) == expected
    memory.remember(OWNER.dataset_id, Seen(3, NEW.hashes[3]), lower=True)
    assert memory.get(OWNER.dataset_id) == Seen(3, NEW.hashes[3])


def test_force_forgets_nothing_where_nothing_is_overwritten(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD)
    memory = SeenHeads(reader.files.root / "seen")
    for chain in (OLD, NEW):
        (warning,) = offer(reader, peer, chain, None, force=True).warnings
        assert "was signed when it was last seen" in warning
        found = memory.get(OWNER.dataset_id)
        assert (found.head, found.signature) == (chain.head, line(head_of(OLD)).decode().strip())
    other = owned([COMMON[0], "other"])
    offer(reader, peer, other, None, force=True)
    assert memory.get(OWNER.dataset_id) == Seen(3, other.head)


def test_a_damaged_signature_in_the_memory_is_no_missing_one(reader: Reader, peer: Path) -> None:
    offer(reader, peer, OLD)
    (path,) = (reader.files.root / "seen").glob("f*")
    path.write_bytes(path.read_bytes()[:-1] + b"_")
    with pytest.raises(StoreError, match="the memory of the newest block seen is damaged"):
        reader.pull(peer.as_uri())
    assert reader.pull(peer.as_uri(), force=True).outcome.warnings == ()


# --- the command line ----------------------------------------------------------------------------------


def test_the_commands_say_what_a_signature_is_worth(reader: Reader, peer: Path, run: Run) -> None:
    at = ("-w", reader.root)
    publish(peer, OLD)
    (row,) = run(*at, "pull", peer.as_uri(), "--as", "copy", "-o", "json").rows
    assert (row["signature"], row["signatureMessage"], row["warnings"]) == ("signed", None, [])
    publish(peer, NEW, b"junk\n")
    result = run(*at, "pull", "copy", "-o", "json")
    (row,) = result.rows
    assert row["signature"] == "invalid"
    assert "not a signed statement" in row["signatureMessage"]
    assert result.err.startswith("warning: copy at file:")
    publish(peer, NEW, None)
    result = run(*at, "pull", "copy", "--require-signature")
    assert result.code == 6
    assert "error: copy at file:" in result.err
    assert "a signature is required" in result.err
    assert run(*at, "pull", "copy", "--max-age", "1d").code == 6
    assert run(*at, "pull", "copy", "--no-require-signature").code == 0
    assert run(*at, "pull", "copy", "--no-require-signature", "--max-age", "1d").code == 2


def test_repositories_say_what_they_want(reader: Reader, run: Run) -> None:
    at = ("-w", reader.root)
    for name, more in (("a", ()), ("b", ("--require-signature",)), ("c", ("--max-age", "7d"))):
        assert run(*at, "repo", "add", name, "file:///x", *more).code == 0
    rows = run(*at, "repo", "list", "-o", "json").rows
    wanted = [(r["requireSignature"], r["maxSignatureAgeSeconds"]) for r in rows]
    assert wanted == [(False, None), (True, None), (True, 604_800)]
    table = run(*at, "repo", "list").out
    assert [words in table for words in ("not required", "required, at most 7 days old")] == [True, True]


def test_a_push_says_that_the_head_is_signed(owner: Reader, peer: Path, run: Run) -> None:
    (row,) = json.loads(run("-w", owner.root, "push", "mine", "--to", peer.as_uri(), "-o", "json").out)
    assert row["signature"] == "signed"
