"""Connections to addresses that a route admits, and to no others; over a proxy if the environment names one.

The address that is connected to is what is judged, so a name that resolves differently a moment later leads
nowhere else. Source: RFC 9110, 9.3.6 (CONNECT) of the IETF.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from odfchain.errors import AccessError, FetchError, TransferError
from odfchain.limits import FetchLimits
from odfchain.net.address import proxy_for, resolve
from odfchain.net.retry import Deadline, TransientError
from odfchain.net.url import Route, Target
from odfchain.net.wire import Connection
from odfchain.text import one_line

TlsContext = Callable[[], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class _Proxy:
    host: str
    port: int
    credentials: bytes
    """A header line, or nothing."""


def dial(route: Route, tls: TlsContext, *, limits: FetchLimits, deadline: Deadline, name: str) -> Connection:
    """A new connection to the route's present target, TLS included.

    Raises:
        TransientError: nobody answers now.
        TransferError: the address is refused, or the certificate is not trusted.
        FetchError: no such host, or time is up.
    """
    target = route.current
    context = tls() if target.scheme == "https" else None
    proxy = _proxy_of(target, name)
    if proxy is not None:
        return _dial_proxy(proxy, route, context, limits=limits, deadline=deadline, name=name)
    addresses = admitted(route, resolve(target.host, target.port, name=name), name=name)
    sock, address = _connect(addresses, target.port, limits, deadline)
    if context is not None:
        sock = _secure(sock, target.host, context, name=name)
    return Connection(sock, idle=limits.idle_timeout, name=name, address=address)


def admitted(route: Route, addresses: list[str], *, name: str) -> list[str]:
    """Those of the addresses that the route's present target may be at; at least one.

    Raises:
        TransferError: there is none.
    """
    found = [address for address in addresses if route.admits(address)]
    if not found:
        raise TransferError(
            f"{name}: a redirect to a private network address is refused",
            hint="if you trust it, give the URL that it leads to",
        )
    return found


def _connect(
    addresses: list[str], port: int, limits: FetchLimits, deadline: Deadline
) -> tuple[socket.socket, str]:
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
    raise TransientError(failure)


def _secure(sock: socket.socket, host: str, context: ssl.SSLContext, *, name: str) -> socket.socket:
    """The socket with TLS on it; the handshake has the time that the connection had."""
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise TransferError(
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


def _dial_proxy(
    proxy: _Proxy,
    route: Route,
    context: ssl.SSLContext | None,
    *,
    limits: FetchLimits,
    deadline: Deadline,
    name: str,
) -> Connection:
    target = route.current
    address = _judge_by_name(route, name)
    sock, _ = _connect(resolve(proxy.host, proxy.port, name=name), proxy.port, limits, deadline)
    if context is None:
        prefix = f"http://{target.authority}".encode()
        return Connection(
            sock, idle=limits.idle_timeout, name=name, address=address, prefix=prefix, extra=proxy.credentials
        )
    plain = Connection(sock, idle=limits.idle_timeout, name=name)
    host = f"[{target.host}]" if ":" in target.host else target.host
    goal = f"{host}:{target.port}".encode()
    try:
        answer = plain.ask(b"CONNECT", goal, b"Host: %s\r\n%s" % (goal, proxy.credentials), deadline, name)
    except BaseException:
        plain.close()
        raise
    if answer.status != 200:
        plain.close()
        if answer.status in (401, 403, 407):
            raise AccessError(f"{name}: the proxy refuses: HTTP status {answer.status}")
        raise TransientError(f"the proxy refuses: HTTP status {answer.status}")
    sock.settimeout(min(limits.connect_timeout, max(1e-3, deadline.remaining)))
    secured = _secure(sock, target.host, context, name=name)
    return Connection(secured, idle=limits.idle_timeout, name=name, address=address)


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
        if parts.scheme == "http" and parts.hostname:
            credentials = b""
            if parts.username is not None:
                pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
                credentials = b"Proxy-Authorization: Basic %s\r\n" % base64.b64encode(pair)
            return _Proxy(parts.hostname, parts.port or 80, credentials)
    raise TransferError(
        f"{name}: the environment's proxy for {target.scheme} is not the http:// URL of a proxy",
        hint=f"check {target.scheme}_proxy and all_proxy, or name the host in no_proxy",
    )
