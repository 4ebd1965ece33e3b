"""Names of hosts to addresses."""

from __future__ import annotations

import socket

from odfchain.errors import FetchError
from odfchain.fetch.retry import PassingError


def resolve(host: str, port: int, *, name: str) -> list[str]:
    """The IP addresses of a host, at least one.

    Raises:
        FetchError: no such host.
        PassingError: the name service does not answer.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)):
            raise FetchError(f"{name}: no such host", hint="check the host name in the URL") from error
        raise PassingError("the name of the host cannot be resolved now") from error
    except (OSError, UnicodeError) as error:
        raise FetchError(f"{name}: not a valid host name") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
