"""A server that may be written to: what our own client pushes to it, and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from odfchain.chain.signed_heads import SignatureStatus
from odfchain.errors import ChainsDifferError, CorruptedPeerError, OdfchainError, UsageError
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.transfer import node_pushes, server
from odfchain.transfer.access_tokens import PushSessions, TokenFile
from odfchain.transfer.block_batch import packed, unpacked
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.smart_messages import BlocksBatch
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import forge
from tests.kit.block_batches import bomb, entry
from tests.kit.scenario import chain_of, extend, install
from tests.kit.served_workspace import make_dataset
from tests.kit.signed_heads import head_of, line, owned
from tests.kit.smart_cases import row, rows
from tests.kit.smart_site import (
    CITIES,
    COMPLETE,
    OK,
    Site,
    ask_to_commit,
    asked_for_objects,
    begun,
    blocks,
    closed,
    committed,
    conversation,
    failed,
    objects,
    pull,
    raw,
    say,
    started,
)  # fmt: skip
from tests.kit.support import tree_of

LABELS = ["seed", "schema", "d1", "x", "d2"]


# --- our own client ----------------------------------------------------------------------------------


def test_a_new_dataset_then_more_blocks_then_nothing(site: Site) -> None:
    chain, token = chain_of(LABELS), site.token("push:cit%")
    dataset = install(site.ours, "cities", chain)
    assert site.push("cities", token).num_blocks == len(LABELS)
    there = site.node.dataset(CITIES)
    assert tree_of(there.folder / "data") == tree_of(dataset.folder / "data")
    assert tree_of(there.folder / "checkpoints") == tree_of(dataset.folder / "checkpoints")
    assert site.push("cities", token).up_to_date
    chain.add_data("d3")
    extend(dataset, chain)
    assert site.push("cities", token).num_blocks == 1
    assert site.head() == chain.head
    assert not list((site.node.root / "incoming").glob("[!.]*"))
    assert not (there.folder / "info" / "incoming").exists()
    third = WorkspaceFiles.init(site.ours.root.parent.parent / "third")
    assert pull(third, f"odf+{site.url}cities").new == chain.head


def test_who_is_behind_or_went_apart_is_told_the_difference(site: Site) -> None:
    token = site.token()
    install(site.node, "cities", chain_of(LABELS))
    install(site.ours, "old", chain_of(LABELS[:3]))
    with pytest.raises(ChainsDifferError, match=r"has not|of a later"):
        site.push("old", token)
    apart = WorkspaceFiles.init(site.ours.root.parent.parent / "apart")
    install(apart, "apart", chain_of([*LABELS[:3], "y"]))
    site.ours = apart
    with pytest.raises(ChainsDifferError, match=r"diverged|parted|holds|in common"):
        site.push("apart", token)
    with pytest.raises(
        OdfchainError, match=r"the node refuses: This token may not overwrite history\."
    ) as no:
        site.push("apart", token, force=True)
    assert "--allow force:" in str(no.value.hint)
    assert site.head() == chain_of(LABELS).head
    site.push("apart", site.token("push:%", "force:cities", name="strong"), force=True)
    assert site.head() == apart.dataset(DatasetAlias.parse("apart")).chain.head()
    kept = list((site.node.dataset(CITIES).folder / "refs").glob("overwritten-*"))
    assert [path.read_text().strip() for path in kept] == [str(chain_of(LABELS).head)]


def test_a_push_to_the_owner_is_answered_with_the_way_to_propose(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site.node, "cities", chain_of(LABELS[:3]))
    install(site.ours, "cities", chain_of(LABELS))
    monkeypatch.setattr(WorkspaceFiles, "has_key", lambda *_: True)
    with pytest.raises(OdfchainError, match="written here") as no:
        site.push("cities", site.token())
    assert "third place" in str(no.value.hint)


def test_another_dataset_never_overwrites(site: Site) -> None:
    """Case 29: a chain with another seed."""
    install(site.node, "cities", chain_of(LABELS))
    other, token = chain_of(["seed 2", "schema"]), site.token("push:%", "force:%")
    with site.socket(token) as socket:
        assert say(socket, started(other, chain_of(LABELS).head, force=True)) == OK
        answer = say(socket, blocks(packed(raw(other))))
    assert answer == rows(29)[0]["answer"]
    assert site.head() == chain_of(LABELS).head


def test_what_was_uploaded_is_not_sent_again(site: Site) -> None:
    chain, token = chain_of(LABELS), site.token()
    with site.socket(token) as socket:
        first = asked_for_objects(socket, chain)
        assert {each["push_strategy"] for each in first} == {"HttpUpload"}
        key = chain.files[0]
        site.upload(chain, token, key)
        names = {h["name"]: h["value"] for h in first[0]["upload_to"]["headers"]}
        assert names == {"x-odf-smtp-version": "1", "authorization": f"Bearer {token}"}
    with site.socket(token) as socket:
        second = {e["object_file"]["physical_hash"]: e for e in asked_for_objects(socket, chain)}
    assert second.pop(str(key.name))["push_strategy"] == "SkipUpload"
    assert {each["push_strategy"] for each in second.values()} == {"HttpUpload"}
    assert not list((site.node.root / "datasets").iterdir()), "nobody sees what is not committed"


@pytest.mark.parametrize("step", range(5))
def test_a_push_that_dies_leaves_the_old_state_and_the_next_one_succeeds(step: int, site: Site) -> None:
    chain, token = chain_of(LABELS), site.token()
    old = chain_of(LABELS[:3])
    install(site.node, "cities", old)
    before = tree_of(site.node.dataset(CITIES).folder / "blocks")
    steps: list[Callable[[ClientConnection], Any]] = [
        lambda socket: say(socket, started(chain, old.head, 3)),
        lambda socket: say(socket, blocks(packed(raw(chain)[3:]))),
        lambda socket: say(socket, {"object_files": [], "is_truncated": False}),
        lambda socket: socket.send(COMPLETE),
    ]
    with site.socket(token) as socket:
        for each in steps[:step]:
            each(socket)
        socket.socket.shutdown(SHUT_RDWR)
    assert site.head() == old.head
    assert tree_of(site.node.dataset(CITIES).folder / "blocks") == before
    install(site.ours, "cities", chain)
    site.push("cities", token)
    assert site.head() == chain.head


def test_nodes_are_asked_whether_aliases_need_an_account(site: Site) -> None:
    with urlopen(f"{site.url}info", timeout=20) as answer:  # noqa: S310 - our own server
        assert json.load(answer) == {"isMultiTenant": False}


# --- who may ------------------------------------------------------------------------------------------


def refused_as(expected: dict[str, Any], site: Site, token: str) -> None:
    with pytest.raises(InvalidStatus) as refused, site.socket(token):
        pass
    assert refused.value.response.status_code == expected["status"]
    assert json.loads(refused.value.response.body or b"")["message"] == expected["message"]


def test_a_dataset_that_is_written_here_is_not_pushed_to(site: Site) -> None:
    """Case 28."""
    make_dataset(site.node, "cities", 10)
    refused_as(rows(28)[0], site, site.token())


def test_a_server_that_is_only_read_says_so(tmp_path: Path, idle: threading.Event) -> None:
    """Case 35."""
    node = WorkspaceFiles.init(tmp_path)
    with RepositoryServer(node) as server:
        site = Site(node, node, server.url, TokenFile(node.root), idle)
        token, (expected,) = site.token(), rows(35)
        refused_as(expected, site, token)
        assert site.put("data/f1620" + "00" * 32, b"x", token) == expected["put"]


def test_a_token_that_is_revoked_in_the_middle(site: Site) -> None:
    token, key = site.token(), CHAIN.files[0]
    with site.socket(token) as socket:
        asked_for_objects(socket, CHAIN)
        site.tokens.revoke("me")
        assert site.put(str(key), CHAIN.objects[key], token) == 401
        socket.send(COMPLETE)
        assert closed(socket) == (1011, "The token was revoked.")


def test_writing_needs_this_machine_or_a_proxy(tmp_path: Path) -> None:
    node = WorkspaceFiles.init(tmp_path)
    with pytest.raises(UsageError, match="could read the tokens"):
        RepositoryServer(node, host="0.0.0.0", write=True)  # noqa: S104 - it is refused
    RepositoryServer(node, host="0.0.0.0", write=True, behind_proxy=True).stop()  # noqa: S104 - as told


def test_addresses_of_files_are_those_that_a_proxy_has(tmp_path: Path, idle: threading.Event) -> None:
    node, chain = WorkspaceFiles.init(tmp_path), chain_of(LABELS)
    with RepositoryServer(node, write=True, behind_proxy=True) as server:
        site = Site(node, node, server.url, TokenFile(node.root), idle)
        proxy = {
            "X_Forwarded_Proto": "https",
            "X_Forwarded_Host": "odf.example",
            "X_Forwarded_Prefix": "/data",
        }
        with conversation(server.url, "cities/push", site.token(), **proxy) as socket:
            found = asked_for_objects(socket, chain)
    urls = {each["upload_to"]["url"] for each in found}
    assert urls == {f"https://odf.example/data/cities/{key}" for key in chain.files}


# --- what is sent ---------------------------------------------------------------------------------------


CHAIN = chain_of(LABELS)
BATCHES = {
    "other name": entry("f1620" + "00" * 32, CHAIN.blocks[0]),
    "above": entry("../x", CHAIN.blocks[0]),
    "link": entry(str(CHAIN.hashes[0]), kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "zeros": bomb("f1620" + "00" * 32, tarfile.REGTYPE, 4 << 20),
    "cut": BlocksBatch(num_blocks=1, payload=packed(raw(CHAIN)[:1]).payload[:-20]),
    "not the seed": packed([raw(CHAIN)[2]]),
    "none": BlocksBatch(num_blocks=1, payload=packed([]).payload),
}


@pytest.mark.parametrize("case", rows(11), ids=lambda case: case["entry"])
def test_what_is_no_batch_of_blocks_is_refused(case: dict[str, Any], site: Site) -> None:
    """Case 11."""
    sent = BATCHES[case["entry"]]
    with site.socket(site.token()) as socket:
        assert say(socket, started(CHAIN, start=len(CHAIN.hashes) - 1)) == OK
        socket.send(json.dumps(blocks(sent)))
        assert failed(socket) == (case["code"], {"Push": case["phase"]})
    if case["says"] is not None:
        with pytest.raises(CorruptedPeerError, match=case["says"]):
            unpacked(sent)
    assert not list((site.node.root / "datasets").iterdir())


def test_blocks_out_of_order_and_other_numbers_are_refused(site: Site) -> None:
    token = site.token()
    for sent in (packed(raw(CHAIN)[::-1]), packed(raw(CHAIN)[:3])):
        with site.socket(token) as socket:
            assert say(socket, started(CHAIN)) == OK
            socket.send(json.dumps(blocks(sent)))
            assert closed(socket)[0] == 1011


def test_a_block_against_an_append_rule_is_refused_when_it_comes(site: Site) -> None:
    """Case 24."""
    chain = chain_of(LABELS)
    chain.append(ev.SetInfo(description="backwards"), system_time=Timestamp.from_epoch_ms(1))
    with site.socket(site.token()) as socket:
        assert say(socket, started(chain)) == OK
        socket.send(json.dumps(blocks(packed(raw(chain)))))
        (expected,) = rows(24)
        assert failed(socket) == (expected["code"], {"Push": expected["phase"]})
    assert not list((site.node.root / "datasets").iterdir())


def test_files_that_are_not_what_was_named(site: Site) -> None:
    """Case 22."""
    chain, token = chain_of(LABELS), site.token()
    other = site.token(name="other")
    key = chain.files[0]
    body = chain.objects[key]
    assert site.put(str(key), body, token) == 404, "no push is going on"
    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        stranger = ObjectKey(ObjectKind.DATA, Multihash.sha3_256(bytes(32)))
        chunked = {"Transfer-Encoding": "chunked"}
        puts: dict[str, Callable[[], int]] = {
            "unnamed": lambda: site.put(str(stranger), body, token),
            "by another token": lambda: site.put(str(key), body, other),
            "without a token": lambda: site.put(str(key), body, "ka_none"),
            "wrong content": lambda: site.put(str(key), body[:-1] + b"!", token),
            "short": lambda: site.put(str(key), body[:-1], token),
            "long": lambda: site.put(str(key), body + b"!", token),
            "no length": lambda: site.put(str(key), b"", token, no_length="1"),
            "chunked": lambda: site.put(str(key), b"0\r\n\r\n", token, **chunked),
            "a block": lambda: site.put("blocks/f1620" + "00" * 32, body, token),
            "a head": lambda: site.put("refs/head", str(chain.head).encode(), token),
        }
        assert {name: put() for name, put in puts.items()} == {
            each["put"]: each["status"] for each in rows(22)
        }
        assert not list((site.node.root / "incoming" / "cities" / "objects").iterdir())
        ask_to_commit(socket)
        assert failed(socket) == (1011, {"Push": "CompleteRequest"})
    assert not list((site.node.root / "datasets").iterdir()), "objects are not there"


def test_files_come_over_one_connection_until_one_is_refused(site: Site) -> None:
    chain, token = chain_of(LABELS), site.token()
    link = http.client.HTTPConnection(site.url.removeprefix("http://").rstrip("/"), timeout=20)

    def put(key: ObjectKey, body: bytes) -> tuple[int, bool]:
        """The status, and whether the connection is still open."""
        link.request("PUT", f"/cities/{key}", body, {"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        answer.read()
        return answer.status, link.sock is not None

    with site.socket(token) as socket, contextlib.closing(link):
        asked_for_objects(socket, chain)
        assert [put(key, chain.objects[key]) for key in chain.files[:3]] == [(201, True)] * 3
        here = link.sock.getsockname()
        key = chain.files[3]
        assert put(key, chain.objects[key][::-1]) == (400, True), "it has come, and is not waited for"
        assert link.sock.getsockname() == here
        link.putrequest("PUT", f"/cities/{key}")
        link.putheader("Authorization", f"Bearer {token}")
        link.putheader("Content-Length", str(1 << 20))
        link.endheaders()
        answer = link.getresponse()
        assert (answer.status, answer.headers["connection"]) == (400, "close")


def test_what_was_hashed_when_it_came_is_hashed_again_if_it_changed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, token = chain_of(LABELS), site.token()
    hashed: list[str] = []
    monkeypatch.setattr(
        "odfchain.transfer.sync.hash_file", lambda path: hashed.append(path.name) or hash_file(path)
    )
    for bent in (True, False):
        hashed.clear()
        with site.socket(token) as socket:
            strategies = asked_for_objects(socket, chain)
            for key in chain.files:
                if any(each["object_file"]["physical_hash"] == str(key.name) for each in strategies):
                    assert site.put(str(key), chain.objects[key], token) in (201, 404)
            key = chain.files[0]
            if bent:
                (found,) = (site.node.root / "incoming").rglob(f"*{key.name}")
                found.write_bytes(chain.objects[key][::-1])
            ask_to_commit(socket)
            if bent:
                assert closed(socket)[0] == 1011
                assert len(hashed) == 1
                assert not list((site.node.root / "datasets").iterdir())
            else:
                assert json.loads(socket.recv(20)) == {}
                assert not hashed
        assert site.idle.wait(20)
    assert site.head() == chain.head


def test_an_object_that_no_block_names_is_not_asked_for(site: Site) -> None:
    with site.socket(site.token()) as socket:
        begun(socket, chain_of(["seed", "schema", "d1"]))
        socket.send(json.dumps(objects(CHAIN)))
        assert closed(socket)[0] == 1011


# --- several, slow, silent -------------------------------------------------------------------------------


def test_one_push_to_a_dataset_at_a_time(site: Site) -> None:
    """Case 25."""
    token = site.token()
    with site.socket(token) as first:
        assert say(first, started(CHAIN)) == OK
        busy = (rows(25)[0]["code"], rows(25)[0]["reason"])
        with site.socket(token, "Cities", beside=True) as second:
            assert closed(second) == busy
        assert say(first, blocks(packed(raw(CHAIN)))) == OK


def test_a_conversation_goes_on_when_the_time_for_headers_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SHARING", replace(server.SHARING, request_head_seconds=0.1))
    monkeypatch.setattr(node_pushes, "_PING_SECONDS", 0.15)
    with site.socket(site.token()) as socket:
        asked_for_objects(socket, CHAIN)
        assert [socket.recv(20), socket.recv(20)] == ["{}", "{}"]


def test_who_hears_of_the_commit_may_push_again_at_once(site: Site) -> None:
    """Long chains go in several pushes, one after the other; each has a connection, and ends it when it likes."""
    token, chain = site.token(), chain_of(["seed", "schema", "x", "y"])
    first = chain_of(["seed", "schema"])
    with site.socket(token) as one:
        for message in (started(first), blocks(packed(raw(first))), objects(first)):
            assert "Ok" in say(one, message)
        committed(one)
        with site.socket(token, beside=True) as two:
            assert say(two, started(chain, first.head, 2)) == OK
            one.close()
            assert say(two, blocks(packed(raw(chain)[2:]))) == OK
            with site.socket(token, beside=True) as three:
                assert closed(three)[1] == "Busy.", "the end of the first is not the end of the second"


def test_a_head_that_moved_meanwhile(site: Site) -> None:
    token, chain = site.token(), chain_of(LABELS)
    old = chain_of(LABELS[:3])
    dataset = install(site.node, "cities", old)
    with site.socket(token) as socket:
        begun(socket, chain, old)
        new = [key for key in chain.files if key not in old.files]
        assert "Ok" in say(socket, objects(chain, new))
        site.upload(chain, token, *new)
        moved = chain_of([*LABELS[:3], "other"])
        extend(dataset, moved)
        ask_to_commit(socket)
        code, reason = closed(socket)
    assert (code, json.loads(reason)["Err"]) == (1011, {"InvalidHead": {"expected_head": str(moved.head)}})
    assert site.head() == moved.head


def test_a_head_that_is_not_there_is_named_and_the_client_has_to_go(site: Site) -> None:
    token = site.token()
    install(site.node, "cities", chain_of(LABELS[:3]))
    with site.socket(token) as socket:
        heads = {"actual_head": None, "expected_head": str(chain_of(LABELS[:3]).head)}
        assert say(socket, started(CHAIN)) == {"Err": {"InvalidHead": heads}}
        socket.send(json.dumps(blocks(packed(raw(CHAIN)))))
        assert closed(socket)[0] == 1011


def test_frames_that_are_none(site: Site) -> None:
    """Case 32."""
    token = site.token()
    with site.socket(token) as socket:
        socket.send(b"{}")
        expected = row(32, opcode="binary")
        assert closed(socket) == (expected["code"], expected["reason"])
    with site.socket(token) as socket:
        socket.send("not JSON")
        assert closed(socket)[0] == 1011


def test_silence_ends_a_push_and_uploads_are_asked_after(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token = site.token()
    monkeypatch.setattr(node_pushes, "_PING_SECONDS", 0.01)
    with site.socket(token) as socket:
        asked_for_objects(socket, CHAIN)
        assert socket.recv(20) == "{}"
        socket.send(json.dumps({"details": {"Running": {"uploaded_objects_count": 0}}}))
        assert socket.recv(20) == "{}"
        monkeypatch.setattr(node_pushes, "SILENT_SECONDS", 0.01)
        with contextlib.suppress(ConnectionClosed):
            while True:
                assert socket.recv(20) == "{}"
        assert (socket.close_code, socket.close_reason) == (1011, "Nothing was said for too long.")
    with site.socket(token) as socket:
        assert closed(socket) == (1011, "Nothing was said for too long.")


# --- signatures ---------------------------------------------------------------------------------------


def test_the_signature_of_a_head_follows_a_push(site: Site) -> None:
    """Case 31."""
    chain, token = owned(["d1"]), site.token()
    install(site.ours, "cities", chain)
    signature = line(head_of(chain))
    assert site.put("refs/head.jws", signature, token) == 404, "no push was here"
    site.push("cities", token)
    sent = {
        "of another block": line(head_of(chain, 0)),
        "by another key": line(replace(head_of(chain), dataset_id=forge.STRANGER.dataset_id), forge.STRANGER),
        "no line": b"nothing\n",
        "a megabyte": b"x" * (1 << 20),
        "good": signature,
    }
    file = site.node.dataset(CITIES).folder / "refs" / "head.jws"
    for each in rows(31):
        assert not file.exists()
        assert site.put("refs/head.jws", sent.pop(each["sent"]), token) == each["status"], each
    assert (sent, file.read_bytes()) == ({}, signature)
    # so do others who may push, also later
    assert site.put("refs/head.jws", signature, site.token(name="other")) == 201
    assert site.put("refs/head.jws", signature, site.token("push:towns", name="third")) == 403


@pytest.mark.parametrize("takes", [True, False])
def test_our_client_sends_the_signature_that_it_has(
    takes: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = owned(["d1"])
    signature = line(head_of(chain))
    (install(site.ours, "cities", chain).folder / "refs" / "head.jws").write_bytes(signature)
    if not takes:
        monkeypatch.setattr(PushSessions, "awaits", lambda *_: None)
        monkeypatch.setattr(node_pushes.Writing, "pushed_head", lambda *_: None)
    status = SignatureStatus.SIGNED if takes else SignatureStatus.UNSIGNED
    assert site.push("cities", site.token()).signature is status
    assert site.head() == chain.head
    there = site.node.dataset(CITIES).folder / "refs" / "head.jws"
    assert not takes or there.read_bytes() == signature
