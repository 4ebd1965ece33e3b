"""A dataset behind an http or https URL: any web server that hands out files, or an IPFS gateway.

Every request is bounded: in time to connect, between bytes and in all, in headers, and in what the body may
be. Redirects follow the rules of `odfchain.storage.routes`.
Source: RFC-007 of Open Data Fabric; RFC 9110 of the IETF; RFC-021.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from odfchain.errors import AccessError, TransferError
from odfchain.limits import SHARING, FetchLimits
from odfchain.storage.http_client import HeaderPairs, HttpPool, request_headers
from odfchain.storage.http_rules import ContentRange, Deadline, Timing
from odfchain.storage.local import SIGNED_ENDINGS
from odfchain.storage.locations import PeerUrl, parse_target
from odfchain.storage.public_layout import HEAD_KEY, INDEX_KEY, ObjectKind
from odfchain.storage.routes import Route
from odfchain.storage.store import PEER_LIMITS, AbsentError, Opened, Transport, as_transfer_errors
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.storage.http_connection import Response

_TOKEN = re.compile(r"[\x21-\x7e]+")
# Where datasets may lack files that are asked for.
_OPTIONAL = ("refs/", *(f"{kind.value}/" for kind in ObjectKind if kind.describes))
_FORBIDDEN = "many static hosts answer 403 for what is absent"


class HttpTransport(Transport):
    """A dataset to read over HTTP; safe to use from several threads."""

    def __init__(
        self,
        url: PeerUrl,
        limits: FetchLimits = PEER_LIMITS,
        *,
        token: str | None = None,
        kept: bool = False,
        parallel: int = SHARING.parallel,
        ipfs_gateway: bool = False,
        timing: Timing | None = None,
    ) -> None:
        """The `token`, `kept` or not, goes to the URL's origin alone; an `ipfs_gateway` answers as Kubo."""
        self._pool = HttpPool(limits, parallel)
        where = one_line(str(url), 500)
        timing = timing or Timing(wait=self._pause)
        super().__init__(where, limits=limits, timing=timing, turns=self._pool.slots)
        with as_transfer_errors():
            self._base = parse_target(url.text, name=where)
        if token is not None and not _TOKEN.fullmatch(token):
            raise AccessError(f"{where}: the token has characters that cannot be sent")
        credentials = f"Bearer {token}" if token is not None else self._base.user
        self._given = [("Authorization", credentials)] if credentials is not None else []
        self._secrets = url.secrets | frozenset(filter(None, [token]))
        self._ipfs_gateway = ipfs_gateway
        self._kept = None if token is None else kept
        self._login = f"`odfchain login {url.origin or 'URL'}`"

    def _pause(self, seconds: float) -> None:
        self._pool.closed.wait(seconds)

    @contextlib.contextmanager
    def open(self, key: str, start: int, _cap: int, deadline: Deadline, /) -> Iterator[Opened]:
        name = f"{self.where}{key}"
        route, headers = self.request(key, name, [("Range", f"bytes={start}-")] if start else [])
        with self._pool.get(route, headers=headers, deadline=deadline, name=name, secrets=self._secrets) as (
            response,
            where,
        ):
            problem, start_here, total = self._problem(response, key, where), 0, response.length
            if start and response.status == 416:
                problem, start_here = None, -1
            elif start and response.status == 206:
                part = ContentRange.parse(response.headers.get("content-range"))
                problem, start_here, total = _encoded(response, where), -1, None
                if part is not None and part.first:
                    start_here, total = part.first, part.total
            if problem is None:
                yield Opened(where, response, total, start_here, framed=not response.until_close)
        if problem is not None:  # raised here, so that the connection is kept
            raise problem

    def request(self, key: str, name: str, own: HeaderPairs) -> tuple[Route, Callable[[Route], HeaderPairs]]:
        """The way to a file, and the headers of a request at each place on it, with more of its `own`."""
        route = self._pool.route(self._base.below(key), name)
        return route, lambda route: request_headers(route, self._given, own)

    def unknown(self, what: str, otherwise: str = "") -> AccessError:
        """The error for status 401: the server does not know the token that was sent, or wants one."""
        if self._kept is None or " (redirected to " in what:  # no token goes to another origin
            hint = f"keep a token for it: {self._login}{otherwise}"
            return AccessError(f"{what}: authentication is required", hint=hint)
        whose = "kept for this server is not valid any more" if self._kept else "given is not valid"
        hint = f"ask its operator for a new one, then {self._login}"
        return AccessError(f"{what}: the token {whose}", hint=hint)

    def _problem(self, response: Response, key: str, where: str) -> Exception | None:
        status = response.status
        is_signed = key.endswith(SIGNED_ENDINGS)  # all files of signed statements, and no others
        # Kubo answers 500 for paths that do not exist
        may_lack = self._ipfs_gateway and status == 500 and (is_signed or key.startswith(_OPTIONAL))
        if status in (404, 410) or may_lack:
            return AbsentError(f"{where}: not there (HTTP status {status})")
        if status in (200, 203):
            return _encoded(response, where)
        if passing := response.passing():
            return passing
        if is_signed and 400 <= status <= 499:
            return AbsentError(f"{where}: {response.what}")
        # many servers answer 403 where a file does not exist
        otherwise = f"there may be no such dataset: {_FORBIDDEN}" if key == HEAD_KEY else _FORBIDDEN
        if status == 401:
            more = "; name its URL and set ODFCHAIN_TOKEN; or write user and password into the URL; or "
            return self.unknown(f"{where}: HTTP status 401", "" if key == INDEX_KEY else f"{more}{otherwise}")
        if status == 403:
            hint = f"check the token; or {otherwise}"
            return AccessError(f"{where}: HTTP status 403 (Forbidden): the peer refuses", hint=hint)
        return TransferError(f"{where}: {response.what}")

    def close(self) -> None:
        """Let go of connections; requests of other threads end."""
        self._pool.close()


def _encoded(response: Response, where: str) -> TransferError | None:
    if response.encoding is None:
        return None
    message = f"{where}: the body is encoded as {response.encoding!r}, though plain bytes were asked for"
    return TransferError(message, hint="have the web server hand out the files as they are")
