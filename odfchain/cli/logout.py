"""`odfchain logout`: the token for a server is forgotten."""

from __future__ import annotations

import click

from odfchain.cli.support.context import options
from odfchain.cli.support.parameters import REPOSITORY
from odfchain.cli.support.peers import peer_url
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError


@click.command("logout")
@click.argument("place", metavar="URL|REPOSITORY", required=False, type=REPOSITORY)
@click.option("--all", "everything", is_flag=True, help="Forget all tokens.")
def logout_command(place: str | None, everything: bool) -> None:
    """Forget the token for a server."""
    from odfchain.api.tokens import Credentials

    if (place is None) != everything:
        raise UsageError("name the server whose token to forget, or use --all")
    url = peer_url(place) if place is not None else None
    gone = Credentials.of_user().remove(url)
    if url is not None and not gone:
        raise UsageError(f"no token is kept for {url}", hint="`odfchain login` lists those that are")
    if not options().quiet:
        for origin in gone:
            echo(f"forgot the token for {origin}", err=True)
