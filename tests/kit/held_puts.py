"""A file that is PUT piece by piece, and held open in between for as long as a test likes."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable
from typing import Any

import pytest

from odfchain.storage.public_layout import ObjectKey
from odfchain.storage.store import Incoming
from odfchain.transfer import node_pushes
from tests.kit.scenario import Chain, chain_of

PIECE = 5 << 18
"""Of so many bytes that are sent the node takes the most, a megabyte at least [bytes]."""


class HeldPut:
    """One request."""

    def __init__(self, url: str, path: str, token: str, body: bytes) -> None:
        self._link = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=60)
        self._body, self.sent = body, 0
        self._link.putrequest("PUT", path)
        self._link.putheader("Authorization", f"Bearer {token}")
        self._link.putheader("Content-Length", str(len(body)))
        self._link.endheaders()

    def send(self, count: int | None = None) -> None:
        """The next bytes, or all that is left; a node that does not listen any more is no error."""
        end = len(self._body) if count is None else self.sent + count
        with contextlib.suppress(OSError):
            self._link.send(self._body[self.sent : end])
        self.sent = end

    def status(self) -> int:
        """What the node answers; 0 if it has gone."""
        try:
            return self._link.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0

    def finish(self) -> int:
        """Send the rest, and hear what the node says."""
        self.send()
        with contextlib.closing(self._link):
            return self.status()

    def cut(self) -> None:
        """The client is gone."""
        self._link.close()


class Watched:
    """What a node in this process has taken of files that are PUT."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self.files: list[Incoming] = []
        """Those of which something was written, by the time of that."""
        self.ended = 0
        """Requests that were answered, or given up [count]."""
        append, receive = node_pushes._append, node_pushes._receive

        def noting(incoming: Incoming, pieces: list[bytes]) -> None:
            append(incoming, pieces)
            with self._changed:
                if incoming not in self.files:
                    self.files.append(incoming)
                self._changed.notify_all()

        async def ending(*args: Any) -> Any:
            try:
                return await receive(*args)
            finally:
                with self._changed:
                    self.ended += 1
                    self._changed.notify_all()

        monkeypatch.setattr(node_pushes, "_append", noting)
        monkeypatch.setattr(node_pushes, "_receive", ending)

    def until_written(self, file: int, count: int) -> None:
        """Until so many bytes of a file, by its number, are written."""
        self.until(lambda: len(self.files) > file and self.files[file].received >= count)

    def until(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, 30)


def large(label: str = "") -> tuple[Chain, ObjectKey]:
    """A chain with a file of six pieces, and that file."""
    chain = chain_of([f"seed {label}".rstrip(), "schema"])
    chain.add_data("d1", size=6 * PIECE)
    return chain, chain.files[0]


def spoilt(body: bytes) -> bytes:
    """The same size, and the first piece; the rest is something else."""
    return body[:PIECE] + b"?" * (len(body) - PIECE)


def path_of(key: ObjectKey, alias: str = "cities") -> str:
    return f"/{alias}/{key}"
