"""What a command says to the places that have datasets: the token, and what is asked of signatures."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.transfer.public_layout import PeerUrl
    from odfchain.trust.policy import SignaturePolicy

TOKEN_VARIABLE = "ODFCHAIN_TOKEN"  # noqa: S105 - its name, no secret


def token_for(urls: Iterable[PeerUrl]) -> str | None:
    """The token for the places that the command line names; None when there is none.

    Raises:
        UsageError: it would go to more than one server.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        return None
    origins = {urlsplit(str(url))[:2] for url in urls if url.scheme in ("http", "https")}
    if len(origins) > 1:
        servers = " and ".join(sorted(f"{scheme}://{host}" for scheme, host in origins))
        raise UsageError(
            f"{TOKEN_VARIABLE} is a token for one server, not for {servers}",
            hint="pull from one server at a time",
        )
    for scheme, host in origins:
        if scheme == "http" and not _is_here(host):
            said = f"warning: {TOKEN_VARIABLE} goes to {host} over plain http: anybody on the way can read it"
            echo(said, err=True)
    return token if origins else None


def _is_here(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    return name in {"localhost", "::1"} or name.startswith("127.")


def signature_policy(*, require: bool | None, max_age: float | None) -> SignaturePolicy | None:
    """What the options of a command want of signatures; None when they say nothing.

    Raises:
        UsageError: they contradict each other.
    """
    if require is None and max_age is None:
        return None
    if require is False and max_age is not None:
        raise UsageError("--max-age needs a signature, which --no-require-signature does without")
    from odfchain.trust.policy import SignaturePolicy

    return SignaturePolicy(require=require is not False, max_age=None if max_age is None else round(max_age))


def peer_url(place: str) -> PeerUrl:
    """The place that a URL or the name of a repository means."""
    from odfchain.transfer.repositories import parse_peer_url

    if "://" in place:
        return parse_peer_url(place)
    return open_workspace().sharing.repository_url(place)
