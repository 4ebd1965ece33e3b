"""Owners who have their heads cosigned, readers who want that, and witnesses who remember: on loopback."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain import Workspace, errors
from odfchain.api.dataset import Dataset
from odfchain.api.settings import Configuration
from odfchain.chain.checkpoints import Note, NoteKey, note_in, read_note
from odfchain.chain.equivocation import read_evidence_file
from odfchain.chain.transparency_log import consistency_proof
from odfchain.odf.identity import DatasetKey
from odfchain.odf.times import Timestamp
from odfchain.transfer import witnesses as asked
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.witnesses import ADD, witnesses_of
from odfchain.workspace.points import branch_names, ref_names
from tests.kit.forge import assert_proof_is_valid
from tests.kit.loopback import Handler, WebServer
from tests.kit.running_node import running_node
from tests.kit.served_workspace import Reply, add_slice, make_dataset
from tests.kit.served_workspace import ask as request
from tests.kit.servers import Reply as Silence
from tests.kit.servers import Server
from tests.kit.signed_heads import owned
from tests.kit.support import Run
from tests.kit.trust_cases import case
from tests.kit.witnesses import Running, ask, note_of, witness, witnesses


@pytest.fixture
def owner(tmp_path: Path) -> Workspace:
    """A workspace with a dataset `d` of three blocks."""
    workspace = Workspace.init(tmp_path / "owner")
    make_dataset(workspace._files, "d", 5)
    return workspace


def at(tmp_path: Path, name: str = "A") -> str:
    return f"{(tmp_path / name).as_uri()}/d"


def note_at(tmp_path: Path, name: str = "A") -> Note:
    return read_note((tmp_path / name / "d" / "refs/head.checkpoint").read_bytes())


def reader_with(
    tmp_path: Path, running: list[Running], quorum: int, name: str = "reader"
) -> Callable[[str], Any]:
    workspace = Workspace.init(tmp_path / name)
    path = tmp_path / f"{name}.yaml"
    path.write_text(json.dumps({"keys": [str(key) for _, key in running], "quorum": quorum}))
    return lambda place, **also: workspace.pull(at(tmp_path, place), name="d", witnesses=str(path), **also)


def grown(dataset: Dataset) -> None:
    add_slice(dataset._files, 9)


def set_back(dataset: Dataset, blocks: int = 1) -> None:
    chain = dataset._files.chain
    number = chain.get(chain.head()).sequence_number  # type: ignore[arg-type]
    dataset.reset(str(chain.hash_at(number - blocks, chain.head())))  # type: ignore[arg-type]


def sent(url: str, old: int, note: bytes, proof: list[bytes] = []) -> Reply:  # noqa: B006
    lines = b"".join(base64.b64encode(each) + b"\n" for each in proof)
    return request(url, f"/{ADD}", "POST", b"old %d\n%s\n%s" % (old, lines, note))


def test_case_4_the_same_head_again(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(4)
    with witness(tmp_path / "w") as running:
        data = (owner["d"]._files.folder / "refs/head.checkpoint").read_bytes()
        size = read_note(data).checkpoint.size
        replies = [sent(running[0], size * n, data) for n in range(given["times"])]
        assert [reply.status for reply in replies] == expected["statuses"]
        ask(owner, [running])
        owner["d"].push(at(tmp_path))
        first = note_at(tmp_path).times([running[1]])[running[1]]
        time.sleep(1.1 - time.time() % 1)
        owner["d"].push(at(tmp_path))
        later = note_at(tmp_path)
        assert later.times([running[1]])[running[1]] > first
        assert len(later.lines) == 1 + expected["lines"]


def test_case_5_what_a_witness_refuses(tmp_path: Path) -> None:
    given, expected = case(5)
    note, other = note_of(["d1", "d2"]), note_of(["d1"], DatasetKey.generate())
    own, size = note.checkpoint.dataset_id, note.checkpoint.size
    with witness(tmp_path / "w", admits=lambda dataset_id: dataset_id == own) as (url, _):
        stranger = note.data().replace(note.data().split(b" ")[-1], other.data().split(b" ")[-1])
        replies = {
            "garbage": lambda: request(url, f"/{ADD}", "POST", b"x" * 30_000),
            "old larger than new": lambda: sent(url, size + 1, note.data()),
            "another origin": lambda: sent(url, 0, note.data().replace(b"did:odf:", b"example.com/", 1)),
            "a dataset it is not for": lambda: sent(url, 0, other.data()),
            "a stranger's signature": lambda: sent(url, 0, stranger),
            "another old size": lambda: sent(url, 1, note.data()),
            "a wrong proof": lambda: sent(url, 0, note.data(), [bytes(32)]),
            "GET": lambda: request(url, f"/{ADD}"),
        }
        found = [{"request": each["request"], "status": replies[each["request"]]().status} for each in given]
        assert found == given
        # nothing of all that is remembered
        assert sent(url, expected["kept"], note.data()).status == 200
        assert sent(url, 0, note.data()).body == b"%d\n" % size
        longer = note_of(["d1", "d2", "note 1"])
        blocks = owned(["d1", "d2", "note 1"]).hashes
        assert sent(url, size, longer.data(), consistency_proof(blocks, size)).status == 200


def test_a_witness_remembers_when_it_is_started_again(tmp_path: Path) -> None:
    one, other = note_of(["d1"]), note_of(["d2"])
    with witness(tmp_path / "w") as (url, key):
        answer = sent(url, 0, one.data())
        assert one.with_lines([asked.NoteLine.parse(answer.body.decode().rstrip("\n"))], [key]).times([key])
    with witness(tmp_path / "w") as (url, again):
        assert again == key
        assert sent(url, 0, other.data()).status == 409
        assert sent(url, one.checkpoint.size, other.data()).status == 409
        assert sent(url, one.checkpoint.size, one.data()).status == 200


@pytest.mark.parametrize("number", range(2))
def test_case_6_a_rewritten_chain(owner: Workspace, tmp_path: Path, number: int) -> None:
    given, expected = case(6)
    dataset = owner["d"]
    with witness(tmp_path / "w") as running:
        ask(owner, [running])
        dataset.push(at(tmp_path))
        before = note_at(tmp_path).checkpoint
        set_back(dataset)
        for _ in range(1 + number):
            grown(dataset)
        own = note_in(dataset._files.folder, dataset.id)
        assert own is not None
        blocks = dataset._files.chain.hashes(own.checkpoint.head)
        proof = consistency_proof(blocks, before.size) if number else []
        assert sent(running[0], before.size, own.data(), proof).status == given[number]["status"]
        with pytest.raises(errors.SignatureError, match=expected["says"]) as caught:
            dataset.push(at(tmp_path))
        assert str(before.head) in str(caught.value)
        assert str(own.checkpoint.head) in str(caught.value)
        assert caught.value.exit_code == expected["exit"]
        assert note_at(tmp_path).checkpoint == before
        assert len(owner.evidence.list(dataset.id)) == expected["evidence"]
        # a machine that does not remember is told by the witness
        for path in (owner.path / "seen").glob("*.checkpoint"):
            path.unlink()
        with pytest.raises(errors.SignatureError, match=expected["says"]):
            dataset.sign()


LIES: dict[str, Any] = {
    "wrong key": lambda note: str(
        NoteKey.of(key := DatasetKey.generate(), "w1.example").sign(
            note.checkpoint.body(), key, Timestamp.now()
        )
    ).encode(),
    "garbage": lambda _: b"\xff\x00 garbage",
    "10 MiB": lambda _: b"- x y\n" * (10 << 18),
}


@pytest.mark.parametrize("lie", case(7)[0])
def test_case_7_a_witness_is_down_slow_or_lies(
    owner: Workspace, tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = case(7)
    dataset, private = owner["d"], DatasetKey.generate()
    key = NoteKey.of(private, "w1.example")
    note = note_in(dataset._files.folder, dataset.id)
    assert note is not None
    inward = list[str]()
    assert witnesses_of(owner.path, owner._files.config.trust).seconds == expected["seconds"]

    class Lying(Handler):
        def do_POST(self) -> None:
            self.content()
            if lie == "redirect inward":
                self.reply(307, Location=f"{self.server.origin}/{ADD}-inward")  # type: ignore[attr-defined]
            elif lie == "of the future":
                time = Timestamp(Timestamp.now().epoch_ns + 10**12)
                self.reply(200, f"{key.sign(note.checkpoint.body(), private, time)}\n".encode())
            else:
                self.reply(200, LIES[lie](note))

        def do_GET(self) -> None:
            inward.append(self.path)

    with witness(tmp_path / "w") as good, WebServer(Lying) as lying, Server() as silent:
        lying._server.origin = lying.origin  # type: ignore[attr-defined]
        url = {"down": "http://127.0.0.1:9", "slow": f"http://127.0.0.1:{silent.port}"}.get(lie, lying.origin)
        ask(owner, [good, (url, key)])
        chosen = witnesses_of(owner.path, owner._files.config.trust)
        chosen.seconds = 0.5
        silent._script.append(Silence(stall=True, raw=[]))
        began = time.monotonic()
        outcome = dataset.push(at(tmp_path))
        assert time.monotonic() - began < 20
        chosen._pool.close()
    assert outcome.problem is not None
    assert "witness w1.example has not cosigned" in outcome.problem
    found = note_at(tmp_path)
    assert len(found.lines) == 1 + expected["cosignatures"]
    assert list(found.times([good[1], key])) == [good[1]]
    assert expected["pushed"]
    assert not inward


def test_case_8_two_of_three_have_cosigned(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(8)
    with witnesses(tmp_path / "w", given["witnesses"]) as running:
        ask(owner, running[: given["witnesses"] - given["silent"]])
        owner["d"].push(at(tmp_path))
    for each in expected:
        pull = reader_with(tmp_path, running, each["quorum"], f"reader-{each['quorum']}")
        if each["verdict"] == "verified":
            assert pull("A").status == "created"
            copy = Workspace.open(tmp_path / f"reader-{each['quorum']}")
            # it is remembered, and holds wherever the copy comes from
            (tmp_path / "A/d/refs/head.checkpoint").unlink()
            with pytest.raises(errors.SignatureError, match="it has no checkpoint"):
                copy.pull("d")
            assert (copy["d"]._files.folder / "refs/head.checkpoint").exists()
            owner["d"].push(at(tmp_path))
        else:
            with pytest.raises(errors.SignatureError, match=each["verdict"]) as caught:
                pull("A")
            assert (caught.value.exit_code, caught.value.problem) == (6, "unwitnessed")


def test_case_13_two_notes_of_one_size(owner: Workspace, tmp_path: Path, run: Run) -> None:
    _, expected = case(13)
    dataset = owner["d"]
    with witnesses(tmp_path / "w", 2) as running:
        ask(owner, running[:1])
        dataset.push(at(tmp_path, "A"))
        shutil.copytree(owner.path.parent, tmp_path / "twin")
        twin = Workspace.open(tmp_path / "twin")
        set_back(twin["d"])
        grown(twin["d"])
        for path in (twin.path / "seen").glob("*"):
            if path.is_file():
                path.unlink()
        twin._files.root.joinpath("config.yaml").unlink()
        ask(twin, running[1:])
        twin["d"].push(at(tmp_path, "B"))
    assert note_at(tmp_path, "A").checkpoint.size == note_at(tmp_path, "B").checkpoint.size
    for place in "AB":  # what heads prove is not needed
        (tmp_path / place / "d/refs/head.jws").unlink()
    pull = reader_with(tmp_path, running, 1)
    pull("A")
    for place in expected["refused"]:
        with pytest.raises(errors.OdfchainError) as caught:
            pull(place)
        assert caught.value.exit_code == expected["exit"]
        assert "two histories" in f"{caught.value} {caught.value.hint}"
    reader = Workspace.open(tmp_path / "reader")
    (kept,) = reader.evidence.list(dataset.id)
    assert kept.evidence is not None
    assert len(kept.evidence.notes) == 2 * expected["evidence"]
    assert read_evidence_file(kept.path) == kept.evidence
    data = kept.path.read_bytes()
    assert_proof_is_valid(data)
    for index in range(0, len(data), 7):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        kept.path.write_bytes(changed)
        with pytest.raises(errors.SignatureError):
            read_evidence_file(kept.path)


def test_case_14_a_rewound_head_cannot_be_cosigned(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(14)
    dataset = owner["d"]
    grown(dataset)
    with witness(tmp_path / "w") as running:
        ask(owner, [running])
        dataset.create_branch("draft")
        assert branch_names(dataset._files) == ["draft"]
        dataset.branch("draft").push(at(tmp_path, "A"))
        assert not (tmp_path / "A/d/refs/head.checkpoint").exists()
        assert expected["branch"] == "none"
        dataset.push(at(tmp_path))
        reader = Workspace.init(tmp_path / "reader")
        reader.pull(at(tmp_path), name="d", metadata_only=True)
        copy = note_in(reader["d"]._files.folder, dataset.id)
        assert copy == note_at(tmp_path)
        assert expected["partial"] == "kept"
        set_back(dataset, given["reset"])
        before = note_at(tmp_path)
        for push in (lambda: dataset.push(at(tmp_path)), dataset.sign):
            with pytest.raises(errors.SignatureError, match=given["says"]) as caught:
                push()
            assert caught.value.exit_code == expected["rewound"]
        assert note_at(tmp_path) == before
        assert expected["published"] == "before"
        outcome = dataset.push(at(tmp_path), force=True)
        assert given["says"] in str(outcome.problem)
        assert len(note_at(tmp_path).lines) == 1
        # the shorter log is the beginning of the longer one: that proves nothing
        assert not owner.evidence.list(dataset.id)


def test_case_15_who_does_not_know_the_file(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(15)
    dataset, key = owner["d"], given["key"]
    dataset.push(at(tmp_path))
    assert ref_names(dataset._files) == expected["references"]

    class Web(Handler):
        def do_GET(self) -> None:
            path = tmp_path / "A" / self.path.lstrip("/")
            self.reply(200, path.read_bytes()) if path.is_file() else self.reply(404)

    with WebServer(Web) as web:
        by_web, by_folder, without = (
            Workspace.init(tmp_path / name) for name in ("web", "folder", "without")
        )
        by_web.pull(f"{web.origin}/d", name="d")
        by_folder.pull(at(tmp_path), name="d")
        (tmp_path / "A/d" / key).unlink()
        without.pull(f"{web.origin}/d", name="d")
    data = (dataset._files.folder / key).read_bytes()
    assert (by_web["d"]._files.folder / key).read_bytes() == data
    assert expected["web"] == "copied"
    assert (by_folder["d"]._files.folder / key).read_bytes() == data
    assert expected["folder"] == "copied"
    assert not (without["d"]._files.folder / key).exists()
    assert expected["without"] == "pulled"


def test_a_cosigning_peer_says_what_it_has_verified(owner: Workspace, tmp_path: Path) -> None:
    owner["d"].push(at(tmp_path))
    peer = Workspace.init(tmp_path / "peer")
    Configuration(peer.path).set("trust.cosign", ["true"])
    peer.pull(at(tmp_path), name="d")
    note = note_in(peer["d"]._files.folder, owner["d"].id)
    assert note is not None
    assert len(note.lines) == 2
    assert note.lines[1].name.startswith("odfchain.verified/")
    set_back(owner["d"])
    grown(owner["d"])
    owner["d"].push(at(tmp_path), force=True)
    outcome = peer.pull("d", force=True)
    assert any("is not cosigned here" in text for text in outcome.details.warnings)
    again = note_in(peer["d"]._files.folder, owner["d"].id)
    assert again is not None
    assert len(again.lines) == 1


def test_case_29_one_connection_to_each_witness(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(29)
    opened = list[str]()
    with witnesses(tmp_path / "w", given["witnesses"]) as running:
        ask(owner, running)
        pool = witnesses_of(owner.path, owner._files.config.trust)._pool
        dial = pool._new
        pool._new = lambda *given: opened.append(str(given[1])) or dial(*given)  # type: ignore[method-assign,assignment,func-returns-value]
        for number in range(given["datasets"]):
            make_dataset(owner._files, f"d{number}")
            owner[f"d{number}"].push(f"{(tmp_path / 'A').as_uri()}/d{number}")
        pool.close()
    assert len(opened) == expected["connections"]


def test_case_27_a_verdict_without_a_network(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(27)
    dataset = owner["d"]
    with witness(tmp_path / "w") as running:
        owner.add_witness(*map(str, running), quorum=1)
        dataset.push(at(tmp_path))
    path = dataset._files.folder / given["file"]  # from here on nobody can be asked
    data, other = path.read_bytes(), note_of(["d1"]).data()

    def verdict() -> str:
        report = dataset.verify()
        said = [each.message for each in report.faults if given["file"] in each.file]
        return " ".join(said or [note for note in report.notes if "witness" in note] or ["no fault"])

    assert expected["whole"] in verdict()
    damages = data[:-1], data.replace(b"\n3\n", b"\n2\n"), other, b"x"
    for damage, says in zip(damages, expected["damaged"], strict=True):
        path.write_bytes(damage)
        assert says in verdict()
    path.unlink()
    assert expected["stripped"] in verdict()
    Configuration(owner.path).set("trust.witnesses", ["{}"])
    assert verdict() == expected["unasked"]


def test_case_30_who_has_cosigned(owner: Workspace, tmp_path: Path) -> None:
    given, expected = case(30)
    with witnesses(tmp_path / "w", given["witnesses"]) as running:
        ask(owner, running)
        owner["d"].push(at(tmp_path))
    with running_node(owner) as node:
        found = node.ask("/d/-/audit.json").json["witnesses"]
        page = node.ask("/d/-/audit").text
    assert [each["name"] for each in found] == expected["names"]
    for each in found:
        assert each["name"] in page
        assert Timestamp.parse(each["time"]).epoch_ns > Timestamp.now().epoch_ns - 60 * 10**9


def test_a_node_takes_the_checkpoint_of_what_was_pushed(
    owner: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Workspace.init(tmp_path / "node")
    token = there.tokens.create("owner", ("push:%",)).text
    with witness(tmp_path / "w") as running, RepositoryServer(there._files, write=True) as server:
        ask(owner, [running])
        owner["d"].push(f"odf+{server.url}d", token=token)
    note = note_in(there["d"]._files.folder, owner["d"].id)
    assert note is not None
    assert list(note.times([running[1]])) == [running[1]]


def test_the_commands_of_a_newcomer(owner: Workspace, tmp_path: Path, run: Run) -> None:
    with witness(tmp_path / "w") as (url, key), witness(tmp_path / "w1", "w1.example") as (_, other):
        home = str(owner.path.parent)
        assert run("-w", home, "witness", "add", url, str(key)).code == 0
        listed = json.loads(run("-w", home, "witness", "list", "-o", "json").out)
        assert [each["name"] for each in listed] == ["w0.example"]
        assert run("-w", home, "push", "d", "--to", at(tmp_path)).code == 0
        Workspace.init(tmp_path / "reader")
        policy = tmp_path / "policy.yaml"
        pull = ("-w", str(tmp_path / "reader"), "pull", at(tmp_path), "--witnesses", str(policy))
        policy.write_text(json.dumps({"keys": [str(key), str(other)], "quorum": 2}))
        few = run(*pull)
        policy.write_text(json.dumps({"keys": [str(key)], "quorum": 1, "maxAge": "7 days"}))
        note, path = note_at(tmp_path), tmp_path / "A/d/refs/head.checkpoint"
        private = DatasetKey.from_pem((tmp_path / "w/key.pem").read_bytes())
        before = Timestamp(Timestamp.now().epoch_ns - 8 * 86_400 * 10**9)
        line = key.sign(note.checkpoint.body(), private, before)
        path.write_bytes(replace(note, lines=(note.lines[0], line)).data())
        old = run(*pull)
        path.unlink()
        none = run(*pull)
        path.write_bytes(note.data())
        for refused, why in (few, "w1.example has not"), (old, "did 8 days ago"), (none, "no checkpoint"):
            assert (refused.code, why in refused.err) == (6, True)
        policy.write_text(json.dumps({"keys": ["x"]}))
        assert (wrong := run(*pull)).code == 3
        assert f"{policy}" in wrong.err
        policy.write_text(json.dumps({"keys": [str(key)], "quorum": 1, "maxAge": "7 days"}))
        assert run(*pull).code == 0
        assert run("-w", home, "witness", "add", url, "w+x+y").code == 2
