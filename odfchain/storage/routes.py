"""Where a request may be sent: the rules for redirects and addresses, and the proxy on the way."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from urllib.request import getproxies, proxy_bypass

from odfchain.errors import FetchError, InvalidIdError
from odfchain.limits import FetchLimits
from odfchain.storage.http_rules import Deadline, TransientError
from odfchain.storage.locations import Target, is_this_machine, public_name, redact
from odfchain.text import one_line

PRIVATE_HINT = "give the URL that it leads to, or set fetch.allowPrivateRedirects if you trust it"

# Where a redirect may lead.
#
# The user wrote the first URL and may write any. A redirect is written by the server, which could point it at
# what only this machine can reach. So:
#
# - a redirect leads to http or https, and never from https to http;
# - it leads to a private address (one that is not globally reachable: loopback, link-local, RFC 1918 and so
#   on) only if its origin is the first URL's and the first URL itself led to a private address, or if private
#   addresses are allowed;
# - what the user gave for the first URL (password, headers) is dropped for good once a redirect leaves its
#   origin.
#
# An upgrade of the same host from http on port 80 to https on port 443 counts as the same origin. Addresses
# are judged when they are connected to, not when a name is looked up.

# All that IPv6 has given out for the world; a form that is invented elsewhere is private.
_UNICAST = ipaddress.IPv6Network("2000::/3")
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# The bytes before an IPv4 address in the lower half of an address (RFC 5214, 6.1).
_ISATAP = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")


def is_public(address: str) -> bool:
    """True if an IP address is globally reachable, in any IPv6 form of an IPv4 address."""
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
        """True if the user's credentials for the first URL are sent along."""
        self._name = name
        self._limit = limit
        self._allow_private = allow_private
        self._seen = {(first.scheme, first.authority, first.path)}
        self._first_is_private = False

    @property
    def redirected(self) -> bool:
        """True if the present target was named by a server."""
        return len(self._seen) > 1

    def admits(self, address: str) -> bool:
        """True if the present target may be at this IP address; asked before a connection is made."""
        if not self.redirected or self._allow_private or is_public(address):
            return True
        return self._first_is_private and _same_origin(self.first, self.current)

    def admitted(self, addresses: list[str], *, name: str) -> list[str]:
        """Those of the addresses that the route's present target may be at; at least one."""
        found = [address for address in addresses if self.admits(address)]
        if not found:
            raise FetchError(f"{name}: a redirect to a private network address is refused", hint=PRIVATE_HINT)
        return found

    def connected(self, address: str | None) -> None:
        """Take note of the IP address that the present target is at, if it is known."""
        if address is not None and not self.redirected:
            self._first_is_private = not is_public(address)

    def follow(self, location: str, secrets: Iterable[str]) -> None:
        """Go where an answer's `Location` says."""
        try:
            target = self.current.follow(location)
        except InvalidIdError as error:
            to = public_name(redact(location.split("?", 1)[0], secrets))
            raise FetchError(f"{self._name}: redirected to {to!r}: {error.message}") from None
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


def _same_origin(first: Target, other: Target) -> bool:
    if first.host != other.host:
        return False
    upgraded = (first.scheme, first.port, other.scheme, other.port) == ("http", 80, "https", 443)
    return upgraded or (first.scheme, first.port) == (other.scheme, other.port)


# Where a host is: its addresses, and the proxy on the way to it.


def resolve(host: str, port: int, *, name: str) -> list[str]:
    """The IP addresses of a host, at least one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)):
            raise FetchError(f"{name}: no such host", hint="check the host name in the URL") from error
        raise TransientError("the name of the host cannot be resolved now") from error
    except (OSError, UnicodeError) as error:
        raise FetchError(f"{name}: not a valid host name") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def connect(
    addresses: list[str], port: int, limits: FetchLimits, deadline: Deadline
) -> tuple[socket.socket, str]:
    """A connection to the first of the addresses that answers, and which one that is."""
    failure = "no address"
    for address in addresses:
        deadline.check()
        timeout = min(limits.connect_timeout, max(1e-3, deadline.remaining))
        try:
            sock = socket.create_connection((address, port), timeout)
        except TimeoutError:
            failure = f"no connection within {timeout:.3g} s"
            continue
        except OSError as error:
            failure = f"cannot connect to port {port}: {one_line(error.strerror or str(error), 80).lower()}"
            continue
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, address
    deadline.check()
    raise TransientError(failure)


def proxy_for(target: Target) -> str | None:
    """The proxy that the environment names (`http_proxy`, `no_proxy` and so on); this machine needs none."""
    if is_this_machine(target.host):
        return None
    proxies = getproxies()
    found = proxies.get(target.scheme) or proxies.get("all")
    return found if found and not proxy_bypass(f"{target.host}:{target.port}") else None
