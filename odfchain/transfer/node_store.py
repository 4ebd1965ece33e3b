"""A dataset at a node that speaks the smart transfer protocol, by a WebSocket: its blocks come in one piece.

Everything else is as with a web server, and so is what is believed: blocks that came in a batch are hashed
and lie where the walk of the chain looks for them, objects are hashed as they arrive, from any
address. What a batch lacks is asked for one by one. Source: RFC-050.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response
from websockets.sync.client import ClientConnection
from websockets.uri import parse_uri

from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    FetchError,
    NameCollisionError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.limits import SHARING, SMART, FetchLimits
from odfchain.odf.block_codec import decode_header
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.storage.fsio import storage_errors
from odfchain.storage.http_client import HeaderPairs, HttpPool, request_headers
from odfchain.storage.http_connection import Response as HttpResponse
from odfchain.storage.http_rules import Deadline, Headers, Timing, TransientError, with_retries
from odfchain.storage.http_store import HttpTransport
from odfchain.storage.local import HEAD, conflict
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, SignedFile
from odfchain.storage.routes import Route, proxy_for
from odfchain.storage.store import PEER_LIMITS, Opened, RawBlock, Store, as_transfer_errors
from odfchain.text import json_object, one_line
from odfchain.transfer import smart_messages as msg
from odfchain.transfer.block_batch import packed, plan_of, readable
from odfchain.transfer.slice_files import DataObject
from odfchain.versions import __version__

PULLED, PUSHED = "Client pull flow succeeded", "Client push flow succeeded"

_Answer = TypeVar("_Answer", bound=msg.Message)


class RefusedError(TransferError):
    """The node refuses with one of the protocol's reasons."""

    def __init__(self, where: str, refusal: msg.Refusal) -> None:
        reason = refusal.reason
        said = reason.error_message if isinstance(reason, msg.Internal) else type(reason).__name__
        hint = _NO_FORCE if said == msg.MAY_NOT_OVERWRITE else None
        super().__init__(f"{where}: the node refuses: {one_line(said, 300)}", hint=hint)
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
_NOT_ALLOWED = (
    "its operator says what a token allows (`odfchain token create NAME --allow push:DATASET`); or check the "
    "account in the URL"
)
_NO_FORCE = "the operator gives `odfchain token create NAME --allow push:DATASET --allow force:DATASET`"
_OWNED = "propose it: push it to a third place (folder, bucket, own `serve`) that the owner pulls with --from"
_NOT_SMART = "a web server that hands out files is named without 'odf+'"


class _Client(msg.FewFrames, ClientProtocol):
    """Websocket protocol of the client."""


class _BusyError(TransferError):
    """The node has too much to do, and wants to be left alone for some time [s]."""

    wait = 0.0


