"""Many small requests on one connection, sent before the answers to the earlier ones have come.

One request after the other costs a round trip and two switches between processes for each block of a few
hundred bytes; threads that ask beside each other hide the first and multiply the second. With requests sent
ahead one system call brings the answers to dozens of them.

Only a connection that has answered before is used this way. A server may close it in the middle: what was not
answered is asked for again on a new one, as long as each brings a good number of answers. Whatever else is
unusual (a redirect, an error, another body) ends the pipeline, and the caller asks for the blocks one by one,
where failures are judged. Source: RFC 9112, 9.3.2.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence

from odfchain.digest.physical import hash_bytes
from odfchain.errors import FetchError, OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.net.pool import HttpPool
from odfchain.net.redirects import Route
from odfchain.net.retry import Deadline, ProtocolError, Timing, TransientError
from odfchain.net.wire import Connection

_WORTH_IT = 16
"""How many answers a connection must bring, or there is no gain in asking ahead on the next."""


class HttpPipeline:
    """Blocks over one connection at a time; for one thread."""

    def __init__(
        self,
        pool: HttpPool,
        route: Route,
        *,
        path: Callable[[Multihash], bytes],
        headers: bytes,
        limits: FetchLimits,
        timing: Timing,
        name: str,
    ) -> None:
        """Prepare to ask; `path` says where under the route's host a block is."""
        self._pool = pool
        self._route = route
        self._path = path
        self._headers = headers
        self._seconds = limits.deadline + math.ceil(LIMITS.block_bytes / SHARING.bytes_per_second)
        self._timing = timing
        self._name = name
        self._asked: deque[Multihash] = deque()
        self._connection: Connection | None = None
        self._over = False
        self._answers = _WORTH_IT
        """How many came over the present connection; of the first one it is not known."""

    def open(self) -> bool:
        """Take a connection that has answered before; returns whether there is one."""
        with contextlib.suppress(TransientError, OdfchainError):
            self._connection = self._lend(new=False)
        return self._connection is not None

    def ask(self, names: Sequence[Multihash]) -> None:
        """Ask for blocks; nothing is waited for, and nothing is raised."""
        self._asked.extend(names)
        if self._connection is not None:
            self._send(names)

    def receive(self) -> bytes | None:
        """The bytes of the next block in the order of asking, hashed; None when the pipeline has ended."""
        while self._asked and not self._over:
            if self._connection is None and not self._reconnect():
                break
            assert self._connection is not None  # noqa: S101 - connected just now
            try:
                data = self._answer(self._connection)
            except (ProtocolError, FetchError):
                break
            except TransientError:
                self._lost()
                continue
            if data is None or hash_bytes(data) != self._asked[0]:
                break
            self._asked.popleft()
            self._answers += 1
            if not self._connection.persists:
                self._lost()
            return data
        self._end()
        return None

    def close(self) -> None:
        """Let go of the connection; it is kept for others if nothing more comes over it."""
        connection, self._connection, self._over = self._connection, None, True
        if connection is not None:
            self._pool.give_back(self._route, connection, usable=not self._asked)
        self._asked.clear()

    def _answer(self, connection: Connection) -> bytes | None:
        response = connection.next_response(self._deadline(), self._name)
        if response.status != 200 or response.encoding:
            return None
        return response.read(LIMITS.block_bytes)

    def _reconnect(self) -> bool:
        """Ask again, on a new connection, for everything that was not answered."""
        with contextlib.suppress(TransientError, OdfchainError):
            self._connection = self._lend(new=True)
            self._answers = 0
            self._send(list(self._asked))
        return self._connection is not None

    def _send(self, names: Sequence[Multihash]) -> None:
        assert self._connection is not None  # noqa: S101 - the callers have looked
        # a connection that fails here may still hold answers: reading finds out
        with contextlib.suppress(TransientError, OdfchainError):
            paths = [self._path(name) for name in names]
            self._connection.send_ahead(paths, self._headers, self._deadline())

    def _lend(self, *, new: bool) -> Connection | None:
        connection = self._pool.lend(self._route, deadline=self._deadline(), name=self._name, new=new)
        if connection is not None and connection.address is not None:
            self._route.connected(connection.address)
        return connection

    def _deadline(self) -> Deadline:
        return Deadline(self._seconds, self._timing, name=self._name)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(self._route, connection, usable=False)

    def _lost(self) -> None:
        """The connection has ended; that is nothing unusual after many answers."""
        self._let_go()
        self._over = self._answers < _WORTH_IT

    def _end(self) -> None:
        self._over = True
        self._let_go()
