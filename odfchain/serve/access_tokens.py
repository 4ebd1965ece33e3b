"""Tokens that a workspace gives out: who has one may do there what its rights say.

A token is `ka_` and the base32 text of 20 random bytes. It is shown once; what is kept of it is its sha3-256,
so that who reads the file of tokens can use none of them. Source: RFC-050.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from odfchain.digest.sha3 import sha3_256
from odfchain.errors import InvalidIdError, UsageError
from odfchain.ids.did import DatasetId
from odfchain.ids.names import AccountName, DatasetAlias
from odfchain.ids.patterns import DatasetNamePattern
from odfchain.model.timestamp import Timestamp
from odfchain.text import one_line

_RANDOM_BYTES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BEARER = re.compile(r"bearer +([!-~]{1,1024})", re.ASCII | re.IGNORECASE)


class Right(Enum):
    """What a token may allow."""

    READ = "read"
    """To read, where a server asks readers who they are."""
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
        """The right that a text such as `push:org.%`, `push:alice/%` or `read:%/%` names.

        Raises:
            UsageError: there is no such right, or the pattern is none.
        """
        right, colon, pattern = text.partition(":")
        known = {each.value: each for each in Right}
        if right not in known or not colon:
            raise UsageError(
                f"{one_line(text, 100)!r} is not a right",
                hint="rights are read:, push: and force:PATTERN, such as push:org.%, read:alice/%, read:%/%",
            )
        account, slash, name = pattern.rpartition("/")
        try:
            whose = account if account == _ANY else AccountName(account) if slash else None
            return cls(known[right], whose, DatasetNamePattern(name))
        except InvalidIdError as error:
            raise UsageError(f"{one_line(text, 100)!r} is not a right: {error}") from None

    def matches(self, alias: DatasetAlias) -> bool:
        """Whether it is for a dataset: what names no account is for none of an account."""
        return self.account in (_ANY, alias.account) and self.pattern.matches(alias.name)

    def __str__(self) -> str:
        account = "" if self.account is None else f"{self.account}/"
        return f"{self.right.value}:{account}{self.pattern}"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token as it is kept: its name and rights, and what it hashes to."""

    name: str
    digest: bytes
    allow: tuple[Grant, ...]
    created: Timestamp

    def may(self, right: Right, alias: DatasetAlias) -> bool:
        """Whether it allows something with a dataset."""
        rights = (Right.READ, Right.PUSH) if right is Right.READ else (right,)
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
    """The text, which can name a token.

    Raises:
        UsageError: it has other characters than names have, or too many.
    """
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{one_line(text, 100)!r} cannot be the name of a token",
            hint="up to 64 letters, digits and ._- with a letter or digit first",
        )
    return text


def made_token(name: str, allow: Iterable[str], now: Timestamp) -> NewToken:
    """A new token with these rights.

    Raises:
        UsageError: a name or a right is none, or there is no right.
    """
    grants = tuple(dict.fromkeys(Grant.parse(text) for text in allow))
    if not grants:
        raise UsageError("a token needs a right", hint="name it, such as --allow push:NAME")
    text = "ka_" + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode("ascii").lower()
    return NewToken(AccessToken(checked_name(name), digest_of(text), grants, now), text)


def digest_of(text: str) -> bytes:
    """What is kept of a token."""
    return sha3_256(text.encode()).digest()


def is_shown(authorization: str | None) -> bool:
    """Whether a header `Authorization` shows a token, a good one or not; a proxy's password is none."""
    return (authorization or "")[:7].lower() == "bearer "


def holder(authorization: str | None, tokens: Iterable[AccessToken]) -> AccessToken | None:
    """The token that a header `Authorization` shows; all are compared, each in constant time."""
    shown = _BEARER.fullmatch(authorization or "")
    if shown is None:
        return None
    digest, found = digest_of(shown[1]), None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found
