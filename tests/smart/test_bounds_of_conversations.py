"""Bounds on what one client says, and on what all clients of a node together have it hold."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import CorruptedPeerError
from odfchain.limits import SHARING, SMART
from odfchain.storage.locations import PeerUrl
from odfchain.transfer import server as transfer_server
from odfchain.transfer import smart_messages as m
from odfchain.transfer.block_batch import packed
from odfchain.transfer.open_peer import PeerOptions, open_peer
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.smart_messages import TOO_MANY_BLOCKS, message_of
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.crowd import CONTINUATION, PING, TEXT, RawClient, frame, listed
from tests.kit.node_stand_in import node
from tests.kit.scenario import chain_of
from tests.kit.served_workspace import ask, make_dataset
from tests.kit.smart_site import OK, PULL, Site, blocks, pull, raw, started

BEGIN = json.dumps(PULL).encode()
TOO_BIG, PROTOCOL, TRY_LATER, FAILED = 1009, 1002, 1013, 1011
SOME = 20_000
"""Bytes of a message that count."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    workspace = WorkspaceFiles.init(tmp_path / "served")
    make_dataset(workspace, "cities", 700)
    with RepositoryServer(workspace) as server:
        yield server.url


def next_document(client: RawClient) -> Any:
    kind, content = next(client.heard())
    assert kind == TEXT
    return json.loads(content)


# --- one client ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(b"", length=SMART.request_bytes + 1), TOO_BIG),
        (frame(b" " * 9, fin=False) + frame(b"", CONTINUATION, length=SMART.request_bytes - 8), TOO_BIG),
        (frame(b"", length=SMART.message_bytes), TOO_BIG),
        (frame(b"", fin=False) + frame(b"", CONTINUATION, fin=False) * 200, PROTOCOL),
        (frame(b"", PING) * 200, PROTOCOL),
        (frame(b"{}") * 200, PROTOCOL),
        (frame(b"\x82\x53\x50\x51\x00\x00", bits=0x40), PROTOCOL),
        (frame(listed(b"[]", SMART.request_bytes)), FAILED),
    ],
    ids=["long", "long in pieces", "a batch", "empty pieces", "pings", "messages", "compressed", "lists"],
)  # fmt: skip
def test_what_a_client_without_a_token_may_not_say(said: bytes, code: int, url: str) -> None:
    with RawClient(url, "cities/pull", "Sec-WebSocket-Extensions: permessage-deflate") as client:
        client.say(said)
        assert client.end() == code
    with RawClient(url) as client:
        client.say(frame(BEGIN[:20], fin=False) + frame(b"", PING) + frame(BEGIN[20:], CONTINUATION))
        assert next(each for each in client.heard() if each[0] == TEXT)[1].startswith(b'{"Ok"')


def test_a_batch_is_taken_only_where_one_may_come(site: Site) -> None:
    chain, field = chain_of(["seed", "schema"]), f"Authorization: Bearer {site.token()}"
    batch = frame(json.dumps(blocks(packed(raw(chain)))).encode().ljust(SMART.request_bytes + 1))
    begun = frame(json.dumps(started(chain)).encode())
    with RawClient(site.url, "cities/push", field) as client:
        client.say(batch)
        assert client.end() == TOO_BIG
    assert site.idle.wait(20)
    with RawClient(site.url, "cities/push", field) as client:
        client.say(begun)
        assert next_document(client) == OK
        client.say(batch)
        assert next_document(client) == OK
        client.say(batch)
        assert client.end() == TOO_BIG
    assert site.idle.wait(20)
    with RawClient(site.url, "cities/push", field) as client:
        client.say(begun)
        assert next_document(client) == OK
        client.say(frame(b"", length=SMART.message_bytes + 1))
        assert client.end() == TOO_BIG


def test_a_handshake_that_is_too_large_ends(url: str) -> None:
    with RawClient(url, "cities/pull", f"X-Long: {'x' * 20_000}") as client:
        assert client.status == 431
        assert client.end() is None


