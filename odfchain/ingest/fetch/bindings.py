"""Variables that may be sent to certain hosts only.

The settings may bind a variable to hosts (`ingest.variables`). Its value then goes to no other host: not by
the URL of a manifest, not by a redirect that carries it (as it is or percent-encoded, in either case), and
not to a container, which could send it anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from odfchain.errors import FetchError
from odfchain.net.template import redact
from odfchain.text import one_line

_WITH_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]+)", re.ASCII)

Bindings = Mapping[str, tuple[str, ...]]
"""The hosts that a variable may be sent to, for the variables that are bound."""


def is_admitted(hosts: Iterable[str], host: str, port: int | None = None) -> bool:
    """Whether a host is among those named; an entry with a port admits only that port of its host."""
    names = {_normal(host), f"{_normal(host)}:{port}"}
    return any(_normal(entry) in names for entry in hosts)


def _normal(entry: str) -> str:
    """`[host]` or `[host]:port`, so that an IPv6 address is not taken for a host with a port."""
    match = _WITH_PORT.fullmatch(entry)
    host, port = match.groups() if match else (entry, "")
    return f"[{host.strip('[]').rstrip('.').lower()}]{port}"


def check_host(
    names: Iterable[str], bindings: Bindings, host: str, port: int | None = None, *, where: str
) -> None:
    """The variables of these names may be sent to a host.

    Raises:
        FetchError: one is bound to others.
    """
    for name in sorted(names):
        hosts = bindings.get(name)
        if hosts is not None and not is_admitted(hosts, host, port):
            raise FetchError(
                f"{where}: the variable {name} may be sent to {_listed(hosts)} only, not to {one_line(host)}",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )


def check_redirect(
    values: Mapping[str, str], bindings: Bindings, host: str, port: int, target: str, *, where: str
) -> None:
    """A redirect carries no value of the variables to a host that they may not be sent to.

    `values` are the variables that the first request was made of; `target` is the text of the redirect.

    Raises:
        FetchError: it does.
    """
    text = target.lower()  # names of hosts are compared, and asked for, in lower case
    for name, value in sorted(values.items()):
        hosts = bindings.get(name)
        if not value or hosts is None or is_admitted(hosts, host, port):
            continue
        if redact(text, _cased(value)) != text:
            raise FetchError(
                f"{where}: redirected with the value of the variable {name}, which may be sent to "
                f"{_listed(hosts)} only, to {one_line(redact(host.lower(), _cased(value)))}",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )


def check_container(names: Iterable[str], bindings: Bindings, *, where: str) -> None:
    """No bound variable is given to a container.

    Raises:
        FetchError: one would be.
    """
    for name in sorted(names):
        if name in bindings:
            raise FetchError(
                f"{where}: the variable {name} may be sent to {_listed(bindings[name])} only, and a "
                "container could send it anywhere",
                hint=f"ingest.variables.{name}.hosts in the workspace's configuration says so",
            )


def _cased(value: str) -> list[str]:
    return [form.lower() for form in (value, quote(value), quote(value, safe=""))]


def _listed(hosts: tuple[str, ...]) -> str:
    return one_line(", ".join(hosts)) or "no host"
