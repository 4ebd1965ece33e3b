"""Attacks on heads and on their signatures through real peers, each by its name; all of them are noticed.

The first twelve turn a reader back, keep one where it is, or show another history. The others strip
or move signatures of a reader who requires one. After each, what the reader has is byte for byte as it was, and
so is the memory of the newest block seen.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from odfchain.chain.signed_heads import SignatureStatus
from odfchain.chain.statements import Problem
from odfchain.errors import ChainsDifferError, CorruptedPeerError, OdfchainError, SignatureError
from odfchain.odf.times import Timestamp
from odfchain.transfer.pulling import SyncStatus
from odfchain.transfer.signed_statements import SignaturePolicy
from tests.kit import forge
from tests.kit.forge import STRANGER
from tests.kit.forged_signatures import forged
from tests.kit.scenario import Chain
from tests.kit.signed_heads import COMMON, REQUIRE, Reader, head_of, line, now, owned, publish
from tests.kit.web_peers import WebPlace, by_threads

OLD = owned(COMMON)
"""What the reader has."""
NEW = owned([*COMMON, "d3", "note 2"])
"""What the owner has by now."""
FORK = owned([*COMMON[:-1], "another d2", "another d3", "another note", "more"])
WEEK = SignaturePolicy(max_age=7 * 86_400, now=now)


@dataclass(frozen=True)
class Scene:
    """A reader with a copy of `OLD`, and the place where it came from, which is the attacker's now."""

    reader: Reader
    folder: Path
    url: str


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's workspace after a first pull."""
    folder = tmp_path_factory.mktemp("prepared")
    publish(folder / "peer", OLD)
    Reader(folder / "reader").pull((folder / "peer").as_uri(), REQUIRE)
    return folder / "reader"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPlace]:
    with by_threads(tmp_path_factory.mktemp("web")) as place:
        yield place


@pytest.fixture
def scene(prepared: Path, web: WebPlace, tmp_path: Path) -> Scene:
    folder = web.root / tmp_path.name
    shutil.copytree(prepared, tmp_path / "reader")
    return Scene(Reader(tmp_path / "reader"), folder, web.publish(folder).text)


def refused(
    scene: Scene, kind: type[OdfchainError], policy: SignaturePolicy | None, words: str
) -> OdfchainError:
    """The pull ends with this error, which names the attack, and nothing of the reader's is changed."""
    before = scene.reader.state()
    with pytest.raises(kind, match=words) as caught:
        scene.reader.pull(scene.url, policy)
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()
    assert scene.url in str(caught.value)
    assert scene.reader.state() == before
    return caught.value


def honest(scene: Scene) -> None:
    """The owner's own head is still accepted."""
    publish(scene.folder, NEW)
    assert scene.reader.pull(scene.url, REQUIRE).outcome.status is SyncStatus.UPDATED


def test_without_an_attack_the_signed_head_is_accepted(scene: Scene) -> None:
    publish(scene.folder, NEW)
    outcome = scene.reader.pull(scene.url, replace(WEEK, require=True)).outcome
    assert (outcome.status, outcome.warnings) == (SyncStatus.UPDATED, ())
    assert outcome.signature is not None
    assert outcome.signature.status is SignatureStatus.SIGNED
    assert scene.reader.signature() == line(head_of(NEW))


# --- rollback, freeze, fork: twelve attacks ------------------------------------------------------------


def proved(chain: Chain, words: str) -> tuple[Chain, bytes, type[OdfchainError], str, str]:
    return chain, line(head_of(chain)), ChainsDifferError, words, "the proof is kept"


OLDER = "offers an older chain than was seen before"
HISTORIES: dict[str, tuple[Chain, bytes, type[OdfchainError], str, str]] = {
    **{
        f"rollback to block {number}": (
            chain, line(head_of(chain)), ChainsDifferError, f"{OLDER}: its head is block {number}", "",
        )
        for number, chain in ((3, owned(COMMON[:-1])), (1, owned([])))
    },
    "fork at the same sequence number": proved(
        owned([*COMMON[:-1], "another"]), "offers another chain than was seen before"
    ),
    "fork below the newest block, shorter": proved(owned([COMMON[0], "another"]), OLDER),
    "fork that is longer": proved(FORK, "another chain .* which it does not contain"),
    "older head, newest signature": (
        OLD, line(head_of(NEW)), SignatureError, "of a newer head .* set back, or blocks were withheld", "",
    ),
    "newer head, older signature": (
        NEW, line(head_of(OLD)), SignatureError, "unsigned commits since block .* a signature is required", "",
    ),
    # it does not stick: the memory is of blocks that were received, so the owner's next head is accepted
    "fast forward to a number that nobody reaches": (
        NEW, line(forge.signed(head=NEW.head, sequence_number=2**63)), SignatureError,
        "of a newer head .block 9223372036854775808", "",
    ),
}  # fmt: skip
"""The chain and the signature that are offered, and how that is refused: error, words, hint."""


