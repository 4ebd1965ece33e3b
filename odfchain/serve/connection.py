"""One client's connection: uvicorn's, with files sent by the kernel and bounds on slow or endless headers.

Uvicorn has none of the extensions of ASGI for files; a copy through Python halves what one process can send.
So `http.response.zerocopysend` is added here, on the event loop's own `sendfile`. Of uvicorn's insides it
uses `transport`, `pipeline`, `on_response_complete` and `expected_content_length` of a response. Imported by
`odfchain.serve.server` when a server starts, because uvicorn is slow to load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from odfchain.limits import SHARING
from odfchain.serve.application import ZERO_COPY, Message, Receive, Send

PIECE_BYTES = 4 << 20
"""What a client takes in `SHARING.piece_seconds` [bytes]: 14 KB/s at least, or it is dropped."""

_HELD_BYTES = 64 << 10
"""How much of responses is put together; copying more costs more than another write [bytes]."""


_FED_BYTES = 4 << 10
"""What is given to the parser at a time [bytes]: at most two hundred requests."""

_REQUEST_LINE_BYTES = len(b"GET  HTTP/1.1\r\n\r\n")
"""What a request has beside its target and its fields [bytes]."""

_LENGTH_DIGITS = 18
_BODY = (b"content-length", b"transfer-encoding")
_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    """How long the body is that follows; 0 where that is not said in a number."""
    found = next((value for name, value in headers if name == b"content-length"), b"")
    return int(found) if found.isdigit() and len(found) <= _LENGTH_DIGITS else 0


class _Output:
    """What uvicorn uses of a transport; what is written is held back until a response is complete.

    Each write is a packet, and wakes the client: head and body go together, and so do responses to requests
    that were sent without waiting (RFC 9112, 9.3.2).
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.below = transport
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if self._size + len(data) > _HELD_BYTES:
            self.flush()
            self.below.write(data)
        else:
            self._held.append(data)
            self._size += len(data)

    def flush(self) -> None:
        """Send what was held back."""
        if self._held:
            self.below.write(b"".join(self._held))
            self._held.clear()
            self._size = 0

    def close(self) -> None:
        """Send what there is; a client that does not take it is cut off."""
        self.flush()
        self.below.close()
        if self.below.get_write_buffer_size():
            asyncio.get_running_loop().call_later(SHARING.stall_seconds, self.below.abort)

    def abort(self) -> None:
        self.below.abort()

    def is_closing(self) -> bool:
        return self.below.is_closing()


class Connection(HttpToolsProtocol):
    """A connection that offers `http.response.zerocopysend`, and waits for no client for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app = self.app
        self.app = self._with_files
        self._upgraded = False
        self._in_headers = False
        self._header_bytes = 0
        """Of the headers that are complete."""
        self._raw_bytes = 0
        """Since the request began."""
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread = bytearray()
        self._feeding = False
        self._body_left = 0
        """Of a file that is PUT [bytes]: there are no requests among them."""
        self._may_persist = False
        """Whether the client wants to go on with this connection after the present request."""
        self._stall_timer: asyncio.TimerHandle | None = None

    # --- headers -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The headers of the first request are expected from now on."""
        super().connection_made(transport)
        with contextlib.suppress(OSError):
            # asyncio leaves it out for a socket that was made without naming TCP; what is sent in two writes
            # would wait for the client to acknowledge the first
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._output = _Output(transport)
        self.transport = self._output  # type: ignore[assignment] # all that uvicorn uses of one
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Requests are taken up a few at a time: 20 bytes of one become some thousand in memory."""
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
            return  # a WebSocket awaits no request: its time is the business of who holds it
        if self._in_headers and self._raw_bytes > SHARING.request_head_bytes + _FED_BYTES:
            self._refuse_headers()
        elif self._header_timer is None and self._awaits_request:  # most come whole and need none
            self._expect_headers()

    @property
    def _awaits_request(self) -> bool:
        """Whether nothing is to be answered: what comes is part of the next request, or empty lines."""
        return self._in_headers or self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes, self._raw_bytes = _REQUEST_LINE_BYTES, 0

    def on_url(self, url: bytes) -> None:
        """The target of a request, or what has come of it."""
        super().on_url(url)
        self._header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; some need next to nothing on the wire, and more in memory."""
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """The headers have arrived; the application is called."""
        self._headers_done()
        if self.transport.is_closing():
            return
        if self._header_bytes > SHARING.request_head_bytes:
            self._refuse_headers()
            return
        # WebSockets have a number of their own; the handles of both fit into the usual 1,024
        self.limit_concurrency = SHARING.connections + self._conversations() * 3 // 4
        super().on_headers_complete()
        if any(name in _BODY and value != b"0" for name, value in self.headers):
            # a body that nobody wants is not waited for; a file that has come ends nothing
            self._may_persist = self.cycle.keep_alive and self.scope["method"] == "PUT"
            self.cycle.keep_alive = False
            if self.scope["method"] == "PUT":
                self._body_left = _length(self.headers)

    def on_body(self, body: bytes) -> None:
        """A file that is PUT; the application takes it or not, and what it does not take is not read on."""
        self._body_left = max(0, self._body_left - len(body))
        if self.cycle is not None and self.scope["method"] == "PUT":
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request, unless it was refused."""
        self._body_left = 0
        if self.cycle is not None:
            super().on_message_complete()
            if self._may_persist and not self.cycle.response_started:
                self.cycle.keep_alive = True
        self._may_persist = False

    def shutdown(self) -> None:
        """The server ends: this connection does, too, once its request is answered."""
        self._may_persist = False
        super().shutdown()

    def _refuse_headers(self) -> None:
        self._headers_done()
        self._unread.clear()
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """The connection goes on as a WebSocket; what was to be sent is sent, and nothing is held back."""
        if self._conversations() >= SHARING.connections:
            self._headers_done()
            self._unread.clear()
            self.transport.write(_FULL)
            self.transport.close()
            return
        self._upgraded = True
        self._headers_done()
        self._not_stalled()
        self._unread.clear()  # a client says nothing before it is accepted
        self._output.flush()
        self.transport = self._output.below
        super().handle_websocket_upgrade()

    def _conversations(self) -> int:
        """How many WebSockets there are; who has a few connections has no time to lose with counting."""
        if len(self.connections) < SHARING.connections:
            return 0
        return sum(not isinstance(each, Connection) for each in self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._headers_done()
        self._unread.clear()
        self._not_stalled()
        super().connection_lost(exc)

    # --- clients that do not read ------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client takes less than it asks for; it has some time."""
        super().pause_writing()
        self._not_stalled()
        self._stall_timer = self.loop.call_later(SHARING.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._not_stalled()

    def _not_stalled(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(SHARING.request_head_seconds, self.transport.abort)

    def _headers_done(self) -> None:
        self._in_headers = False
        self._raw_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_response_complete(self) -> None:
        """Responses are sent once no other request is waiting to be answered."""
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
        """Returns how many bytes were sent: fewer when the client went away or is too slow."""
        sent = 0
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            while sent < count and not self.transport.is_closing():
                piece = min(PIECE_BYTES, count - sent)
                try:
                    async with asyncio.timeout(SHARING.piece_seconds):
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