class WebSocketChannel:
    """One connection to a node, for the messages of one transfer; they are whole.

    What is believed of them is not decided here. Where the node ends the connection, its reason is raised.
    """

    def __init__(self, connection: ClientConnection, address: str, where: str) -> None:
        self._connection, self.where = connection, where
        # The IP address of the node.
        self.address = address
        heard = connection.response.headers.raw_items() if connection.response is not None else ()
        # The node's `Date` when it accepted the connection, if given.
        self.date = Headers(heard).date("date")

    @classmethod
    def open(
        cls,
        pool: HttpPool,
        route: Route,
        headers: Iterable[tuple[str, str]],
        where: str,
        most: int,
        unknown: Callable[[str], AccessError],
    ) -> WebSocketChannel:
        """Connect to the target of a route that has no redirects.

        A message of the node has `most` bytes. `unknown` is the error for status 401.
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
            raise _refused(error, where, unknown) from None
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

    def ask(self, message: msg.Message, kind: type[_Answer], seconds: float | None = None) -> _Answer:
        """The answer to a message, which is waited for so long [s], or as long as for every request."""
        self.say(message)
        seconds = seconds or SHARING.request_seconds
        if (found := self.heard(kind, seconds)) is None:
            raise TransferError(
                f"{self.where}: no answer in {seconds:g} s",
                hint="run the command again: what has arrived is kept",
            )
        return found

    def heard(self, kind: type[_Answer], seconds: float) -> _Answer | None:
        """The node's next message; None when none came in time."""
        if (text := self.receive(seconds)) is None:
            return None
        try:
            found: _Answer | msg.Refusal = msg.message_of(kind, text)
        except CorruptedPeerError as error:
            raise CorruptedPeerError(f"{self.where}: {error.message}") from None
        if isinstance(found, msg.Refusal):
            raise RefusedError(self.where, found)
        return found

    def say(self, message: msg.Message) -> None:
        """Send a message that has no answer."""
        try:
            self._connection.send(msg.text_of(message))
        # the node's reason for closing is the error, not the failed write
        except ConnectionClosed as error:
            raise self.ended(error.rcvd) from None

    def receive(self, seconds: float) -> str | None:
        """The text of the next message; None when none came in time."""
        try:
            found = self._connection.recv(seconds)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code in (1002, 1007, 1009):  # by us, for what came
                raise CorruptedPeerError(
                    f"{self.where}: an invalid message: {one_line(error.sent.reason, _SHOWN)}"
                ) from None
            raise self.ended(error.rcvd) from None
        if not isinstance(found, str):
            raise CorruptedPeerError(f"{self.where}: a message that is not text")
        return found

    def ended(self, close: Close | None) -> TransferError:
        """The error for a connection that the node has closed, or that broke."""
        code, reason = (1006, "the connection broke") if close is None else (close.code, close.reason)
        # a refusal may come as the reason of the closed connection
        if (refusal := msg.refusal_of(reason)) is not None:
            return RefusedError(self.where, refusal)
        said = one_line(reason, 200) or "nothing"
        return (_BusyError if reason == msg.BUSY else TransferError)(
            f"{self.where}: the node closed the connection (code {code}) and said: {said}",
            hint="run the command again: what has arrived is kept",
        )

    def close(self, code: int, reason: str) -> None:
        """Close the connection; nothing is raised."""
        with contextlib.suppress(Exception):
            self._connection.close(code, reason)


def _end(connection: ClientConnection) -> None:
    connection.close_socket()
    connection.recv_events_thread.join()


def _refused(error: InvalidStatus, where: str, unknown: Callable[[str], AccessError]) -> TransferError:
    status = error.response.status_code
    if status == 401:
        return unknown(f"{where}: HTTP status 401")
    said = _said(error.response)
    what = f"{where}: HTTP status {status}{f': {said}' if said else ''}"
    if status == 403:
        return AccessError(what, hint=_OWNED if said.endswith("is written here") else _NOT_ALLOWED)
    # the node does not know the host name of the request
    if status == 421:
        return TransferError(what, hint="the node's operator admits the host: odfchain serve --allow-host")
    if status in (429, 502, 503, 504):
        busy = _BusyError(what, hint="the node behind that address does not answer now: try again later")
        busy.wait = Headers(error.response.headers.raw_items()).retry_after() or 0.0
        return busy
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


_HEADERS = 16
_OWN_HEADERS = re.compile(
    r"host|content-length|transfer-encoding|connection|upgrade|te|trailer|cookie|expect|proxy-.*",
    re.IGNORECASE,
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,8192}", re.ASCII)


# The clock of a node: URLs that it signs expire by that clock, not by ours.

# Clocks that are closer together are not worth a word [ms]: storages allow minutes.
_NOTICED_MS = 120_000


