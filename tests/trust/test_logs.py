"""A chain as a transparency log, its checkpoints, and what they prove: the rules, without a network."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pymerkle
import pytest

from odfchain.chain.checkpoints import NoteKey, NoteKind, WitnessPolicy, read_note
from odfchain.chain.transparency_log import (
    FRONTIER_KEY,
    Frontier,
    consistency_proof,
    inclusion_proof,
    kept_log,
    leaf_hash,
    log_of,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from odfchain.errors import InvalidIdError, SignatureError
from odfchain.odf.identity import DatasetKey, Multihash
from odfchain.odf.times import Duration, Timestamp
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import forge
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.support import fixture
from tests.kit.trust_cases import case
from tests.kit.witnesses import cosigned, note_of

BLOCKS = [Multihash.sha3_256(hashlib.sha3_256(b"%d" % n).digest()) for n in range(1_000)]
NOW = Timestamp.parse("2026-01-02T04:00:00Z")
KEYS = [DatasetKey.generate() for _ in range(3)]


def test_case_1_roots_and_proofs_are_those_of_another_implementation() -> None:
    given, expected = case(1)
    log = Frontier()
    other = pymerkle.InmemoryTree(algorithm="sha256")
    for size in range(max(given["sizes"]) + 1):
        if size in given["sizes"]:
            root = log.root()
            assert root == tree_root(BLOCKS[:size])
            assert root == (other.get_root(size) if size else bytes.fromhex(expected["empty"]))
            for old in {0, 1, size // 3, size - 1, size} & set(range(size + 1)):
                proof = consistency_proof(BLOCKS[:size], old)
                verify_consistency(old, tree_root(BLOCKS[:old]), size, root, proof)
                if old:
                    theirs = other.prove_consistency(old, size)
                    theirs.verify(tree_root(BLOCKS[:old]), root, old, size)
            for at in {0, size // 2, size - 1} & set(range(size)):
                verify_inclusion(BLOCKS[at], at, size, inclusion_proof(BLOCKS[:size], at), root)
                theirs = other.prove_inclusion(at + 1, size)
                theirs.verify(leaf_hash(BLOCKS[at]), root, at + 1, size)
                assert sorted(theirs.path[1:]) == sorted(inclusion_proof(BLOCKS[:size], at))
        if size < len(BLOCKS):
            log = log.append(BLOCKS[size])
            other.append_entry(BLOCKS[size].to_bytes())
    assert expected["proofs"] == "verified"


def test_every_changed_proof_is_refused() -> None:
    for size in range(1, 20):
        root = tree_root(BLOCKS[:size])
        for old in range(size + 1):
            proof, before = consistency_proof(BLOCKS[:size], old), tree_root(BLOCKS[:old])
            for bad in (
                [*proof, before],
                proof[1:] if proof else [root],
                [root, *proof[1:]] if proof else [b""],
            ):
                if bad != proof:
                    with pytest.raises(SignatureError):
                        verify_consistency(old, before, size, root, bad)
            with pytest.raises(SignatureError):
                verify_consistency(old, BLOCKS[0].digest, size, root, proof)
        for at in range(size):
            proof = inclusion_proof(BLOCKS[:size], at)
            for block, where in (
                (BLOCKS[at + 1], at),
                (BLOCKS[at], at + 1),
                (BLOCKS[at], size),
                (BLOCKS[at], -1),
            ):
                with pytest.raises(SignatureError):
                    verify_inclusion(block, where, size, proof, root)
            with pytest.raises(SignatureError):
                verify_inclusion(BLOCKS[at], at, size, [*proof, root], root)


def test_case_2_a_block_is_added_to_a_long_log_by_its_frontier(tmp_path: Path) -> None:
    given, expected = case(2)
    size = given["size"]
    log = Frontier(size, tuple(bytes([n]) * 32 for n in range(size.bit_count())), BLOCKS[0])
    assert len(log.hashes) == expected["hashes"]
    took = []
    for block in BLOCKS[:50]:
        began = time.perf_counter()
        longer = log.append(block)
        longer.root()
        took.append(time.perf_counter() - began)
    assert min(took) * 1_000 < expected["milliseconds"]
    assert (longer.size, len(longer.hashes)) == (size + 1, expected["after"] + 1)
    assert Frontier.decode(longer.encode()) == longer
    # no walk: blocks below the newest may be away
    dataset = make_dataset(WorkspaceFiles.init(tmp_path), "d", 5, 6)
    head = dataset.chain.head()
    assert head is not None
    assert kept_log(dataset.folder) == log_of(dataset.folder, dataset.chain, head)
    (seed,) = [name for name in dataset.blocks.names() if dataset.chain.get(name).sequence_number == 0]
    away = dataset.folder / "blocks" / str(seed)
    content = away.read_bytes()
    away.unlink()
    add_slice(dataset, 7)
    assert kept_log(dataset.folder).size == dataset.chain.get(dataset.chain.head()).sequence_number + 1  # type: ignore[arg-type]
    away.write_bytes(content)
    right = kept_log(dataset.folder)
    same_size = Frontier(right.size, right.hashes, BLOCKS[0])
    for damage in (
        b"",
        right.encode()[:-1],
        same_size.encode(),
        Frontier(9, (b"1" * 32, b"2" * 32), BLOCKS[0]).encode(),
    ):
        (dataset.folder / FRONTIER_KEY).write_bytes(damage)
        assert log_of(dataset.folder, dataset.chain, right.head) == right == kept_log(dataset.folder)  # type: ignore[arg-type]
    assert expected["walked"] == 0


def test_case_3_a_checkpoint_is_a_note_of_c2sp(tmp_path: Path) -> None:
    given, expected = case(3)
    dataset = make_dataset(WorkspaceFiles.init(tmp_path), "d", *range(1, given["blocks"] - 1))
    data = (dataset.folder / "refs/head.checkpoint").read_bytes()
    text = data.decode()
    origin, size, root, head, blank, signature, end = text.split("\n")
    assert expected["lines"] == ["origin", "size", "root", "head", blank, "signature"]
    assert (origin, size, end) == (str(dataset.id), str(given["blocks"]), "")
    assert base64.b64decode(root) == tree_root(dataset.chain.hashes(dataset.chain.head()))  # type: ignore[arg-type]
    assert head == f"head {dataset.chain.head()}"
    dash, name, encoded = signature.split(" ")
    raw = base64.b64decode(encoded)
    named = f"{origin}\n".encode() + bytes([expected["type"]]) + dataset.id.public_key
    assert (dash, name, raw[:4], len(raw)) == ("—", origin, hashlib.sha256(named).digest()[:4], 68)
    assert read_note(data, dataset.id).data() == data


def test_every_changed_bit_of_a_note_is_refused_or_takes_a_cosignature_away() -> None:
    note, keys = cosigned(note_of(["d1", "d2"]), KEYS, NOW)
    data, whole = note.data(), note.times(keys)
    assert len(whole) == 3
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        try:
            found = read_note(bytes(changed))
        except SignatureError:
            continue
        assert found.checkpoint == note.checkpoint
        assert len(found.times(keys)) < 3
    for other in (b"", data[:-1], data + b"\n", data * 2, data.replace(b"\n\n", b"\n"), b"\xff" + data):
        with pytest.raises(SignatureError):
            read_note(other)
    with pytest.raises(SignatureError, match="of another dataset"):
        read_note(data, forge.STRANGER.dataset_id)


def test_merged_notes_are_the_union_of_valid_lines() -> None:
    note = note_of(["d1"])
    (one, keys), (two, _) = (cosigned(note, KEYS[:n], NOW) for n in (1, 2))
    later, _ = cosigned(note, KEYS[:1], Timestamp(NOW.epoch_ns + 10**9))
    assert two.merged(one, keys) == one.merged(two, keys) == two
    assert one.merged(later, keys) == later.merged(one, keys) == later
    # another key's line under a witness's name, and one whose bytes are changed, are left out
    forged = NoteKey(keys[0].name, keys[0].public_key).sign(note.checkpoint.body(), KEYS[2], NOW)
    assert note.with_lines([forged], keys).lines == note.lines
    assert note_of(["d2"]).merged(one, keys) == note_of(["d2"])
    many = [NoteKey.of(key, f"x{n}") for n, key in enumerate([KEYS[2]] * 100)]
    full = one.with_lines([each.sign(note.checkpoint.body(), KEYS[2], NOW) for each in many], keys)
    assert (len(full.lines), len(full.times(keys))) == (64, 1)


def test_case_9_a_cosignature_is_too_old() -> None:
    given, expected = case(9)
    note, keys = cosigned(note_of([]), KEYS[:1], NOW)
    late = Timestamp(NOW.epoch_ns + given["days"] * 86_400 * 10**9)
    for each in expected:
        policy = WitnessPolicy(keys=(str(keys[0]),), quorum=1, max_age=Duration.parse(each["maxAge"]))
        if each["verdict"] == "counted":
            policy.check(note, late, each["longest"])
        else:
            with pytest.raises(SignatureError, match=each["verdict"]) as caught:
                policy.check(note, late, each["longest"])
            assert caught.value.problem == "too-old"


def test_case_10_a_cosignature_has_a_time_in_the_future() -> None:
    given, expected = case(10)
    for seconds, verdict in zip(given["seconds"], expected, strict=True):
        note, keys = cosigned(note_of([]), KEYS[:1], Timestamp(NOW.epoch_ns + seconds * 10**9))
        policy = WitnessPolicy(keys=(str(keys[0]),), quorum=1)
        if verdict == "counted":
            policy.check(note, NOW)
        else:
            with pytest.raises(SignatureError, match=verdict):
                policy.check(note, NOW)


def test_case_12_the_key_of_a_log_is_no_cosigners() -> None:
    given, expected = case(12)
    key = NoteKey("w0.example", KEYS[0].dataset_id.public_key, NoteKind(given["type"]))
    with pytest.raises(InvalidIdError, match=expected["says"]) as caught:
        NoteKey.parse(str(key))
    assert caught.value.exit_code == expected["exit"]
    good = str(NoteKey.of(KEYS[0], "w0.example"))
    assert str(NoteKey.parse(good)) == good
    weak = str(NoteKey("w0.example", bytes(32)))
    for bad in ("", "x", good[:-1], good.replace("w0", "w1"), good.replace("+", " "), weak, good + "\n"):
        with pytest.raises(InvalidIdError):
            NoteKey.parse(bad)


def test_case_28_flips_and_cuts_of_a_note(record_property: Callable[[str, object], None]) -> None:
    """None makes another checkpoint, another owner, or another cosignature that counts."""
    (wanted,) = (each["expectation"] for each in fixture("trust/key_cases.yaml") if each["number"] == 28)
    note, known = cosigned(note_of(["a", "b"]), KEYS[:2], NOW)
    data, said = note.data(), note.times(known)
    assert len(said) == 2
    flips = [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]
    cuts = [data[:at] for at in range(len(data))]
    refused, accepted = 0, []
    for attack in (*flips, *cuts, *(data + flip[:60] for flip in flips[::50])):
        try:
            found = read_note(attack, note.checkpoint.dataset_id)
        except SignatureError:
            refused += 1
            continue
        # a line of a witness may be spoiled, and then it does not count
        same = found.checkpoint == note.checkpoint and found.times(known).items() < said.items()
        accepted += [attack] * (not same or found.merged(note, known).times(known) != said)
    record_property("attacks", refused + len(accepted))
    assert refused > len(flips) / 2
    assert len(accepted) == wanted["accepted"]
