"""`odfchain login`: a token for a server is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odfchain.cli.support.context import options, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import REPOSITORY
from odfchain.cli.support.peers import peer_url
from odfchain.cli.support.screen import ask_secret, ask_text, echo, is_somebody_there, read_line
from odfchain.errors import AccessError, UsageError

if TYPE_CHECKING:
    from odfchain import PeerUrl

_PASSWORD_CHARACTERS = 4_096
"""What is read of standard input [characters]: more than any node takes."""


@click.command("login")
@click.argument("place", metavar="URL|REPOSITORY", required=False, type=REPOSITORY)
@click.option(
    "--stdin", "--token-stdin", "from_stdin", is_flag=True, help="Read the token from standard input."
)
@click.option("--user", metavar="NAME", help="Ask the node for a token, as this user, with a password.")
@click.option("--password-stdin", is_flag=True, help="Read that password from standard input.")
@click.option(
    "--plain-http",
    is_flag=True,
    help="Accept that everybody on the way can read token and password (http, no https).",
)
@format_option()
def login_command(
    place: str | None,
    from_stdin: bool,
    user: str | None,
    password_stdin: bool,
    plain_http: bool,
    output: str,
) -> None:
    """Keep a token for a server; without a server, list those that there are tokens for.

    The token is asked for, and never shown. It is kept in a file of yours (mode 0600) that no workspace has a
    part in, and sent to this scheme, host and port only: by every pull, fetch and search of datasets there,
    whether the place is named or remembered. ODFCHAIN_TOKEN goes before it.

    A node (odf+https://…) is asked whether it knows the token. Nodes that have users give a token for a
    password, which is asked for, sent there once, and kept nowhere.
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
    _check(url, from_stdin=from_stdin, user=user, password_stdin=password_stdin)
    if is_readable_on_the_way(url) and not plain_http:
        raise AccessError(
            f"{url}: over plain http everybody on the way can read the token",
            hint="use https, or say that you accept it: --plain-http",
        )
    token = _token(url, from_stdin=from_stdin, user=user, password_stdin=password_stdin)
    origin = credentials.put(url, token)
    if not options().quiet:
        echo(f"the token for {origin} is kept in {credentials.path}", err=True)
        if is_readable_on_the_way(url):
            echo("warning: it goes over plain http: anybody on the way can read it", err=True)


def _check(url: PeerUrl, *, from_stdin: bool, user: str | None, password_stdin: bool) -> None:
    if password_stdin and user is None:
        raise UsageError("--password-stdin is the password of --user NAME")
    if from_stdin and user is not None:
        raise UsageError("--token-stdin and --user contradict each other: a token, or a user with a password")
    if user is not None and not url.is_smart:
        raise UsageError(
            f"{url}: passwords are taken by nodes, and this is a web server",
            hint=f"if it is a node, write odf+{url}",
        )


def _token(url: PeerUrl, *, from_stdin: bool, user: str | None, password_stdin: bool) -> str:
    from odfchain.api.tokens import password_login
    from odfchain.limits import SHARING

    if from_stdin:
        return _known(url, read_line(SHARING.token_bytes + 2).strip())
    if password_stdin:
        password = read_line(_PASSWORD_CHARACTERS).removesuffix("\n").removesuffix("\r")
        return password_login(url, user or "", password)
    if not is_somebody_there():
        what, option = ("token", "--token-stdin") if user is None else ("password", "--password-stdin")
        raise UsageError(f"nobody is there to type the {what}", hint=f"pipe it in and use {option}")
    if url.is_smart and user is None:
        user = ask_text(f"User at {url} (empty, if you have a token)") or None
    if user is not None:
        return password_login(url, user, ask_secret(f"Password of {user}"))
    return _known(url, ask_secret(f"Token for {url}").strip())


def _known(url: PeerUrl, token: str) -> str:
    from odfchain.api.tokens import check_token

    if url.is_smart and (problem := check_token(url, token)) is not None:
        say(f"warning: the token could not be checked: {problem}")
    return token