@dataclass(frozen=True, slots=True)
class NodeClock:
    """A node's `Date`, and the time since then by the monotonic clock."""

    date: Timestamp | None = None
    """None where the node gave none: then the clock of this machine is asked."""
    at: float = 0.0
    """The monotonic time of that [s]."""

    def now_ms(self, at: float) -> int:
        """The time at the node [ms since 1970], now that the other clock says `at` [s]."""
        if self.date is None:
            return Timestamp.now().epoch_ms
        return self.date.epoch_ms + round((at - self.at) * 1_000)

    def has_passed(self, time: Timestamp | None, at: float) -> bool:
        """True if the node's time is later than this; never with an unknown time."""
        return time is not None and time.epoch_ms <= self.now_ms(at)

    def refusal_hint(self, storage: Timestamp | None, at: float) -> str | None:
        """A hint that a clock made a storage with this `Date` refuse the node's URL, if it may have."""
        apart = 0 if storage is None else abs(storage.epoch_ms - self.now_ms(at))
        if apart <= _NOTICED_MS:
            return None
        clock = "the node" if self.date is not None else "this machine"
        return (
            f"the clocks of {clock} and of the storage are {round(apart / 60_000):,} minutes apart, "
            "so that addresses are refused: have them set"
        )


# A node as the destination of a push over the smart transfer protocol.
# It is sent the plan and the blocks, names the objects that it lacks with their upload URLs, and commits.
# Its confirmation is not trusted: its head is read afterwards. Source: RFC-050.

_TOO_LARGE = (
    "a proxy before the node takes no files of that size: in nginx that is `client_max_body_size 0` "
    "(docs/nodes.md)"
)
# Minimal speed of a node [count/s, bytes/s], which sets its timeouts.
_BLOCKS_PER_SECOND, _HASHED_PER_SECOND = 50, 8 << 20
# How long a node that is busy is left alone first, and at most if it asks for that [s].
_BUSY_SECONDS, _LONGEST_SECONDS = 1.0, 120.0
# How often it is looked whether the node asks how far it is [s]; it does so every 10 s.
_DESTINATION_PING_SECONDS = 0.2

# The largest message that the reference node takes [bytes].
_MESSAGE_BYTES = 16 << 20
# The blocks of one push, which lie in memory several times on both sides [bytes].
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """A push to a node: the blocks above its head, oldest first, and the objects they name."""

    expected: Multihash | None
    new: Multihash
    blocks: Sequence[Multihash]
    read: Callable[[Multihash], bytes]
    objects: Sequence[DataObject]
    path: Callable[[DataObject], Path]
    """The file of an object, which was hashed."""
    ref: str = HEAD
    force: bool = False
    visibility: msg.Visibility = msg.Visibility.PRIVATE


