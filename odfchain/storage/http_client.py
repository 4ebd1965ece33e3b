"""Requests over connections that are kept for the next one: the one way in which odfchain speaks HTTP.

What is asked for is followed over its redirects, each of which is judged (`odfchain.storage.urls`). Cookies,
password files and decoding there are none, and no URL is logged.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from odfchain.errors import FetchError, OdfchainError
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.http_connection import Connection, Response, StaleError
from odfchain.storage.http_rules import Deadline, ProtocolError, Timing, TransientError
from odfchain.storage.locations import Target, basic
from odfchain.storage.urls import Route, proxy_for, resolve
from odfchain.text import one_line
from odfchain.versions import __version__

# Connections to addresses that a route admits, and to no others; over a proxy if the environment names one.
#
# The address that is connected to is what is judged, so a name that resolves differently a moment later
# leads nowhere else. Source: RFC 9110, 9.3.6 (CONNECT) of the IETF.

_T = TypeVar("_T")
PRIVATE_HINT = "if this is intended, set fetch.allowPrivateRedirects in the workspace's configuration"
TlsContext = Callable[[], ssl.SSLContext]


class ProxyDeniedError(FetchError):
    """The proxy refuses; never leaves this package and its callers."""


@dataclass(frozen=True, slots=True)
class _Proxy:
    is_secure: bool
    host: str
    port: int
    credentials: bytes
    """A header line, or nothing."""


def dial(route: Route, tls: TlsContext, *, limits: FetchLimits, deadline: Deadline, name: str) -> Connection:
    """A new connection to the route's present target, TLS included."""
    target = route.current
    proxy = _proxy_of(target, name)
    if proxy is not None:
        return _dial_proxy(proxy, route, tls, limits=limits, deadline=deadline, name=name)
    addresses = admitted(route, resolve(target.host, target.port, name=name), name=name)
    sock, address = connect(addresses, target.port, limits, deadline)
    if target.scheme == "https":
        sock = _secure(sock, target.host, tls, name=name)
    return Connection(sock, limits=limits, name=name, address=address)


def admitted(route: Route, addresses: list[str], *, name: str) -> list[str]:
    """Those of the addresses that the route's present target may be at; at least one."""
    found = [address for address in addresses if route.admits(address)]
    if not found:
        raise FetchError(f"{name}: a redirect to a private network address is refused", hint=PRIVATE_HINT)
    return found


def connect(
    addresses: list[str], port: int, limits: FetchLimits, deadline: Deadline
) -> tuple[socket.socket, str]:
    """A connection to the first of the addresses that answers, and which one that is."""
    failure = "no address"
    for address in addresses:
        deadline.check()
        timeout = min(limits.connect_timeout, max(1e-3, deadline.remaining))
        try:
            sock = socket.create_connection((address, port), timeout)
        except TimeoutError:
            failure = f"no connection within {timeout:.3g} s"
            continue
        except OSError as error:
            failure = f"cannot connect: {one_line(error.strerror or str(error), 80).lower()}"
            continue
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, address
    deadline.check()
    raise TransientError(failure)


