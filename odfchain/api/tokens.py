"""Tokens for servers: those that the user keeps, and the one in the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from odfchain.errors import UsageError
from odfchain.transfer.credentials import Credentials, is_readable_on_the_way
from odfchain.transfer.node_login import check_token, password_login
from odfchain.transfer.public_layout import PeerUrl
from odfchain.transfer.repositories import parse_peer_url

__all__ = [
    "VARIABLE",
    "Credentials",
    "TokenUse",
    "check_token",
    "is_readable_on_the_way",
    "parse_peer_url",
    "password_login",
    "token_for",
]

VARIABLE = "ODFCHAIN_TOKEN"


@dataclass(frozen=True, slots=True)
class TokenUse:
    """A token, and the servers to which it goes so that anybody on the way can read it."""

    token: str
    readable: tuple[str, ...]


def token_for(urls: Iterable[PeerUrl]) -> TokenUse | None:
    """The token in the environment, for the places that are named; None when there is none for them.

    Raises:
        UsageError: it would go to more than one server.
    """
    token = os.environ.get(VARIABLE)
    plain = [url.plain for url in urls] if token else []
    origins = {urlsplit(str(url))[:2] for url in plain if url.scheme in ("http", "https")}
    if not token or not origins:
        return None
    if len(origins) > 1:
        servers = " and ".join(sorted(f"{scheme}://{host}" for scheme, host in origins))
        raise UsageError(
            f"{VARIABLE} is a token for one server, not for {servers}",
            hint="pull from one server at a time",
        )
    return TokenUse(token, tuple(host for scheme, host in origins if scheme == "http" and not _is_here(host)))


def _is_here(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    return name in {"localhost", "::1"} or name.startswith("127.")
