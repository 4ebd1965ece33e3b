"""Requests over connections that are kept for the next one: the one way in which odfchain speaks HTTP.

What is asked for is followed over its redirects, each of which is judged (`storage/routes.py`). Cookies,
password files and decoding there are none, and no URL is logged. Source: RFC-056.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.storage.http_rules import Deadline, StaleError
from odfchain.storage.locations import Target
from odfchain.storage.routes import Route
from odfchain.versions import __version__

if TYPE_CHECKING:
    from odfchain.storage.http_connection import Connection, Response


def trusted_authorities() -> ssl.SSLContext:
    """The certificate authorities that browsers trust, or those of `SSL_CERT_FILE`."""
    import certifi  # noqa: PLC0415 - for https alone

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        cafile = file or (None if folder else certifi.where())
        return ssl.create_default_context(cafile=cafile, capath=None if file else folder)
    except (OSError, ValueError) as error:
        hint = "check SSL_CERT_FILE and SSL_CERT_DIR"
        raise FetchError("the certificates of trusted authorities cannot be read", hint=hint) from error


_Origin = tuple[str, str, int]
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULTS = (
    ("User-Agent", f"odfchain/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),  # the bytes are to be those that the server stores
)
HeaderPairs = list[tuple[str, str]]


def request_headers(
    route: Route, given: Iterable[tuple[str, str]], own: Iterable[tuple[str, str]] = ()
) -> HeaderPairs:
    """The headers of a request; those `given` for the first URL, credentials too, stay with its origin."""
    kept = [*given] if route.keeps_headers else []
    names = {name.lower() for name, _ in kept}
    ours = (("Host", route.current.authority), *_DEFAULTS)
    return [*(pair for pair in ours if pair[0].lower() not in names), *kept, *own]


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
        route: Route,
        *,
        headers: Callable[[Route], HeaderPairs],
        deadline: Deadline,
        name: str,
        secrets: Iterable[str],
        redirected: Callable[[Target], None] = lambda _: None,
    ) -> Iterator[tuple[Response, str]]:
        """The response after all redirects (which `redirected` may refuse), and its name; read it within."""
        where = name
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
        headers: HeaderPairs,
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
        size = file[1] if file is not None else None if body is None else len(body)
        method = "PUT" if file is not None else "GET" if body is None else "POST"
        sized = headers if size is None else [*headers, ("Content-Length", str(size))]
        while True:
            kept = self._take(origin, route)
            connection = kept or self._new(route, deadline, name)
            try:
                route.connected(connection.address)
                if file is not None:
                    # a second attempt sends the file from its start
                    file[0].seek(0)
                try:
                    response = connection.ask(
                        method, target.path, sized, deadline, name, body=body, file=file and file[0]
                    )
                except StaleError:
                    if kept is None:
                        raise
                    self._drop(connection)
                    continue
                yield response
            except BaseException:
                self._drop(connection)
                raise
            if response.settle():
                # its rest was read: the next request can use it
                self._keep(origin, connection)
            else:
                self._drop(connection)
            return

    def dialled(self, route: Route, *, deadline: Deadline, name: str) -> socket.socket:
        """A connected socket of the caller's own to the route's present target, TLS included."""
        connection = self._dial(route, deadline, name)
        route.connected(connection.address)
        return connection.sock

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
        connection = self._dial(route, deadline, name)
        with self._lock:
            if not self.closed.is_set():
                self._busy.add(connection)
                return connection
        # the pool was closed while this connection was made
        connection.close()
        raise _closed()

    def _dial(self, route: Route, deadline: Deadline, name: str) -> Connection:
        from odfchain.storage.http_connection import dial  # noqa: PLC0415 - urllib3, for requests alone

        return dial(route, self._tls, limits=self._limits, deadline=deadline, name=name)

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
