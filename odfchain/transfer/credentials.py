"""Tokens that a user keeps for servers: one for each origin, in a file of the user's own.

    $XDG_CONFIG_HOME/odfchain/credentials.json      (~/.config where that is not set), mode 0600
    {"version": 1, "tokens": {"https://data.example.org": "…"}}

The file is the user's and not the workspace's: a workspace that was copied from somebody names places, and
must bring no secrets along nor take any. A token goes to URLs of its own origin only: the same scheme, host
and port. Source: RFC 6454 (origins), RFC 6750 (bearer tokens); RFC-021.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from odfchain.errors import AccessError, UnsupportedPeerError
from odfchain.limits import SHARING
from odfchain.store import fsio
from odfchain.transfer.plain_urls import is_this_machine
from odfchain.transfer.public_layout import PeerUrl

VARIABLE = "ODFCHAIN_CREDENTIALS"
"""Names another file."""

_PORTS = {"http": 80, "https": 443}
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)


def origin_of(url: PeerUrl) -> str | None:
    """The origin of a web URL (`https://host`, and the port where it is not the usual one), else None."""
    parts = urlsplit(url.plain.text)
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not parts.hostname:
        return None
    try:
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname.rstrip(".")
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + (f":{port}" if port not in (None, _PORTS[scheme]) else "")


def is_readable_on_the_way(url: PeerUrl) -> bool:
    """Whether what is sent to a URL can be read by others: plain http to another machine."""
    return url.plain.scheme == "http" and not is_this_machine(urlsplit(url.text).hostname or "")


def checked_token(text: str) -> str:
    """The text, which is a token that can be sent.

    Raises:
        AccessError: it has other characters than a token has, or is too long; it is not shown.
    """
    if len(text) > SHARING.token_bytes or not _TOKEN.fullmatch(text):
        raise AccessError(
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
        named = os.environ.get(VARIABLE)
        if named:
            return cls(Path(named))
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return cls(Path(base) / "odfchain" / "credentials.json")

    def get(self, url: PeerUrl) -> str | None:
        """The token for a URL; None when none is kept for its origin."""
        origin = origin_of(url)
        return self._read().get(origin) if origin is not None else None

    def origins(self) -> list[str]:
        """The origins that there are tokens for."""
        return sorted(self._read())

    def put(self, url: PeerUrl, token: str) -> str:
        """Durably keep a token, in place of the one before; returns the origin that it is for.

        Raises:
            UnsupportedPeerError: tokens are for http and https.
        """
        origin = origin_of(url)
        if origin is None:
            raise UnsupportedPeerError(f"{url}: a token is for a server (http, https; ports to 65535)")
        token = checked_token(token)
        fsio.make_folder(self.path.parent, mode=0o700)
        with fsio.locked(self._lock):
            self._write(self._read() | {origin: token})
        return origin

    def remove(self, url: PeerUrl | None) -> list[str]:
        """Forget the token for a URL, or all; returns the origins that they were for."""
        if not self.path.exists():
            return []
        with fsio.locked(self._lock):
            known = self._read()
            gone = sorted(o for o in known if url is None or o == origin_of(url))
            if gone:
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
                mode = os.fstat(stream.fileno()).st_mode & 0o777
                data = stream.read(SHARING.credentials_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise AccessError(f"{self.path}: {error.strerror}") from None
        if mode & 0o077:
            raise AccessError(
                f"{self.path}: mode {mode:04o} lets others read your tokens", hint=f"chmod 600 {self.path}"
            )
        tokens = _tokens(data) if len(data) <= SHARING.credentials_bytes else None
        if tokens is None:
            raise AccessError(
                f"{self.path}: not a file of tokens",
                hint="remove it, then `odfchain login URL` makes a new one",
            )
        return tokens


def _tokens(data: bytes) -> dict[str, str] | None:
    try:
        tree: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or tree.get("version") != 1 or not isinstance(tree.get("tokens"), dict):
        return None
    tokens = tree["tokens"]
    return tokens if all(isinstance(token, str) for token in tokens.values()) else None
