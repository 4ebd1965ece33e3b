"""Blocks that are asked for before the walk needs them, because a hint names them.

A hint is never believed: the walk follows the links, takes what was asked for ahead if it needs it, and asks
for the rest itself. What is asked for runs ahead of the walk by a fixed number, so a wrong hint wastes no
more than that. What goes wrong here is nobody's error: it shows when the walk asks. Source: RFC-021.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from odfchain.errors import OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.transfer.peer import BlockPipeline

AHEAD = 128
"""How many blocks are asked for before the walk needs them."""

_THREADS = 4
"""More of them only wait for each other in one process."""
_AHEAD_BY_THREADS = 64
_AT_ONCE = 8
"""How many blocks one thread asks for in one go."""
_REQUESTS = 32
"""How many requests are put together for a pipeline."""
_LOOKED_AT = 2 * AHEAD
"""How many lines of a hint one step may pass over: the same one may be there a million times."""
_UNUSED_BYTES = 16 << 20
"""How much may come before the walk needs it; more means that the hint is not in the chain's order."""

Fetch = Callable[[Multihash], bytes]
Keep = Callable[[Multihash, bytes], None]


class _Way(Protocol):
    """How blocks are asked for ahead."""

    ahead: int
    """How many are asked for at most."""
    at_once: int
    """How many of these are asked for in one go."""

    def __len__(self) -> int:
        """How many were asked for and not taken."""

    def __contains__(self, name: object) -> bool:
        """Whether a block was asked for and not taken."""

    def ask(self, names: Sequence[Multihash]) -> None:
        """Ask for blocks."""

    def take(self, name: Multihash) -> bytes | None:
        """A block that was asked for, once it is here; None if it was not asked for or does not come."""

    def close(self) -> None:
        """Drop what was not needed."""


class Prefetch:
    """Asks for hinted blocks, newest first, while the walk goes on."""

    def __init__(
        self,
        hinted: Iterator[Multihash],
        *,
        here: Callable[[Multihash], bool],
        local: Callable[[Multihash], bool],
        fetch: Fetch,
        keep: Keep,
        pipeline: BlockPipeline | None,
    ) -> None:
        """Prepare to ask.

        `here` are blocks that were received before; below a `local` one all others are local, too. `fetch`
        asks for a block and keeps it, from any thread; `keep` does that with what came by the `pipeline`.
        """
        self._hinted = hinted
        self._here = here
        self._local = local
        self._fetch = fetch
        self._way: _Way = _Threads(fetch) if pipeline is None else _Pipelined(pipeline, keep)

    def take(self, name: Multihash) -> bytes | None:
        """The block if it was asked for and came; asks for more."""
        way = self._way
        if len(way) <= way.ahead - way.at_once:
            self._ask(name)
        data = way.take(name)
        if isinstance(way, _Pipelined) and way.ended:
            way.close()
            self._way = _Threads(self._fetch)
            self._way.ask(way.unanswered())
        elif isinstance(way, _Pipelined) and way.unused_bytes > _UNUSED_BYTES:
            self._hinted = iter(())
        return data

    def _ask(self, name: Multihash) -> None:
        """Ask for what comes after a block."""
        way = self._way
        wanted: dict[Multihash, None] = {}
        for _ in range(_LOOKED_AT):
            if len(way) + len(wanted) >= way.ahead:
                break
            following = next(self._hinted, None)
            if following is None or self._local(following):
                self._hinted = iter(())
                break
            if following != name and following not in way and not self._here(following):
                wanted[following] = None
        if wanted:
            way.ask(list(wanted))

    def close(self) -> None:
        """Drop what was not needed."""
        self._way.close()


class _Threads:
    """Several requests beside each other: for peers of all kinds."""

    ahead = _AHEAD_BY_THREADS
    at_once = _AT_ONCE

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._asked: dict[Multihash, Future[Mapping[Multihash, bytes]]] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, name: object) -> bool:
        return name in self._asked

    def ask(self, names: Sequence[Multihash]) -> None:
        """Several by each thread: handing over each one costs too much."""
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            self._asked |= dict.fromkeys(part, self._pool.submit(self._fetch_all, part))

    def _fetch_all(self, names: Sequence[Multihash]) -> Mapping[Multihash, bytes]:
        """The blocks that came; the others are asked for once more, where it counts."""
        found = {}
        for name in names:
            with contextlib.suppress(OdfchainError):
                found[name] = self._fetch(name)
        return found

    def take(self, name: Multihash) -> bytes | None:
        asked = self._asked.pop(name, None)
        return None if asked is None else asked.result().get(name)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Pipelined:
    """Requests one behind the other, without waiting for the answers."""

    ahead = AHEAD
    at_once = _REQUESTS

    def __init__(self, pipeline: BlockPipeline, keep: Keep) -> None:
        self.ended = False
        """Whether no more will come this way."""
        self.unused_bytes = 0
        """How much has come that the walk has not needed so far."""
        self._pipeline = pipeline
        self._keep = keep
        self._waiting: deque[Multihash] = deque()
        self._asked: set[Multihash] = set()
        self._came: dict[Multihash, bytes] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, name: object) -> bool:
        return name in self._asked

    def ask(self, names: Sequence[Multihash]) -> None:
        self._waiting.extend(names)
        self._asked.update(names)
        self._pipeline.ask(names)

    def take(self, name: Multihash) -> bytes | None:
        if name not in self._asked:
            return None
        self._asked.discard(name)
        data = self._came.pop(name, None)
        if data is not None:
            self.unused_bytes -= len(data)
            return data
        while (data := self._pipeline.receive()) is not None:
            came = self._waiting.popleft()
            self._keep(came, data)
            if came == name:
                return data
            self._came[came] = data
            self.unused_bytes += len(data)
        self.ended = True
        return None

    def unanswered(self) -> list[Multihash]:
        """What was asked for in vain, but for the one that is needed now: that will be asked for alone."""
        return [name for name in self._waiting if name in self._asked]

    def close(self) -> None:
        self._pipeline.close()
