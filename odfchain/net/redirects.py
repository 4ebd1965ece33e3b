"""Where a redirect may lead.

The user wrote the first URL and may write any. A redirect is written by the server, who could point it at
what only this machine can reach. So:

- a redirect leads to http or https, and never from https to http;
- it leads to a private address (one that is not globally reachable: loopback, link-local, RFC 1918 and so on)
  only if its origin is the first URL's and the first URL itself led to a private address, or if private
  addresses are allowed;
- what the user gave for the first URL (password, headers) is dropped for good once a redirect leaves its
  origin.

An upgrade of the same host from http on port 80 to https on port 443 counts as the same origin. Addresses are
judged when they are connected to, not when a name is looked up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urljoin, urlsplit

from odfchain.errors import FetchError
from odfchain.net.template import public_name, redact
from odfchain.net.url import CONTROLS, PORTS, Target, read_target

_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that IPv6 has given out for the world; a form that is invented elsewhere is private."""
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")
"""What is before an IPv4 address in the lower half of an address (RFC 5214, 6.1)."""


def is_public(address: str) -> bool:
    """Whether an IP address is globally reachable, whatever IPv6 form an IPv4 address is wrapped in."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not found.is_multicast
    last = ipaddress.IPv4Address(found.packed[12:])
    inner = last if found in _NAT64 else found.ipv4_mapped or found.sixtofour
    if found.packed[8:12] in _ISATAP and not is_public(str(last)):
        return False
    if inner is not None:
        return is_public(str(inner))
    return found in _UNICAST and found not in _DOCUMENTATION and found.is_global


class Route:
    """The way of one attempt from the first URL over its redirects; decides what each hop may do."""

    def __init__(self, first: Target, *, name: str, limit: int, allow_private: bool) -> None:
        self.first = self.current = first
        self.keeps_headers = True
        """Whether what the user gave for the first URL goes along."""
        self._name = name
        self._limit = limit
        self._allow_private = allow_private
        self._seen = {(first.scheme, first.authority, first.path)}
        self._first_is_private = False

    @property
    def redirected(self) -> bool:
        """Whether the present target was named by a server."""
        return len(self._seen) > 1

    def admits(self, address: str) -> bool:
        """Whether the present target may be at this IP address; asked before a connection is made."""
        if not self.redirected or self._allow_private or is_public(address):
            return True
        return self._first_is_private and _same_origin(self.first, self.current)

    def connected(self, address: str) -> None:
        """Take note of the IP address that the present target is at."""
        if not self.redirected:
            self._first_is_private = not is_public(address)

    def follow(self, location: str, secrets: Iterable[str]) -> None:
        """Go where an answer's `Location` says.

        Raises:
            FetchError: it leads nowhere, to another protocol, from https to http, in a circle, or too far.
        """
        target = self._next(location, secrets)
        end = target.public(secrets)
        if self.current.scheme == "https" and target.scheme == "http":
            raise FetchError(f"{self._name}: redirected from https to http, to {end}: refused")
        key = (target.scheme, target.authority, target.path)
        if key in self._seen:
            raise FetchError(f"{self._name}: the redirects go in a circle, back to {end}")
        if len(self._seen) > self._limit:
            raise FetchError(f"{self._name}: more than {self._limit} redirects, the last one to {end}")
        self._seen.add(key)
        self.current = target
        self.keeps_headers = self.keeps_headers and _same_origin(self.first, target)

    def _next(self, location: str, secrets: Iterable[str]) -> Target:
        here = self.current
        scheme = ""
        try:
            if CONTROLS.search(location):  # which `urljoin` would leave out
                raise ValueError  # noqa: TRY301 - said below
            url = urljoin(f"{here.scheme}://{here.authority}{here.path.decode('latin-1')}", location)
            scheme = urlsplit(url).scheme
            found = read_target(url)
        except ValueError:
            to = public_name(redact(location.split("?", 1)[0], secrets))
            what = "only http and https are followed" if scheme not in PORTS else "not a valid URL"
            raise FetchError(f"{self._name}: redirected to {to!r}: {what}") from None
        return Target(found.scheme, found.host, found.port, found.path)  # credentials are the user's to give


def _same_origin(first: Target, other: Target) -> bool:
    if first.host != other.host:
        return False
    upgraded = (first.scheme, first.port, other.scheme, other.port) == ("http", 80, "https", 443)
    return upgraded or (first.scheme, first.port) == (other.scheme, other.port)
