"""Clients that ask without reading, send without end or take for ever; and a server that drips."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from odfchain.limits import SHARING, FetchLimits
from odfchain.storage.http_connection import Connection, dial
from odfchain.storage.http_rules import Deadline, Timing, TransientError
from odfchain.storage.locations import parse_target
from odfchain.storage.routes import Route
from odfchain.storage.store import PEER_LIMITS
from odfchain.transfer import server
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import ask, connect, heard, make_dataset

GET = b"GET /cities/refs/head HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    workspace = WorkspaceFiles.init(tmp_path)
    make_dataset(workspace, "cities", 100)
    with RepositoryServer(workspace) as server:
        yield server.url


def resident() -> int:
    """Memory of this process, the server's too [bytes]."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- requests without reading ----------------------------------------------------------------------


def test_requests_without_reading_stay_with_the_client(url: str) -> None:
    before = resident()
    flood = GET * 2_000
    clients = [connect(url) for _ in range(4)]
    sent = 0
    for client in clients:
        client.settimeout(0.5)
        try:
            while sent < 200 << 20:
                sent += client.send(flood)
        except TimeoutError:
            pass  # it is not read from any more, which is what is wanted
        assert ask(url, "/cities/refs/head").status == 200, "it is not kept waiting for twenty seconds"
    assert sent < 100 << 20
    assert resident() - before < 100 << 20
    for client in clients:
        client.close()


def test_pipelined_requests_are_all_answered_in_order(url: str) -> None:
    paths = [b"refs/head", b"nothing"] * 1_500
    asked = b"".join(b"GET /cities/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths)
    with connect(url) as client:
        writer = threading.Thread(target=client.sendall, args=(asked + b"GET / HTTP/1.0\r\n\r\n",))
        writer.start()
        found = heard(client)
        writer.join()
    statuses = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404"] * 1_500 + [b"200"]


# --- headers ---------------------------------------------------------------------------------------


def headers_of(size: int, pieces: int) -> bytes:
    """A request whose headers have so many bytes, in so many fields."""
    head = b"GET /cities/refs/head HTTP/1.0\r\n"
    each = (size - len(b"/cities/refs/head")) // pieces
    return head + b"".join(b"X: %s\r\n" % (b"y" * (each - 5)) for _ in range(pieces)) + b"\r\n"


@pytest.mark.parametrize("pieces", [1, 20, 1_000])
@pytest.mark.parametrize(
    ("size", "status"), [(60_000, b"200"), (65_000, b"200"), (66_600, b"431"), (70_000, b"431")]
)
def test_headers_are_bounded_however_they_come(url: str, size: int, status: bytes, pieces: int) -> None:
    with connect(url) as client:
        client.sendall(headers_of(size, pieces))
        found = heard(client)
    assert found.startswith(b"HTTP/1.1 " + status) or (status == b"431" and not found)


def test_the_bound_of_headers_is_met_to_the_byte(url: str) -> None:
    """Of the request line too."""
    head = b"GET /cities/refs/head HTTP/1.0\r\nX: "
    for more, status in ((0, b"200"), (1, b"431")):
        with connect(url) as client:
            client.sendall(head + b"y" * (SHARING.request_head_bytes - len(head) - 4 + more) + b"\r\n\r\n")
            assert heard(client).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("piece", [b"\r\n", b"x"])
def test_what_is_no_request_is_not_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(server, "SHARING", replace(SHARING, request_head_seconds=0.3))
    with connect(url) as client:
        client.sendall(GET)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012 - one of many is refused
            while time.monotonic() - began < 20:
                client.sendall(piece)
                threading.Event().wait(0.05)
                client.settimeout(0.01)
                try:
                    if not client.recv(1 << 16):
                        raise OSError
                except TimeoutError:
                    pass


def test_bodies_are_not_waited_for(url: str) -> None:
    for body in (b"Content-Length: 1000000000000\r\n", b"Transfer-Encoding: chunked\r\n"):
        with connect(url) as client:
            client.sendall(b"GET /cities/refs/head HTTP/1.1\r\nHost: localhost\r\n" + body + b"\r\n")
            assert heard(client).startswith(b"HTTP/1.1 200")


# --- clients that do not read ----------------------------------------------------------------------


def test_a_client_that_does_not_read_is_dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SHARING", replace(SHARING, stall_seconds=0.3))
    with connect(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(20)
        with pytest.raises(OSError):  # noqa: PT012 - one of many is refused
            for _ in range(100_000):
                client.sendall(GET * 100)


def connected(limits: FetchLimits) -> tuple[Connection, socket.socket]:
    """A connection of the client, and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = parse_target(f"http://127.0.0.1:{listener.getsockname()[1]}/", name="x")
        route = Route(target, name="x", limit=0, allow_private=False)
        deadline = Deadline(100, Timing(), name="x")
        ours = dial(route, ssl.create_default_context, limits=limits, deadline=deadline, name="x")
        return ours, listener.accept()[0]


# --- a server that drips ---------------------------------------------------------------------------


def test_a_peer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfchain.storage.http_connection.SHARING", replace(SHARING, window_seconds=0.3))
    reading, theirs = connected(PEER_LIMITS)
    over = threading.Event()

    def drip() -> None:
        theirs.recv(1 << 16)
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 68719476736\r\n\r\n")
        try:
            while not over.wait(0.02):
                theirs.sendall(b"x")
        except OSError:
            pass

    thread = threading.Thread(target=drip)
    thread.start()
    deadline = Deadline(1_048_576, Timing(), name="x")
    try:
        answer = reading.ask("GET", b"/", [], deadline, "x")
        with pytest.raises(TransientError, match=r"only [0-9]+ bytes came in 0 s of waiting, at least"):
            answer.read(1 << 40)
    finally:
        over.set()
        reading.close()
        thread.join()
        theirs.close()


def test_a_source_that_drips_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfchain.storage.http_connection.SHARING", replace(SHARING, window_seconds=0.03))
    reading, theirs = connected(FetchLimits())
    theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    answer = reading.ask("GET", b"/", [], Deadline(100, Timing(), name="x"), "x")
    for _ in range(5):
        threading.Timer(0.05, theirs.sendall, [b"x"]).start()
        assert answer.read_into(memoryview(bytearray(5))) == 1
    reading.close()
    theirs.close()


def test_time_in_which_we_do_not_wait_is_not_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfchain.storage.http_connection.SHARING", replace(SHARING, window_seconds=0.3))
    reading, theirs = connected(PEER_LIMITS)
    theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n" + b"x" * 100)
    answer = reading.ask("GET", b"/", [], Deadline(100, Timing(), name="x"), "x")
    for _ in range(4):
        threading.Event().wait(0.15)  # as long as it takes to write what came
        assert answer.read_into(memoryview(bytearray(100))) == 100
        theirs.sendall(b"x" * 100)
    reading.close()
    theirs.close()
