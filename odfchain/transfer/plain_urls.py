"""Whether a URL is below another one, however both are spelled: what a policy for a place covers.

A server takes many spellings for one thing: capitals, the port that goes without saying, percent-encoding, a
user, dots in the path. Whoever chooses among them must not thereby choose the rules. So places are compared
by what they mean, and rather too much is covered than too little: http and https are one place, and so are
all names of this machine. Source: RFC 3986, section 6; RFC-024.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from odfchain.transfer.public_layout import PeerUrl

_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = "localhost"


@dataclass(frozen=True, slots=True)
class PlainUrl:
    """What a URL means: the protocol, the server or bucket, and the way from there."""

    protocol: str
    server: str
    path: tuple[str, ...]

    @classmethod
    def of(cls, url: PeerUrl) -> PlainUrl:
        """The same for all spellings of a URL; users and passwords are no part of it."""
        url = url.plain
        parts = urlsplit(url.text)
        path = unquote(parts.path)
        if url.scheme == "file":
            return cls("file", "", _segments(os.path.realpath(path.replace("\0", ""))))
        server = _server(unquote(parts.netloc.rpartition("@")[2]), _PORTS.get(url.scheme.rpartition("+")[2]))
        return cls(url.scheme.replace("https", "http"), server, _segments(path))

    def is_below(self, other: PlainUrl) -> bool:
        """Whether this is the other place, or within it."""
        return (self.protocol, self.server, self.path[: len(other.path)]) == (
            other.protocol,
            other.server,
            other.path,
        )


def _segments(path: str) -> tuple[str, ...]:
    """The path without what means nothing: empty segments and dots."""
    found: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            found = found[:-1]
        elif segment not in ("", "."):
            found.append(segment)
    return tuple(found)


def _server(authority: str, usual_port: int | None) -> str:
    host, colon, port = authority.rpartition(":")
    if not colon or not (port.isdecimal() or port == ""):
        host, port = authority, ""
    host = host_of(host.removeprefix("[").removesuffix("]"))
    if port == "" or (usual_port is not None and port.isascii() and int(port) == usual_port):
        return host
    return f"{host}:{port.lstrip('0')}"


def is_this_machine(host: str) -> bool:
    """Whether the name of a host means this machine, and what is sent there goes over no network."""
    return host_of(host) == _THIS_MACHINE


def host_of(name: str) -> str:
    """The same for all spellings of a host; all names and addresses of this machine are one."""
    return _host(name.lower().removesuffix("."))


def _host(name: str) -> str:
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(name)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(name))  # 127.1, 0x7f000001
        except (OSError, ValueError):
            try:
                return name.encode("idna").decode("ascii")
            except UnicodeError:
                return name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return _THIS_MACHINE if address.is_loopback else str(address)
