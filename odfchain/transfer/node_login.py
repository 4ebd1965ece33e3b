"""Who somebody is at a node: a token for a user and a password, whether a token is known, and whose it is.

A password is sent once, to the origin that the user has typed, below no redirect; what is kept afterwards is
the token. Source: the protocol as the reference node speaks it (`/platform/login`); RFC-050.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    FetchError,
    InvalidIdError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.ids.names import AccountName
from odfchain.limits import SHARING
from odfchain.net.pool import HttpPool, request_headers
from odfchain.net.retry import Deadline, Timing, TransientError
from odfchain.net.template import redact
from odfchain.net.url import Target, parse_target
from odfchain.text import one_line
from odfchain.transfer.credentials import checked_token
from odfchain.transfer.peer import PEER_LIMITS, as_transfer_errors
from odfchain.transfer.public_layout import PeerUrl

_ANSWER_BYTES = 64 << 10
_SHOWN = 200
_DEEPEST = 4
"""Folders of a URL below which a node is looked for [count]: its prefix, an account, a dataset."""
_USER_CHARACTERS = 200
_PASSWORD_CHARACTERS = 1_024

_ISSUED = (
    "get a token from those who run the node (`odfchain token create` makes one, other nodes have a page for "
    "that), then: odfchain login URL --token-stdin"
)
"""What to do where no password is taken."""


def password_login(url: PeerUrl, user: str, password: str) -> str:
    """The token that a node gives for a user and a password; `url` is the node's, or of something below it.

    Raises:
        AccessError: the node refuses them, takes no passwords, or they cannot be sent.
        UnsupportedPeerError: there is no node.
        CorruptedPeerError: what it answers is no token.
        TransferError: it cannot be reached, fails, or sends elsewhere.
    """
    if not 0 < len(user) <= _USER_CHARACTERS or not 0 < len(password) <= _PASSWORD_CHARACTERS:
        raise AccessError(
            f"a user has 1 to {_USER_CHARACTERS} characters, a password 1 to {_PASSWORD_CHARACTERS:,}"
        )
    credentials = _compact({"login": user, "password": password})
    body = _compact({"loginMethod": "password", "loginCredentialsJson": credentials}).encode()
    with _asking(url, password) as node:
        answer = node.ask(node.below(b"platform/login"), body=body)
    if answer.status == 200:
        token = answer.document.get("accessToken")
        if not isinstance(token, str):
            raise CorruptedPeerError(f"{answer.where}: an answer without an access token")
        return checked_token(token)
    if answer.status == 401:
        raise AccessError(f"{answer.where}: {answer.said}", hint="check the user and the password")
    if answer.status in (400, 404, 405, 501):
        raise AccessError(f"{answer.where}: the node takes no passwords: {answer.said}", hint=_ISSUED)
    raise _failed(answer)


def check_token(url: PeerUrl, token: str) -> str | None:
    """None if the node at a URL knows a token, or does not say; else why it cannot be asked now.

    Raises:
        AccessError: it does not know the token.
    """
    bearer = ("Authorization", f"Bearer {checked_token(token)}")
    try:
        with _asking(url, token) as node:
            answer = node.ask(node.below(b"platform/token/validate"), (bearer,))
    except (AccessError, UnsupportedPeerError):
        raise
    except TransferError as error:
        return str(error)
    if answer.status in (400, 401, 403):
        raise AccessError(
            f"{answer.where}: the node does not know this token: {answer.said}",
            hint="copy it whole; it may have been revoked, or be for another node",
        )
    return None if answer.status in (200, 204, 404, 405, 501) else f"{answer.where}: {answer.said}"


def account_at(url: PeerUrl, token: str | None) -> AccountName | None:
    """The account that a node with several means where the URL of a dataset there names none.

    None where the URL needs none, nobody asks by a token, or no node answers.

    Raises:
        AccessError: the node does not know the token.
        CorruptedPeerError: it names no account.
        TransferError: it fails.
    """
    if token is None:
        return None
    with _asking(url, token) as node:
        try:
            root, found = node.found()
        except (
            TransferError
        ):  # there is no node, or none that can be asked now: what it was asked for says more
            return None
        if len(_folders(node.base)) - len(_folders(root)) != 1:
            return None
        bearer = ("Authorization", f"Bearer {checked_token(token)}")
        if found.varies and not found.document["isMultiTenant"]:
            # the node shows not everything to everybody: what it says of accounts is of what one may read
            found = node.ask(replace(root, path=root.path + b"info"), (bearer,))
        if found.document.get("isMultiTenant") is not True:
            return None
        answer = node.ask(replace(root, path=root.path + b"accounts/me"), (bearer,))
    if answer.status in (404, 405, 501):
        return None
    if answer.status in (401, 403):
        raise AccessError(
            f"{answer.where}: {answer.said}",
            hint="name an account in the URL, or keep a token of yours: `odfchain login URL`",
        )
    if answer.status != 200:
        raise _failed(answer)
    try:
        return AccountName(str(answer.document.get("accountName", "")))
    except InvalidIdError as error:
        raise CorruptedPeerError(f"{answer.where}: {one_line(str(error), _SHOWN)}") from None


def with_account(ref: str, account: AccountName) -> str:
    """A reference to a dataset elsewhere, a URL or `repo/name`, with an account before its name."""
    prefix, _, name = ref.rstrip("/").rpartition("/")
    return f"{prefix}/{account}/{name}"


@dataclass(frozen=True, slots=True)
class _Answer:
    where: str
    status: int
    said: str
    """Status and message, for people."""
    document: dict[str, Any]
    location: str | None
    varies: bool
    """Whether it would be another one for somebody else."""


def _failed(answer: _Answer) -> TransferError:
    if answer.location is not None:
        return TransferError(
            f"{answer.where}: sends elsewhere ({answer.location}), where no password or token is sent on to",
            hint="if you trust it, give the URL that it leads to",
        )
    return TransferError(f"{answer.where}: {answer.said}")


@dataclass(slots=True)
class _Node:
    pool: HttpPool
    base: Target
    where: str
    secret: str

    def below(self, path: bytes) -> Target:
        """A path of the node's."""
        root, _ = self.found()
        return replace(root, path=root.path + path)

    def found(self) -> tuple[Target, _Answer]:
        """The longest prefix of the URL at which a node says what it is, and what it says.

        It is asked without credentials: nothing is sent that is not for a node.
        """
        folders = _folders(self.base)
        answer = None
        for count in range(len(folders), max(-1, len(folders) - _DEEPEST - 1), -1):
            root = b"/".join([b"", *folders[:count], b""])
            answer = self.ask(replace(self.base, path=root + b"info"))
            if answer.status == 200 and isinstance(answer.document.get("isMultiTenant"), bool):
                return replace(self.base, path=root), answer
            if answer.location is not None or answer.status >= 500:
                raise _failed(answer)
        said = f": {answer.said}" if answer is not None else ""
        raise UnsupportedPeerError(
            f"{self.where}: no node of Open Data Fabric answers here{said}",
            hint="a web server that hands out files is named without 'odf+'",
        )

    def ask(
        self, target: Target, headers: tuple[tuple[str, str], ...] = (), body: bytes | None = None
    ) -> _Answer:
        """What is answered at this very target, once; with a body the request is a POST."""
        where = one_line(f"odf+{target.public(())}", _SHOWN)
        deadline = Deadline(SHARING.request_seconds, Timing(), name=where)
        own = (("Content-Type", "application/json"), *headers) if body is not None else headers
        route = self.pool.route(target, where)
        try:
            with self.pool.exchange(
                route, request_headers(route, (), own), deadline=deadline, name=where, body=body
            ) as response:
                content = response.read(_ANSWER_BYTES) or b""
                location = response.headers.location() if 300 <= response.status <= 399 else None
                document = _document(content)
                message = document.get("message")
                said = response.what
                if isinstance(message, str):
                    said += f": {one_line(redact(message, (self.secret,)), _SHOWN)}"
                shown = None if location is None else one_line(redact(location, (self.secret,)), _SHOWN)
                varies = "authorization" in (response.headers.get("vary") or "").lower()
                return _Answer(where, response.status, said, document, shown, varies)
        except TransientError as error:
            raise FetchError(f"{where}: {error.reason}") from error


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


def _document(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
