"""Several processes of one node: readers beside the one that writes, asks, sends and schedules.

All of them take connections of one socket. A reader answers what only reads files and pages; everything else
goes on to the first process, over a socket of this machine. So pushes, queues and sessions are in one place,
and what they need no locks for today, they need none for then. A reader that dies is started again, and ends
with its parent. Source: RFC-061.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from odfchain.errors import UsageError
from odfchain.limits import HOST, PORT, SMART
from odfchain.node.operations import SHARED_FIGURES, kind_of
from odfchain.transfer.node_pulls import EXPECT, Message, Receive, Send, refuse_upgrade
from odfchain.transfer.server import RepositoryServer, listen
from odfchain.transfer.smart_messages import VERSION
from odfchain.workspace.options import NodeOptions, ServeOptions

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace

_READ = frozenset({"file", "pull", "page", "tail", "metadata"})
"""What a reader answers by itself, by `kind_of`."""
_AGAIN_SECONDS = 1.0
_PIECE = 64 << 10
_PROGRAM = "odfchain.node.application"


# --- the first process ---------------------------------------------------------------------------------


@contextlib.contextmanager
def reading_processes(workspace: Workspace, options: NodeOptions) -> Iterator[Sequence[socket.socket]]:
    """The sockets of the first process while readers are there; none where no readers are wanted."""
    if (count := (options.workers or 1) - 1) == 0:
        yield ()
        return
    if options.secret is not None:
        raise UsageError("the pages of one user are served by one process", hint="leave --workers out")
    shared = listen(options.host or HOST, PORT if options.port is None else options.port)
    inner = listen(HOST, 0)
    said = {each.name: getattr(options, each.name) for each in fields(NodeOptions)}
    said = {name: value for name, value in said.items() if not callable(value)}
    said |= {"write": None, "pull": None, "flight": None, "workers": None}
    begin = {
        "workspace": str(workspace.path.parent), "options": said,
        "socket": shared.fileno(), "first": inner.getsockname()[1],
    }  # fmt: skip
    ending = threading.Event()
    with tempfile.TemporaryDirectory(prefix="odfchain-figures-") as figures:
        os.environ[SHARED_FIGURES] = figures  # the library asks for it when it is loaded
        problem = options.on_problem or (lambda _: None)
        readers = [_Reader(json.dumps(begin), shared.fileno(), problem, ending) for _ in range(count)]
        try:
            yield (shared, inner)
        finally:
            ending.set()
            for reader in readers:
                reader.close()
            del os.environ[SHARED_FIGURES]


class _Reader:
    """A process that reads, and the thread that starts it again."""

    def __init__(self, begin: str, fd: int, problem: Callable[[str], None], ending: threading.Event) -> None:
        self._command = [sys.executable, "-P", "-c", f"from {_PROGRAM} import read; read()"]
        self._begin, self._fd, self._problem, self._ending = begin, fd, problem, ending
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, name="odfchain-reader", daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, pass_fds=[self._fd], start_new_session=True
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(self._begin.encode() + b"\n")
        process.stdin.flush()  # it stays open: its end is that of this process
        return process

    def _keep(self) -> None:
        while (code := self._process.wait()) is not None and not self._ending.wait(_AGAIN_SECONDS):
            self._problem(f"a process that reads ended (exit code {code}); another one is started")
            self._process = self._start()

    def close(self) -> None:
        """End it, and wait for its responses to end."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._thread.join()


# --- a reader ------------------------------------------------------------------------------------------


