"""A proxy on loopback that connects to public addresses, and to no others.

A library that resolves names and follows redirects by itself cannot be limited in its targets; sent through
here, it can: each connection is to an address that was judged, so neither a redirect nor a name that resolves
differently a moment later leads to what only this machine can reach. Source: RFC 9110, 9.3.6 (CONNECT) of
the IETF.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from odfchain.errors import InvalidIdError
from odfchain.storage.locations import Target
from odfchain.storage.routes import is_public

_T = TypeVar("_T")
# Bytes of a head at most.
_HEAD = 1 << 18
_PIECE = 1 << 16
# Errors that end a connection: one side is gone, or does not speak HTTP.
_FAILURES = OSError, ValueError, InvalidIdError, EOFError, LookupError, asyncio.LimitOverrunError
# Longest time to a head, and to a connection [s].
_SECONDS = 30.0
_OURS = (b"connection", b"keep-alive")


@dataclass(frozen=True, slots=True)
class Pass:
    """Names one client at the proxy, and tells what was refused to it behind TLS.

    A client says it only with CONNECT after a redirect. Of a plain request the answer says what was refused.
    """

    url: str
    """For the client: the address of the proxy, with this name in it."""
    refused: list[str] = field(default_factory=list)
    """Hosts with ports that lie at no public address."""


class _Proxy:
    def __init__(self) -> None:
        self.process = os.getpid()
        self._passes: dict[bytes, Pass] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="odfchain-proxy", daemon=True).start()
        begun = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD), self._loop
        )
        self._port = begun.result().sockets[0].getsockname()[1]

    def new_pass(self) -> Pass:
        word = secrets.token_hex(16)
        found = Pass(f"http://{word}:@127.0.0.1:{self._port}")
        self._passes[b"Basic " + base64.b64encode(f"{word}:".encode())] = found
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(*_FAILURES):
            first, headers = _parted(await _in_time(reader.readuntil(b"\r\n\r\n")))
            method, target, _ = first.split(b" ")
            # without a pass it connects all the same: the pass only says to whom a refusal is reported
            client = self._passes.get(_value(headers, b"proxy-authorization"))
            # of CONNECT the target is a host and a port, of all else a whole URL
            url = Target.parse((b"https://" + target if method == b"CONNECT" else target).decode("latin-1"))
            host, port = url.host, url.port
            try:
                upstream = await _in_time(_connected(host, port))
            except OSError:
                return writer.write(_answer(b"502 Bad Gateway"))
            if upstream is None:
                if client is not None:
                    client.refused.append(f"{host}:{port}")
                return writer.write(_answer(b"403 Forbidden", f"{host}:{port} is at a private address"))
            with contextlib.closing(upstream[1]):
                if method == b"CONNECT":
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    return await _first_of(_passed(reader, upstream[1]), _passed(upstream[0], writer))
                upstream[1].write(_joined(b"%s %s HTTP/1.1" % (method, url.path), headers))
                return await _first_of(_passed(reader, upstream[1]), _answered(upstream[0], writer))
        return None


async def _in_time(waited: Awaitable[_T]) -> _T:
    return await asyncio.wait_for(waited, _SECONDS)


async def _connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """The connection; None where the target is not at a public address."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    public = [str(each[4][0]) for each in found if is_public(str(each[4][0]))]
    if not public:
        return None
    failure = OSError("no address")
    # connected to by address: the name could mean another one a moment later
    for address in dict.fromkeys(public):
        try:
            return await asyncio.open_connection(address, port, limit=_HEAD)
        except OSError as error:
            failure = error
    raise failure


async def _answered(upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # one answer only: the client makes no second request on this connection
    first, headers = _parted(await upstream.readuntil(b"\r\n\r\n"))
    writer.write(_joined(first, headers))
    await _passed(upstream, writer)


async def _passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        # no faster than the other side takes it, so memory stays at one piece
        await writer.drain()


async def _first_of(*ways: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    # when one direction ends, both ends of the connection are closed
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _parted(head: bytes) -> tuple[bytes, list[bytes]]:
    first, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    return first, headers


def _value(headers: list[bytes], name: bytes) -> bytes:
    found = [each.partition(b":") for each in headers]
    return next((value.strip() for key, _, value in found if key.lower() == name), b"")


def _joined(first: bytes, headers: list[bytes]) -> bytes:
    # hop-by-hop headers stay here, and above all the pass
    names = [(each.partition(b":")[0].lower(), each) for each in headers]
    kept = [each for name, each in names if name not in _OURS and not name.startswith(b"proxy-")]
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""])


def _answer(status: bytes, text: str = "") -> bytes:
    body = text.encode()
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
    return head + body


_proxy: _Proxy | None = None
_starting = threading.Lock()


def new_pass() -> Pass:
    """A pass through the proxy of this process, which starts with the first one."""
    global _proxy  # noqa: PLW0603 - one for a process: it has no state but its passes
    with _starting:
        if _proxy is None or _proxy.process != os.getpid():  # threads do not come along with a fork
            _proxy = _Proxy()
        return _proxy.new_pass()
