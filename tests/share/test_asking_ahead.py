"""Blocks asked for ahead, from servers that keep connections, close them, or answer something else."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping

import pytest

from odfchain.errors import CorruptedPeerError
from odfchain.limits import LIMITS
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.public_layout import HINT_KEY
from odfchain.transfer.pulling import SyncStatus, pull_dataset
from odfchain.transfer.sync import AHEAD
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.hostile_server import End, HostilePeer, Trick, answer, body, lookup, raw
from tests.kit.scenario import chain_of, numbered
from tests.kit.web_peers import http_peer

CHAIN = chain_of(numbered(200))
NAMES = CHAIN.hashes
ALIAS = DatasetAlias.parse("name")


def clone(workspace: WorkspaceFiles, server: HostilePeer) -> SyncStatus:
    with http_peer(server.url) as peer:
        return pull_dataset(workspace, peer, ALIAS).status


def honest(end: End) -> Trick:
    """A whole answer, and the connection ends."""
    return Trick(lambda data: [answer(data)], end)


def every(count: int, trick: Trick) -> Mapping[str, Trick]:
    """The trick for each of the blocks that are `count` apart."""
    return {str(CHAIN.key(n)): trick for n in range(count - 1, len(NAMES), count)}


class Once(HostilePeer):
    """Plays its trick the first time that it is asked for a block, and then answers as `honest` does."""

    def __init__(self, tricks: Mapping[str, Trick]) -> None:
        super().__init__(lookup(CHAIN, hint=True), tricks)
        self.played: Counter[str] = Counter()

    def _play(self, connection: socket.socket, trick: Trick, data: bytes) -> None:
        key = f"blocks/{hash_bytes(data)}"
        self.played[key] += 1
        super()._play(connection, trick if self.played[key] == 1 else honest(End.CLOSE), data)


def test_a_clone_with_a_hint_asks_for_each_block_once(workspace: WorkspaceFiles) -> None:
    with HostilePeer(lookup(CHAIN, hint=True)) as server:
        assert clone(workspace, server) is SyncStatus.CREATED
        blocks = server.asked("blocks/")
        assert sorted(blocks) == sorted(str(CHAIN.key(n)) for n in range(len(NAMES)))
        first = server.requests.index(HINT_KEY) + 1
        order = {str(CHAIN.key(n)): len(NAMES) - 2 - n for n in range(len(NAMES) - 1)}
        places = [order[key] for key in server.requests[first : first + len(order)]]
        assert all(abs(place - at) <= AHEAD for at, place in enumerate(places)), "newest first"


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
@pytest.mark.parametrize("apart", [20, 50])
def test_a_clone_does_not_mind_a_server_that_breaks_off_now_and_then(
    end: End, apart: int, workspace: WorkspaceFiles
) -> None:
    with Once(every(apart, raw(end=end))) as server:
        clone(workspace, server)
    assert workspace.dataset("name").chain.hashes(CHAIN.head) == NAMES
    assert server.played.keys() == every(apart, raw()).keys()


UNUSUAL = {
    "another body": body(lambda data: data + b"!"),
    "the next block": body(lambda _: CHAIN.blocks[31]),
    "not there": Trick(lambda _: [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]),
    "elsewhere": Trick(lambda _: [b"HTTP/1.1 302 Found\r\nLocation: /ds/x\r\nContent-Length: 0\r\n\r\n"]),
    "busy": Trick(lambda _: [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]),
    "encoded": Trick(lambda data: [answer(data, more="Content-Encoding: gzip\r\n")]),
    "too long": Trick(lambda data: [answer(data, length=LIMITS.block_bytes + 1)]),
    "no HTTP": raw(b"SSH-2.0-OpenSSH\r\n\r\n"),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nContent-"),
    "nothing": raw(end=End.RESET),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_fails_ahead_is_asked_for_again_by_the_walk(what: str, workspace: WorkspaceFiles) -> None:
    with Once({str(CHAIN.key(30)): UNUSUAL[what]}) as server:
        clone(workspace, server)
    assert workspace.dataset("name").chain.hashes(CHAIN.head) == NAMES
    assert server.played == {str(CHAIN.key(30)): 2}


def test_a_block_that_is_wrong_is_named_though_it_was_asked_for_ahead(workspace: WorkspaceFiles) -> None:
    with HostilePeer(lookup(CHAIN, hint=True), {str(CHAIN.key(30)): UNUSUAL["another body"]}) as server:
        with pytest.raises(CorruptedPeerError, match="hashes to") as caught:
            clone(workspace, server)
        assert str(caught.value).startswith(f"{server.url}{CHAIN.key(30)}")
    assert not list(workspace.datasets())


def test_a_clone_from_a_server_that_closes_after_each_answer_is_complete(workspace: WorkspaceFiles) -> None:
    with HostilePeer(lookup(CHAIN, hint=True), {"blocks/*": honest(End.CLOSE)}) as server:
        clone(workspace, server)
        assert len(server.asked("blocks/")) <= len(NAMES) + 2, "hardly any was asked for twice"
    assert workspace.dataset("name").chain.hashes(CHAIN.head) == NAMES
