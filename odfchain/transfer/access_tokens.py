"""Access tokens of a workspace: a token gives its holder the rights that it names.

A token is `ka_` and the base32 text of 20 random bytes. It is shown once; only its sha3-256 is kept, so that
a leaked file of tokens gives no access. Source: RFC-050.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from odfchain import errors
from odfchain.limits import SHARING, SMART
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import AccountName, DatasetAlias, DatasetNamePattern
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import Rule, from_tree, to_tree
from odfchain.odf.yaml import dump_yaml, read_document
from odfchain.storage import fsio
from odfchain.storage.fsio import FileState
from odfchain.storage.public_layout import ObjectKey
from odfchain.text import one_line

_RANDOM_BYTES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SHA3 = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)
_BEARER = re.compile(r"bearer +([!-~]{1,1024})", re.ASCII | re.IGNORECASE)


class Right(Enum):
    """Permissions of a token."""

    READ = "read"
    """To read, where a server restricts reading."""
    QUERY = "query"
    """To ask a node by SQL; reading goes with it."""
    INGEST = "ingest"
    """To send rows to a node, for datasets whose keys are there; reading goes with it."""
    PUSH = "push"
    """Reading goes with it: a push begins with the head, and compares chains."""
    FORCE = "force"
    """To overwrite the history of a dataset by a push."""


_ANY = "%"


@dataclass(frozen=True, slots=True)
class Grant:
    """A right, for the datasets whose names fit, of one account, of none, or of any."""

    right: Right
    account: AccountName | str | None
    """None: datasets without an account; `%`: all."""
    pattern: DatasetNamePattern

    @classmethod
    def parse(cls, text: str) -> Grant:
        """The right that a text such as `push:org.%`, `push:alice/%` or `read:%/%` names."""
        right, colon, pattern = text.partition(":")
        known = {each.value: each for each in Right}
        if right not in known or not colon:
            raise errors.UsageError(
                f"{one_line(text, 100)!r} is not a right",
                hint="rights are read:, query:, ingest:, push: and force:PATTERN, such as push:org.%",
            )
        account, slash, name = pattern.rpartition("/")
        try:
            whose = account if account == _ANY else AccountName(account) if slash else None
            return cls(known[right], whose, DatasetNamePattern(name))
        except errors.InvalidIdError as error:
            raise errors.UsageError(f"{one_line(text, 100)!r} is not a right: {error}") from None

    def matches(self, alias: DatasetAlias) -> bool:
        """True if it is for a dataset: a pattern without an account matches no dataset of an account."""
        return self.account in (_ANY, alias.account) and self.pattern.matches(alias.name)

    def __str__(self) -> str:
        account = "" if self.account is None else f"{self.account}/"
        return f"{self.right.value}:{account}{self.pattern}"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token as it is kept: its name and rights, and what it hashes to."""

    name: Annotated[str, Rule("what can be the name of a token", _NAME.fullmatch)]
    sha3: Annotated[str, Rule("the sha3-256 of a token, 64 digits of base16", _SHA3.fullmatch)]
    allow: tuple[Grant, ...]
    created: Timestamp

    @property
    def digest(self) -> bytes:
        """What the token hashes to."""
        return bytes.fromhex(self.sha3)

    def may(self, right: Right, alias: DatasetAlias) -> bool:
        """True if it allows this access to a dataset."""
        # reading goes with every right but the one that allows nothing alone
        rights = set(Right) - {Right.FORCE} if right is Right.READ else {right}
        return any(grant.right in rights and grant.matches(alias) for grant in self.allow)

    @property
    def account(self) -> str:
        """Whose it is: the account that all of its rights are for, else its own name."""
        accounts = {grant.account for grant in self.allow}
        only = accounts.pop() if len(accounts) == 1 else None
        return str(only) if isinstance(only, AccountName) else self.name

    @property
    def account_id(self) -> str:
        """The id of that account, in the form that nodes use; it follows from the name alone."""
        return str(DatasetId(sha3_256(f"account {self.account}".encode()).digest()))


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made, with its text, which is known nowhere else."""

    token: AccessToken
    text: str


def checked_name(text: str) -> str:
    """The text, which can name a token."""
    if not _NAME.fullmatch(text):
        raise errors.UsageError(
            f"{one_line(text, 100)!r} cannot be the name of a token",
            hint="up to 64 letters, digits and ._- with a letter or digit first",
        )
    return text


def made_token(name: str, allow: Iterable[str], now: Timestamp) -> NewToken:
    """A new token with these rights."""
    if not (grants := tuple(dict.fromkeys(Grant.parse(text) for text in allow))):
        raise errors.UsageError("a token needs a right", hint="name it, such as --allow push:NAME")
    text = "ka_" + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode("ascii").lower()
    return NewToken(AccessToken(checked_name(name), digest_of(text).hex(), grants, now), text)


def digest_of(text: str) -> bytes:
    """The digest that is stored of a token."""
    return sha3_256(text.encode()).digest()


def holder(authorization: str | None, tokens: Iterable[AccessToken]) -> AccessToken | None:
    """The token that a header `Authorization` shows; all are compared, each in constant time."""
    if (shown := _BEARER.fullmatch(authorization or "")) is None:
        return None
    digest, found = digest_of(shown[1]), None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


# The tokens of a workspace on the disk: `.odfchain/tokens.yaml`, mode 0600, replaced as a whole.

_FILE_BYTES = 1 << 20
# Tokens of a workspace [count].
_MOST = 1_000


@dataclass(slots=True)
class TokenFile:
    """The tokens that a workspace has given out; what was read is used until the file is another one."""

    root: Path
    """The folder of the workspace."""
    _stamp: tuple[int, int, int] | None = field(default=None, init=False)
    _known: tuple[AccessToken, ...] = field(default=(), init=False)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.root / "tokens.yaml"

    def list(self) -> tuple[AccessToken, ...]:
        """All tokens, ordered by name; their texts are not known."""
        try:
            with self.path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
                if found.st_mode & 0o077:
                    raise errors.AccessError(
                        f"{self.path}: mode {found.st_mode & 0o777:04o} lets others read your tokens",
                        hint=f"chmod 600 {self.path}",
                    )
                if stamp == self._stamp:
                    return self._known
                data = stream.read(_FILE_BYTES + 1)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise errors.AccessError(f"{self.path}: {error.strerror}") from None
        self._known, self._stamp = self._parsed(data), stamp
        return self._known

    def create(self, name: str, allow: Iterable[str], now: Timestamp | None = None) -> NewToken:
        """Durably keep a new token with rights such as `push:org.%`; its text is nowhere else."""
        made = made_token(name, allow, now or Timestamp.now())
        with fsio.locked(self._lock):
            known = self.list()
            if any(token.name == name for token in known):
                raise errors.NameCollisionError(
                    f"a token {name!r} already exists", hint=f"`odfchain token revoke {name}` ends it"
                )
            if len(known) >= _MOST:
                raise errors.UsageError(f"there are {_MOST:,} tokens already", hint="revoke some of them")
            self._write([*known, made.token])
        return made

    def revoke(self, name: str) -> None:
        """Durably revoke a token; from now on it gives no access."""
        checked_name(name)
        with fsio.locked(self._lock):
            known = self.list()
            rest = [token for token in known if token.name != name]
            if len(rest) == len(known):
                raise errors.WorkspaceError(f"no token {name!r}", hint="`odfchain token list` shows them")
            self._write(rest)

    @property
    def _lock(self) -> Path:
        return self.root / ".tokens.lock"

    def _write(self, tokens: Iterable[AccessToken]) -> None:
        kept = _File(1, tuple(sorted(tokens, key=lambda each: each.name)))
        fsio.replace_file(self.path, dump_yaml(to_tree(kept)).encode(), mode=0o600)

    def _parsed(self, data: bytes) -> tuple[AccessToken, ...]:
        try:
            return _tokens(data, str(self.path))
        except errors.ManifestError as error:
            why = f"{error} ({error.hint})" if error.hint else str(error)
            raise errors.AccessError(
                why, hint=f"mend {self.path}, or remove it, which ends all tokens"
            ) from None


@dataclass(frozen=True, slots=True)
class _File:
    version: Literal[1]
    tokens: tuple[AccessToken, ...]


def _tokens(data: bytes, source: str) -> tuple[AccessToken, ...]:
    if len(data) > _FILE_BYTES:
        raise errors.ManifestError(f"larger than {_FILE_BYTES:,} bytes", source=source)
    document = read_document(data, source=source)
    try:
        return from_tree(_File, document.value).tokens
    except errors.ManifestError as error:
        raise error.located(source=source, line=document.line_of(error.path)) from None


# Read access: the one rule for everything that shows, lists or hands out datasets.
# Unless reading is restricted, everybody may. If it is, a forbidden dataset looks like one that does not
# exist. Source: RFC-050.


@dataclass(frozen=True, slots=True)
class Reader:
    """A client that reads, with a token that was in force or with none."""

    tokens: TokenFile
    restricted: bool = False
    """True if a server shows a dataset to those alone whose token is for it."""
    token: AccessToken | None = None

    def showing(self, authorization: str | None) -> Reader | None:
        """The reader with this header `Authorization`; None where its token is not in force."""
        # a proxy's password is no token
        if not self.restricted or (authorization or "")[:7].lower() != "bearer ":
            return self
        token = holder(authorization, self.tokens.list())
        return None if token is None else replace(self, token=token)

    def shown(self, authorization: str | None) -> AccessToken | None:
        """The token in force that this header `Authorization` shows, whether or not reading needs one."""
        return self.token or holder(authorization, self.tokens.list())

    def sees(self, alias: DatasetAlias) -> bool:
        """True if the reader has access to the dataset."""
        return not self.restricted or (self.token is not None and self.token.may(Right.READ, alias))

    def is_current(self) -> bool:
        """True if the access still holds: a token may be revoked meanwhile."""
        return self.token is None or self.token in self.tokens.list()


# Running pushes: few at a time, one for a dataset, with the files that each may upload.

# Pushes at a time [count]…
_MOST_PUSHES = 8
# …and those of one token, so that others can push.
_MOST_OF_TOKEN = 4
# Connections of a token that wait for their first message, or push [count].
_CONNECTIONS = 32
# How long a push may last [s], and a second more for every `SHARING.bytes_per_second` that have come; what
# the node itself needs does not count.
_LONGEST_SECONDS = 3_600.0
# Files of which it is remembered that they were hashed [count]: some 25 MB.
_FILES = 50_000
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
    """When it is over, even if more comes."""
    wanted: dict[ObjectKey, int] = field(default_factory=dict)
    """The objects that are to be uploaded, and their sizes [bytes]; none once it commits, or is over."""
    arriving: set[ObjectKey] = field(default_factory=set)
    """Those on their way now."""
    folder: Path | None = None
    """The folder of complete files."""
    uploads: Path | None = None
    """The folder of incoming files, of this push alone."""


@dataclass(slots=True)
class _Uncommitted:
    since: float
    # Of each thing [bytes]…
    sizes: dict[object, int] = field(default_factory=dict)
    # …and of all of them.
    size: int = 0

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
    # By dataset and token.
    _uncommitted: dict[tuple[str, bytes], _Uncommitted] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def attend(self, token: AccessToken) -> bool:
        """Count another connection until it is closed; False if there are too many."""
        with self._lock:
            self._connections[token.digest] += (free := self._connections[token.digest] < _CONNECTIONS)
            return free

    def leave(self, token: AccessToken) -> None:
        """A connection that was attended to has ended."""
        with self._lock:
            self._connections[token.digest] -= 1

    def has_room(self, alias: DatasetAlias, token: AccessToken) -> bool:
        """True if a push could begin now."""
        of_token = sum(each.token.digest == token.digest for each in list(self._open.values()))
        return alias.key not in self._open and len(self._open) < _MOST_PUSHES and of_token < _MOST_OF_TOKEN

    def begin(self, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        """Begin an exclusive push of a dataset; None while another one is running, or too many are."""
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
        """True if a file of this state is known to hash to the object's name."""
        return (key, state) in self._hashed

    def reserve(self, session: PushSession, what: object, size: int, free: int) -> bool:
        """Reserve this much of `free` [bytes] until it is committed; False if it does not fit."""
        with self._lock:
            now, token = self.now(), session.token.digest
            # what is older is removed from the disk, too
            kept = {key: each for key, each in self._uncommitted.items() if each.since > now - LEFT_SECONDS}
            self._uncommitted = kept
            mine = kept.setdefault((session.alias.key, token), _Uncommitted(now))
            used = sum(each.size for (_, digest), each in kept.items() if digest == token)
            more = size - mine.sizes.get(what, 0)
            # all uncommitted uploads of a token count, so that one token cannot fill the disk
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
