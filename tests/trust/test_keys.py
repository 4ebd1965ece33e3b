"""Who may sign for an owner, and when: the cases of keys that can be lost, by number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from odfchain import Workspace
from odfchain.chain.checkpoints import Checkpoint, note_in, read_note, sign_note
from odfchain.chain.equivocation import NoteClaim, evidence_of_keys, read_evidence
from odfchain.chain.key_statements import (
    Delegate,
    KeyHistory,
    Revocation,
    Scope,
    join_keys,
    read_line,
    read_lines,
)
from odfchain.chain.signed_heads import HeadSignature, HeadSigner, check_head
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.chain.statements import Problem, StatementType, read_bounded, sign_statement
from odfchain.chain.transparency_log import Frontier
from odfchain.errors import SignatureError
from odfchain.odf.identity import DatasetKey
from odfchain.odf.times import Timestamp
from odfchain.profiles.published import publish as publish_document
from odfchain.profiles.published import published
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.pulling import SyncOptions
from odfchain.transfer.pushing import PushOutcome
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import curve, shared_store
from tests.kit.forge import (
    DATASET,
    HEAD,
    OWNER,
    SEQUENCE,
    STRANGER,
    assert_proof_is_valid,
    b64,
    container,
    header,
    signed,
)  # fmt: skip
from tests.kit.forged_signatures import NEUTRAL_SIGNATURE, ONE_KEY, malleable
from tests.kit.owned_keys import (
    LAPTOP,
    NOBODY,
    SUCCESSOR,
    THIEF,
    announced,
    case,
    day,
    delegated,
    did,
    joined,
    put,
    revoked,
)  # fmt: skip
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.signed_heads import COMMON, REQUIRE, Reader, head_of, owned, publish
from tests.kit.small_s3 import SmallS3
from tests.kit.support import Run, hash_of
from tests.kit.witnesses import ask, cosigned, witness


@pytest.fixture
def small_s3() -> Iterator[SmallS3]:
    with SmallS3() as store:
        yield store


def head_by(
    key: DatasetKey, keys: KeyHistory, on: float = 1, *, named: KeyHistory | None = None, there: bool = True
) -> HeadSignature:
    """The verdict on a head that a key has signed on a day."""
    said = replace(signed(time=day(on)), keys=(named or keys).newest)
    line = said.sign(key, keys.name_of(key)).encode() + b"\n"
    return check_head(line, DATASET, HEAD, SEQUENCE, keys=keys, there=lambda _: there)


def test_case_16_a_delegate_signs_the_head() -> None:
    inputs, wanted = case(16)
    histories = {"with its statement": delegated(), "without its statement": NOBODY}
    for name, each in zip(inputs, wanted, strict=True):
        found = head_by(LAPTOP, histories[name])
        assert (str(found.status), found.problem) == (each["status"], each["problem"])
    found = head_by(LAPTOP, delegated())
    assert found.delegate is not None
    assert (found.signer, found.delegate.key, found.delegate.not_after) == (did(LAPTOP), did(LAPTOP), day(30))


def test_case_17_a_delegate_that_may_not() -> None:
    inputs, wanted = case(17)
    for given, each in zip(inputs, wanted, strict=True):
        scopes = tuple(Scope) if given["scope"] == "heads" else (Scope(given["scope"]),)
        found = head_by(LAPTOP, delegated(scopes=scopes), given["day"])
        assert found.problem == each["problem"]
        assert each["says"] in str(found.message)
        assert str(did(LAPTOP)) in str(found.message)


def test_case_18_heads_of_a_stolen_delegate() -> None:
    inputs, wanted = case(18)
    keys = revoked(delegated())
    for given, each in zip(inputs, wanted, strict=True):
        on = 3 if given["signed"] == "after the revocation" else 1
        found = head_by(LAPTOP, keys, on, there=given["seen before"])
        assert found.problem == each["problem"]
        assert each["says"] in str(found.message)


def test_case_19_two_keys_statements_of_one_number(tmp_path: Path, run: Run) -> None:
    given, wanted = case(19)
    first = announced()
    both = joined(delegated(first), delegated(first, THIEF))
    assert [line.said.sequence for line in both.reached] == given["numbers"]
    assert len(both.lines) == wanted["counting"]
    assert len(both.conflict) == wanted["proof"]
    assert wanted["says"] in both.problems[0]
    assert head_by(LAPTOP, both).problem == Problem.OTHER_KEY
    # both are carried on, by whoever has seen them
    assert len(read_lines(both.content())[0]) == 3
    chain = owned(COMMON)
    publish(tmp_path / "peer", chain)
    put(tmp_path / "peer", both)
    reader = Reader(tmp_path / "reader")
    pulled = reader.pull((tmp_path / "peer").as_uri())
    assert any(wanted["says"] in text for text in pulled.outcome.warnings)
    assert (reader.copy / "attestations/keys.jws").read_bytes() == both.content()
    # a file that proves it to anybody, without a network
    (kept,) = reader.sharing.evidence.list(DATASET)
    checked = run("evidence", "--check", kept.path, "-o", "json")
    (found,) = json.loads(checked.out)
    assert (checked.code, found["sequenceNumber"], found["keysStatements"]) == (0, *wanted["file"])
    assert {found["block"], found["otherBlock"]} == {str(line.hash) for line in both.conflict}
    data = kept.path.read_bytes()
    assert_proof_is_valid(data)
    last = both.conflict[1].text
    other = last[:-9] + (b"B" if last[-9:-8] == b"A" else b"A") + last[-8:]
    for forged in (
        data.replace(last, both.conflict[0].text), data.replace(last, other),
        data.replace(str(DATASET).encode(), str(STRANGER.dataset_id).encode()), data + b"\n",
        data.replace(both.lines[0].text, last),
    ):  # fmt: skip
        with pytest.raises(SignatureError):
            read_evidence(forged, "forged")
    assert evidence_of_keys(delegated(first)) is None


def test_two_checkpoints_of_a_delegate_are_a_proof() -> None:
    """By the keys statements that name it; without them, or with those of another, they are none."""
    keys, begin = delegated(), Frontier().append(HEAD)
    blocks = [hash_of(text) for text in ("one", "other")]
    logs = [begin.append(block) for block in blocks]
    claims = [NoteClaim(sign_note(Checkpoint.of(DATASET, log), LAPTOP), keys=keys.texts) for log in logs]
    found = claims[0].prove(claims[1])
    assert found is not None
    assert found == claims[1].prove(claims[0])
    assert (found.sequence_number, {*found.hashes}) == (1, {*blocks})
    data = found.to_bytes()
    assert read_evidence(data, "file") == found
    assert_proof_is_valid(data)
    without, others = replace(claims[0], keys=None), replace(claims[0], keys=delegated(key=THIEF).texts)
    for claim in (without, others):
        with pytest.raises(SignatureError):
            claim.prove(claims[1])
    owners = NoteClaim(sign_note(Checkpoint.of(DATASET, logs[0]), OWNER), keys=keys.texts)
    mixed = owners.prove(claims[1])
    assert mixed is not None
    assert read_evidence(mixed.to_bytes(), "file") == mixed


def test_case_20_a_succession_whose_commitment_was_not_seen(tmp_path: Path) -> None:
    inputs, wanted = case(20)
    keys = announced().with_statement(SUCCESSOR, day(1))
    chain = owned(COMMON)
    line = replace(head_of(chain, time=day(1)), keys=keys.newest).sign(SUCCESSOR, did(SUCCESSOR))
    publish(tmp_path / "peer", chain, line.encode() + b"\n")
    put(tmp_path / "peer", keys)
    options = {
        "plainly": SyncOptions(),
        "with a signature required": SyncOptions(signature=REQUIRE),
        "accepting it": SyncOptions(accept_successor=True, signature=replace(REQUIRE, now=lambda: day(2))),
    }
    for name, each in zip(inputs, wanted, strict=True):
        reader = Reader(tmp_path / name.replace(" ", "-"))
        try:
            outcome = reader.sharing.pull((tmp_path / "peer").as_uri(), "copy", options[name]).outcome
        except SignatureError as error:
            assert (each["status"], error.problem) == ("refused", Problem.SUCCESSION)
            text = error.message
        else:
            assert outcome.signature is not None
            assert str(outcome.signature.status) == each["status"]
            text = "".join(outcome.warnings)
            kept = (reader.copy / "attestations/keys.jws").exists()
            assert kept is (each["status"] == "signed")
        assert each["says"] in text
        assert not each["says"] or (str(did(SUCCESSOR)) in text and str(DATASET) in text)  # both are shown


def test_case_21_a_succession_against_a_commitment_that_was_seen() -> None:
    inputs, wanted = case(21)
    before = delegated(announced())
    after = before.with_statement(SUCCESSOR, day(2))
    keys = join_keys(DATASET, before.content(), after.content())
    assert (keys.authority, keys.pending) == (did(SUCCESSOR), None)
    signers = {"the successor": SUCCESSOR, "the old key": OWNER}
    for name, each in zip(inputs, wanted, strict=True):
        found = head_by(signers[name], keys, 3)
        assert str(found.status) == each["status"]
        assert each["says"] in str(found.message)
    # what the old key has signed before stays for who saw it, and its delegates go on
    assert [head_by(OWNER, keys, 1, there=there).problem for there in (True, False)] == [
        None,
        Problem.SUPERSEDED,
    ]
    assert head_by(LAPTOP, keys, 3).problem is None
    # statements of the old key no longer count
    assert head_by(THIEF, joined(keys, delegated(before, THIEF)), 3).problem == Problem.OTHER_KEY


def test_case_22_a_thief_announces_a_successor_of_his_own() -> None:
    given, wanted = case(22)
    assert (given["arrives"], wanted["authority"], wanted["thief"]) == ("later", "the successor", "refused")
    before = announced()
    for his in (announced(before, THIEF), announced(NOBODY, THIEF)):
        takes = his.with_statement(THIEF, day(1)) if his.committed != before.committed else his
        seen = join_keys(DATASET, before.content(), takes.content())
        assert head_by(THIEF, seen, 2).problem is not None
        after = joined(before, takes, before.with_statement(SUCCESSOR, day(2)))
        assert after.authority == did(SUCCESSOR)
        assert head_by(SUCCESSOR, after, 3).problem is None
        assert head_by(THIEF, after, 3).problem is not None


def test_case_23_the_identity_key_is_lost(tmp_path: Path) -> None:
    inputs, wanted = case(23)
    chain = owned(COMMON)
    publish(tmp_path, chain, None)
    put(tmp_path, delegated())
    (tmp_path / "info").mkdir()
    for given, each in zip(inputs, wanted, strict=True):
        now, said = day(30 - given["days left"]), list[str]()
        signer = HeadSigner(tmp_path, lambda: LAPTOP, lambda now=now: now, said.append)
        (tmp_path / "refs/head.jws").unlink(missing_ok=True)
        signer.head_moved(chain.head, len(chain.hashes) - 1)
        assert (tmp_path / "refs/head.jws").exists() is each["signed"]
        assert each["says"] in "".join(said)
        assert bool(said) is bool(each["says"])


def test_case_24_a_mirror_hides_a_keys_statement(tmp_path: Path) -> None:
    given, wanted = case(24)
    keys = revoked(delegated())
    chain = owned(COMMON)
    line = replace(head_of(chain), keys=keys.newest).sign(OWNER)
    publish(tmp_path / "peer", chain, line.encode() + b"\n")
    put(tmp_path / "peer", KeyHistory.of(DATASET, keys.lines[: -given["withheld"]]))
    with pytest.raises(SignatureError, match=wanted["says"]) as caught:
        Reader(tmp_path / "reader").pull((tmp_path / "peer").as_uri(), REQUIRE)
    assert caught.value.problem == wanted["problem"]


def attacks() -> dict[str, bytes]:
    """What is no keys statement, by the names of case 28."""
    said = delegated().lines[0]
    payload, kind = said.said.to_json(), {"typ": str(StatementType.KEYS)}
    first, body, _ = said.text.split(b".")

    def made(**changes: object) -> bytes:
        return container(header(**kind | changes), payload)

    whole = container(header(**kind), payload)
    twice = json.dumps(payload, separators=(",", ":")).encode()[:-1] + b',"sequence":0}'
    assert read_line(whole).said == said.said
    return {
        "cut": said.text[:-1],
        "another type": made(typ=str(StatementType.HEAD)),
        "another algorithm": made(alg="none"),
        "a foreign header": made(jwk={"kty": "OKP"}),
        "another signer": made(kid=str(did(STRANGER))),
        "a weak key": container(header(kid=str(ONE_KEY), **kind), payload, lambda _: NEUTRAL_SIGNATURE),
        "a twisted signature": b".".join((first, body, b64(malleable(first + b"." + body)))),
        "a member twice": container(header(**kind), twice),
        "a member too many": container(header(**kind), payload | {"more": 1}),
        "another spelling": container(
            header(**kind),
            json.dumps(payload, separators=(",", ":")).encode().replace(b'"sequence":0', b'"sequence":0.0'),
        ),
    }


def test_case_28_signature_attacks_on_keys_statements(record_property: Callable[[str, object], None]) -> None:
    given, wanted = case(28)
    forged = attacks()
    assert list(forged) == given["attacks"]
    assert curve.L  # the order that the twisted signature was made with
    text = delegated().lines[0].text
    flips = [
        text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]
        for at in range(len(text))
        for bit in range(8)
    ]
    record_property("flips", len(flips))
    accepted = []
    for attack in (*forged.values(), *flips):
        found, wrong = read_lines(attack + b"\n")
        assert found or wrong
        keys = KeyHistory.of(DATASET, found)
        accepted += [attack] * bool(keys.lines)
    assert len(accepted) == wanted["accepted"]


def test_statements_of_others_count_for_nothing() -> None:
    other = KeyHistory.of(STRANGER.dataset_id, ()).with_statement(STRANGER, day(0))
    assert joined(other, delegated()).lines == delegated().lines[:0] + joined(delegated()).lines
    # a delegate speaks of no keys, and a stranger takes nothing over
    payload = replace(revoked(delegated()).lines[1].said, sequence=1).to_json()
    for key in (LAPTOP, STRANGER):
        text = sign_statement(key, did(key), StatementType.KEYS, payload).encode()
        assert KeyHistory.of(DATASET, [*delegated().lines, read_line(text)]).lines[1:] == ()


def test_a_statement_out_of_turn_does_not_count() -> None:
    keys = revoked(delegated())
    assert KeyHistory.of(DATASET, keys.lines[1:]).lines == ()
    said = replace(keys.lines[1].said, sequence=2)
    text = sign_statement(OWNER, DATASET, StatementType.KEYS, said.to_json()).encode()
    assert len(KeyHistory.of(DATASET, [keys.lines[0], read_line(text)]).lines) == 1


def test_what_was_revoked_stays_so_though_a_peer_leaves_it_out(tmp_path: Path) -> None:
    chain, peer = owned(COMMON), tmp_path / "peer"
    reader = Reader(tmp_path / "reader")
    publish(peer, chain)
    put(peer, revoked(delegated()))
    reader.pull(peer.as_uri())
    put(peer, delegated())
    chain.add("note 2")
    said = replace(head_of(chain, time=day(1)), keys=delegated().newest)
    publish(peer, chain, said.sign(LAPTOP, did(LAPTOP)).encode() + b"\n")
    for _ in range(2):  # nor is it believed because the block was taken the first time
        found = reader.pull(peer.as_uri()).outcome.signature
        assert found is not None
        assert found.problem == Problem.REVOKED
    # nor once the copy was deleted
    reader.files.delete(reader.files.dataset("copy"))
    found = reader.pull(peer.as_uri()).outcome.signature
    assert found is not None
    assert found.problem == Problem.REVOKED


def test_what_a_reader_knew_before_stays_after_the_theft(tmp_path: Path) -> None:
    chain, peer = owned(COMMON), tmp_path / "peer"
    reader, late = Reader(tmp_path / "reader"), Reader(tmp_path / "late")
    said = replace(head_of(chain, time=day(1)), keys=delegated().newest)
    publish(peer, chain, said.sign(LAPTOP, did(LAPTOP)).encode() + b"\n")
    put(peer, delegated())
    reader.pull(peer.as_uri())
    put(peer, revoked(delegated()))
    found = [each.pull(peer.as_uri()).outcome.signature for each in (reader, late)]
    assert [each.problem for each in found if each] == [None, Problem.REVOKED]


def test_a_second_revocation_does_not_move_the_first() -> None:
    keys = revoked(revoked(delegated()), 5)
    keys = keys.with_statement(OWNER, day(6), revoked=(Revocation(did(LAPTOP), day(6)),))
    assert keys.delegates[0][1] == day(2)


def test_case_30_who_has_signed_the_head(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, peer = owned(COMMON), tmp_path / "peer"
    said = replace(head_of(chain, time=day(1)), keys=delegated().newest)
    publish(peer, chain, said.sign(LAPTOP, did(LAPTOP)).encode() + b"\n")
    put(peer, delegated())
    reader = Reader(tmp_path / "reader")
    reader.pull(peer.as_uri(), replace(REQUIRE, now=lambda: day(2)))
    monkeypatch.chdir(tmp_path / "reader")
    given, wanted = case(30)
    found = json.loads(run("inspect", "head", "copy", "-o", "json").out)
    assert (given["signer"], list(found)) == ("a delegate", wanted)
    assert (found["status"], found["owner"], found["delegate"]) == ("signed", str(DATASET), str(did(LAPTOP)))
    assert (found["signed"], found["until"], found["witnesses"]) == (str(day(1)), str(day(30)), [])
    listed = run("key", "list", "copy", "-o", "json").rows
    assert (listed[0]["key"], listed[0]["is"]) == (str(DATASET), "owner")


@pytest.mark.parametrize("place", ["a node", "a node over a store", "a plain store"])
def test_a_revocation_spreads_though_the_head_is_there(
    place: str, tmp_path: Path, small_s3: SmallS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Workspace.init(tmp_path / "owner")
    if place == "a node over a store":
        shared_store.environment(monkeypatch, tmp_path / "home")
        shared_store.machine(small_s3, tmp_path / "node")
        there = shared_store.opened(tmp_path / "node")
    else:
        there = WorkspaceFiles.init(tmp_path / "node")
    make_dataset(owner._files, "d", 5)
    owner["d"].say_keys(delegates=delegated().lines[0].said.delegates)
    with RepositoryServer(there, write=True) as server:
        token, url = TokenFile(there.root).create("me", ["push:%"], Timestamp.now()).text, f"{server.url}d"
        if place == "a plain store":
            token, url = "", (tmp_path / "store/d").as_uri()
        push, reader = f"odf+{url}" if token else url, Workspace.init(tmp_path / "reader")

        def pushed() -> PushOutcome:
            return owner["d"].push(push, token=token or None)

        pushed()
        reader.pull(url, name="d")
        owner["d"].say_keys(revoked=[Revocation(did(LAPTOP), Timestamp.now())])
        outcome = pushed()
        assert (outcome.up_to_date, outcome.signature) == (True, "signed")
        reader.pull(url, name="d")
        assert [ended is not None for _, ended in reader["d"].keys().delegates] == [True]
        for file in ("attestations/keys.jws", "refs/head.jws", "refs/head.checkpoint"):
            known = [each["d"]._files.folder / file for each in (owner, reader)]
            assert known[0].read_bytes() == known[1].read_bytes()


def test_a_checkpoint_by_a_delegate_is_cosigned_where_it_may_make_one(tmp_path: Path, run: Run) -> None:
    inputs, wanted = case(33)
    owner, laptop = Workspace.init(tmp_path / "owner"), Workspace.init(tmp_path / "laptop")
    make_dataset(owner._files, "d", 5)
    url = (tmp_path / "share/d").as_uri()
    owner["d"].push(url)
    laptop.pull(url, name="d")
    key = laptop["d"].new_key()
    with witness(tmp_path / "w") as running:
        ask(laptop, [running])
        for number, (scopes, each) in enumerate(zip(inputs, wanted, strict=True)):
            owner["d"].say_keys(
                revoked=[Revocation(key, Timestamp.now())] if scopes == "revoked" else [],
                delegates=[] if scopes == "revoked" else [Delegate.of(key, day(0), 1e9, scopes)],
            )
            owner["d"].push(url)
            laptop.pull(url, name="d")
            Workspace.init(tmp_path / "w", exists_ok=True).pull(url, name="d")  # the statements come with it
            add_slice(laptop["d"]._files, 9 + number)
            outcome = laptop["d"].push(url, force=True)
            written = read_bounded(tmp_path / "share/d/refs/head.checkpoint", 1 << 16)
            names = laptop["d"].keys().signers(Scope.CHECKPOINTS)
            note = note_in(laptop["d"]._files.folder, owner["d"].id)
            written_here = note is not None and note.checkpoint.head == laptop["d"].head
            assert (written_here, written_here and note.signer == key and len(note.lines) == 2) == (
                each["written"],
            ) * 2
            assert each["says"] in str(outcome.problem)
            if written_here:
                # a reader who does not know of the delegate has no use for it
                assert read_note(written, owner["d"].id, names).data() == written == note.data()
                with pytest.raises(SignatureError, match="not signed by the dataset's key"):
                    read_note(written, owner["d"].id, (owner["d"].id,))
                reader = Workspace.init(tmp_path / f"reader{number}")
                path = tmp_path / "policy.yaml"
                path.write_text(json.dumps({"keys": [str(running[1])], "quorum": 1}))
                reader.pull(url, name="d", witnesses=str(path))
                listed = run("-w", str(tmp_path / "laptop"), "key", "list", "d", "-o", "json").rows
                assert {row["key"]: row["witnesses"] for row in listed} == {
                    str(owner["d"].id): None, str(key): running[1].name,
                }  # fmt: skip
            owner.pull(url, name="d", force=True)


def test_case_34_manifests_by_a_delegate(tmp_path: Path) -> None:
    inputs, wanted = case(34)
    for number, (given, each) in enumerate(zip(inputs, wanted, strict=True)):
        workspace = Workspace.init(tmp_path / str(number))
        files = make_dataset(workspace._files, "d", 5)
        named = [Delegate.of(did(LAPTOP), day(0), 1e9, given["scopes"])] if given["scopes"] else []
        if named:
            workspace["d"].say_keys(delegates=named)
        publish_document(files, DatasetState.read(files.chain), SnapshotKind.MANIFEST, b"{}", key=LAPTOP)
        if given["revoked"]:
            workspace["d"].say_keys(revoked=[Revocation(did(LAPTOP), Timestamp.now())])
        (line,) = published(files)
        assert line.signer == did(LAPTOP)
        assert published(files, owners=True) == [line] * each["counts"]


def test_case_35_a_witness_had_seen_the_head_of_a_delegate_that_was_revoked_later(tmp_path: Path) -> None:
    inputs, wanted = case(35)
    chain, peer, keys = owned(COMMON), tmp_path / "peer", revoked(delegated())
    said = replace(head_of(chain, time=day(1)), keys=delegated().newest)
    publish(peer, chain, said.sign(LAPTOP, did(LAPTOP)).encode() + b"\n")
    put(peer, keys)
    log = Frontier()
    for block in chain.hashes:
        log = log.append(block)
    plain = sign_note(Checkpoint.of(DATASET, log), LAPTOP)
    for number, (given, each) in enumerate(zip(inputs, wanted, strict=True)):
        note, witnesses = cosigned(plain, [SUCCESSOR], day(given["cosigned"]))
        if not given["this head"]:
            body = replace(plain.checkpoint, head=chain.hashes[0])
            note, witnesses = cosigned(sign_note(body, LAPTOP), [SUCCESSOR], day(given["cosigned"]))
        (peer / "refs/head.checkpoint").write_bytes(note.data())
        reader = Reader(tmp_path / str(number))
        policy = tmp_path / "policy.yaml"
        policy.write_text(json.dumps({"keys": [str(key) for key in witnesses], "quorum": 0}))
        workspace = Workspace.open(reader.root)
        pulled = workspace.pull(peer.as_uri(), name="copy", witnesses=str(policy) if given["known"] else None)
        found = workspace["copy"].signature()
        kept = note_in(workspace["copy"]._files.folder, DATASET)
        assert (str(found.status), kept is not None) == (each["status"], each["status"] == "signed"), given
        assert each["says"] in "".join(pulled.warnings)


def test_scopes_are_named_as_they_are_listed(tmp_path: Path, run: Run) -> None:
    workspace = Workspace.init(tmp_path)
    make_dataset(workspace._files, "d", 5)
    at = ("-w", str(tmp_path), "key")
    assert run(*at, "delegate", "d", "--to", str(did(LAPTOP)), "--scope", "snapshots").code == 0
    (_, row) = run(*at, "list", "d", "-o", "json").rows
    assert (row["key"], row["may"], row["is"]) == (str(did(LAPTOP)), "snapshots", "in force")
