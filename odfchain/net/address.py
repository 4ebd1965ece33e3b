"""Where a host is: its addresses, and the proxy on the way to it."""

from __future__ import annotations

import ipaddress
import socket
from urllib.request import getproxies, proxy_bypass

from odfchain.errors import FetchError
from odfchain.net.retry import TransientError


def resolve(host: str, port: int, *, name: str) -> list[str]:
    """The IP addresses of a host, at least one.

    Raises:
        FetchError: no such host.
        TransientError: the name service does not answer.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)):
            raise FetchError(f"{name}: no such host", hint="check the host name in the URL") from error
        raise TransientError("the name of the host cannot be resolved now") from error
    except (OSError, UnicodeError) as error:
        raise FetchError(f"{name}: not a valid host name") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """The proxy that the environment names (`http_proxy`, `no_proxy` and so on); this machine needs none."""
    if host == "localhost" or _is_loopback(host):
        return None
    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    return found if found and not proxy_bypass(f"{host}:{port}") else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
