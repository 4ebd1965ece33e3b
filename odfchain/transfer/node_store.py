"""A dataset at a node that speaks the smart transfer protocol: its blocks come in one piece.

Everything else is as with a web server, and so is what is believed: blocks that came in a batch are hashed
and lie where the walk of the chain looks for them, objects are hashed as they arrive, from any
address. What a batch lacks is asked for one by one. Source: RFC-050.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

from odfchain import errors
from odfchain.limits import SHARING, SMART, FetchLimits
from odfchain.odf.block_codec import decode_header
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.storage.fsio import storage_errors
from odfchain.storage.http_client import HeaderPairs, request_headers
from odfchain.storage.http_connection import Response as HttpResponse
from odfchain.storage.http_rules import Deadline, Timing, TransientError, with_retries
from odfchain.storage.http_store import HttpTransport
from odfchain.storage.local import HEAD, conflict
from odfchain.storage.public_layout import ObjectKey, PeerUrl, SignedFile
from odfchain.storage.routes import Route, proxy_for
from odfchain.storage.store import PEER_LIMITS, Opened, RawBlock, Store, as_transfer_errors
from odfchain.text import one_line
from odfchain.transfer import smart_messages as msg
from odfchain.transfer.block_batch import packed, plan_of, readable
from odfchain.transfer.slice_files import DataObject
from odfchain.transfer.smart_flows import PULLED, PUSHED, PullFlow, PushFlow, RefusedError, WebSocketChannel

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
        parallel: int = SHARING.parallel,
        timing: Timing | None = None,
    ) -> None:
        """As `HttpTransport`; `url` without `odf+`."""
        super().__init__(url, limits, token=token, parallel=parallel, timing=timing)
        self.where = f"odf+{self.where}"  # what a user writes to get here again
        self._lock = threading.Lock()
        self._channel: WebSocketChannel | None = None
        self._flow: PullFlow | None = None
        self._node_address: str | None = None
        self._sizes: dict[str, tuple[ObjectKey, int]] = {}
        self._addresses: dict[str, msg.TransferUrl] = {}
        self._refused: set[str] = set()
        # The node's, since a connection was made.
        self.clock = NodeClock()

    # --- blocks --------------------------------------------------------------------------------------

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:
        """As `Transport`; a chain that the node cannot send in one piece is walked instead."""
        behind_proxy = proxy_for(self._base) is not None
        if count > SMART.blocks or behind_proxy:
            return
        with self._lock:
            flow = self._pulling()
            try:
                plan = flow.plan(msg.PullRequest(begin_after=after))
                if not plan.num_blocks:
                    self._end()
                    return
                blocks = flow.blocks()
            except RefusedError as refused:
                self._end()
                if _is_walked(refused.reason):
                    return
                raise
        with contextlib.suppress(errors.CorruptedPeerError):  # what it lacks is asked for alone
            yield from readable(blocks)

    def _pulling(self) -> PullFlow:
        if self._flow is None:
            self._channel = self.connected("pull")
            self._node_address = self._channel.address
            self._flow = PullFlow(self._channel, SHARING.request_seconds)
        return self._flow

    def connected(self, what: str) -> WebSocketChannel:
        """A new connection to the node, for a `pull` or a `push`."""
        name = f"{self.where}{what}"
        route = self._pool.route(self._base.below(what), name)
        with as_transfer_errors():
            try:
                most = SMART.message_bytes if what == "pull" else SMART.answer_bytes
                made = WebSocketChannel.open(self._pool, route, self._given, name, most)
            except TransientError as error:
                raise errors.FetchError(f"{name}: {error.reason}") from error
        self.clock = NodeClock(made.date, self.timing.clock())
        return made

    def _end(self) -> None:
        channel, self._channel, self._flow = self._channel, None, None
        if channel is not None:
            channel.close(msg.NORMAL, PULLED)

    # --- objects -------------------------------------------------------------------------------------

    def announce(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """As `Transport`: the node is asked where they are, while the connection of the blocks is open."""
        if self._flow is None:
            return
        with self._lock:
            self._sizes |= {str(key): (key, size) for key, size in objects}
            for start in range(0, len(objects), SMART.items):
                self._ask(objects[start : start + SMART.items])

    def _ask(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        assert self._flow is not None  # noqa: S101 - asked by the callers
        asked = {file: str(key) for key, size in objects if (file := msg.object_file(key, size)) is not None}
        for strategy in self._flow.strategies(tuple(asked)):
            key = asked.get(strategy.object_file)
            if key is not None:
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
        except errors.AccessError:
            if given is None or key in self._refused:
                raise
            self._refused.add(key)
            self._renew(key, given)
            raise TransientError("the address that the node had given was refused") from None

    def _problem(self, response: HttpResponse, key: str, where: str) -> Exception | None:
        problem = super()._problem(response, key, where)
        if not isinstance(problem, errors.AccessError) or key not in self._addresses:
            return problem
        # a clock that differs explains why a signed URL is refused
        hint = self.clock.refusal_hint(response.headers.date("date"), self.timing.clock())
        return errors.AccessError(problem.message, hint=hint or problem.hint)

    def _renew(self, key: str, old: msg.TransferUrl) -> None:
        with self._lock:
            if self._addresses.get(key) is not old:
                return
            del self._addresses[key]
            if self._flow is not None:
                # without an answer the node itself serves the object
                self._ask([self._sizes[key]])

    def request(self, key: str, name: str, own: HeaderPairs) -> tuple[Route, Callable[[Route], HeaderPairs]]:
        """As `HttpTransport`, but at the address that the node has given, with its headers alone."""
        given = self._addresses.get(key)
        if given is None:
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
            loaded = _loaded(shipment, names)
            if loaded is None:
                if len(names) == 1:
                    raise errors.TransferError(f"{self.where}: block {names[0]} does not fit into a message")
                most = (len(names) + 1) // 2
                continue
            last = first + start + len(names) - 1
            start += len(names)
            part = [item for item in waiting if item.sequence_number <= last]
            waiting = waiting[len(part) :]
            if len(shipment.blocks) > len(names):
                progress.note(f"blocks up to {last:,} are pushed on their own")
            self._send(
                replace(shipment, expected=expected, new=names[-1], blocks=names, objects=part),
                *loaded,
                progress,
            )
            expected = names[-1]

    def _send(self, shipment: Shipment, batch: msg.BlocksBatch, size: int, progress: Progress) -> None:
        for attempt in (1, 2):
            try:
                self._converse(shipment, batch, size, progress)
            except RefusedError as refused:
                if _may_be_done(refused) and self._has(shipment):
                    return  # committed, and the node, or the store behind it, could not say so
                raise self._meant(refused, shipment) from None
            except errors.TransferError as error:
                failure: errors.TransferError | None = error
            else:
                failure = None
            head = Store(self, shipment.ref).head()
            if head == shipment.new:
                return  # even if the connection failed
            if head != shipment.expected:
                raise conflict(shipment.ref, shipment.expected, head)
            if failure is not None and (attempt == 2 or _is_final(failure)):
                raise failure
        raise errors.TransferError(
            f"{self.where}: the node reported success, but its head did not move",
            hint="contact the node's operator",
        )

    def _has(self, shipment: Shipment) -> bool:
        with contextlib.suppress(errors.TransferError):  # then what the node said is all that is known
            return Store(self, shipment.ref).head() == shipment.new
        return False

    def _meant(self, refused: RefusedError, shipment: Shipment) -> Exception:
        match refused.reason:
            case msg.InvalidHead():
                return conflict(shipment.ref, shipment.expected, Store(self, shipment.ref).head())
            case msg.RefCollision(dataset_id=other):
                return errors.NameCollisionError(
                    f"{self.where}: the dataset is there under another name: {one_line(other)}"
                )
            case msg.NameCollision(dataset_alias=other):
                return errors.NameCollisionError(
                    f"{self.where}: another dataset has that name: {one_line(other)}"
                )
        return refused

    def _converse(self, shipment: Shipment, batch: msg.BlocksBatch, size: int, progress: Progress) -> None:
        channel = self.connected("push")
        flow = PushFlow(channel, SHARING.request_seconds, _work_seconds(shipment))
        ended = ""
        try:
            flow.begin(
                msg.PushRequest(
                    current_head=shipment.expected,
                    transfer_plan=plan_of(batch.num_blocks, size, shipment.objects),
                    force_update_if_diverged=shipment.force,
                    visibility_for_created_dataset=shipment.visibility,
                )
            )
            flow.send_blocks(batch)
            progress.advance(len(shipment.blocks))
            objects, most = shipment.objects, SMART.items
            pages = [objects[start : start + most] for start in range(0, len(objects), most)] or [[]]
            for page in pages:
                self._upload(flow, channel, shipment, page, more=page is not pages[-1], progress=progress)
                flow.uploaded()
            flow.commit()
            ended = PUSHED
        finally:
            channel.close(msg.NORMAL, ended)

    def _upload(
        self,
        flow: PushFlow,
        channel: WebSocketChannel,
        shipment: Shipment,
        page: Sequence[DataObject],
        *,
        more: bool,
        progress: Progress,
    ) -> None:
        asked = {file: item for item in page if (file := msg.object_file(item.key, item.size)) is not None}
        wanted = []
        for strategy in flow.strategies(tuple(asked), more=more):
            item = asked.get(strategy.object_file)
            if item is None:
                raise errors.CorruptedPeerError(
                    f"{self.where}: the node asks for an object that was not named"
                )
            if strategy.push_strategy is msg.PushMethod.HTTP_UPLOAD:
                wanted.append((item, strategy))
        stop = threading.Event()

        def put(item: DataObject, strategy: msg.PushStrategy) -> None:
            self._put(item.key, shipment.path(item), strategy, channel.address, stop)
            progress.advance(0)

        pool = ThreadPoolExecutor(max_workers=self.parallel, thread_name_prefix="odfchain-push")
        pending: set[Future[None]] = {pool.submit(put, *each) for each in wanted}
        try:
            done = 0
            while pending:
                ready, pending = wait(pending, _DESTINATION_PING_SECONDS, FIRST_COMPLETED)
                for future in ready:
                    future.result()
                done += len(ready)
                flow.answer_pings(done, 0.0)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _put(
        self, key: ObjectKey, path: Path, strategy: msg.PushStrategy, address: str, stop: threading.Event
    ) -> None:
        name = f"{self.where}{key}"
        given = strategy.upload_to
        if given is None:
            raise errors.CorruptedPeerError(f"{name}: the node wants it and does not say where")
        headers = given_headers(given, name)
        with storage_errors(path):
            size = path.stat().st_size
        seconds = SHARING.request_seconds + size / SHARING.bytes_per_second
        deadline = Deadline(seconds, self.timing, name=name)

        def attempt() -> None:
            if stop.is_set():
                raise errors.TransferError(f"{name}: stopped, because another object could not be sent")
            route = self.way_to(given.url, name, address)
            own = [*headers, ("Content-Type", "application/octet-stream")]
            with path.open("rb") as file:
                text = request_headers(route, (), own)
                with self._pool.exchange(
                    route, text, deadline=deadline, name=name, file=(file, size)
                ) as answer:
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
                        raise (errors.AccessError if given.expires_at is None else _ExpiredError)(
                            what, hint=hint
                        )
                    if not 200 <= answer.status <= 299:
                        raise errors.TransferError(what, hint=_TOO_LARGE if answer.status == 413 else None)

        with self.turns, as_transfer_errors():
            with_retries(attempt, name=name, limits=self.limits, timing=self.timing, deadline=deadline)

    def write(self, key: str, data: bytes) -> None:
        """The signature of a head that was just pushed is offered once; most nodes have no place for it.

        Nothing else is written: nodes know their chains, and have no branches.
        """
        if key != SignedFile.HEAD.value:
            return
        name = f"{self.where}{key}"
        deadline = Deadline(SHARING.request_seconds, self.timing, name=name)
        with contextlib.suppress(errors.TransferError), as_transfer_errors(), TemporaryFile() as stream:
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
    match reason:
        # we are ahead, or diverged: the walk says which; or the chain is too long for one message
        case msg.InvalidInterval() | msg.Internal(error_message=msg.TOO_MANY_BLOCKS):
            return True
    return False


def given_headers(given: msg.TransferUrl, name: str) -> tuple[tuple[str, str], ...]:
    """The headers that a node wants for an object, without those that steer a connection."""
    if len(given.headers) > _HEADERS:
        raise errors.CorruptedPeerError(f"{name}: the node names more than {_HEADERS} headers for it")
    found = tuple((each.name, each.value) for each in given.headers if not _OWN_HEADERS.fullmatch(each.name))
    for header, value in found:
        if not _HEADER_NAME.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
            raise errors.CorruptedPeerError(f"{name}: the node names an invalid header {one_line(header)!r}")
    return found


class _FullError(errors.TransferError):
    """The node's disk is full: another attempt finds it so."""


class _ExpiredError(errors.AccessError):
    """An address that was for some time only is refused: the node gives another one."""


def _is_final(error: errors.TransferError) -> bool:
    # new upload URLs can be requested
    if isinstance(error, _ExpiredError):
        return False
    return isinstance(error, (errors.AccessError, errors.CorruptedPeerError, _FullError))


def _may_be_done(refused: RefusedError) -> bool:
    # an earlier attempt may have committed before its answer was lost
    match refused.reason:
        case msg.InvalidHead() | msg.Internal(phase=msg.Phase.COMPLETE_REQUEST):
            return True
    return False


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
