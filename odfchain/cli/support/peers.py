"""What a command says to the places that have datasets: the token, and what is asked of signatures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.screen import echo

if TYPE_CHECKING:
    from odfchain import PeerUrl


def token_for(urls: Iterable[PeerUrl]) -> str | None:
    """The token for the places that the command line names; None when there is none."""
    from odfchain.api import tokens

    found = tokens.token_for(urls)
    for host in found.readable if found else ():
        said = f"warning: {tokens.VARIABLE} goes to {host} over plain http: anybody on the way can read it"
        echo(said, err=True)
    return found.token if found else None


def peer_url(place: str) -> PeerUrl:
    """The place that a URL or the name of a repository means."""
    from odfchain.api.tokens import parse_peer_url

    if "://" in place:
        return parse_peer_url(place)
    return open_workspace().repository_url(place)
