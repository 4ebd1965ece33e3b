"""Blocks asked for ahead on one connection, from servers that keep it, close it, or answer something else."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from odfchain.errors import CorruptedPeerError, TransferError
from odfchain.limits import LIMITS
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.storage.http_client import HttpPipeline
from odfchain.storage.http_store import AHEAD, HttpTransport
from odfchain.storage.public_layout import HEAD_KEY, HINT_KEY, PeerUrl
from odfchain.storage.store import Store
from odfchain.transfer.pulling import SyncStatus, pull_dataset
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.hostile_server import End, HostilePeer, Trick, answer, body, lookup, raw
from tests.kit.scenario import Chain, chain_of, numbered

CHAIN = chain_of(numbered(200))
NAMES = CHAIN.hashes
ALIAS = DatasetAlias.parse("name")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path)


@pytest.fixture
def opened() -> Iterator[Callable[[str], Store]]:
    peers: list[Store] = []

    def make(url: str) -> Store:
        peers.append(Store(HttpTransport(PeerUrl.parse(url))))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def pipeline_of(peer: Store) -> HttpPipeline:
    """A pipeline on the connection that has brought the head."""
    assert peer.head() == CHAIN.head
    found = peer.transport.pipeline()
    assert found is not None
    return found


def bytes_of(names: list[Multihash]) -> list[bytes]:
    index = {name: n for n, name in enumerate(NAMES)}
    return [CHAIN.blocks[index[name]] for name in names]


def honest(end: End) -> Trick:
    """A whole answer, and the connection ends."""
    return Trick(lambda data: [answer(data)], end)


def every(count: int, trick: Trick) -> Mapping[str, Trick]:
    """The trick for each of the blocks that are `count` apart."""
    return {str(CHAIN.key(n)): trick for n in range(count - 1, len(NAMES), count)}


def test_blocks_come_in_the_order_of_asking(opened: Callable[[str], Store]) -> None:
    with HostilePeer(lookup(CHAIN)) as server:
        pipeline = pipeline_of(opened(server.url))
        for part in (NAMES[:60], NAMES[:-31:-1], NAMES[60:61]):
            pipeline.ask(part)
            assert [pipeline.receive() for _ in part] == bytes_of(part)
        assert pipeline.receive() is None, "nothing more was asked for"
        pipeline.close()


def test_requests_are_sent_before_answers_come(opened: Callable[[str], Store]) -> None:
    wanted = NAMES[:5]

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(20)
            for bodies in ([str(CHAIN.head).encode()], bytes_of(wanted)):
                asked = b""
                while asked.count(b"\r\n\r\n") < len(bodies):
                    asked += connection.recv(1 << 16)
                connection.sendall(b"".join(answer(data) for data in bodies))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        pipeline = pipeline_of(opened(f"http://127.0.0.1:{listener.getsockname()[1]}/ds/"))
        pipeline.ask(wanted)
        assert [pipeline.receive() for _ in wanted] == bytes_of(wanted)
        pipeline.close()
        thread.join()


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
def test_a_server_that_closes_now_and_then_is_asked_again_for_the_rest(
    end: End, opened: Callable[[str], Store]
) -> None:
    # a reset may overtake what was sent before it, so the last answer is lost with it
    trick = honest(end) if end is End.CLOSE else raw(end=end)
    once = dict(every(40, trick))

    class Once(HostilePeer):
        def _play(self, connection: socket.socket, trick: Trick, data: bytes) -> None:
            once.pop(self.requests[-1], None)
            super()._play(connection, trick, data)

    with Once(lookup(CHAIN), once) as server:
        pipeline = pipeline_of(opened(server.url))
        pipeline.ask(NAMES)
        assert [pipeline.receive() for _ in NAMES] == bytes_of(NAMES)
        pipeline.close()


def test_a_server_that_closes_after_each_answer_is_not_asked_ahead_for_long(
    opened: Callable[[str], Store],
) -> None:
    with HostilePeer(lookup(CHAIN), {"blocks/*": honest(End.CLOSE)}) as server:
        pipeline = pipeline_of(opened(server.url))
        pipeline.ask(NAMES[:50])
        found = list(iter(pipeline.receive, None))
        assert found == bytes_of(NAMES[:50])[: len(found)]
        assert len(found) <= 2
        assert len(server.asked("blocks/")) <= 3


UNUSUAL = {
    "another body": body(lambda data: data + b"!"),
    "the next block": body(lambda _: CHAIN.blocks[31]),
    "not there": Trick(lambda _: [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]),
    "elsewhere": Trick(lambda _: [b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"]),
    "busy": Trick(lambda _: [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]),
    "encoded": Trick(lambda data: [answer(data, more="Content-Encoding: gzip\r\n")]),
    "too long": Trick(lambda data: [answer(data, length=LIMITS.block_bytes + 1)]),
    "no HTTP": raw(b"SSH-2.0-OpenSSH\r\n\r\n"),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nContent-"),
    "nothing": raw(end=End.RESET),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_after_anything_unusual_no_more_comes_this_way(what: str, opened: Callable[[str], Store]) -> None:
    with HostilePeer(lookup(CHAIN), {str(CHAIN.key(30)): UNUSUAL[what]}) as server:
        pipeline = pipeline_of(opened(server.url))
        pipeline.ask(NAMES[:100])
        assert list(iter(pipeline.receive, None)) == bytes_of(NAMES[:30])
        pipeline.ask(NAMES[100:])
        assert pipeline.receive() is None
        pipeline.close()


def test_a_server_that_closes_every_connection_is_not_asked_ahead(
    opened: Callable[[str], Store],
) -> None:
    tricks = {HEAD_KEY: Trick(lambda data: [answer(data, more="Connection: close\r\n")])}
    with HostilePeer(lookup(CHAIN), tricks) as server:
        peer = opened(server.url)
        assert peer.transport.pipeline() is None, "nothing is known of the server"
        assert peer.head() == CHAIN.head
        assert peer.transport.pipeline() is None


def test_a_pipeline_ends_with_its_peer(opened: Callable[[str], Store]) -> None:
    with HostilePeer(lookup(CHAIN), {str(CHAIN.key(3)): raw(end=End.HANG)}) as server:
        peer = opened(server.url)
        pipeline = pipeline_of(peer)
        pipeline.ask(NAMES[:10])
        assert [pipeline.receive() for _ in range(3)] == bytes_of(NAMES[:3])
        threading.Timer(0.05, peer.close).start()
        assert pipeline.receive() is None
        pipeline.close()
        with pytest.raises(TransferError, match="were closed"):
            peer.block(NAMES[0])


# --- pulling -----------------------------------------------------------------------------------------


def test_a_clone_with_a_hint_asks_for_each_block_once_on_one_connection(
    workspace: WorkspaceFiles, opened: Callable[[str], Store]
) -> None:
    with HostilePeer(lookup(CHAIN, hint=True)) as server:
        assert pull_dataset(workspace, opened(server.url), ALIAS).status is SyncStatus.CREATED
        blocks = server.asked("blocks/")
        assert sorted(blocks) == sorted(str(CHAIN.key(n)) for n in range(len(NAMES)))
        first = server.requests.index(HINT_KEY) + 1
        expected = [str(CHAIN.key(n)) for n in range(len(NAMES) - 2, -1, -1)]
        assert server.requests[first : first + len(expected)] == expected


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
@pytest.mark.parametrize("apart", [20, 50])
def test_a_clone_does_not_mind_a_server_that_breaks_off_now_and_then(
    end: End, apart: int, workspace: WorkspaceFiles, opened: Callable[[str], Store]
) -> None:
    asked: Counter[str] = Counter()

    class Closing(HostilePeer):
        """Breaks off the first time that it is asked for some of the blocks."""

        def _play(self, connection: socket.socket, trick: Trick, data: bytes) -> None:
            key = self.requests[-1]
            asked[key] += 1
            super()._play(connection, trick if asked[key] == 1 else honest(End.CLOSE), data)

    with Closing(lookup(CHAIN, hint=True), every(apart, raw(end=end))) as server:
        pull_dataset(workspace, opened(server.url), ALIAS)
    assert workspace.dataset("name").chain.hashes(CHAIN.head) == NAMES
    assert asked.keys() == every(apart, raw()).keys()


def test_a_block_that_is_wrong_is_named_though_it_was_asked_for_ahead(
    workspace: WorkspaceFiles, opened: Callable[[str], Store]
) -> None:
    with HostilePeer(lookup(CHAIN, hint=True), {str(CHAIN.key(30)): UNUSUAL["another body"]}) as server:
        with pytest.raises(CorruptedPeerError, match="hashes to") as caught:
            pull_dataset(workspace, opened(server.url), ALIAS)
        assert str(caught.value).startswith(f"{server.url}{CHAIN.key(30)}")
    assert not list(workspace.datasets())


def test_a_clone_from_a_server_that_closes_after_each_answer_is_complete(
    workspace: WorkspaceFiles, opened: Callable[[str], Store]
) -> None:
    with HostilePeer(lookup(CHAIN, hint=True), {"blocks/*": honest(End.CLOSE)}) as server:
        pull_dataset(workspace, opened(server.url), ALIAS)
        assert len(server.asked("blocks/")) <= len(NAMES) + 2, "hardly any was asked for twice"
    assert workspace.dataset("name").chain.hashes(CHAIN.head) == NAMES


LIES: dict[str, Callable[[Chain], list[Multihash]]] = {
    "nonsense": lambda c: [Multihash.sha3_256(bytes([n]) * 32) for n in range(200)],
    "reversed": lambda c: c.hashes[::-1],
    "too old": lambda c: c.hashes[:50],
    "one block over and over": lambda c: [c.hashes[3]] * 200,
    "gaps": lambda c: c.hashes[::3],
    "mixed up": lambda c: [c.hashes[(n * 77) % 200] for n in range(200)],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_clone_does_not_depend_on_what_the_hint_says(
    lie: str, workspace: WorkspaceFiles, opened: Callable[[str], Store]
) -> None:
    hint = "".join(f"{name}\n" for name in LIES[lie](CHAIN)).encode()
    served = {**{str(k): v for k, v in CHAIN.objects.items()}, HEAD_KEY: str(CHAIN.head).encode()}
    served[HINT_KEY] = hint
    with HostilePeer(served.get) as server:
        pull_dataset(workspace, opened(server.url), ALIAS)
        assert len(server.asked("blocks/")) <= len(NAMES) + 2 * AHEAD
    assert workspace.dataset("name").chain.hashes(CHAIN.head) == NAMES
