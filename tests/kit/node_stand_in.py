"""A node that speaks the smart protocol as a test tells it to, on loopback: files by GET, words by WebSocket."""

from __future__ import annotations

import http
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from tests.kit.loopback import Handler, WebServer
from tests.kit.scenario import Chain

Answer = Callable[[Any], Any]
"""From the document of a message to that of its answer: a text or bytes are sent as they are, a list one by
one; None is silence, and a pair of a code and a reason the end. `http://NODE/` is the node itself."""


def files_of(chain: Chain, at: str = "/cities/") -> dict[str, bytes]:
    """What a node has that has this chain, by path."""
    return {f"{at}{key}": data for key, data in chain.objects.items()} | {
        f"{at}refs/head": str(chain.head).encode()
    }


def planned(chain: Chain) -> Any:
    """The answer to the first message of a pull."""
    counts = dict.fromkeys(("num_objects", "num_records", "bytes_in_raw_blocks", "bytes_in_raw_objects"), 0)
    return {"Ok": {"transfer_plan": {"num_blocks": len(chain.hashes)} | counts}}


@dataclass
class Node:
    """What it has, what it says, and what it was asked."""

    files: Mapping[str, bytes]
    """By path, from the slash on."""
    answers: list[Answer]
    """One for each message of a connection; then it waits for the end."""
    status: int | None = None
    """In place of a connection."""
    busy: list[dict[str, str]] = field(default_factory=list)
    """So often it takes no connection, with status 503 and these header fields."""
    message: str = "no"
    """What is said with it."""
    forbidden: str = "/forbidden/"
    """What is below it is answered with 403."""
    date: str | None = None
    """What it says of the time when it takes a connection; the time here, if nothing else."""
    storage_date: str | None = None
    """What it says of the time with a 403."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    url: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def request(self, connection: ServerConnection, request: Request) -> Response | None:
        fields = {name.lower(): value for name, value in request.headers.raw_items()}
        self.asked.append((request.path, fields))
        away = self.busy.pop(0) if self.busy and "upgrade" in fields else None
        if fields.get("upgrade") == "websocket" and self.status is None and away is None:
            return None
        refused = (self.status if away is None else 503) if "upgrade" in fields else None
        if request.path.startswith(self.forbidden):
            refused = 403
        content = None if refused else self.files.get(request.path.partition("?")[0])
        status = http.HTTPStatus(refused or (404 if content is None else 200))
        body = json.dumps({"message": self.message}).encode() if content is None else content
        headers = Headers({"Content-Length": str(len(body)), **(away or {})})
        if refused == 403 and self.storage_date is not None:
            headers["Date"] = self.storage_date
        return Response(status.value, status.phrase, headers, body)

    def dated(self, connection: ServerConnection, request: Request, response: Response) -> None:
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
                        text = each if isinstance(each, (bytes, str)) else json.dumps(each)
                        connection.send(text.replace("http://NODE/", self.url) if text is not each else text)
            connection.recv(20)
        except ConnectionClosed as closed:
            if closed.rcvd is not None:
                self.ended.append((closed.rcvd.code, closed.rcvd.reason))
        finally:
            self.done.set()


@contextmanager
def uploads(
    files: dict[str, bytes], asked: list[tuple[str, dict[str, str]]], date: str | None = None
) -> Iterator[str]:
    """The URL of a server that takes what is PUT there; it says that date, or what time it is."""

    class Uploads(Handler):
        def do_PUT(self) -> None:
            asked.append((self.path, self.lowered()))
            content, refused = self.content(), self.path.startswith("/forbidden/")
            if not refused:
                files[self.path] = content
            self.reply(403 if refused else 201)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return date or super().date_time_string(timestamp)

    with WebServer(Uploads) as server:
        yield f"{server.origin}/"


@contextmanager
def node(files: Mapping[str, bytes], *answers: Answer, **options: Any) -> Iterator[Node]:
    """A node while it is needed."""
    made = Node(files, list(answers), **options)
    with serve(
        made.talk, "127.0.0.1", 0, process_request=made.request, process_response=made.dated, compression=None
    ) as server:
        made.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}/"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
