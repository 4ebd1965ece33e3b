"""One client's connection: uvicorn's, with files sent by the kernel and bounds on slow or endless headers.

Uvicorn has none of the extensions of ASGI for files; a copy through Python halves what one process can send.
So `http.response.zerocopysend` is added here, on the event loop's own `sendfile`. Of uvicorn's insides it
uses `transport`, `pipeline`, `on_response_complete` and `expected_content_length` of a response. Imported by
`odfchain.share.server` when a server starts, because uvicorn is slow to load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from odfchain.limits import SHARING
from odfchain.share.serve import ZERO_COPY, Message, Receive, Send

PIECE_BYTES = 4 << 20
"""What a client takes in `SHARING.piece_seconds` [bytes]: 14 KB/s at least, or it is dropped."""

_HELD_BYTES = 64 << 10
"""How much of responses is put together; copying more costs more than another write [bytes]."""


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
        self.flush()
        self.below.close()

    def abort(self) -> None:
        self.below.abort()

    def is_closing(self) -> bool:
        return self.below.is_closing()


class Connection(HttpToolsProtocol):
    """A connection that offers `http.response.zerocopysend`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app = self.app
        self.app = self._with_files
        self._in_headers = False
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None

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
        """Headers that are not complete yet are counted and timed."""
        self._header_bytes += len(data)
        super().data_received(data)
        if not self._in_headers:
            return
        if self._header_bytes > SHARING.request_head_bytes:
            self.transport.abort()
        elif self._header_timer is None:  # most requests come whole and need none
            self._expect_headers()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        """The headers have arrived; the application is called."""
        self._headers_done()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._headers_done()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(SHARING.request_head_seconds, self.transport.abort)

    def _headers_done(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_response_complete(self) -> None:
        """Responses are sent once no other request is waiting to be answered."""
        if not self.pipeline:
            self._output.flush()
        super().on_response_complete()

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
