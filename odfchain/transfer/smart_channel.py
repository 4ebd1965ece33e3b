"""A WebSocket to a node, over a connection that is dialled and judged like that of every other request.

Nothing is compressed on the way: inflating is a way to fill a memory. Source: RFC 6455; RFC-050.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response
from websockets.sync.client import ClientConnection
from websockets.uri import parse_uri

from odfchain.errors import AccessError, CorruptedPeerError, TransferError, UnsupportedPeerError
from odfchain.limits import SHARING
from odfchain.net.headers import parse_http_date
from odfchain.net.pool import HttpPool
from odfchain.net.redirects import Route
from odfchain.net.retry import Deadline, Timing, TransientError
from odfchain.smart.client_flow import ClosedError
from odfchain.smart.frames import FewFrames
from odfchain.smart.smart_messages import VERSION
from odfchain.text import one_line
from odfchain.versions import __version__

_CLOSE_SECONDS = 5.0
_PING_SECONDS = 20.0
_SHOWN = 200
_NOT_PASSED_ON = (
    "a proxy before the node does not pass WebSockets on: nginx needs `proxy_http_version 1.1` and the "
    "headers Upgrade and Connection (docs/nodes.md); without 'odf+' a dataset can be pulled all the same"
)
_NOT_SMART = "a web server that hands out files is named without 'odf+'"


class _Client(FewFrames, ClientProtocol):
    """What a client understands of a connection."""


class WebSocketChannel:
    """One connection to a node, for the messages of one transfer; a `Channel`."""

    def __init__(self, connection: ClientConnection, address: str, where: str) -> None:
        self._connection = connection
        self.where = where
        self.address = address
        """The IP address of the node."""
        dates = connection.response.headers.get_all("Date") if connection.response is not None else []
        self.date = parse_http_date(dates[0]) if len(dates) == 1 else None
        """What time it was there when it took the connection, where it said so."""

    @classmethod
    def open(
        cls, pool: HttpPool, route: Route, headers: Iterable[tuple[str, str]], where: str, most: int
    ) -> WebSocketChannel:
        """A connection to the target of a route, which no redirect has led to.

        A message of the node has `most` bytes.

        Raises:
            AccessError: the node wants to know who asks, or refuses who does.
            UnsupportedPeerError: it speaks another version, or not this protocol at all.
            TransientError, FetchError: nobody answers.
        """
        target = route.current
        deadline = Deadline(SHARING.request_seconds, Timing(), name=where)
        sock = pool.dialled(route, deadline=deadline, name=where)
        scheme = "wss" if target.scheme == "https" else "ws"
        uri = parse_uri(f"{scheme}://{target.authority}{target.path.decode('latin-1')}")
        sock.settimeout(None)
        protocol = _Client(uri, max_size=most)
        connection = ClientConnection(
            sock,
            protocol,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            close_timeout=_CLOSE_SECONDS,
            max_queue=1,
        )
        try:
            address = str(sock.getpeername()[0])  # asked now: a node may end the connection at once
            connection.handshake([*headers, VERSION], f"odfchain/{__version__}", deadline.remaining)
        except InvalidStatus as error:
            _end(connection)
            raise _refused(error, where) from None
        except InvalidHandshake as error:
            _end(connection)
            raise UnsupportedPeerError(
                f"{where}: no node that speaks the smart protocol: {one_line(str(error), _SHOWN)}",
                hint=_NOT_SMART,
            ) from None
        except (OSError, EOFError, TimeoutError) as error:
            _end(connection)
            raise TransientError(f"no answer: {one_line(str(error), _SHOWN)}") from None
        connection.__enter__()  # it is left by `close`
        connection.start_keepalive()
        return cls(connection, address, where)

    def send(self, text: str) -> None:
        """As `Channel`."""
        try:
            self._connection.send(text)
        except ConnectionClosed as error:
            raise _closed(error) from None

    def receive(self, seconds: float | None) -> str | None:
        """As `Channel`."""
        try:
            found = self._connection.recv(seconds)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code in (1002, 1007, 1009):  # by us, for what came
                raise CorruptedPeerError(
                    f"{self.where}: a message that is no message: {one_line(error.sent.reason, _SHOWN)}"
                ) from None
            raise _closed(error) from None
        if not isinstance(found, str):
            raise CorruptedPeerError(f"{self.where}: a message that is no text")
        return found

    def close(self, code: int, reason: str) -> None:
        """As `Channel`."""
        with contextlib.suppress(Exception):
            self._connection.close(code, reason)


def _end(connection: ClientConnection) -> None:
    connection.close_socket()
    connection.recv_events_thread.join()


def _closed(error: ConnectionClosed) -> ClosedError:
    if error.rcvd is None:
        return ClosedError(1006, "the connection broke")
    return ClosedError(error.rcvd.code, error.rcvd.reason)


def _refused(error: InvalidStatus, where: str) -> TransferError:
    """What the status says that came in place of a connection: from the node, or from a proxy before it."""
    status = error.response.status_code
    said = _said(error.response)
    what = f"{where}: HTTP status {status}{f': {said}' if said else ''}"
    if status == 401:
        return AccessError(what, hint="keep a token for the node: `odfchain login URL`")
    if status == 403:
        return AccessError(what, hint="check whose token it is, and the account in the URL")
    if status == 421:
        return TransferError(what, hint="those who run the node name the host: odfchain serve --allow-host")
    if status in (502, 503, 504):
        return TransferError(what, hint="the node behind that address does not answer now: try again later")
    if status == 400 and "version" in said.lower():
        return UnsupportedPeerError(what, hint="the node speaks another version of the smart protocol")
    if status in (400, 426):
        return UnsupportedPeerError(what, hint=_NOT_PASSED_ON)
    return UnsupportedPeerError(what, hint=_NOT_SMART)


def _said(response: Response) -> str:
    """The message of an answer, in one line; pages that are made for browsers say nothing here."""
    text = (response.body or b"").decode(errors="replace")
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("message"), str):
            text = found["message"]
    return "" if text.lstrip().startswith("<") else one_line(text.strip(), _SHOWN)
