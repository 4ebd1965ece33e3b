"""One HTTP/1.1 connection of urllib3, to an address that a route admits, with bounds on all that arrives.

The address that is connected to is what is judged, so a name that resolves differently a moment later
leads nowhere else. What is ambiguous or oversized is refused.
Source: RFC 9110 and RFC 9112 of the IETF; RFC-056.
"""

from __future__ import annotations

import contextlib
import http
import io
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from http.client import BadStatusLine, HTTPException, HTTPResponse, IncompleteRead, UnknownProtocol
from typing import Any, BinaryIO

from urllib3 import connection as library

from odfchain.errors import FetchError, InvalidIdError
from odfchain.limits import SHARING, FetchLimits
from odfchain.storage.http_rules import (
    Body,
    Deadline,
    Headers,
    ProtocolError,
    ProxyDeniedError,
    StaleError,
    TransientError,
)
from odfchain.storage.locations import Target
from odfchain.storage.routes import Route, connect, proxy_for, resolve
from odfchain.text import one_line

_HEAD_BYTES = SHARING.answer_head_bytes
_LINE_BYTES = 1 << 10
_SENT_BYTES = 1 << 20
# Most bytes that are read of an unwanted body so that the connection can be used again.
_SETTLE_BYTES = 16 << 10

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\x00]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_TUNNEL_REFUSED = re.compile(r"Tunnel connection failed: ([0-9]{3})")
_PASSING = (408, 425, 429)
_NO_HTTP = "what answers does not speak HTTP/1.1"

TlsContext = Callable[[], ssl.SSLContext]


class Response(Body):
    """Status and headers; the body is read from the connection that it came on.

    Reading raises:
        TransientError: it breaks off, or nothing comes.
        ProtocolError: it is not framed as the headers say.
        FetchError: time is up.
    """

    def __init__(self, answer: _Answer, headers: Headers) -> None:
        self.status = answer.status
        self.headers = headers
        self.length = answer.length
        self.until_close = answer.length is None and not answer.chunked
        """True if only the end of the connection ends the body."""
        self._answer = answer

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
            return TransientError(self.what, wait=self.headers.retry_after())
        return None

    def read_into(self, view: memoryview) -> int:
        answer = self._answer
        try:
            # not `readinto`, which waits until the view is full
            data = answer.read1(len(view))
        except IncompleteRead:
            raise answer.arriving.broken("the chunks of the body are malformed") from None
        if not data:
            answer.close()
        view[: len(data)] = data
        return len(data)

    def settle(self) -> bool:
        """True if another request can be sent after this one; a short rest of the body is read for it."""
        answer, room = self._answer, _SETTLE_BYTES
        rest = memoryview(bytearray(1 << 10))
        with contextlib.suppress(Exception):  # after any error the connection is not used again
            while not answer.will_close and (answer.length or 0) <= room > 0:
                if not (count := self.read_into(rest)):
                    return not answer.arriving.more
                room -= count
        return False