@pytest.mark.parametrize("attack", HISTORIES)
def test_history(attack: str, scene: Scene) -> None:
    chain, signature, kind, words, hint = HISTORIES[attack]
    publish(scene.folder, chain, signature)
    assert hint in (refused(scene, kind, REQUIRE, words).hint or "")
    honest(scene)


def test_rollback_after_the_copy_was_deleted(scene: Scene) -> None:
    (dataset,) = scene.reader.files.datasets()
    scene.reader.files.delete(dataset)
    publish(scene.folder, owned(COMMON[:-1]))
    refused(scene, ChainsDifferError, REQUIRE, OLDER)
    publish(scene.folder, NEW)
    assert scene.reader.pull(scene.url, REQUIRE).outcome.status is SyncStatus.CREATED


def test_freeze_past_the_longest_age(scene: Scene) -> None:
    publish(scene.folder, OLD, line(head_of(OLD, time=Timestamp.parse("2025-12-20T00:00:00Z"))))
    error = refused(scene, SignatureError, WEEK, "13 days ago .*at most 7 days.* frozen, newer blocks may")
    assert isinstance(error, SignatureError)
    assert error.problem == Problem.TOO_OLD
    honest(scene)


def test_freeze_without_a_longest_age_is_seen_by_nobody(scene: Scene) -> None:
    """What is signed stays signed: only a longest age tells that nothing new has come for long."""
    long_ago = line(head_of(OLD, time=Timestamp.parse("2020-01-01T00:00:00Z")))
    publish(scene.folder, OLD, long_ago)
    before = scene.reader.state()
    outcome = scene.reader.pull(scene.url, REQUIRE).outcome
    assert (outcome.status, outcome.warnings) == (SyncStatus.UP_TO_DATE, ())
    assert scene.reader.state() == before  # the younger signature stays
    honest(scene)


def test_mix_of_a_newer_head_with_older_blocks(scene: Scene) -> None:
    publish(scene.folder, NEW)
    (scene.folder / str(NEW.key(-2))).unlink()
    refused(scene, CorruptedPeerError, REQUIRE, "not there .HTTP status 404., though the chain refers to it")
    honest(scene)


# --- signatures ----------------------------------------------------------------------------------------


FORGED = forged(head_of(NEW))
ATTACKS: dict[str, tuple[bytes | None, str]] = {
    "dropped": (None, "unsigned commits since block 0: there is no signature, or it was stripped"),
    "of the future": (
        line(head_of(NEW, time=Timestamp.parse("2026-01-02T04:05:01Z"))),
        "which is in the future",
    ),
    **{
        name: (FORGED[name][0], words)
        for name, words in {
            "empty": "not a signed statement: empty, cut",
            "half of it": "not a signed statement",
            "no line end": "not a signed statement",
            "two lines": "not a signed statement",
            "huge": "cannot be read: .*larger than the allowed",
            "alg none": "algorithm is 'none'",
            "alg HS256 with the public key as secret": "algorithm is 'HS256'",
            "jwk in the header": "header has 'jwk'",
            "made by another in the owner's name": "was not made by the signer that it names",
            "made by another in its own name": "not signed by the dataset's key but by did:odf",
            "zero key": "small order: anyone can sign",
            "small-order key": "small order: anyone can sign",
            "non-canonical key": "not in canonical form",
            "zero signature": "was not made by the signer that it names",
            "non-canonical S": "was not made by the signer that it names",
            "the signature of another text": "was not made by the signer that it names",
            "right signature of another dataset": "of another dataset, did:odf",
            "right signature of another head": "another head with the same sequence number 6.*two histories",
            "right signature of an older head": "older head .* not in this chain: two histories",
            "right signature of this head at an older sequence": "older head .* not in this chain",
            "right signature of another type": "'odf-attestation.jws', not odf-head",
            "a head under the type of another use": "of type 'JWT', not odf-head",
        }.items()
    },
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_signature(attack: str, scene: Scene) -> None:
    content, words = ATTACKS[attack]
    publish(scene.folder, NEW, content)
    refused(scene, SignatureError, REQUIRE, words)
    honest(scene)


def test_signature_downgraded_by_leaving_it_out_where_the_policy_is_remembered(scene: Scene) -> None:
    publish(scene.folder, NEW, None)
    error = refused(scene, SignatureError, None, "a signature is required")
    assert isinstance(error, SignatureError)
    assert error.problem == Problem.MISSING
    assert "--no-require-signature" in (error.hint or "")
    honest(scene)


def test_another_dataset_at_the_place_is_not_the_owners_after_a_change_of_keys(scene: Scene) -> None:
    """The id is the key, so a new key is a new dataset, however its heads are signed."""
    chain = owned([*COMMON, "d3", "note 2", "note 3"], STRANGER)
    other = forge.signed(dataset_id=STRANGER.dataset_id, head=chain.head, sequence_number=7)
    publish(scene.folder, chain, line(other, STRANGER))
    refused(scene, ChainsDifferError, REQUIRE, "holds the dataset did:odf:")
