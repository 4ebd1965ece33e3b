"""A dataset behind an http or https URL: any web server that hands out files, or an IPFS gateway.

Every request is bounded: in time to connect, between bytes and in all, in headers, and in what the body may
be. Failures that may pass are tried again. Redirects follow the rules of `odfchain.net.url`.
Source: RFC-007 of Open Data Fabric; RFC 9110 of the IETF; RFC-021.
"""

from __future__ import annotations

import contextlib
import http
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from odfchain.digest.physical import hash_bytes
from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    FetchError,
    StoreError,
    TransferError,
)
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.net.dial import PRIVATE_HINT, ProxyDeniedError
from odfchain.net.headers import ContentRange
from odfchain.net.pipeline import HttpPipeline
from odfchain.net.pool import HttpPool, request_headers
from odfchain.net.retry import (
    DEADLINE_HINT,
    Deadline,
    ProtocolError,
    Timing,
    TransientError,
    with_retries,
)
from odfchain.net.url import Route, parse_target
from odfchain.net.wire import Response
from odfchain.progress import Progress
from odfchain.store.interfaces import parse_ref
from odfchain.text import one_line
from odfchain.transfer.hint_file import hint_bytes, parse_hint
from odfchain.transfer.incoming import MIRROR_HINT, Incoming
from odfchain.transfer.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, Part, PeerUrl, SignedFile

_T = TypeVar("_T")

PEER_LIMITS = FetchLimits(
    deadline=SHARING.request_seconds,
    connect_timeout=SHARING.connect_seconds,
    idle_timeout=SHARING.idle_seconds,
    bytes_per_second=SHARING.bytes_per_second,
    redirects=SHARING.redirects,
    retries=SHARING.retries,
    first_wait=SHARING.retry_seconds,
)
"""Bounds on a request; the deadline grows with what is asked for, and covers the retries."""

_ABSENT = (404, 410)
_DENIED = (401, 403)
_PASSING = (408, 425, 429)
_HINTS: dict[str | None, str] = {
    DEADLINE_HINT: "run the command again: what has arrived is kept",
    PRIVATE_HINT: "if you trust it, give the URL that it leads to",
}
"""What helps with a peer, in place of what helps with a source."""
_TOKEN = re.compile(r"[\x21-\x7e]+")


