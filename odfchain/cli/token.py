"""`odfchain token`: who may read from and push to the server of this workspace."""

from __future__ import annotations

import click

from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import TOKEN
from odfchain.cli.support.screen import echo


@click.group("token")
def token_command() -> None:
    """Give tokens to those who may use this workspace's server, and take them back."""


@token_command.command("create")
@click.argument("name")
@click.option(
    "--allow",
    multiple=True,
    required=True,
    metavar="RIGHT:PATTERN",
    help="What it allows: read:, push:, or force:PATTERN to overwrite history. % is any text: ALICE/%, %/%.",
)
def token_create(name: str, allow: tuple[str, ...]) -> None:
    """Make a token and print it, this once: only its hash is kept, in .odfchain/tokens.yaml.

    With push:, whoever has it may push to the server that `odfchain serve --write` starts, datasets of
    others, whose private keys are not here. With read:, he may read where `serve --restrict-reading` lets
    nobody else; push: allows that, too.
    """
    made = open_workspace().create_token(name, allow)
    if not options().quiet:
        echo(f"the token {made.token.name}; it is shown this once:", err=True)
    echo(made.text)


@token_command.command("list")
@format_option()
def token_list(output: str) -> None:
    """List the tokens, what they allow and since when; not the tokens themselves."""
    rows = [
        {
            "name": token.name,
            "allow": " ".join(map(str, token.allow)) if output == "table" else list(map(str, token.allow)),
            "created": str(token.created),
        }
        for token in open_workspace().tokens()
    ]
    if not rows and output == "table":
        say("no tokens; `odfchain token create NAME --allow push:DATASET` makes one")
        return
    print_records(rows, ["name", "allow", "created"], output)


@token_command.command("revoke")
@click.argument("name", type=TOKEN)
def token_revoke(name: str) -> None:
    """End a token; what is going on with it ends, too."""
    open_workspace().revoke_token(name)
    say(f"revoked {name}")
