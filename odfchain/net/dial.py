"""Connections to addresses that a route admits, and to no others; over a proxy if the environment names one.

The address that is connected to is what is judged, so a name that resolves differently a moment later leads
nowhere else. Source: RFC 9110, 9.3.6 (CONNECT) of the IETF.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.net.address import proxy_for, resolve
from odfchain.net.redirects import Route
from odfchain.net.retry import Deadline, TransientError
from odfchain.net.url import Target, basic
from odfchain.net.wire import Connection
from odfchain.text import one_line

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
    """Those of the addresses that the route's present target may be at; at least one.

    Raises:
        FetchError: there is none.
    """
    found = [address for address in addresses if route.admits(address)]
    if not found:
        raise FetchError(f"{name}: a redirect to a private network address is refused", hint=PRIVATE_HINT)
    return found


def connect(
    addresses: list[str], port: int, limits: FetchLimits, deadline: Deadline
) -> tuple[socket.socket, str]:
    """A connection to the first of the addresses that answers, and which one that is.

    Raises:
        TransientError: none does.
    """
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
    """What certificates are judged by: the authorities that browsers trust, or those of `SSL_CERT_FILE`.

    Raises:
        FetchError: they cannot be read.
    """
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
    """Behind a proxy the address is not ours to choose: judge what the name means here, if anything."""
    try:
        addresses = resolve(route.current.host, route.current.port, name=name)
    except (FetchError, TransientError):
        return None
    for address in addresses:
        admitted(route, [address], name=name)
    return addresses[0]


def _proxy_of(target: Target, name: str) -> _Proxy | None:
    """The proxy on the way, as the environment names it."""
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
