"""Requests over connections that are kept for the next one: the one way in which odfchain speaks HTTP.

What is asked for is followed over its redirects, each of which is judged (`odfchain.net.redirects`). Cookies,
password files and decoding there are none, and no URL is logged.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.net.dial import dial, trusted_authorities
from odfchain.net.redirects import Route
from odfchain.net.retry import Deadline
from odfchain.net.url import Target
from odfchain.net.wire import Connection, Response, StaleError
from odfchain.versions import __version__

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
        """The places for requests: whoever enters waits for one."""
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
            connection = self._take(origin, route)
            if connection is None:
                connection = dial(route, self._tls, limits=self._limits, deadline=deadline, name=name)
                self._admit(connection)
            try:
                if connection.address is not None:
                    route.connected(connection.address)
                try:
                    if file is not None:
                        sized = headers + b"Content-Length: %d\r\n" % file[1]
                        file[0].seek(0)
                        response = connection.ask(b"PUT", target.path, sized, deadline, name, file=file[0])
                    elif body is None:
                        response = connection.ask(b"GET", target.path, headers, deadline, name)
                    else:
                        sized = headers + b"Content-Length: %d\r\n" % len(body)
                        response = connection.ask(b"POST", target.path, sized, deadline, name, body)
                except StaleError:
                    self._drop(connection)
                    continue
                yield response
            except BaseException:
                self._drop(connection)
                raise
            if connection.settle():
                self._keep(origin, connection)
            else:
                self._drop(connection)
            return

    def lend(self, route: Route, *, deadline: Deadline, name: str, new: bool) -> Connection | None:
        """A kept connection to the route's present target, None if there is none; or else a new one.

        It is for several requests at a time and counts as one of the parallel ones nowhere. Whoever gets it
        gives it back.
        """
        if not new:
            return self._take(_origin(route), route)
        connection = dial(route, self._tls, limits=self._limits, deadline=deadline, name=name)
        self._admit(connection)
        return connection

    def dialled(self, route: Route, *, deadline: Deadline, name: str) -> socket.socket:
        """A connected socket of the caller's own to the route's present target, TLS included."""
        connection = dial(route, self._tls, limits=self._limits, deadline=deadline, name=name)
        if connection.address is not None:
            route.connected(connection.address)
        return connection.socket

    def give_back(self, route: Route, connection: Connection, *, usable: bool) -> None:
        """Keep a lent connection for the next request if it can be used, or close it."""
        if usable and connection.settle():
            self._keep(_origin(route), connection)
        else:
            self._drop(connection)

    def _take(self, origin: _Origin, route: Route) -> Connection | None:
        with self._lock:
            self._check()
            kept = self._idle.get(origin)
            # behind a proxy a name that means nothing here is judged by no address, as when it was dialled
            if kept and (kept[-1].address is None or route.admits(kept[-1].address)):
                connection = kept.pop()
                self._busy.add(connection)
                return connection
        return None

    def _admit(self, connection: Connection) -> None:
        with self._lock:
            if not self.closed.is_set():
                self._busy.add(connection)
                return
        connection.close()
        self._check()

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

    def _check(self) -> None:
        if self.closed.is_set():
            raise FetchError("the connections to the peer were closed")

    def _tls(self) -> ssl.SSLContext:
        with self._lock:
            self._context = self._context or trusted_authorities()
            return self._context

    def close(self) -> None:
        """Close what is kept, and end what other threads are waiting for."""
        self.closed.set()
        with self._lock:
            for connection in self._busy:
                connection.abort()
            kept = [connection for found in self._idle.values() for connection in found]
            self._idle.clear()
        for connection in kept:
            connection.close()
