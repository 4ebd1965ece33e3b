"""A relay between a client and a server that notes what is said, and at a chosen step cuts all connections.

A step is a request's head, its body, a response, or a message of a WebSocket, in either direction. What the
step is about has left its sender and does not arrive.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

_PING, _PONG = 9, 10


class _EndError(Exception):
    """No more comes."""


class _Stream:
    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self._held = b""

    def take(self, count: int) -> bytes:
        while len(self._held) < count:
            self._more()
        found, self._held = self._held[:count], self._held[count:]
        return found

    def head(self) -> bytes:
        while b"\r\n\r\n" not in self._held:
            self._more()
        return self.take(self._held.index(b"\r\n\r\n") + 4)

    def _more(self) -> None:
        data = self.source.recv(1 << 16)
        if not data:
            raise _EndError
        self._held += data

    def frame(self) -> tuple[int, bytes]:
        """The opcode of a frame, and its bytes."""
        found = self.take(2)
        size = found[1] & 0x7F
        if size > 125:
            found += (more := self.take(2 if size == 126 else 8))
            (size,) = struct.unpack(">H" if size == 126 else ">Q", more)
        size += 4 if found[1] & 0x80 else 0
        return found[0] & 0xF, found + self.take(size)


class Relay:
    """Listens on loopback for as long as it is entered."""

    def __init__(self, port: int) -> None:
        self.port = port
        """Of the server."""
        self.steps: list[str] = []
        """What was said since `arm`: `>` by the client, `<` by the server."""
        self._at: int | None = None
        self._then: Callable[[], None] | None = None
        self.fired = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def arm(self, at: int | None, then: Callable[[], None] | None = None) -> None:
        """At this step from now on, do something, and cut all connections; new ones are taken."""
        with self._lock:
            self.steps, self._at, self._then = [], at, then
            self.fired.clear()

    def disarm(self) -> None:
        """Nothing is cut any more; `fired` stays."""
        with self._lock:
            self._at = None

    def _step(self, label: str) -> None:
        with self._lock:
            self.steps.append(label)
            if len(self.steps) - 1 != self._at:
                return
            self._at, then = None, self._then
            gone, self._sockets = self._sockets, set()
            self.fired.set()
        if then is not None:
            then()
        _end(gone)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        _end(self._sockets)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.port), timeout=20)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for each, words in (
                (_Stream(client, server), self._requests),
                (_Stream(server, client), self._answers),
            ):
                threading.Thread(target=self._carry, args=(each, words), daemon=True).start()

    def _carry(self, stream: _Stream, words: Callable[[_Stream], None]) -> None:
        try:
            words(stream)
        except (_EndError, OSError):
            pass
        finally:
            with contextlib.suppress(OSError):
                stream.target.shutdown(socket.SHUT_RDWR)
            stream.source.close()

    def _requests(self, stream: _Stream) -> None:
        while True:
            head = stream.head()
            line = head.split(b" HTTP/1.1")[0].decode()
            self._step(f"> {line}")
            stream.target.sendall(head)
            if body := stream.take(_length(head)):
                self._step(f"> body of {line}")
                stream.target.sendall(body)
            if re.search(rb"(?i)\r\nupgrade: websocket", head):
                self._messages(stream, ">")

    def _answers(self, stream: _Stream) -> None:
        while True:
            head = stream.head()
            status = head.split(b" ", 2)[1].decode()
            body = stream.take(_length(head)) if status not in ("101", "304") else b""
            self._step(f"< {status}")
            stream.target.sendall(head + body)
            if status == "101":
                self._messages(stream, "<")

    def _messages(self, stream: _Stream, by: str) -> None:
        while True:
            opcode, data = stream.frame()
            if opcode not in (_PING, _PONG):
                self._step(f"{by} {'close' if opcode == 8 else 'message'}")
            stream.target.sendall(data)


def _end(sockets: set[socket.socket]) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0
