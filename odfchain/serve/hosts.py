"""Under which names a server is asked: those of its address, of this machine, and those that it was given.

A page of a stranger's can have its own name lead to an address of this machine, and then read what is there
as if it were its own (DNS rebinding). A browser still says by which name it asks. Source: RFC 9110, 7.2 and
15.5.20; RFC-021.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from odfchain.errors import UsageError
from odfchain.serve.smart_pulls import Message, Receive, Send, refuse_upgrade
from odfchain.text import one_line
from odfchain.transfer.plain_urls import host_of, is_this_machine

Application = Callable[[Message, Receive, Send], Awaitable[None]]

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_MISDIRECTED = "this server has another name: --allow-host, where it is started, gives it one more"


def admitted_hosts(listening: str, named: Iterable[str]) -> frozenset[str]:
    """What a server that listens there, and these names, are called in every spelling.

    Raises:
        UsageError: one of them is not the name of a host.
    """
    found = {host_of(listening)}
    for name in named:
        bare = name.removeprefix("[").removesuffix("]")
        if not _HOST.fullmatch(f"[{bare}]" if ":" in bare else host_of(bare)):
            raise UsageError(
                f"{one_line(name)!r} is not the name of a host", hint="write it like node.example, no port"
            )
        found.add(host_of(bare))
    return frozenset(found)


def is_admitted(scope: Message, hosts: frozenset[str]) -> bool:
    """Whether a request names this server, whatever its port; HTTP/1.0 may name none."""
    asked = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if not asked:
        return bool(scope["http_version"] == "1.0")
    match = _HOST.fullmatch(asked[0])
    if match is None or len(asked) > 1:
        return False
    host = host_of(match[1].strip("[]"))
    here = (scope.get("server") or ("",))[0]
    return host in hosts or host == host_of(here) or is_this_machine(host)


def for_hosts(application: Application, hosts: frozenset[str]) -> Application:
    """The application, for requests that name one of these hosts; all others are answered with 421."""

    async def judged(scope: Message, receive: Receive, send: Send) -> None:
        if is_admitted(scope, hosts):
            await application(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_upgrade(send, 421, _MISDIRECTED)
        else:
            body = f"{_MISDIRECTED}\n".encode()
            headers: Any = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 421, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return judged
