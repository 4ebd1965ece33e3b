"""Clients that wait for the next record: woken when a head moves, by one look a second for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from odfchain.errors import BusyError
from odfchain.storage.public_layout import HEAD_KEY

WAITING = 300
"""Clients that wait at a time [count]: each holds a connection."""
_SECONDS = 1.0


class Head:
    """A head file that somebody waits for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._event = asyncio.Event()
        self.clients = 0
        self.seen = self._look()

    def _look(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def look(self) -> None:
        """Wake those that wait if it has changed."""
        if (now := self._look()) != self.seen:
            self.seen = now
            self._event.set()
            self._event = asyncio.Event()

    async def changed(self, seen: tuple[int, ...], seconds: float, request: Any) -> bool:
        """True when it is another one than was seen; False when time is up or the client has gone."""
        if self.seen != seen:
            return True
        woken, left = asyncio.create_task(self._event.wait()), asyncio.create_task(_gone(request))
        done, rest = await asyncio.wait({woken, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in rest:
            each.cancel()
        return woken in done


async def _gone(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Heads:
    """The heads that clients of a node wait for; for its event loop alone."""

    def __init__(self) -> None:
        self._heads: dict[Path, Head] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def clients(self) -> int:
        """Those that wait now [count]."""
        return sum(each.clients for each in self._heads.values())

    @contextlib.asynccontextmanager
    async def watching(self, folder: Path) -> AsyncIterator[Head]:
        """Inside, the head of the dataset in this folder is looked at."""
        if self.clients >= WAITING:
            raise BusyError("too many clients wait for changes here")
        head = self._heads.setdefault(folder, Head(folder / HEAD_KEY))
        head.clients += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield head
        finally:
            head.clients -= 1
            if not head.clients:
                del self._heads[folder]

    async def _look(self) -> None:
        while self._heads:
            for head in list(self._heads.values()):
                head.look()
            await asyncio.sleep(_SECONDS)
