"""One HTTP/1.1 connection, read straight into the caller's buffer.

A clone asks for thousands of small blocks: over a general client library it stays below a thousand of them a
second, because none asks ahead on one connection (RFC-021 has the figures). So this is the part of the
protocol that files need: GET, keep-alive, the three framings of a body. Sources are read with it, too.
What is ambiguous or oversized is refused. Source: RFC 9110 and RFC 9112 of the IETF.
"""

from __future__ import annotations

import contextlib
import http
import re
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from odfchain.limits import SHARING, FetchLimits
from odfchain.storage.http_rules import Deadline, Headers, ProtocolError, TransientError, retry_after
from odfchain.text import one_line

_HEAD_BYTES = SHARING.answer_head_bytes
_BUFFER_BYTES = 2 * _HEAD_BYTES
_SENT_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18
_LINE_BYTES = 1 << 10
# Most bytes that are read of an unwanted body so that the connection can be used again.
_SETTLE_BYTES = 16 << 10

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [^\r\n]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BODILESS = (204, 304)
_PASSING = (408, 425, 429)


class StaleError(TransientError):
    """A connection that was used before had been closed by the other side; a new one may do."""


class Body(ABC):
    """Bytes that are on their way, of a size that may be known."""

    length: int | None = None
    """Size where it is declared [bytes]."""

    @abstractmethod
    def read_into(self, view: memoryview) -> int:
        """Bytes of the body, as many as are there and fit; 0 at its end."""

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[memoryview]:
        """The body in pieces, each of which is there until the next one is asked for."""
        piece = memoryview(bytearray(size))
        while count := self.read_into(piece):
            yield piece[:count]

    def read(self, limit: int) -> bytes | None:
        """The whole body, or None if it is longer than `limit`; memory grows with what has arrived."""
        if self.length is not None and self.length > limit:
            return None
        data = bytearray()
        for chunk in self.chunks(min(self.length or _BUFFER_BYTES, 1 << 20)):
            data += chunk
            if len(data) > limit:
                return None
        return bytes(data)


