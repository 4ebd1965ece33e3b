"""The pushes that are going on: one for a dataset, a few in all, and which files each of them may bring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.serve.access_tokens import AccessToken
from odfchain.store.fsio import FileState
from odfchain.transfer.public_layout import ObjectKey

_MOST = 8
"""Pushes at a time [count]."""
SIGNATURE_SECONDS = 60.0
"""How long after a push its signature may follow [s]."""


@dataclass(slots=True)
class PushSession:
    """One push, from its first message to its end."""

    alias: DatasetAlias
    token: AccessToken
    touched: float
    """When the last message or byte came."""
    wanted: dict[ObjectKey, int] = field(default_factory=dict)
    """The objects that are to be uploaded, and their sizes [bytes]."""
    arriving: set[ObjectKey] = field(default_factory=set)
    """Those on their way now."""
    hashed: dict[ObjectKey, FileState] = field(default_factory=dict)
    """Those that are here and were found to hash to their names, and what their files were then."""
    folder: Path | None = None
    """Where they go."""


@dataclass(slots=True)
class PushSessions:
    """The registry of a server. May be called from several threads."""

    now: Callable[[], float] = time.monotonic
    _open: dict[str, PushSession] = field(default_factory=dict, init=False)
    _done: dict[tuple[str, bytes], tuple[Multihash, float]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def begin(self, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        """A push that nobody else does at the same time; None when somebody does, or too many others."""
        with self._lock:
            if alias.key in self._open or len(self._open) >= _MOST:
                return None
            found = self._open[alias.key] = PushSession(alias, token, self.now())
            return found

    def end(self, session: PushSession) -> None:
        """It is over: nothing is uploaded for it any more, and another one may begin."""
        with self._lock:
            if self._open.get(session.alias.key) is session:
                del self._open[session.alias.key]

    def find(self, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        """The push of a dataset that is going on with this token."""
        with self._lock:
            found = self._open.get(alias.key)
        return found if found is not None and found.token.digest == token.digest else None

    def committed(self, session: PushSession, head: Multihash) -> None:
        """A push has moved the head: for a while its signature is awaited."""
        with self._lock:
            now = self.now()
            self._done = {key: each for key, each in self._done.items() if each[1] > now}
            self._done[session.alias.key, session.token.digest] = (head, now + SIGNATURE_SECONDS)

    def awaits(self, alias: DatasetAlias, token: AccessToken) -> Multihash | None:
        """The head that a push with this token has just made."""
        with self._lock:
            head, until = self._done.get((alias.key, token.digest), (None, 0.0))
        return head if until > self.now() else None
