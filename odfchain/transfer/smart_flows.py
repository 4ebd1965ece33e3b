"""The client's side of the smart protocol: a WebSocket, and its messages in a pull and in a push.

Nothing here decides what is believed: blocks are hashed, judged by the append rules and published by the
callers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response
from websockets.sync.client import ClientConnection
from websockets.uri import parse_uri

from odfchain.errors import AccessError, CorruptedPeerError, TransferError, UnsupportedPeerError
from odfchain.limits import SHARING
from odfchain.storage.http_client import HttpPool
from odfchain.storage.http_rules import Deadline, Timing, TransientError, parse_http_date
from odfchain.storage.routes import Route
from odfchain.text import json_object, one_line
from odfchain.transfer import smart_messages as msg
from odfchain.versions import __version__

PULLED, PUSHED = "Client pull flow succeeded", "Client push flow succeeded"


_Answer = TypeVar("_Answer", bound=msg.Message)


class ClosedError(Exception):
    """The other side closed the connection, or it broke (code 1006)."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason or f"closed with code {code}")
        self.code = code
        self.reason = reason


class RefusedError(TransferError):
    """The node refuses with one of the protocol's reasons."""

    def __init__(self, where: str, refusal: msg.Refusal) -> None:
        reason = refusal.reason
        super().__init__(f"{where}: the node refuses: {one_line(repr(reason), 300)}")
        self.reason = reason


# A WebSocket to a node, over a connection that is checked like that of every other request.
# Without compression: a small message could fill the memory. Source: RFC 6455; RFC-050.

_CLOSE_SECONDS = 5.0
_PING_SECONDS = 20.0
_SHOWN = 200
_NOT_PASSED_ON = (
    "a proxy before the node does not pass WebSockets on: nginx needs `proxy_http_version 1.1` and the "
    "headers Upgrade and Connection (docs/nodes.md); without 'odf+' a dataset can be pulled all the same"
)
_NOT_SMART = "a web server that hands out files is named without 'odf+'"


class _Client(msg.FewFrames, ClientProtocol):
    """Websocket protocol of the client."""