def trusted_authorities() -> ssl.SSLContext:
    """The certificate authorities that browsers trust, or those of `SSL_CERT_FILE`."""
    import certifi  # noqa: PLC0415 - for https alone

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        return ssl.create_default_context(
            cafile=file or (None if folder else certifi.where()), capath=None if file else folder
        )
    except (OSError, ValueError) as error:
        raise FetchError(
            "the certificates of trusted authorities cannot be read",
            hint="check SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error


def _secure(sock: Any, host: str, tls: TlsContext, *, name: str) -> Any:
    """The socket with TLS on it; the handshake has the time that the connection had."""
    try:
        context = tls()
        if isinstance(sock, ssl.SSLSocket):
            return _InnerTls(sock, context, host)
        return context.wrap_socket(sock, server_hostname=host)
    except FetchError:
        sock.close()
        raise
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise FetchError(
            f"{name}: the server's certificate is not trusted: {one_line(error.verify_message)}",
            hint="for a certificate authority of your own set SSL_CERT_FILE",
        ) from error
    except TimeoutError as error:
        sock.close()
        raise TransientError("the server does not finish the TLS handshake") from error
    except (OSError, ValueError) as error:
        sock.close()
        raise TransientError("the server does not answer in TLS") from error
    except BaseException:
        sock.close()
        raise


class _InnerTls:
    """TLS to a server through the tunnel of a proxy that itself speaks TLS: what `Connection` needs of it."""

    def __init__(self, outer: ssl.SSLSocket, context: ssl.SSLContext, host: str) -> None:
        self.outer = outer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._carry(self._tls.do_handshake)

    def _carry(self, step: Callable[[], _T]) -> _T:
        """The result of a step, with what it sends and waits for carried through the tunnel."""
        while True:
            result: tuple[_T] | None = None
            with contextlib.suppress(ssl.SSLWantReadError):
                result = (step(),)
            self.outer.sendall(self._out.read())
            if result is not None:
                return result[0]
            if data := self.outer.recv(1 << 16):
                self._in.write(data)
            else:
                self._in.write_eof()

    def recv_into(self, view: memoryview) -> int:
        try:
            return self._carry(lambda: self._tls.read(len(view), view))  # type: ignore[return-value]
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0

    def sendall(self, data: bytes) -> None:
        self._carry(lambda: self._tls.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outer, name)


def _dial_proxy(
    proxy: _Proxy, route: Route, tls: TlsContext, *, limits: FetchLimits, deadline: Deadline, name: str
) -> Connection:
    target = route.current
    address = _judge_by_name(route, name)
    sock: Any = connect(resolve(proxy.host, proxy.port, name=name), proxy.port, limits, deadline)[0]
    if proxy.is_secure:
        sock = _secure(sock, proxy.host, tls, name=name)
    if target.scheme == "http":
        prefix = f"http://{target.authority}".encode()
        return Connection(
            sock, limits=limits, name=name, address=address, prefix=prefix, extra=proxy.credentials
        )
    plain = Connection(sock, limits=limits, name=name)
    host = f"[{target.host}]" if ":" in target.host else target.host
    goal = f"{host}:{target.port}".encode()
    try:
        response = plain.ask(b"CONNECT", goal, b"Host: %s\r\n%s" % (goal, proxy.credentials), deadline, name)
    except BaseException:
        plain.close()
        raise
    if response.status != 200:
        plain.close()
        if response.status in (401, 403, 407):
            raise ProxyDeniedError(f"{name}: the proxy refuses: HTTP status {response.status}")
        raise TransientError(f"the proxy refuses: HTTP status {response.status}")
    sock.settimeout(min(limits.connect_timeout, max(1e-3, deadline.remaining)))
    secured = _secure(sock, target.host, tls, name=name)
    return Connection(secured, limits=limits, name=name, address=address)


def _judge_by_name(route: Route, name: str) -> str | None:
    # the proxy chooses the address: judge what the name means here, if it means anything
    try:
        addresses = resolve(route.current.host, route.current.port, name=name)
    except (FetchError, TransientError):
        return None
    for address in addresses:
        admitted(route, [address], name=name)
    return addresses[0]


def _proxy_of(target: Target, name: str) -> _Proxy | None:
    found = proxy_for(target.scheme, target.host, target.port)
    if found is None:
        return None
    with contextlib.suppress(ValueError):
        parts = urlsplit(found if "://" in found else f"http://{found}")
        if parts.scheme in ("http", "https") and parts.hostname:
            credentials = ""
            if parts.username is not None:
                pair = basic(unquote(parts.username), unquote(parts.password or ""))
                credentials = f"Proxy-Authorization: {pair}\r\n"
            is_secure = parts.scheme == "https"
            port = parts.port or (443 if is_secure else 80)
            return _Proxy(is_secure, parts.hostname, port, credentials.encode())
    raise FetchError(
        f"{name}: the environment's proxy for {target.scheme} is not the URL of an HTTP proxy",
        hint=f"check {target.scheme}_proxy and all_proxy, or name the host in no_proxy",
    )


_Origin = tuple[str, str, int]
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULTS = {
    "user-agent": f"User-Agent: odfchain/{__version__}\r\n",
    "accept": "Accept: */*\r\n",
    "accept-encoding": "Accept-Encoding: identity\r\n",  # the bytes are to be those that the server stores
}


def request_headers(
    route: Route, given: Iterable[tuple[str, str]], own: Iterable[tuple[str, str]] = ()
) -> bytes:
    """The headers of a request; those `given` for the first URL, credentials too, stay with its origin."""
    kept = given if route.keeps_headers else ()
    names = {name.lower() for name, _ in kept}
    text = "" if "host" in names else f"Host: {route.current.authority}\r\n"
    text += "".join(line for name, line in _DEFAULTS.items() if name not in names)
    for name, value in (*kept, *own):
        text += f"{name}: {value}\r\n"
    return text.encode("latin-1")


def _closed() -> FetchError:
    return FetchError("the connections to the peer were closed")


def _origin(route: Route) -> _Origin:
    target = route.current
    return target.scheme, target.host, target.port


class HttpPool:
    """Sends requests over kept connections, at most `parallel` at a time; safe to use from threads."""

    def __init__(self, limits: FetchLimits, parallel: int = 1) -> None:
        self.closed = threading.Event()
        """Set once, by `close`; waiting for it is a pause that closing cuts short."""
        self._limits = limits
        self.slots = threading.BoundedSemaphore(parallel)
        """A semaphore for requests."""
        self._lock = threading.Lock()
        self._idle: dict[_Origin, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._context: ssl.SSLContext | None = None

    def route(self, first: Target, name: str) -> Route:
        """The way of one attempt to a target."""
        return Route(first, name=name, limit=self._limits.redirects, allow_private=self._limits.allow_private)

    @contextlib.contextmanager
    def get(
        self,
        first: Target,
        *,
        headers: Callable[[Route], bytes],
        deadline: Deadline,
        name: str,
        secrets: Iterable[str],
        redirected: Callable[[Target], None] = lambda _: None,
        by: Route | None = None,
    ) -> Iterator[tuple[Response, str]]:
        """The response at the end of all redirects, and what messages call it; read within the block.

        `redirected` may refuse a target by an error of its own. `by`: the way so far, where the first target
        was named by a server.
        """
        route, where = by or self.route(first, name), name
        while True:
            with self.exchange(route, headers(route), deadline=deadline, name=where) as response:
                location = response.headers.location() if response.status in _REDIRECTS else None
                if location is None:
                    yield response, where
                    return
            route.follow(location, secrets)
            redirected(route.current)
            where = f"{name} (redirected to {route.current.public(secrets)})"

    @contextlib.contextmanager
    def exchange(
        self,
        route: Route,
        headers: bytes,
        *,
        deadline: Deadline,
        name: str,
        body: bytes | None = None,
        file: tuple[BinaryIO, int] | None = None,
    ) -> Iterator[Response]:
        """Send one GET to the route's present target; the body is read while the caller is in the block.

        With a `body` it is a POST, with a `file` and its size [bytes] a PUT; both may arrive twice.
        A kept connection that turns out to be closed does not count as an attempt.
        """
        target, origin = route.current, _origin(route)
        while True:
            connection = self._take(origin, route) or self._new(route, deadline, name)
            try:
                if connection.address is not None:
                    route.connected(connection.address)
                try:
                    if file is not None:
                        sized = headers + b"Content-Length: %d\r\n" % file[1]
                        # a second attempt sends the file from its start
                        file[0].seek(0)
                        response = connection.ask(b"PUT", target.path, sized, deadline, name, file=file[0])
                    elif body is None:
                        response = connection.ask(b"GET", target.path, headers, deadline, name)
                    else:
                        sized = headers + b"Content-Length: %d\r\n" % len(body)
                        response = connection.ask(b"POST", target.path, sized, deadline, name, body)
                except StaleError:
                    # a kept connection that turns out to be closed does not count as an attempt
                    self._drop(connection)
                    continue
                yield response
            except BaseException:
                self._drop(connection)
                raise
            if connection.settle():
                # its rest was read: the next request can use it
                self._keep(origin, connection)
            else:
                self._drop(connection)
            return

    def lend(self, route: Route, *, deadline: Deadline, name: str, new: bool) -> Connection | None:
        """A kept connection to the route's present target, None if there is none; or else a new one.

        It is for several requests at a time, does not count as one of the parallel ones, and has to be given
        back.
        """
        return self._new(route, deadline, name) if new else self._take(_origin(route), route)

    def dialled(self, route: Route, *, deadline: Deadline, name: str) -> socket.socket:
        """A connected socket of the caller's own to the route's present target, TLS included."""
        connection = dial(route, self._tls, limits=self._limits, deadline=deadline, name=name)
        if connection.address is not None:
            route.connected(connection.address)
        return connection.sock

    def give_back(self, route: Route, connection: Connection, *, usable: bool) -> None:
        """Keep a lent connection for the next request if it can be used, or close it."""
        if usable and connection.settle():
            self._keep(_origin(route), connection)
        else:
            self._drop(connection)

    def _take(self, origin: _Origin, route: Route) -> Connection | None:
        with self._lock:
            if self.closed.is_set():
                raise _closed()
            kept = self._idle.get(origin)
            # behind a proxy a name that means nothing here is judged by no address, as when it was dialled
            if kept and (kept[-1].address is None or route.admits(kept[-1].address)):
                connection = kept.pop()
                self._busy.add(connection)
                return connection
        return None

    def _new(self, route: Route, deadline: Deadline, name: str) -> Connection:
        connection = dial(route, self._tls, limits=self._limits, deadline=deadline, name=name)
        with self._lock:
            if not self.closed.is_set():
                self._busy.add(connection)
                return connection
        # the pool was closed while this connection was made
        connection.close()
        raise _closed()

    def _keep(self, origin: _Origin, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if not self.closed.is_set():
                self._idle.setdefault(origin, []).append(connection)
                return
        connection.close()

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            connection.close()  # under the lock: `close` must not shut down a number that is another's by now

    def _tls(self) -> ssl.SSLContext:
        with self._lock:
            self._context = self._context or trusted_authorities()
            return self._context

    def close(self) -> None:
        """Close what is kept, and end what other threads are waiting for."""
        self.closed.set()
        with self._lock:
            for connection in self._busy:
                # shuts the socket down, which wakes the thread that waits for it
                connection.abort()
            kept = [connection for found in self._idle.values() for connection in found]
            self._idle.clear()
        for connection in kept:
            connection.close()


# Many small requests on one connection, sent before the answers to the earlier ones have come.
#
# One request after the other costs a round trip and two switches between processes for each block of a few
# hundred bytes; parallel threads hide the first and multiply the second. With requests sent ahead one system
# call brings the answers to dozens of them.
#
# Only a connection that has answered before is used this way. A server may close it in the middle: what was
# not answered is asked for again on a new one, as long as each brings a good number of answers. All else
# that is unusual (a redirect, an error, another body) ends the pipeline, and the caller asks for the blocks
# one by one, where failures are judged. Source: RFC 9112, 9.3.2.

# How many answers a connection must bring, or there is no gain in asking ahead on the next.
_WORTH_IT = 16


class HttpPipeline:
    """Blocks over one connection at a time; for one thread."""

    def __init__(
        self,
        pool: HttpPool,
        route: Route,
        *,
        path: Callable[[Multihash], bytes],
        headers: bytes,
        limits: FetchLimits,
        timing: Timing,
        name: str,
    ) -> None:
        """Prepare to ask; `path` says where under the route's host a block is."""
        self._pool = pool
        self._route = route
        self._path = path
        self._headers = headers
        self._seconds = limits.deadline + math.ceil(LIMITS.block_bytes / SHARING.bytes_per_second)
        self._timing = timing
        self._name = name
        self._asked: deque[Multihash] = deque()
        self._connection: Connection | None = None
        self._over = False
        # How many came over the present connection; of the first one it is not known.
        self._answers = _WORTH_IT

    def open(self) -> bool:
        """Take a connection that has answered before; returns whether there is one."""
        with contextlib.suppress(TransientError, OdfchainError):
            self._connection = self._lend(new=False)
        return self._connection is not None

    def ask(self, names: Sequence[Multihash]) -> None:
        """Ask for blocks; nothing is waited for, and nothing is raised."""
        self._asked.extend(names)
        if self._connection is not None:
            self._send(names)

    def receive(self) -> bytes | None:
        """The bytes of the next block in the order of asking, hashed; None when the pipeline has ended."""
        while self._asked and not self._over:
            if self._connection is None and not self._reconnect():
                break
            assert self._connection is not None  # noqa: S101 - connected just now
            try:
                data = self._answer(self._connection)
            except (ProtocolError, FetchError):
                break
            except TransientError:
                self._lost()
                continue
            if data is None or hash_bytes(data) != self._asked[0]:
                break
            self._asked.popleft()
            self._answers += 1
            if not self._connection.persists:
                self._lost()
            return data
        self._end()
        return None

    def close(self) -> None:
        """Let go of the connection; it is kept for others if nothing more comes over it."""
        connection, self._connection, self._over = self._connection, None, True
        if connection is not None:
            self._pool.give_back(self._route, connection, usable=not self._asked)
        self._asked.clear()

    def _answer(self, connection: Connection) -> bytes | None:
        response = connection.next_response(self._deadline(), self._name)
        if response.status != 200 or response.encoding:
            return None
        return response.read(LIMITS.block_bytes)

    def _reconnect(self) -> bool:
        with contextlib.suppress(TransientError, OdfchainError):
            self._connection = self._lend(new=True)
            self._answers = 0
            self._send(list(self._asked))
        return self._connection is not None

    def _send(self, names: Sequence[Multihash]) -> None:
        assert self._connection is not None  # noqa: S101 - the callers have looked
        # a connection that fails here may still hold answers: reading finds out
        with contextlib.suppress(TransientError, OdfchainError):
            paths = [self._path(name) for name in names]
            self._connection.send_ahead(paths, self._headers, self._deadline())

    def _lend(self, *, new: bool) -> Connection | None:
        connection = self._pool.lend(self._route, deadline=self._deadline(), name=self._name, new=new)
        if connection is not None and connection.address is not None:
            self._route.connected(connection.address)
        return connection

    def _deadline(self) -> Deadline:
        return Deadline(self._seconds, self._timing, name=self._name)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(self._route, connection, usable=False)

    def _lost(self) -> None:
        self._let_go()
        # a server may close a connection after many answers; after few the pipeline is not worth it
        self._over = self._answers < _WORTH_IT

    def _end(self) -> None:
        self._over = True
        self._let_go()