class _Arriving(io.RawIOBase):
    """The bytes of one response: bounded in time and speed, and in size while they are no body."""

    def __init__(self, sock: Any, connection: Connection) -> None:
        self._sock, self._connection = sock, connection
        # it holds the socket, also when the library lets go of the connection before the body is read
        self._raw = sock.makefile("rb", buffering=0)
        self._waited, self._came = 0.0, 0
        self.is_over = False
        """True if no more is to be read."""
        self.more = False
        """True if bytes came beyond the response, which were not asked for."""
        self._is_empty = True
        self.expect("headers")

    def expect(self, part: str, *, ends: bool = False) -> None:
        """What comes now: a body, which may end with the connection, or lines that messages call `part`."""
        self._part, self._ends = part, ends
        self._allowed = sys.maxsize if part == "body" else _HEAD_BYTES

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As of a socket: all that the library asks of one for a response."""
        return _Reader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.is_over:
            return None
        view, connection = memoryview(buffer), self._connection
        if not self._allowed:
            raise self.broken(f"the {self._part} are larger than {_HEAD_BYTES:,} bytes")
        # many simple servers send the body only once the head is acknowledged
        if self._part == "headers" and hasattr(socket, "TCP_QUICKACK"):
            _below(self._sock).setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        began = time.monotonic()
        try:
            connection.set_timeout(self._sock)
            count: int = self._raw.readinto(view[: self._allowed])
        except TimeoutError as error:
            raise connection.late() from error
        except OSError as error:
            raise (StaleError if self._is_empty else TransientError)(_lost(error)) from error
        if not count and not self._ends:
            if self._is_empty:
                raise StaleError("the connection was closed without a response")
            raise TransientError(f"the {'response' if self._part == 'headers' else 'body'} was cut short")
        self._is_empty = False
        self._allowed -= count
        # only the wait for bytes is measured, not the time between two reads
        self._waited += time.monotonic() - began
        self._came += count
        if self._waited >= SHARING.window_seconds:
            self._check_rate(connection.limits.bytes_per_second)
        return count

    def _check_rate(self, slowest: int) -> None:
        # only time spent waiting counts, not that in which the caller handled what came
        wanted = int(self._waited * slowest)
        if self._came < wanted:
            raise TransientError(
                f"only {self._came:,} bytes came in {self._waited:.0f} s of waiting, at least {wanted:,} must"
            )
        self._waited, self._came = 0.0, 0

    def broken(self, reason: str) -> ProtocolError:
        """The error for a response that breaks the protocol."""
        return ProtocolError(reason, name=self._connection.name)

    def close(self) -> None:
        """Let go of the socket, which its connection closes."""
        self._raw.close()
        super().close()


class _Reader(io.BufferedReader):
    def close(self) -> None:
        if not self.closed:
            arriving: Any = self.raw
            arriving.is_over = True
            arriving.more = bool(self.peek(1))
        super().close()


class _Answer(HTTPResponse):
    """A response as the standard library reads it, but for what it takes though it is ambiguous."""

    chunk_left: int | None

    def __init__(self, connection: Connection, sock: Any, *_: object, method: str | None = None) -> None:
        self.arriving = _Arriving(sock, connection)
        super().__init__(self.arriving, method=method)  # type: ignore[arg-type]

    def begin(self) -> None:
        try:
            super().begin()
            # informational responses precede the one that was asked for
            while 100 < self.status < 200 and self.status != 101:
                self.headers = self.msg = None  # type: ignore[assignment]
                super().begin()
        except (BadStatusLine, UnknownProtocol):
            raise self.arriving.broken(_NO_HTTP) from None
        except HTTPException:
            # the library's own bound: the bytes are counted before
            message = f"the headers are larger than {_HEAD_BYTES:,} bytes or 100 lines"
            raise self.arriving.broken(message) from None
        self.arriving.expect("body", ends=self.length is None and not self.chunked)

    def parsed(self) -> Headers:
        """The headers, if they say in one way only how long the body is."""
        broken, pairs = self.arriving.broken, self.headers.items()
        if self.headers.defects or not all(_HEADER.fullmatch(f"{key}:{value}") for key, value in pairs):
            raise broken("the response has a malformed header")
        lengths = {value.strip() for key, value in pairs if key.lower() == "content-length"}
        codings = [value.strip() for key, value in pairs if key.lower() == "transfer-encoding"]
        # several lengths are how responses are smuggled past proxies (RFC 9112, 6.3)
        if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):
            raise broken("the response declares its length in several ways")
        for value in lengths:
            if not _LENGTH.fullmatch(value):
                raise broken(f"Content-Length is {one_line(value, 40)!r}, not a number")
        for value in codings:
            if value.lower() != "chunked":
                raise broken(f"the transfer coding is {one_line(value, 40)!r}, which was not asked for")
        if self.status == 101:
            raise broken("the server wants another protocol, which was not asked for")
        return Headers(pairs)

    def _read_next_chunk_size(self) -> int:
        # the library takes signs and empty lines, and any number of trailers
        self.arriving.expect("trailers")
        found = _CHUNK.fullmatch(self.fp.readline(_LINE_BYTES))
        if found is None:
            raise ValueError
        if size := int(found[1], 16):
            self.arriving.expect("body")
        return size


class Connection(library.HTTPConnection):
    """A connection for one exchange at a time, and one thread."""

    auto_open = 0

    def __init__(
        self,
        route: Route,
        proxy: Target | None,
        limits: FetchLimits,
        deadline: Deadline,
        name: str,
        **options: Any,
    ) -> None:
        """Prepare to connect to the route's present target, over a proxy if there is one."""
        target = route.current
        to = proxy or target
        super().__init__(to.host, to.port, blocksize=_SENT_BYTES, **options)
        self.limits, self.deadline = limits, deadline
        self.name = name
        """What messages call the target of the present exchange."""
        self.address: str | None = None
        """The IP address that was judged; None behind a proxy for names that mean nothing here."""
        self._route, self._proxy = route, proxy
        self._answer: _Answer | None = None
        self._timeout: float | None = None
        self._prefix = "" if proxy is None else f"http://{target.authority}"
        self._extra: dict[str, str] = {}
        if proxy is not None and proxy.user is not None:
            self._extra["Proxy-Authorization"] = proxy.user
        if proxy is not None and target.scheme == "https":
            host = f"[{target.host}]" if ":" in target.host else target.host
            headers = {"Host": f"{host}:{target.port}", **self._extra}
            self.set_tunnel(target.host, target.port, headers, proxy.scheme)
            self._prefix, self._extra = "", {}

    @property
    def response_class(self) -> Callable[..., _Answer]:  # type: ignore[override]
        """What the library makes of a socket on which a response is due."""
        return partial(_Answer, self)

    def _new_conn(self) -> socket.socket:
        route, to = self._route, self._proxy or self._route.current
        addresses = resolve(to.host, to.port, name=self.name)
        if to is self._proxy:
            self.address = _judge_by_name(route, self.name)
            return connect(addresses, to.port, self.limits, self.deadline)[0]
        addresses = route.admitted(addresses, name=self.name)
        sock, self.address = connect(addresses, to.port, self.limits, self.deadline)
        return sock

    def _tunnel(self) -> None:
        try:
            super()._tunnel()
        except OSError as error:
            if (found := _TUNNEL_REFUSED.match(str(error))) is None:
                raise
            reason = f"the proxy refuses: HTTP status {found[1]}"
            if found[1] in ("401", "403", "407"):
                raise ProxyDeniedError(f"{self.name}: {reason}") from None
            raise TransientError(reason) from None
        # the handshake has the time that the connection had
        self._timeout = min(self.limits.connect_timeout, max(1e-3, self.deadline.remaining))
        self.sock.settimeout(self._timeout)

    def open(self) -> None:
        """Connect, TLS and the tunnel of a proxy included."""
        try:
            self.connect()
        except ssl.SSLCertVerificationError as error:
            raise FetchError(
                f"{self.name}: the server's certificate is not trusted: {one_line(error.verify_message)}",
                hint="for a certificate authority of your own set SSL_CERT_FILE",
            ) from error
        except TimeoutError as error:
            raise TransientError("the server does not finish the TLS handshake") from error
        except (OSError, ValueError) as error:
            raise TransientError("the server does not answer in TLS") from error
        except HTTPException as error:
            raise ProtocolError(_NO_HTTP, name=self.name) from error
        self._lowest = _below(self.sock)

    def ask(
        self,
        method: str,
        path: bytes,
        headers: Iterable[tuple[str, str]],
        deadline: Deadline,
        name: str,
        *,
        body: bytes | None = None,
        file: BinaryIO | None = None,
    ) -> Response:
        """Send a request, whose `headers` say how long its body is, and read the head of the response.

        The body is `body`, or the rest of a `file` from its position.

        Raises:
            StaleError: nothing came; the connection may have been closed since it was last used.
        """
        self.deadline, self.name = deadline, name
        is_broken = False
        try:
            self.putrequest(
                method, self._prefix + path.decode("latin-1"), skip_host=True, skip_accept_encoding=True
            )
            for pair in (*headers, *self._extra.items()):
                self.putheader(*pair)
            self.endheaders(body)
            while file is not None and self._send_piece(file):
                self.set_timeout(self.sock)
        except TimeoutError as error:
            raise self.late() from error
        except OSError as error:
            # a server that reads no more of a file may say why before it closes (RFC 9112, 9.3)
            if file is None:
                raise StaleError(_lost(error)) from error
            is_broken = True
        # without the layer of urllib3, which logs the URL of a response that it does not understand
        answer: Any = super(library.HTTPConnection, self).getresponse()
        answer.will_close = answer.will_close or is_broken
        self._answer = answer
        return Response(answer, answer.parsed())

    def _send_piece(self, file: BinaryIO) -> int:
        # by the kernel, which can do that only where nothing is encrypted on the way
        if type(self.sock) is socket.socket:
            return self.sock.sendfile(file, file.tell(), _SENT_BYTES)
        piece = file.read(_SENT_BYTES)
        self.send(piece)
        return len(piece)

    def send(self, data: Any) -> None:
        """Send a part of a request, while there is time."""
        self.set_timeout(self.sock)
        super().send(data)

    def set_timeout(self, sock: Any) -> None:
        """Wait no longer than between two bytes is allowed, and no longer than to the deadline."""
        self.deadline.check()
        timeout = min(self.limits.idle_timeout, max(1e-3, self.deadline.remaining))
        if timeout != self._timeout:  # a system call each
            sock.settimeout(timeout)
            self._timeout = timeout

    def late(self) -> TransientError:
        """The error for a server that is silent for too long, unless time is up."""
        self.deadline.check()
        return TransientError(f"no byte within {self.limits.idle_timeout:g} s")

    def abort(self) -> None:
        """End what another thread is waiting for on this connection."""
        with contextlib.suppress(OSError):
            # below TLS: its state is the other thread's
            socket.socket.shutdown(self._lowest, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket."""
        with contextlib.suppress(OSError):
            super().close()
            if self._answer is not None:
                self._answer.close()


class _SecureConnection(Connection, library.HTTPSConnection):
    """A connection to a server, or a proxy, that speaks TLS."""


def dial(route: Route, tls: TlsContext, *, limits: FetchLimits, deadline: Deadline, name: str) -> Connection:
    """A new connection to the route's present target, TLS included; over the proxy of the environment."""
    target = route.current
    proxy = _proxy_of(target, name)
    if "https" in (target.scheme, proxy and proxy.scheme):
        context = tls()
        config = library.ProxyConfig(context, False, None, None)
        made: Connection = _SecureConnection(
            route, proxy, limits, deadline, name, ssl_context=context, proxy_config=config
        )
    else:
        made = Connection(route, proxy, limits, deadline, name)
    try:
        made.open()
    except BaseException:
        made.close()
        raise
    return made


def _proxy_of(target: Target, name: str) -> Target | None:
    found = proxy_for(target)
    if found is None:
        return None
    with contextlib.suppress(InvalidIdError):
        return Target.parse(found if "://" in found else f"http://{found}")
    message = f"{name}: the environment's proxy for {target.scheme} is not the URL of an HTTP proxy"
    raise FetchError(message, hint=f"check {target.scheme}_proxy and all_proxy, or name the host in no_proxy")


def _judge_by_name(route: Route, name: str) -> str | None:
    # the proxy chooses the address: judge what the name means here, if it means anything
    try:
        addresses = resolve(route.current.host, route.current.port, name=name)
    except (FetchError, TransientError):
        return None
    for address in addresses:
        route.admitted([address], name=name)
    return addresses[0]


def _below(sock: Any) -> Any:
    # within the TLS of a proxy the library has an object of its own
    return getattr(sock, "socket", sock)


def _lost(error: OSError) -> str:
    return f"the connection was lost: {one_line(error.strerror or type(error).__name__, 80).lower()}"