def serve_reader(node_of: Any) -> None:
    """Serve what only reads until the first process is gone; standard input says how."""
    begin = json.loads(sys.stdin.buffer.readline())

    def problem(text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - as the command does

    options = NodeOptions(**begin["options"], on_problem=problem)
    served = {each.name: getattr(options, each.name) for each in fields(ServeOptions)}
    listener = socket.socket(fileno=begin["socket"])
    listener.setblocking(False)
    node = node_of(begin["workspace"], options)
    with RepositoryServer(
        node.parts.files, Reading(node, begin["first"]), sockets=[listener], **served
    ) as server:
        node.traffic.sockets = lambda: server.connections
        sys.stdin.buffer.read()


class Reading:
    """The application of a reader: a node for what only reads, a way to the first process for the rest."""

    def __init__(self, node: Any, port: int) -> None:
        self._node, self._port = node, port

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request here, or have it answered there."""
        if _reads(scope):
            await self._node(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._converse(scope, receive, send)
        else:
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Message, receive: Receive, send: Send) -> None:
        import h11

        connection = h11.Connection(h11.CLIENT)
        source, sink = await asyncio.open_connection(HOST, self._port)

        async def pass_on() -> None:
            while (message := await receive())["type"] == "http.request":
                if message.get("body"):
                    sink.write(connection.send(h11.Data(data=message["body"])) or b"")
                    await sink.drain()
                if not message.get("more_body") and connection.our_state is h11.SEND_BODY:
                    sink.write(connection.send(h11.EndOfMessage()) or b"")
            sink.close()  # the client has left

        headers = [(n, v) for n, v in scope["headers"] if n not in (b"connection", b"expect")]
        request = h11.Request(
            method=scope["method"], target=_target(scope), headers=[*headers, (b"connection", b"close")]
        )
        sink.write(connection.send(request) or b"")
        passing = asyncio.create_task(pass_on())
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                if event is h11.NEED_DATA:
                    connection.receive_data(await source.read(_PIECE))
                elif isinstance(event, h11.Response):
                    kept = [(n, v) for n, v in event.headers if n not in (b"connection", b"date")]
                    await send({"type": "http.response.start", "status": event.status_code, "headers": kept})
                elif isinstance(event, h11.Data):
                    await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            passing.cancel()
            sink.close()

    async def _converse(self, scope: Message, receive: Receive, send: Send) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidStatus

        await receive()  # that there is a client
        names = (b"authorization", VERSION[0].encode(), b"x-forwarded")
        headers = [(n.decode(), v.decode("latin-1")) for n, v in scope["headers"] if n.startswith(names)]
        host = next((v.decode("latin-1") for n, v in scope["headers"] if n == b"host"), HOST)
        try:
            first = await connect(
                f"ws://{host}{_target(scope).decode('latin-1')}", host=HOST, port=self._port, proxy=None,
                additional_headers=headers, compression=None, ping_interval=None,
                max_size=SMART.message_bytes,
            )  # fmt: skip
        except InvalidStatus as error:
            body = error.response.body or b"{}"
            with contextlib.suppress(ValueError):
                body = json.loads(body).get("message", "")
            await refuse_upgrade(send, error.response.status_code, str(body))
            return
        scope.get("extensions", {}).get(EXPECT, lambda _: None)(SMART.message_bytes)
        await send({"type": "websocket.accept"})

        async def pass_on() -> None:
            while (message := await receive())["type"] == "websocket.receive":
                await first.send(message.get("text") or message.get("bytes") or "")
            await first.close()

        passing = asyncio.create_task(pass_on())
        code, reason = 1000, ""
        try:
            async for message in first:
                await send(
                    {"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message}
                )
            code, reason = first.close_code or 1000, first.close_reason or ""
        except ConnectionClosed as error:
            code, reason = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1011, "")
        finally:
            passing.cancel()
            await first.close()
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "websocket.close", "code": code, "reason": reason})


def _target(scope: Message) -> bytes:
    query: bytes = scope.get("query_string") or b""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return path + (b"?" + query if query else b"")


def _reads(scope: Message) -> bool:
    path = scope["path"]
    kind = kind_of(path, of_files=False)
    if scope["type"] == "websocket":
        return kind == "pull"
    # what is of the whole node, the first one knows: SQL, and what is offered
    if scope["method"] not in ("GET", "HEAD") or path.startswith("/-/") or "/-/compare" in path:
        return False
    return kind in _READ and b"view=state" not in (scope.get("query_string") or b"")
