"""`odfchain completions`: a completion script for a shell."""

from __future__ import annotations

import click

from odfchain.cli.support.screen import echo_document


@click.command("completions")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completions_command(shell: str) -> None:
    """Print a completion script.

    For bash: eval "$(odfchain completions bash)" in ~/.bashrc.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from odfchain.cli.main import cli

    cls = get_completion_class(shell)
    assert cls is not None  # noqa: S101 - one of click's own
    echo_document(ShellComplete.source(cls(cli, {}, "odfchain", "_ODFCHAIN_COMPLETE")))
