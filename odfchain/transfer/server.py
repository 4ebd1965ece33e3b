"""Running the application that publishes a workspace: on uvicorn, in a thread of its own.

The caller keeps the main thread, where signals arrive, and can stop it from anywhere. Unless writing
is allowed, nothing in a workspace can be changed over this server; then tokens allow to change datasets of
others. There is no encryption, and unless reading is restricted readers need no token, so by default it
listens on this machine only; a public one belongs behind a web server that does both. Source: RFC-021,
RFC-050.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.server import ServerProtocol

from odfchain.errors import TransferError, UsageError
from odfchain.limits import HOST, SHARING, SMART
from odfchain.storage.locations import HOST_AND_PORT, host_of, is_this_machine
from odfchain.text import one_line
from odfchain.transfer.node_pulls import EXPECT, Message, Receive, Send, refuse_upgrade
from odfchain.transfer.server_app import ZERO_COPY, Repository
from odfchain.transfer.smart_messages import (
    FAILED,
    TOO_MANY_BLOCKS,
    FewFrames,
    Internal,
    Phase,
    Refusal,
    text_of,
)
from odfchain.workspace.options import ServeOptions
from odfchain.workspace.workspace_files import WorkspaceFiles

Application = Callable[[Message, Receive, Send], Awaitable[None]]

_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - what is refused without a name

GRACE_SECONDS = 5
"""How long responses may take to end when the server stops [s]; after that they are cut."""

_BACKLOG = 512
_KEEP_ALIVE_SECONDS = 15

Report = Callable[[str], None]


class RepositoryServer:
    """A server that publishes a workspace; listens when it is made, as a context manager ends with it.

    What is `asked` are the fields of `ServeOptions`; the port is any that is free where none is given. An
    `application` takes the place of the files alone, and `sockets` that listen that of the address.
    """

    def __init__(
        self,
        workspace: WorkspaceFiles,
        application: Application | None = None,
        *,
        sockets: Sequence[socket.socket] = (),
        **asked: Any,
    ) -> None:
        options = ServeOptions(**asked)
        host, takes_tokens = options.host or HOST, options.write or options.restrict_reading
        if takes_tokens and not options.behind_proxy and not is_this_machine(host):
            raise UsageError(
                f"{one_line(host)}: anyone on the network path could read the tokens of clients, "
                "for this server does not encrypt",
                hint="listen on 127.0.0.1, or put a web server with TLS in front and say --behind-proxy",
            )
        import uvicorn  # noqa: PLC0415 - slow to load

        named = (*(options.allow_hosts or ()), *workspace.config.share.hosts)
        if application is not None and host in _EVERY_ADDRESS and not named:
            raise UsageError(
                f"{host} is every address of this machine, and a node answers by its names alone",
                hint="give the name that others use: --allow-host node.example",
            )
        hosts = admitted_hosts(host, named)
        self._problem = options.on_problem or (lambda _: None)
        self._sockets = list(sockets) or [listen(host, options.port or 0)]
        # Where the repository is; ends in a slash.
        self.url = _url(self._sockets[0])
        published = _for_hosts(application or Repository(workspace, options), hosts)
        logged = _logged(published, options.on_request, self._problem)
        self._server = uvicorn.Server(
            uvicorn.Config(
                logged,
                http=_Connection,
                ws=cast("type[asyncio.Protocol]", partial(_Conversation, memory=Memory())),
                ws_per_message_deflate=False,
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                workers=1,
                backlog=_BACKLOG,
                log_config=None,
                log_level="critical",  # what matters goes to `on_problem`
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=SHARING.connections,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="odfchain-serve", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`
            self._failure = error
        finally:
            for each in self._sockets:
                each.close()

    async def _main(self) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self._problem(one_line(str(context.get("exception") or context["message"])))
        )
        await self._server.serve(sockets=self._sockets)

    @property
    def connections(self) -> int:
        """The connections that are open [count]."""
        return len(self._server.server_state.connections)

    def run(self, listening: Report | None = None) -> None:
        """Serve until SIGTERM or Ctrl-C, then let responses end; a second signal ends it at once.

        `listening` gets the URL.
        """
        with self, _signals(self.request_stop):
            if listening is not None:
                listening(self.url)
            self.wait()

    def request_stop(self) -> None:
        """Ask it to end, gracefully at first and at once when asked again; returns without waiting."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._server.should_exit = True

    @property
    def stopping(self) -> bool:
        """True once it was asked to end."""
        return self._server.should_exit

    def wait(self) -> None:
        """Return when the server has ended."""
        while self._thread.is_alive():  # a signal that another thread took is heard between two waits
            self._thread.join(0.5)
        if self._failure is not None:
            raise TransferError(f"{self.url}: the server failed: {one_line(str(self._failure))}")

    def stop(self) -> None:
        """End it and wait: no connections any more, responses have `GRACE_SECONDS`."""
        self._server.should_exit = True
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    # only the main thread can have that; `stop` sets two flags and takes no lock, which may be held now
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = [(number, signal.signal(number, lambda *_: stop())) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free."""
    where = f"cannot listen on {one_line(host)!r}, port {port}"
    if not 0 <= port <= 65_535:
        raise TransferError(f"{where}: ports go from 0 to 65535")
    made: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)  # clients may connect from here on, and wait until they are answered
    except (OSError, UnicodeError) as error:
        if made is not None:
            made.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TransferError(
            f"{where}: {one_line(reason)}", hint="choose another --host or --port; port 0 is any free one"
        ) from None
    made.setblocking(False)
    return made


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _logged(application: Application, on_request: Report | None, problem: Report) -> Any:
    async def logged(scope: Message, receive: Receive, send: Send) -> None:
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await application(scope, receive, send if on_request is None else noting)
        except Exception as error:
            problem(f"{type(error).__name__}: {one_line(str(error))}")
            raise
        finally:
            if on_request is not None:
                client = (scope.get("client") or ("?",))[0]
                on_request(
                    f"{client} {one_line(scope.get('method', 'GET'))} {one_line(scope['path'])} "
                    f"{status or ('ended' if scope['type'] == 'websocket' else 'failed')}"
                )

    return logged


# Names under which a server answers: those of its address, of this machine, and configured ones.
# Against DNS rebinding: a foreign page can resolve its own name to this machine, but the browser still
# sends that name. Source: RFC 9110, 7.2 and 15.5.20; RFC-021.

_MISDIRECTED = "this server has another name: --allow-host, where it is started, gives it one more"


def admitted_hosts(listening: str, named: Iterable[str]) -> frozenset[str]:
    """All spellings of the names of a server that listens there, and of these names."""
    found = {host_of(listening)}
    for name in named:
        bare = name.removeprefix("[").removesuffix("]")
        if not HOST_AND_PORT.fullmatch(f"[{bare}]" if ":" in bare else host_of(bare)):
            raise UsageError(
                f"{one_line(name)!r} is not the name of a host", hint="write it like node.example, no port"
            )
        found.add(host_of(bare))
    return frozenset(found)


def is_admitted(scope: Message, hosts: frozenset[str]) -> bool:
    """True if a request names this server, at any port; HTTP/1.0 may name none."""
    asked = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if not asked:
        return bool(scope["http_version"] == "1.0")
    match = HOST_AND_PORT.fullmatch(asked[0])
    if match is None or len(asked) > 1:
        return False
    host = host_of(match[1].strip("[]"))
    here = (scope.get("server") or ("",))[0]
    return host in hosts or host == host_of(here) or is_this_machine(host)


def _for_hosts(application: Application, hosts: frozenset[str]) -> Application:
    """The application, for requests that name one of these hosts; all others are answered with 421."""

    async def judged(scope: Message, receive: Receive, send: Send) -> None:
        if is_admitted(scope, hosts):
            await application(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_upgrade(send, 421, _MISDIRECTED)
        else:
            body = f"{_MISDIRECTED}\n".encode()
            headers: Any = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 421, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return judged


# One client's connection: uvicorn's, with `sendfile` and limits on slow or endless headers.
# Uvicorn lacks the ASGI extension for files, and copying through Python halves the throughput:
# `http.response.zerocopysend` is added on the event loop's `sendfile`. Internals of uvicorn used:
# `transport`, `pipeline`, `on_response_complete`, and `expected_content_length` of a response.

PIECE_BYTES = 4 << 20
"""Bytes that a client must take in `SHARING.piece_seconds`: 14 KB/s at least, or it is dropped."""

# How much of responses is put together; copying more costs more than another write [bytes].
_HELD_BYTES = 64 << 10


# Piece that the parser gets at a time [bytes]: at most two hundred requests.
_FED_BYTES = 4 << 10

# Size of a request without its target and its fields [bytes].
_REQUEST_LINE_BYTES = len(b"GET  HTTP/1.1\r\n\r\n")

_LENGTH_DIGITS = 18
# How long the rest of a body that was refused is read [s].
_DRAIN_SECONDS = 5
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODY = (b"content-length", b"transfer-encoding")
_WITH_BODY = ("PUT", "POST")
_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    found = next((value for name, value in headers if name == b"content-length"), b"")
    return int(found) if found.isdigit() and len(found) <= _LENGTH_DIGITS else 0


class _Output:
    """A transport for uvicorn; output is held back until a response is complete.

    Each write is a packet, and wakes the client: head and body go together, and so do responses to requests
    that were sent without waiting (RFC 9112, 9.3.2).
    """

    def __init__(self, transport: asyncio.Transport, is_unread: Callable[[], bool]) -> None:
        self.below = transport
        self._is_unread = is_unread
        # True while the rest of a body is thrown away.
        self.draining = False
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        # a client awaits an interim answer before it sends more
        if self._size + len(data) > _HELD_BYTES or data == _CONTINUE:
            self.flush()
            self.below.write(data)
        else:
            self._held.append(data)
            self._size += len(data)

    def flush(self) -> None:
        if self._held:
            self.below.write(b"".join(self._held))
            self._held.clear()
            self._size = 0

    def close(self) -> None:
        self.flush()
        if self.draining or self.below.is_closing():
            return
        if self._is_unread():
            # closed at once, the connection would be reset, and the client might never see the answer
            self.draining = True
            self.below.write_eof()
            self.below.resume_reading()
            asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self.below.abort)
            return
        self.below.close()
        # a client that does not take it is cut off
        if self.below.get_write_buffer_size():
            asyncio.get_running_loop().call_later(SHARING.stall_seconds, self.below.abort)

    def abort(self) -> None:
        self.below.abort()

    def is_closing(self) -> bool:
        return self.draining or self.below.is_closing()


class _Stalling(asyncio.Protocol):
    """A connection that is cut when its client takes less than it asks for, for so long [s]."""

    transport: Any
    _patience: float
    _stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._not_stalled()
        loop = asyncio.get_running_loop()
        self._stall_timer = loop.call_later(self._patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._not_stalled()

    def _not_stalled(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class _Connection(_Stalling, HttpToolsProtocol):
    """A connection that offers `http.response.zerocopysend`, and waits for no client for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app = self.app
        self.app = self._with_files
        self._upgraded = False
        self._in_headers = False
        # Of the headers that are complete.
        self._header_bytes = 0
        # Since the request began.
        self._raw_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread = bytearray()
        self._feeding = False
        # Of a file that is PUT [bytes]: there are no requests among them.
        self._body_left = 0
        # True if the client keeps the connection open after the present request.
        self._may_persist = False
        self._patience = SHARING.stall_seconds

    # --- headers -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        with contextlib.suppress(OSError):
            # asyncio leaves it out for a socket that was made without naming TCP; what is sent in two writes
            # would wait for the client to acknowledge the first
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._output = _Output(transport, lambda: self.cycle is not None and self.cycle.more_body)
        self.transport = self._output  # all that uvicorn uses of one
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._output.draining:
            return
        # requests are taken up a few at a time: 20 bytes of one become some thousand in memory
        if len(data) <= self._body_left and not self._unread and not self._feeding:
            self._take(data)
            return
        self._unread += data
        self._feed()

    def _feed(self) -> None:
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._unread and not self.transport.is_closing():
                if len(self.pipeline) >= SHARING.requests_ahead:
                    self.flow.pause_reading()
                    return
                fed = max(_FED_BYTES, self._body_left)
                piece = bytes(self._unread[:fed])
                del self._unread[:fed]
                self._take(piece)
        finally:
            self._feeding = False

    def _take(self, piece: bytes) -> None:
        self._raw_bytes += len(piece)
        super().data_received(piece)
        if self._upgraded or self.transport.is_closing():
            return  # a WebSocket awaits no request: its owner has timeouts of its own
        if self._in_headers and self._raw_bytes > SHARING.request_head_bytes + _FED_BYTES:
            self._refuse(_TOO_LARGE)
        elif self._header_timer is None and self._awaits_request:  # most come whole and need none
            self._expect_headers()

    @property
    def _awaits_request(self) -> bool:
        return self._in_headers or self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes, self._raw_bytes = _REQUEST_LINE_BYTES, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # some need next to nothing on the wire, and more in memory
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        self._headers_done()
        if self.transport.is_closing():
            return
        if self._header_bytes > SHARING.request_head_bytes:
            self._refuse(_TOO_LARGE)
            return
        # WebSockets have a number of their own; the handles of both fit into the usual 1,024
        self.limit_concurrency = SHARING.connections + self._conversations() * 3 // 4
        super().on_headers_complete()
        if any(name in _BODY and value != b"0" for name, value in self.headers):
            # an unwanted body is not waited for; a file that has come ends nothing
            self._may_persist = self.cycle.keep_alive and self.scope["method"] in _WITH_BODY
            self.cycle.keep_alive = False
            if self.scope["method"] in _WITH_BODY:
                self._body_left = _length(self.headers)

    def on_body(self, body: bytes) -> None:
        # of a file that is PUT; what the application does not take is not read on
        self._body_left = max(0, self._body_left - len(body))
        if self.cycle is not None and self.scope["method"] in _WITH_BODY:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_left = 0
        if self.cycle is not None:
            super().on_message_complete()
            if self._may_persist and not self.cycle.response_started:
                self.cycle.keep_alive = True
        self._may_persist = False

    def shutdown(self) -> None:
        # the connection ends once its request is answered
        self._may_persist = False
        super().shutdown()

    def _refuse(self, answer: bytes) -> None:
        self._headers_done()
        self._unread.clear()
        self.transport.write(answer)
        self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        if self._conversations() >= SHARING.connections:
            self._refuse(_FULL)
            return
        self._upgraded = True
        self._headers_done()
        self._not_stalled()
        self._unread.clear()  # a client says nothing before it is accepted
        self._output.flush()
        self.transport = self._output.below
        super().handle_websocket_upgrade()

    def _conversations(self) -> int:
        # counting is linear, and this is called for every connection
        if len(self.connections) < SHARING.connections:
            return 0
        return sum(not isinstance(each, _Connection) for each in self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        self._unread.clear()
        self._not_stalled()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(SHARING.request_head_seconds, self.transport.abort)

    def _headers_done(self) -> None:
        self._in_headers = False
        self._raw_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_response_complete(self) -> None:
        # responses are sent once no other request is waiting to be answered
        if not self.pipeline:
            self._output.flush()
        super().on_response_complete()
        if self._unread and not self.transport.is_closing():
            # uvicorn reads on after each response, however many requests are waiting
            self.flow.pause_reading()
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.transport.is_closing():
            return
        self._feed()
        if not self._unread and len(self.pipeline) < SHARING.requests_ahead:
            self.flow.resume_reading()

    # --- files -------------------------------------------------------------------------------------

    async def _with_files(self, scope: Message, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] != ZERO_COPY:
                await send(message)
                return
            self._output.flush()
            # uvicorn hands out the method of the response, whose count of bytes to come is its own
            response: Any = send.__self__  # type: ignore[attr-defined]
            sent = await self._send_file(message["file"], message["offset"], message["count"])
            response.expected_content_length -= sent
            if sent < message["count"]:
                return  # the connection is gone; there is no response to complete
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        scope["extensions"] = {**(scope.get("extensions") or {}), ZERO_COPY: {}}
        await self._app(scope, receive, sending)

    async def _send_file(self, fd: int, start: int, count: int) -> int:
        sent = 0
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            while sent < count and not self.transport.is_closing():
                piece = min(PIECE_BYTES, count - sent)
                try:
                    async with asyncio.timeout(SHARING.piece_seconds):
                        # in pieces: each has to be taken in time
                        done = await self.loop.sendfile(self._output.below, file, start + sent, piece)
                except (OSError, TimeoutError):
                    self.transport.abort()
                    break
                sent += done
                if done < piece:  # the file was cut short
                    break
        if sent < count:
            self.transport.abort()
        return sent


# One WebSocket: uvicorn's, with limits on the memory of all of them together.
# Every client may send anything. A message is limited by the next expected one (`EXPECT`), by
# its frame's length; pending input and output are limited for all together. Messages of blocks, which need
# a token, come two at a time. Internals of uvicorn used: `conn`, `frames`, `queue`, `disconnected`, and the
# overridden methods. Source: RFC-050.

_TRY_LATER = 1013
# Memory of a connection that is not counted [bytes]: enough for most messages.
_FREE_BYTES = 16 << 10
# Clients of ours go on with the simple protocol, which sends no more than is taken.
_BUSY = text_of(Refusal(Internal(side="Pull", phase=Phase.METADATA_REQUEST, error_message=TOO_MANY_BLOCKS)))


class _Server(FewFrames, ServerProtocol):
    """Websocket protocol of the server."""


@dataclass(slots=True)
class Memory:
    """Memory that the conversations of one server hold; for its event loop alone."""

    members: set[_Conversation] = field(default_factory=set)
    large: set[_Conversation] = field(default_factory=set)
    """Those with a message of blocks."""
    waiting: list[_Conversation] = field(default_factory=list)
    """Those with the beginning of one, which are not read from."""

    held: int = 0
    """Pending bytes of all messages but those of blocks."""

    def judge(self, new: _Conversation) -> None:
        """End the conversations that hold the most until all that hold something may go on."""
        size = new.arriving
        if size > SMART.request_bytes < new.conn.max_message_size and new not in self.large:
            if len(self.large) < SMART.large_messages:
                self.large.add(new)
            elif new not in self.waiting:
                new.transport.pause_reading()
                self.waiting.append(new)
        self.count(new, size)
        while size > _FREE_BYTES and new.came and self.held > SMART.unfinished_bytes:
            max(self.members - self.large, key=lambda each: each.came).give_up()

    def count(self, one: _Conversation, size: int) -> None:
        """Take note of what a conversation holds, of which so much is of a message that is not whole."""
        before, one.came = one.counted, size
        one.counted = 0 if one in self.large else size + one.queued + one.taken
        self.held += one.counted - before

    def has_room(self, size: int) -> bool:
        """True if so much may be sent, given what clients have not taken yet."""
        return size <= _FREE_BYTES or size + self._unread() <= SMART.unread_bytes

    def _unread(self) -> int:
        return sum(each.transport.get_write_buffer_size() for each in self.members)

    def done(self, conversation: _Conversation) -> None:
        """A message has been dealt with, or will never be."""
        if conversation in self.waiting:
            self.waiting.remove(conversation)
        if conversation in self.large:
            self.large.remove(conversation)
            if self.waiting:
                following = self.waiting.pop(0)
                self.large.add(following)
                following.transport.resume_reading()


class _Conversation(_Stalling, WebSocketsSansIOProtocol):
    """A WebSocket that takes small messages, unless the application expects a large one."""

    def __init__(self, *args: Any, memory: Memory, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: Any = _Server(max_size=SMART.request_bytes, logger=self.logger)
        self._memory = memory
        self._running = False
        # Bytes noted in `Memory`.
        self.came = self.counted = 0
        self._patience = SHARING.piece_seconds
        # Of messages that the application has not asked for [bytes].
        self.queued = 0
        # Of the one that it deals with.
        self.taken = 0

    @property
    def arriving(self) -> int:
        return len(self.conn.reader.buffer) + sum(map(len, self.frames))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._memory.members.add(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:  # uvicorn says nothing to a request that is none
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        self._memory.judge(self)

    def send_receive_event_to_app(self) -> None:
        # a message is whole, and becomes a text, in which a character has up to four bytes
        size = sum(map(len, self.frames))
        if not all(each.isascii() for each in self.frames):
            self.queued += 3 * size
        self._memory.judge(self)
        if self.frames:
            self.queued += size
            super().send_receive_event_to_app()

    def give_up(self) -> None:
        """End the connection for what it holds."""
        self.conn.fail(_TRY_LATER, "too much is sent to this node now: try again later")
        self.handle_parser_exception()
        self._forget()

    def handle_parser_exception(self) -> None:
        # before it was accepted it ends without a word
        if self.conn.close_sent is None:
            self.transport.abort()
            return
        super().handle_parser_exception()
        self.loop.call_later(SHARING.stall_seconds, self.transport.abort)

    def _forget(self) -> None:
        self.frames = []
        self.conn.reader.discard()
        self._memory.count(self, 0)

    async def run_asgi(self) -> None:
        self._running = True
        extensions: Any = self.scope["extensions"]
        extensions[EXPECT] = self._expect
        await super().run_asgi()

    def _expect(self, most: int) -> None:
        self.conn.max_message_size = most

    async def receive(self) -> Any:
        self.taken = 0
        self._memory.done(self)
        self._memory.count(self, self.came)
        message = await super().receive()
        self.taken = sys.getsizeof(message.get("text") or message.get("bytes"))
        if self.queue.empty():
            self.queued = 0
        self._memory.count(self, self.arriving)
        return message

    async def send(self, message: Message) -> None:  # type: ignore[override] # of a narrower type in uvicorn
        # unless too much is on its way to clients that do not take it
        if not self._memory.has_room(len(message.get("text") or "")):
            message = {"type": "websocket.close", "code": FAILED, "reason": _BUSY}
        await super().send(message)  # type: ignore[arg-type]

    # --- ends ----------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._not_stalled()
        self._forget()
        self._leave()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        # the connection has some time to end
        super().on_task_complete(task)
        self._running, self.taken, self.queued = False, 0, 0
        self.loop.call_later(SHARING.stall_seconds, self.transport.abort)
        self._leave()

    def _leave(self) -> None:
        if self.disconnected and not self._running:
            self._memory.done(self)
            self._memory.count(self, 0)
            self._memory.members.discard(self)
