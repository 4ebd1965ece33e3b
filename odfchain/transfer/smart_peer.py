"""A dataset at a node that speaks the smart transfer protocol: its blocks come in one piece.

Everything else is as with a web server, and so is what is believed: blocks that came in a batch are hashed
and lie where the walk of the chain looks for them, objects are hashed as they arrive, wherever the node says
that they are. What a batch lacks is asked for one by one. Source: RFC-050.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from odfchain.errors import AccessError, CorruptedPeerError, FetchError
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING, SMART, FetchLimits
from odfchain.model.timestamp import Timestamp
from odfchain.net.address import proxy_for
from odfchain.net.pool import request_headers
from odfchain.net.redirects import Route
from odfchain.net.retry import Deadline, Timing, TransientError
from odfchain.net.wire import Response
from odfchain.smart.block_batch import RawBlock, readable
from odfchain.smart.client_flow import NORMAL, PULLED, PullFlow, RefusedError
from odfchain.smart.smart_messages import (
    TOO_MANY_BLOCKS,
    Internal,
    InvalidInterval,
    PullRequest,
    Reason,
    TransferUrl,
)
from odfchain.store.interfaces import HEAD
from odfchain.text import one_line
from odfchain.transfer.http_peer import HttpPeer, Request
from odfchain.transfer.node_clock import NodeClock
from odfchain.transfer.peer import PEER_LIMITS, Opened, as_transfer_errors
from odfchain.transfer.public_layout import ObjectKey, PeerUrl
from odfchain.transfer.smart_channel import WebSocketChannel
from odfchain.transfer.smart_objects import object_file

_HEADERS = 16
_OWN_HEADERS = re.compile(
    r"host|content-length|transfer-encoding|connection|upgrade|te|trailer|cookie|expect|proxy-.*",
    re.IGNORECASE,
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,8192}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Address:
    """Where the node says that an object is."""

    url: str
    headers: tuple[tuple[str, str], ...]
    expires_at: Timestamp | None


class SmartPeer(HttpPeer):
    """A dataset to read from a node; safe to use from several threads."""

    def __init__(
        self,
        url: PeerUrl,
        limits: FetchLimits = PEER_LIMITS,
        *,
        token: str | None = None,
        parallel: int = SHARING.parallel,
        timing: Timing | None = None,
    ) -> None:
        """As `HttpPeer`; `url` without `odf+`."""
        super().__init__(url, limits, token=token, parallel=parallel, timing=timing)
        self._where = f"odf+{self._where}"  # what a user writes to get here again
        self._lock = threading.Lock()
        self._channel: WebSocketChannel | None = None
        self._flow: PullFlow | None = None
        self._node_address: str | None = None
        self._sizes: dict[str, tuple[ObjectKey, int]] = {}
        self._addresses: dict[str, _Address] = {}
        self._refused: set[str] = set()
        self.clock = NodeClock()
        """The node's, since a connection was made."""

    # --- blocks --------------------------------------------------------------------------------------

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:
        """As `Peer`; a chain that the node cannot send in one piece is walked instead."""
        if self.ref != HEAD or count > SMART.blocks or self._behind_proxy():
            return
        with self._lock:
            flow = self._pulling()
            try:
                plan = flow.plan(PullRequest(begin_after=after))
                if not plan.num_blocks:
                    self._end()
                    return
                blocks = flow.blocks()
            except RefusedError as refused:
                self._end()
                if _is_walked(refused.reason):
                    return
                raise
        with contextlib.suppress(CorruptedPeerError):  # what it lacks is asked for alone
            yield from readable(blocks)

    def _behind_proxy(self) -> bool:
        """Whether requests go over a proxy, which carries no such connections."""
        return proxy_for(self._base.scheme, self._base.host, self._base.port) is not None

    def _pulling(self) -> PullFlow:
        if self._flow is None:
            self._channel = self.connected("pull")
            self._node_address = self._channel.address
            self._flow = PullFlow(self._channel, SHARING.request_seconds)
        return self._flow

    def connected(self, what: str) -> WebSocketChannel:
        """A new connection to the node, for a `pull` or a `push`."""
        name = f"{self._where}{what}"
        route = self._pool.route(replace(self._base, path=self._base.path + what.encode()), name)
        with as_transfer_errors():
            try:
                most = SMART.message_bytes if what == "pull" else SMART.answer_bytes
                made = WebSocketChannel.open(self._pool, route, self._given, name, most)
            except TransientError as error:
                raise FetchError(f"{name}: {error.reason}") from error
        self.clock = NodeClock(made.date, self._timing.clock())
        return made

    def _end(self) -> None:
        channel, self._channel, self._flow = self._channel, None, None
        if channel is not None:
            channel.close(NORMAL, PULLED)

    # --- objects -------------------------------------------------------------------------------------

    def announce(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """As `Peer`: the node is asked where they are, while the connection of the blocks is open."""
        if self._flow is None:
            return
        with self._lock:
            self._sizes |= {str(key): (key, size) for key, size in objects}
            for start in range(0, len(objects), SMART.items):
                self._ask(objects[start : start + SMART.items])

    def _ask(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        assert self._flow is not None  # noqa: S101 - asked by the callers
        asked = {file: str(key) for key, size in objects if (file := object_file(key, size)) is not None}
        for strategy in self._flow.strategies(tuple(asked)):
            key = asked.get(strategy.object_file)
            if key is not None:
                self._addresses[key] = self._judged(strategy.download_from, key)

    def _judged(self, given: TransferUrl, key: str) -> _Address:
        """Where an object is, as far as that may be asked: it is named by a stranger, as a redirect is."""
        name = f"{self._where}{key}"
        self.way_to(given.url, name, self._node_address)
        return _Address(given.url, given_headers(given, name), given.expires_at)

    def way_to(self, url: str, name: str, node_address: str | None) -> Route:
        """The way to an address that the node, at this IP address, has named, as after a redirect."""
        route = self._pool.route(self._base, name)
        if node_address is not None:
            route.connected(node_address)
        with as_transfer_errors():
            route.follow(url, self._secrets)
        return route

    @contextlib.contextmanager
    def open(self, key: str, start: int, _cap: int, deadline: Deadline, /) -> Iterator[Opened]:
        """As `Peer`; an address that has expired by the node's clock, or is refused once, is asked for again.

        Raises:
            AbsentError, TransientError, FetchError, AccessError, TransferError: as there.
        """
        given = self._addresses.get(key)
        if given is not None and self.clock.has_passed(given.expires_at, self._timing.clock()):
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

    def _problem(self, response: Response, key: str, where: str) -> Exception | None:
        """As `HttpPeer`; clocks that differ explain why an address that the node gave is refused."""
        problem = super()._problem(response, key, where)
        if not isinstance(problem, AccessError) or key not in self._addresses:
            return problem
        hint = self.clock.refusal_hint(response.headers.date("date"), self._timing.clock())
        return AccessError(problem.message, hint=hint or problem.hint)

    def _renew(self, key: str, old: _Address) -> None:
        """Ask once more where an object is; without an answer the node itself is asked for it."""
        with self._lock:
            if self._addresses.get(key) is not old:
                return
            del self._addresses[key]
            if self._flow is not None:
                self._ask([self._sizes[key]])

    def request(self, key: str) -> Request:
        """As `HttpPeer`, but at the address that the node has given, with its headers and none of ours."""
        given = self._addresses.get(key)
        if given is None:
            return super().request(key)
        by = self.way_to(given.url, f"{self._where}{key}", self._node_address)
        target = by.current

        def headers(route: Route, own: Sequence[tuple[str, str]]) -> bytes:
            sent = given.headers if route.current == target else ()
            return request_headers(route, (), [*sent, *own])

        return Request(target, headers, by)

    def close(self) -> None:
        """As `HttpPeer`; says first that all has come."""
        self._end()
        super().close()


def _is_walked(reason: Reason) -> bool:
    """Whether a refusal says that blocks are to be had one by one."""
    match reason:
        case InvalidInterval():
            return True  # we are ahead, or went apart: the walk says which
        case Internal(error_message=message):
            return message == TOO_MANY_BLOCKS
    return False


def given_headers(given: TransferUrl, name: str) -> tuple[tuple[str, str], ...]:
    """The headers that a node wants for an object, without those that steer a connection.

    Raises:
        CorruptedPeerError: too many of them, or one that is no header.
    """
    if len(given.headers) > _HEADERS:
        raise CorruptedPeerError(f"{name}: the node names more than {_HEADERS} headers for it")
    found = tuple((each.name, each.value) for each in given.headers if not _OWN_HEADERS.fullmatch(each.name))
    for header, value in found:
        if not _HEADER_NAME.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
            raise CorruptedPeerError(f"{name}: the node names a header {one_line(header)!r} that is none")
    return found