class HttpPeer:
    """A dataset to read over HTTP; safe to use from several threads."""

    def __init__(
        self,
        url: PeerUrl,
        limits: FetchLimits = PEER_LIMITS,
        *,
        token: str | None = None,
        parallel: int = SHARING.parallel,
        ipfs_gateway: bool = False,
        timing: Timing | None = None,
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        `token` goes to the URL's own origin and nowhere else. `ipfs_gateway`: absent paths are answered with
        status 500, as Kubo does.

        Raises:
            TransferError: not the URL of an HTTP server.
            AccessError: the token cannot be sent.
        """
        self._where = one_line(url.public(), 500)
        self._limits = limits
        with _as_transfer_errors():
            self._base = parse_target(url.text, name=self._where)
        if token is not None and not _TOKEN.fullmatch(token):
            raise AccessError(f"{self._where}: the token has characters that cannot be sent")
        self._credentials = f"Bearer {token}" if token is not None else self._base.user
        password = urlsplit(url.text).password
        self._secrets = frozenset(filter(None, (token, password, password and unquote(password))))
        self._ipfs_gateway = ipfs_gateway
        self._pool = HttpPool(limits, parallel)
        self._timing = timing or Timing(wait=self._pause)

    def _pause(self, seconds: float) -> None:
        self._pool.closed.wait(seconds)

    @property
    def where(self) -> str:
        """The URL without user and password."""
        return self._where

    def head(self) -> Multihash | None:
        """The newest block; None when there is no such dataset.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """
        return self._request(HEAD_KEY, self._take_head, size=LIMITS.ref_bytes)

    def _take_head(self, response: Response, where: str) -> Multihash | None:
        absent = _ABSENT if not self._ipfs_gateway else (*_ABSENT, 500)
        if response.status in absent:
            return None
        if response.status in _DENIED:
            raise _denied(
                response.status,
                where,
                "there may be no such dataset: many static hosts answer 403 for what is absent",
            )
        _check_success(response, where)
        data = response.read(LIMITS.ref_bytes)
        if data is None:
            raise TransferError(f"{where}: larger than the {LIMITS.ref_bytes} bytes of a reference")
        try:
            return parse_ref(data, where)
        except StoreError as error:
            raise CorruptedPeerError(one_line(str(error), 800)) from None

    def block(self, name: Multihash) -> bytes:
        """The bytes of a block, which hash to its name.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """

        def take(response: Response, where: str) -> bytes:
            _check_object(response, where)
            data = response.read(LIMITS.block_bytes)
            if data is None:
                raise TransferError(f"{where}: larger than the {LIMITS.block_bytes:,} bytes of a block")
            actual = hash_bytes(data)
            if actual != name:
                raise CorruptedPeerError(
                    f"{where}: the content hashes to {actual}, not to its name", hint=MIRROR_HINT
                )
            return data

        return self._request(str(ObjectKey(Part.BLOCK, name)), take, size=LIMITS.block_bytes)

    def pipeline(self) -> HttpPipeline | None:
        """A way to ask for many blocks at once; None before the peer has kept a connection."""
        route = self._pool.route(self._base, self._where)
        base = self._base.path
        made = HttpPipeline(
            self._pool,
            route,
            path=lambda name: b"%sblocks/%s" % (base, str(name).encode("ascii")),
            headers=self._headers(route, 0),
            limits=self._limits,
            timing=self._timing,
            name=f"{self._where}{Part.BLOCK.value}",
        )
        return made if made.open() else None

    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        """Bring an object of exactly `size` bytes, which hashes to its name, into a file.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
            StoreError: the file cannot be written.
        """
        with Incoming(key, size, target, name=f"{self._where}{key}", progress=progress) as incoming:

            def take(response: Response, where: str) -> None:
                _receive(response, where, incoming)

            while not incoming.complete():
                self._request(str(key), take, size=size, received=lambda: incoming.received)

    def signed(self, file: SignedFile) -> bytes | None:
        """A file of signed statements; None when the peer does not hand it out.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
        """

        def take(response: Response, where: str) -> bytes | None:
            status = response.status
            if (400 <= status <= 499 and status not in _PASSING) or (self._ipfs_gateway and status == 500):
                return None
            _check_success(response, where)
            data = response.read(file.limit)
            if data is None:
                raise TransferError(f"{where}: larger than the allowed {file.limit:,} bytes")
            return data

        return self._request(file.value, take, size=file.limit)

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the peer says; None when it says nothing of use."""

        def take(response: Response, where: str) -> bytes | None:
            _check_success(response, where)
            return response.read(size)

        size = hint_bytes(limit)
        with contextlib.suppress(TransferError):
            data = self._request(HINT_KEY, take, size=size, limits=replace(self._limits, retries=0))
            return None if data is None else parse_hint(data, limit)
        return None

    def close(self) -> None:
        """Let go of connections; requests of other threads end."""
        self._pool.close()

    def _request(
        self,
        key: str,
        take: Callable[[Response, str], _T],
        *,
        size: int,
        received: Callable[[], int] = lambda: 0,
        limits: FetchLimits | None = None,
    ) -> _T:
        """What `take` makes of the response, after as many attempts as that needs and the limits allow."""
        limits = limits or self._limits
        name = f"{self._where}{key}"
        first = replace(self._base, path=self._base.path + key.encode("ascii"))

        def attempt() -> _T:
            try:
                return self._pool.get(
                    first,
                    take,
                    headers=lambda route: self._headers(route, received()),
                    deadline=deadline,
                    name=name,
                    secrets=self._secrets,
                )
            except ProtocolError as error:
                raise TransferError(f"{error.name}: {error.reason}") from error

        with self._pool.slot(), _as_transfer_errors():
            seconds = limits.deadline + math.ceil(size / SHARING.bytes_per_second)
            deadline = Deadline(seconds, self._timing, name=name)
            return with_retries(attempt, name=name, limits=limits, timing=self._timing, deadline=deadline)

    def _headers(self, route: Route, received: int) -> bytes:
        given = [("Authorization", self._credentials)] if self._credentials is not None else []
        return request_headers(route, given, [("Range", f"bytes={received}-")] if received else [])


@contextlib.contextmanager
def _as_transfer_errors() -> Iterator[None]:
    """What is said of sources that are fetched is said of peers."""
    try:
        yield
    except FetchError as error:
        kind = AccessError if isinstance(error, ProxyDeniedError) else TransferError
        raise kind(error.message, hint=_HINTS.get(error.hint, error.hint)) from error


def _receive(response: Response, where: str, incoming: Incoming) -> None:
    """The rest of an object, or the whole of it, from a response.

    Raises:
        TransientError: it breaks off, or does not continue what is there.
        CorruptedPeerError, AccessError, TransferError: as `Peer.fetch`.
    """
    start = incoming.received
    if start and response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        incoming.restart()
        raise TransientError("the peer cannot continue the object")
    if start and response.status == http.HTTPStatus.PARTIAL_CONTENT:
        _check_encoding(response, where)
        part = ContentRange.parse(response.headers.get("content-range"))
        if part is None or part.first != start or part.total not in (None, incoming.size):
            incoming.restart()
            raise TransientError("the peer continued with something else than the rest of the object")
    else:
        _check_object(response, where)
        if response.length not in (None, incoming.size):
            raise incoming.refuse(f"{response.length:,} bytes, not the {incoming.size:,} of the object")
        if start:
            incoming.restart()
    while (room := incoming.room) and (count := response.read_into(room)):
        incoming.append(count)
    if incoming.received < incoming.size:
        what = f"ended after {incoming.received:,} of {incoming.size:,} bytes"
        if start == 0 and not response.until_close:
            raise incoming.refuse(f"the object {what}")
        raise TransientError(f"the body {what}")


def _check_object(response: Response, where: str) -> None:
    if response.status in _ABSENT:
        raise CorruptedPeerError(
            f"{where}: not there (HTTP status {response.status}), though the chain refers to it",
            hint="the peer's copy is incomplete: try another peer that has the dataset",
        )
    if response.status in _DENIED:
        raise _denied(response.status, where, "many static hosts answer 403 for what is absent")
    _check_success(response, where)


def _check_success(response: Response, where: str) -> None:
    if response.status not in (200, 203):
        response.check_passing()
        raise TransferError(f"{where}: {response.what}")
    _check_encoding(response, where)


def _check_encoding(response: Response, where: str) -> None:
    if response.encoding:
        raise TransferError(
            f"{where}: the body is encoded as {response.encoding!r}, though plain bytes were asked for",
            hint="have the web server hand out the files as they are",
        )


def _denied(status: int, where: str, otherwise: str) -> AccessError:
    if status == http.HTTPStatus.UNAUTHORIZED:
        return AccessError(
            f"{where}: HTTP status 401 (Unauthorized): the peer wants to know who asks",
            hint="keep a token for it: `odfchain login URL`; name its URL and set ODFCHAIN_TOKEN; or write "
            f"user and password into the URL; or {otherwise}",
        )
    return AccessError(
        f"{where}: HTTP status 403 (Forbidden): the peer refuses",
        hint=f"check the token; or {otherwise}",
    )