class WebSocketChannel:
    """One connection to a node, for the messages of one transfer; they are whole."""

    def __init__(self, connection: ClientConnection, address: str, where: str) -> None:
        self._connection = connection
        self.where = where
        # The IP address of the node.
        self.address = address
        dates = connection.response.headers.get_all("Date") if connection.response is not None else []
        # The node's `Date` when it accepted the connection, if given.
        self.date = parse_http_date(dates[0]) if len(dates) == 1 else None

    @classmethod
    def open(
        cls, pool: HttpPool, route: Route, headers: Iterable[tuple[str, str]], where: str, most: int
    ) -> WebSocketChannel:
        """Connect to the target of a route that has no redirects.

        A message of the node has `most` bytes.

        Raises:
            UnsupportedPeerError: it speaks another version, or not this protocol at all.
            TransientError, FetchError: no answer.
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
            connection.handshake([*headers, msg.VERSION], f"odfchain/{__version__}", deadline.remaining)
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
        """Send one message.

        Raises:
            ClosedError: the connection is not open any more.
        """
        try:
            self._connection.send(text)
        except ConnectionClosed as error:
            raise _closed(error) from None

    def receive(self, seconds: float | None) -> str | None:
        """The next message; None when none came in time.

        Raises:
            ClosedError: the connection is not open any more, and all messages were received.
        """
        try:
            found = self._connection.recv(seconds)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code in (1002, 1007, 1009):  # by us, for what came
                raise CorruptedPeerError(
                    f"{self.where}: an invalid message: {one_line(error.sent.reason, _SHOWN)}"
                ) from None
            raise _closed(error) from None
        if not isinstance(found, str):
            raise CorruptedPeerError(f"{self.where}: a message that is not text")
        return found

    def close(self, code: int, reason: str) -> None:
        """Close the connection; nothing is raised."""
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
    status = error.response.status_code
    said = _said(error.response)
    what = f"{where}: HTTP status {status}{f': {said}' if said else ''}"
    if status == 401:
        return AccessError(what, hint="keep a token for the node: `odfchain login URL`")
    if status == 403:
        return AccessError(what, hint="check whose token it is, and the account in the URL")
    # the node does not know the host name of the request
    if status == 421:
        return TransferError(what, hint="the node's operator admits the host: odfchain serve --allow-host")
    if status in (502, 503, 504):
        return TransferError(what, hint="the node behind that address does not answer now: try again later")
    if status == 400 and "version" in said.lower():
        return UnsupportedPeerError(what, hint="the node speaks another version of the smart protocol")
    if status in (400, 426):
        return UnsupportedPeerError(what, hint=_NOT_PASSED_ON)
    return UnsupportedPeerError(what, hint=_NOT_SMART)


def _said(response: Response) -> str:
    text = (response.body or b"").decode(errors="replace")
    if isinstance(message := json_object(text).get("message"), str):
        text = message
    # HTML pages are for browsers
    return "" if text.lstrip().startswith("<") else one_line(text.strip(), _SHOWN)


@dataclass(slots=True)
class _Conversation:
    """Messages and their answers on one connection; each answer is waited for so long [s]."""

    channel: WebSocketChannel
    reply_seconds: float

    def _ask(self, message: msg.Message, kind: type[_Answer], seconds: float | None = None) -> _Answer:
        self._send(message)
        seconds = seconds or self.reply_seconds
        if (text := self._received(seconds)) is None:
            raise TransferError(
                f"{self.channel.where}: no answer in {seconds:g} s",
                hint="run the command again: what has arrived is kept",
            )
        return self._understood(kind, text)

    def _send(self, message: msg.Message) -> None:
        try:
            self.channel.send(msg.text_of(message))
        # the node's reason for closing is the error, not the failed write
        except ClosedError as closed:
            self._refuse(closed)

    def _received(self, seconds: float) -> str | None:
        try:
            return self.channel.receive(seconds)
        except ClosedError as closed:
            self._refuse(closed)

    def _understood(self, kind: type[_Answer], text: str) -> _Answer:
        try:
            found: _Answer | msg.Refusal = msg.message_of(kind, text)
        except CorruptedPeerError as error:
            raise CorruptedPeerError(f"{self.channel.where}: {error.message}") from None
        if isinstance(found, msg.Refusal):
            raise RefusedError(self.channel.where, found)
        return found

    def _refuse(self, closed: ClosedError) -> NoReturn:
        # a refusal may come as the reason of the closed connection
        if (refusal := msg.refusal_of(closed.reason)) is not None:
            raise RefusedError(self.channel.where, refusal) from None
        said = one_line(closed.reason, 200) or "nothing"
        raise TransferError(
            f"{self.channel.where}: the node closed the connection (code {closed.code}) and said: {said}",
            hint="run the command again: what has arrived is kept",
        ) from None


class PullFlow(_Conversation):
    """A pull as the client holds it: a plan, the blocks, and where objects are, as often as needed."""

    def plan(self, request: msg.PullRequest) -> msg.TransferPlan:
        """The transfer's plan."""
        return self._ask(request, msg.PullPlan).transfer_plan

    def blocks(self) -> msg.BlocksBatch:
        """All of its blocks."""
        return self._ask(msg.Empty(), msg.PulledBlocks).blocks

    def strategies(self, files: Sequence[msg.ObjectFile]) -> tuple[msg.PullStrategy, ...]:
        """Download URLs of these objects; may be called again for others, or for expired URLs."""
        return self._ask(
            msg.PullObjects(object_files=tuple(files)), msg.PullStrategies
        ).object_transfer_strategies


@dataclass(slots=True)
class PushFlow(_Conversation):
    """A push as the client holds it: a plan, blocks, objects page by page, uploads, and the commit."""

    work_seconds: float | None = None
    """For answers that take work: judging blocks, hashing objects, the commit."""

    def begin(self, request: msg.PushRequest) -> None:
        """Announce the push."""
        self._ask(request, msg.Accepted)

    def send_blocks(self, batch: msg.BlocksBatch) -> None:
        """Send the blocks."""
        self._ask(msg.PushedBlocks(new_blocks=batch), msg.Accepted, self.work_seconds)

    def strategies(
        self, files: Sequence[msg.ObjectFile], *, more: bool = False
    ) -> tuple[msg.PushStrategy, ...]:
        """The upload strategy of these objects; with `more`, another list follows when they are uploaded."""
        asked = msg.PushObjects(object_files=tuple(files), is_truncated=more)
        return self._ask(asked, msg.PushStrategies, self.work_seconds).object_transfer_strategies

    def answer_pings(self, uploaded: int, seconds: float) -> None:
        """Wait so long at most for the node to ask for the progress, and report it."""
        if (text := self._received(seconds)) is not None:
            self._understood(msg.Empty, text)
            self._send(msg.UploadProgress(uploaded_objects_count=uploaded))

    def uploaded(self) -> None:
        """All objects of the last list are there; said of an empty list, too."""
        self._send(msg.UploadProgress())

    def commit(self) -> None:
        """Ask for the commit, and wait for what seems to be its confirmation."""
        # an `Empty` may also be a late ping: the caller reads the node's head afterwards
        self._ask(msg.Empty(), msg.Empty, self.work_seconds)
