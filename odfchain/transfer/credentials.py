"""Tokens that a user keeps for servers: one for each origin, in a file of the user's own.

    $XDG_CONFIG_HOME/odfchain/credentials.json      (~/.config where that is not set), mode 0600
    {"version": 1, "tokens": {"https://data.example.org": "…"}}

The file is the user's and not the workspace's: a workspace that was copied from elsewhere names places, and
must bring no secrets along nor take any. A token goes to URLs of its own origin only: the same scheme, host
and port. Source: RFC 6454 (origins), RFC 6750 (bearer tokens); RFC-021.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odfchain import errors
from odfchain.limits import SHARING
from odfchain.odf.names import AccountName
from odfchain.storage import fsio
from odfchain.storage.http_client import HttpPool, request_headers
from odfchain.storage.http_rules import Deadline, Timing, TransientError
from odfchain.storage.locations import PeerUrl, Target, parse_target, redact
from odfchain.storage.store import PEER_LIMITS, as_transfer_errors
from odfchain.text import json_object, one_line
from odfchain.workspace.config import user_folder

VARIABLE = "ODFCHAIN_CREDENTIALS"
"""Names another file."""

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)


def checked_token(text: str) -> str:
    """The text, which is a token that can be sent."""
    if len(text) > SHARING.token_bytes or not _TOKEN.fullmatch(text):
        raise errors.AccessError(
            f"this is not a token: expected letters, digits and -._~+/= without blanks, at most "
            f"{SHARING.token_bytes:,} of them"
        )
    return text


@dataclass(frozen=True, slots=True)
class Credentials:
    """The tokens in a file; read anew at each call."""

    path: Path

    @classmethod
    def of_user(cls) -> Credentials:
        """The user's own."""
        if named := os.environ.get(VARIABLE):
            return cls(Path(named))
        return cls(user_folder() / "credentials.json")

    def get(self, url: PeerUrl) -> str | None:
        """The token for a URL; None when none is kept for its origin."""
        origin = url.origin
        return self._read().get(origin) if origin is not None else None

    def origins(self) -> list[str]:
        """The origins that there are tokens for."""
        return sorted(self._read())

    def put(self, url: PeerUrl, token: str) -> str:
        """Durably keep a token, in place of the one before; returns the origin that it is for."""
        if (origin := url.origin) is None:
            raise errors.UnsupportedPeerError(f"{url}: a token is for a server (http, https; ports to 65535)")
        token = checked_token(token)
        fsio.make_folder(self.path.parent, mode=0o700)
        with fsio.locked(self._lock):
            self._write(self._read() | {origin: token})
        return origin

    def remove(self, url: PeerUrl | None) -> list[str]:
        """Forget the token for a URL, or all; returns the origins that they were for."""
        # the folder of the lock may not be there either
        if not self.path.exists():
            return []
        with fsio.locked(self._lock):
            known = self._read()
            if gone := sorted(o for o in known if url is None or o == url.origin):
                self._write({o: token for o, token in known.items() if o not in gone})
        return gone

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    def _write(self, tokens: dict[str, str]) -> None:
        text = json.dumps({"version": 1, "tokens": dict(sorted(tokens.items()))}, indent=1)
        fsio.replace_file(self.path, f"{text}\n".encode(), mode=0o600)

    def _read(self) -> dict[str, str]:
        try:
            with self.path.open("rb") as stream:
                # of the open file: the path may lead to another one by now
                mode = os.fstat(stream.fileno()).st_mode & 0o777
                data = stream.read(SHARING.credentials_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise errors.AccessError(f"{self.path}: {error.strerror}") from None
        if mode & 0o077:
            raise errors.AccessError(
                f"{self.path}: mode {mode:04o} lets others read your tokens", hint=f"chmod 600 {self.path}"
            )
        tree = json_object(data) if len(data) <= SHARING.credentials_bytes else {}
        tokens = tree.get("tokens") if tree.get("version") == 1 else None
        if not isinstance(tokens, dict) or not all(isinstance(token, str) for token in tokens.values()):
            raise errors.AccessError(
                f"{self.path}: not a file of tokens",
                hint="remove it, then `odfchain login URL` makes a new one",
            )
        return tokens


# Accounts at a node: a token for a user and a password, the validity of a token, and its owner.
# A password is sent once, to the origin that the user has typed, and follows no redirect; only the token is
# stored. Source: the protocol as the reference node speaks it (`/platform/login`); RFC-050.

_ANSWER_BYTES = 64 << 10
_SHOWN_ANSWER = 200
# Folders of a URL below which a node is looked for [count]: its prefix, an account, a dataset.
_DEEPEST = 4
_USER_CHARACTERS = 200
_PASSWORD_CHARACTERS = 1_024

# Hints for nodes that accept no password.
_ISSUED = (
    "get a token from the node's operator (`odfchain token create` makes one, other nodes have a page for "
    "that), then: odfchain login URL --token-stdin"
)


@dataclass(frozen=True, slots=True)
class NodeAccounts:
    """The accounts of a node, at its URL or at that of something below it."""

    url: PeerUrl

    def log_in(self, user: str, password: str) -> str:
        """The token that the node gives for a user and a password.

        Raises:
            AccessError: the node refuses them, takes no passwords, or they cannot be sent.
            CorruptedPeerError: what it answers is no token.
        """
        if not 0 < len(user) <= _USER_CHARACTERS or not 0 < len(password) <= _PASSWORD_CHARACTERS:
            raise errors.AccessError(
                f"a user has 1 to {_USER_CHARACTERS} characters, a password 1 to {_PASSWORD_CHARACTERS:,}"
            )
        credentials = _compact({"login": user, "password": password})
        body = _compact({"loginMethod": "password", "loginCredentialsJson": credentials}).encode()
        with _asking(self.url, password) as node:
            answer = node.ask(node.found()[0].below("platform/login"), body=body)
        if answer.status == 200:
            token = answer.document.get("accessToken")
            if not isinstance(token, str):
                raise errors.CorruptedPeerError(f"{answer.where}: an answer without an access token")
            return checked_token(token)
        if answer.status == 401:
            raise errors.AccessError(f"{answer.where}: {answer.said}", hint="check the user and the password")
        if answer.status in (400, 404, 405, 501):
            raise errors.AccessError(
                f"{answer.where}: the node takes no passwords: {answer.said}", hint=_ISSUED
            )
        raise _failed(answer)

    def check_token(self, token: str) -> str | None:
        """None if the node knows a token, or does not say; else why it cannot be asked now."""
        bearer = ("Authorization", f"Bearer {checked_token(token)}")
        try:
            with _asking(self.url, token) as node:
                answer = node.ask(node.found()[0].below("platform/token/validate"), (bearer,))
        except (errors.AccessError, errors.UnsupportedPeerError):
            raise
        except errors.TransferError as error:
            return str(error)
        if answer.status in (400, 401, 403):
            raise errors.AccessError(
                f"{answer.where}: the node does not know this token: {answer.said}",
                hint="copy it whole; it may have been revoked, or be for another node",
            )
        return None if answer.status in (200, 204, 404, 405, 501) else f"{answer.where}: {answer.said}"

    def account(self, token: str | None) -> AccountName | None:
        """The account that a node with several means where the URL of a dataset there names none.

        None where the URL needs none, there is no token, or no node answers.
        """
        if token is None:
            return None
        with _asking(self.url, token) as node:
            try:
                root, found = node.found()
            # there is no node, or none that can be asked now: what it was asked for says more
            except errors.TransferError:
                return None
            if len(_folders(node.base)) - len(_folders(root)) != 1:
                return None
            bearer = ("Authorization", f"Bearer {checked_token(token)}")
            if found.varies and not found.document["isMultiTenant"]:
                # the node shows not everything to everybody: what it says of accounts is of what one may read
                found = node.ask(root.below("info"), (bearer,))
            if found.document.get("isMultiTenant") is not True:
                return None
            answer = node.ask(root.below("accounts/me"), (bearer,))
        if answer.status in (404, 405, 501):
            return None
        if answer.status in (401, 403):
            raise errors.AccessError(
                f"{answer.where}: {answer.said}",
                hint="name an account in the URL, or keep a token of yours: `odfchain login URL`",
            )
        if answer.status != 200:
            raise _failed(answer)
        try:
            return AccountName(str(answer.document.get("accountName", "")))
        except errors.InvalidIdError as error:
            raise errors.CorruptedPeerError(
                f"{answer.where}: {one_line(str(error), _SHOWN_ANSWER)}"
            ) from None


@dataclass(frozen=True, slots=True)
class _Answer:
    where: str
    status: int
    # Status and message, for people.
    said: str
    document: dict[str, Any]
    location: str | None
    # True if the answer depends on the caller.
    varies: bool


def _failed(answer: _Answer) -> errors.TransferError:
    if answer.location is not None:
        return errors.TransferError(
            f"{answer.where}: sends elsewhere ({answer.location}), where no password or token is sent on to",
            hint="if you trust it, give the URL that it leads to",
        )
    return errors.TransferError(f"{answer.where}: {answer.said}")


@dataclass(slots=True)
class _Node:
    pool: HttpPool
    base: Target
    where: str
    secret: str

    def found(self) -> tuple[Target, _Answer]:
        """The longest prefix of the URL at which a node says what it is, and what it says."""
        folders = _folders(self.base)
        answer = None
        for count in range(len(folders), max(-1, len(folders) - _DEEPEST - 1), -1):
            root = replace(self.base, path=b"/".join([b"", *folders[:count], b""]))
            # without credentials: until a node answers, nothing is sent that is meant for one
            answer = self.ask(root.below("info"))
            if answer.status == 200 and isinstance(answer.document.get("isMultiTenant"), bool):
                return root, answer
            if answer.location is not None or answer.status >= 500:
                raise _failed(answer)
        said = f": {answer.said}" if answer is not None else ""
        raise errors.UnsupportedPeerError(
            f"{self.where}: no node of Open Data Fabric answers here{said}",
            hint="a web server that hands out files is named without 'odf+'",
        )

    def ask(
        self, target: Target, headers: tuple[tuple[str, str], ...] = (), body: bytes | None = None
    ) -> _Answer:
        where = one_line(f"odf+{target.public(())}", _SHOWN_ANSWER)
        deadline = Deadline(SHARING.request_seconds, Timing(), name=where)
        own = (("Content-Type", "application/json"), *headers) if body is not None else headers
        route = self.pool.route(target, where)
        try:
            text = request_headers(route, (), own)
            with self.pool.exchange(route, text, deadline=deadline, name=where, body=body) as response:
                content = response.read(_ANSWER_BYTES) or b""
                location = response.headers.location() if 300 <= response.status <= 399 else None
                document = json_object(content)
                message = document.get("message")
                said = response.what
                if isinstance(message, str):
                    said += f": {one_line(redact(message, (self.secret,)), _SHOWN_ANSWER)}"
                if location is not None:
                    location = one_line(redact(location, (self.secret,)), _SHOWN_ANSWER)
                varies = "authorization" in (response.headers.get("vary") or "").lower()
                return _Answer(where, response.status, said, document, location, varies)
        except TransientError as error:
            raise errors.FetchError(f"{where}: {error.reason}") from error


def _folders(target: Target) -> list[bytes]:
    return [part for part in target.path.split(b"/") if part]


@contextlib.contextmanager
def _asking(url: PeerUrl, secret: str) -> Iterator[_Node]:
    pool = HttpPool(PEER_LIMITS)
    try:
        with as_transfer_errors():
            base = parse_target(url.plain.text, name=str(url))
            yield _Node(pool, replace(base, user=None), str(url), secret)
    finally:
        pool.close()


def _compact(document: dict[str, str]) -> str:
    return json.dumps(document, separators=(",", ":"))
