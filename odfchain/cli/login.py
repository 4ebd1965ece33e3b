"""`odfchain login`: a token for a server is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odfchain.cli.support.context import options, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import REPOSITORY
from odfchain.cli.support.peers import peer_url
from odfchain.cli.support.screen import ask_secret, echo, is_somebody_there, read_line
from odfchain.errors import AccessError, UsageError

if TYPE_CHECKING:
    from odfchain import PeerUrl


@click.command("login")
@click.argument("place", metavar="URL|REPOSITORY", required=False, type=REPOSITORY)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the token from standard input.")
@click.option(
    "--plain-http", is_flag=True, help="Accept that everybody on the way can read the token (http, no https)."
)
@format_option()
def login_command(place: str | None, from_stdin: bool, plain_http: bool, output: str) -> None:
    """Keep a token for a server; without a server, list those that there are tokens for.

    The token is asked for, and never shown. It is kept in a file of yours (mode 0600) that no workspace has a
    part in, and sent to this scheme, host and port only: by every pull, fetch and search of datasets there,
    whether the place is named or remembered. ODFCHAIN_TOKEN goes before it.
    """
    from odfchain.api.tokens import Credentials, is_readable_on_the_way

    credentials = Credentials.of_user()
    if place is None:
        origins = credentials.origins()
        if not origins and output == "table":
            say("no tokens are kept; `odfchain login URL` keeps one")
            return
        print_records([{"origin": origin} for origin in origins], ["origin"], output)
        return
    url = peer_url(place)
    if is_readable_on_the_way(url) and not plain_http:
        raise AccessError(
            f"{url}: over plain http everybody on the way can read the token",
            hint="use https, or say that you accept it: --plain-http",
        )
    origin = credentials.put(url, _token(url, from_stdin=from_stdin))
    if not options().quiet:
        echo(f"the token for {origin} is kept in {credentials.path}", err=True)
        if is_readable_on_the_way(url):
            echo("warning: it goes over plain http: anybody on the way can read it", err=True)


def _token(url: PeerUrl, *, from_stdin: bool) -> str:
    from odfchain.limits import SHARING

    if from_stdin:
        return read_line(SHARING.token_bytes + 2).strip()
    if not is_somebody_there():
        raise UsageError("nobody is there to type the token", hint="pipe it in and use --stdin")
    token: str = ask_secret(f"Token for {url}")
    return token.strip()
