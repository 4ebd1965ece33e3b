"""A real HTTP server on loopback that answers by a script and remembers what it was asked; a clock to turn."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import FetchError
from odfchain.ingest.fetching import FetchContext
from odfchain.limits import FetchLimits
from odfchain.odf.events import SourceState
from odfchain.odf.times import Timestamp
from odfchain.storage.http_rules import Timing
from tests.kit.loopback import RawServer

CSV37 = b"city,population\nA,1000\nB,2000\nC,3000\n"
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"
MODIFIED_TIME = Timestamp.parse("2015-10-21T07:28:00Z")
SYSTEM_TIME = Timestamp.parse("2024-01-01T00:00:00Z")


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    """By lower-case names."""
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    """A `Content-Length` that is not the body's."""
    cut: int | None = None
    """Close after so many bytes of the body."""
    reset: bool = False
    """Break the connection instead of closing it."""
    stall: bool = False
    """Send nothing more, and do not close either."""
    pieces: Iterable[bytes] | None = None
    """A body of unknown length, sent piece by piece."""
    raw: Iterable[bytes] | None = None
    """Everything, instead of a well-formed answer."""


Handler = Callable[[Request], Reply]


class Server(RawServer):
    """Answers each request with the next reply, or with what a function says; one request a connection."""

    def __init__(
        self, *script: Reply | Handler, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(host)
        self.requests: list[Request] = []
        self._script = list(script)
        self._tls = tls

    def url(self, path: str = "/data.csv") -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}{path}"

    def serve(self, connection: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            if self._tls is not None:
                connection = stack.enter_context(self._tls.wrap_socket(connection, server_side=True))
            request = _read(connection)
            if request is None:
                return
            self.requests.append(request)
            reply = self._reply(request)
            self._send(connection, request, reply)
            if reply.stall:
                self.over.wait()
            if reply.reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.shutdown(socket.SHUT_WR)

    def _reply(self, request: Request) -> Reply:
        if not self._script:
            return Reply(status=418, body=b"the script is over")
        entry = self._script[0]
        if isinstance(entry, Reply):
            return self._script.pop(0)  # type: ignore[return-value]
        return entry(request)

    def _send(self, connection: socket.socket, request: Request, reply: Reply) -> None:
        if reply.raw is not None:
            for piece in reply.raw:
                connection.sendall(piece)
            return
        headers = {"Connection": "close"} | reply.headers
        if reply.pieces is None and "Transfer-Encoding" not in headers and reply.status != 304:
            headers["Content-Length"] = str(len(reply.body) if reply.length is None else reply.length)
        head = f"HTTP/1.1 {reply.status} {_phrase(reply.status)}\r\n"
        head += "".join(f"{key}: {value}\r\n" for key, value in headers.items())
        connection.sendall(head.encode("latin-1") + b"\r\n")
        if request.method == "HEAD":
            return
        for piece in reply.pieces or [reply.body if reply.cut is None else reply.body[: reply.cut]]:
            connection.sendall(piece)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Odd"


def _read(connection: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)) and (part := connection.recv(65_536)):
        body += part
    return Request(method, target, headers, body)


@contextmanager
def closed_port(port: int = 0) -> Iterator[int]:
    """A port that refuses connections, and that no other server gets as long as this lasts."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may linger
        held.bind(("127.0.0.1", port))
        yield held.getsockname()[1]


class Clock:
    """Time that passes only when it is told to, or waited for."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.waits: list[float] = []
        self.timing = Timing(clock=lambda: self.now, wait=self._wait)

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Meter:
    """A progress that can be asked what it was told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.steps = 0
        self.notes: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append((name, total))
        self.steps = 0

    def advance(self, steps: int = 1) -> None:
        self.steps += steps

    def note(self, text: str) -> None:
        self.notes.append(text)


def context(folder: Path, previous: SourceState | None = None, **changes: Any) -> FetchContext:
    """A context with limits that suit tests; limits are given by their names."""
    limits = {key: changes.pop(key) for key in list(changes) if key in FetchLimits.__dataclass_fields__}
    return FetchContext(
        folder=folder,
        previous=previous,
        system_time=SYSTEM_TIME,
        limits=FetchLimits(**({"first_wait": 0.001} | limits)),
        **changes,
    )


def fetched(
    fetch: Callable[[str, FetchContext], Any],
    folder: Path,
    url: str,
    previous: SourceState | None = None,
    *,
    clock: Clock | None = None,
    secrets: Iterable[str] = (),
    **changes: Any,
) -> Any:
    """What a fetcher brings, which waits for nothing in earnest and calls the URL "the source"."""
    timing = (clock or Clock()).timing
    given = context(folder, previous, name="the source", secrets=frozenset(secrets), timing=timing, **changes)
    return fetch(url, given)


def refusal(
    get: Callable[..., Any], folder: Path, url: str, error: type[FetchError] = FetchError, **changes: Any
) -> str:
    """Fetches what must fail; returns the one line it says after the source, and nothing stays of it."""
    before = set(folder.iterdir())
    with pytest.raises(error) as caught:
        get(folder, url, **changes)
    assert set(folder.iterdir()) == before
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 400
    assert "s3cret" not in said
    assert said.startswith(("the source: ", "the source (redirected to http"))
    return said.removeprefix("the source: ")
