"""The pushes that are going on: few at a time, one for a dataset, and which files each of them may bring."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.limits import SHARING, SMART
from odfchain.serve.access_tokens import AccessToken
from odfchain.store.fsio import FileState
from odfchain.transfer.public_layout import ObjectKey

_MOST = 8
"""Pushes at a time [count]…"""
_MOST_OF_TOKEN = 4
"""…and those of one token: whatever it does, others can push."""
_CONNECTIONS = 32
"""Connections of a token that wait for their first message, or push [count]."""
_LONGEST_SECONDS = 3_600.0
"""How long a push may last [s], and a second more for every `SHARING.bytes_per_second` that have come; what
the node itself needs does not count."""
_FILES = 50_000
"""Files of which it is remembered that they were hashed [count]: some 25 MB."""
SIGNATURE_SECONDS = 60.0
"""How long after a push its signature may follow [s]."""
LEFT_SECONDS = 86_400.0
"""How long what was pushed waits for a commit [s]."""


@dataclass(slots=True)
class PushSession:
    """One push, from its first message to its end."""

    alias: DatasetAlias
    token: AccessToken
    touched: float
    """When the last message or byte came."""
    until: float
    """When it is over, whatever still comes."""
    wanted: dict[ObjectKey, int] = field(default_factory=dict)
    """The objects that are to be uploaded, and their sizes [bytes]; none once it commits, or is over."""
    arriving: set[ObjectKey] = field(default_factory=set)
    """Those on their way now."""
    folder: Path | None = None
    """Where they are when they are complete."""
    uploads: Path | None = None
    """Where they arrive: a folder of this push alone."""


@dataclass(slots=True)
class _Uncommitted:
    """What a token has sent for a dataset and nobody has committed."""

    since: float
    sizes: dict[object, int] = field(default_factory=dict)
    """Of each thing [bytes]…"""
    size: int = 0
    """…and of all of them."""

    def put(self, what: object, size: int) -> None:
        self.size += size - self.sizes.pop(what, 0)
        if size:
            self.sizes[what] = size


@dataclass(slots=True)
class PushSessions:
    """The registry of a server. May be called from several threads."""

    now: Callable[[], float] = time.monotonic
    _open: dict[str, PushSession] = field(default_factory=dict, init=False)
    _connections: Counter[bytes] = field(default_factory=Counter, init=False)
    _done: dict[tuple[str, bytes], tuple[Multihash, float]] = field(default_factory=dict, init=False)
    _hashed: dict[tuple[ObjectKey, FileState], None] = field(default_factory=dict, init=False)
    _uncommitted: dict[tuple[str, bytes], _Uncommitted] = field(default_factory=dict, init=False)
    """By dataset and token."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def attend(self, token: AccessToken) -> bool:
        """Whether another connection is listened to; if so, it counts until it is left."""
        with self._lock:
            self._connections[token.digest] += (free := self._connections[token.digest] < _CONNECTIONS)
            return free

    def leave(self, token: AccessToken) -> None:
        """A connection that was attended to has ended."""
        with self._lock:
            self._connections[token.digest] -= 1

    def has_room(self, alias: DatasetAlias, token: AccessToken) -> bool:
        """Whether a push could begin now."""
        of_token = sum(each.token.digest == token.digest for each in list(self._open.values()))
        return alias.key not in self._open and len(self._open) < _MOST and of_token < _MOST_OF_TOKEN

    def begin(self, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        """A push that nobody else does at the same time; None when somebody does, or too many others."""
        with self._lock:
            if not self.has_room(alias, token):
                return None
            now = self.now()
            found = self._open[alias.key] = PushSession(alias, token, now, now + _LONGEST_SECONDS)
            return found

    def end(self, session: PushSession) -> None:
        """It is over: nothing is uploaded for it any more, and another one may begin."""
        self.close(session)
        with self._lock:
            if self._open.get(session.alias.key) is session:
                del self._open[session.alias.key]
        if session.uploads is not None:
            shutil.rmtree(session.uploads, ignore_errors=True)

    def find(self, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        """The push of a dataset that is going on with this token."""
        with self._lock:
            found = self._open.get(alias.key)
        return found if found is not None and found.token.digest == token.digest else None

    def received(self, session: PushSession, count: int) -> None:
        """So many bytes of an object have come, which gives the push time for more."""
        session.touched = self.now()
        session.until += count / SHARING.bytes_per_second

    # --- files ---------------------------------------------------------------------------------------

    def close(self, session: PushSession) -> None:
        """No object is taken over any more."""
        with self._lock:
            session.wanted.clear()

    def take_over(self, session: PushSession, key: ObjectKey, publish: Callable[[], FileState]) -> bool:
        """Publish a complete object that hashes to its name, unless the push does not want it any more."""
        with self._lock:
            if key not in session.wanted:
                return False
            state = publish()
        self.remember(key, state)
        return True

    def remember(self, key: ObjectKey, state: FileState) -> None:
        """A file of this state hashes to the object's name."""
        with self._lock:
            self._hashed[key, state] = None
            while len(self._hashed) > _FILES:
                del self._hashed[next(iter(self._hashed))]

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:
        """Whether a file of this state is known to hash to the object's name."""
        return (key, state) in self._hashed

    def reserve(self, session: PushSession, what: object, size: int, free: int) -> bool:
        """Whether something of this size fits into what is `free` [bytes]; it counts until it is committed.

        All that a token has sent and not committed may take its share of what is free for that.
        """
        with self._lock:
            now, token = self.now(), session.token.digest
            # what is older is removed from the disk, too
            kept = {key: each for key, each in self._uncommitted.items() if each.since > now - LEFT_SECONDS}
            self._uncommitted = kept
            mine = kept.setdefault((session.alias.key, token), _Uncommitted(now))
            used = sum(each.size for (_, digest), each in kept.items() if digest == token)
            more = size - mine.sizes.get(what, 0)
            if used + more > SMART.uncommitted_share * (free + used):
                return False
            mine.since = now
            mine.put(what, size)
            return True

    def release(self, session: PushSession, what: object | None = None) -> None:
        """Something is not here any more; without `what` all that was sent for the dataset, by all tokens."""
        with self._lock:
            for key, each in list(self._uncommitted.items()):
                if what is None and key[0] == session.alias.key:
                    del self._uncommitted[key]
                elif key == (session.alias.key, session.token.digest):
                    each.put(what, 0)

    # --- what follows --------------------------------------------------------------------------------

    def committed(self, session: PushSession, head: Multihash) -> None:
        """A push has moved the head: for a while its signature is awaited."""
        self.release(session)
        with self._lock:
            now = self.now()
            self._done = {key: each for key, each in self._done.items() if each[1] > now}
            self._done[session.alias.key, session.token.digest] = (head, now + SIGNATURE_SECONDS)

    def awaits(self, alias: DatasetAlias, token: AccessToken) -> Multihash | None:
        """The head that a push with this token has just made."""
        with self._lock:
            head, until = self._done.get((alias.key, token.digest), (None, 0.0))
        return head if until > self.now() else None