class Pieces(Body):
    """Pieces of any size as a body."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read_into(self, view: memoryview) -> int:
        while not self._rest:
            if (following := next(self._pieces, None)) is None:
                return 0
            self._rest = memoryview(following)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class Response(Body):
    """Status and headers; the body is read from the connection that it came on.

    Reading raises:
        TransientError: it breaks off, or nothing comes.
        ProtocolError: it is not framed as the headers say.
        FetchError: time is up.
    """

    __slots__ = ("_connection", "headers", "length", "status", "until_close")

    def __init__(
        self, connection: Connection, status: int, headers: Headers, *, length: int | None, until_close: bool
    ) -> None:
        self.status = status
        self.headers = headers
        self.length = length
        self.until_close = until_close
        """True if only the end of the connection ends the body."""
        self._connection = connection

    @property
    def what(self) -> str:
        """The status, in words."""
        try:
            return f"HTTP status {self.status} ({http.HTTPStatus(self.status).phrase})"
        except ValueError:
            return f"HTTP status {self.status}"

    @property
    def encoding(self) -> str | None:
        """How the bytes are not those that the server stores, though these were asked for."""
        found = self.headers.get("content-encoding")
        return None if found is None or found.lower() == "identity" else one_line(found.lower(), 40)

    def passing(self) -> TransientError | None:
        """The error to raise if the status says that another attempt may succeed."""
        if self.status in _PASSING or 500 <= self.status <= 599:
            return TransientError(self.what, wait=retry_after(self.headers))
        return None

    def read_into(self, view: memoryview) -> int:
        return self._connection.read_into(view)

    def read(self, limit: int) -> bytes | None:
        # what came with the head is taken from the buffer at once
        whole = self._connection.take_buffered(self.length) if self.length and self.length <= limit else None
        return super().read(limit) if whole is None else whole


class Connection:
    """A connected socket and what has been read from it; used by one thread at a time."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        limits: FetchLimits,
        name: str,
        address: str | None = None,
        prefix: bytes = b"",
        extra: bytes = b"",
    ) -> None:
        self.address = address
        """The IP address that was judged; None behind a proxy for names that mean nothing here."""
        self.deadline: Deadline | None = None
        """By when the present exchange must be over."""
        self.name = name
        """The name of the request's target in messages."""
        self.sock = sock
        """The socket, while no body is read from it."""
        self._idle, self._slowest = limits.idle_timeout, limits.bytes_per_second
        self._prefix = prefix
        self._extra = extra
        self._timeout: float | None = -1.0
        self._used = False
        self._data = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._data)
        self._start = self._end = 0
        self._left = 0
        self._chunked = self._until_close = self._keep = False
        self._trailer_bytes = 0
        self._window = SHARING.window_seconds
        self._waited, self._came = 0.0, 0

    def ask(
        self,
        method: bytes,
        path: bytes,
        headers: bytes,
        deadline: Deadline,
        name: str,
        body: bytes = b"",
        file: BinaryIO | None = None,
    ) -> Response:
        """Send a request, whose `headers` say how long its body is, and read the head of the response.

        The body is `body`, or the rest of a `file` from its position.

        Raises:
            StaleError: the connection had been closed since it was last used.
            TransientError: no response.
        """
        self._begin(deadline, name)
        used, self._used = self._used, True
        self._start = self._end = 0
        try:
            self._set_timeout(deadline)
            self.sock.sendall(self._request(method, path, headers) + body)
            while file is not None and self._send_piece(file):
                self._set_timeout(deadline)
            self._acknowledge_at_once()
            self._fill()
        except TimeoutError as error:
            raise self._late() from error
        except OSError as error:
            # a refusal may have arrived before the whole file was sent; nothing else explains the lost
            # connection
            if file is None or not self._refused_early():
                raise (StaleError if used else TransientError)(_lost(error)) from error
            refused = self._read_head(connects=False)
            self._keep = False
            return refused
        if self._end == 0:
            # a kept connection may have been closed while idle: that is no failure of the server
            raise (StaleError if used else TransientError)("the connection was closed without a response")
        return self._read_head(connects=method == b"CONNECT")

    def _refused_early(self) -> bool:
        try:
            # a server that reads no more of a file may say why before it closes (RFC 9112, 9.3)
            self._fill()
        except OSError:
            return False
        return self._end > 0

    def _send_piece(self, file: BinaryIO) -> int:
        # by the kernel, which can do that only where nothing is encrypted on the way
        if type(self.sock) is socket.socket:
            return self.sock.sendfile(file, file.tell(), _SENT_BYTES)
        piece = file.read(_SENT_BYTES)
        self.sock.sendall(piece)
        return len(piece)

    def send_ahead(self, paths: Iterable[bytes], headers: bytes, deadline: Deadline) -> None:
        """Send GETs whose answers `next_response` reads in the same order (RFC 9112, 9.3.2)."""
        try:
            self._set_timeout(deadline)
            self.sock.sendall(b"".join(self._request(b"GET", path, headers) for path in paths))
        except OSError as error:
            raise TransientError(_lost(error)) from error

    def next_response(self, deadline: Deadline, name: str) -> Response:
        """The head of the next response, once the body of the one before was read to its end."""
        self._begin(deadline, name)
        self._acknowledge_at_once()
        return self._read_head(connects=False)

    @property
    def persists(self) -> bool:
        """True if the other side keeps the connection open for the next request."""
        return self._keep and not self._until_close

    def _request(self, method: bytes, path: bytes, headers: bytes) -> bytes:
        return b"%s %s%s HTTP/1.1\r\n%s%s\r\n" % (method, self._prefix, path, headers, self._extra)

    def _acknowledge_at_once(self) -> None:
        # many simple servers send the body only once the head is acknowledged
        if _QUICKACK is not None and self._start == self._end:
            self.sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def _read_head(self, *, connects: bool) -> Response:
        allowed = _HEAD_BYTES
        while True:
            head = self._take_head(allowed)
            allowed -= len(head)
            first, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
            found = _STATUS.fullmatch(first)
            if found is None:
                raise self._broken("what answers does not speak HTTP/1.1")
            status = int(found[2])
            # informational responses precede the one that was asked for
            if status < 200 and status != 101:
                continue
            return self._begin_body(status, self._parse(lines), is_new=found[1] == b"1", connects=connects)

    def _take_head(self, allowed: int) -> bytes:
        scanned = self._start
        while True:
            match = _END.search(self._data, scanned, self._end)
            if match is not None and match.start() - self._start <= allowed:
                head = bytes(self._view[self._start : match.start()])
                self._start = match.end()
                return head
            if match is not None or self._end - self._start > allowed:
                raise self._broken(f"the headers are larger than {_HEAD_BYTES:,} bytes")
            unread = self._end - self._start
            if not self._receive():
                raise TransientError("the response was cut short")
            scanned = self._start + max(0, unread - 3)  # what is there may have been moved

    def _parse(self, lines: list[bytes]) -> Headers:
        pairs: list[tuple[bytes, bytes]] = []
        for line in lines:
            match = _HEADER.fullmatch(line)
            if match is None:
                raise self._broken("the response has a malformed header")
            pairs.append((match[1], match[2]))
        lengths = {value for key, value in pairs if key.lower() == b"content-length"}
        codings = [value for key, value in pairs if key.lower() == b"transfer-encoding"]
        # several lengths are how responses are smuggled past proxies (RFC 9112, 6.3)
        if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):
            raise self._broken("the response declares its length in several ways")
        for value in lengths:
            if not _LENGTH.fullmatch(value):
                raise self._broken(f"Content-Length is {_quoted(value)}, not a number")
        for value in codings:
            if value.lower() != b"chunked":
                raise self._broken(f"the transfer coding is {_quoted(value)}, which was not asked for")
        return Headers(pairs)

    def _begin_body(self, status: int, headers: Headers, *, is_new: bool, connects: bool) -> Response:
        options = (headers.get("connection") or "").lower()
        self._keep = "close" not in options if is_new else "keep-alive" in options
        if status == 101:
            raise self._broken("the server wants another protocol, which was not asked for")
        length = headers.length()
        # these have no body, also if their headers declare one
        if status in _BODILESS or (connects and status == 200):
            length = 0
        self._chunked = length is None and headers.get("transfer-encoding") is not None
        self._until_close = length is None and not self._chunked
        self._left = sys.maxsize if self._until_close else length or 0
        self._trailer_bytes = 0
        return Response(self, status, headers, length=length, until_close=self._until_close)

    def read_into(self, view: memoryview) -> int:
        """Bytes of the body, as many as have arrived and fit; 0 at its end."""
        if self._left == 0 and self._chunked:
            self._next_chunk()
        if self._left == 0:
            return 0
        count = min(len(view), self._left)
        buffered = self._end - self._start
        if buffered:
            count = min(count, buffered)
            view[:count] = self._view[self._start : self._start + count]
            self._start += count
        else:
            count = self._guarded(view[:count])
            if count == 0:
                if not self._until_close:
                    raise TransientError("the body was cut short")
                self._left = 0
                return 0
        self._left -= count
        # an empty line follows the bytes of each chunk
        if self._left == 0 and self._chunked and self._line():
            raise self._bad_chunk()
        return count

    def take_buffered(self, length: int) -> bytes | None:
        """A body of known length that was read along with its head; else nothing is taken."""
        if not 0 < length == self._left <= self._end - self._start:
            return None
        self._left = 0
        self._start += length
        return bytes(self._view[self._start - length : self._start])

    def _next_chunk(self) -> None:
        match = _CHUNK.fullmatch(self._line())
        if match is None:
            raise self._bad_chunk()
        self._left = int(match[1], 16)
        if self._left == 0:
            # trailers are read and ignored, up to a bound
            while line := self._line():
                self._trailer_bytes += len(line)
                if self._trailer_bytes > _HEAD_BYTES:
                    raise self._broken(f"the trailers are larger than {_HEAD_BYTES:,} bytes")
            self._chunked = False

    def _broken(self, reason: str) -> ProtocolError:
        return ProtocolError(reason, name=self.name)

    def _bad_chunk(self) -> ProtocolError:
        return self._broken("the chunks of the body are malformed")

    def _line(self) -> bytes:
        scanned = self._start
        while (end := self._data.find(b"\n", scanned, self._end)) < 0:
            if self._end - self._start > _LINE_BYTES:
                raise self._bad_chunk()
            unread = self._end - self._start
            if not self._receive():
                raise TransientError("the body was cut short")
            scanned = self._start + unread
        line = bytes(self._view[self._start : end])
        self._start = end + 1
        return line.removesuffix(b"\r")

    def settle(self) -> bool:
        """True if another request can be sent after this one; a short rest of the body is read for it."""
        rest = memoryview(bytearray(1 << 10))
        read = 0
        with contextlib.suppress(Exception):  # after any error the connection is not used again
            while self._keep and not self._until_close and (self._left or self._chunked):
                if self._left > _SETTLE_BYTES or read > _SETTLE_BYTES:
                    return False
                read += self.read_into(rest)
            # bytes beyond the response were not asked for: such a connection is not used again
            return self._keep and not self._until_close and self._start == self._end
        return False

    def _receive(self) -> int:
        if self._start:
            self._data[: self._end - self._start] = self._data[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        count = self._guarded(self._view[self._end :])
        self._end += count
        return count

    def _fill(self) -> None:
        self._end = self.sock.recv_into(self._view)

    def _guarded(self, view: memoryview) -> int:
        assert self.deadline is not None  # noqa: S101 - ask comes first
        began = time.monotonic()
        try:
            self._set_timeout(self.deadline)
            count = self.sock.recv_into(view)
        except TimeoutError as error:
            raise self._late() from error
        except OSError as error:
            raise TransientError(_lost(error)) from error
        # only the wait for bytes is measured, not the time between two reads
        self._waited += time.monotonic() - began
        self._came += count
        if self._waited >= self._window and self._slowest:
            self._check_rate()
        return count

    def _check_rate(self) -> None:
        # only time spent waiting counts, not that in which the caller handled what came
        wanted = int(self._waited * self._slowest)
        if self._came < wanted:
            raise TransientError(
                f"only {self._came:,} bytes came in {self._waited:.0f} s of waiting, at least {wanted:,} must"
            )
        self._waited, self._came = 0.0, 0

    def _begin(self, deadline: Deadline, name: str) -> None:
        self.deadline, self.name = deadline, name
        self._waited, self._came = 0.0, 0

    def _set_timeout(self, deadline: Deadline) -> None:
        deadline.check()
        timeout = min(self._idle, max(1e-3, deadline.remaining))
        if timeout != self._timeout:  # a system call each
            self.sock.settimeout(timeout)
            self._timeout = timeout

    def _late(self) -> TransientError:
        assert self.deadline is not None  # noqa: S101 - ask comes first
        self.deadline.check()
        return TransientError(f"no byte within {self._idle:g} s")

    def abort(self) -> None:
        """End what another thread is waiting for on this connection."""
        with contextlib.suppress(OSError):
            # below TLS: its state is the other thread's
            socket.socket.shutdown(getattr(self.sock, "outer", self.sock), socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()


def _quoted(value: bytes) -> str:
    return repr(one_line(value.decode("latin-1"), 40))


def _lost(error: OSError) -> str:
    return f"the connection was lost: {one_line(error.strerror or type(error).__name__, 80).lower()}"
