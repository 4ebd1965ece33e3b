"""What a URL says: where a request goes, as a value."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from odfchain.errors import FetchError
from odfchain.net.template import redact, unreadable_name
from odfchain.text import one_line

PORTS = {"http": 80, "https": 443}
_LONGEST = 65_536
CONTROLS = re.compile(r"^ |[\x00-\x1f\x7f]")
"""What no URL holds."""
_HOST = re.compile(r"[a-z0-9._~!$&'()*+,;=%-]+")
_ESCAPED_IN_PATH = re.compile(rb'[\x20"#<>?`{}\x80-\xff]')
_ESCAPED_IN_QUERY = re.compile(rb'[\x20"#<>\x80-\xff]')


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes; `path` carries the query, `host` is ASCII and an IPv6 address has no brackets."""

    scheme: str
    host: str
    port: int
    path: bytes
    user: str | None = None
    """What `Authorization` says for the user and password in the URL."""

    @property
    def has_default_port(self) -> bool:
        """Whether the port goes without saying."""
        return self.port == PORTS[self.scheme]

    @property
    def authority(self) -> str:
        """Host and port as `Host` names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.has_default_port else f"{host}:{self.port}"

    def public(self, secrets: Iterable[str]) -> str:
        """What messages may say of a target that a server named: no query, none of the secrets."""
        path = self.path.split(b"?")[0].decode("latin-1")
        return one_line(redact(f"{self.scheme}://{self.authority}{path}", secrets))


def parse_target(url: str, *, name: str) -> Target:
    """The target of an http or https URL; messages call it `name`.

    Raises:
        FetchError: it is not a URL that a request can be sent to.
    """
    try:
        return read_target(url)
    except ValueError:
        pass
    masked = unreadable_name(name)
    raise FetchError(
        f"{masked}: not a valid URL once its templates are filled in"
        if "${{" in name
        else f"{masked}: not a valid URL",
        hint="write it like https://host/path",
    )


def read_target(url: str) -> Target:
    """Where an http or https URL leads.

    Raises:
        ValueError: it is neither, or not a valid URL.
    """
    if len(url) > _LONGEST or CONTROLS.search(url):
        raise ValueError
    parts = urlsplit(url)
    port = PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
    if parts.scheme not in PORTS or not 0 < port < 65_536:
        raise ValueError
    path = _ESCAPED_IN_PATH.sub(_escape, _without_dots(parts.path).encode()) or b"/"
    if parts.query:
        path += b"?" + _ESCAPED_IN_QUERY.sub(_escape, parts.query.encode())
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    credentials = basic(unquote(user), unquote(password)) if user or password else None
    return Target(parts.scheme, _host(parts.hostname or ""), port, path, credentials)


def basic(user: str, password: str) -> str:
    """What `Authorization` says for a user and a password (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _host(name: str) -> str:
    if ":" in name:
        ipaddress.IPv6Address(name)
        return name
    if not name.isascii():
        import idna  # noqa: PLC0415 - large tables, for few hosts

        name = idna.encode(name.lower()).decode("ascii")
    if not _HOST.fullmatch(name):
        raise ValueError
    return name


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


def _without_dots(path: str) -> str:
    """The path that `.` and `..` in it lead to (RFC 3986, 5.2.4)."""
    found: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del found[max(1, len(found) - 1) :]
        elif segment != ".":
            found.append(segment)
    return "/".join(found)
