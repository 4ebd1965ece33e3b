"""One request on a connection of its own: no cookies, no password files, no decoding, no redirects.

The connection is made to an address that the route admits, so what a name resolved to before or elsewhere
does not count. Every read and write ends at the deadline, also within headers and the TLS handshake. Load
this module when a request is to be made, not before: it brings the HTTP library.
"""

from __future__ import annotations

import contextlib
import ssl
import typing
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import httpcore
import httpx

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.net.address import proxy_for, resolve
from odfchain.net.headers import Headers
from odfchain.net.retry import Deadline, TransientError
from odfchain.net.url import Route, Target
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class Response:
    """Status and headers, and the body as it arrives, exactly as it was sent."""

    status: int
    headers: Headers
    chunks: Iterator[bytes]


class _TimedStream(httpcore.NetworkStream):
    """A stream on which nothing takes longer than until the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def _timeout(self, timeout: float | None) -> float:
        self._deadline.check()
        remaining = self._deadline.remaining
        return max(1e-3, remaining if timeout is None else min(timeout, remaining))

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._timeout(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._timeout(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._timeout(timeout))
        return _TimedStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> typing.Any:
        return self._stream.get_extra_info(info)


class _Connector(httpcore.NetworkBackend):
    """Connects to addresses that the route admits, and to no others."""

    def __init__(self, route: Route | None, deadline: Deadline, *, name: str) -> None:
        self._route = route
        self._deadline = deadline
        self._name = name
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: typing.Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception | None = None
        addresses = resolve(host, port, name=self._name)
        for address in _admitted(self._route, addresses, name=self._name):
            self._deadline.check()
            limit = max(1e-3, min(timeout or self._deadline.remaining, self._deadline.remaining))
            try:
                stream = self._sockets.connect_tcp(address, port, limit, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            if self._route is not None:
                self._route.connected(address)
            return _TimedStream(stream, self._deadline)
        assert failure is not None  # noqa: S101 - there is at least one address
        raise failure


def _admitted(route: Route | None, addresses: list[str], *, name: str) -> list[str]:
    if route is None:
        return addresses
    admitted = [address for address in addresses if route.admits(address)]
    if not admitted:
        raise FetchError(
            f"{name}: a redirect to a private network address is refused",
            hint="if this is intended, set fetch.allowPrivateRedirects in the workspace's configuration",
        )
    return admitted


@contextlib.contextmanager
def exchange(
    route: Route,
    headers: Sequence[tuple[bytes, bytes]],
    *,
    limits: FetchLimits,
    deadline: Deadline,
    name: str,
) -> Iterator[Response]:
    """Send one GET to the route's present target; the body arrives while the caller is in the block.

    Raises:
        TransientError: no connection, no response, or a body that breaks off.
        FetchError: it cannot succeed, or time is up.
    """
    target = route.current
    timeout = {
        "connect": limits.connect_timeout,
        "read": limits.idle_timeout,
        "write": limits.idle_timeout,
        "pool": None,
    }
    port = None if target.has_default_port else target.port
    url = httpcore.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=port, target=target.path
    )
    with contextlib.ExitStack() as stack:
        with _translated(limits, deadline, name, begun=False):
            pool = stack.enter_context(_pool(route, deadline, name))
            response = stack.enter_context(
                pool.stream("GET", url, headers=list(headers), extensions={"timeout": timeout})
            )

        def chunks() -> Generator[bytes, None, None]:
            with _translated(limits, deadline, name, begun=True):
                yield from response.iter_stream()

        with contextlib.closing(chunks()) as body:
            yield Response(response.status, Headers(response.headers), body)


@contextlib.contextmanager
def _translated(limits: FetchLimits, deadline: Deadline, name: str, *, begun: bool) -> Iterator[None]:
    try:
        yield
    except httpcore.TimeoutException as error:
        deadline.check()
        late = isinstance(error, httpcore.ConnectTimeout)
        seconds = limits.connect_timeout if late else limits.idle_timeout
        raise TransientError(f"{'no connection' if late else 'no byte'} within {seconds:g} s") from error
    except httpcore.LocalProtocolError as error:
        raise FetchError(f"{name}: the request cannot be sent") from error
    except httpcore.ProxyError as error:
        raise TransientError(f"the proxy refuses: {one_line(str(error))}") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        deadline.check()
        raise _failed(error, name, begun=begun) from error


def _failed(error: Exception, name: str, *, begun: bool) -> FetchError | TransientError:
    cause = error.args[0] if error.args and isinstance(error.args[0], OSError) else None
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FetchError(
            f"{name}: the server's certificate is not trusted: {one_line(cause.verify_message)}",
            hint="for a certificate authority of your own set SSL_CERT_FILE",
        )
    what = "cannot connect" if isinstance(error, httpcore.ConnectError) else "the connection was lost"
    if cause is not None:
        return TransientError(f"{what}: {one_line(cause.strerror or str(cause)).lower()}")
    return TransientError("the body was cut short" if begun else "the server does not answer in HTTP")


def _pool(route: Route, deadline: Deadline, name: str) -> httpcore.ConnectionPool:
    """A pool for one connection: to the target, or to the proxy that the environment names for it."""
    target = route.current
    context = httpx.create_ssl_context() if target.scheme == "https" else None
    proxy = _proxy_of(target, name)
    if proxy is None:
        backend = _Connector(route, deadline, name=name)
        return httpcore.ConnectionPool(ssl_context=context, network_backend=backend)
    _judge_by_name(route, name)
    return httpcore.HTTPProxy(
        proxy_url=httpcore.URL(
            scheme=proxy.raw_scheme, host=proxy.raw_host, port=proxy.port, target=proxy.raw_path
        ),
        proxy_auth=(proxy.username.encode(), proxy.password.encode()) if proxy.userinfo else None,
        ssl_context=context,
        proxy_ssl_context=httpx.create_ssl_context() if proxy.scheme == "https" else None,
        network_backend=_Connector(None, deadline, name=name),
    )


def _proxy_of(target: Target, name: str) -> httpx.URL | None:
    """The proxy on the way, as the environment names it."""
    found = proxy_for(target.scheme, target.host, target.port)
    if found is None:
        return None
    with contextlib.suppress(httpx.InvalidURL, ValueError):
        url = httpx.URL(found if "://" in found else f"http://{found}")
        if url.scheme in ("http", "https") and url.host:
            return url
    raise FetchError(
        f"{name}: the environment's proxy for {target.scheme} is not the URL of an HTTP proxy",
        hint=f"check {target.scheme}_proxy and all_proxy, or name the host in no_proxy",
    )


def _judge_by_name(route: Route, name: str) -> None:
    """Behind a proxy the address is not ours to choose: judge what the name means here, if anything."""
    try:
        addresses = resolve(route.current.host, route.current.port, name=name)
    except (FetchError, TransientError):
        return
    for address in addresses:
        _admitted(route, [address], name=name)
    route.connected(addresses[0])