class NodeTransport(HttpTransport):
    """A dataset at a node, which is written to as a whole; safe to use from several threads."""

    takes_files = False
    parallel = SHARING.parallel

    def __init__(
        self,
        url: PeerUrl,
        limits: FetchLimits = PEER_LIMITS,
        *,
        token: str | None = None,
        kept: bool = False,
        parallel: int = SHARING.parallel,
    ) -> None:
        """As `HttpTransport`; `url` without `odf+`."""
        super().__init__(url, limits, token=token, kept=kept, parallel=parallel)
        self.where = f"odf+{self.where}"  # what a user writes to get here again
        self._lock = threading.Lock()
        self._channel: WebSocketChannel | None = None
        self._node_address: str | None = None
        self._sizes: dict[str, tuple[ObjectKey, int]] = {}
        self._addresses: dict[str, msg.TransferUrl] = {}
        self._refused: set[str] = set()
        # The node's, since a connection was made.
        self.clock = NodeClock()

    # --- blocks --------------------------------------------------------------------------------------

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:
        """As `Transport`; a chain that the node cannot send in one piece is walked instead."""
        if count > SMART.blocks or proxy_for(self._base) is not None:
            return
        with self._lock:
            if self._channel is None:
                self._channel = self.connected("pull")
                self._node_address = self._channel.address
            try:
                plan = self._channel.ask(msg.PullRequest(begin_after=after), msg.PullPlan).transfer_plan
                if not plan.num_blocks:
                    self._end()
                    return
                blocks = self._channel.ask(msg.Empty(), msg.PulledBlocks).blocks
            except RefusedError as refused:
                self._end()
                if _is_walked(refused.reason):
                    return
                raise
        with contextlib.suppress(CorruptedPeerError):  # what it lacks is asked for alone
            yield from readable(blocks)

    def connected(self, what: str) -> WebSocketChannel:
        """A new connection to the node, for a `pull` or a `push`."""
        name = f"{self.where}{what}"
        route = self._pool.route(self._base.below(what), name)
        with as_transfer_errors():
            try:
                most = SMART.message_bytes if what == "pull" else SMART.answer_bytes
                made = WebSocketChannel.open(self._pool, route, self._given, name, most, self.unknown)
            except TransientError as error:
                raise FetchError(f"{name}: {error.reason}") from error
        self.clock = NodeClock(made.date, self.timing.clock())
        return made

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close(msg.NORMAL, PULLED)

    # --- objects -------------------------------------------------------------------------------------

    def announce(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """As `Transport`: the node is asked where they are, while the connection of the blocks is open."""
        if self._channel is None:
            return
        with self._lock:
            self._sizes |= {str(key): (key, size) for key, size in objects}
            for start in range(0, len(objects), SMART.items):
                self._ask(objects[start : start + SMART.items])

    def _ask(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        assert self._channel is not None  # noqa: S101 - asked by the callers
        asked = {msg.object_file(key, size): str(key) for key, size in objects}
        answer = self._channel.ask(msg.PullObjects(object_files=tuple(asked)), msg.PullStrategies)
        for strategy in answer.object_transfer_strategies:
            if (key := asked.get(strategy.object_file)) is not None:
                given, name = strategy.download_from, f"{self.where}{key}"
                # the node names this URL, so it is checked like the target of a redirect
                self.way_to(given.url, name, self._node_address)
                given_headers(given, name)
                self._addresses[key] = given

    def way_to(self, url: str, name: str, node_address: str | None) -> Route:
        """The way to an address that the node, at this IP address, has named, as after a redirect."""
        route = self._pool.route(self._base, name)
        route.connected(node_address)
        with as_transfer_errors():
            route.follow(url, self._secrets)
        return route

    @contextlib.contextmanager
    def open(self, key: str, start: int, _cap: int, deadline: Deadline, /) -> Iterator[Opened]:
        """As `Transport`; an address that has expired, or is refused once, is asked for again."""
        given = self._addresses.get(key)
        if given is not None and self.clock.has_passed(given.expires_at, self.timing.clock()):
            self._renew(key, given)
            given = self._addresses.get(key)
        try:
            with super().open(key, start, _cap, deadline) as opened:
                yield opened
        except AccessError:
            if given is None or key in self._refused:
                raise
            self._refused.add(key)
            self._renew(key, given)
            raise TransientError("the address that the node had given was refused") from None

    def _problem(self, response: HttpResponse, key: str, where: str) -> Exception | None:
        problem = super()._problem(response, key, where)
        if not isinstance(problem, AccessError) or key not in self._addresses:
            return problem
        # a clock that differs explains why a signed URL is refused
        hint = self.clock.refusal_hint(response.headers.date("date"), self.timing.clock())
        return AccessError(problem.message, hint=hint or problem.hint)

    def _renew(self, key: str, old: msg.TransferUrl) -> None:
        with self._lock:
            if self._addresses.get(key) is not old:
                return
            del self._addresses[key]
            if self._channel is not None:
                # without an answer the node itself serves the object
                self._ask([self._sizes[key]])

    def request(self, key: str, name: str, own: HeaderPairs) -> tuple[Route, Callable[[Route], HeaderPairs]]:
        """As `HttpTransport`, but at the address that the node has given, with its headers alone."""
        if (given := self._addresses.get(key)) is None:
            return super().request(key, name, own)
        way = self.way_to(given.url, name, self._node_address)
        target, wanted = way.current, given_headers(given, name)

        def headers(route: Route) -> HeaderPairs:
            return request_headers(route, (), [*(wanted if route.current == target else ()), *own])

        return way, headers

    def close(self) -> None:
        """As `HttpTransport`; says first that all has come."""
        self._end()
        super().close()

    # --- pushes --------------------------------------------------------------------------------------

    def send(self, shipment: Shipment, progress: Progress) -> None:
        """The node's head is the new one, and all that it refers to is there; or it is what it was.

        Long or large chains are pushed in several pieces, each of which is a chain in itself.
        """
        expected = shipment.expected
        waiting = sorted(shipment.objects, key=lambda item: item.sequence_number)
        first = decode_header(shipment.read(shipment.blocks[0])).sequence_number
        start, most = 0, SMART.blocks
        while start < len(shipment.blocks):
            names = shipment.blocks[start : start + most]
            if (loaded := _loaded(shipment, names)) is None:
                if len(names) == 1:
                    raise TransferError(f"{self.where}: block {names[0]} does not fit into a message")
                most = (len(names) + 1) // 2
                continue
            last = first + start + len(names) - 1
            start += len(names)
            part = [item for item in waiting if item.sequence_number <= last]
            waiting = waiting[len(part) :]
            if len(shipment.blocks) > len(names):
                progress.note(f"blocks up to {last:,} are pushed on their own")
            some = replace(shipment, expected=expected, new=names[-1], blocks=names, objects=part)
            self._send(some, *loaded, progress)
            expected = names[-1]

    def _send(self, shipment: Shipment, batch: msg.BlocksBatch, size: int, progress: Progress) -> None:
        for attempt in itertools.count(1):
            try:
                self._converse(shipment, batch, size, progress)
            except RefusedError as refused:
                if _may_be_done(refused) and self._has(shipment):
                    return  # committed, and the node, or the store behind it, could not say so
                raise self._meant(refused, shipment) from None
            except TransferError as error:
                failure: TransferError | None = error
            else:
                failure = None
            head = Store(self, shipment.ref).head()
            if head == shipment.new:
                return  # even if the connection failed
            if head != shipment.expected:
                raise conflict(shipment.ref, shipment.expected, head)
            final = isinstance(failure, _FINAL) and not isinstance(failure, _ExpiredError)
            wanted = failure.wait if isinstance(failure, _BusyError) else float("inf")
            if wanted <= _LONGEST_SECONDS and attempt <= self.limits.retries:
                # those that were sent away together come back one by one
                seconds = max(wanted, _BUSY_SECONDS * 2**attempt) * random.uniform(1, 1.5)  # noqa: S311
                progress.note(f"{self.where}: the node is busy; it is asked again in {seconds:.0f} s")
                self.timing.wait(seconds)
            elif final or attempt > 1:
                break
        raise failure or TransferError(
            f"{self.where}: the node reported success, but its head did not move",
            hint="contact the node's operator",
        )

    def _has(self, shipment: Shipment) -> bool:
        with contextlib.suppress(TransferError):  # then what the node said is all that is known
            return Store(self, shipment.ref).head() == shipment.new
        return False

    def _meant(self, refused: RefusedError, shipment: Shipment) -> Exception:
        match refused.reason:
            case msg.InvalidHead():
                return conflict(shipment.ref, shipment.expected, Store(self, shipment.ref).head())
            case msg.RefCollision(dataset_id=other):
                return NameCollisionError(
                    f"{self.where}: the dataset is there under another name: {one_line(other)}"
                )
            case msg.NameCollision(dataset_alias=other):
                return NameCollisionError(f"{self.where}: another dataset has that name: {one_line(other)}")
        return refused

    def _converse(self, shipment: Shipment, batch: msg.BlocksBatch, size: int, progress: Progress) -> None:
        channel, ended = self.connected("push"), ""
        # for answers that take work: judging blocks, hashing objects, the commit
        seconds = _work_seconds(shipment)
        request = msg.PushRequest(
            current_head=shipment.expected,
            transfer_plan=plan_of(batch.num_blocks, size, shipment.objects),
            force_update_if_diverged=shipment.force,
            visibility_for_created_dataset=shipment.visibility,
        )
        try:
            channel.ask(request, msg.Accepted)
            channel.ask(msg.PushedBlocks(new_blocks=batch), msg.Accepted, seconds)
            progress.advance(len(shipment.blocks))
            objects, most = shipment.objects, SMART.items
            pages = [objects[start : start + most] for start in range(0, len(objects), most)] or [[]]
            for page in pages:
                asked = {msg.object_file(item.key, item.size): item for item in page}
                named = msg.PushObjects(object_files=tuple(asked), is_truncated=page is not pages[-1])
                answer = channel.ask(named, msg.PushStrategies, seconds)
                self._upload(channel, shipment, asked, answer.object_transfer_strategies, progress)
                channel.say(msg.UploadProgress())  # all that are needed are there; said of an empty list, too
            # what seems to confirm it may also be a late ping: the caller reads the node's head afterwards
            channel.ask(msg.Empty(), msg.Empty, seconds)
            ended = PUSHED
        finally:
            channel.close(msg.NORMAL, ended)

    def _upload(
        self,
        channel: WebSocketChannel,
        shipment: Shipment,
        asked: Mapping[msg.ObjectFile, DataObject],
        strategies: Iterable[msg.PushStrategy],
        progress: Progress,
    ) -> None:
        wanted = []
        for strategy in strategies:
            if (item := asked.get(strategy.object_file)) is None:
                raise CorruptedPeerError(f"{self.where}: the node asks for an object that was not named")
            if strategy.push_strategy is msg.PushMethod.HTTP_UPLOAD:
                wanted.append((item, strategy))
        if wanted:
            progress.phase("Sending objects", sum(item.size for item, _ in wanted))
        stop = threading.Event()

        def put(item: DataObject, strategy: msg.PushStrategy) -> None:
            self._put(item.key, shipment.path(item), strategy, channel.address, stop)
            progress.advance(item.size)

        pool = ThreadPoolExecutor(max_workers=self.parallel, thread_name_prefix="odfchain-push")
        pending: set[Future[None]] = {pool.submit(put, *each) for each in wanted}
        try:
            done = 0
            while pending:
                ready, pending = wait(pending, _DESTINATION_PING_SECONDS, FIRST_COMPLETED)
                for future in ready:
                    future.result()
                done += len(ready)
                # the node may ask how far it is
                if channel.heard(msg.Empty, 0.0) is not None:
                    channel.say(msg.UploadProgress(uploaded_objects_count=done))
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _put(
        self, key: ObjectKey, path: Path, strategy: msg.PushStrategy, address: str, stop: threading.Event
    ) -> None:
        name = f"{self.where}{key}"
        if (given := strategy.upload_to) is None:
            raise CorruptedPeerError(f"{name}: the node wants it and does not say where")
        headers = given_headers(given, name)
        with storage_errors(path):
            size = path.stat().st_size
        seconds = SHARING.request_seconds + size / SHARING.bytes_per_second
        until = Deadline(seconds, self.timing, name=name)

        def attempt() -> None:
            if stop.is_set():
                raise TransferError(f"{name}: stopped, because another object could not be sent")
            route = self.way_to(given.url, name, address)
            own = [*headers, ("Content-Type", "application/octet-stream")]
            with path.open("rb") as file:
                text = request_headers(route, (), own)
                with self._pool.exchange(route, text, deadline=until, name=name, file=(file, size)) as answer:
                    if answer.status == 507:
                        raise _FullError(
                            f"{name}: {answer.what}: insufficient storage on the node",
                            hint="contact the node's operator; what has arrived is not sent again",
                        )
                    if passing := answer.passing():
                        raise passing
                    what = f"{name}: {answer.what}, for {size:,} bytes"
                    if answer.status in (401, 403):
                        hint = self.clock.refusal_hint(answer.headers.date("date"), self.timing.clock())
                        final = given.expires_at is None
                        raise (AccessError if final else _ExpiredError)(what, hint=hint)
                    if not 200 <= answer.status <= 299:
                        raise TransferError(what, hint=_TOO_LARGE if answer.status == 413 else None)

        with self.turns, as_transfer_errors():
            with_retries(attempt, name=name, limits=self.limits, timing=self.timing, deadline=until)

    def write(self, key: str, data: bytes) -> None:
        """The signature of a head that was just pushed is offered once; most nodes have no place for it.

        Nothing else is written: nodes know their chains, and have no branches.
        """
        if key not in (SignedFile.HEAD.value, SignedFile.CHECKPOINT.value, SignedFile.KEYS.value):
            return
        name = f"{self.where}{key}"
        deadline = Deadline(SHARING.request_seconds, self.timing, name=name)
        gone = contextlib.suppress(TransferError, TransientError)  # the head is there without it
        with gone, as_transfer_errors(), TemporaryFile() as stream:
            stream.write(data)
            stream.flush()
            route = self._pool.route(self._base.below(key), name)
            text = request_headers(route, self._given)
            sent = (stream, len(data))
            with self._pool.exchange(route, text, deadline=deadline, name=name, file=sent):
                pass

    def delete(self, key: str) -> None:
        """Nothing: what a node has goes with its chain."""


def _is_walked(reason: msg.Reason) -> bool:
    # we are ahead, or diverged: the walk says which; or the chain is too long for one message
    too_long = isinstance(reason, msg.Internal) and reason.error_message == msg.TOO_MANY_BLOCKS
    return too_long or isinstance(reason, msg.InvalidInterval)


def given_headers(given: msg.TransferUrl, name: str) -> tuple[tuple[str, str], ...]:
    """The headers that a node wants for an object, without those that steer a connection."""
    if len(given.headers) > _HEADERS:
        raise CorruptedPeerError(f"{name}: the node names more than {_HEADERS} headers for it")
    found = tuple((each.name, each.value) for each in given.headers if not _OWN_HEADERS.fullmatch(each.name))
    for header, value in found:
        if not _HEADER_NAME.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
            raise CorruptedPeerError(f"{name}: the node names an invalid header {one_line(header)!r}")
    return found


class _FullError(TransferError):
    """The node's disk is full: another attempt finds it so."""


class _ExpiredError(AccessError):
    """An address that was for some time only is refused: the node gives another one."""


_FINAL = (AccessError, CorruptedPeerError, _FullError, _BusyError)


def _may_be_done(refused: RefusedError) -> bool:
    # an earlier attempt may have committed before its answer was lost
    reason = refused.reason
    at_commit = isinstance(reason, msg.Internal) and reason.phase is msg.Phase.COMPLETE_REQUEST
    return at_commit or isinstance(reason, msg.InvalidHead)


def _work_seconds(shipment: Shipment) -> float:
    # generous, for slow disks and parallel pushes: a dead node is noticed by pings every 20 s
    size = sum(item.size for item in shipment.objects)
    return SHARING.request_seconds + len(shipment.blocks) / _BLOCKS_PER_SECOND + size / _HASHED_PER_SECOND


def _loaded(shipment: Shipment, names: Sequence[Multihash]) -> tuple[msg.BlocksBatch, int] | None:
    blocks, size = [], 0
    for name in names:
        blocks.append(RawBlock(name, shipment.read(name)))
        size += len(blocks[-1].data)
        # the caller tries half as many blocks
        if size > _BLOCK_BYTES:
            return None
    batch = packed(blocks)
    return (batch, size) if msg.fits_message(batch, _MESSAGE_BYTES) else None
