"""A node that speaks the smart protocol as a test tells it to, on loopback: files by GET, words by WebSocket."""

from __future__ import annotations

import http
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

Answer = Callable[[Any], Any]
"""From the document of a message to that of its answer: a text or bytes are sent as they are, a list one by
one; None is silence, and a pair of a code and a reason the end."""


@dataclass
class Node:
    """What it has, what it says, and what it was asked."""

    files: Mapping[str, bytes]
    """By path, from the slash on."""
    answers: list[Answer]
    """One for each message of a connection; then it waits for the end."""
    status: int | None = None
    """In place of a connection."""
    message: str = "no"
    """What is said with it."""
    date: str | None = None
    """What it says of the time, with each connection."""
    forbidden: dict[str, str] = field(default_factory=dict)
    """Paths that are refused with 403, and the `Date` that is said with that."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    url: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def request(self, connection: ServerConnection, request: Request) -> Response | None:
        fields = {name.lower(): value for name, value in request.headers.raw_items()}
        self.asked.append((request.path, fields))
        if fields.get("upgrade") == "websocket" and self.status is None:
            return None
        if (date := self.forbidden.get(request.path)) is not None:
            return Response(403, "Forbidden", Headers({"Content-Length": "0", "Date": date}), b"")
        refused = self.status if "upgrade" in fields else None
        content = None if refused else self.files.get(request.path)
        status = http.HTTPStatus(refused or (404 if content is None else 200))
        body = json.dumps({"message": self.message}).encode() if content is None else content
        return Response(status.value, status.phrase, Headers({"Content-Length": str(len(body))}), body)

    def dated(self, connection: ServerConnection, request: Request, response: Response) -> None:
        """The response to a request, with the time that is to be said."""
        if self.date is not None and response.status_code == 101:
            del response.headers["Date"]
            response.headers["Date"] = self.date

    def talk(self, connection: ServerConnection) -> None:
        try:
            for answer in self.answers:
                heard = json.loads(connection.recv(20))
                self.said.append(heard)
                reply = answer(heard)
                if isinstance(reply, tuple):
                    connection.close(*reply)
                    return
                for each in reply if isinstance(reply, list) else [reply]:
                    if each is not None:
                        connection.send(each if isinstance(each, (bytes, str)) else json.dumps(each))
            connection.recv(20)
        except ConnectionClosed as closed:
            if closed.rcvd is not None:
                self.ended.append((closed.rcvd.code, closed.rcvd.reason))
        finally:
            self.done.set()


@contextmanager
def uploads(
    files: dict[str, bytes], asked: list[tuple[str, dict[str, str]]], refused: dict[str, str]
) -> Iterator[str]:
    """The URL of a server that takes what is PUT there, but for what is `refused` once, with these dates."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            fields = {name.lower(): value for name, value in self.headers.items()}
            asked.append((self.path, fields))
            content = self.rfile.read(int(fields["content-length"]))
            date = refused.pop(self.path, None)
            self.send_response_only(201 if date is None else 403)
            if date is None:
                files[self.path] = content
            else:
                self.send_header("Date", date)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def node(
    files: Mapping[str, bytes],
    *answers: Answer,
    status: int | None = None,
    message: str = "no",
    date: str | None = None,
) -> Iterator[Node]:
    """A node while it is needed."""
    made = Node(files, list(answers), status, message, date)
    with serve(
        made.talk, "127.0.0.1", 0, process_request=made.request, process_response=made.dated, compression=None
    ) as server:
        made.url = f"http://127.0.0.1:{_port(server)}/"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def _port(server: Server) -> int:
    port: int = server.socket.getsockname()[1]
    return port