# --- all of them ---------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What the conversations of a node hold, as they say it."""

    changed: threading.Condition
    memory: transfer_server.Memory | None = None

    def wait(self, holds: Callable[[transfer_server.Memory], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.memory is not None and holds(self.memory), 20)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, judge = Seen(threading.Condition()), transfer_server.Memory.judge

    def judged(memory: transfer_server.Memory, new: transfer_server._Conversation) -> None:
        judge(memory, new)
        with found.changed:
            found.memory = memory
            found.changed.notify_all()

    monkeypatch.setattr(transfer_server.Memory, "judge", judged)
    return found


def test_who_holds_the_most_goes_first(url: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_server, "SMART", replace(SMART, unfinished_bytes=4 * SOME))
    with RawClient(url) as small, RawClient(url) as large, RawClient(url) as late:
        small.say(frame(BEGIN.rjust(3 * SOME))[:SOME])
        seen.wait(lambda memory: memory.held > SOME - 100)
        large.say(frame(b" " * 2 * SOME, length=4 * SOME))
        seen.wait(lambda memory: memory.held > 3 * SOME - 100)
        late.say(frame(BEGIN.rjust(3 * SOME // 2)))
        assert large.end() == TRY_LATER
        assert "Ok" in next_document(late)
        small.say(frame(BEGIN.rjust(3 * SOME))[SOME:])
        assert "Ok" in next_document(small)


def test_texts_count_as_what_they_take(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_server, "SMART", replace(SMART, unfinished_bytes=2 * SOME))
    with RawClient(url) as client:
        client.say(frame(BEGIN.rjust(SOME)))
        assert "Ok" in next_document(client)
    with RawClient(url) as client:
        client.say(frame("\U0001f600".encode() + b" " * SOME))
        assert client.end() == TRY_LATER


def test_messages_of_blocks_come_some_at_a_time(
    site: Site, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has to wait is read on when another one has gone."""
    monkeypatch.setattr(transfer_server, "SMART", replace(SMART, large_messages=1))
    field, part = f"Authorization: Bearer {site.token()}", SMART.request_bytes * 2
    chain = chain_of(["seed", "schema"])
    batch = json.dumps(blocks(packed(raw(chain)))).encode().rjust(4 * part)
    with RawClient(site.url, "one/push", field) as one, RawClient(site.url, "two/push", field) as two:
        for client in (one, two):
            client.say(frame(json.dumps(started(chain)).encode()))
            assert next_document(client) == OK
        one.say(frame(batch[:part], length=len(batch)))
        seen.wait(lambda memory: memory.large)
        sender = threading.Thread(target=two.say, args=(frame(batch),))
        sender.start()
        seen.wait(lambda memory: memory.waiting)
        assert ask(site.url, "/info").status == 200
        one.socket.close()
        assert next_document(two) == OK
        sender.join()


def test_what_clients_do_not_take_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for which there is no room come one by one."""
    theirs, ours = WorkspaceFiles.init(tmp_path / "theirs"), WorkspaceFiles.init(tmp_path / "ours")
    dataset = make_dataset(theirs, "cities", *[70] * 40)
    monkeypatch.setattr(transfer_server, "SMART", replace(SMART, unread_bytes=100))
    with RepositoryServer(theirs) as server:
        with RawClient(server.url) as client:
            client.say(frame(BEGIN) + frame(b"{}"))
            *said, (kind, content) = client.heard()
        assert [json.loads(text).keys() for _, text in said] == [{"Ok"}]
        assert (kind, int.from_bytes(content[:2], "big")) == (8, FAILED)
        assert json.loads(content[2:])["Err"]["Internal"]["error_message"] == TOO_MANY_BLOCKS
        assert pull(ours, f"odf+{server.url}cities").new == dataset.chain.head()


def test_who_takes_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = WorkspaceFiles.init(tmp_path)
    make_dataset(workspace, "cities", 700)
    monkeypatch.setattr(transfer_server, "SHARING", replace(SHARING, piece_seconds=0.1))
    file = {"object_type": "DataSlice", "physical_hash": "f1620" + "00" * 32}
    asked = [file | {"size": n} for n in range(1_000)]
    lost, end = threading.Event(), transfer_server._Conversation.connection_lost

    def ended(self: transfer_server._Conversation, error: Exception | None) -> None:
        end(self, error)
        lost.set()

    monkeypatch.setattr(transfer_server._Conversation, "connection_lost", ended)
    shown = f"Authorization: {'x' * 6_000}"
    with RepositoryServer(workspace) as server, RawClient(server.url, "cities/pull", shown) as client:
        client.say(frame(BEGIN))
        assert "Ok" in next_document(client)
        client.say(frame(b"{}") + frame(json.dumps({"object_files": asked}).encode()))
        assert lost.wait(20)


def test_conversations_and_other_requests_do_not_take_each_others_place(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_server, "SHARING", replace(SHARING, connections=4))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(url)) for _ in range(5)]
        assert [client.status for client in clients] == [101] * 4 + [503]
        assert ask(url, "/cities/refs/head").status == 200
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(RawClient.silent(url)) for _ in range(8)]
        assert ask(url, "/cities/refs/head").status == 503
        assert idle


# --- messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [b"[]", b"{}", b'""', b"1.5", b"1", b'"a" "b"', b"]", b'{"a":[]}'])
def test_values_of_a_message_are_counted_before_it_is_read(
    item: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: object, **__: object) -> None:
        pytest.fail("it was read")

    monkeypatch.setattr("odfchain.transfer.smart_messages.json.loads", loads)
    for kind, size in ((m.PullRequest, SMART.request_bytes), (m.PushedBlocks, SMART.message_bytes // 4)):
        with pytest.raises(CorruptedPeerError, match="more than 16,384 values"):
            message_of(kind, listed(item, size).decode())
        if not item.startswith(b"1"):
            with pytest.raises(CorruptedPeerError, match="more than 16,384 values"):
                message_of(kind, item.decode() * (size // len(item)))


@pytest.mark.parametrize(
    "kind", [m.PullRequest, m.PushRequest, m.PullObjects, m.Empty, m.PullPlan, m.UploadProgress]
)
def test_only_blocks_and_addresses_are_long(kind: type[m.Message]) -> None:
    with pytest.raises(CorruptedPeerError, match="524,288 are allowed"):
        message_of(kind, "{}".ljust(SMART.request_bytes + 1))


@pytest.mark.parametrize("blank", [" ", "\n", "\t ", ""])
def test_blocks_are_read_however_they_are_spaced(blank: str) -> None:
    data = bytes(range(256)) * 4_000
    numbers = f",{blank}".join(map(str, data))
    batch = f'"num_blocks": 1, "media_type": "{m.MEDIA_TYPE}", "encoding": "{m.ENCODING}"'
    text = f'{{"new_blocks": {{{batch}, "payload"{blank}:{blank}[{blank}{numbers}{blank}]}}}}'
    assert message_of(m.PushedBlocks, text).new_blocks.payload == data
    with pytest.raises(CorruptedPeerError):
        message_of(m.PushedBlocks, text.replace(f"1,{blank}2,", "1 2,", 1))


# --- what a node says ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("[" + "[]," * 100_000 + "[]]", "more than 16,384 values"),
        (" " * (SMART.request_bytes + 1), "524,288 are allowed"),
        (" " * (SMART.message_bytes + 1), "an invalid message"),
        ("{}", "more small frames"),
    ],
    ids=["lists", "long", "longer than blocks", "a flood"],
)
def test_what_a_node_may_not_say_to_a_client(
    said: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "{}":
        monkeypatch.setattr("odfchain.transfer.smart_messages.SMART", replace(SMART, small_frames=-1))
    with node({}, lambda _: said) as found:
        peer = open_peer(PeerUrl.parse(f"odf+{found.url}cities"), PeerOptions(retries=0))
        with contextlib.closing(peer), pytest.raises(CorruptedPeerError, match=problem):
            list(peer.batch(None, 1))
